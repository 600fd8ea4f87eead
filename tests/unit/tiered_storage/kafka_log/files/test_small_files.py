from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tiered_storage.errors import CorruptIndexError
from tiered_storage.kafka_log.files.small_files import read_small_file, remove_temporary_files, replace_file
from tiered_storage.regular_files import NotRegularFileError


def test_a_replaced_file_has_the_new_content_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(b"old and longer")

    replace_file(path, b"new")

    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_replaced_keeps_its_content(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(b"old")
    (tmp_path / "checkpoint.tmp").mkdir()

    with pytest.raises(IsADirectoryError):
        replace_file(path, b"new")

    assert path.read_bytes() == b"old"


def test_a_file_is_read_up_to_its_bound_and_no_further(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100))

    assert read_small_file(path, 100) == bytes(100)
    with pytest.raises(CorruptIndexError, match=r"at byte 99: .*99 bytes"):
        read_small_file(path, 99)


def test_a_failed_replacement_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(b"old")

    def is_full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(os, "fsync", is_full)
    with pytest.raises(OSError, match="no room"):
        replace_file(path, b"new")

    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_temporary_files_of_a_crash_are_removed(tmp_path: Path) -> None:
    for name in ("mine", "mine.tmp", "other.tmp"):
        (tmp_path / name).write_bytes(b"content")
    (tmp_path / "yours.tmp").mkdir()

    assert remove_temporary_files(tmp_path, ["mine", "yours", "missing"]) == ["mine.tmp"]

    assert {path.name for path in tmp_path.iterdir()} == {"mine", "other.tmp", "yours.tmp"}


def test_folders_fifos_and_links_are_neither_read_nor_written_through(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    for name, reason in (("folder", "Is a directory"), ("fifo", "it is not a regular file")):
        with pytest.raises(CorruptIndexError, match=reason):
            read_small_file(tmp_path / name, 3)

    os.mkfifo(tmp_path / "first.tmp")
    with pytest.raises(NotRegularFileError):
        replace_file(tmp_path / "first", b"new")
    (tmp_path / "elsewhere").write_bytes(b"old")
    (tmp_path / "second.tmp").symlink_to("elsewhere")
    with pytest.raises(OSError, match=r"second\.tmp"):
        replace_file(tmp_path / "second", b"new")
    assert (tmp_path / "elsewhere").read_bytes() == b"old"
