"""Roll closed segments from what a partition's leader sends, for clusters whose disks this host cannot read.

The batches go, as the broker stores them, into files in a folder of our own. They roll as the broker does
(rolled_segment.py), so what comes out is an ordinary closed segment with its indexes and producer snapshot. Only
records below the last stable offset are fetched. Checksums are left to the copy, which reads the files once more and
compares them before anything is marked as whole: here only the headers are read.

The batches go through a file because a store needs a segment's end and size before its first byte (KIP-405), and only
the last answer shows them. That costs two copies in memory: no file is synced, and each is removed once its segment is
copied.

The producers are known if the copy begins at offset 0, or if the last remote segment has a snapshot. Otherwise the
aborted transactions come from the broker's answers, and the segments have no snapshots. Files of our own then record
the producers since the start of the range, so that no copy needs earlier segments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tiered_storage.clock import Clock
from tiered_storage.errors import CorruptRecordError, MalformedAnswerError, UnexpectedAppendOffsetError
from tiered_storage.kafka_log.files.log_segment import LogSegment, producer_snapshot_path
from tiered_storage.kafka_log.files.topic_partition import partition_directory_name
from tiered_storage.kafka_log.producers.producer_history import KnownProducers, follow
from tiered_storage.kafka_log.producers.producer_snapshot import ProducerSnapshotEntry, encode_producer_snapshot
from tiered_storage.kafka_log.producers.producer_state import ProducerState
from tiered_storage.kafka_log.records.batch_header import read_whole_header
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.kafka_log.records.legacy_message import read_true_header
from tiered_storage.kafka_log.records.segment_scan import SegmentScanner
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.fetch import FetchBuffer, FetchedPartition, FetchLimits, FetchPosition, IsolationLevel
from tiered_storage.kafka_wire.fetch_layout import AbortedTransaction
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.source.log_directory_segment import (
    LogDirectorySegment,
    write_seen_producers,
)
from tiered_storage.remote_log.source.partition_log import FETCHED_SCHEME, LocalSegment, RollRules, SegmentLocation
from tiered_storage.remote_log.source.rolled_segment import RolledFiles, SegmentBeingRolled
from tiered_storage.remote_log.source.segment_source import first_timestamp

_WAIT_SECONDS = 0.5
"""How long a broker may hold an answer back that would be empty."""


@dataclass(frozen=True, slots=True)
class RollRange:
    """The offsets to roll segments from: `start_offset` inclusive, `end_offset` exclusive and stable.

    The first batch may begin before `start_offset` if records up to its middle were deleted.
    With `closes_rest`, less than a whole segment at the end is closed too, however young it is.
    """

    start_offset: int
    end_offset: int
    closes_rest: bool = False


@dataclass(frozen=True, slots=True)
class RolledPartition:
    """A partition whose log is rolled: by which rules, in which folder, and by which clock.

    `folder` belongs to one log alone.
    """

    partition: TopicIdPartition
    rules: RollRules
    folder: Path
    clock: Clock


class FetchedLog:
    """The log of one partition, as far as it is fetched. For one thread at a time."""

    def __init__(
        self, place: RolledPartition, wanted: RollRange, producers: Sequence[ProducerSnapshotEntry] | None
    ) -> None:
        """Fetch nothing yet. `producers` are those known at the start of `wanted`; None: they are unknown."""
        partition = place.partition
        self._place = place
        self._wanted = wanted
        self._known = producers
        self._files = RolledFiles(place.folder / partition_directory_name(partition.topic, partition.partition))
        self._next_offset = wanted.start_offset
        self._producers: _FollowedProducers | None = None
        """The producers at the end of the fetched batches; None: nothing was fetched yet."""
        self._active: SegmentBeingRolled | None = None
        self._waiting: _Waiting | None = None

    def next_segment(
        self, cluster: ClusterClient, buffer: FetchBuffer, fetched: Callable[[int], None] = lambda _: None
    ) -> LocalSegment | None:
        """Fetch until the next segment is closed, and return it; None if what is wanted holds no further one.

        `fetched` is called with the bytes of each answer. The records that are left are closed as a segment too once
        they are as old as RollRules.tail_ms. Raises SourceClusterError, CorruptRecordError and OSError. After that, or
        None, nothing more is rolled, and no file is left but those of segments that were handed out.
        """
        closed = None
        try:
            closed = None if self._files.have_ended else self._roll(cluster, buffer, fetched)
        finally:
            if closed is None:
                self._end()
        return closed

    def _roll(self, cluster: ClusterClient, buffer: FetchBuffer, fetched: Callable[[int], None]) -> LocalSegment | None:
        while self._next_offset < self._wanted.end_offset:
            waiting = self._waiting or self._fetch(cluster, buffer, fetched)
            if waiting is None:
                break
            if (closed := self._take(waiting)) is not None:
                return closed
        return self._close_old_tail()

    def release(self, segment: LocalSegment, *, is_reused: bool = True) -> None:
        """As RolledFiles."""
        self._files.release(segment.base_offset, is_reused=is_reused)

    def drop_spare(self) -> None:
        """As RolledFiles."""
        self._files.drop_spare()

    def why_changed(self, segment: LocalSegment) -> None:
        """Return None: no other process changes the file of a `segment` that was handed out."""

    def close(self) -> None:
        """Close the log; its files stay for the owner of the folder to remove."""
        if self._active is not None:
            self._active.close()

    def _end(self) -> None:
        """Remove what is not a whole segment: other partitions are fetched while segments of this one are copied."""
        self._files.end()
        self.close()
        if self._active is not None:
            self._active.files.log_path.unlink(missing_ok=True)
        self._active = self._waiting = None

    def _fetch(self, cluster: ClusterClient, buffer: FetchBuffer, fetched: Callable[[int], None]) -> _Waiting | None:
        """Return the batches of the next answer; None if there were none below the end of what is wanted."""
        is_first = self._producers is None
        question = _Question(
            self._place,
            self._next_offset,
            is_first=is_first,
            learns_producers=is_first and self._known is None and self._next_offset > 0,
        )
        found, batches = question.answer(cluster, buffer)
        batches = batches.rows(0, int(batches.last_offset.searchsorted(self._wanted.end_offset)))
        if not len(batches):
            return None
        if self._producers is None:
            self._producers = self._begin(found, int(batches.base_offset[0]))
        fetched(_end_of(batches))
        return _Waiting(found.records, batches, self._producers)

    def _begin(self, found: FetchedPartition, first: int) -> _FollowedProducers:
        """Make the directory, open the first segment, and return the producers known there.

        Where the offsets before the `first` batch were compacted away, the log begins with them.
        """
        self._files.directory.mkdir()
        start = min(first, self._wanted.start_offset)
        self._open(start)
        if self._known is None:
            undecided = tuple(_undecided(found.aborted, start))
            return _FollowedProducers(KnownProducers(start, undecided).state(), is_whole=False, seen_from=start or None)
        if start:
            _write_snapshot(self._files.directory, start, self._known)
        return _FollowedProducers(KnownProducers(start, tuple(self._known)).state())

    def _take(self, waiting: _Waiting) -> LocalSegment | None:
        """Write what is `waiting` until a segment is closed, and return that; the rest waits for the next one.

        Otherwise the rest would begin a third segment while two are copied.
        """
        batches, self._waiting = waiting.batches, None
        while len(batches):
            # Where compaction left a gap, it is in the next segment: the copy checks that this one reaches its end.
            active = self._active or self._open(self._next_offset)
            count = active.room_for(batches)
            if not count:
                self._waiting = waiting.rest(batches)
                return self._close(active)
            taken = batches.rows(0, count)
            window = waiting.records[int(taken.position[0]) : _end_of(taken)]
            active.append(window, taken, follow(waiting.producers.state, str(self._place.partition), window, taken))
            self._next_offset = int(taken.last_offset[-1]) + 1
            batches = batches.rows(count, len(batches))
        return None

    def _open(self, base_offset: int) -> SegmentBeingRolled:
        files = LogSegment(base_offset, self._files.directory)
        self._active = SegmentBeingRolled(files, self._place.rules, self._place.clock, self._files.take_spare())
        return self._active

    def _close(self, active: SegmentBeingRolled) -> LocalSegment:
        """Close the active segment after what was taken."""
        end = self._next_offset
        active.finish()
        files = active.files
        if self._producers is not None:
            self._producers.write(self._files.directory, end)
        self._files.hand_out(files)
        self._active = None
        return LocalSegment(
            files.base_offset, end - 1, active.size, SegmentLocation(f"{FETCHED_SCHEME}://{files.log_path}")
        )

    def _close_old_tail(self) -> LocalSegment | None:
        """Close the active segment if its first record is that old: an idle partition rolls nothing."""
        if self._active is None:
            return None
        began = first_timestamp(LogDirectorySegment(self._active.files))
        is_old = began is not None and self._place.clock() - began >= self._place.rules.tail_ms
        return self._close(self._active) if is_old or self._wanted.closes_rest else None


@dataclass(frozen=True, slots=True)
class _Question:
    """A request to the leader: batches from `offset` on.

    Before anything was fetched it `is_first`. With `learns_producers`, the answer alone shows which transactions from
    before its batches are aborted.
    """

    place: RolledPartition
    offset: int
    is_first: bool
    learns_producers: bool

    def answer(self, cluster: ClusterClient, buffer: FetchBuffer) -> tuple[FetchedPartition, BatchTable]:
        """Return the answer and its whole batches. Raises as FetchedLog.next_segment."""
        found, batches = self._ask(cluster, buffer)
        if self._leaves_offsets_out(batches) or (len(batches) and self.learns_producers):
            return self._confirmed(found, batches, cluster, buffer)
        return found, batches

    def _confirmed(
        self, found: FetchedPartition, batches: BatchTable, cluster: ClusterClient, buffer: FetchBuffer
    ) -> tuple[FetchedPartition, BatchTable]:
        """Fetch again, and return the second answer. Compares what no checksum covers: the offsets of batches, between
        which only compaction leaves gaps, and the aborted transactions. Raises MalformedAnswerError if they differ.
        """
        offsets, aborted = batches.base_offset, _undecided(found.aborted, self.offset)
        found, batches = self._ask(cluster, buffer)
        batches = batches.rows(0, min(len(offsets), len(batches)))
        differing = "batches at different offsets"
        is_same = len(batches) and np.array_equal(offsets[: len(batches)], batches.base_offset)
        if is_same and self.learns_producers:
            differing = "different aborted transactions"
            is_same = aborted == _undecided(found.aborted, self.offset)
        if not is_same:
            raise MalformedAnswerError(
                f"{self.place.partition}: two answers to a Fetch from offset {self.offset} on have {differing}: the "
                "next run fetches them again"
            )
        return found, batches

    def _ask(self, cluster: ClusterClient, buffer: FetchBuffer) -> tuple[FetchedPartition, BatchTable]:
        """Return the next answer and its whole batches."""
        partition, rules = self.place.partition, self.place.rules
        position = FetchPosition(
            partition.topic,
            partition.partition,
            self.offset,
            rules.fetch_bytes,
            topic_id=partition.topic_id if rules.has_topic_id else None,
        )
        limits = FetchLimits(_WAIT_SECONDS, max_bytes=rules.fetch_bytes, isolation=IsolationLevel.READ_COMMITTED)
        [found] = cluster.fetch([position], buffer, limits).partitions
        if found.error is not None:
            raise found.error.as_exception()
        return found, self._batches_of(found.records)

    def _leaves_offsets_out(self, batches: BatchTable) -> bool:
        """Return whether offsets are missing before one of `batches`."""
        if not len(batches):
            return False
        is_first_later = int(batches.base_offset[0]) > self.offset
        return is_first_later or bool((batches.base_offset[1:] > batches.last_offset[:-1] + 1).any())

    def _batches_of(self, records: memoryview) -> BatchTable:
        """Return the whole batches at the start of `records`.

        What follows a broken batch waits for the next answer, which begins with it. Raises CorruptRecordError, and
        MalformedAnswerError if there is no whole batch: a broker sends one, however large it is.
        """
        if not records:
            return BatchTable.allocate(0)
        name = str(self.place.partition)
        batches = BatchTable.allocate(0)
        header = read_whole_header(records, source=name)
        if header is not None:
            first = read_true_header(records[: header.size], source=name).base_offset
            if not self.is_first and first < self.offset:
                raise UnexpectedAppendOffsetError(
                    f"{name}: a broker was asked for batches from offset {self.offset} on, and sent one that "
                    f"begins at {first}: the next run fetches it again"
                )
            # Not from the segment's base offset: a later batch may be too far from that, and then begins the next one.
            scanner = SegmentScanner(name, first, verify_crc=False)
            try:
                batches, _ = scanner.feed(records)
            except CorruptRecordError as error:
                if not error.position:
                    raise
                batches, _ = scanner.feed(records[: error.position])
        if not len(batches):
            raise MalformedAnswerError(
                f"{name}: the answer to a Fetch from offset {self.offset} on has {len(records):,} bytes, and no "
                "whole batch: the next run fetches it again"
            )
        return batches


@dataclass(frozen=True, slots=True)
class _FollowedProducers:
    """The producers after the batches so far: all of them, or only those `seen_from` an offset on."""

    state: ProducerState
    is_whole: bool = True
    seen_from: int | None = None

    def write(self, directory: Path, offset: int) -> None:
        """Write them for the segment that begins at `offset`, where the batches so far end. Raises OSError."""
        if self.is_whole:
            _write_snapshot(directory, offset, self.state.snapshot())
            return
        # A snapshot would claim to know the producers before the log's start.
        known = KnownProducers(offset, self.state.snapshot(), self.seen_from)
        write_seen_producers(LogSegment(offset, directory), known)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Batches of an answer that no segment has yet, the bytes that they lie in, and the producers before them.

    The bytes are in the buffer that the answer was received into, until some of them have to wait (`is_kept`).
    """

    records: memoryview
    batches: BatchTable
    producers: _FollowedProducers
    is_kept: bool = False

    def rest(self, batches: BatchTable) -> _Waiting:
        """Return the last `batches` of these, in memory of their own: the buffer is used again."""
        if self.is_kept:
            return replace(self, batches=batches)
        begin = int(batches.position[0])
        kept = memoryview(bytes(self.records[begin : _end_of(batches)]))
        return _Waiting(kept, replace(batches, position=batches.position - begin), self.producers, is_kept=True)


def _write_snapshot(directory: Path, offset: int, producers: Sequence[ProducerSnapshotEntry]) -> None:
    producer_snapshot_path(directory, offset).write_bytes(encode_producer_snapshot(producers))


def _end_of(batches: BatchTable) -> int:
    """Return the position (bytes) after the last of `batches`."""
    return int(batches.position[-1] + batches.size[-1])


def _undecided(aborted: Sequence[AbortedTransaction], start: int) -> list[ProducerSnapshotEntry]:
    """Return producers whose transactions began before `start` and are aborted after it, by the broker's answer."""
    first_offsets: dict[int, int] = {}
    for each in aborted:
        if each.first_offset < start:
            first_offsets[each.producer_id] = min(each.first_offset, first_offsets.get(each.producer_id, start))
    return [ProducerSnapshotEntry(producer, -1, -1, -1, 0, -1, -1, first) for producer, first in first_offsets.items()]
