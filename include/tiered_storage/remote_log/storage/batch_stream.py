"""Scan a segment that arrives in pieces, as from a store; only a batch that spans two pieces is copied."""

from __future__ import annotations

from collections.abc import Iterator

from tiered_storage.kafka_log.records.batch_header import MAGIC_END
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.kafka_log.records.segment_scan import SegmentScanner


class BatchStream:
    """Checks the batches of one segment of `size` bytes; feed it the pieces in order and without a gap.

    It holds at most one incomplete batch.
    """

    def __init__(self, source: str, base_offset: int, size: int) -> None:
        """Scan the segment `source`, whose lowest offset is `base_offset`."""
        self._scanner = SegmentScanner(source, base_offset)
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
