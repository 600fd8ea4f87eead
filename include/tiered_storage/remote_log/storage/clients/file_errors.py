"""Translate errors of the file system into those of a store."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tiered_storage.disk_space import NO_ROOM, disk_of
from tiered_storage.errors import (
    ConfigurationError,
    RemoteObjectNotFoundError,
    RemoteStorageError,
    RemoteStorageFullError,
    RemoteStorageRefusedError,
    TieredStorageError,
)
from tiered_storage.remote_log.storage.clients.inner_folders import LinkedFolderError

_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}


def no_room(target: Path, size: int, why: str) -> RemoteStorageFullError:
    """Return the error for a write of `size` bytes to `target`; `why` is the system's reason."""
    return RemoteStorageFullError(
        f"{target.parent}: no room ({why}): {size} bytes are needed for {target.name}; {disk_of(target.parent)}; free "
        "some space there, then try again ('Full disks' in docs/operations.md)"
    )


@contextmanager
def file_errors(doing: str, path: Path, size: int | None = None) -> Iterator[None]:
    """Translate errors of the file system into ours; the message has what was being done to `path`.

    `size` is given for a write: that many bytes are needed, and a missing path is not a missing object.
    """
    try:
        yield
    except OSError as error:
        raise _translated(error, doing, path, size) from error


def _translated(error: OSError, doing: str, path: Path, size: int | None) -> TieredStorageError:
    why = error.strerror or str(error)
    if error.errno == errno.ENAMETOOLONG:
        return ConfigurationError(f"{path}: the name is too long for this file system: use an object store for it")
    if error.errno in NO_ROOM:
        return no_room(path, size or 0, why)
    if error.errno in _REFUSED:
        return RemoteStorageRefusedError(f"{path}: may not {doing} it ({why}): user {os.geteuid()} needs the right to")
    if isinstance(error, LinkedFolderError):
        return RemoteStorageRefusedError(
            f"{path}: may not {doing} it: {why}, and no link below the store's root is followed: put the folder itself "
            "there"
        )
    if size is None and error.errno in {errno.ELOOP, errno.ENOENT}:
        link = ": a symbolic link is in its place" if error.errno == errno.ELOOP else ""
        return RemoteObjectNotFoundError(f"{path}: there is no such object{link}")
    return RemoteStorageError(f"{path}: could not {doing} it ({why})")
