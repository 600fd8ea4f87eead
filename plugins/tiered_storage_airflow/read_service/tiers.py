"""What the routes ask of a partition's two tiers: the library's reader, and a local tier that may be out of sight.

A local tier that cannot be read (a broker has its directory, or it is not mounted here) hides nothing remote. But an
offset that only it could have is then not out of range: nobody knows, and the answer is the error that hides it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from tiered_storage.errors import InvalidLogDirectoryError, OffsetOutOfRangeError, TieredStorageError
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.reading.log_reader import RemoteLogReader
from tiered_storage.remote_log.reading.partition_view import PartitionView
from tiered_storage.remote_log.reading.read_values import FetchedBatches, FoundOffset, Isolation, OffsetSpec
from tiered_storage.remote_log.remote_log_manager import RemoteLogManager
from tiered_storage.remote_log.segment_source import LocalSegment, PartitionLog, SegmentSource, UnreadablePartition
from tiered_storage.remote_log.storage import IndexKind

MOST_HIDDEN = 10_000


class SourceInSight:
    """A SegmentSource that has what another one can read just now, and remembers why it lacks the rest."""

    def __init__(self, source: SegmentSource) -> None:
        self._source = source
        self.hidden: dict[TopicIdPartition, TieredStorageError] = {}
        """Why the local tier of a partition could not be read when it was looked at last."""

    @property
    def notices(self) -> Sequence[str]:
        """Those of the source."""
        return self._source.notices

    def partitions(self) -> Iterator[PartitionLog | UnreadablePartition]:
        """Those of the source."""
        return self._source.partitions()

    def partition(self, partition: TopicIdPartition) -> PartitionLog | None:
        """Look at a partition; None too where its local tier cannot be read."""
        try:
            found = self._source.partition(partition)
        except (InvalidLogDirectoryError, OSError) as error:
            if len(self.hidden) >= MOST_HIDDEN:
                self.hidden.clear()
            hides = error if isinstance(error, InvalidLogDirectoryError) else InvalidLogDirectoryError(str(error))
            self.hidden[partition] = hides
            return None
        self.hidden.pop(partition, None)
        return found

    def first_timestamp(self, segment: LocalSegment) -> int | None:
        """That of the source."""
        return self._source.first_timestamp(segment)


@dataclass(frozen=True, slots=True)
class Tiers:
    """Reads partitions and segments of a remote log; nothing here blocks the event loop."""

    source: SourceInSight
    reader: RemoteLogReader

    @classmethod
    def of(cls, log: RemoteLogManager) -> Tiers:
        """Read `log`, which stays the caller's."""
        source = SourceInSight(log.source)
        return cls(source, RemoteLogReader(source, log.segments, log.storage, log.settings))

    async def look(self, partition: TopicIdPartition, offset: int | None = None) -> PartitionView:
        """Return the partition as it is now, or was a moment ago, if it had `offset` then."""
        return await self.reader.view(partition, offset)

    def hidden(self, partition: TopicIdPartition) -> TieredStorageError | None:
        """Return why the local tier of a partition cannot be read here; None: it can, or there is none."""
        return self.source.hidden.get(partition)

    def ensure_known(self, view: PartitionView, offset: int) -> None:
        """Raise OffsetOutOfRangeError where the partition has no such offset, or what hides the tier that might.

        The end itself is in range: there is nothing yet.
        """
        try:
            view.check_range(offset)
        except OffsetOutOfRangeError:
            hidden = self.hidden(view.partition)
            if hidden is not None and offset >= view.our_log_start:
                raise hidden from None
            raise

    async def end(self, view: PartitionView, isolation: Isolation) -> int:
        """Return the offset behind the last one that a reader is given."""
        if isolation is Isolation.READ_UNCOMMITTED:
            return view.end_offset(isolation)
        found = await self.offset(view.partition, OffsetSpec.LATEST, isolation)
        return view.end_offset(isolation) if found is None else found.offset

    async def offset(
        self, partition: TopicIdPartition, spec: OffsetSpec | int, isolation: Isolation
    ) -> FoundOffset | None:
        """Return an offset by its name or by a timestamp (ms); None where there is none."""
        return await self.reader.offsets(partition, spec, isolation)

    async def first_at(self, view: PartitionView, timestamp: int, isolation: Isolation) -> int:
        """Return the offset of the first record at or after `timestamp` (ms); the end where there is none yet."""
        found = await self.offset(view.partition, timestamp, isolation)
        if found is not None:
            return found.offset
        if (hidden := self.hidden(view.partition)) is not None:
            raise hidden
        return await self.end(view, isolation)

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
