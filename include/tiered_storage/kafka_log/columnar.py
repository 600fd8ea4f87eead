"""Decodes the records of a segment into Arrow record batches, a chunk that stays in the CPU's cache at a time.

Batches that a range leaves out by their headers are neither checked nor decompressed. All others are: the checksum of
the batch, then every record of it to the last byte, whichever columns are wanted and whichever rows are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tiered_storage.errors import ConfigurationError, CorruptRecordError
from tiered_storage.kafka_log import column_parts as parts
from tiered_storage.kafka_log.batch_header import (
    APPEND_TIME_BIT,
    BATCH_OVERHEAD,
    CODEC_BITS,
    CONTROL_BIT,
    INT32_MAX,
    check_crc,
)
from tiered_storage.kafka_log.batch_table import BatchTable
from tiered_storage.kafka_log.compression import DEFAULT_MAX_DECOMPRESSED_BYTES, Compression, decompress
from tiered_storage.kafka_log.record_columns import ChunkMemory, select_columns
from tiered_storage.kafka_log.segment_scan import as_array, check_checksums, iterate_segment

CHUNK_BYTES = 1_700_000
"""How many bytes of records a chunk has, about: its bytes and its columns together fit the cache of a core."""

_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
_LEAST_RECORD_BYTES = 7
_MOST_ROWS = 1 << 16
_ADDRESSES = as_array(memoryview(b""))


@dataclass(frozen=True, slots=True)
class RecordRange:
    """Which records to give: those whose offset and `timestamp` (ms) lie in both ranges, ends not included."""

    first_offset: int | None = None
    end_offset: int | None = None
    first_timestamp: int | None = None
    end_timestamp: int | None = None
    with_control: bool = True
    """Whether to give the markers of transactions too."""

    def bounds(self) -> NDArray[np.int64]:
        """Return the least and the greatest offset inside, the same of timestamps, and the attributes left out."""
        firsts = (self.first_offset, self.first_timestamp)
        ends = (self.end_offset, self.end_timestamp)
        least = [_INT64_MIN if first is None else first for first in firsts]
        greatest = [_INT64_MAX if end is None else end - 1 for end in ends]
        bounds = [least[0], greatest[0], least[1], greatest[1]]
        bounds.append(0 if self.with_control else CONTROL_BIT)
        return np.array([min(max(bound, _INT64_MIN), _INT64_MAX) for bound in bounds], np.int64)

    def rows(self, table: BatchTable, bounds: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of `table` whose batches may have records inside, by their headers alone.

        A header says which timestamp is the greatest; only with log append time does it also say which is the least.
        """
        first_offset, last_offset, first_time, last_time, left_out = bounds
        inside = (table.last_offset >= first_offset) & (table.base_offset <= last_offset)
        inside &= table.max_timestamp >= first_time
        inside &= (table.max_timestamp <= last_time) | (table.attributes & APPEND_TIME_BIT == 0)
        inside &= table.attributes & left_out == 0
        return np.flatnonzero(inside)


EVERYTHING = RecordRange()


@dataclass(frozen=True, slots=True)
class Checks:
    """What decoding makes sure of; its form a record always has to keep."""

    crc: bool = True
    """Whether the checksum of each batch is compared."""
    outside: bool = False
    """Whether batches that lie outside the range are checked and decoded like the others."""
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
    """The most that the records of one batch may take, below 2 GiB."""


STRICT = Checks()


class ColumnDecoder:
    """Decodes scanned windows of one segment. Holds memory and codecs that no other thread may use: one a thread."""

    def __init__(
        self,
        source: str,
        columns: Sequence[str] | None = None,
        within: RecordRange = EVERYTHING,
        checks: Checks = STRICT,
        *,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        """Decode `columns` (record_columns.py has all of them) of the records `within` a range; errors name `source`.

        Raises ConfigurationError for an unknown column and for limits that cannot be.
        """
        if not 0 < checks.max_decompressed_bytes <= INT32_MAX:
            raise ConfigurationError(f"{checks.max_decompressed_bytes} bytes of a batch: allow 1 to {INT32_MAX}")
        if not 0 < chunk_bytes <= INT32_MAX // 2:
            raise ConfigurationError(f"chunks of {chunk_bytes} bytes: take 1 to {INT32_MAX // 2}")
        from tiered_storage.kafka_log import (  # noqa: PLC0415 -- numba takes most of a second to import
            decode_kernels,
            scan_kernels,
        )

        self._decode_batches = decode_kernels.decode_batches
        self._crc32c = scan_kernels.crc32c_address()
        self._source = source
        self._within = within
        self._bounds = within.bounds()
        self._checks = checks
        self._chunk_bytes = chunk_bytes
        self._memory = ChunkMemory(select_columns(columns))

    @property
    def schema(self) -> pa.Schema:
        """The columns of every record batch."""
        return self._memory.schema

    def decode(self, window: memoryview | NDArray[np.uint8], table: BatchTable) -> Iterator[pa.RecordBatch]:
        """Yield the records of the batches in `table`, whose bytes `window` holds one behind the other.

        That is what SegmentScanner and iterate_segment give, best without checking checksums there. `window` has to
        stay as it is until the last record batch is taken; the record batches keep nothing of it.

        Raises CorruptRecordError at the first chunk that is broken: `position` is that of the batch in the segment.
        """
        data = as_array(window)
        rows = self._rows(table)
        if not rows.size:
            return
        origin = int(table.position[0])
        positions, sizes = table.position[rows], table.size[rows]
        starts = positions - (origin - BATCH_OVERHEAD)
        ends = starts + (sizes - BATCH_OVERHEAD)
        if not data.size:
            raise CorruptRecordError(self._source, int(positions[0]), parts.REASONS[parts.OUT_OF_WINDOW])
        lies_open = self._lies_open(table, rows, sizes)
        crc32c = self._crc32c if self._checks.crc else 0
        batches = _Batches(data, starts, ends, rows, table, crc32c)
        if not (lies_open and self._crc32c):
            self._check_places(batches)
            if self._checks.crc:
                check_checksums(data, origin, positions, sizes, source=self._source)
        if not lies_open:
            yield from self._decode_compressed(batches)
            return
        for begin, end in _chunks(sizes, self._chunk_bytes):
            yield from self._decode_chunk(batches.part(begin, end))

    def _check_places(self, batches: _Batches) -> None:
        """Raise CorruptRecordError where a batch, as the table tells its place, does not lie in the window."""
        starts, ends = batches.starts, batches.ends
        outside = np.flatnonzero((starts < BATCH_OVERHEAD) | (ends < starts) | (ends > batches.data.size))
        if outside.size:
            position = int(batches.table.position[batches.rows[outside[0]]])
            raise CorruptRecordError(self._source, position, parts.REASONS[parts.OUT_OF_WINDOW])

    def _rows(self, table: BatchTable) -> NDArray[np.int64]:
        """Return the rows of `table` to decode."""
        if self._checks.outside or self._within == EVERYTHING:
            return np.arange(len(table))
        return self._within.rows(table, self._bounds)

    def _lies_open(self, table: BatchTable, rows: NDArray[np.int64], sizes: NDArray[np.int64]) -> bool:
        """Whether all records can be read where they are: uncompressed, and no batch larger than is allowed."""
        if (sizes - BATCH_OVERHEAD).max() > self._checks.max_decompressed_bytes:
            return False
        is_compressed = table.attributes[rows] & CODEC_BITS != 0
        return not is_compressed.any() or not (table.record_count[rows][is_compressed] > 0).any()

    def _decode_compressed(self, batches: _Batches) -> Iterator[pa.RecordBatch]:
        """Decompress batch by batch, and decode whenever that has made a chunk."""
        rows, table = batches.rows, batches.table
        pending: list[NDArray[np.uint8]] = []
        first = size = 0
        for i, (start, end) in enumerate(zip(batches.starts.tolist(), batches.ends.tolist(), strict=True)):
            try:
                pending.append(self._records_of(batches.data[start:end], int(rows[i]), table))
            except CorruptRecordError:
                # A batch before it may be broken as well: that one is named then.
                if pending:
                    yield from self._decode_pending(pending, rows[first:i], table)
                raise
            size += pending[-1].size
            if size >= self._chunk_bytes:
                yield from self._decode_pending(pending, rows[first : i + 1], table)
                pending, first, size = [], i + 1, 0
        if pending:
            yield from self._decode_pending(pending, rows[first:], table)

    def _records_of(self, body: NDArray[np.uint8], row: int, table: BatchTable) -> NDArray[np.uint8]:
        codec = Compression(int(table.attributes[row]) & CODEC_BITS)
        most = self._checks.max_decompressed_bytes
        if not table.record_count[row] or (codec is Compression.NONE and body.size <= most):
            return body
        position = int(table.position[row])
        content = decompress(codec, body.data, max_bytes=most, source=self._source, source_position=position)
        return np.frombuffer(content, np.uint8)

    def _decode_pending(
        self, contents: list[NDArray[np.uint8]], rows: NDArray[np.int64], table: BatchTable
    ) -> Iterator[pa.RecordBatch]:
        """Decode the records that `contents` hold, a batch each, where they are."""
        starts = np.array([content.ctypes.data for content in contents], np.int64)
        sizes = np.array([content.size for content in contents], np.int64)
        yield from self._decode_chunk(_Batches(_ADDRESSES, starts, starts + sizes, rows, table, 0))

    def _decode_chunk(self, batches: _Batches) -> Iterator[pa.RecordBatch]:
        """Decode what belongs into one chunk; a batch that is too large for that makes several."""
        memory = self._memory
        progress = np.zeros(parts.PROGRESS_SIZE, np.int64)
        columns = batches.table.columns()
        sizes = batches.ends - batches.starts
        total = int(sizes.sum())
        counts = np.minimum(batches.table.record_count[batches.rows], sizes // _LEAST_RECORD_BYTES)
        most_rows = min(int(counts.sum()), _MOST_ROWS)
        size = min(total, 2 * self._chunk_bytes)
        verdict = parts.FULL
        while verdict == parts.FULL:
            chunk = memory.allocate(most_rows, size)
            verdict = self._decode_batches(
                batches.data, batches.starts, batches.ends, batches.rows, columns, self._bounds,
                chunk.slab_view, chunk.layout, (most_rows, size), (memory.keys, chunk.values_view),
                memory.header_texts, memory.header_ends, batches.crc32c, progress,
            )  # fmt: skip
            if verdict > parts.FULL:
                self._raise_broken(verdict, progress, batches)
            if progress[parts.ROWS]:
                yield memory.record_batch(chunk, progress)
            elif verdict == parts.FULL:
                most_rows, size = max(most_rows, 1), total

    def _raise_broken(self, verdict: int, progress: NDArray[np.int64], batches: _Batches) -> NoReturn:
        number = int(progress[parts.BATCH])
        row = batches.rows[number]
        position = int(batches.table.position[row])
        if verdict == parts.WRONG_CHECKSUM:
            start = int(batches.starts[number]) - BATCH_OVERHEAD
            check_crc(batches.data.data[start : batches.ends[number]], source=self._source, source_position=position)
        count = int(batches.table.record_count[row])
        record = min(int(progress[parts.RECORD]) + 1, count)
        raise CorruptRecordError(self._source, position, f"record {record} of {count}: {parts.REASONS[verdict]}")


@dataclass(frozen=True, slots=True)
class _Batches:
    """Batches whose records lie uncompressed in `data`, from `starts` to `ends`; `rows` are theirs in `table`.

    Where `data` is empty, these are addresses in memory that whoever made this keeps.

    `crc32c` is the address of a function for their checksums, where their headers lie before the records, or 0.
    """

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    rows: NDArray[np.int64]
    table: BatchTable
    crc32c: int

    def part(self, begin: int, end: int) -> _Batches:
        """Return those from number `begin` to `end`, which is not included."""
        return replace(self, starts=self.starts[begin:end], ends=self.ends[begin:end], rows=self.rows[begin:end])


def iterate_columns(
    path: Path,
    base_offset: int,
    columns: Sequence[str] | None = None,
    within: RecordRange = EVERYTHING,
    checks: Checks = STRICT,
    *,
    start_position: int = 0,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a `.log` file, which may be of any size, to the end that it has now.

    `start_position` (bytes) is where a batch begins, as an offset index says it. What lies behind the end of the range
    of offsets is not read, unless `checks` ask for it. Raises as iterate_segment and ColumnDecoder do.
    """
    decoder = ColumnDecoder(str(path), columns, within, checks)
    end_offset = _INT64_MAX if within.end_offset is None or checks.outside else within.end_offset
    windows = iterate_segment(
        path, base_offset, start_position=start_position, window_bytes=CHUNK_BYTES, verify_crc=False
    )
    for window, table in windows:
        yield from decoder.decode(window, table)
        if table.last_offset[-1] + 1 >= end_offset:
            return


def _chunks(sizes: NDArray[np.int64], chunk_bytes: int) -> Iterator[tuple[int, int]]:
    """Cut batches into runs of at most `chunk_bytes`; a batch that is larger is a run of its own."""
    behind = np.cumsum(sizes)
    begin, before = 0, 0
    while begin < sizes.size:
        end = max(int(np.searchsorted(behind, before + chunk_bytes, "right")), begin + 1)
        yield begin, end
        begin, before = end, int(behind[end - 1])
