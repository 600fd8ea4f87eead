from __future__ import annotations

import importlib.util
import os
import shutil
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


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of the library, which takes half a second to build."""
    return build_library_archive(tmp_path_factory.mktemp("built"))


@pytest.fixture
def archive(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It, as submitted: alone in a folder."""
    return Path(shutil.copy(built, tmp_path_factory.mktemp("submitted")))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with an empty directory for temporary files, whose workers import what they would import."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def test_workers_that_start_at_once_unpack_one_library_and_leave_nothing_else(
    job: ModuleType, machine: Path, archive: Path
) -> None:
    with ThreadPoolExecutor(4) as workers:
        list(workers.map(job.use_library, [["", str(archive)]] * 4))
    cache = machine / f"remote-log-{os.getuid()}"
    assert [path.name for path in cache.iterdir()] == [archive.stem]
    assert cache.stat().st_mode & 0o777 == 0o700
    assert sys.path[0] == str(cache / archive.stem)
    assert (cache / archive.stem / "tiered_storage" / "remote_log" / "copy" / "job.py").is_file()


def test_another_library_is_unpacked_beside_it(job: ModuleType, machine: Path, archive: Path) -> None:
    other = Path(shutil.copy(archive, archive.with_name("tiered_storage-0000000000000000.zip")))
    job.use_library([str(other)])
    job.use_library([str(archive)])
    assert sorted(path.name for path in (machine / f"remote-log-{os.getuid()}").iterdir()) == sorted(
        [other.stem, archive.stem]
    )
    assert sys.path[0].endswith(archive.stem)


def belongs_to_somebody_else(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> None:
    stat_of, other = Path.lstat, os.getuid() + 1

    def lstat(path: Path) -> os.stat_result:
        found = stat_of(path)
        return os.stat_result([*found[:4], other, *found[5:]]) if path in folders else found

    monkeypatch.setattr(Path, "lstat", lstat)


def test_a_folder_that_somebody_else_made_first_is_not_used(
    job: ModuleType, machine: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = machine / f"remote-log-{os.getuid()}"
    (theirs / archive.stem / "tiered_storage").mkdir(parents=True)
    belongs_to_somebody_else(monkeypatch, theirs)

    with ThreadPoolExecutor(4) as workers:
        list(workers.map(job.use_library, [["", str(archive)]] * 4))

    ours = archive.parent / "remote-log"
    assert sys.path[0] == str(ours / archive.stem)
    assert [path.name for path in ours.iterdir()] == [archive.stem]
    assert ours.stat().st_mode & 0o777 == 0o700
    assert not list((theirs / archive.stem / "tiered_storage").iterdir())


@pytest.mark.parametrize("kind", ["link", "dangling link", "file", "writable for all"])
def test_a_job_uses_no_folder_that_others_own_or_can_write_to(
    job: ModuleType, machine: Path, archive: Path, kind: str
) -> None:
    there, elsewhere = machine / f"remote-log-{os.getuid()}", machine / "elsewhere"
    if kind == "file":
        there.touch()
    elif kind == "writable for all":
        there.mkdir()
        there.chmod(0o777)
    else:
        there.symlink_to(elsewhere)
    if kind != "dangling link":
        elsewhere.mkdir()

    job.use_library([str(archive)])

    assert sys.path[0] == str(archive.parent / "remote-log" / archive.stem)
    assert not elsewhere.exists() or not list(elsewhere.iterdir())


def test_no_library_is_loaded_from_another_users_folder(
    job: ModuleType, machine: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    belongs_to_somebody_else(monkeypatch, machine / f"remote-log-{os.getuid()}", archive.parent / "remote-log")
    with pytest.raises(PermissionError, match="TMPDIR"):
        job.use_library([str(archive)])
    assert not [path for path in sys.path if Path(path).name == archive.stem]


def test_a_job_unpacks_again_what_a_cleaner_of_temporary_files_deleted(
    job: ModuleType, machine: Path, archive: Path
) -> None:
    job.use_library([str(archive)])
    taken = machine / f"remote-log-{os.getuid()}" / archive.stem / "tiered_storage" / "remote_log" / "copy" / "job.py"
    taken.unlink()
    job.use_library([str(archive)])
    assert taken.is_file()
