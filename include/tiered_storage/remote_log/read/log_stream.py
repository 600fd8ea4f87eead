"""One range of one partition, batch by batch through both tiers: local first, remote if the offset is not local."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from tiered_storage.errors import (
    CorruptRecordError,
    InvalidLogDirectoryError,
    LeaderEpochError,
    OffsetOutOfRangeError,
    RecordsDeletedError,
    RemoteObjectNotFoundError,
)
from tiered_storage.kafka_log.producers.transaction_state import Isolation
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.remote_log.coverage import CoveredRange
from tiered_storage.remote_log.indexes.remote_log_index import RemoteLogIndexEntry
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.read.aborted_transactions import AbortedTransactionSearch
from tiered_storage.remote_log.read.chunks.fetch_deadline import FetchDeadline
from tiered_storage.remote_log.read.chunks.reader_pools import ReaderPool, outcome_of
from tiered_storage.remote_log.read.chunks.remote_chunks import AheadFetch, RemoteChunks
from tiered_storage.remote_log.read.partition_snapshot import PartitionSnapshot, PartitionSnapshots
from tiered_storage.remote_log.read.read_values import NO_EPOCHS, FetchedBatches, FetchEpochs, Tier
from tiered_storage.remote_log.source.opening import open_segment
from tiered_storage.remote_log.source.partition_log import LocalSegment, SegmentLocation
from tiered_storage.remote_log.source.segment_source import OpenSegment


@dataclass(slots=True)
class _Planned:
    covered: CoveredRange
    entry: RemoteLogIndexEntry
    shared: AheadFetch | None

    def holds(self, offset: int) -> bool:
        return self.entry.first_offset <= offset <= self.entry.last_offset


@dataclass(frozen=True, slots=True)
class StreamContext:
    """What all reads of one reader share. Each prefetches at most `read_ahead_bytes` besides the chunk it waits for."""

    snapshots: PartitionSnapshots
    chunks: RemoteChunks
    local_pool: ReaderPool
    aborted: AbortedTransactionSearch
    read_ahead_bytes: int


class LogStream:
    """A read of offsets `start_offset` (inclusive) to `end_offset` (exclusive) of a partition; iterate it once."""

    def __init__(
        self,
        context: StreamContext,
        partition: TopicIdPartition,
        start_offset: int,
        isolation: Isolation,
        new_deadline: Callable[[], FetchDeadline],
        epochs: FetchEpochs = NO_EPOCHS,
    ) -> None:
        self._context = context
        self._partition = partition
        self._offset = start_offset
        self._isolation = isolation
        self._epochs = epochs
        self._new_deadline = new_deadline
        self._opened: tuple[SegmentLocation, OpenSegment] | None = None
        self._planned: deque[_Planned] = deque()
        self._planned_up_to = start_offset
        self._window = 1
        self._end = start_offset

    def is_next_there(self) -> bool:
        """Return whether the bytes of the next step of `fetch` are in memory, fetched ahead."""
        head = self._planned[0] if self._planned else None
        return head is not None and head.shared is not None and head.shared.is_there

    async def fetch(self, end_offset: int | None = None) -> AsyncGenerator[FetchedBatches, None]:
        """Yield the range's batches, up to `end_offset` or to the readable end when this begins.

        Raises OffsetOutOfRangeError, LeaderEpochError, RecordsDeletedError, RemoteStorageError, ReadRefusedError,
        CorruptLogError. If the local tier cannot be read and might have offsets of the range, yields all others first
        and then raises the error of the local tier.
        """
        snapshot = await self._first_view(self._new_deadline())
        readable = snapshot.end_offset(self._isolation)
        self._end = readable if end_offset is None else min(end_offset, readable)
        try:
            while self._offset < self._end:
                deadline = self._new_deadline()
                fetched = await self._next(deadline)
                if fetched.end_offset <= self._offset:
                    return
                self._offset = fetched.end_offset
                yield fetched
            if end_offset is not None and self._offset < end_offset:
                snapshot.ensure_not_hidden(self._offset)
        finally:
            self._forget_plan()

    async def _first_view(self, deadline: FetchDeadline) -> PartitionSnapshot:
        """Return a snapshot that has the start offset, which may be newer than the cached snapshot."""
        seen = await self._context.snapshots.get(self._partition, deadline)
        try:
            return await self._checked(seen, deadline)
        except (OffsetOutOfRangeError, LeaderEpochError, RemoteObjectNotFoundError, InvalidLogDirectoryError):
            return await self._checked(await self._context.snapshots.refreshed(self._partition, deadline), deadline)

    async def _checked(self, seen: PartitionSnapshot, deadline: FetchDeadline) -> PartitionSnapshot:
        snapshot = await self._context.aborted.decided(seen, self._isolation, deadline)
        snapshot.check_range(self._offset)
        snapshot.check_epochs(self._offset, self._epochs)
        return snapshot

    async def _next(self, deadline: FetchDeadline) -> FetchedBatches:
        snapshot = await self._context.snapshots.get(self._partition, deadline)
        try:
            return await self._fetch_from(snapshot, deadline)
        except (RemoteObjectNotFoundError, InvalidLogDirectoryError):
            # Deleted, copied again, or mounted again since the last snapshot. Lost data are missing after another, too.
            self._forget_plan()
            return await self._fetch_from(await self._context.snapshots.refreshed(self._partition, deadline), deadline)

    async def _fetch_from(self, snapshot: PartitionSnapshot, deadline: FetchDeadline) -> FetchedBatches:
        self._check_still_there(snapshot)
        segment = snapshot.local_segment(self._offset)
        fetched = None if segment is None else await self._from_local(snapshot, segment)
        if fetched is None and segment is not None:
            # Trimmed since the last snapshot: the remote tier has it, and a new snapshot shows that.
            snapshot = await self._context.snapshots.refreshed(self._partition, deadline)
            self._check_still_there(snapshot)
        if fetched is None:
            fetched = await self._from_remote(snapshot, deadline)
        return await self._with_aborted(snapshot, fetched, deadline)

    def _check_still_there(self, snapshot: PartitionSnapshot) -> None:
        start = snapshot.log_start_offset
        if self._offset < start:
            snapshot.ensure_not_hidden(self._offset)
            end = snapshot.end_offset(self._isolation)
            raise RecordsDeletedError(str(self._partition), self._offset, start, end)

    async def _with_aborted(
        self, snapshot: PartitionSnapshot, fetched: FetchedBatches, deadline: FetchDeadline
    ) -> FetchedBatches:
        if self._isolation is not Isolation.READ_COMMITTED:
            return fetched
        aborted = await self._context.aborted.find(
            snapshot, fetched.table, fetched.start_offset, fetched.end_offset, deadline
        )
        return FetchedBatches(
            fetched.content, fetched.start_offset, fetched.end_offset, fetched.tier, fetched.source,
            fetched.source_position, fetched.table, aborted,
        )  # fmt: skip

    # ------------------------------------------------------------------------------------------------- the local tier

    async def _from_local(self, snapshot: PartitionSnapshot, segment: LocalSegment) -> FetchedBatches | None:
        offset = self._offset
        return await outcome_of(self._context.local_pool.submit(lambda: self._read_local(snapshot, segment, offset)))

    def _read_local(self, snapshot: PartitionSnapshot, segment: LocalSegment, offset: int) -> FetchedBatches | None:
        """Return about 1 MiB of a local segment; None if it is gone."""
        local = snapshot.local
        try:
            opened = self._open(segment)
            found = opened.scan(offset)
        except FileNotFoundError:
            return None
        if found is None:
            following = None if segment.end_offset is None else snapshot.local_segment(segment.end_offset + 1)
            if following is None or local is None or not local.is_compacted:
                reason = f"the segment ends before offset {offset}, which it should hold: its end is missing"
                raise CorruptRecordError(opened.name, opened.size(), reason)
            return self._read_local(snapshot, following, offset)
        content, table, position = found
        # After its readable end, an outdated replica has records that a later leader truncated.
        end = self._end if local is None else min(self._end, local.readable_end)
        fetched = _cut(content, table, position, offset, end, Tier.LOCAL, opened.name, is_last=False)
        if not fetched.content and not (local is not None and local.is_compacted):
            raise CorruptRecordError(opened.name, position, f"no batch has offset {offset}, which it should hold")
        return fetched

    def _open(self, segment: LocalSegment) -> OpenSegment:
        """Open `segment`; if it is the one that was read last, return that again with its index."""
        if self._opened is None or self._opened[0] != segment.location:
            self._opened = segment.location, open_segment(segment.location)
        return self._opened[1]

    # ------------------------------------------------------------------------------------------------ the remote tier

    async def _from_remote(self, snapshot: PartitionSnapshot, deadline: FetchDeadline) -> FetchedBatches:
        offset = self._offset
        head = self._planned[0] if self._planned else None
        continues = self._planned_up_to == offset if head is None else head.holds(offset)
        if not continues:
            self._forget_plan()
            self._planned_up_to = offset
        await self._plan(snapshot, deadline)
        head = self._planned.popleft()
        try:
            chunk = await self._context.chunks.chunk(head.covered.segment, head.entry, deadline, head.shared)
        finally:
            if head.shared is not None:
                self._context.chunks.leave(head.shared)
        end = min(head.covered.end_offset + 1, self._end)
        source = head.entry.object_name
        return _cut(chunk.content, chunk.table, head.entry.position, offset, end, Tier.REMOTE, source)

    async def _plan(self, snapshot: PartitionSnapshot, deadline: FetchDeadline) -> None:
        """Begin to fetch the next chunk, and later ones within the prefetch limit."""
        self._window = min(2 * self._window, max(self._context.read_ahead_bytes, 1))
        ahead = sum(each.entry.length for each in self._planned)
        while not self._planned or (ahead < self._window and self._planned_up_to < self._end):
            at = self._planned_up_to
            if self._planned and (snapshot.local_segment(at) is not None or snapshot.remote_range(at) is None):
                return
            covered = snapshot.existing_remote_range(at)
            if self._planned:
                known = self._context.chunks.indexes_ahead(covered.segment)
                if known is None:
                    return
                indexes = known
            else:
                indexes = await self._context.chunks.indexes(covered.segment, deadline)
            entry = indexes.chunk_for_offset(at)
            if entry is None:
                raise RemoteObjectNotFoundError(
                    f"{covered.segment.segment_id}: its remote log index has no chunk with offset {at}"
                )
            shared = self._context.chunks.ahead(covered.segment, entry)
            if shared is None and self._planned:
                return
            self._planned.append(_Planned(covered, entry, shared))
            self._planned_up_to = min(entry.last_offset, covered.end_offset) + 1
            ahead += entry.length
            self._window = max(self._window, entry.length)

    def _forget_plan(self) -> None:
        while self._planned:
            shared = self._planned.popleft().shared
            if shared is not None:
                self._context.chunks.leave(shared)
        self._window = 1


def _cut(
    content: bytes,
    table: BatchTable,
    position: int,
    offset: int,
    end_offset: int,
    tier: Tier,
    source: str,
    *,
    is_last: bool = True,
) -> FetchedBatches:
    """Return the batches of `table` that have offsets from `offset` up to `end_offset` (exclusive).

    The result covers all offsets up to the last batch's end; with `is_last`, up to `end_offset` if that is inside.
    """
    # NumPy's search would let go of the GIL, and wait for it, at each chunk.
    first = bisect_left(table.last_offset, offset)
    end = bisect_left(table.base_offset, end_offset)
    if first >= end:
        empty = table.rows(0, 0)
        return FetchedBatches(b"", offset, end_offset if is_last else offset, tier, source, position, empty)
    begin = int(table.position[first]) - position
    stop = int(table.position[end - 1] + table.size[end - 1]) - position
    reached = min(int(table.last_offset[end - 1]) + 1, end_offset)
    return FetchedBatches(content[begin:stop], offset, reached, tier, source, position + begin, table.rows(first, end))
