"""A log that a broker leads, as its followers see it: by Fetch and OffsetForLeaderEpoch, without a connection."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from support.remote_logs import SEGMENT_BYTES, with_context
from tiered_storage.errors import OffsetOutOfRangeError
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_wire.fetch import FetchAnswer, FetchBuffer, FetchedPartition, FetchLimits, FetchPosition
from tiered_storage.kafka_wire.fetch_layout import EpochEnd
from tiered_storage.kafka_wire.metadata import TopicPartition
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.source.log_directory_source import LogDirectorySource
from tiered_storage.remote_log.source.partition_log import PartitionLog, RollRules, UnsegmentedLog

_RULES = RollRules(SEGMENT_BYTES, LogConfig().segment_ms, LogConfig().segment_index_bytes, 100, 1 << 20)


class _ClusterSource(LogDirectorySource):
    """The leader's log as a running cluster shows it: without its segments."""

    @property
    def shows_segments(self) -> bool:
        return False

    def partition(self, partition: TopicIdPartition) -> PartitionLog | None:
        found = super().partition(partition)
        unsegmented = UnsegmentedLog(_RULES, lambda _: 0, lambda _: 1.0, lambda _: -1, lambda _: {})
        return None if found is None else replace(found, segments=(), unsegmented=unsegmented)


@dataclass(kw_only=True)
class LedLog(ABC):
    """The leader of a partition, of leader epoch `epoch`; an answer to Fetch has at most `bytes_at_once`."""

    epoch: int = 0
    bytes_at_once: int = SEGMENT_BYTES
    before_fetch: Callable[[], None] = lambda: None
    """Called once before the next answer."""
    fetch_errors: list[int] = field(default_factory=list)
    """The error codes of the next answers to Fetch, one each."""
    asked_epochs: list[int] = field(default_factory=list)
    """The epoch of each OffsetForLeaderEpoch."""
    fetched: list[int] = field(default_factory=list)
    """The offset of each Fetch."""

    @property
    @abstractmethod
    def leaders_directory(self) -> Path:
        """The leader's log directory."""

    @abstractmethod
    def log(self) -> AbstractContextManager[LocalLog]:
        """Let the leader start, and stop at the end of the block."""

    def fetch(
        self, positions: Sequence[FetchPosition], buffer: FetchBuffer, limits: FetchLimits | None = None
    ) -> FetchAnswer:
        """As ClusterClient."""
        assert limits is not None
        called, self.before_fetch = self.before_fetch, lambda: None
        called()
        [asked] = positions
        self.fetched.append(asked.offset)
        if self.fetch_errors:
            code = self.fetch_errors.pop(0)
            nothing = FetchedPartition(
                asked.topic, asked.partition, code, -1, -1, -1, (), -1, buffer.room(0), self.epoch
            )
            return FetchAnswer(0.0, (nothing,))
        with self.log() as log:
            end, start = log.high_watermark, log.log_start_offset
            try:
                served, code = log.fetch(asked.offset, self.bytes_at_once).batches, 0
            except OffsetOutOfRangeError:
                served, code = b"", 1
        room = buffer.room(len(served))
        room[:] = served
        offsets = (end, end, start) if code == 0 else (-1, -1, -1)
        found = FetchedPartition(asked.topic, asked.partition, code, *offsets, (), -1, room, self.epoch)
        return FetchAnswer(0.0, (found,))

    def offsets_for_leader_epochs(self, wanted: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, EpochEnd]:
        """As ClusterClient."""
        [(partition, epoch)] = wanted.items()
        self.asked_epochs.append(epoch)
        with self.log() as log:
            epochs = log.leader_epochs
            if epoch == self.epoch or (epochs and epoch < self.epoch and epoch >= epochs[-1].epoch):
                known = min(epoch, epochs[-1].epoch) if epochs else epoch
                return {partition: EpochEnd(known, log.log_end_offset)}
            found = log.end_offset_for_epoch(epoch)
        return {partition: EpochEnd(-1, -1) if found is None else EpochEnd(*found)}

    def beside(self, remote_log: RemoteLogManager) -> RemoteLogManager:
        """Return the remote log with the leader as its cluster."""
        return with_context(remote_log, source=_ClusterSource((self.leaders_directory,)))
