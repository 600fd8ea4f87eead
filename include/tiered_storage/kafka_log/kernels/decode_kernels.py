"""The compiled loop over the records of many batches; record.py has the layout of a record.

It checks every length and count against the available bytes before it uses them. It fills one slab of memory with the
columns of a chunk, and beside it the data that grow by the byte: keys, values and headers. All arguments and results
are 64-bit integers; memory is given by its address, or 0 for a column that is not wanted.

`progress` carries the loop from one call to the next: it stops before a record that may not fit its buffers, continues
there with the next chunk, and continues in the same chunk with further batches. machine_code.py loads the kernels.
"""

from __future__ import annotations

import numpy as np

from tiered_storage.kafka_log.kernels import constants
from tiered_storage.kafka_log.kernels.checksum_kernels import fetch_ahead
from tiered_storage.kafka_log.kernels.constants import (
    APPEND_TIME_BIT,
    BATCH_OVERHEAD,
    CODEC_BITS,
    CONTROL_BIT,
    INT32_MAX,
    TRANSACTIONAL_BIT,
)
from tiered_storage.kafka_log.kernels.kernel_memory import (
    copy_bytes,
    fill_bits,
    inlined,
    load_half,
    load_int16,
    load_int32,
    load_int64,
    load_word,
    put_bit,
    store,
)
from tiered_storage.kafka_log.kernels.record_kernels import read_fields, read_record_headers, read_varint
from tiered_storage.kafka_log.kernels.scan_kernels import is_sound

_LONG_RECORD = 256
"""For longer records, memory some way ahead is prefetched here; for shorter ones the checksum loop does it."""


@inlined
def _part(places: int, part: int) -> int:
    return load_word(places + 8 * part)


@inlined
def _note(progress: int, what: int, number: int) -> None:
    store(progress + 8 * what, np.int64(number))


@inlined
def _noted(progress: int, what: int) -> int:
    return load_word(progress + 8 * what)


@inlined
def _put_view(view: int, source: int, size: int, buffer: int, offset: int) -> None:
    """Write Arrow's view of `size` bytes (-1: null) at `source`: short values inline, long ones by reference.

    0  size     int32
    4  bytes    12, zeros after them      or: 4  the first bytes   4
                                               8  number of buffer  int32
                                              12  offset in it      int32
    """
    if size > 12:
        store(view, np.int32(size))
        store(view + 4, np.uint32(load_half(source)))
        store(view + 8, np.int32(buffer))
        store(view + 12, np.int32(offset))
        return
    store(view, np.int64(max(size, 0)))
    store(view + 8, np.int64(0))
    copy_bytes(view + 4, source, max(size, 0))


def place_batches(
    window: int, size: int, window_position: int, positions: int, sizes: int, rows: int, count: int, places: int,
    totals: int,
) -> int:  # fmt: skip
    """Write the addresses of `count` batches' headers, of their records and of their ends to `places`, `count` each.

    Batch i is row rows[i] of a table whose columns of positions and sizes are given; it must lie in the window of
    `size` bytes. Returns the number of the first batch that does not, or -1. `totals` gets the bytes of records, those
    of the largest batch, how many records there can be, and how many batches with records are compressed.
    """
    total = largest = records = compressed = 0
    for i in range(count):
        row = load_word(rows + 8 * i)
        start, length = load_word(positions + 8 * row) - window_position, load_word(sizes + 8 * row)
        if start < 0 or start > size or length < BATCH_OVERHEAD or length > size - start:
            return i
        header = window + start
        store(places + 8 * i, np.int64(header))
        store(places + 8 * (count + i), np.int64(header + BATCH_OVERHEAD))
        store(places + 8 * (count + count + i), np.int64(header + length))
        body, claimed = length - BATCH_OVERHEAD, load_int32(header + 57)
        compressed += claimed > 0 and load_int16(header + 21) & CODEC_BITS != 0
        total += body
        records += max(claimed, 0)
        largest = max(largest, body)
    store(totals, np.int64(total))
    store(totals + 8, np.int64(largest))
    store(totals + 16, np.int64(records))
    store(totals + 24, np.int64(compressed))
    return -1


def decode_batches(  # noqa: PLR0912, PLR0915 -- one loop: what it holds in registers would have to be passed on
    headers: int, starts: int, ends: int, batches: int, data_end: int, is_checked: int,
    view_base: int, first_buffer: int, bounds: int, places: int, most_rows: int, most_bytes: int, progress: int,
) -> int:  # fmt: skip
    """Decode records into a chunk until the batches or the capacity (rows; bytes of records) end; return the status.

    The header of batch i is at headers[i]; its records, uncompressed, are from starts[i] up to ends[i]. The caller
    vouches for these addresses. `bounds`: the least and greatest offset, then timestamp, to keep, and the attributes of
    batches to drop. `places` has the address of every part of the chunk; those that grow by the byte have room for the
    capacity. With `is_checked`, which requires has_checksum_instructions, the checksum of each batch is compared; its
    header must lie before its records then. Memory before `data_end` may be prefetched.

    If values are returned as views, they are in buffer `first_buffer`, which begins at `view_base`; or, if that is 0,
    in buffer `first_buffer` + i, which begins at starts[i].
    """
    offsets, timestamps = _part(places, constants.OFFSETS), _part(places, constants.TIMESTAMPS)
    kinds, create_times = _part(places, constants.TIMESTAMP_TYPES), _part(places, constants.CREATE_TIMES)
    append_times, append_validity = _part(places, constants.APPEND_TIMES), _part(places, constants.APPEND_TIME_VALIDITY)
    key_ends, key_validity = _part(places, constants.KEY_ENDS), _part(places, constants.KEY_VALIDITY)
    value_ends, value_validity = _part(places, constants.VALUE_ENDS), _part(places, constants.VALUE_VALIDITY)
    value_views = _part(places, constants.VALUE_VIEWS)
    row_headers, epochs = _part(places, constants.HEADER_ENDS), _part(places, constants.LEADER_EPOCHS)
    ids, id_epochs = _part(places, constants.PRODUCER_IDS), _part(places, constants.PRODUCER_EPOCHS)
    sequences, transactional = _part(places, constants.SEQUENCES), _part(places, constants.TRANSACTIONAL)
    control = _part(places, constants.CONTROL)
    keys, values = _part(places, constants.KEYS), _part(places, constants.VALUES)
    all_headers = (
        _part(places, constants.HEADER_KEYS), _part(places, constants.HEADER_KEY_ENDS),
        _part(places, constants.HEADER_VALUES),
        _part(places, constants.HEADER_VALUE_ENDS), _part(places, constants.HEADER_VALUE_VALIDITY),
    )  # fmt: skip
    no_headers = (0, 0, 0, 0, 0)
    row, used = _noted(progress, constants.ROWS), _noted(progress, constants.RECORD_BYTES)
    key_bytes, value_bytes = _noted(progress, constants.KEY_BYTES), _noted(progress, constants.VALUE_BYTES)
    key_nulls, value_nulls = _noted(progress, constants.KEY_NULLS), _noted(progress, constants.VALUE_NULLS)
    used_headers = (
        _noted(progress, constants.HEADERS), _noted(progress, constants.HEADER_KEY_BYTES),
        _noted(progress, constants.HEADER_VALUE_BYTES), _noted(progress, constants.HEADER_VALUE_NULLS),
        _noted(progress, constants.STRANGE_HEADER_KEYS),
    )  # fmt: skip
    first_offset, last_offset = load_word(bounds), load_word(bounds + 8)
    first_time, last_time, left_out = load_word(bounds + 16), load_word(bounds + 24), load_word(bounds + 32)
    if key_ends:
        store(key_ends, np.int32(0))
    if value_ends:
        store(value_ends, np.int32(0))
    if row_headers:
        store(row_headers, np.int32(0))
    status = constants.ALL_DONE
    at = 0
    i, resumed_at = _noted(progress, constants.BATCH), _noted(progress, constants.POSITION)
    number, lowest = _noted(progress, constants.RECORD), _noted(progress, constants.LOWEST_DELTA)
    while i < batches:
        header, at, end = load_word(headers + 8 * i), load_word(starts + 8 * i), load_word(ends + 8 * i)
        base, base_time, append_time = load_int64(header), load_int64(header + 27), load_int64(header + 35)
        flags, highest, base_sequence = load_int16(header + 21), load_int32(header + 23), load_int32(header + 53)
        count = load_int32(header + 57)
        is_appended = flags & APPEND_TIME_BIT != 0
        is_given = flags & left_out == 0
        first_row = row
        if number:
            at = resumed_at
        elif is_checked and not is_sound(header, end, data_end):
            at = -constants.WRONG_CHECKSUM
            break
        while number < count:
            begin = at
            length, at = read_varint(at, end)
            if at < 0:
                break
            if length < 0 or length > end - at:
                at = -constants.RECORD_TOO_LONG
                break
            stop = at + length
            if not is_checked and length >= _LONG_RECORD:
                fetch_ahead(at, stop, data_end)
            time_delta, delta, key_length, key, value_length, value, header_count, at = read_fields(at, stop)
            if at < 0:
                break
            if delta < lowest or delta > highest:
                at = -constants.OFFSET_OUT_OF_RANGE
                break
            # It wraps at 64 bits, as in Java.
            created = base_time + time_delta
            offset = base + delta
            timestamp = append_time if is_appended else created
            is_kept = is_given and first_offset <= offset <= last_offset and first_time <= timestamp <= last_time
            if is_kept and (row == most_rows or length > most_bytes - used):
                at, status = begin, constants.FULL
                break
            if header_count:
                targets = all_headers if is_kept and row_headers else no_headers
                at, used_headers = read_record_headers(at, stop, header_count, targets, used_headers)
                if at < 0:
                    break
            if at != stop:
                at = -constants.LENGTH_WRONG
                break
            number += 1
            lowest = delta + 1
            if not is_kept:
                continue
            used += length
            if offsets:
                store(offsets + 8 * row, np.int64(offset))
            if timestamps:
                store(timestamps + 8 * row, np.int64(timestamp))
            if create_times:
                store(create_times + 8 * row, np.int64(created))
            if sequences:
                sequence = -1 if base_sequence < 0 else (base_sequence + delta) & INT32_MAX
                store(sequences + 4 * row, np.int32(sequence))
            if key_ends:
                put_bit(key_validity, row, key_length >= 0)
                if key_length >= 0:
                    copy_bytes(keys + key_bytes, key, key_length)
                    key_bytes += key_length
                key_nulls += key_length < 0
                store(key_ends + 4 * row + 4, np.int32(key_bytes))
            if value_ends:
                put_bit(value_validity, row, value_length >= 0)
                if value_length >= 0:
                    copy_bytes(values + value_bytes, value, value_length)
                    value_bytes += value_length
                value_nulls += value_length < 0
                store(value_ends + 4 * row + 4, np.int32(value_bytes))
            if value_views:
                put_bit(value_validity, row, value_length >= 0)
                begins, buffer = (
                    (view_base, first_buffer) if view_base else (load_word(starts + 8 * i), first_buffer + i)
                )
                _put_view(value_views + 16 * row, value, value_length, buffer, value - begins)
                value_nulls += value_length < 0
            if row_headers:
                store(row_headers + 4 * row + 4, np.int32(used_headers[0]))
            row += 1
        if kinds:
            for each in range(first_row, row):
                store(kinds + each, np.int8(is_appended))
        if append_times:
            for each in range(first_row, row):
                store(append_times + 8 * each, np.int64(append_time))
            fill_bits(append_validity, first_row, row, is_appended)
        if epochs:
            epoch = np.int32(load_int32(header + 12))
            for each in range(first_row, row):
                store(epochs + 4 * each, epoch)
        if ids:
            producer_id = np.int64(load_int64(header + 43))
            for each in range(first_row, row):
                store(ids + 8 * each, producer_id)
        if id_epochs:
            producer_epoch = np.int16(load_int16(header + 51))
            for each in range(first_row, row):
                store(id_epochs + 2 * each, producer_epoch)
        if transactional:
            fill_bits(transactional, first_row, row, flags & TRANSACTIONAL_BIT != 0)
        if control:
            fill_bits(control, first_row, row, flags & CONTROL_BIT != 0)
        if at >= 0 and status == constants.ALL_DONE and at != end:
            at = -constants.LEFT_OVER
        if at < 0 or status == constants.FULL:
            break
        i += 1
        number = lowest = 0
    _note(progress, constants.BATCH, i)
    _note(progress, constants.RECORD, number)
    _note(progress, constants.LOWEST_DELTA, lowest)
    _note(progress, constants.POSITION, at)
    _note(progress, constants.ROWS, row)
    _note(progress, constants.RECORD_BYTES, used)
    _note(progress, constants.KEY_BYTES, key_bytes)
    _note(progress, constants.VALUE_BYTES, value_bytes)
    _note(progress, constants.KEY_NULLS, key_nulls)
    _note(progress, constants.VALUE_NULLS, value_nulls)
    _note(progress, constants.HEADERS, used_headers[0])
    _note(progress, constants.HEADER_KEY_BYTES, used_headers[1])
    _note(progress, constants.HEADER_VALUE_BYTES, used_headers[2])
    _note(progress, constants.HEADER_VALUE_NULLS, used_headers[3])
    _note(progress, constants.STRANGE_HEADER_KEYS, used_headers[4])
    return -at if at < 0 else status
