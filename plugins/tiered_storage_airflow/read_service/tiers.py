"""The routes' access to a partition's two tiers: the library's reader, and a local tier that may be unreadable.

An unreadable local tier (a broker has its directory, or it is not mounted here) does not hide remote data. But an
offset that only the local tier could have is then not out of range: the response is the error of the local tier.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.read.log_reader import RemoteLogReader
from tiered_storage.remote_log.read.partition_snapshot import PartitionSnapshot
from tiered_storage.remote_log.read.read_values import (
    NO_EPOCHS,
    FetchedBatches,
    FetchEpochs,
    FoundOffset,
    Isolation,
    OffsetSpec,
)
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind


@dataclass(frozen=True, slots=True)
class ReadableRange:
    """The offsets that a reader gets of the partition in `snapshot`: from `start` up to `end` (exclusive)."""

    snapshot: PartitionSnapshot
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Tiers:
    """Reads partitions and segments of a remote log; nothing here blocks the event loop."""

    reader: RemoteLogReader

    @classmethod
    def of(cls, context: RemoteLogContext) -> Tiers:
        """Read the remote log of `context`, which the caller closes."""
        return cls(RemoteLogReader(context, local_may_be_hidden=True))

    async def snapshot(self, partition: TopicIdPartition, offset: int | None = None) -> PartitionSnapshot:
        """Return a snapshot of the partition, at most a moment old, or a new one if the cached one lacks `offset`."""
        return await self.reader.snapshot(partition, offset)

    async def readable_range(
        self,
        partition: TopicIdPartition,
        isolation: Isolation,
        *,
        offset: int | None = None,
        timestamp: int | None = None,
        epochs: FetchEpochs = NO_EPOCHS,
    ) -> ReadableRange:
        """Return the readable range from an offset, a time (ms) or, without either, the log start.

        Raises OffsetOutOfRangeError if the offset lies outside, LeaderEpochError for `epochs` of other logs, and the
        error of an unreadable local tier if only that might have the first record.
        """
        snapshot = await self.reader.snapshot(partition, offset, epochs)
        start = snapshot.log_start_offset if offset is None else offset
        if timestamp is not None:
            start = await self.first_at(snapshot, timestamp, isolation)
            # The offset may be from a newer snapshot than this one.
            snapshot = await self.snapshot(partition, start)
        snapshot.check_range(start)
        snapshot.check_epochs(start, epochs)
        if start >= snapshot.remote_end:
            snapshot.ensure_not_hidden(start)
        return ReadableRange(snapshot, start, await self.end(snapshot, isolation))

    async def end(self, snapshot: PartitionSnapshot, isolation: Isolation) -> int:
        """Return the offset after the last readable one."""
        if isolation is Isolation.READ_UNCOMMITTED:
            return snapshot.end_offset(isolation)
        found = await self.offset(snapshot.partition, OffsetSpec.LATEST, isolation, visible_only=True)
        return snapshot.end_offset(isolation) if found is None else found.offset

    async def offset(
        self,
        partition: TopicIdPartition,
        spec: OffsetSpec | int,
        isolation: Isolation,
        *,
        visible_only: bool = False,
    ) -> FoundOffset | None:
        """Return an offset by its name or by a timestamp (ms); None if there is none.

        Raises InvalidLogDirectoryError if an unreadable local tier might change the result, unless `visible_only` is
        set.
        """
        return await self.reader.offsets(partition, spec, isolation, visible_only=visible_only)

    async def first_at(self, snapshot: PartitionSnapshot, timestamp: int, isolation: Isolation) -> int:
        """Return the offset of the first record at or after `timestamp` (ms); the end if there is none yet.

        Raises as `offset`.
        """
        found = await self.offset(snapshot.partition, timestamp, isolation)
        return await self.end(snapshot, isolation) if found is None else found.offset

    async def batches(
        self, partition: TopicIdPartition, offset: int, end_offset: int, isolation: Isolation
    ) -> AsyncGenerator[FetchedBatches, None]:
        """Yield whole batches from the one that holds `offset` to `end_offset` (exclusive)."""
        if offset >= end_offset:
            return
        read = self.reader.batches(partition, offset, end_offset=end_offset, isolation=isolation)
        async with aclosing(read) as batches:
            async for fetched in batches:
                yield fetched

    async def segment_bytes(
        self, partition: TopicIdPartition, segment_id: str, start: int, end: int
    ) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a remote segment from `start` to `end`, both inclusive."""
        async with aclosing(self.reader.segment_bytes(partition, segment_id, start, end)) as pieces:
            async for piece in pieces:
                yield piece

    async def index(self, partition: TopicIdPartition, segment_id: str, kind: IndexKind) -> bytes:
        """Return one index of a remote segment."""
        return await self.reader.index(partition, segment_id, kind)

    def close(self) -> None:
        """End the reader's threads."""
        self.reader.close()
