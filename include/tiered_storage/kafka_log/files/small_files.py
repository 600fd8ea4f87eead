"""Kafka's small files, as checkpoints and indexes: read whole but within a bound, and replaced all or nothing.

A file is replaced as a broker does it: a temporary file beside it (`{name}.tmp`), fsync, rename, fsync of the
directory. After a crash there is the old file or the new one, never a part of one, and perhaps the temporary file.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from io import BufferedReader
from pathlib import Path
from typing import IO

from tiered_storage.errors import CorruptIndexError
from tiered_storage.regular_files import NotRegularFileError, open_regular, regular_descriptor

TEMPORARY_SUFFIX = ".tmp"


def read_small_file(path: Path, max_bytes: int) -> bytes:
    """Return all of `path`.

    Raises CorruptIndexError if it holds more than `max_bytes`, as no such file of Kafka's does, or is no regular
    file; and OSError.
    """
    with open_small_file(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise CorruptIndexError(path, max_bytes, f"the file goes on past {max_bytes} bytes, the most that is read")
    return content


def open_small_file(path: Path) -> BufferedReader:
    """Open `path` to read it. Raises CorruptIndexError if it is no regular file, and OSError."""
    try:
        return open_regular(path)
    except (IsADirectoryError, NotRegularFileError) as error:
        raise CorruptIndexError(path, 0, str(error.strerror)) from error


def holds(path: Path, content: bytes) -> bool:
    """Return whether `path` is a file of that content."""
    return path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content


def replace_file(path: Path, content: bytes) -> None:
    """Make `content` the whole content of `path`, durably and all or nothing."""
    temporary = _temporary(path)
    # A link there would name a file elsewhere, and a FIFO makes us wait for its reader.
    descriptor = regular_descriptor(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "wb") as file:
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    temporary.replace(path)
    sync_directory(path.parent)


def remove_temporary_files(directory: Path, names: Iterable[str]) -> list[str]:
    """Remove what a crash left in `directory` of files of these `names` that were being replaced; return its names."""
    left = [temporary for name in names if (temporary := _temporary(directory / name)).is_file()]
    for temporary in left:
        temporary.unlink()
    return [temporary.name for temporary in left]


def sync_directory(directory: Path) -> None:
    """Make the names in `directory` durable: files that were created, renamed or removed there."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _temporary(path: Path) -> Path:
    return path.with_name(path.name + TEMPORARY_SUFFIX)


_PIECE_BYTES = 1 << 20
_UNKNOWN_TO_FILE_SYSTEM = (errno.EINVAL, errno.ENOTSUP)


def is_zero(file: IO[bytes], begin: int, end: int) -> bool:
    """Return whether there are bytes from `begin` up to `end` (exclusive) of `file`, all of them zeros.

    Where the file is read next is another place then.
    """
    if begin >= end:
        return False
    descriptor = file.fileno()
    while (begin := _next_data(descriptor, begin, end)) < end:
        piece = os.pread(descriptor, min(_PIECE_BYTES, end - begin), begin)
        if piece.count(0) < len(piece):
            return False
        begin += len(piece) or end  # it was cut while we looked: nothing is left
    return True


def _next_data(descriptor: int, begin: int, end: int) -> int:
    """Return where the first bytes at `begin` or behind it are that lie in no hole, `end` where there are none.

    A file system that cannot say where holes are has bytes everywhere.
    """
    try:
        return os.lseek(descriptor, begin, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return end
        if error.errno in _UNKNOWN_TO_FILE_SYSTEM:
            return begin
        raise
