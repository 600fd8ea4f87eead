"""Open folders and files below a root, name by name, without following a symbolic link. The root itself may be one.

Operations on a folder's descriptor stay in that folder, whatever happens to its path meanwhile.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LISTED = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
"""To list a folder or to sync it."""
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class LinkedFolderError(OSError):
    """A folder on the way is a symbolic link."""


def open_inside(root: Path, name: str, flags: int) -> int:
    """Open `name` below `root`; the caller closes it. Raises LinkedFolderError, OSError."""
    above, _, last = name.rpartition("/")
    with _entered(root, above, makes=False) as folder:
        return os.open(last, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)


@contextmanager
def inner_folder(root: Path, name: str, *, makes: bool = False) -> Iterator[int]:
    """Open the folder `name` below `root` for a `with` block, to list or sync it.

    With `makes`, missing folders are created with the rights of the folder above, each synced into it.
    Raises LinkedFolderError, OSError.
    """
    with _entered(root, name, makes=makes) as folder:
        opened = os.open(".", LISTED, dir_fd=folder)
    try:
        yield opened
    finally:
        os.close(opened)


@contextmanager
def _entered(root: Path, name: str, *, makes: bool) -> Iterator[int]:
    folder = os.open(root, _FOLDER)
    try:
        for part in name.split("/") if name else ():
            inner = _enter(part, folder, makes=makes)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


def _enter(part: str, above: int, *, makes: bool) -> int:
    try:
        return os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=above)
    except FileNotFoundError:
        if not makes:
            raise
    except NotADirectoryError as error:
        if stat.S_ISLNK(os.stat(part, dir_fd=above, follow_symlinks=False).st_mode):
            raise LinkedFolderError(errno.ELOOP, f"{part} is a symbolic link") from error
        raise
    with suppress(FileExistsError):
        os.mkdir(part, os.fstat(above).st_mode & 0o777, dir_fd=above)
    _sync(above)
    return os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=above)


def _sync(folder: int) -> None:
    descriptor = os.open(".", LISTED, dir_fd=folder)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
