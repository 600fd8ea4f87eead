from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

from tiered_storage.remote_log.jobs.library_archive import build_library_archive

JOB = Path(__file__).resolve().parents[3] / "spark_jobs" / "job_stub.py"


@pytest.fixture(scope="module")
def job() -> ModuleType:
    spec = importlib.util.spec_from_file_location("job_stub", JOB)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with an empty directory for temporary files, whose workers import what they would import."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def test_workers_that_start_at_once_unpack_one_library_and_leave_nothing_else(
    job: ModuleType, machine: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    archive = build_library_archive(tmp_path_factory.mktemp("submitted"))
    with ThreadPoolExecutor(4) as workers:
        list(workers.map(job.use_library, [["", str(archive)]] * 4))
    cache = machine / f"remote-log-{os.getuid()}"
    assert [path.name for path in cache.iterdir()] == [archive.stem]
    assert cache.stat().st_mode & 0o777 == 0o700
    assert sys.path[0] == str(cache / archive.stem)
    assert (cache / archive.stem / "tiered_storage" / "remote_log" / "copy" / "job.py").is_file()


def test_another_library_is_unpacked_beside_it(
    job: ModuleType, machine: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    archive = build_library_archive(tmp_path_factory.mktemp("submitted"))
    other = archive.with_name("tiered_storage-0000000000000000.zip")
    archive.rename(other)
    archive = build_library_archive(other.parent)
    job.use_library([str(other)])
    job.use_library([str(archive)])
    assert sorted(path.name for path in (machine / f"remote-log-{os.getuid()}").iterdir()) == sorted(
        [other.stem, archive.stem]
    )
    assert sys.path[0].endswith(archive.stem)


def test_a_link_that_somebody_else_put_there_is_not_followed(
    job: ModuleType, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (machine / "elsewhere").mkdir()
    (machine / f"remote-log-{os.getuid()}").symlink_to(machine / "elsewhere")
    mine = os.getuid()
    # Only the link belongs to somebody else: its owner can make it lead to a directory of ours.
    stat_of = Path.lstat
    monkeypatch.setattr(Path, "lstat", lambda path: os.stat_result([*stat_of(path)[:4], mine + 1, *stat_of(path)[5:]]))
    with pytest.raises(PermissionError, match="belongs to somebody else"):
        job.use_library(["tiered_storage-0.zip"])
    assert list((machine / "elsewhere").iterdir()) == []


def test_what_a_cleaner_of_temporary_files_took_away_is_put_back(
    job: ModuleType, machine: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    archive = build_library_archive(tmp_path_factory.mktemp("submitted"))
    job.use_library([str(archive)])
    taken = machine / f"remote-log-{os.getuid()}" / archive.stem / "tiered_storage" / "remote_log" / "copy" / "job.py"
    taken.unlink()
    job.use_library([str(archive)])
    assert taken.is_file()
