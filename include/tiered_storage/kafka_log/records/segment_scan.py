"""Walks a segment's batches without decoding their records: headers as columns, checksums, order of offsets.

A window of whole batches is scanned at once, where it lies. A batch that a window cuts is carried over to the next by
whoever fills the windows: `iterate_segment` here does it for files.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from tiered_storage.errors import CorruptRecordError, UnsupportedMagicError
from tiered_storage.kafka_log.files.small_files import is_zero
from tiered_storage.kafka_log.kernels.batch_layout import BATCH_OVERHEAD, CRC_END, LOG_OVERHEAD
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.kafka_log.kernels.constants import HEADERS_SOUND, TABLE_FULL
from tiered_storage.kafka_log.kernels.machine_code import (
    BRIEF_BYTES,
    Kernels,
    address_of,
    has_checksum_instructions,
    load_brief_kernels,
    load_kernels,
)
from tiered_storage.kafka_log.records.batch_header import MAGIC_END, batch_size, check_crc, read_batch_header
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.regular_files import open_regular, open_unbuffered

__all__ = [
    "BatchTable",
    "SegmentScanner",
    "as_array",
    "check_checksums",
    "claimed_checksums",
    "is_whole_batch",
    "iterate_segment",
    "recover_valid_length",
    "scan_segment",
    "sound_part",
]

WINDOW_BYTES = 2 << 20
"""Large enough that a call of a kernel costs next to nothing, small enough for a CPU's cache, with the table."""
_ROWS_OF_EIGHT = 9
"""A table has room for so many batches where there would be eight if they were like those before."""
_FEWEST_GUESSED = 1000
"""Fewer are counted sooner than a table that is too large is cut."""


class SegmentScanner:
    """Scans the windows of one segment, each beginning where the batches of the one before it ended.

    Errors name `source` and the broken batch's place in it. Not for two threads at once.
    """

    def __init__(self, source: str, base_offset: int, *, start_position: int = 0, verify_crc: bool = True) -> None:
        """Begin `start_position` bytes behind the start of the segment `source`, between two batches.

        No batch may reach below `base_offset`, nor further above it than an index can say (2**31 - 1).
        """
        self._kernels, self._brief_kernels = load_kernels(), load_brief_kernels()
        self._source = source
        self._base_offset = base_offset
        self._verify_crc = verify_crc
        self._position = start_position
        self._next_offset = base_offset
        self._result = np.empty(2, np.int64)
        self._result_address = address_of(self._result)
        self._recent = (0, 0)
        """Batches and their bytes; those of a window count half as much with each that follows."""

    @property
    def position(self) -> int:
        """Where in the segment the next window has to begin, in bytes."""
        return self._position

    @property
    def next_offset(self) -> int:
        """The lowest offset that the next batch may have."""
        return self._next_offset

    def feed(self, window: memoryview | NDArray[np.uint8]) -> tuple[BatchTable, int]:
        """Scan the whole batches that `window` begins with; return their table and how many bytes they take.

        What is left, less than a batch, has to begin the next window. Nothing of `window` is copied or kept.
        Raises UnsupportedMagicError or CorruptRecordError for the first batch that is broken: its `position` is if
        the sound part of the segment ends.
        """
        data = as_array(window)
        table, consumed, verdict = self._read_headers(data)
        if self._verify_crc:
            check_checksums(data, self._position, table.position, table.size, source=self._source)
        next_offset = int(table.last_offset[-1]) + 1 if len(table) else self._next_offset
        if verdict != HEADERS_SOUND:
            self._raise_broken(data.data[consumed:], self._position + consumed, next_offset)
        if data.size - consumed >= MAGIC_END:
            batch_size(data.data, consumed, source=self._source, source_position=self._position)
        self._position += consumed
        self._next_offset = next_offset
        return table, consumed

    def needed(self, window: memoryview | NDArray[np.uint8]) -> int:
        """Return how many bytes the next window must have to hold one batch, of which `window` shows the first.

        That is what the batch's header claims: compare it with what is left of the segment before allocating it.
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

    def _read_headers(self, data: NDArray[np.uint8]) -> tuple[BatchTable, int, int]:
        """Return the table of the sound batches that `data` begins with, their bytes, and what ends them.

        How many rows it needs is guessed by what came before: to count the batches takes half as long as to read them.
        """
        kernels = self._brief_kernels if data.size <= BRIEF_BYTES else self._kernels
        window = address_of(data)
        rows = self._guess(data.size) or kernels.count_batches(window, data.size)
        table, verdict = self._fill_table(kernels, window, data.size, rows)
        if verdict == TABLE_FULL:
            table, verdict = self._fill_table(kernels, window, data.size, kernels.count_batches(window, data.size))
        rows, consumed = self._result.tolist()
        self._recent = (self._recent[0] // 2 + rows, self._recent[1] // 2 + consumed)
        return table.head(rows), consumed, verdict

    def _guess(self, size: int) -> int:
        """Return how many batches `size` bytes may have; 0 where they are better counted.

        A large window is mostly one large batch, which those before say nothing of.
        """
        batches, consumed = self._recent
        if size > BRIEF_BYTES or not batches:
            return 0
        rows = size * batches * _ROWS_OF_EIGHT // (8 * consumed)
        return rows if rows >= _FEWEST_GUESSED else 0

    def _fill_table(self, kernels: Kernels, window: int, size: int, rows: int) -> tuple[BatchTable, int]:
        """Return a table of `rows` rows, filled as far as `_result` says, and what read_headers says of it."""
        table = BatchTable.allocate(rows)
        verdict = kernels.read_headers(
            window, size, self._position, self._base_offset, self._next_offset, address_of(table.base_offset), rows,
            self._result_address,
        )  # fmt: skip
        return table, verdict

    def _raise_broken(self, rest: memoryview, position: int, next_offset: int) -> NoReturn:
        """Say what is wrong with the whole batch that `rest` begins with: a wrong checksum explains all else."""
        size = batch_size(rest, source=self._source, source_position=position)
        if self._verify_crc:
            check_crc(rest[:size], source=self._source, source_position=position)
        header = read_batch_header(rest, source=self._source, source_position=position)
        if header.base_offset < next_offset:
            reason = f"the batch starts at offset {header.base_offset}; offsets rise, so from {next_offset} on here"
        else:
            reason = f"offset {header.last_offset} is too far from the segment's base offset {self._base_offset}"
        raise CorruptRecordError(self._source, position, reason)


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
    """Yield the batches of a `.log` file, to the end that it has now: their bytes and their table.

    Begins `start_position` bytes behind its start, between two batches, and ends, with `end_position`, as if the file
    ended there. With `may_be_preallocated` zeros up to there, and nothing else, are the end of the batches.

    The bytes are whole batches, read-only, and valid until the next step: they lie in a buffer of `window_bytes` that
    is used again, and grows only for a batch that is larger. With `keep_windows` each window has a buffer of its own,
    and stays valid for as long as somebody keeps it. Raises as SegmentScanner.feed does, behind the last batch
    that is sound, and CorruptRecordError if the file ends inside a batch, or in zeros that are not asked for.
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


def _scan_windows(
    scanner: SegmentScanner,
    file: FileIO,
    unread: int,
    window_bytes: int,
    keep_windows: bool,
) -> Iterator[tuple[memoryview, BatchTable]]:
    """Yield what the next `unread` bytes of `file` hold; all else is as iterate_segment says."""
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


def recover_valid_length(path: Path, base_offset: int, *, window_bytes: int = WINDOW_BYTES) -> int:
    """Return how many bytes of a `.log` file are sound batches, up to the first that is broken or cut, or to the end.

    Zeros of a preallocated file and what a crash has torn lie behind that. A batch that is whole, by its own checksum,
    is no crash's work: to cut it off would lose what somebody wrote. Then this raises what the scan has raised:
    UnsupportedMagicError at one of magic 0 or 1, CorruptRecordError at one whose header nobody can follow.
    """
    return sound_part(path, base_offset, window_bytes=window_bytes)[0]


def sound_part(path: Path, base_offset: int, *, window_bytes: int = WINDOW_BYTES) -> tuple[int, int]:
    """Return what recover_valid_length does, and the offset behind the last batch up to there; raises as it does."""
    length, next_offset = 0, base_offset
    try:
        for batches, table in iterate_segment(path, base_offset, window_bytes=window_bytes):
            length += len(batches)
            next_offset = int(table.last_offset[-1]) + 1
    except (CorruptRecordError, UnsupportedMagicError) as error:
        if is_whole_batch(path, error.position):
            raise
        return error.position, next_offset
    return length, next_offset


def as_array(window: memoryview | NDArray[np.uint8]) -> NDArray[np.uint8]:
    """View `window` as bytes, read-only, so that the kernels are compiled for one kind of array."""
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
    """Check the CRC of the batches at `positions` of `source`, of which `data` holds what begins at `data_position`.

    Both arrays are contiguous. Raises CorruptRecordError for the first one that is wrong. Where the CPU
    has instructions for it, compiled code finds that one.
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
    """Return the CRC that the header of each batch in `table` has; `window` holds the bytes of all of them."""
    if not len(table):
        return np.empty(0, np.uint32)
    places = (table.position - table.position[0])[:, np.newaxis] + np.arange(MAGIC_END, CRC_END)
    checksums: NDArray[np.uint32] = as_array(window)[places].view(">u4")[:, 0].astype(np.uint32)
    return checksums


def _larger_buffer(scanner: SegmentScanner, available: int, batch_start: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a buffer for the whole batch that `batch_start` begins, if the `available` bytes of the file hold it."""
    needed = scanner.needed(batch_start)
    if needed > available:
        scanner.finish(available)
    return _buffer(needed)


def _buffer(size: int) -> NDArray[np.uint8]:
    """Return memory of Arrow's: unlike numpy's it comes back warm when a window is given up, whoever kept it."""
    import pyarrow as pa  # noqa: PLC0415 - headers alone are read without it

    return np.frombuffer(pa.allocate_buffer(size), np.uint8)


def is_whole_batch(path: Path, position: int) -> bool:
    """Return whether a batch of any magic begins at `position`, ends in the file, and has its header's checksum."""
    with open_regular(path) as file:
        file.seek(position)
        head = file.read(CRC_END)
        if len(head) < CRC_END:
            return False
        end = position + LOG_OVERHEAD + int.from_bytes(head[8:LOG_OVERHEAD], "big", signed=True)
        magic = head[MAGIC_END - 1]
        older = magic in (0, 1)
        begin = position + (MAGIC_END - 1 if older else CRC_END)
        if not begin < end <= os.fstat(file.fileno()).st_size:
            return False
        claimed = head[LOG_OVERHEAD : MAGIC_END - 1] if older else head[MAGIC_END:CRC_END]
        file.seek(begin)
        checksum = 0
        while begin < end:
            piece = file.read(min(WINDOW_BYTES, end - begin))
            checksum = zlib.crc32(piece, checksum) if older else crc32c(piece, checksum)
            begin += len(piece)
    return checksum == int.from_bytes(claimed, "big")
