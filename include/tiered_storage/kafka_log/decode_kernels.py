"""The loop over the records of many batches, in the form that is compiled; the layout of what it reads is in record.py.

It checks every length and count against the bytes that there are before it reads or writes by it. It fills one slab of
memory with the columns of a chunk, and beside it what grows by the byte: keys, values and headers. All arguments and
results are 64-bit integers; memory is spoken of by its address, with 0 for what nobody wants, which is not written.

`progress` carries the loop over the border of two chunks: it stops before a record that its buffers may not hold, and
the next call goes on there. batch_kernels.py is how kernels are called.
"""

from __future__ import annotations

import numpy as np

from tiered_storage.kafka_log import column_parts as parts
from tiered_storage.kafka_log.batch_header import (
    APPEND_TIME_BIT,
    BATCH_OVERHEAD,
    CODEC_BITS,
    CONTROL_BIT,
    CRC_END,
    INT32_MAX,
    TRANSACTIONAL_BIT,
)
from tiered_storage.kafka_log.kernel_memory import (
    checksum,
    compiled,
    copy_bytes,
    fill_bits,
    inlined,
    load_byte,
    load_int16,
    load_int32,
    load_int64,
    load_word,
    prefetch,
    put_bit,
    store,
)

_CACHE_LINE = 64
_PIECE = 2 << 10
_AHEAD = 64 << 10
"""A checksum is computed over pieces of a batch; with each, a piece so far ahead is fetched from memory."""
_HIGH_BITS = np.int64(-0x7F7F7F7F7F7F7F80)
"""The high bit of each byte of a word, which ASCII leaves unset."""


@compiled
def _long_varint(at: int, end: int, max_bytes: int, highest_last: int) -> tuple[int, int]:
    zigzag = np.uint64(0)
    for i in range(max_bytes):
        if at + i >= end:
            return 0, -parts.RUNS_OUT
        byte = load_byte(at + i)
        zigzag |= np.uint64(byte & 0x7F) << np.uint64(7 * i)
        if byte < 0x80:
            if i == max_bytes - 1 and byte > highest_last:
                return 0, -parts.VARINT_TOO_WIDE
            return int(np.int64(zigzag >> np.uint64(1)) ^ -np.int64(zigzag & np.uint64(1))), at + i + 1
    return 0, -parts.VARINT_TOO_LONG


@inlined
def _varlong(at: int, end: int) -> tuple[int, int]:
    """Return the int64 at address `at` and the address behind it, or a verdict with its sign turned."""
    if at < end:
        byte = load_byte(at)
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), at + 1
    return _long_varint(at, end, 10, 0x01)


@inlined
def _varint(at: int, end: int) -> tuple[int, int]:
    """Return the int32 at address `at`, as `_varlong` does."""
    if at + 1 < end:
        byte = load_byte(at)
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), at + 1
        following = load_byte(at + 1)
        if following < 0x80:
            zigzag = following << 7 | byte & 0x7F
            return (zigzag >> 1) ^ -(zigzag & 1), at + 2
    return _long_varint(at, end, 5, 0x0F)


@inlined
def _field(at: int, stop: int) -> tuple[int, int]:
    """Return the length of the field at `at` (-1: null) and where its bytes begin, or a verdict."""
    length, begin = _varint(at, stop)
    if begin < 0:
        return 0, begin
    if length < -1:
        return 0, -parts.NEGATIVE_LENGTH
    if length > stop - begin:
        return 0, -parts.FIELD_TOO_LONG
    return length, begin


@inlined
def _fields(at: int, stop: int) -> tuple[int, int, int, int, int, int, int, int]:
    """Read a record from its attributes to the number of its headers.

    Returns the deltas of timestamp and offset, length and address of key and value, the number of headers, and the
    address behind it, or a verdict.
    """
    time_delta, at = _varlong(at + 1, stop)
    if at < 0:
        return 0, 0, 0, 0, 0, 0, 0, at
    delta, at = _varint(at, stop)
    if at < 0:
        return 0, 0, 0, 0, 0, 0, 0, at
    key_length, key = _field(at, stop)
    if key < 0:
        return 0, 0, 0, 0, 0, 0, 0, key
    value_length, value = _field(key + max(key_length, 0), stop)
    if value < 0:
        return 0, 0, 0, 0, 0, 0, 0, value
    count, at = _varint(value + max(value_length, 0), stop)
    if at >= 0 and (count < 0 or count > stop - at):
        at = -parts.TOO_MANY_HEADERS
    return time_delta, delta, key_length, key, value_length, value, count, at


@compiled
def _is_utf8(at: int, end: int, readable: int) -> bool:
    """Whether the bytes are UTF-8: the shortest form of each character, none of them half of a surrogate pair.

    Bytes up to `readable` may be looked at: short ASCII, which most of it is, then takes one look.
    """
    while at < end:
        if readable - at >= 8 and not load_word(at) & _HIGH_BITS:
            at += 8
            continue
        lead = load_byte(at)
        if lead < 0x80:
            at += 1
            continue
        size = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
        if lead < 0xC2 or lead > 0xF4 or size > end - at:
            return False
        second = load_byte(at + 1)
        lowest = 0xA0 if lead == 0xE0 else 0x90 if lead == 0xF0 else 0x80
        highest = 0x9F if lead == 0xED else 0x8F if lead == 0xF4 else 0xBF
        if second < lowest or second > highest:
            return False
        for i in range(2, size):
            if load_byte(at + i) & 0xC0 != 0x80:
                return False
        at += size
    return True


@inlined
def _headers(
    at: int, stop: int, count: int, targets: tuple[int, int, int, int, int], used: tuple[int, int, int, int, int]
) -> tuple[int, tuple[int, int, int, int, int]]:
    """Read `count` headers, and write them behind those that there are if they are wanted.

    `targets` are the addresses of keys, their ends, values, their ends and their validity; `used` counts headers, bytes
    of keys, bytes of values, null values, and keys that are no UTF-8. Returns the address behind them, or a verdict,
    and what is used then.
    """
    keys, key_ends, values, value_ends, validity = targets
    number, key_bytes, value_bytes, nulls, strange_keys = used
    for _ in range(count):
        key_length, key = _field(at, stop)
        if key < 0:
            return key, used
        if key_length < 0:
            return -parts.HEADER_KEY_NULL, used
        at = key + key_length
        value_length, value = _field(at, stop)
        if value < 0:
            return value, used
        at = value + max(value_length, 0)
        if not keys:
            continue
        strange_keys += not _is_utf8(key, key + key_length, stop)
        copy_bytes(keys + key_bytes, key, key_length)
        key_bytes += key_length
        if value_length >= 0:
            copy_bytes(values + value_bytes, value, value_length)
            value_bytes += value_length
        put_bit(validity, number, value_length >= 0)
        nulls += value_length < 0
        number += 1
        store(key_ends + 4 * number, np.int32(key_bytes))
        store(value_ends + 4 * number, np.int32(value_bytes))
    return at, (number, key_bytes, value_bytes, nulls, strange_keys)


@compiled
def _is_sound(crc32c: int, header: int, end: int, data_end: int) -> bool:
    """Whether the batch from `header` to `end` has the checksum that its header says; fetch what is behind it."""
    at = header + CRC_END
    computed = 0
    while at < end:
        size = min(_PIECE, end - at)
        for line in range(at + _AHEAD, min(at + _AHEAD + size, data_end), _CACHE_LINE):
            prefetch(line)
        computed = checksum(crc32c, computed, at, size)
        at += size
    return computed == load_int32(header + CRC_END - 4) & 0xFFFFFFFF


@inlined
def _part(places: int, part: int) -> int:
    return load_word(places + 8 * part)


@inlined
def _note(progress: int, what: int, number: int) -> None:
    store(progress + 8 * what, np.int64(number))


def place_batches(
    window: int, size: int, window_position: int, positions: int, sizes: int, rows: int, count: int, places: int,
    totals: int,
) -> int:  # fmt: skip
    """Write the addresses of `count` batches' headers, of their records and of their ends to `places`, `count` each.

    Batch i is row rows[i] of a table whose columns of positions and sizes are given; it has to lie in the window of
    `size` bytes. Returns the number of the first batch that does not, or -1. `totals` takes the bytes of records, the
    same of the largest batch, how many records there can be, and how many batches with records are compressed.
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
    headers: int, starts: int, ends: int, batches: int, data_end: int, crc32c: int,
    bounds: int, places: int, most_rows: int, most_bytes: int, progress: int,
) -> int:  # fmt: skip
    """Decode records into a chunk until the batches or the capacity (rows; bytes of records) end; return the verdict.

    The header of batch i is at headers[i], its records, uncompressed, are at starts[i] up to ends[i]: the caller
    answers for that. `bounds`: the least and the greatest offset, then timestamp, to keep, and the attributes of
    batches of which to keep nothing. `places` has the address of every part of the chunk; those that grow by the byte
    have room for the capacity. `crc32c` is the address of crc32c_extend, with which to check each batch, whose header
    has to lie before its records; or 0. What lies before `data_end` may be fetched ahead.
    """
    offsets, timestamps = _part(places, parts.OFFSETS), _part(places, parts.TIMESTAMPS)
    kinds, create_times = _part(places, parts.TIMESTAMP_TYPES), _part(places, parts.CREATE_TIMES)
    append_times, append_validity = _part(places, parts.APPEND_TIMES), _part(places, parts.APPEND_TIME_VALIDITY)
    key_ends, key_validity = _part(places, parts.KEY_ENDS), _part(places, parts.KEY_VALIDITY)
    value_ends, value_validity = _part(places, parts.VALUE_ENDS), _part(places, parts.VALUE_VALIDITY)
    row_headers, epochs = _part(places, parts.HEADER_ENDS), _part(places, parts.LEADER_EPOCHS)
    ids, id_epochs = _part(places, parts.PRODUCER_IDS), _part(places, parts.PRODUCER_EPOCHS)
    sequences, transactional = _part(places, parts.SEQUENCES), _part(places, parts.TRANSACTIONAL)
    control = _part(places, parts.CONTROL)
    keys, values = _part(places, parts.KEYS), _part(places, parts.VALUES)
    all_headers = (
        _part(places, parts.HEADER_KEYS), _part(places, parts.HEADER_KEY_ENDS), _part(places, parts.HEADER_VALUES),
        _part(places, parts.HEADER_VALUE_ENDS), _part(places, parts.HEADER_VALUE_VALIDITY),
    )  # fmt: skip
    no_headers = (0, 0, 0, 0, 0)
    used_headers = (0, 0, 0, 0, 0)
    first_offset, last_offset = load_word(bounds), load_word(bounds + 8)
    first_time, last_time, left_out = load_word(bounds + 16), load_word(bounds + 24), load_word(bounds + 32)
    if key_ends:
        store(key_ends, np.int32(0))
    if value_ends:
        store(value_ends, np.int32(0))
    if row_headers:
        store(row_headers, np.int32(0))
    row = used = key_bytes = value_bytes = key_nulls = value_nulls = 0
    verdict = parts.ALL_DONE
    at = 0
    i = load_word(progress + 8 * parts.BATCH)
    number, lowest = load_word(progress + 8 * parts.RECORD), load_word(progress + 8 * parts.LOWEST_DELTA)
    resumed_at = load_word(progress + 8 * parts.POSITION)
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
        elif crc32c and not _is_sound(crc32c, header, end, data_end):
            at = -parts.WRONG_CHECKSUM
            break
        while number < count:
            begin = at
            length, at = _varint(at, end)
            if at < 0:
                break
            if length < 0 or length > end - at:
                at = -parts.RECORD_TOO_LONG
                break
            stop = at + length
            time_delta, delta, key_length, key, value_length, value, header_count, at = _fields(at, stop)
            if at < 0:
                break
            if delta < lowest or delta > highest:
                at = -parts.OFFSET_OUT_OF_RANGE
                break
            created = base_time + time_delta
            if not is_appended and (created ^ base_time) & (created ^ time_delta) < 0:
                at = -parts.TIMESTAMP_TOO_WIDE
                break
            offset = base + delta
            timestamp = append_time if is_appended else created
            is_kept = is_given and first_offset <= offset <= last_offset and first_time <= timestamp <= last_time
            if is_kept and (row == most_rows or length > most_bytes - used):
                at, verdict = begin, parts.FULL
                break
            if header_count:
                targets = all_headers if is_kept and row_headers else no_headers
                at, used_headers = _headers(at, stop, header_count, targets, used_headers)
                if at < 0:
                    break
            if at != stop:
                at = -parts.LENGTH_WRONG
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
        if at >= 0 and verdict == parts.ALL_DONE and at != end:
            at = -parts.LEFT_OVER
        if at < 0 or verdict == parts.FULL:
            break
        i += 1
        number = lowest = 0
    _note(progress, parts.BATCH, i)
    _note(progress, parts.RECORD, number)
    _note(progress, parts.LOWEST_DELTA, lowest)
    _note(progress, parts.POSITION, at)
    _note(progress, parts.ROWS, row)
    _note(progress, parts.KEY_BYTES, key_bytes)
    _note(progress, parts.VALUE_BYTES, value_bytes)
    _note(progress, parts.KEY_NULLS, key_nulls)
    _note(progress, parts.VALUE_NULLS, value_nulls)
    _note(progress, parts.HEADERS, used_headers[0])
    _note(progress, parts.HEADER_KEY_BYTES, used_headers[1])
    _note(progress, parts.HEADER_VALUE_BYTES, used_headers[2])
    _note(progress, parts.HEADER_VALUE_NULLS, used_headers[3])
    _note(progress, parts.STRANGE_HEADER_KEYS, used_headers[4])
    return -at if at < 0 else verdict
