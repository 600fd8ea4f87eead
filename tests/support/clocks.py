"""Clocks that tests set, also for a store in a local directory, and time that passes on command."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tiered_storage.clock import BootTime, Clock, machine_boot_time
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory
from tiered_storage.remote_log.storage.clients.object_client import WrittenObject
from tiered_storage.remote_log.storage.documents.object_names import STORE_CLOCK
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager

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


class ManualClock:
    """A clock that is stopped until it is moved: `now` (ms) is set when time passes, for the machine too."""

    started = 1_600_000_000_000
    """When the machine started, by this clock (ms)."""
    boot_id = machine_boot_time().boot_id
    """The machine's own: a test may hand its clock to a command too, see time_module."""
    is_synchronised = False
    """Whether the kernel says that NTP synchronised it."""

    def __init__(self, now: int = 1_700_000_000_000) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def boot_time(self) -> BootTime:
        """Return how long the machine runs."""
        return BootTime(self.boot_id, self() - self.started, self.is_synchronised)

    def time_module(self) -> SimpleNamespace:
        """Return what may stand in the place of `time` in tiered_storage.clock."""
        return SimpleNamespace(
            time_ns=lambda: self() * 1_000_000,
            clock_gettime_ns=lambda _: self.boot_time().ms * 1_000_000,
            CLOCK_BOOTTIME=None,
        )

    def step(self, by: int) -> None:
        """Set the clock ahead by so many ms, or back: no time passes."""
        self.now += by
        self.started += by

    def restart(self, off_for: int = 60_000) -> None:
        """Let the machine be off for so many ms, by what the clock shows then, and start again."""
        self.now += off_for
        self.started = self.now - 10_000
        self.boot_id = f"start at {self.started}"


class FakeTime:
    """Seconds that only pass in `sleep`, which keeps how long each sleep was."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.slept: list[float] = []
        self.on_sleep: Callable[[], Any] = lambda: None

    def now(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.seconds += seconds
        self.on_sleep()
