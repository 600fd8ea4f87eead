"""The loop over the records of many batches, compiled by numba; the layout of what it reads is in record.py.

It checks every length and count against the bytes that there are before it reads or writes by it, and releases the GIL.
It fills one slab of memory with the columns of a chunk, each part where its number in `layout` says, and beside it what
grows by the byte: keys, values and headers. A part that nobody wants is at -1, and is not written.

Memory is spoken of by its address, with 0 for what is not wanted: arrays would be counted as they are passed on, which
takes longer than a record does. `progress` carries the loop over the border of two chunks: it stops before a record
that its buffers may not hold, and the next call goes on there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiered_storage.kafka_log import column_parts as parts
from tiered_storage.kafka_log.batch_header import (
    APPEND_TIME_BIT,
    BATCH_OVERHEAD,
    CONTROL_BIT,
    CRC_END,
    INT32_MAX,
    TRANSACTIONAL_BIT,
)
from tiered_storage.kafka_log.kernel_memory import (
    address_of,
    checksum,
    compiled,
    copy_bytes,
    fill_bits,
    inlined,
    load_byte,
    load_word,
    prefetch,
    put_bit,
    store,
)

_CACHE_LINE = 64
_LONG_RECORD = 256
_AHEAD = 256 << 10
"""Records so long are fetched from memory so far ahead: what comes then has to wait for none of its bytes."""
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
    at: int, stop: int, count: int, targets: tuple[int, int, int, int, int], used: tuple[int, int, int, int]
) -> tuple[int, tuple[int, int, int, int]]:
    """Read `count` headers, and write them behind those that there are if they are wanted.

    `targets` are the addresses of keys, their ends, values, their ends and their validity; `used` counts headers, bytes
    of keys, bytes of values, and null values. Returns the address behind them, or a verdict, and what is used then.
    """
    keys, key_ends, values, value_ends, validity = targets
    number, key_bytes, value_bytes, nulls = used
    for _ in range(count):
        key_length, key = _field(at, stop)
        if key < 0:
            return key, used
        if key_length < 0:
            return -parts.HEADER_KEY_NULL, used
        at = key + key_length
        if not _is_utf8(key, at, stop):
            return -parts.HEADER_KEY_NOT_UTF8, used
        value_length, value = _field(at, stop)
        if value < 0:
            return value, used
        at = value + max(value_length, 0)
        if not keys:
            continue
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
    return at, (number, key_bytes, value_bytes, nulls)


@compiled
def _is_sound(crc32c: int, records: int, end: int, before: int) -> bool:
    """Whether a batch has the checksum that its header says; `before` its records there are so many bytes."""
    if before < BATCH_OVERHEAD or end < records:
        return False
    stored = 0
    for i in range(4):
        stored = stored << 8 | load_byte(records - BATCH_OVERHEAD + CRC_END - 4 + i)
    begin = records - BATCH_OVERHEAD + CRC_END
    return checksum(crc32c, begin, end - begin) == stored


@inlined
def _part(slab: int, layout: NDArray[np.int64], part: int) -> int:
    return 0 if layout[part] < 0 else slab + layout[part]


@compiled
def decode_batches(  # noqa: PLR0912, PLR0915 -- one loop: what it holds in registers would have to be passed on
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    table_rows: NDArray[np.int64],
    table: tuple[NDArray[Any], ...],
    bounds: NDArray[np.int64],
    slab_array: NDArray[np.uint8],
    layout: NDArray[np.int64],
    capacity: tuple[int, int],
    texts: tuple[NDArray[np.uint8], NDArray[np.uint8]],
    header_texts: tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]],
    header_ends: tuple[NDArray[np.int32], NDArray[np.int32]],
    crc32c: int,
    progress: NDArray[np.int64],
) -> int:
    """Decode records into the slab until the batches or the capacity (rows; bytes of records) end; return the verdict.

    The records of batch i, uncompressed, are data[starts[i]:ends[i]], its header is row table_rows[i] of `table`, the
    columns of a BatchTable. `bounds`: the least and the greatest offset, then timestamp, to keep, and the attributes of
    batches of which to keep nothing. `texts` take keys and values, `header_texts` keys, values and validity of headers;
    each has room for the capacity in bytes. `crc32c` is the address of a C function, with which to check each batch,
    whose header has to lie before its records; or 0.
    """
    (
        base_offsets, last_offsets, _, _, base_timestamps, max_timestamps, leader_epochs, attributes,
        record_counts, producer_ids, producer_epochs, base_sequences,
    ) = table  # fmt: skip
    most_rows, most_bytes = capacity
    slab = address_of(slab_array)
    offsets, timestamps = _part(slab, layout, parts.OFFSETS), _part(slab, layout, parts.TIMESTAMPS)
    kinds, create_times = _part(slab, layout, parts.TIMESTAMP_TYPES), _part(slab, layout, parts.CREATE_TIMES)
    append_times, append_validity = (
        _part(slab, layout, parts.APPEND_TIMES),
        _part(slab, layout, parts.APPEND_TIME_VALIDITY),
    )
    key_ends, key_validity = _part(slab, layout, parts.KEY_ENDS), _part(slab, layout, parts.KEY_VALIDITY)
    value_ends, value_validity = _part(slab, layout, parts.VALUE_ENDS), _part(slab, layout, parts.VALUE_VALIDITY)
    row_headers, epochs = _part(slab, layout, parts.HEADER_ENDS), _part(slab, layout, parts.LEADER_EPOCHS)
    ids, id_epochs = _part(slab, layout, parts.PRODUCER_IDS), _part(slab, layout, parts.PRODUCER_EPOCHS)
    sequences, transactional = _part(slab, layout, parts.SEQUENCES), _part(slab, layout, parts.TRANSACTIONAL)
    control = _part(slab, layout, parts.CONTROL)
    keys, values = address_of(texts[0]), address_of(texts[1])
    all_headers = (
        address_of(header_texts[0]), address_of(header_ends[0]), address_of(header_texts[1]),
        address_of(header_ends[1]), address_of(header_texts[2]),
    )  # fmt: skip
    no_headers = (0, 0, 0, 0, 0)
    used_headers = (0, 0, 0, 0)
    if key_ends:
        store(key_ends, np.int32(0))
    if value_ends:
        store(value_ends, np.int32(0))
    if row_headers:
        store(row_headers, np.int32(0))
    first_offset, last_offset, first_time, last_time = bounds[0], bounds[1], bounds[2], bounds[3]
    memory = address_of(data)
    row = used = key_bytes = value_bytes = key_nulls = value_nulls = 0
    verdict = parts.ALL_DONE
    data_end = memory + data.size
    at = memory
    for i in range(progress[parts.BATCH], starts.size):
        batch = table_rows[i]
        number, lowest = progress[parts.RECORD], progress[parts.LOWEST_DELTA]
        at = memory + (progress[parts.POSITION] if number else starts[i])
        end = memory + ends[i]
        base, base_time, append_time = base_offsets[batch], base_timestamps[batch], max_timestamps[batch]
        flags, base_sequence = np.int64(attributes[batch]), np.int64(base_sequences[batch])
        is_appended = flags & APPEND_TIME_BIT != 0
        is_given = flags & bounds[4] == 0
        highest = last_offsets[batch] - base
        first_row = row
        if starts[i] < 0 or at > end or ends[i] > data.size:
            at = -parts.OUT_OF_WINDOW
            break
        if crc32c and number == 0 and not _is_sound(crc32c, at, end, starts[i]):
            at = -parts.WRONG_CHECKSUM
            break
        count = np.int64(record_counts[batch])
        while number < count:
            begin = at
            length, at = _varint(at, end)
            if at < 0:
                break
            if length < 0 or length > end - at:
                at = -parts.RECORD_TOO_LONG
                break
            stop = at + length
            if length >= _LONG_RECORD:
                for line in range(at + _AHEAD, min(stop + _AHEAD, data_end), _CACHE_LINE):
                    prefetch(line)
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
                store(offsets + 8 * row, offset)
            if timestamps:
                store(timestamps + 8 * row, timestamp)
            if create_times:
                store(create_times + 8 * row, created)
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
                store(append_times + 8 * each, append_time)
            fill_bits(append_validity, first_row, row, is_appended)
        if epochs:
            for each in range(first_row, row):
                store(epochs + 4 * each, leader_epochs[batch])
        if ids:
            for each in range(first_row, row):
                store(ids + 8 * each, producer_ids[batch])
        if id_epochs:
            for each in range(first_row, row):
                store(id_epochs + 2 * each, producer_epochs[batch])
        if transactional:
            fill_bits(transactional, first_row, row, flags & TRANSACTIONAL_BIT != 0)
        if control:
            fill_bits(control, first_row, row, flags & CONTROL_BIT != 0)
        if at >= 0 and verdict == parts.ALL_DONE and at != end:
            at = -parts.LEFT_OVER
        if at < 0 or verdict == parts.FULL:
            progress[parts.BATCH], progress[parts.RECORD], progress[parts.LOWEST_DELTA] = i, number, lowest
            break
        progress[parts.BATCH], progress[parts.RECORD], progress[parts.LOWEST_DELTA] = i + 1, 0, 0
    progress[parts.POSITION] = at - memory
    progress[parts.ROWS], progress[parts.KEY_BYTES], progress[parts.VALUE_BYTES] = row, key_bytes, value_bytes
    progress[parts.KEY_NULLS], progress[parts.VALUE_NULLS] = key_nulls, value_nulls
    progress[parts.HEADERS], progress[parts.HEADER_KEY_BYTES] = used_headers[0], used_headers[1]
    progress[parts.HEADER_VALUE_BYTES], progress[parts.HEADER_VALUE_NULLS] = used_headers[2], used_headers[3]
    return -at if at < 0 else verdict
