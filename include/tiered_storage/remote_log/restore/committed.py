"""The records of a partition in the store that a reader of committed records is given, in order, each once.

What was aborted is left out (open_transactions.py). Where a transaction is still open at the end of all that is in the
store, nothing from its first record on is given: nobody knows yet.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tiered_storage.kafka_log.indexes.transaction_index import AbortedTransaction
from tiered_storage.kafka_log.records.batch_header import RecordBatch
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import read_records
from tiered_storage.remote_log.progress import OnMoved, untold
from tiered_storage.remote_log.restore.open_transactions import OpenTransactions, batches_of
from tiered_storage.remote_log.restore.partition_files import taken_batches
from tiered_storage.remote_log.restore.request import RestoredPartition, RestoredSegment, RestoreRequest
from tiered_storage.remote_log.storage.remote_storage_manager import RemoteStorageManager


@dataclass(frozen=True, slots=True)
class CommittedRecords:
    """Reads `partition` as far as `request` wants it. Memory is that of one batch and of the aborts."""

    partition: RestoredPartition
    request: RestoreRequest
    storage: RemoteStorageManager

    def after(self, offset: int | None, on_moved: OnMoved = untold) -> Iterator[Record]:
        """Yield the records behind `offset` (all: None); `on_moved` is told what of the segments was gone through.

        Raises CorruptRecordError for a batch whose checksum is wrong, and what the store raises.
        """
        first = max(self.partition.log_start_offset, self.request.from_offset or 0, 0 if offset is None else offset + 1)
        transactions = OpenTransactions(self._every_segment, self.storage)
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
            aborted = _Aborted.of((*transactions.aborted_in(number), *lost))
            for header, batch in self._batches(segment, on_moved):
                if header.last_offset < first or header.is_control or aborted.holds(header):
                    continue
                source = f"{segment.metadata.segment_id}, the batch from offset {header.base_offset} on"
                yield from (
                    each
                    for each in read_records(batch, source=source)
                    if first <= each.offset < end and self._is_in_time(each)
                )

    def _is_in_time(self, record: Record) -> bool:
        begin, end = self.request.from_timestamp, self.request.to_timestamp
        return (begin is None or record.timestamp >= begin) and (end is None or record.timestamp < end)

    def _batches(self, segment: RestoredSegment, on_moved: OnMoved) -> Iterator[tuple[RecordBatch, memoryview]]:
        pieces = self.storage.fetch_log_segment(segment.metadata)
        for window in taken_batches(segment, pieces, None):
            yield from batches_of(window, segment)
            on_moved(len(window))
        on_moved(0, 1)

    @property
    def _every_segment(self) -> Sequence[RestoredSegment]:
        return (*self.partition.segments, *self.partition.behind)


@dataclass(frozen=True, slots=True)
class _Aborted:
    """Aborted transactions by producer: first and last offsets, which rise together."""

    by_producer: dict[int, tuple[list[int], list[int]]]

    @classmethod
    def of(cls, transactions: Iterable[AbortedTransaction]) -> _Aborted:
        by_producer: dict[int, tuple[list[int], list[int]]] = {}
        for each in sorted(transactions, key=lambda each: each.first_offset):
            firsts, lasts = by_producer.setdefault(each.producer_id, ([], []))
            firsts.append(each.first_offset)
            lasts.append(each.last_offset)
        return cls(by_producer)

    def holds(self, batch: RecordBatch) -> bool:
        """Whether `batch` belongs to one of them."""
        if not batch.is_transactional or batch.producer_id not in self.by_producer:
            return False
        firsts, lasts = self.by_producer[batch.producer_id]
        at = bisect_right(firsts, batch.base_offset) - 1
        return at >= 0 and batch.base_offset <= lasts[at]
