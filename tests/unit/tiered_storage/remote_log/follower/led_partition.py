"""A partition that a broker leads, as its followers see it: by Fetch and OffsetForLeaderEpoch, without a connection.

The leader's log is the log directory of a remote log's files; between two calls the leader is stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from support.led_log import LedLog
from support.remote_logs import BATCH_RECORDS, LOG_CONFIG, NOW, ORDERS_0, RemoteLogFiles, record, unsynced
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.remote_log.follower.follower import Follower, FollowReport, follow

FOREVER = replace(LOG_CONFIG, retention_ms=-1, file_delete_delay_ms=0)


@dataclass
class LedPartition(LedLog):
    """The leader of orders-0, whose log is in `files`."""

    files: RemoteLogFiles

    @property
    def leaders_directory(self) -> Path:
        return self.files.log_directory

    @property
    def directory(self) -> Path:
        """The follower's log directory."""
        return self.files.root / "follower"

    @contextmanager
    def log(self) -> Iterator[LocalLog]:
        """Let the leader start, and stop at the end of the block."""
        with unsynced(), LogDirectoryWriter.open(self.files.log_directory, FOREVER, clock=lambda: NOW) as writer:
            yield writer.log("orders", 0)

    def append(self, batches: int = 1, shift: int = 0) -> None:
        """Append so many batches under the leader's epoch, with the records of offsets `shift` later."""
        with self.log() as log:
            for _ in range(batches):
                end = log.log_end_offset
                written = [replace(record(at + shift), offset=at) for at in range(end, end + BATCH_RECORDS)]
                log.append(written, leader_epoch=self.epoch)

    def trim(self, before: int) -> None:
        """Delete the leader's segments below an offset."""
        with self.log() as log:
            log.delete_records(before)
            log.delete_old_segments()

    def lead_from(self, offset: int) -> None:
        """Let another leader take over, whose log ends at `offset`."""
        with self.log() as log:
            log.truncate_to(offset)
        self.epoch += 1

    def content(self, start: int = 0) -> bytes:
        """Return the leader's bytes from the batch that begins at `start` on."""
        with self.log() as log:
            return everything(log, start)

    @contextmanager
    def follower(self, **settings: Any) -> Iterator[Follower]:
        """Open a follower of the leader; `settings` are named with underscores for dots."""
        self.files.properties.update({name.replace("_", "."): value for name, value in settings.items()})
        with unsynced(), self.files.open() as remote_log:
            context = self.beside(remote_log).context
            with Follower.open(context, ORDERS_0, self.directory, leader=self) as follower:
                yield follower

    def follow(self, **settings: Any) -> FollowReport:
        """Let a follower catch up, and stop in order."""
        with self.follower(**settings) as follower:
            return follow(follower)

    def follower_content(self) -> bytes:
        """Return the bytes of the follower's log, which is closed."""
        return b"".join(each.log_path.read_bytes() for each in list_segments(self.directory / "orders-0"))

    def as_local_log(self) -> RemoteLogFiles:
        """Return the remote log with the follower's directory as its log.dirs."""
        return replace(self.files, properties={**self.files.properties, "log.dirs": [str(self.directory)]})


def everything(log: LocalLog, start: int) -> bytes:
    """Return the log's bytes from `start` on."""
    found = bytearray()
    offset = start
    while batches := log.read(offset, 1):
        found += batches
        offset = int.from_bytes(batches[:8], "big") + int.from_bytes(batches[23:27], "big") + 1
    return bytes(found)
