"""Reads whole batches of local segments by offset.

A local index only says where to begin: where it is missing, broken or false, the segment is read from its start, so
that no offset is passed over.
"""

from __future__ import annotations

import os
from pathlib import Path

from tiered_storage.errors import CorruptIndexError, CorruptRecordError
from tiered_storage.kafka_log.batch_header import BATCH_OVERHEAD, read_batch_header
from tiered_storage.kafka_log.batch_read import read_batches
from tiered_storage.kafka_log.log_segment import LogSegment
from tiered_storage.kafka_log.offset_index import OffsetIndex

LOCAL_READ_BYTES = 1 << 20


class LocalSegmentReader:
    """Reads segments of one partition; keeps the offset index of the last one. Not for two threads at once."""

    def __init__(self) -> None:
        self._index: OffsetIndex | None = None

    def read(self, segment: LogSegment, offset: int) -> tuple[bytes, int] | None:
        """Return whole batches, about 1 MiB, and the position (bytes) of the first, which `offset` is in or before.

        None where the segment has nothing at or behind `offset`. Raises FileNotFoundError where it is gone, and
        CorruptRecordError.
        """
        begin = self._position_before(segment, offset)
        found = _found_by_index(segment.log_path, begin, offset) or _seek(segment.log_path, 0, offset)
        if found is None:
            return None
        position, _ = found
        return read_batches(segment.log_path, position, offset, LOCAL_READ_BYTES), position

    def _position_before(self, segment: LogSegment, offset: int) -> int:
        if self._index is None or self._index.base_offset != segment.base_offset:
            try:
                self._index = OffsetIndex.read(segment.offset_index_path, segment.base_offset)
            except (CorruptIndexError, FileNotFoundError):
                return 0
        return self._index.lookup(offset).position


def below(content: bytes, end_offset: int) -> bytes:
    """Return the batches of `content` that begin below `end_offset`."""
    position = 0
    while position < len(content):
        header = read_batch_header(content, position)
        if header.base_offset >= end_offset:
            return content[:position]
        position += header.size
    return content


def _found_by_index(log_path: Path, begin: int, offset: int) -> tuple[int, int] | None:
    """Seek from where the index says; None where that is no batch, or one that is already behind `offset`."""
    try:
        found = _seek(log_path, begin, offset)
    except CorruptRecordError:
        return None
    misled = found is not None and found[0] == begin and found[1] > offset
    return None if misled else found


def _seek(log_path: Path, position: int, offset: int) -> tuple[int, int] | None:
    """Return position and base offset of the first batch from `position` on that ends at or behind `offset`."""
    source = str(log_path)
    with log_path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        while position < size:
            file.seek(position)
            header = read_batch_header(file.read(BATCH_OVERHEAD), source=source, source_position=position)
            if header.last_offset >= offset:
                return position, header.base_offset
            position += header.size
    return None
