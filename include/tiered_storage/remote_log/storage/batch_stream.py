"""A segment as a stream, for a reader that takes it whole: no index, no cache, no deadline.

The store compares the checksum of the whole, which the segment's commit marker has. So a damaged remote log index does
not stop such a reader, but a single flipped bit does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tiered_storage.errors import RemoteObjectCorruptError
from tiered_storage.kafka_log.records.batch_header import MAGIC_END
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.kafka_log.records.segment_scan import SegmentScanner
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.storage.remote_storage_manager import RemoteStorageManager


def fetch_whole(segment: RemoteLogSegmentMetadata, storage: RemoteStorageManager) -> Iterator[bytes]:
    """Stream all bytes of `segment` in order; the last ones come only after the store has compared the checksum.

    Raises what the store raises, and RemoteObjectCorruptError after the last bytes if there are more or fewer than were
    sent.
    """
    size = 0
    for buffer in storage.fetch_log_segment(segment):
        size += len(buffer)
        yield buffer
    if size != segment.size:
        raise RemoteObjectCorruptError(f"{segment.segment_id}: {size} bytes came, {segment.size} were sent")


def checked_batches(
    segment: RemoteLogSegmentMetadata, content: Iterable[bytes]
) -> Iterator[tuple[memoryview, BatchTable]]:
    """Yield the batches of `segment`, whose bytes are `content`: each time some with their bytes and their headers.

    Raises UnsupportedMagicError or CorruptRecordError for the first batch that is broken.
    """
    stream = BatchStream(str(segment.segment_id), segment.start_offset, segment.size)
    for buffer in content:
        yield from stream.windows(buffer)
    stream.finish()


class BatchStream:
    """Checks the batches of one segment of `size` bytes; feed it the pieces in order and without a gap.

    It holds at most one incomplete batch, and copies only a batch that spans two pieces.
    """

    def __init__(
        self, source: str, base_offset: int, size: int, *, start_position: int = 0, verify_crc: bool = True
    ) -> None:
        """Scan the segment `source`, whose lowest offset is `base_offset`; without `verify_crc` only the headers.

        The `size` bytes begin at `start_position` of the segment, between two batches.
        """
        self._scanner = SegmentScanner(source, base_offset, start_position=start_position, verify_crc=verify_crc)
        self._unseen = size
        self._cut = bytearray()

    def feed(self, piece: bytes) -> Iterator[BatchTable]:
        """Yield the tables of all batches that `piece` completes; raises as `windows`."""
        for _, table in self.windows(piece):
            yield table

    def windows(self, piece: bytes) -> Iterator[tuple[memoryview, BatchTable]]:
        """Yield all batches that `piece` completes: their bytes and their table.

        Raises UnsupportedMagicError or CorruptRecordError for the first batch that is broken.
        """
        self._unseen -= len(piece)
        rest = memoryview(piece)
        while self._cut and rest:
            lacking = self._scanner.needed(memoryview(bytes(self._cut[:MAGIC_END]))) - len(self._cut)
            if lacking > len(rest) + self._unseen:
                self._scanner.finish(len(self._cut) + len(rest) + self._unseen)
            self._cut += rest[: max(lacking, 0)]
            rest = rest[max(lacking, 0) :]
            yield from self._scan_cut()
        if rest:
            table, consumed = self._scanner.feed(rest)
            self._cut = bytearray(rest[consumed:])
            if len(table):
                yield rest[:consumed], table

    def finish(self) -> None:
        """End the scan. Raises CorruptRecordError if the segment ends inside a batch."""
        self._scanner.finish(len(self._cut))

    def _scan_cut(self) -> Iterator[tuple[memoryview, BatchTable]]:
        cut = memoryview(bytes(self._cut))
        table, consumed = self._scanner.feed(cut)
        if consumed:
            self._cut = self._cut[consumed:]
            yield cut[:consumed], table
