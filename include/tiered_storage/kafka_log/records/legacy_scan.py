"""Scan the messages of magic 0 and 1 that stand in a window of a segment, as rows of a table like batches.

They are read one by one, without compiled code, and compressed ones are decompressed: only that shows their first
offset. Their checksums are always compared, since the torn header of a batch can look like one of theirs.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from tiered_storage.errors import CorruptRecordError
from tiered_storage.kafka_log.kernels.constants import (
    APPEND_TIME_BIT,
    CODEC_BITS,
    HIGHEST_OFFSET,
    INT32_MAX,
    LOG_OVERHEAD,
)
from tiered_storage.kafka_log.records.batch_header import (
    LEAST_BATCH_BYTES,
    LEGACY_CRC_END,
    LEGACY_MAGICS,
    MAGIC_END,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    batch_size,
    check_crc,
)
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.kafka_log.records.legacy_message import read_true_header

_FIELDS = struct.Struct(">qiIbBq")
_LEAST_LENGTHS = (LEAST_BATCH_BYTES - LOG_OVERHEAD, LEAST_BATCH_BYTES - LOG_OVERHEAD + 8)
"""By magic."""


def begins_message(data: NDArray[np.uint8], position: int) -> bool:
    """Return whether a message of magic 0 or 1 may begin at `position` of `data`, by its magic alone."""
    return data.size - position >= MAGIC_END and data[position + MAGIC_END - 1] in LEGACY_MAGICS


def raise_misplaced(header: BatchHeader, source: str, position: int, base_offset: int, next_offset: int) -> NoReturn:
    """Raise CorruptRecordError for a batch with the offsets of `header` at `position` of the segment `source`."""
    if header.base_offset < next_offset:
        reason = f"the batch starts at offset {header.base_offset}; offsets rise, so from {next_offset} on here"
    else:
        reason = f"offset {header.last_offset} is too far from the segment's base offset {base_offset}"
    raise CorruptRecordError(source, position, reason)


@dataclass(frozen=True, slots=True)
class MessageScan:
    """Scans messages of the segment `source`, which begins at `base_offset`."""

    source: str
    base_offset: int

    def scan(
        self, data: NDArray[np.uint8], begin: int, window_position: int, next_offset: int
    ) -> tuple[BatchTable, int]:
        """Return the table of the whole messages from byte `begin` of `data` on, and their size in bytes.

        `data` lies at `window_position` of the segment; `next_offset` is the lowest that may follow. Raises
        CorruptRecordError for the first corrupt message.
        """
        view, rows, at = data.data, list[tuple[int, ...]](), begin
        highest = min(self.base_offset + INT32_MAX, HIGHEST_OFFSET)
        while len(view) - at >= MAGIC_END and (magic := view[at + MAGIC_END - 1]) in LEGACY_MAGICS:
            position = window_position + at
            if len(view) - at < LEAST_BATCH_BYTES:
                batch_size(view, at, source=self.source, source_position=window_position)
                break
            offset, length, crc, _, attributes, timestamp = _FIELDS.unpack_from(view, at)
            end = at + LOG_OVERHEAD + length
            if (
                not attributes & CODEC_BITS and length >= _LEAST_LENGTHS[magic] and end <= len(view)
                and next_offset <= offset <= highest and zlib.crc32(view[at + LEGACY_CRC_END : end]) == crc
            ):  # fmt: skip
                time, by_broker = (timestamp, attributes & APPEND_TIME_BIT) if magic else (NO_TIMESTAMP, 0)
                rows.append((offset, offset, position, end - at, time, time, by_broker, 1))
                next_offset = offset + 1
            else:
                header = self._header(view, at, window_position)
                if header is None:
                    break
                if header.base_offset < next_offset or header.last_offset > highest:
                    raise_misplaced(header, self.source, position, self.base_offset, next_offset)
                rows.append((
                    header.base_offset, header.last_offset, position, header.size, header.base_timestamp,
                    header.max_timestamp, header.attributes, header.record_count,
                ))  # fmt: skip
                next_offset, end = header.next_offset, at + header.size
            at = end
        return _table(rows), at - begin

    def _header(self, view: memoryview, at: int, window_position: int) -> BatchHeader | None:
        """Return the header of the message at `at`; None if the window ends inside it."""
        end = at + batch_size(view, at, source=self.source, source_position=window_position)
        if end > len(view):
            return None
        check_crc(view[at:end], source=self.source, source_position=window_position + at)
        return read_true_header(view[at:end], source=self.source, source_position=window_position + at)


def _table(rows: list[tuple[int, ...]]) -> BatchTable:
    table = BatchTable.allocate(len(rows))
    columns: tuple[NDArray[Any], ...] = (
        table.base_offset, table.last_offset, table.position, table.size, table.base_timestamp, table.max_timestamp,
        table.attributes, table.record_count,
    )  # fmt: skip
    for column, values in zip(columns, np.array(rows, np.int64).reshape(-1, len(columns)).T, strict=True):
        column[:] = values
    table.partition_leader_epoch[:] = NO_LEADER_EPOCH
    table.producer_id[:] = NO_PRODUCER_ID
    table.producer_epoch[:] = NO_PRODUCER_EPOCH
    table.base_sequence[:] = NO_SEQUENCE
    return table
