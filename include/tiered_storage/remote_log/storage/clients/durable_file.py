"""Write a file, read it back, compare checksums, and sync it; translate errors of the file system into ours."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tiered_storage.disk_space import NO_ROOM, disk_of
from tiered_storage.errors import (
    ConfigurationError,
    RemoteObjectCorruptError,
    RemoteObjectNotFoundError,
    RemoteStorageError,
    RemoteStorageFullError,
    RemoteStorageRefusedError,
    TieredStorageError,
)
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.remote_log.storage.clients.inner_folders import LinkedFolderError
from tiered_storage.remote_log.storage.clients.object_client import CheckedChunks, WrittenObject

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


READ_BACK_BYTES = 1 << 20
"""The size of a piece that is read back: it stays in the CPU's cache from the copy to the checksum."""
WRITE_BYTES = 1 << 20
"""The size of one write: from 2 MiB on, Linux uses huge pages for the page cache, which is much slower."""
WRITE_OUT_BYTES = 8 << 20
_SYNC_FILE_RANGE_WRITE = 2

_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None) if sys.platform == "linux" else None
if _sync_file_range is not None:
    _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


class EarlyWriteOut:
    """Starts writing a growing file to disk, in pieces of 8 MiB, so that the final sync takes less time.

    On Linux this is sync_file_range(2), which Python's os module lacks. Elsewhere, and on file systems without it,
    nothing happens until the final sync. It guarantees nothing by itself.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._begun = 0

    def grown_to(self, size: int) -> None:
        """Start writing the bytes added since the last call, if there are enough; the file now has `size` bytes."""
        if size - self._begun >= WRITE_OUT_BYTES:
            self.complete_at(size)

    def complete_at(self, size: int) -> None:
        """Start writing the rest of the file, which is complete."""
        if _sync_file_range is not None and size > self._begun:
            _sync_file_range(self._descriptor, self._begun, size - self._begun, _SYNC_FILE_RANGE_WRITE)
            self._begun = size


def write_file(folder: int, temporary: str, target: Path, checked: CheckedChunks, size: int) -> None:
    """Write, read back and sync the file `temporary` in `folder`; errors name `target`."""
    with file_errors("write", target, size):
        mode = os.fstat(folder).st_mode & 0o666
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, mode, dir_fd=folder)
    try:
        write_out = EarlyWriteOut(descriptor)
        for chunk in checked:
            with file_errors("write", target, size):
                _write_all(descriptor, chunk)
            write_out.grown_to(checked.size)
        write_out.complete_at(checked.size)
        with file_errors("sync", target, size):
            # In this order the disk writes while the file is read back; reading comes out of the page cache anyway.
            _read_back(descriptor, target, checked.written())
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, chunk: memoryview) -> None:
    while chunk:
        chunk = chunk[os.write(descriptor, chunk[:WRITE_BYTES]) :]


def _read_back(descriptor: int, path: Path, written: WrittenObject) -> None:
    """Raise RemoteObjectCorruptError unless the file holds what was written."""
    buffer = memoryview(bytearray(min(READ_BACK_BYTES, written.size + 1)))
    position = checksum = 0
    while count := os.preadv(descriptor, [buffer], position):
        checksum = crc32c(buffer[:count], checksum)
        position += count
    if (position, checksum) != (written.size, written.crc32c):
        raise RemoteObjectCorruptError(
            f"{path}: read back {position} bytes with CRC-32C {checksum:08x}, "
            f"after writing {written.size} with {written.crc32c:08x}: do not trust this file system or its memory"
        )
