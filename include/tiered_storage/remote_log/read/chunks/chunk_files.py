"""Chunks evicted from memory, on disk: one file each, in a folder of this process alone.

    {folder}/{process id}-{16 hex digits}/.lock     held (flock) for as long as the process uses the folder
    {folder}/{process id}-{16 hex digits}/{n}       the bytes of one chunk, decoded

Only the process knows which chunk each file holds, and its checksum. So an unlocked folder is garbage, and the next
process deletes it. Nothing here is synced: lost chunks are fetched again.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import secrets
import shutil
import threading
from collections import OrderedDict
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tiered_storage.disk_space import NO_ROOM
from tiered_storage.errors import ConfigurationError, TieredStorageError
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.private_files import make_private_folder
from tiered_storage.remote_log.indexes.remote_log_index import RemoteLogIndexEntry
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.read.chunks.checked_chunk import CheckedChunk, read_chunk

LOCK = ".lock"


@dataclass(frozen=True, slots=True)
class _OnDisk:
    path: Path
    checksum: int
    segment: RemoteLogSegmentMetadata
    entry: RemoteLogIndexEntry


class ChunkFiles:
    """Keeps the most recently used chunks, up to `disk_bytes` in all, in files. Thread-safe.

    If the disk is full or broken, chunks are fetched from the store instead.
    """

    def __init__(self, folder: Path, disk_bytes: int) -> None:
        """Create a folder in `folder`, and delete those of dead processes there.

        If the disk is full, nothing is cached. Raises ConfigurationError if this user may not write there.
        """
        self._room = disk_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, _OnDisk] = OrderedDict()
        self._numbers = itertools.count()
        self.held_bytes = 0
        """How much is on the disk."""
        self._own, self._held = folder / f"{os.getpid()}-{secrets.token_hex(8)}", -1
        try:
            self._own, self._held = _folder_of_our_own(folder)
            _remove_left_over(folder, self._own)
        except OSError as error:
            if error.errno in NO_ROOM:
                self._room = 0
                return
            raise ConfigurationError(
                f"{folder} cannot hold chunks ({error}): give this user the right to write there, or set "
                "remote.log.reader.cache.disk.bytes to 0"
            ) from error

    def put(self, key: Hashable, kept: CheckedChunk) -> None:
        """Write a chunk to disk, unless it is there, and evict the least recently used to make room."""
        size = len(kept.content)
        with self._lock:
            if key in self._kept or size > self._room:
                return
        path = self._own / str(next(self._numbers))
        try:
            path.write_bytes(kept.content)
        except OSError:
            _remove([path])
            return
        written = _OnDisk(path, crc32c(kept.content), kept.segment, kept.entry)
        removed = []
        with self._lock:
            if key in self._kept or not self._room:
                removed.append(path)  # another thread wrote it meanwhile, or the cache was closed
            else:
                self._kept[key] = written
                self.held_bytes += size
            while self.held_bytes > self._room:
                removed.append(self._forget_oldest())
        _remove(removed)

    def take(self, key: Hashable) -> CheckedChunk | None:
        """Return a chunk if its file is exactly as it was written; else None."""
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
        try:
            content = found.path.read_bytes()
            if len(content) == found.entry.length and crc32c(content) == found.checksum:
                return read_chunk(found.segment, found.entry, content)
        except (OSError, TieredStorageError):
            pass  # it is fetched again; if the store's copy is corrupt too, that fetch reports it
        with self._lock:
            if self._kept.pop(key, None) is not None:
                self.held_bytes -= found.entry.length
        _remove([found.path])
        return None

    def close(self) -> None:
        """Remove the folder; a second call does nothing."""
        with self._lock:
            self._kept.clear()
            self.held_bytes = self._room = 0
        shutil.rmtree(self._own, ignore_errors=True)
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    def _forget_oldest(self) -> Path:
        _, oldest = self._kept.popitem(last=False)
        self.held_bytes -= oldest.entry.length
        return oldest.path


def _folder_of_our_own(folder: Path) -> tuple[Path, int]:
    """Create and lock a folder; return it and the lock's descriptor."""
    while True:
        own = folder / f"{os.getpid()}-{secrets.token_hex(8)}"
        make_private_folder(own)
        held = os.open(own / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(held, fcntl.LOCK_EX)
        if (own / LOCK).exists():
            return own, held
        os.close(held)  # another process removed it before it was locked


def _remove(paths: list[Path]) -> None:
    for path in paths:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _remove_left_over(folder: Path, own: Path) -> None:
    """Delete the folders that no process holds."""
    for other in folder.iterdir():
        if other == own or not (other / LOCK).is_file():
            continue
        with suppress(OSError), (other / LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(other, ignore_errors=True)
