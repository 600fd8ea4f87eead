"""Find offsets by name and by timestamp, over both tiers: Kafka's ListOffsets.

A search by timestamp begins in the remote tier: with the metadata of its segments, then the remote time index of one
segment. Offsets that are also local are searched in the local log, so that no outage of the store hides local records.

Source: KIP-405 (ListOffsets); KIP-734 (max timestamp); KIP-1005 (latest tiered); released Kafka.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from tiered_storage.errors import ConfigurationError
from tiered_storage.kafka_log.producers.transaction_state import Isolation
from tiered_storage.remote_log.coverage import CoveredRange
from tiered_storage.remote_log.indexes.remote_log_index import RemoteLogIndexEntry
from tiered_storage.remote_log.read import local_timestamp_search
from tiered_storage.remote_log.read.chunks.fetch_deadline import FetchDeadline
from tiered_storage.remote_log.read.chunks.reader_pools import ReaderPool, outcome_of
from tiered_storage.remote_log.read.chunks.remote_chunks import RemoteChunks
from tiered_storage.remote_log.read.local_timestamp_search import ScannedBatches
from tiered_storage.remote_log.read.partition_snapshot import PartitionSnapshot
from tiered_storage.remote_log.read.read_values import NO_TIMESTAMP, FoundOffset, OffsetSpec
from tiered_storage.remote_log.source.opening import open_segment
from tiered_storage.remote_log.source.partition_log import LocalSegment


@dataclass(frozen=True, slots=True)
class _SegmentRange:
    """Offsets `first` (inclusive) to `end` (exclusive) of one segment, in one tier."""

    where: CoveredRange | LocalSegment
    first: int
    end: int

    @property
    def is_bound_exact(self) -> bool:
        """Whether a record has the bound itself: true for local segments, and for remote ones that are wholly valid."""
        where = self.where
        if isinstance(where, LocalSegment):
            return True
        return (self.first, self.end) == (where.segment.start_offset, where.segment.end_offset + 1)


class OffsetSearch:
    """Finds offsets in a snapshot of a partition."""

    def __init__(self, chunks: RemoteChunks, pool: ReaderPool) -> None:
        """Search on the threads of `pool`. Share the pool with nothing else: a search may read much."""
        self._chunks = chunks
        self._pool = pool
        self._local_largest = local_timestamp_search.LargestTimestamps()

    async def find(
        self, snapshot: PartitionSnapshot, spec: OffsetSpec | int, isolation: Isolation, deadline: FetchDeadline
    ) -> FoundOffset | None:
        """Return the offset that `spec` names, or the first one whose timestamp (ms) is at least `spec`; None: there is
        none.

        Raises FileNotFoundError and RemoteObjectNotFoundError if the partition no longer matches `snapshot`;
        ConfigurationError, RemoteStorageError, ReadRefusedError, CorruptLogError.
        """
        end = snapshot.end_offset(isolation)
        starts: dict[int, int] = {
            OffsetSpec.EARLIEST: snapshot.log_start_offset,
            OffsetSpec.EARLIEST_LOCAL: snapshot.local_start,
            OffsetSpec.EARLIEST_PENDING_UPLOAD: max(snapshot.remote_end, snapshot.log_start_offset),
        }
        if (start := starts.get(spec)) is not None:
            return FoundOffset(start, leader_epoch=snapshot.epoch_at(start))
        if spec == OffsetSpec.LATEST:
            return FoundOffset(end, leader_epoch=snapshot.leader_epoch)
        if spec == OffsetSpec.LATEST_TIERED:
            last = snapshot.coverage.end_offset
            return None if last is None else FoundOffset(last, leader_epoch=snapshot.epoch_at(last))
        if spec == OffsetSpec.MAX_TIMESTAMP:
            # As in a broker: if an uncommitted record has the largest timestamp, there is no result.
            found = await self._max_timestamp(snapshot, snapshot.end_offset(Isolation.READ_UNCOMMITTED), deadline)
            return None if found is None or found.offset >= end else found
        if spec < 0:
            raise ConfigurationError(f"{snapshot.partition}: {spec} is not a timestamp: give ms since 1970, 0 or more")
        return await self._by_timestamp(snapshot, spec, end, deadline)

    async def _by_timestamp(
        self, snapshot: PartitionSnapshot, timestamp: int, end: int, deadline: FetchDeadline
    ) -> FoundOffset | None:
        for segment_range in await self._ranges(snapshot, end, timestamp):
            found = await self._first_at_or_after(segment_range, timestamp, deadline)
            if found is not None:
                return found
        return None

    async def _max_timestamp(
        self, snapshot: PartitionSnapshot, end: int, deadline: FetchDeadline
    ) -> FoundOffset | None:
        """Return the first record with the largest timestamp; search only segments that may have a larger one."""
        bounds = [
            (await self._bound(segment_range, deadline), segment_range)
            for segment_range in await self._ranges(snapshot, end)
        ]
        best = NO_TIMESTAMP
        for bound, segment_range in sorted(bounds, key=lambda each: -each[0]):
            if bound <= best:
                break
            best = max(best, bound if segment_range.is_bound_exact else await self._largest(segment_range, deadline))
        if best == NO_TIMESTAMP:
            return None
        for bound, segment_range in bounds:
            found = await self._first_at_or_after(segment_range, best, deadline) if bound >= best else None
            if found is not None:
                return found
        return None

    async def _ranges(
        self, snapshot: PartitionSnapshot, end: int, timestamp: int = NO_TIMESTAMP
    ) -> list[_SegmentRange]:
        # On a thread: with 100,000 segments this would block the event loop for a while.
        return await outcome_of(self._pool.submit(lambda: _ranges(snapshot, end, timestamp)))

    async def _bound(self, segment_range: _SegmentRange, deadline: FetchDeadline) -> int:
        """Return a timestamp that no record of the range exceeds."""
        if isinstance(segment_range.where, CoveredRange):
            return segment_range.where.segment.max_timestamp
        return await self._largest(segment_range, deadline)

    async def _first_at_or_after(
        self, segment_range: _SegmentRange, timestamp: int, deadline: FetchDeadline
    ) -> FoundOffset | None:
        where = segment_range.where
        if isinstance(where, LocalSegment):
            return await outcome_of(
                self._pool.submit(
                    lambda: local_timestamp_search.first_at_or_after(
                        open_segment(where.location), timestamp, segment_range.first, segment_range.end
                    )
                )
            )
        indexes = await self._chunks.indexes(where.segment, deadline)
        entry = indexes.chunk_for_timestamp(timestamp)
        if entry is not None and entry.last_offset < segment_range.first:
            entry = indexes.chunk_for_offset(segment_range.first)
        while entry is not None and entry.first_offset < segment_range.end:
            if entry.last_timestamp >= timestamp:
                batches = await self._batches(where, entry, deadline)
                search = partial(batches.first_at_or_after, timestamp, segment_range.first, segment_range.end)
                found = await outcome_of(self._pool.submit(search))
                if found is not None:
                    return found
            entry = indexes.chunk_for_offset(entry.last_offset + 1)
        return None

    async def _largest(self, segment_range: _SegmentRange, deadline: FetchDeadline) -> int:
        where = segment_range.where
        if isinstance(where, LocalSegment):
            return await outcome_of(
                self._pool.submit(
                    lambda: self._local_largest.find(
                        open_segment(where.location), segment_range.first, segment_range.end
                    )
                )
            )
        indexes = await self._chunks.indexes(where.segment, deadline)
        largest = NO_TIMESTAMP
        entry = indexes.chunk_for_offset(segment_range.first)
        while entry is not None and entry.first_offset < segment_range.end:
            if entry.last_timestamp > largest:
                is_inside = segment_range.first <= entry.first_offset and entry.last_offset < segment_range.end
                if is_inside:
                    largest = entry.last_timestamp
                else:
                    batches = await self._batches(where, entry, deadline)
                    search = partial(batches.largest, segment_range.first, segment_range.end)
                    largest = max(largest, await outcome_of(self._pool.submit(search)))
            entry = indexes.chunk_for_offset(entry.last_offset + 1)
        return largest

    async def _batches(
        self, covered: CoveredRange, entry: RemoteLogIndexEntry, deadline: FetchDeadline
    ) -> ScannedBatches:
        chunk = await self._chunks.chunk(covered.segment, entry, deadline)
        return ScannedBatches(chunk.content, chunk.table, entry.object_name, entry.position)


def is_certain(snapshot: PartitionSnapshot, spec: OffsetSpec | int, found: FoundOffset | None) -> bool:
    """Return whether `found` is right for `spec` whatever is in a local tier that `snapshot` could not read."""
    if spec in {OffsetSpec.EARLIEST, OffsetSpec.EARLIEST_PENDING_UPLOAD}:
        return snapshot.is_log_start_known or bool(snapshot.coverage.ranges)
    if spec == OffsetSpec.LATEST_TIERED:
        return True
    return spec >= 0 and found is not None


def _ranges(snapshot: PartitionSnapshot, end: int, timestamp: int = NO_TIMESTAMP) -> list[_SegmentRange]:
    """Return the segments that hold the offsets up to `end` (exclusive), each offset once: a local one if it exists.

    Leaves out remote segments whose records are all earlier than `timestamp`. Raises RemoteObjectNotFoundError if
    offsets are missing.
    """
    ranges = []
    at = snapshot.log_start_offset
    while at < end:
        segment = snapshot.local_segment(at)
        if segment is not None and snapshot.local is not None:
            limit = min(end, snapshot.local.readable_end)
            stop = limit if segment.end_offset is None else min(segment.end_offset + 1, limit)
            ranges.append(_SegmentRange(segment, at, stop))
        else:
            covered = snapshot.existing_remote_range(at)
            stop = min(covered.end_offset + 1, end)
            if snapshot.local is not None and at < snapshot.local.log_start_offset < snapshot.local.readable_end:
                stop = min(stop, snapshot.local.log_start_offset)
            if covered.segment.max_timestamp >= timestamp:
                ranges.append(_SegmentRange(covered, at, stop))
        at = stop
    return ranges
