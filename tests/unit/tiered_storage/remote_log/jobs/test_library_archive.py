from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

import tiered_storage
from tiered_storage.remote_log.jobs import library_archive
from tiered_storage.remote_log.jobs.library_archive import build_library_archive, submit_folder

PACKAGE = Path(tiered_storage.__file__).parent


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library_archive(tmp_path_factory.mktemp("archive"))


def test_the_archive_holds_the_library_and_nothing_compiled(archive: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        names = opened.namelist()

    assert "tiered_storage/__init__.py" in names
    assert "tiered_storage/remote_log/copy/job.py" in names
    assert "tiered_storage/remote_log/metadata/sql/database/migrations/env.py" in names
    assert all(name.startswith("tiered_storage/") for name in names)
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]
    assert names == sorted(names)


def test_the_same_library_makes_the_same_archive(archive: Path, tmp_path: Path) -> None:
    again = build_library_archive(tmp_path)

    assert again.name == archive.name
    assert again.read_bytes() == archive.read_bytes()


def test_a_change_of_content_or_of_a_name_is_another_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "tiered_storage"
    (package / "__pycache__").mkdir(parents=True)
    module = package / "module.py"
    module.write_text("one = 1\n")
    monkeypatch.setattr(library_archive, "_PACKAGE", package)
    names = [build_library_archive(tmp_path).name]

    (package / "__pycache__" / "module.pyc").write_bytes(b"compiled")
    assert build_library_archive(tmp_path).name == names[0]

    module.write_text("one = 2\n")
    names.append(build_library_archive(tmp_path).name)
    module.rename(package / "other.py")
    names.append(build_library_archive(tmp_path).name)

    assert len(set(names)) == 3
    assert all(name.startswith("tiered_storage-") and name.endswith(".zip") for name in names)


def test_a_worker_imports_the_library_from_where_it_was_unpacked(archive: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(tmp_path)
    program = "import tiered_storage.errors as module; print(module.__file__)"

    found = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout.strip()

    assert Path(found) == tmp_path / "tiered_storage" / "errors.py"
    assert (tmp_path / "tiered_storage" / "errors.py").read_bytes() == (PACKAGE / "errors.py").read_bytes()


KILLED = """
import os, signal
from tiered_storage.remote_log.jobs.library_archive import submit_folder
with submit_folder() as folder:
    (folder / "archive.zip").write_bytes(b"content")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_submit_folder_is_removed_at_the_end_and_folders_of_killed_tasks_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "remote-log-submit-file").touch()
    environment = {"TMPDIR": str(tmp_path), "PATH": ""}
    assert subprocess.run([sys.executable, "-c", KILLED], env=environment, check=False).returncode < 0
    [left] = [path for path in tmp_path.iterdir() if path.is_dir()]

    with submit_folder() as first:
        assert not left.exists()
        assert first.stat().st_mode & 0o777 == 0o700
        (first / "archive.zip").touch()
        with submit_folder() as second:
            assert first != second
            assert (first / "archive.zip").exists()
        assert not second.exists()
    with pytest.raises(FileNotFoundError), submit_folder():
        (tmp_path / "of the block").unlink()

    assert [path.name for path in tmp_path.iterdir()] == ["remote-log-submit-file"]
