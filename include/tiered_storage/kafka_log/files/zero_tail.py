"""Zeros at the end of a preallocated file: whether there is nothing else. Holes of a sparse file are not read."""

from __future__ import annotations

import errno
import os
from typing import IO

_PIECE_BYTES = 1 << 20
_UNKNOWN_TO_FILE_SYSTEM = (errno.EINVAL, errno.ENOTSUP)


def is_zero(file: IO[bytes], begin: int, end: int) -> bool:
    """Whether there are bytes from `begin` up to `end` (exclusive) of `file`, all of them zeros.

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
