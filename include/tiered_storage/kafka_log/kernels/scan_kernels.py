"""The compiled loops over a window of batches; batch_header.py has the layout of a batch header.

All arguments and results are 64-bit integers; memory is given by its address. A kernel never reads outside the window,
whatever sizes the headers hold. `first_mismatch` does not check positions: its caller must pass those that
`read_headers` found. machine_code.py loads the kernels.
"""

from __future__ import annotations

import numpy as np

from tiered_storage.kafka_log.kernels.checksum_kernels import IN_THREES, are_crc32c_of_three, crc32c_of
from tiered_storage.kafka_log.kernels.constants import (
    BATCH_OVERHEAD,
    BROKEN_HEADER,
    BROKEN_OFFSETS,
    CRC_END,
    HEADERS_SOUND,
    HIGHEST_OFFSET,
    INT32_MAX,
    LOG_OVERHEAD,
    MAGIC,
    TABLE_FULL,
)
from tiered_storage.kafka_log.kernels.kernel_memory import (
    compiled,
    inlined,
    load_byte,
    load_int16,
    load_int32,
    load_int64,
    load_word,
    prefetch,
    store,
)

_AHEAD = 4096
"""How many bytes ahead of a batch to prefetch: they are in the cache when the scan reaches them."""


@inlined
def _whole_batch(at: int, end: int) -> int:
    """Return the size of the batch at `at` if it is whole, by that size alone, before `end`; otherwise 0.

    Prefetches memory some way after it: both cache lines in which a header may lie.
    """
    if end - at < BATCH_OVERHEAD:
        return 0
    size = load_int32(at + 8) + LOG_OVERHEAD
    if size < BATCH_OVERHEAD or size > end - at:
        return 0
    prefetch(at + _AHEAD)
    prefetch(at + _AHEAD + 64)
    return size


def count_batches(window: int, size: int) -> int:
    """Return how many whole batches, by their sizes alone, lie one after the other in the `size` bytes at `window`."""
    end = window + size
    count = 0
    at = window
    batch = _whole_batch(at, end)
    while batch:
        count += 1
        at += batch
        batch = _whole_batch(at, end)
    return count


def read_headers(
    window: int, window_size: int, window_position: int, base_offset: int, next_offset: int, table: int, rows: int,
    result: int,
) -> int:  # fmt: skip
    """Fill a table from the whole batches that the `window_size` bytes at `window` begin with; say why that ended.

    `table` is the block of memory that BatchTable.allocate has made for `rows` rows. HEADERS_SOUND: there are no more
    whole batches. TABLE_FULL: there are, but no more rows. Otherwise the next batch is broken. `window_position` is the
    window's place in its file, `base_offset` the segment's, `next_offset` the lowest that the first batch may have.
    `result` takes the number of rows that are filled and their bytes.
    """
    base_offsets, last_offsets, positions, sizes = table, table + 8 * rows, table + 16 * rows, table + 24 * rows
    base_timestamps, max_timestamps, producer_ids = table + 32 * rows, table + 40 * rows, table + 48 * rows
    leader_epochs, record_counts, base_sequences = table + 56 * rows, table + 60 * rows, table + 64 * rows
    attributes, producer_epochs = table + 68 * rows, table + 70 * rows
    end = window + window_size
    at = window
    lowest = next_offset
    status = HEADERS_SOUND
    row = 0
    size = _whole_batch(at, end)
    while size:
        if row == rows:
            status = TABLE_FULL
            break
        first = load_int64(at)
        delta = load_int32(at + 23)
        flags = load_int16(at + 21)
        count = load_int32(at + 57)
        if (
            load_byte(at + 16) != MAGIC or first < 0 or delta < 0 or count < 0 or count > delta + 1 or flags & 7 > 4
            or first > HIGHEST_OFFSET - delta
        ):  # fmt: skip
            status = BROKEN_HEADER
            break
        if first < lowest or first - base_offset > INT32_MAX - delta:
            status = BROKEN_OFFSETS
            break
        store(base_offsets + 8 * row, np.int64(first))
        store(last_offsets + 8 * row, np.int64(first + delta))
        store(positions + 8 * row, np.int64(window_position + at - window))
        store(sizes + 8 * row, np.int64(size))
        store(base_timestamps + 8 * row, np.int64(load_int64(at + 27)))
        store(max_timestamps + 8 * row, np.int64(load_int64(at + 35)))
        store(leader_epochs + 4 * row, np.int32(load_int32(at + 12)))
        store(attributes + 2 * row, np.int16(flags))
        store(record_counts + 4 * row, np.int32(count))
        store(producer_ids + 8 * row, np.int64(load_int64(at + 43)))
        store(producer_epochs + 2 * row, np.int16(load_int16(at + 51)))
        store(base_sequences + 4 * row, np.int32(load_int32(at + 53)))
        lowest = first + delta + 1
        at += size
        row += 1
        size = _whole_batch(at, end)
    store(result, np.int64(row))
    store(result + 8, np.int64(at - window))
    return status


@compiled
def is_sound(batch: int, end: int, data_end: int) -> bool:
    """Return whether the batch from `batch` to `end` has the checksum that its header says; fetch what follows it."""
    checked = batch + CRC_END
    return crc32c_of(checked, end - checked, data_end) == load_int32(checked - 4) & 0xFFFFFFFF


def first_mismatch(window: int, size: int, window_position: int, positions: int, sizes: int, rows: int) -> int:
    """Return the row of the first batch whose bytes do not have the checksum that its header says, or -1.

    `positions` and `sizes` are columns of a table, `rows` long, of batches that lie in the window. Only for a CPU that
    has_checksum_instructions.
    """
    row = 0
    while row < rows:
        if rows - row >= 3:
            first, first_end = _checked_of(row, window - window_position, positions, sizes)
            second, second_end = _checked_of(row + 1, window - window_position, positions, sizes)
            third, third_end = _checked_of(row + 2, window - window_position, positions, sizes)
            if max(first_end - first, second_end - second, third_end - third) < IN_THREES and are_crc32c_of_three(
                first, first_end, second, second_end, third, third_end, window + size
            ):
                row += 3
                continue
        batch = window + load_word(positions + 8 * row) - window_position
        if not is_sound(batch, batch + load_word(sizes + 8 * row), window + size):
            return row
        row += 1
    return -1


@inlined
def _checked_of(row: int, origin: int, positions: int, sizes: int) -> tuple[int, int]:
    """Return the addresses between which a row's batch is covered by its checksum."""
    batch = origin + load_word(positions + 8 * row)
    return batch + CRC_END, batch + load_word(sizes + 8 * row)
