"""Clocks that tests set: one for all processes of a test, and one for a store in a local directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from support.metadata_stores import ManualClock
from tiered_storage.clock import Clock, machine_boot_time, wall_clock
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory
from tiered_storage.remote_log.storage.clients.object_client import WrittenObject
from tiered_storage.remote_log.storage.documents.object_names import STORE_CLOCK
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager


class SharedClock(ManualClock):
    """The time (ms) that the file at `path` holds.

    Where there is none yet, it begins with the time of this machine, which the files of a store have.
    """

    started = wall_clock() - machine_boot_time().ms
    """The machine's own start: other processes of a test have its clocks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            self.move_to(wall_clock())

    def __call__(self) -> int:
        return int(self.path.read_text())

    def move_to(self, now: int) -> None:
        """Set the time of all processes to `now` (ms)."""
        written = self.path.with_suffix(".new")
        written.write_text(str(now))
        written.replace(self.path)

    def move_by(self, duration_ms: int) -> None:
        """Let `duration_ms` pass."""
        self.move_to(self() + duration_ms)


_PUT = LocalDirectory.put


class StampedDirectory(LocalDirectory):
    """The directory at `root`; objects that show the store's time have that of `clock`."""

    def __init__(self, root: Path, clock: Clock) -> None:
        super().__init__(root)
        self._clock = clock

    def put(self, *arguments: Any, **options: Any) -> WrittenObject:
        return put_at(self._clock)(self, *arguments, **options)


def put_at(clock: Clock) -> Callable[..., WrittenObject]:
    """Return a replacement of LocalDirectory.put for a process in which all objects have that clock."""

    def put(self: LocalDirectory, name: str, size: int, chunks: Iterator[memoryview], **options: Any) -> WrittenObject:
        written = _PUT(self, name, size, chunks, **options)
        if name.startswith(f"{STORE_CLOCK}/"):
            now = clock() * 1_000_000
            os.utime(self._path(name), ns=(now, now))
        return written

    return put


def stamped(remote_log: RemoteLogManager, clock: Clock | None = None) -> RemoteLogManager:
    """Let a store in a local directory have the clock of `remote_log`, or another one; return the same."""
    storage: Any = remote_log.context.storage
    if isinstance(storage, ObjectRemoteStorageManager) and isinstance(storage._client, LocalDirectory):
        storage._client = StampedDirectory(storage._client._root, clock or remote_log.context.clock)
    return remote_log
