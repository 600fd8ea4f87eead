"""Disk space: how much is left, how messages describe a full disk, and a reserve for writes that free space.

Expiring segments or stopping deletions takes small writes, just when the disk may be full. So an empty file reserves
space beside the data; it is released for such a write, and allocated again once there is room.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

RESERVE_BYTES = 8 << 20
"""SQLite's log grows to 4 MiB plus one transaction before it starts over; a partition manifest has up to 2.5 MB."""

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The system's errors for a file that cannot grow: disk full, quota used up, limit of the process."""

_TIMES_FREE = 4
"""A disk with less room than this many reserves gets none: the reserve would help to fill it."""


def free_bytes(path: Path) -> int:
    """Return how many bytes the disk of `path` has left for this user. Raises OSError."""
    room = os.statvfs(_nearest(path))
    # Some file systems do not report it; assume there is room.
    return room.f_bavail * room.f_frsize if room.f_blocks else 1 << 62


def disk_of(path: Path) -> str:
    """Describe the disk of `path` for a message: its mount point and free bytes."""
    try:
        nearest = _nearest(path).resolve()
        mounted = next(each for each in (nearest, *nearest.parents) if each.is_mount())
        return f"the disk mounted at {mounted} has {free_bytes(nearest)} bytes free"
    except OSError as error:
        return f"the disk cannot be examined: {error.strerror}"


@dataclass(slots=True)
class DiskReserve:
    """The file `path` of `size` allocated, unused bytes. Processes may share it; no method raises."""

    path: Path
    size: int = field(default_factory=lambda: RESERVE_BYTES)
    _is_spent: bool = False

    def make(self) -> None:
        """Create the file, or restore its size, if the disk has room for several of it."""
        with suppress(OSError):
            if self._held() < self.size and free_bytes(self.path) >= _TIMES_FREE * self.size:
                self._allocate(self.size)

    def take_back(self) -> None:
        """If this process spent it, allocate as much of it again as there is room for."""
        with suppress(OSError):
            if self._is_spent:
                self._allocate(min(self.size, self._held() + free_bytes(self.path)))
                self._is_spent = False

    def spend(self, size: int | None = None) -> None:
        """Release `size` bytes to the disk, or all of it."""
        self._is_spent = True
        with suppress(OSError):
            # A link in its place leads to a foreign file.
            left = 0 if size is None or self.path.is_symlink() else self.path.stat().st_size - size
            if left > 0:
                os.truncate(self.path, left)
            else:
                self.path.unlink(missing_ok=True)

    def spend_where_full(self, needed: int, size: int | None = None) -> None:
        """Spend as `spend` does if the disk has fewer than `needed` bytes left."""
        with suppress(OSError):
            if free_bytes(self.path) < needed:
                self.spend(size)

    def _held(self) -> int:
        return self.path.stat().st_blocks * 512 if self.path.exists() else 0

    def _allocate(self, size: int) -> None:
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
        finally:
            os.close(descriptor)


def _nearest(path: Path) -> Path:
    """Return `path`, or the nearest folder above it that exists."""
    return next((each for each in (path, *path.parents) if each.exists()), path)
