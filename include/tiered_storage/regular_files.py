"""Open only regular files that others created: a FIFO or a device could block for ever."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader, FileIO
from pathlib import Path

NOT_REGULAR = "it is not a regular file"


class NotRegularFileError(OSError):
    """A path names a FIFO, a device or a socket."""


def open_regular(path: Path) -> BufferedReader:
    """Open `path`, following links, for reading. Raises OSError: NotRegularFileError for a FIFO or a device."""
    return BufferedReader(open_unbuffered(path))


def open_unbuffered(path: Path | str) -> FileIO:
    """Open `path` as open_regular does, without a buffer."""
    return FileIO(path, "rb", opener=regular_descriptor)


def regular_descriptor(path: Path | str, flags: int, mode: int = 0o666) -> int:
    """Open `path` with `flags` without blocking; return its descriptor. Raises OSError as open_regular does."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise NotRegularFileError(errno.EINVAL, NOT_REGULAR, str(path))
