"""Cuts closed segments out of what a partition's leader sends, for clusters whose disks nobody here can reach.

The batches go, as the broker stores them, into a LocalLog in a folder of our own. It rolls by the topic's settings as
the broker does, so what comes out is an ordinary closed segment with its indexes and producer snapshot. Only records
below the last stable offset are fetched.

The producers are known from the log's offset 0, or from the snapshot that goes with the last remote segment. Where
neither is there, the aborted transactions come from the broker's answers, and the segments go without snapshots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tiered_storage.clock import Clock
from tiered_storage.kafka_log.files.log_segment import LogSegment, producer_snapshot_path
from tiered_storage.kafka_log.kernels.constants import BATCH_OVERHEAD
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.producers.producer_snapshot import ProducerSnapshotEntry, write_producer_snapshot
from tiered_storage.kafka_log.records.batch_header import read_batch_header
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.fetch import (
    AbortedTransaction,
    FetchBuffer,
    FetchedPartition,
    FetchLimits,
    FetchPosition,
    IsolationLevel,
)
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.source.log_directory_segment import LogDirectorySegment
from tiered_storage.remote_log.source.segment_age import first_timestamp
from tiered_storage.remote_log.source.segment_source import CutRules, LocalSegment, SegmentLocation

_WAIT_SECONDS = 0.5
"""How long a broker may hold an answer back that would be empty."""


@dataclass(frozen=True, slots=True)
class CutRange:
    """The offsets to cut segments from: `start_offset` inclusive, `end_offset` exclusive and stable.

    The first batch may begin before `start_offset`, where somebody deleted records up to the middle of it.
    With `closes_rest`, less than a whole segment at the end is closed too, however young it is.
    """

    start_offset: int
    end_offset: int
    closes_rest: bool = False


class FetchedLog:
    """The log of one partition, as far as it is fetched. For one thread at a time."""

    def __init__(
        self,
        partition: TopicIdPartition,
        rules: CutRules,
        wanted: CutRange,
        producers: Sequence[ProducerSnapshotEntry] | None,
        folder: Path,
        clock: Clock,
    ) -> None:
        """Work in `folder`, which belongs to this log alone. Nothing is fetched yet.

        `producers` are those known at the start of `wanted`; None: nobody knows them.
        """
        self._partition = partition
        self._rules = rules
        self._wanted = wanted
        self._producers = producers
        self._folder = folder
        self._clock = clock
        self._topic_id = partition.topic_id if rules.has_topic_id else None
        self._log: LocalLog | None = None
        self._handed_out = -1
        """The base offset of the last segment that was handed out."""
        self._done: set[int] = set()

    def cut(
        self, cluster: ClusterClient, buffer: FetchBuffer, fetched: Callable[[int], None] = lambda _: None
    ) -> LocalSegment | None:
        """Fetch until the next segment is closed, and return it; None if what is wanted holds no further one.

        `fetched` is called with the bytes of each answer.
        The records that are left are closed as a segment too once they are as old as CutRules.tail_ms. Raises
        SourceClusterError, CorruptRecordError and OSError.
        """
        while (closed := self._closed()) is None:
            if self._next_offset >= self._wanted.end_offset or not self._fetch(cluster, buffer, fetched):
                self._roll_old_tail()
                closed = self._closed()
                break
        if closed is None:
            return None
        self._handed_out = closed.base_offset
        return closed

    def release(self, segment: LocalSegment) -> None:
        """Remove the files of a segment that was handed out, once those before it are released too."""
        if self._log is None:
            return
        self._done.add(segment.base_offset)
        for file, successor in zip(self._log.segments, self._log.segments[1:], strict=False):
            if file.base_offset not in self._done:
                break
            self._log.delete_records(successor.base_offset)
        self._log.delete_old_segments()

    def why_changed(self, segment: LocalSegment) -> None:
        """Return why the file of a `segment` changed since it was handed out: nobody else writes here."""

    def close(self) -> None:
        """Close the log; its files stay for the owner of the folder to remove."""
        if self._log is not None:
            self._log.abandon()

    @property
    def _next_offset(self) -> int:
        return self._wanted.start_offset if self._log is None else self._log.log_end_offset

    def _closed(self) -> LocalSegment | None:
        """Return the oldest closed segment that was not handed out yet."""
        if self._log is None:
            return None
        for file, successor in zip(self._log.segments, self._log.segments[1:], strict=False):
            if file.base_offset > self._handed_out:
                return self._handed(file, successor.base_offset)
        return None

    def _handed(self, file: LogSegment, end: int) -> LocalSegment:
        if self._producers is None:
            # They would claim to know the producers before the log's start.
            for offset in (file.base_offset, end):
                producer_snapshot_path(file.directory, offset).unlink(missing_ok=True)
        return LocalSegment(file.base_offset, end - 1, file.size(), SegmentLocation(str(file.log_path)))

    def _fetch(self, cluster: ClusterClient, buffer: FetchBuffer, fetched: Callable[[int], None]) -> bool:
        """Append the next answer; return whether there was anything."""
        name = self._partition
        position = FetchPosition(
            name.topic, name.partition, self._next_offset, self._rules.fetch_bytes, topic_id=self._topic_id
        )
        limits = FetchLimits(_WAIT_SECONDS, max_bytes=self._rules.fetch_bytes, isolation=IsolationLevel.READ_COMMITTED)
        [found] = cluster.fetch([position], buffer, limits).partitions
        if found.error is not None:
            raise found.error.as_exception()
        records = self._below_end(found.records)
        if not records:
            return False
        fetched(len(records))
        log = self._log or self._begin(found)
        before = log.log_end_offset
        log.append_as_follower(records)  # type: ignore[arg-type]  # it reads any buffer, and keeps nothing of it
        return log.log_end_offset > before

    def _below_end(self, records: memoryview) -> memoryview:
        """Return the whole batches that end below the end of what is wanted."""
        at, name = 0, str(self._partition)
        while len(records) - at >= BATCH_OVERHEAD:
            header = read_batch_header(records[at : at + BATCH_OVERHEAD], source=name, source_position=at)
            if at + header.size > len(records) or header.last_offset >= self._wanted.end_offset:
                break
            at += header.size
        return records[:at]

    def _begin(self, found: FetchedPartition) -> LocalLog:
        """Create the log where the first batch begins, with the producers known there.

        Where the offsets before that batch were compacted away, the log begins with them.
        """
        first = read_batch_header(found.records[:BATCH_OVERHEAD], source=str(self._partition)).base_offset
        start = min(first, self._wanted.start_offset)
        name, config = self._partition, self._config()
        log = LocalLog.create(
            self._folder, name.topic, name.partition, name.topic_id, config, clock=self._clock, base_offset=start
        )
        known = _undecided(found.aborted, start) if self._producers is None else self._producers
        if known:
            log.close()
            write_producer_snapshot(producer_snapshot_path(log.directory, start), known)
            log = LocalLog.open(log.directory, config, clock=self._clock, log_start_offset=start)
        self._log = log
        return log

    def _config(self) -> LogConfig:
        return LogConfig(
            segment_bytes=self._rules.segment_bytes,
            segment_ms=self._rules.segment_ms,
            segment_index_bytes=self._rules.segment_index_bytes,
            index_interval_bytes=self._rules.index_interval_bytes,
            retention_ms=-1,
            file_delete_delay_ms=0,
        )

    def _roll_old_tail(self) -> None:
        """Close the active segment if its first record is that old: an idle partition rolls nothing."""
        if self._log is None:
            return
        self._log.flush()
        active = self._log.segments[-1]
        began = first_timestamp(LogDirectorySegment(active))
        is_old = began is not None and self._clock() - began >= self._rules.tail_ms
        if is_old or (self._wanted.closes_rest and active.size() > 0):
            self._log.roll()


def _undecided(aborted: Sequence[AbortedTransaction], start: int) -> list[ProducerSnapshotEntry]:
    """Return producers whose transactions began before `start` and are aborted after it, by the broker's answer."""
    first_offsets: dict[int, int] = {}
    for each in aborted:
        if each.first_offset < start:
            first_offsets[each.producer_id] = min(each.first_offset, first_offsets.get(each.producer_id, start))
    return [ProducerSnapshotEntry(producer, -1, -1, -1, 0, -1, -1, first) for producer, first in first_offsets.items()]
