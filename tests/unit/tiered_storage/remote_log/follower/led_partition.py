"""A partition that a broker leads, as its followers see it: by Fetch and OffsetForLeaderEpoch, without a connection.

The leader's log is the log directory of a remote log's files; between two calls the leader is stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from support.remote_logs import (
    BATCH_RECORDS,
    LOG_CONFIG,
    NOW,
    ORDERS_0,
    SEGMENT_BYTES,
    RemoteLogFiles,
    record,
    unsynced,
    with_context,
)
from tiered_storage.errors import OffsetOutOfRangeError
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_wire.fetch import FetchAnswer, FetchBuffer, FetchedPartition, FetchLimits, FetchPosition
from tiered_storage.kafka_wire.fetch_layout import EpochEnd
from tiered_storage.kafka_wire.metadata import TopicPartition
from tiered_storage.remote_log.follower.follower import Follower, FollowReport, follow
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.source.log_directory_source import LogDirectorySource
from tiered_storage.remote_log.source.partition_log import PartitionLog, RollRules, UnsegmentedLog

RULES = RollRules(SEGMENT_BYTES, LogConfig().segment_ms, LogConfig().segment_index_bytes, 100, 1 << 20)
FOREVER = replace(LOG_CONFIG, retention_ms=-1, file_delete_delay_ms=0)


class _ClusterSource(LogDirectorySource):
    """The leader's log as a running cluster shows it: without its segments."""

    @property
    def shows_segments(self) -> bool:
        return False

    def partition(self, partition: TopicIdPartition) -> PartitionLog | None:
        found = super().partition(partition)
        unsegmented = UnsegmentedLog(RULES, lambda _: 0, lambda _: 1.0, lambda _: -1, lambda _: {})
        return None if found is None else replace(found, segments=(), unsegmented=unsegmented)


@dataclass
class LedPartition:
    """The leader of orders-0, whose log is in `files`; an answer to Fetch has at most `bytes_at_once`."""

    files: RemoteLogFiles
    epoch: int = 0
    bytes_at_once: int = SEGMENT_BYTES
    before_fetch: Callable[[], None] = lambda: None
    """Called once before the next answer."""
    fetched: list[int] = field(default_factory=list)
    """The offset of each Fetch."""

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

    def fetch(
        self, positions: Sequence[FetchPosition], buffer: FetchBuffer, limits: FetchLimits | None = None
    ) -> FetchAnswer:
        """As ClusterClient."""
        assert limits is not None
        called, self.before_fetch = self.before_fetch, lambda: None
        called()
        [asked] = positions
        self.fetched.append(asked.offset)
        with self.log() as log:
            end, start = log.high_watermark, log.log_start_offset
            try:
                served, code = log.fetch(asked.offset, self.bytes_at_once).batches, 0
            except OffsetOutOfRangeError:
                served, code = b"", 1
        room = buffer.room(len(served))
        room[:] = served
        offsets = (end, end, start) if code == 0 else (-1, -1, -1)
        found = FetchedPartition("orders", 0, code, *offsets, (), -1, room, self.epoch)
        return FetchAnswer(0.0, (found,))

    def offsets_for_leader_epochs(self, wanted: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, EpochEnd]:
        """As ClusterClient."""
        [(partition, epoch)] = wanted.items()
        with self.log() as log:
            epochs = log.leader_epochs
            if epoch == self.epoch or (epochs and epoch < self.epoch and epoch >= epochs[-1].epoch):
                known = min(epoch, epochs[-1].epoch) if epochs else epoch
                return {partition: EpochEnd(known, log.log_end_offset)}
            found = log.end_offset_for_epoch(epoch)
        return {partition: EpochEnd(-1, -1) if found is None else EpochEnd(*found)}

    def beside(self, remote_log: RemoteLogManager) -> RemoteLogManager:
        """Return the remote log with the leader as its cluster."""
        return with_context(remote_log, source=_ClusterSource((self.files.log_directory,)))

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
