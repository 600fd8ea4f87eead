"""Reads whole batches of local segments by offset.

A local index only says where to begin: if it is missing, broken or false, the segment is read from its start, so
that no offset is passed over.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from tiered_storage.errors import CorruptIndexError, CorruptRecordError
from tiered_storage.kafka_log.files.log_segment import LogSegment
from tiered_storage.kafka_log.indexes.offset_index import OffsetIndex
from tiered_storage.kafka_log.indexes.time_index import TimeIndex
from tiered_storage.kafka_log.kernels.batch_layout import BATCH_OVERHEAD
from tiered_storage.kafka_log.records.batch_header import read_batch_header
from tiered_storage.kafka_log.records.batch_read import read_batches
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.kafka_log.records.segment_scan import SegmentScanner, iterate_segment
from tiered_storage.regular_files import open_regular

LOCAL_READ_BYTES = 1 << 20


class LocalSegmentReader:
    """Reads segments of one partition; keeps the offset index of the last one. Not for two threads at once."""

    def __init__(self) -> None:
        self._index: OffsetIndex | None = None

    def read(self, segment: LogSegment, offset: int) -> tuple[bytes, int] | None:
        """Return whole batches, about 1 MiB, and the position (bytes) of the first, which `offset` is in or before.

        None if the segment has nothing at or after `offset`. Raises FileNotFoundError if it is gone, and
        CorruptRecordError.
        """
        position = self._position_of(segment, offset)
        if position is None:
            return None
        return read_batches(segment.log_path, position, offset, LOCAL_READ_BYTES), position

    def scan(self, segment: LogSegment, offset: int) -> tuple[bytes, BatchTable, int] | None:
        """Return what `read` does, up to the first batch that is broken, checksums compared, with the batches' headers.

        So what a crash tore after the end that readers see hinders nobody. Raises as `read` if the first is broken.
        """
        position = self._position_of(segment, offset)
        if position is None:
            return None
        scanner = SegmentScanner(str(segment.log_path), segment.base_offset, start_position=position)
        with open_regular(segment.log_path) as file:
            file.seek(position)
            content = file.read(LOCAL_READ_BYTES)
            needed = scanner.needed(memoryview(content))
            left = os.fstat(file.fileno()).st_size - position - len(content)
            if len(content) < needed <= len(content) + left:
                content += file.read(needed - len(content))
        table, consumed = _scan_sound(scanner, content, position)
        if not consumed:
            scanner.finish(len(content))
        return content[:consumed], table, position

    def _position_of(self, segment: LogSegment, offset: int) -> int | None:
        """Return where (bytes) the first batch begins that ends at or after `offset`; None if there is none."""
        begin = self._position_before(segment, offset)
        found = _found_by_index(segment.log_path, begin, offset) or _seek(segment.log_path, 0, offset)
        return None if found is None else found[0]

    def _position_before(self, segment: LogSegment, offset: int) -> int:
        if self._index is None or self._index.base_offset != segment.base_offset:
            try:
                self._index = OffsetIndex.read(segment.offset_index_path, segment.base_offset)
            except (CorruptIndexError, FileNotFoundError):
                return 0
        return self._index.lookup(offset).position


def below(content: bytes, end_offset: int, source: str, source_position: int) -> bytes:
    """Return the batches of `content`, from `source_position` of `source` on, that begin below `end_offset`."""
    position = 0
    while position < len(content):
        header = read_batch_header(content, position, source=source, source_position=source_position)
        if header.base_offset >= end_offset:
            return content[:position]
        position += header.size
    return content


def _scan_sound(scanner: SegmentScanner, content: bytes, position: int) -> tuple[BatchTable, int]:
    """Scan the batches that `content`, from `position` of the segment on, begins with, up to one that is broken."""
    try:
        return scanner.feed(memoryview(content))
    except CorruptRecordError as error:
        sound = error.position - position
        if sound <= 0:
            raise
        return scanner.feed(memoryview(content)[:sound])


def _found_by_index(log_path: Path, begin: int, offset: int) -> tuple[int, int] | None:
    """Seek from where the index says; None if that is no batch, or one that is already after `offset`."""
    try:
        found = _seek(log_path, begin, offset)
    except CorruptRecordError:
        return None
    misled = found is not None and found[0] == begin and found[1] > offset
    return None if misled else found


def _seek(log_path: Path, position: int, offset: int) -> tuple[int, int] | None:
    """Return position and base offset of the first batch from `position` on that ends at or after `offset`."""
    source = str(log_path)
    with open_regular(log_path) as file:
        size = file.seek(0, os.SEEK_END)
        while position < size:
            file.seek(position)
            header = read_batch_header(file.read(BATCH_OVERHEAD), source=source, source_position=position)
            if header.last_offset >= offset:
                return position, header.base_offset
            position += header.size
    return None


def is_older_than(segment: LogSegment, moment: int, below: int | None = None) -> bool:
    """Return whether every record of a closed segment that has a timestamp was made before `moment` (ms), and one at
    least.

    Only batches that begin below the offset `below` count, where that is given. Where the time index tells of a later
    one the segment is not even read. Raises CorruptRecordError and OSError.
    """
    return not is_indexed_since(segment, moment, below) and 0 <= largest_timestamp(segment, below) < moment


def is_indexed_since(segment: LogSegment, moment: int, below: int | None = None) -> bool:
    """Return whether the time index has an entry of `moment` (ms) or later with an offset below `below` (None: any)."""
    indexed = _last_indexed(segment, below)
    return indexed is not None and indexed >= moment


def is_indexed_before(segment: LogSegment, moment: int) -> bool:
    """Return whether the time index tells of timestamps, all before `moment` (ms): an estimate that reads no batch."""
    indexed = _last_indexed(segment)
    return indexed is not None and 0 <= indexed < moment


def largest_timestamp(segment: LogSegment, below: int | None = None) -> int:
    """Return the largest timestamp (ms) in the headers of a segment's batches, -1 if none has one.

    Only batches that begin below the offset `below` count, where that is given. Reads all of them, in bounded memory,
    checksums verified. Raises CorruptRecordError and OSError.
    """
    largest = -1
    for _, table in iterate_segment(segment.log_path, segment.base_offset):
        count = len(table) if below is None else int(np.searchsorted(table.base_offset, below))
        largest = max(largest, int(table.max_timestamp[:count].max(initial=-1)))
        if count < len(table):
            break
    return largest


def _last_indexed(segment: LogSegment, below: int | None = None) -> int | None:
    try:
        index = TimeIndex.read(segment.time_index_path, segment.base_offset)
    except (CorruptIndexError, FileNotFoundError):
        return None
    count = index.timestamps.size if below is None else int(np.searchsorted(index.offsets, below))
    return int(index.timestamps[count - 1]) if count else None
