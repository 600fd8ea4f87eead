"""What the routes ask of a partition's two tiers: a small border, and what stands behind it.

A local tier that cannot be read (a broker has its directory, or it is not mounted here) hides nothing remote. But an
offset that only it could have is then not out of range: nobody knows, and the answer is the error that hides it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Protocol

from tiered_storage.errors import InvalidLogDirectoryError, OffsetOutOfRangeError, TieredStorageError
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, TopicIdPartition
from tiered_storage.remote_log.reader import FetchedBatches, PartitionReader, TieredReader
from tiered_storage.remote_log.remote_log_manager import RemoteLogManager
from tiered_storage.remote_log.segment_source import LocalSegment, PartitionLog, UnreadablePartition
from tiered_storage.remote_log.storage import IndexKind
from tiered_storage_airflow.read_service.threads import BoundedThreads


@dataclass(frozen=True, slots=True)
class View:
    """A partition as it was when it was looked at; `hidden` is why its local tier could not be."""

    reader: PartitionReader
    hidden: TieredStorageError | None = None

    def ensure_known(self, offset: int) -> None:
        """Raise OffsetOutOfRangeError where the partition has no such offset, and `hidden` where nobody knows.

        The end itself is in range: there is nothing yet.
        """
        start, end = self.reader.log_start_offset, self.reader.log_end_offset
        if start <= offset <= end:
            return
        if self.hidden is not None and offset >= self.reader.our_log_start:
            raise self.hidden
        raise OffsetOutOfRangeError(str(self.reader.partition), offset, start, end)


class Tiers(Protocol):
    """Reads partitions and segments; nothing here blocks the event loop."""

    async def look(self, partition: TopicIdPartition) -> View:
        """Return the partition as it is now."""
        ...

    def batches(self, view: View, offset: int) -> AsyncIterator[FetchedBatches]:
        """Yield whole batches, some MiB at a time at most, from the one that holds `offset` to the end."""
        ...

    def segment_bytes(self, segment: RemoteLogSegmentMetadata, start: int, end: int) -> AsyncIterator[bytes]:
        """Yield the bytes of a remote segment from `start` to `end`, both inclusive."""
        ...

    async def index(self, segment: RemoteLogSegmentMetadata, kind: IndexKind) -> bytes:
        """Return one index of a remote segment."""
        ...


class ThreadedTiers:
    """Tiers over a RemoteLogManager, whose calls run in bounded threads, one piece at a time."""

    def __init__(self, log: RemoteLogManager, asking: BoundedThreads, moving: BoundedThreads) -> None:
        self._log = log
        self._asking = asking
        self._moving = moving

    async def look(self, partition: TopicIdPartition) -> View:
        """Look at it in a thread."""
        return await self._asking.run(lambda: look(self._log, partition))

    async def batches(self, view: View, offset: int) -> AsyncIterator[FetchedBatches]:
        """Fetch one piece after the other, each when it is asked for."""
        view.ensure_known(offset)
        pieces = _pieces(view.reader, offset)
        while (piece := await self._moving.run(lambda: next(pieces, None))) is not None:
            yield piece

    async def segment_bytes(self, segment: RemoteLogSegmentMetadata, start: int, end: int) -> AsyncIterator[bytes]:
        """Fetch one piece after the other, each when it is asked for."""
        pieces = self._log.storage.fetch_log_segment(segment, start, end)
        while (piece := await self._moving.run(lambda: next(pieces, None))) is not None:
            yield piece

    async def index(self, segment: RemoteLogSegmentMetadata, kind: IndexKind) -> bytes:
        """Fetch it in a thread."""
        return await self._moving.run(lambda: self._log.storage.fetch_index(segment, kind))


def look(log: RemoteLogManager, partition: TopicIdPartition) -> View:
    """Return the partition as it is now; a local tier that cannot be read is left out."""
    try:
        return View(log.reader.open(partition))
    except (InvalidLogDirectoryError, OSError) as error:
        hidden = error if isinstance(error, TieredStorageError) else InvalidLogDirectoryError(f"{partition}: {error}")
        return View(TieredReader(_NoSource(), log.segments, log.storage).open(partition), hidden)


def _pieces(reader: PartitionReader, offset: int) -> Iterator[FetchedBatches]:
    """Yield what lies from `offset` to the end; the next piece begins behind the last batch of the one before."""
    from tiered_storage.kafka_log.batch_header import read_batch_header  # noqa: PLC0415 - numba's weight

    while offset < reader.log_end_offset:
        piece = reader.fetch(offset)
        if not piece.content:
            return
        yield piece
        position = 0
        while position < len(piece.content):
            header = read_batch_header(
                piece.content, position, source=piece.source, source_position=piece.source_position
            )
            position += header.size
            offset = max(offset, header.next_offset)
        if piece.end_offset is not None:
            offset = min(offset, piece.end_offset)


class _NoSource:
    """A SegmentSource that has nothing."""

    notices: tuple[str, ...] = ()

    def partitions(self) -> Iterator[PartitionLog | UnreadablePartition]:
        return iter(())

    def partition(self, partition: TopicIdPartition) -> PartitionLog | None:  # noqa: ARG002
        return None

    def first_timestamp(self, segment: LocalSegment) -> int | None:  # noqa: ARG002
        return None
