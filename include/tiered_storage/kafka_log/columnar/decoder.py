"""Decodes the records of a segment into Arrow record batches, a chunk that stays in the CPU's cache at a time.

Batches whose header is outside the range are neither checked nor decompressed. All others are: the batch checksum, then
every record to its last byte, whichever columns are wanted and whichever rows are kept. Messages of magic 0 and 1 are
converted to batches first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tiered_storage.errors import ConfigurationError, CorruptRecordError
from tiered_storage.kafka_log.columnar.chunk_memory import ChunkFilling, ChunkMemory
from tiered_storage.kafka_log.columnar.legacy_batches import as_record_batch, legacy_rows, runs_of
from tiered_storage.kafka_log.columnar.placed_batches import ENDS, STARTS, OpenBatches, PlacedBatches
from tiered_storage.kafka_log.columnar.record_columns import select_columns
from tiered_storage.kafka_log.kernels import constants
from tiered_storage.kafka_log.kernels.constants import APPEND_TIME_BIT, CODEC_BITS, CONTROL_BIT, INT32_MAX
from tiered_storage.kafka_log.kernels.machine_code import (
    BRIEF_BYTES,
    address_of,
    has_checksum_instructions,
    load_brief_kernels,
    load_kernels,
)
from tiered_storage.kafka_log.records.batch_header import check_crc
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.kafka_log.records.compression import DEFAULT_MAX_DECOMPRESSED_BYTES, WHOLE, Compression, decompress
from tiered_storage.kafka_log.records.legacy_message import read_legacy_batch
from tiered_storage.kafka_log.records.segment_scan import SegmentScanner, as_array, check_checksums, iterate_segment

CHUNK_BYTES = 1_700_000
"""The approximate size of a chunk, in bytes of records.

Larger chunks cost less Python, but the columns of two threads no longer fit into the cache.
"""
VIEW_CHUNK_BYTES = 5_000_000
"""The same for chunks with value views: their columns are small."""

_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
_LEAST_RECORD_BYTES = 7
_HOT_BYTES = 1 << 20
"""How much is decompressed at once, to be decoded from the cache nearest to a core; the codec reuses the memory."""
_SPARE_BYTES = _HOT_BYTES + (256 << 10)
"""A chunk of decompressed batches ends after the batch with which it reaches this size."""
_MOST_VIEWED = 2
"""A chunk with value views keeps at most this many times its size, whatever is filtered out of it."""
_MOST_ROWS = 1 << 16
_MOST_TEXT_BYTES = 3
"""The most bytes that an invalid UTF-8 byte becomes: U+FFFD."""
_EMPTY = -1
"""Stands for the codec of a batch without records."""


@dataclass(frozen=True, slots=True)
class RecordRange:
    """Which records to return: those whose offset and `timestamp` (ms) lie in both ranges (ends exclusive)."""

    first_offset: int | None = None
    end_offset: int | None = None
    first_timestamp: int | None = None
    end_timestamp: int | None = None
    with_control: bool = True
    """Whether to return transaction markers too."""

    def bounds(self) -> NDArray[np.int64]:
        """Return the least and the greatest offset inside, the same of timestamps, and the attributes left out."""
        firsts = (self.first_offset, self.first_timestamp)
        ends = (self.end_offset, self.end_timestamp)
        least = [_INT64_MIN if first is None else first for first in firsts]
        greatest = [_INT64_MAX if end is None else end - 1 for end in ends]
        bounds = [least[0], greatest[0], least[1], greatest[1]]
        if max(least) > _INT64_MAX or min(greatest) < _INT64_MIN:
            # Nothing is in range; clipping to 64 bits would admit the largest or smallest number.
            bounds = [_INT64_MAX, _INT64_MIN] * 2
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
    """Which checks decoding makes; the format of a record is always checked."""

    crc: bool = True
    """Whether the checksum of each batch is compared."""
    outside: bool = False
    """Whether batches that lie outside the range are checked and decoded like the others."""
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
    """The most that the records of one batch may take, below 2 GiB."""


STRICT = Checks()


def chunk_bytes_of(*, value_views: bool) -> int:
    """Return the approximate size of a chunk in bytes of records, which is also the best size for windows."""
    return VIEW_CHUNK_BYTES if value_views else CHUNK_BYTES


class ColumnDecoder:
    """Decodes scanned windows of one segment. It owns memory and codecs: use one decoder per thread."""

    def __init__(
        self,
        source: str,
        columns: Sequence[str] | None = None,
        within: RecordRange = EVERYTHING,
        checks: Checks = STRICT,
        *,
        chunk_bytes: int | None = None,
        value_views: bool = False,
    ) -> None:
        """Decode `columns` (all: record_columns.py) of the records `within` a range; errors name `source`.

        With `value_views` values are not copied: the column is `binary_view`, the record batches keep the window or the
        decompressed memory alive, and that memory must not change while they live. `chunk_bytes` is the approximate
        size of a record batch, in bytes of records, if not the fastest one.

        Raises ConfigurationError for an unknown column or an invalid limit.
        """
        if not 0 < checks.max_decompressed_bytes <= INT32_MAX:
            raise ConfigurationError(f"{checks.max_decompressed_bytes} bytes of a batch: allow 1 to {INT32_MAX}")
        if chunk_bytes is None:
            chunk_bytes = chunk_bytes_of(value_views=value_views)
        if not 0 < chunk_bytes <= INT32_MAX // 2:
            raise ConfigurationError(f"chunks of {chunk_bytes} bytes: take 1 to {INT32_MAX // 2}")
        self._kernels, self._brief_kernels = load_kernels(), load_brief_kernels()
        self._checks_in_kernel = has_checksum_instructions()
        self._source = source
        self._within = within
        self._bounds = within.bounds()
        self._bounds_address = address_of(self._bounds)
        self._checks = checks
        self._chunk_bytes = chunk_bytes
        self._memory = ChunkMemory(select_columns(columns, value_views=value_views))

    @property
    def schema(self) -> pa.Schema:
        """The columns of every record batch."""
        return self._memory.schema

    def decode(self, window: memoryview | NDArray[np.uint8], table: BatchTable) -> Iterator[pa.RecordBatch]:
        """Yield the records of the batches in `table`; `window` holds their bytes one after the other.

        SegmentScanner and iterate_segment produce both; leave checksums to this decoder. `window` must not change until
        the last record batch is taken; only value views refer to it. A record batch is one piece of memory: keeping one
        column keeps all, so request only the columns to keep. It may be up to twice as large as its columns; the
        decoder reuses the memory once nothing refers to it.

        Raises CorruptRecordError at the first broken chunk; `position` is that of the batch in the segment.
        """
        data = as_array(window)
        if self._memory.has_value_views and data.size > INT32_MAX:
            raise ConfigurationError(f"a window of {data.size} bytes: views of values reach {INT32_MAX} bytes far")
        is_legacy = legacy_rows(data, table) if len(table) else None
        if is_legacy is not None:
            yield from self._decode_mixed(data, table, is_legacy)
            return
        rows = self._rows(table)
        if not rows.size:
            return
        batches = self._place(data, table, rows)
        if batches.largest > self._checks.max_decompressed_bytes or batches.compressed:
            if self._checks.crc:
                self._check_checksums(batches)
            yield from self._decode_compressed(batches)
            return
        if self._checks.crc and not self._checks_in_kernel:
            self._check_checksums(batches)
        for chunk in batches.chunks(self._chunk_bytes):
            yield from self._decode_open(chunk)

    def _decode_mixed(
        self, data: NDArray[np.uint8], table: BatchTable, is_legacy: NDArray[np.bool_]
    ) -> Iterator[pa.RecordBatch]:
        """Decode the batches of `table` in their order, of which those in `is_legacy` are messages of magic 0 or 1."""
        origin = int(table.position[0])
        for are_messages, first, end in runs_of(is_legacy):
            part = table.rows(first, end)
            if not are_messages:
                yield from self.decode(data[int(part.position[0]) - origin :], part)
                continue
            for content in self._as_batches(data, origin, part):
                batches, _ = SegmentScanner(self._source, int(part.base_offset[0]), verify_crc=False).feed(content)
                yield from self.decode(content, batches)

    def _as_batches(self, data: NDArray[np.uint8], origin: int, table: BatchTable) -> Iterator[memoryview]:
        """Yield the messages of `table` that may be within the range as batches, about as many as make a chunk."""
        content = bytearray()
        for row in self._rows(table).tolist():
            position = int(table.position[row])
            begin = position - origin
            message = data.data[begin : begin + int(table.size[row])]
            content += as_record_batch(
                read_legacy_batch(
                    message,
                    source=self._source,
                    source_position=position,
                    verify_crc=self._checks.crc,
                    max_decompressed_bytes=self._checks.max_decompressed_bytes,
                )
            )
            if len(content) >= self._chunk_bytes:
                yield memoryview(content)
                content = bytearray()
        if content:
            yield memoryview(content)

    def _place(self, data: NDArray[np.uint8], table: BatchTable, rows: NDArray[np.int64]) -> PlacedBatches:
        """Return the batches of `table` in `rows`, by their addresses in `data`.

        Raises CorruptRecordError if the table gives another position for one.
        """
        places = np.empty((3, rows.size), np.int64)
        totals = np.empty(4, np.int64)
        origin = int(table.position[0])
        window = address_of(data)
        kernels = self._brief_kernels if data.size <= BRIEF_BYTES else self._kernels
        outside = kernels.place_batches(
            window, data.size, origin, address_of(table.position), address_of(table.size), address_of(rows), rows.size,
            address_of(places), address_of(totals),
        )  # fmt: skip
        if outside >= 0:
            position = int(table.position[rows[outside]])
            raise CorruptRecordError(self._source, position, constants.REASONS[constants.OUT_OF_WINDOW])
        return PlacedBatches(data, origin, table, rows, places, window + data.size, *totals.tolist())

    def _check_checksums(self, batches: PlacedBatches) -> None:
        positions, sizes = batches.table.position[batches.rows], batches.table.size[batches.rows]
        check_checksums(batches.data, batches.origin, positions, sizes, source=self._source)

    def _rows(self, table: BatchTable) -> NDArray[np.int64]:
        """Return the rows of `table` to decode."""
        if self._checks.outside or self._within == EVERYTHING:
            return np.arange(len(table))
        return self._within.rows(table, self._bounds)

    def _decode_open(self, batches: PlacedBatches) -> Iterator[pa.RecordBatch]:
        """Decode the batches of one chunk; a batch that is too large for it makes several."""
        filling = ChunkFilling(self._memory)
        most_rows = min(batches.records, batches.total // _LEAST_RECORD_BYTES)
        filling.begin(_even_rows(most_rows), min(batches.total, 2 * self._chunk_bytes))
        is_checked = self._checks_in_kernel and self._checks.crc
        yield from self._fill(filling, OpenBatches.in_window(batches), is_checked=is_checked)
        yield from filling.end()

    def _decode_compressed(self, batches: PlacedBatches) -> Iterator[pa.RecordBatch]:
        """Decompress some batches and decode them while they are in the cache, until they make a chunk."""
        view, window = batches.data.data, batches.data_end - batches.data.size
        begins, ends = (batches.places[STARTS] - window).tolist(), (batches.places[ENDS] - window).tolist()
        sizes, counts = batches.places[ENDS] - batches.places[STARTS], batches.record_counts()
        codecs = np.where(counts, batches.table.attributes[batches.rows] & CODEC_BITS, _EMPTY).tolist()
        filling = ChunkFilling(self._memory)
        contents: list[pa.Buffer] = []
        first = size = 0
        for i, (codec, begin, end) in enumerate(zip(codecs, begins, ends, strict=True)):
            try:
                content = self._records_of(batches, i, view[begin:end], codec)
            except CorruptRecordError:
                # An earlier batch may be broken too; then report that one.
                if contents:
                    self._begin(filling, size, sizes[first:i], counts[first:i], i - first)
                    yield from self._fill(filling, OpenBatches.decompressed(batches, first, contents))
                raise
            contents.append(content)
            size += content.size
            is_last = i + 1 == len(codecs)
            if size < _HOT_BYTES and not is_last:
                continue
            self._begin(filling, size, sizes[first:], counts[first:], i + 1 - first)
            yield from self._fill(filling, OpenBatches.decompressed(batches, first, contents))
            held = max(filling.record_bytes, filling.viewed_bytes // _MOST_VIEWED)
            if is_last or held >= self._chunk_bytes:
                yield from filling.end()
            contents, first, size = [], i + 1, 0

    def _begin(
        self, filling: ChunkFilling, size: int, compressed: NDArray[np.int64], counts: NDArray[np.int64], ready: int
    ) -> None:
        """Begin a chunk, if there is none, for batches of which the first `ready` ones decompressed to `size` bytes.

        The size of the others is estimated from that; if the chunk turns out too small, another follows.
        """
        if filling.is_begun:
            return
        all_bytes = int(compressed.sum()) * size // max(int(compressed[:ready].sum()), 1)
        most_bytes = min(min(max(all_bytes, size), max(self._chunk_bytes, size)) + _SPARE_BYTES, INT32_MAX)
        records = int(counts.sum())
        if all_bytes > most_bytes:
            records = max(records * most_bytes // all_bytes, int(counts[:ready].sum()))
        filling.begin(_even_rows(min(records, most_bytes // _LEAST_RECORD_BYTES)), most_bytes)

    def _records_of(self, batches: PlacedBatches, number: int, body: memoryview, codec: int) -> pa.Buffer:
        """Return the records of a batch from its `body`, which is compressed with `codec`."""
        most = self._checks.max_decompressed_bytes
        decompress_whole = WHOLE.get(codec)
        if decompress_whole and (whole := decompress_whole(body, most)) is not None:
            return pa.py_buffer(whole)
        if codec == _EMPTY or (codec == Compression.NONE and len(body) <= most):
            return pa.py_buffer(body)
        position = int(batches.table.position[batches.rows[number]])
        content = decompress(Compression(codec), body, max_bytes=most, source=self._source, source_position=position)
        return pa.py_buffer(content)

    def _fill(
        self, filling: ChunkFilling, opened: OpenBatches, *, is_checked: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Decode all of `opened`; yield each full chunk, and keep the last one unfinished.

        With `is_checked` the kernel compares checksums.
        """
        progress = filling.progress
        progress[: constants.ROWS] = 0
        addresses = [address_of(column) for column in opened.places]
        placed, first = opened.placed, opened.first
        while True:
            first_buffer = len(filling.viewed)
            if self._memory.has_value_views:
                filling.viewed += map(pa.py_buffer, opened.viewed)
            status = self._kernels.decode_batches(
                *addresses, opened.count, opened.data_end, int(is_checked), opened.view_base, first_buffer,
                self._bounds_address, *filling.arguments(),
            )  # fmt: skip
            if status > constants.FULL:
                self._raise_broken(
                    status, placed, first + int(progress[constants.BATCH]), int(progress[constants.RECORD])
                )
            if (
                progress[constants.STRANGE_HEADER_KEYS]
                and progress[constants.HEADER_KEY_BYTES] > INT32_MAX // _MOST_TEXT_BYTES
            ):
                reason = "its header keys, which are not UTF-8, are too long as text"
                raise CorruptRecordError(self._source, int(placed.table.position[placed.rows[first]]), reason)
            if status == constants.ALL_DONE:
                return
            rows, size = filling.capacity
            if progress[constants.ROWS] == rows and 2 * rows <= _MOST_ROWS:
                # The size was estimated, maybe from different batches: the next estimate is better.
                rows *= 2
            if progress[constants.ROWS]:
                yield from filling.end()
            else:
                rows, size = max(rows, 1), min(max(size, opened.size), INT32_MAX)
            filling.begin(rows, size)

    def _raise_broken(self, status: int, batches: PlacedBatches, number: int, before: int) -> NoReturn:
        """Raise the error for the record after `before` others in batch `number`."""
        row = batches.rows[number]
        position = int(batches.table.position[row])
        if status == constants.WRONG_CHECKSUM:
            start = position - batches.origin
            batch = batches.data.data[start : start + int(batches.table.size[row])]
            check_crc(batch, source=self._source, source_position=position)
        count = int(batches.table.record_count[row])
        record = min(before + 1, count)
        raise CorruptRecordError(self._source, position, f"record {record} of {count}: {constants.REASONS[status]}")


def _even_rows(records: int) -> int:
    """Return how many rows a chunk gets if chunks share `records` evenly: a small rest would have to be copied."""
    chunks = max(-(-records // _MOST_ROWS), 1)
    return -(-records // chunks)


def iterate_columns(
    path: Path,
    base_offset: int,
    columns: Sequence[str] | None = None,
    within: RecordRange = EVERYTHING,
    checks: Checks = STRICT,
    *,
    start_position: int = 0,
    value_views: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a `.log` file of any size, up to its present end.

    Zeros up to that end, as in a preallocated file, are not damage.

    With `value_views` values are not copied: record batches keep the whole windows of the file that they refer to.

    `start_position` (bytes) is the start of a batch, as in an offset index. Batches past the end of the offset range
    are not read, unless `checks` require it. Raises as iterate_segment and ColumnDecoder do.
    """
    decoder = ColumnDecoder(str(path), columns, within, checks, value_views=value_views)
    end_offset = _INT64_MAX if within.end_offset is None or checks.outside else within.end_offset
    windows = iterate_segment(
        path,
        base_offset,
        start_position=start_position,
        window_bytes=chunk_bytes_of(value_views=value_views),
        verify_crc=False,
        keep_windows=value_views,
        may_be_preallocated=True,
    )
    for window, table in windows:
        yield from decoder.decode(window, table)
        if table.last_offset[-1] + 1 >= end_offset:
            return
