"""Find the aborted transactions with records in a range, from the transaction indexes of both tiers.

An abort is in the index of the segment with its marker, which may be later than the segment with the records. So later
segments are searched too, until an index, or the producers at a segment's end, show that no transaction of the range is
undecided. If a later leader truncated a segment, only the part before that counts.

Source: KIP-98; released Kafka.
"""

from __future__ import annotations

from dataclasses import replace

from tiered_storage.errors import CorruptIndexError
from tiered_storage.kafka_log.indexes.transaction_index import AbortedTxn, TransactionIndex
from tiered_storage.kafka_log.kernels.constants import CONTROL_BIT, TRANSACTIONAL_BIT
from tiered_storage.kafka_log.producers.transaction_state import Isolation, OpenTransactions
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.remote_log.coverage import CoveredRange
from tiered_storage.remote_log.read.chunks.fetch_deadline import FetchDeadline
from tiered_storage.remote_log.read.chunks.reader_pools import ReaderPool, outcome_of
from tiered_storage.remote_log.read.chunks.remote_chunks import RemoteChunks, SegmentTransactions
from tiered_storage.remote_log.read.partition_snapshot import PartitionSnapshot
from tiered_storage.remote_log.source.opening import open_segment
from tiered_storage.remote_log.source.partition_log import LocalSegment
from tiered_storage.remote_log.source.segment_source import OpenSegment


class AbortedTransactionSearch:
    """Searches the transaction indexes of both tiers; `chunks` caches remote ones."""

    def __init__(self, chunks: RemoteChunks, local_pool: ReaderPool, *, all_decided: bool = False) -> None:
        """With `all_decided`, the caller knows how each transaction of the remote log ended, also after its end."""
        self._chunks = chunks
        self._local_pool = local_pool
        self._all_decided = all_decided

    async def find(
        self,
        snapshot: PartitionSnapshot,
        table: BatchTable,
        start_offset: int,
        end_offset: int,
        deadline: FetchDeadline,
    ) -> tuple[AbortedTxn, ...]:
        """Return the aborted transactions with records in [`start_offset`, `end_offset`), in order of first offset.

        `table` has the headers of the batches there: if none is transactional, no index is read. Raises
        CorruptIndexError for a corrupt index (it never guesses aborts), RemoteStorageError, ReadRefusedError.
        """
        is_data = (table.attributes & (TRANSACTIONAL_BIT | CONTROL_BIT)) == TRANSACTIONAL_BIT
        if not is_data.any():
            return ()
        found: set[AbortedTxn] = set()
        # If another transaction is open, a marker may be after the last stable offset.
        log_end = snapshot.end_offset(Isolation.READ_UNCOMMITTED)
        at = start_offset
        while at < log_end:
            segment, next_offset = await self._of_segment(snapshot, at, deadline)
            here = segment.index.collect_aborted(start_offset, end_offset)
            found.update(each for each in here.transactions if each.last_offset < next_offset)
            is_decided = segment.undecided_from is not None and segment.undecided_from >= end_offset
            if here.is_complete or is_decided:
                break
            at = next_offset
        return tuple(sorted(found, key=lambda each: (each.first_offset, each.last_offset)))

    async def decided(
        self, snapshot: PartitionSnapshot, isolation: Isolation, deadline: FetchDeadline
    ) -> PartitionSnapshot:
        """Return `snapshot` with the first offset that its remote segments leave undecided, if a reader needs it.

        Only a read_committed reader needs it, unless the local log's last stable offset is at the remote end or after
        it. Such a reader does not get the records from there on: their transactions may end in segments that are not
        visible. Raises RemoteStorageError, ReadRefusedError.
        """
        is_decided = self._all_decided or (
            snapshot.local is not None and snapshot.local.last_stable_offset >= snapshot.remote_end
        )
        if isolation is not Isolation.READ_COMMITTED or is_decided or not snapshot.coverage.ranges:
            return snapshot
        undecided_from = await self.decided_end(snapshot, deadline)
        return snapshot if undecided_from >= snapshot.remote_end else replace(snapshot, undecided_from=undecided_from)

    async def decided_end(self, snapshot: PartitionSnapshot, deadline: FetchDeadline) -> int:
        """Return the first offset of the earliest transaction that is open at the remote end, or that end if none is.

        The producers at a segment's end show it. If they are unknown, or the segment was truncated, this reads its
        batches; a transaction that was open before the first of them counts as open to the end.
        """
        opened = OpenTransactions({})
        unknown: list[CoveredRange] = []
        undecided_from = snapshot.remote_end
        for covered in reversed(snapshot.coverage.ranges):
            found = _within_range(await self._chunks.transactions(covered.segment, deadline), covered)
            if found.undecided_from is not None:
                if found.undecided_from <= covered.end_offset:
                    undecided_from = found.undecided_from
                break
            unknown.append(covered)
        for covered in reversed(unknown):
            await self._follow(covered, opened, deadline)
        return min([undecided_from, *opened.first_offsets.values()])

    async def _follow(self, covered: CoveredRange, opened: OpenTransactions, deadline: FetchDeadline) -> None:
        """Feed the batches of `covered` to `opened`, which then has the transactions open at its end."""
        indexes = await self._chunks.indexes(covered.segment, deadline)
        entry = indexes.chunk_for_offset(covered.start_offset)
        while entry is not None and entry.first_offset <= covered.end_offset:
            chunk = await self._chunks.chunk(covered.segment, entry, deadline)
            opened.feed(entry.object_name, memoryview(chunk.content), chunk.table, covered.end_offset + 1)
            entry = indexes.chunk_for_offset(entry.last_offset + 1)

    async def _of_segment(
        self, snapshot: PartitionSnapshot, offset: int, deadline: FetchDeadline
    ) -> tuple[SegmentTransactions, int]:
        """Return the transactions of the segment with `offset`, and the offset after its valid part."""
        local = snapshot.local_segment(offset)
        if local is not None:
            found = await outcome_of(self._local_pool.submit(lambda: _read_local(local)))
            if found is not None:
                readable = (
                    snapshot.end_offset(Isolation.READ_UNCOMMITTED)
                    if snapshot.local is None
                    else snapshot.local.readable_end
                )
                end = readable if local.end_offset is None else min(local.end_offset + 1, readable)
                return _up_to(found, end, is_cut=local.end_offset is None or end <= local.end_offset), end
        covered = snapshot.existing_remote_range(offset)
        found = await self._chunks.transactions(covered.segment, deadline)
        return _within_range(found, covered), covered.end_offset + 1


def _read_local(segment: LocalSegment) -> SegmentTransactions | None:
    """Return the transactions of a local segment; None if it is gone."""
    opened = open_segment(segment.location)
    index = opened.transaction_index.read() or TransactionIndex(segment.base_offset)
    undecided_from = None
    if segment.end_offset is not None:
        undecided_from = _undecided_from(opened, segment.end_offset + 1)
    return SegmentTransactions(index, undecided_from) if opened.exists() else None


def _undecided_from(segment: OpenSegment, next_offset: int) -> int | None:
    try:
        producers = segment.producer_snapshot(next_offset).read()
    except CorruptIndexError:
        return None  # later segments show it too
    if producers is None:
        return None
    return min(OpenTransactions.of(producers).first_offsets.values(), default=next_offset)


def _within_range(found: SegmentTransactions, covered: CoveredRange) -> SegmentTransactions:
    return _up_to(found, covered.end_offset + 1, is_cut=covered.end_offset < covered.segment.end_offset)


def _up_to(found: SegmentTransactions, end_offset: int, *, is_cut: bool) -> SegmentTransactions:
    """Return the transactions that end below `end_offset` if the segment `is_cut` there; else all."""
    if not is_cut:
        return found
    kept = tuple(each for each in found.index.transactions if each.last_offset < end_offset)
    return SegmentTransactions(TransactionIndex(found.index.base_offset, kept), None)
