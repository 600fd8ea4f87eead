"""Kafka's lock on a log directory: the file `.lock` in it, which stays empty, locked as a whole.

A broker locks it with Java's FileChannel.tryLock, on Linux a POSIX record lock, for as long as it runs. We take the
same kind of lock, bound to our open file (an open-file-description lock): the two exclude each other, and ours is not
lost when some other part of our process opens and closes the file, as a classic POSIX lock would be. flock does not
exclude Java.

Source: fcntl_locking(2); released Kafka.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from tiered_storage.errors import InvalidLogDirectoryError, LogDirectoryLockedError
from tiered_storage.regular_files import regular_descriptor

LOCK_FILE = ".lock"

_FLOCK = struct.Struct("hhqqi4x")
"""struct flock of 64-bit Linux: int16 type, int16 whence, int64 start, int64 length (0: to the end), int32 pid."""

_OF_AN_OPEN_FILE = -1
"""The pid that stands for an open-file-description lock: it belongs to no one process."""


class DirectoryLock:
    """A held lock on a log directory, released by `release`, at the end of a `with` block or with the process.

    A child process that is forked meanwhile holds it too, until it closes the file or executes another program.
    """

    def __init__(self, directory: Path, descriptor: int) -> None:
        self.directory = directory
        self._descriptor: int | None = descriptor

    @classmethod
    def acquire(cls, directory: Path, *, exclusive: bool = True) -> Self:
        """Lock `directory` without waiting: exclusively, or shared with other readers.

        Either way no broker can start in it meanwhile. Creates a missing `.lock`.

        Raises LogDirectoryLockedError if it is held, InvalidLogDirectoryError if `.lock` cannot be opened or is not a
        regular file.
        """
        path = directory / LOCK_FILE
        try:
            descriptor = _opened(path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            reason = f"{directory} cannot be locked: {path} cannot be opened for writing ({error.strerror})"
            raise InvalidLogDirectoryError(f"{reason}; name a log directory that this user may write to") from error
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _whole_file(fcntl.F_WRLCK if exclusive else fcntl.F_RDLCK))
        except BlockingIOError as error:
            holder = _holder(descriptor)
            os.close(descriptor)
            raise _locked(directory, holder) from error
        except OSError:
            os.close(descriptor)
            raise
        return cls(directory, descriptor)

    def release(self) -> None:
        """Release the lock; repeated calls are harmless. The file stays, as a broker's does."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


def ensure_unlocked(directory: Path) -> None:
    """Raise LogDirectoryLockedError if anybody holds `directory`'s lock; take and create nothing.

    The result holds for this moment only: to change the directory, hold the lock. Raises InvalidLogDirectoryError
    if `.lock` is not a regular file, and OSError.
    """
    try:
        descriptor = _opened(directory / LOCK_FILE, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        holder = _holder(descriptor)
    finally:
        os.close(descriptor)
    if holder is not None:
        raise _locked(directory, holder)


def ensure_not_linked(directory: Path, logs: Iterable[Path] = ()) -> None:
    """Raise InvalidLogDirectoryError if a partition's `directory`, or one of its `logs`, is a link or mount point.

    Kafka's lock here would not protect the real files, on which a broker may be working. Deleting a log that is a link
    deletes only the link.
    """
    if directory.is_symlink():
        target = directory.resolve()
        raise InvalidLogDirectoryError(
            f"{directory} is a symbolic link to {target}: its files are changed only under the lock of the log "
            f"directory that they lie in. Name {target.parent} in log.dirs and remove the link, or move the files here"
        )
    if _mount_of(directory) != _mount_of(directory.parent):
        raise InvalidLogDirectoryError(
            f"{directory} is a mount point: its files are changed only under the lock of the log directory that they "
            "lie in. Name that one in log.dirs and unmount this one, or move the files here"
        )
    for path in logs:
        if path.is_symlink():
            raise InvalidLogDirectoryError(
                f"{path} is a symbolic link to {path.resolve()}: removing it would leave the file there and free "
                "nothing. Move that file here, in the place of the link"
            )


def _opened(path: Path, flags: int) -> int:
    """Open `.lock` itself, not the target of a link, which would not protect the files beside the link."""
    try:
        return regular_descriptor(path, flags | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        if not path.is_symlink() and (path.is_file() or not path.exists()):
            raise
        what = f"a symbolic link to {path.readlink()}" if path.is_symlink() else "not a regular file"
        raise InvalidLogDirectoryError(
            f"{path.parent} cannot be locked: {path} is {what}. Stop the broker and remove it; a broker makes a new one"
        ) from error


def _mount_of(directory: Path) -> str:
    """Return the id of the mount that holds `directory`: a bind mount of the same disk has the same device number.

    Source: proc(5), /proc/pid/fdinfo.
    """
    descriptor = os.open(directory, os.O_PATH | os.O_CLOEXEC)
    try:
        lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
    finally:
        os.close(descriptor)
    return next(line for line in lines if line.startswith("mnt_id:"))


def _whole_file(kind: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0)


def _holder(descriptor: int) -> int | None:
    """Return the pid that holds a lock on the file (-1: an open-file-description lock); None if it is not locked."""
    found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _whole_file(fcntl.F_WRLCK))
    kind, _, _, _, pid = _FLOCK.unpack(found)
    return None if kind == fcntl.F_UNLCK else pid


def _locked(directory: Path, holder: int | None) -> LogDirectoryLockedError:
    who = "another run" if holder in (None, _OF_AN_OPEN_FILE) else f"process {holder}, most likely a broker,"
    return LogDirectoryLockedError(
        f"{directory} is in use: {who} holds {directory / LOCK_FILE}; "
        "stop the broker or wait for the other run, or work on a copy of the directory"
    )
