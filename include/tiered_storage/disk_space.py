"""Room on a disk: how much is left, how a message names a full one, and a reserve for the writes that free room.

To expire segments or to stop deletions takes small writes, just when the disk may be full. So a file that holds
nothing lies beside what is written. It is given up for such a write, and made again once there is room.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

RESERVE_BYTES = 8 << 20
"""SQLite's log grows to 4 MiB and a transaction before it starts over; a partition's document has up to 2.5 MB."""

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What the system says where a file cannot grow: disk full, quota used up, limit of the process."""

_TIMES_FREE = 4
"""A disk with less room than this many reserves gets none: that would help to fill it."""


def free_bytes(path: Path) -> int:
    """Return how many bytes the disk of `path` has left for this user. Raises OSError."""
    room = os.statvfs(_nearest(path))
    # Some file systems do not tell; then nothing speaks against writing.
    return room.f_bavail * room.f_frsize if room.f_blocks else 1 << 62


def disk_of(path: Path) -> str:
    """Return the disk of `path` for a message: where it is mounted, and how much of it is free."""
    try:
        nearest = _nearest(path).resolve()
        mounted = next(each for each in (nearest, *nearest.parents) if each.is_mount())
        return f"the disk mounted at {mounted} has {free_bytes(nearest)} bytes free"
    except OSError as error:
        return f"the disk cannot be looked at: {error.strerror}"


@dataclass(slots=True)
class DiskReserve:
    """The file `path`, of `size` bytes that nothing is written to. Processes may share it; nothing here raises."""

    path: Path
    size: int = field(default_factory=lambda: RESERVE_BYTES)
    _is_spent: bool = False

    def make(self) -> None:
        """Make the file, or make it whole again, where the disk has room for several of it."""
        with suppress(OSError):
            if self._held() < self.size and free_bytes(self.path) >= _TIMES_FREE * self.size:
                self._allocate(self.size)

    def take_back(self) -> None:
        """Where this process spent it, take as much of the room back as is left."""
        with suppress(OSError):
            if self._is_spent:
                self._allocate(min(self.size, self._held() + free_bytes(self.path)))
                self._is_spent = False

    def spend(self, size: int | None = None) -> None:
        """Give `size` bytes back to the disk, or all of it."""
        self._is_spent = True
        with suppress(OSError):
            # A link in its place leads to a file of others.
            left = 0 if size is None or self.path.is_symlink() else self.path.stat().st_size - size
            if left > 0:
                os.truncate(self.path, left)
            else:
                self.path.unlink(missing_ok=True)

    def spend_where_full(self, needed: int, size: int | None = None) -> None:
        """Spend as `spend` does where the disk has fewer than `needed` bytes left."""
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
    """Return the nearest of `path` and the folders above it that exists."""
    return next((each for each in (path, *path.parents) if each.exists()), path)
