"""The records of a partition in the store that a reader of committed records gets, in order, each once.

Aborted records are left out. If a transaction is still open at the end of the store's segments, everything from its
first record on is left out: its outcome is unknown. The store does not decide these:

    open at the end    no segment of the store has the marker: it was not copied yet, or never will be
    lost in a gap      open before missing offsets, and no longer open after them; unless a later index has its abort,
                       the marker may be among the missing offsets

The transactions open at the end of a segment come from its producer snapshot. Without one, or if only a part of the
segment is taken, they come from the batches.

An abort is in the index of the segment with its marker, which may be later than the records': later indexes are read
too, as long as a transaction is open that may have records in the segment in question.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tiered_storage.errors import RemoteObjectNotFoundError
from tiered_storage.kafka_log.indexes.transaction_index import (
    AbortedBatches,
    AbortedTxn,
    TransactionIndex,
    collect_aborted,
)
from tiered_storage.kafka_log.kernels.constants import CONTROL_BIT
from tiered_storage.kafka_log.producers.producer_snapshot import parse_producer_snapshot
from tiered_storage.kafka_log.producers.transaction_state import OpenTransactions
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import read_records
from tiered_storage.remote_log.progress import OnMoved, unreported
from tiered_storage.remote_log.restore.partition_files import taken_windows
from tiered_storage.remote_log.restore.request import RestoredPartition, RestoredSegment, RestoreRequest
from tiered_storage.remote_log.storage.batch_stream import fetch_whole
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind, RemoteStorageManager

MOST_ABORTS_KEPT = 500_000
"""Besides the last index, about 200 bytes each; with several threads it may be somewhat more."""


class StoredTransactions:
    """The transactions of `segments`, which are in order; results are cached: some numbers for each of them.

    Thread-safe; two threads may compute the same twice.
    """

    def __init__(self, segments: Sequence[RestoredSegment], storage: RemoteStorageManager) -> None:
        """Read nothing yet."""
        self._segments = segments
        self._storage = storage
        self._known: dict[int, Mapping[int, int]] = {}
        self._indexes: dict[int, TransactionIndex] = {}
        self._aborts_kept = 0

    def at_end_of(self, number: int) -> Mapping[int, int]:
        """Return the first offset, by producer id, of each transaction that is open at the end of that segment.

        Raises what reading the store raises, and CorruptRecordError for a corrupt batch.
        """
        first = number
        while first > 0 and not self._is_known(first) and not self._is_behind_gap(first):
            first -= 1
        for each in range(first, number + 1):
            if not self._is_known(each):
                self._known[each] = self._followed(each)
        return self._known[number]

    def first_undecided(self) -> int | None:
        """Return the first offset of the earliest transaction that is open at the end of all segments."""
        return min(self.at_end_of(len(self._segments) - 1).values(), default=None) if self._segments else None

    def aborted_in(self, number: int) -> tuple[AbortedTxn, ...]:
        """Return the aborted transactions with records in the segment of that number. Raises as `at_end_of`."""
        segment = self._segments[number]

        def indexes() -> Iterator[TransactionIndex]:
            for at in range(number, len(self._segments)):
                yield self._index(at)
                if all(first > segment.end_offset for first in self.at_end_of(at).values()):
                    return

        return collect_aborted(indexes(), segment.start_offset, segment.end_offset + 1).transactions

    def lost_in_gaps(self) -> Iterator[AbortedTxn]:
        """Yield the transactions that may have been aborted in a gap, as aborted, up to its end."""
        for number in range(1, len(self._segments)):
            if not self._is_behind_gap(number):
                continue
            segment = self._segments[number]
            still_open = set(self.at_end_of(number).items())
            index = self._index(number)
            aborted = {(each.producer_id, each.first_offset) for each in index.transactions}
            for producer_id, first in self.at_end_of(number - 1).items():
                if (producer_id, first) not in still_open | aborted:
                    last = segment.start_offset - 1
                    yield AbortedTxn(producer_id, first, last, last + 1)

    def _index(self, number: int) -> TransactionIndex:
        """Return that segment's index, limited to the markers that are taken of it."""
        known = self._indexes.get(number)
        if known is None:
            known = _transaction_index(self._segments[number], self._storage)
            if self._aborts_kept > MOST_ABORTS_KEPT:
                self._indexes, self._aborts_kept = {}, 0
            self._indexes[number] = known
            self._aborts_kept += len(known.transactions)
        return known

    def _is_behind_gap(self, number: int) -> bool:
        return number > 0 and self._segments[number - 1].end_offset + 1 < self._segments[number].start_offset

    def _is_known(self, number: int) -> bool:
        """Return whether it is cached, or the snapshot of that segment has it."""
        if number in self._known:
            return True
        segment = self._segments[number]
        if segment.end_offset < segment.metadata.end_offset:
            return False
        raw = index_of(segment, IndexKind.PRODUCER_SNAPSHOT, self._storage)
        if raw is None:
            return False
        producers = parse_producer_snapshot(raw, f"{segment.metadata.segment_id}: producer snapshot")
        self._known[number] = OpenTransactions.of(producers).first_offsets
        return True

    def _followed(self, number: int) -> Mapping[int, int]:
        """Follow the batches of this segment from the state at the end of the previous one."""
        earlier = number > 0 and not self._is_behind_gap(number)
        opened = OpenTransactions(self._known[number - 1] if earlier else {})
        segment = self._segments[number]
        for window, table in taken_windows(segment, fetch_whole(segment.metadata, self._storage)):
            opened.feed(str(segment.metadata.segment_id), window, table, segment.end_offset + 1)
        return opened.first_offsets


def _transaction_index(segment: RestoredSegment, storage: RemoteStorageManager) -> TransactionIndex:
    raw = index_of(segment, IndexKind.TRANSACTION, storage)
    base_offset = segment.metadata.start_offset
    if raw is None:
        return TransactionIndex(base_offset)
    index = TransactionIndex.parse(raw, f"{segment.metadata.segment_id}: transaction index", base_offset)
    taken = (each for each in index.transactions if segment.start_offset <= each.last_offset <= segment.end_offset)
    return TransactionIndex(base_offset, tuple(taken))


def index_of(segment: RestoredSegment, kind: IndexKind, storage: RemoteStorageManager) -> bytes | None:
    """Return the segment's index of that kind in the store, None if it has none."""
    try:
        return storage.fetch_index(segment.metadata, kind)
    except RemoteObjectNotFoundError:
        return None


def all_decided(partition: RestoredPartition, storage: RemoteStorageManager) -> RestoredPartition:
    """Return `partition` up to the last point before its end at which no transaction is open.

    An earlier end may cut off the marker of another transaction that began before: then the end moves before that one.
    """
    while (first := StoredTransactions(partition.segments, storage).first_undecided()) is not None:
        partition = ended_before(partition, first)
    return partition


def ended_before(partition: RestoredPartition, end: int) -> RestoredPartition:
    """Return the part of `partition` below the offset `end`."""
    if end >= partition.log_end_offset:
        return partition
    segments = tuple(
        replace(each, end_offset=min(each.end_offset, end - 1))
        for each in partition.segments
        if each.start_offset < end
    )
    end = max(end, partition.log_start_offset)
    if end == partition.log_start_offset:
        segments = ()
    lineage = tuple(each for each in partition.lineage if each.start_offset < end)
    return replace(partition, segments=segments, log_end_offset=end, lineage=lineage, following=())


@dataclass(frozen=True, slots=True)
class CommittedRecords:
    """Reads the part of `partition` that `request` selects. Memory: one batch and the aborted transactions."""

    partition: RestoredPartition
    request: RestoreRequest
    storage: RemoteStorageManager

    def after(self, offset: int | None, on_moved: OnMoved = unreported) -> Iterator[Record]:
        """Yield the records after `offset` (None: all); `on_moved` is called with the progress through the segments.

        Raises CorruptRecordError for a batch with a wrong checksum, and what the store raises.
        """
        first = max(self.partition.log_start_offset, self.request.from_offset or 0, 0 if offset is None else offset + 1)
        transactions = StoredTransactions(self._every_segment, self.storage)
        undecided = transactions.first_undecided()
        end = self.partition.log_end_offset if undecided is None else min(self.partition.log_end_offset, undecided)
        if self.request.to_offset is not None:
            end = min(end, self.request.to_offset)
        lost = tuple(transactions.lost_in_gaps())
        for number, segment in enumerate(self.partition.segments):
            if segment.end_offset < first:
                on_moved(segment.metadata.size, 1)
                continue
            if segment.start_offset >= end:
                return
            aborted = AbortedBatches((*transactions.aborted_in(number), *lost))
            for source, batch in self._batches(segment, first, aborted, on_moved):
                yield from (
                    each
                    for each in read_records(batch, source=source, verify_crc=False)
                    if first <= each.offset < end and self._is_in_time(each)
                )

    def _is_in_time(self, record: Record) -> bool:
        begin, end = self.request.from_timestamp, self.request.to_timestamp
        return (begin is None or record.timestamp >= begin) and (end is None or record.timestamp < end)

    def _batches(
        self, segment: RestoredSegment, first: int, aborted: AbortedBatches, on_moved: OnMoved
    ) -> Iterator[tuple[str, memoryview]]:
        """Yield the name and the checked bytes of each committed batch that has records from offset `first` on."""
        for window, table in taken_windows(segment, fetch_whole(segment.metadata, self.storage)):
            is_control = table.attributes & CONTROL_BIT != 0
            rows = np.flatnonzero((table.last_offset >= first) & ~is_control & ~aborted.holds(table))
            begins = table.position - table.position[0]
            for row in rows.tolist():
                source = f"{segment.metadata.segment_id}, the batch from offset {table.base_offset[row]} on"
                yield source, window[begins[row] : begins[row] + table.size[row]]
            on_moved(len(window))
        on_moved(0, 1)

    @property
    def _every_segment(self) -> Sequence[RestoredSegment]:
        return (*self.partition.segments, *self.partition.following)
