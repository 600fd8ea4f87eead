from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tiered_storage.kafka_log.files.small_files import is_zero

MIB = 1 << 20


@pytest.mark.parametrize(
    ("content", "begin", "end", "expected"),
    [
        (b"", 0, 0, False),
        (b"\0", 0, 1, True),
        (b"\1\0\0", 1, 3, True),
        (b"\1\0\0", 0, 3, False),
        (b"\0\0\1", 0, 2, True),
        (b"\0\0\1", 0, 3, False),
        (b"\0\0", 2, 2, False),
        (bytes(3 * MIB) + b"\1", 5, 3 * MIB + 1, False),
        (bytes(3 * MIB) + b"\1", 5, 3 * MIB, True),
    ],
)
def test_only_zeros_are_zero(tmp_path: Path, content: bytes, begin: int, end: int, expected: bool) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)

    with path.open("rb") as file:
        assert is_zero(file, begin, end) is expected


def test_holes_of_a_sparse_file_are_skipped_and_later_bytes_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sparse"
    path.write_bytes(b"x")
    os.truncate(path, 64 * MIB)
    read, pread = [], os.pread

    def counted(descriptor: int, size: int, position: int) -> bytes:
        read.append(len(piece := pread(descriptor, size, position)))
        return piece

    monkeypatch.setattr(os, "pread", counted)
    with path.open("r+b") as file:
        assert is_zero(file, 1, 64 * MIB)
        assert sum(read) <= MIB
        os.pwrite(file.fileno(), b"x", 40 * MIB)
        assert not is_zero(file, 1, 64 * MIB)
        assert is_zero(file, 1, 40 * MIB)
    assert sum(read) <= 4 * MIB


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_that_knows_no_holes_is_read_through(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" + bytes(2 * MIB) + b"x")

    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    with path.open("rb") as file:
        monkeypatch.setattr(os, "lseek", refuse)
        assert is_zero(file, 1, 2 * MIB + 1)
        assert not is_zero(file, 1, 2 * MIB + 2)


def test_a_file_that_cannot_be_read_is_not_taken_for_zeros(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(3))

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with path.open("rb") as file, pytest.raises(OSError, match="Input/output"):
        monkeypatch.setattr(os, "lseek", fail)
        is_zero(file, 0, 3)
