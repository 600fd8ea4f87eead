"""Kafka's small files, such as checkpoints and indexes: read whole within a limit, and replaced atomically.

A file is replaced as a broker does it: a temporary file beside it (`{name}.tmp`), fsync, rename, fsync of the
directory. A crash leaves the old file or the new one, and perhaps the temporary file.
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

    Raises CorruptIndexError if it holds more than `max_bytes`, as no such Kafka file does, or is not a regular file;
    and OSError.
    """
    with open_small_file(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise CorruptIndexError(path, max_bytes, f"the file continues past {max_bytes} bytes, the most that is read")
    return content


def open_small_file(path: Path) -> BufferedReader:
    """Open `path` for reading. Raises CorruptIndexError if it is not a regular file, and OSError."""
    try:
        return open_regular(path)
    except (IsADirectoryError, NotRegularFileError) as error:
        raise CorruptIndexError(path, 0, str(error.strerror)) from error


def holds(path: Path, content: bytes) -> bool:
    """Return whether `path` is a file with that content."""
    return path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content


def replace_file(path: Path, content: bytes) -> None:
    """Replace the whole content of `path` by `content`, durably and atomically."""
    temporary = _temporary(path)
    # A link would name a file elsewhere, and a FIFO would block until it has a reader.
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
    """Delete what a crash during a replacement of files with these `names` left in `directory`; return its names."""
    left = [temporary for name in names if (temporary := _temporary(directory / name)).is_file()]
    for temporary in left:
        temporary.unlink()
    return [temporary.name for temporary in left]


def sync_directory(directory: Path) -> None:
    """Make created, renamed and deleted names in `directory` durable."""
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
    """Return whether all bytes from `begin` to `end` (exclusive) of `file` are zeros; False if there are none.

    This moves the file's position.
    """
    if begin >= end:
        return False
    descriptor = file.fileno()
    while (begin := _next_data(descriptor, begin, end)) < end:
        piece = os.pread(descriptor, min(_PIECE_BYTES, end - begin), begin)
        if piece.count(0) < len(piece):
            return False
        begin += len(piece) or end  # the file was truncated meanwhile: nothing is left
    return True


def _next_data(descriptor: int, begin: int, end: int) -> int:
    """Return the position of the first byte at or after `begin` that is not in a hole; `end` if there is none.

    A file system that does not report holes has data everywhere.
    """
    try:
        return os.lseek(descriptor, begin, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return end
        if error.errno in _UNKNOWN_TO_FILE_SYSTEM:
            return begin
        raise
