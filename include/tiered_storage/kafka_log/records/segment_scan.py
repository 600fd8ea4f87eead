"""Scan a segment's batches without decoding their records: headers as columns, checksums, order of offsets.

A window of whole batches is scanned in place. A batch that is cut by the window's end is carried over to the next
window by the one that fills the windows: here `iterate_segment`, for files.

Compiled code reads the headers of batches; legacy_scan.py scans messages of magic 0 and 1 between them.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from tiered_storage.errors import CorruptRecordError
from tiered_storage.kafka_log.files.small_files import is_zero
from tiered_storage.kafka_log.kernels.constants import (
    BATCH_OVERHEAD,
    CRC_END,
    HEADERS_SOUND,
    LOG_OVERHEAD,
    MAGIC,
    TABLE_FULL,
)
from tiered_storage.kafka_log.kernels.machine_code import (
    BRIEF_BYTES,
    Kernels,
    address_of,
    has_checksum_instructions,
    load_brief_kernels,
    load_kernels,
)
from tiered_storage.kafka_log.records.batch_header import (
    MAGIC_END,
    batch_size,
    check_crc,
    read_batch_header,
)
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.kafka_log.records.legacy_scan import MessageScan, begins_message, raise_misplaced
from tiered_storage.regular_files import open_unbuffered

__all__ = [
    "BatchTable",
    "SegmentScanner",
    "as_array",
    "check_checksums",
    "claimed_checksums",
    "iterate_mapped_segment",
    "iterate_segment",
    "scan_segment",
]

WINDOW_BYTES = 2 << 20
"""Large enough that a kernel call costs next to nothing, small enough for a CPU's cache, with the table."""
_ROWS_OF_EIGHT = 9
"""How many rows to allocate for every eight batches expected from the previous windows."""
_FEWEST_GUESSED = 1000
"""For fewer batches, counting is faster than shrinking a table that is too large."""


class SegmentScanner:
    """Scans the windows of one segment, each beginning where the batches of the one before it ended.

    Errors name `source` and the position of the corrupt batch. Not thread-safe.
    """

    def __init__(self, source: str, base_offset: int, *, start_position: int = 0, verify_crc: bool = True) -> None:
        """Begin `start_position` bytes after the start of the segment `source`, between two batches.

        No batch may reach below `base_offset`, nor further above it than an index can express (2**31 - 1).
        """
        self._kernels, self._brief_kernels = load_kernels(), load_brief_kernels()
        self._source = source
        self._messages = MessageScan(source, base_offset)
        self._base_offset = base_offset
        self._verify_crc = verify_crc
        self._position = start_position
        self._next_offset = base_offset
        self._result = np.empty(2, np.int64)
        self._result_address = address_of(self._result)
        self._recent = (0, 0)
        """The batches and bytes so far; each window halves the weight of those before it."""

    @property
    def position(self) -> int:
        """The position in the segment where the next window must begin, in bytes."""
        return self._position

    @property
    def next_offset(self) -> int:
        """The lowest offset that the next batch may have."""
        return self._next_offset

    def feed(self, window: memoryview | NDArray[np.uint8]) -> tuple[BatchTable, int]:
        """Scan the whole batches at the beginning of `window`; return their table and their size in bytes.

        The rest, less than a batch, must begin the next window. Nothing of `window` is copied or kept. Raises
        UnsupportedMagicError or CorruptRecordError for the first corrupt batch: the sound part of the segment ends at
        its `position`.
        """
        data = as_array(window)
        table, consumed, next_offset = self._feed_batches(data, self._position, self._next_offset)
        if begins_message(data, consumed):
            table, consumed, next_offset = self._feed_mixed(data, table, consumed, next_offset)
        self._position += consumed
        self._next_offset = next_offset
        return table, consumed

    def needed(self, window: memoryview | NDArray[np.uint8]) -> int:
        """Return how many bytes the next window must have to hold one batch, which begins `window`.

        That is what the batch's header claims: compare it with the rest of the segment before allocating it.
        """
        if len(window) < MAGIC_END:
            return MAGIC_END
        return batch_size(as_array(window).data, source=self._source, source_position=self._position)

    def finish(self, left: int) -> None:
        """End the scan with `left` bytes of the segment not consumed.

        Raises CorruptRecordError if there are any: the segment ends inside a batch.
        """
        if left:
            reason = f"truncated: the last {left} bytes are the beginning of a batch"
            raise CorruptRecordError(self._source, self._position, reason)

    def _feed_batches(self, data: NDArray[np.uint8], position: int, next_offset: int) -> tuple[BatchTable, int, int]:
        """Return the table of the batches of magic 2 that `data` begins with, their size, and the offset after them.

        `data` lies at `position` of the segment, and `next_offset` is the lowest that may follow. Raises as `feed`.
        """
        table, consumed, status = self._read_headers(data, position, next_offset)
        if self._verify_crc:
            check_checksums(data, position, table.position, table.size, source=self._source)
        if len(table):
            next_offset = int(table.last_offset[-1]) + 1
        if status != HEADERS_SOUND and not begins_message(data, consumed):
            self._raise_broken(data.data[consumed:], position + consumed, next_offset)
        if data.size - consumed >= MAGIC_END:
            batch_size(data.data, consumed, source=self._source, source_position=position)
        return table, consumed, next_offset

    def _feed_mixed(
        self, data: NDArray[np.uint8], table: BatchTable, consumed: int, next_offset: int
    ) -> tuple[BatchTable, int, int]:
        """Continue after `consumed` bytes of `data`, whose batches are in `table`, where a message begins."""
        tables = [table]
        while begins_message(data, consumed):
            table, size = self._messages.scan(data, consumed, self._position, next_offset)
            if not size:
                break
            tables.append(table)
            consumed, next_offset = consumed + size, int(table.last_offset[-1]) + 1
            table, size, next_offset = self._feed_batches(data[consumed:], self._position + consumed, next_offset)
            tables.append(table)
            consumed += size
        return BatchTable.concatenate(tables), consumed, next_offset

    def _read_headers(self, data: NDArray[np.uint8], position: int, next_offset: int) -> tuple[BatchTable, int, int]:
        """Return the table of the sound batches at the beginning of `data`, their size, and what ends them.

        The number of rows is estimated from earlier windows: counting the batches takes half as long as reading them.
        """
        kernels = self._brief_kernels if data.size <= BRIEF_BYTES else self._kernels
        window = address_of(data)
        rows = self._guess(data.size) or kernels.count_batches(window, data.size)
        at = position, next_offset
        table, status = self._fill_table(kernels, window, data.size, at, rows)
        if status == TABLE_FULL:
            table, status = self._fill_table(kernels, window, data.size, at, kernels.count_batches(window, data.size))
        rows, consumed = self._result.tolist()
        self._recent = (self._recent[0] // 2 + rows, self._recent[1] // 2 + consumed)
        return table.head(rows), consumed, status

    def _guess(self, size: int) -> int:
        """Return the estimated number of batches in `size` bytes; 0 if counting them is better.

        A large window is mostly one large batch, for which earlier windows give no estimate.
        """
        batches, consumed = self._recent
        if size > BRIEF_BYTES or not batches:
            return 0
        rows = size * batches * _ROWS_OF_EIGHT // (8 * consumed)
        return rows if rows >= _FEWEST_GUESSED else 0

    def _fill_table(
        self, kernels: Kernels, window: int, size: int, at: tuple[int, int], rows: int
    ) -> tuple[BatchTable, int]:
        """Return a table of `rows` rows, filled up to the count in `_result`, and the status of read_headers.

        `at` has the window's position in the segment, and the lowest offset that may be in it.
        """
        table = BatchTable.allocate(rows)
        position, next_offset = at
        status = kernels.read_headers(
            window, size, position, self._base_offset, next_offset, address_of(table.base_offset), rows,
            self._result_address,
        )  # fmt: skip
        return table, status

    def _raise_broken(self, rest: memoryview, position: int, next_offset: int) -> NoReturn:
        """Raise the error for the whole batch at the start of `rest`; a wrong checksum explains all other errors."""
        size = batch_size(rest, source=self._source, source_position=position)
        if self._verify_crc:
            check_crc(rest[:size], source=self._source, source_position=position)
        header = read_batch_header(rest, source=self._source, source_position=position)
        raise_misplaced(header, self._source, position, self._base_offset, next_offset)


def iterate_segment(
    path: Path,
    base_offset: int,
    *,
    start_position: int = 0,
    end_position: int | None = None,
    window_bytes: int = WINDOW_BYTES,
    verify_crc: bool = True,
    keep_windows: bool = False,
    may_be_preallocated: bool = False,
) -> Iterator[tuple[memoryview, BatchTable]]:
    """Yield the batches of a `.log` file, up to its present end: their bytes and their table.

    Begins `start_position` bytes after its start, between two batches; with `end_position`, ends as if the file ended
    there. With `may_be_preallocated`, nothing but zeros up to there is a valid end of the batches.

    The bytes are whole batches, read-only, and valid until the next step: the buffer of `window_bytes` is reused, and
    grows only for a larger batch. With `keep_windows` each window has a buffer of its own, and stays valid as long as
    somebody keeps it. Raises as SegmentScanner.feed does, after the last sound batch, and CorruptRecordError if the
    file ends inside a batch, or in unexpected zeros.
    """
    scanner = SegmentScanner(str(path), base_offset, start_position=start_position, verify_crc=verify_crc)
    with open_unbuffered(path) as file:
        size = os.fstat(file.fileno()).st_size
        end = size if end_position is None else min(size, end_position)
        file.seek(start_position)
        try:
            yield from _scan_windows(scanner, file, max(0, end - start_position), window_bytes, keep_windows)
        except CorruptRecordError as error:
            if not (may_be_preallocated and is_zero(file, error.position, end)):
                raise


def iterate_mapped_segment(
    path: Path, base_offset: int, *, start_position: int = 0, window_bytes: int = WINDOW_BYTES, verify_crc: bool = True
) -> Iterator[tuple[memoryview, BatchTable]]:
    """Yield as iterate_segment, but each window is a mapped part of the file: no byte is copied.

    Only for a file that no process shortens meanwhile: reading past its new end would kill this process.
    """
    scanner = SegmentScanner(str(path), base_offset, start_position=start_position, verify_crc=verify_crc)
    with open_unbuffered(path) as file:
        size = os.fstat(file.fileno()).st_size
        at, wanted = start_position, window_bytes
        while left := max(0, size - at):
            window = _mapped(file, at, min(max(wanted, MAGIC_END), left))
            try:
                table, consumed = scanner.feed(window)
            except CorruptRecordError as error:
                if sound := error.position - at:
                    table, consumed = scanner.feed(window[:sound])
                    yield window.data[:consumed], table
                raise
            if consumed:
                yield window.data[:consumed], table
                at, wanted = at + consumed, window_bytes
            elif (wanted := scanner.needed(window)) > left:
                scanner.finish(left)


def _mapped(file: FileIO, position: int, size: int) -> NDArray[np.uint8]:
    """Return `size` bytes of `file` as a map, which is there as long as somebody keeps it."""
    before = position % mmap.ALLOCATIONGRANULARITY
    part = mmap.mmap(file.fileno(), before + size, access=mmap.ACCESS_READ, offset=position - before)
    return np.frombuffer(part, np.uint8, offset=before)


def _scan_windows(
    scanner: SegmentScanner,
    file: FileIO,
    unread: int,
    window_bytes: int,
    keep_windows: bool,
) -> Iterator[tuple[memoryview, BatchTable]]:
    """Yield the batches in the next `unread` bytes of `file`; otherwise as iterate_segment."""
    buffer = _buffer(min(max(window_bytes, BATCH_OVERHEAD), unread))
    filled = 0
    while unread and (count := file.readinto(buffer.data[filled : filled + unread])):
        unread -= count
        filled += count
        try:
            table, consumed = scanner.feed(buffer[:filled])
        except CorruptRecordError as error:
            if sound := error.position - scanner.position:
                table, _ = scanner.feed(buffer[:sound])
                yield buffer.data[:sound].toreadonly(), table
            raise
        if consumed:
            yield buffer.data[:consumed].toreadonly(), table
        filled -= consumed
        rest = buffer[consumed : consumed + filled]
        if filled == buffer.size:
            buffer = _larger_buffer(scanner, filled + unread, rest)
        elif consumed and keep_windows:
            buffer = _buffer(buffer.size)
        buffer[:filled] = rest
    scanner.finish(filled + unread)


def scan_segment(
    path: Path, base_offset: int, *, window_bytes: int = WINDOW_BYTES, verify_crc: bool = True
) -> BatchTable:
    """Return the table of all batches of a `.log` file. Raises as iterate_segment does."""
    batches = iterate_segment(path, base_offset, window_bytes=window_bytes, verify_crc=verify_crc)
    return BatchTable.concatenate(table for _, table in batches)


def as_array(window: memoryview | NDArray[np.uint8]) -> NDArray[np.uint8]:
    """View `window` as read-only bytes, so that the kernels are compiled for one kind of array."""
    data = np.frombuffer(window, np.uint8)
    data.flags.writeable = False
    return data


def check_checksums(
    data: NDArray[np.uint8],
    data_position: int,
    positions: NDArray[np.int64],
    sizes: NDArray[np.int64],
    *,
    source: str,
) -> None:
    """Check the CRC of the batches at `positions` of `source`; `data` holds its bytes from `data_position` on.

    Both arrays are contiguous. Raises CorruptRecordError for the first wrong one. Compiled code finds it if the CPU has
    instructions for it.
    """
    suspect = 0
    if has_checksum_instructions():
        places = (address_of(positions), address_of(sizes), positions.size)
        suspect = load_kernels().first_mismatch(address_of(data), data.size, data_position, *places)
    if suspect < 0:
        return
    view = data.data
    for position, size in zip(positions[suspect:].tolist(), sizes[suspect:].tolist(), strict=True):
        at = position - data_position
        check_crc(view[at : at + size], source=source, source_position=position)


def claimed_checksums(window: memoryview, table: BatchTable) -> NDArray[np.uint32]:
    """Return the CRC in the header of each batch in `table`; `window` holds the bytes of all of them."""
    if not len(table):
        return np.empty(0, np.uint32)
    data, begins = as_array(window), table.position - table.position[0]
    crc_at = np.where(data[begins + MAGIC_END - 1] == MAGIC, MAGIC_END, LOG_OVERHEAD)
    places = (begins + crc_at)[:, np.newaxis] + np.arange(CRC_END - MAGIC_END)
    checksums: NDArray[np.uint32] = data[places].view(">u4")[:, 0].astype(np.uint32)
    return checksums


def _larger_buffer(scanner: SegmentScanner, available: int, batch_start: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a buffer for the whole batch that `batch_start` begins, if the `available` bytes of the file hold it."""
    needed = scanner.needed(batch_start)
    if needed > available:
        scanner.finish(available)
    return _buffer(needed)


def _buffer(size: int) -> NDArray[np.uint8]:
    """Return Arrow memory: unlike numpy's it is reused, still in the cache, when a window is freed."""
    import pyarrow as pa  # noqa: PLC0415 - headers alone are read without it

    return np.frombuffer(pa.allocate_buffer(size), np.uint8)
