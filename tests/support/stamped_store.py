"""A store in a local directory whose clock is the test's: what is written there was last modified at that time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tiered_storage.clock import Clock
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.storage.local_directory import LocalDirectory
from tiered_storage.remote_log.storage.object_client import WrittenObject
from tiered_storage.remote_log.storage.object_names import STORE_CLOCK
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager

_PUT = LocalDirectory.put


class StampedDirectory(LocalDirectory):
    """The directory at `root`, with the time of `clock` for what tells the store's time."""

    def __init__(self, root: Path, clock: Clock) -> None:
        super().__init__(root)
        self._clock = clock

    def put(self, *arguments: Any, **options: Any) -> WrittenObject:
        return put_at(self._clock)(self, *arguments, **options)


def put_at(clock: Clock) -> Callable[..., WrittenObject]:
    """Return what may stand in the place of LocalDirectory.put, where all of a process have that clock."""

    def put(self: LocalDirectory, name: str, size: int, chunks: Iterator[memoryview], **options: Any) -> WrittenObject:
        written = _PUT(self, name, size, chunks, **options)
        if name.startswith(f"{STORE_CLOCK}/"):
            now = clock() * 1_000_000
            os.utime(self._path(name), ns=(now, now))
        return written

    return put


def stamped(remote_log: RemoteLogManager, clock: Clock | None = None) -> RemoteLogManager:
    """Let a store in a local directory have the clock of `remote_log`, or another one; return the same."""
    storage: Any = remote_log.storage
    if isinstance(storage, ObjectRemoteStorageManager) and isinstance(storage._client, LocalDirectory):
        storage._client = StampedDirectory(storage._client._root, clock or remote_log.clock)
    return remote_log
