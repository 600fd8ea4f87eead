"""The loop over the records of many batches, compiled by numba; the layout of what it reads is in record.py.

It checks every length and count against the bytes that there are before it reads or writes by it, and releases the GIL.
It fills one slab of memory with the columns of a chunk, each part where its number in `layout` says, and beside it what
grows by the byte: keys, values and headers. A part that nobody wants is at -1 and is not written.

`progress` carries the loop over the border of two chunks: it stops before a record that its buffers may not hold, and
the next call goes on there. All of it is one file, for numba's cache does not see that another one has changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit, types
from numpy.typing import NDArray

from tiered_storage.kafka_log.batch_header import APPEND_TIME_BIT, CONTROL_BIT, INT32_MAX, TRANSACTIONAL_BIT
from tiered_storage.kafka_log.column_parts import (
    ALL_DONE,
    APPEND_TIME_VALIDITY,
    APPEND_TIMES,
    BATCH,
    CONTROL,
    CREATE_TIMES,
    FIELD_TOO_LONG,
    FULL,
    HEADER_ENDS,
    HEADER_KEY_BYTES,
    HEADER_KEY_NULL,
    HEADER_KEY_NOT_UTF8,
    HEADER_VALUE_BYTES,
    HEADER_VALUE_NULLS,
    HEADERS,
    KEY_BYTES,
    KEY_ENDS,
    KEY_NULLS,
    KEY_VALIDITY,
    LEADER_EPOCHS,
    LEFT_OVER,
    LENGTH_WRONG,
    LOWEST_DELTA,
    NEGATIVE_LENGTH,
    OFFSET_OUT_OF_RANGE,
    OFFSETS,
    POSITION,
    PRODUCER_EPOCHS,
    PRODUCER_IDS,
    RECORD,
    RECORD_TOO_LONG,
    ROWS,
    RUNS_OUT,
    SEQUENCES,
    TIMESTAMP_TOO_WIDE,
    TIMESTAMP_TYPES,
    TIMESTAMPS,
    TOO_MANY_HEADERS,
    TRANSACTIONAL,
    VALUE_BYTES,
    VALUE_ENDS,
    VALUE_NULLS,
    VALUE_VALIDITY,
    VARINT_TOO_LONG,
    VARINT_TOO_WIDE,
)

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Bytes = NDArray[np.uint8]

_memcpy = cast(
    "Callable[[np.uintp, np.uintp, np.uintp], np.uintp]",
    types.ExternalFunction("memcpy", types.uintp(types.uintp, types.uintp, types.uintp)),
)


def _compiled(function: _Function) -> _Function:
    return cast("_Function", njit(nogil=True, cache=True)(function))


@_compiled
def _long_varint(data: _Bytes, at: int, end: int, max_bytes: int, highest_last: int) -> tuple[int, int]:
    zigzag = np.uint64(0)
    for i in range(max_bytes):
        if at + i >= end:
            return 0, -RUNS_OUT
        byte = np.uint64(data[at + i])
        zigzag |= (byte & np.uint64(0x7F)) << np.uint64(7 * i)
        if byte < 0x80:
            if i == max_bytes - 1 and byte > highest_last:
                return 0, -VARINT_TOO_WIDE
            return np.int64(zigzag >> np.uint64(1)) ^ -np.int64(zigzag & np.uint64(1)), at + i + 1
    return 0, -VARINT_TOO_LONG


@_compiled
def _varlong(data: _Bytes, at: int, end: int) -> tuple[int, int]:
    """Return the int64 at `at` and the position behind it; a negative position is a verdict, with its sign turned."""
    if at < end and data[at] < 0x80:
        byte = np.int64(data[at])
        return (byte >> 1) ^ -(byte & 1), at + 1
    return _long_varint(data, at, end, 10, 0x01)


@_compiled
def _varint(data: _Bytes, at: int, end: int) -> tuple[int, int]:
    """Return the int32 at `at`, as `_varlong` does."""
    if at + 1 < end:
        byte = np.int64(data[at])
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), at + 1
        following = np.int64(data[at + 1])
        if following < 0x80:
            zigzag = following << 7 | byte & 0x7F
            return (zigzag >> 1) ^ -(zigzag & 1), at + 2
    return _long_varint(data, at, end, 5, 0x0F)


@_compiled
def _field(data: _Bytes, at: int, stop: int) -> tuple[int, int, int]:
    """Return the length of the field at `at` (-1: null), where its bytes begin, and where they end or a verdict."""
    length, begin = _varint(data, at, stop)
    if begin < 0:
        return 0, 0, begin
    if length < 0:
        return -1, begin, begin if length == -1 else -NEGATIVE_LENGTH
    if length > stop - begin:
        return 0, 0, -FIELD_TOO_LONG
    return length, begin, begin + length


@_compiled
def _is_utf8(data: _Bytes, at: int, end: int) -> bool:
    """Whether the bytes are UTF-8: the shortest form of each character, none of them half of a surrogate pair."""
    while at < end:
        lead = data[at]
        if lead < 0x80:
            at += 1
            continue
        size = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
        if lead < 0xC2 or lead > 0xF4 or size > end - at:
            return False
        second = data[at + 1]
        lowest = 0xA0 if lead == 0xE0 else 0x90 if lead == 0xF0 else 0x80
        highest = 0x9F if lead == 0xED else 0x8F if lead == 0xF4 else 0xBF
        if second < lowest or second > highest:
            return False
        for i in range(2, size):
            if data[at + i] & 0xC0 != 0x80:
                return False
        at += size
    return True


@_compiled
def _append(target: _Bytes, used: int, data: _Bytes, begin: int, length: int) -> int:
    """Copy a field behind the `used` bytes of `target`, and return how many are used then."""
    _memcpy(np.uintp(target.ctypes.data + used), np.uintp(data.ctypes.data + begin), np.uintp(length))
    return used + length


@_compiled
def _put_bit(bits: _Bytes, row: int, is_set: bool) -> None:
    """Set the bit of `row`, the rows of whose byte are given in their order."""
    if row & 7 == 0:
        bits[row >> 3] = np.uint8(is_set)
    elif is_set:
        bits[row >> 3] |= np.uint8(1 << (row & 7))


@_compiled
def _part(slab: _Bytes, layout: NDArray[np.int64], part: int, size: int) -> _Bytes:
    at = layout[part]
    return slab[:0] if at < 0 else slab[at : at + size]


@_compiled
def _headers(
    data: _Bytes,
    at: int,
    stop: int,
    count: int,
    is_wanted: bool,
    targets: tuple[_Bytes, ...],
    ends: tuple[NDArray[np.int32], ...],
    progress: NDArray[np.int64],
) -> int:
    """Read `count` headers, append them to `targets` (keys, values, validity of values), and return the end of them."""
    for _ in range(count):
        key_length, key_begin, at = _field(data, at, stop)
        if at < 0:
            return at
        if key_length < 0:
            return -HEADER_KEY_NULL
        if not _is_utf8(data, key_begin, at):
            return -HEADER_KEY_NOT_UTF8
        value_length, value_begin, at = _field(data, at, stop)
        if at < 0:
            return at
        if not is_wanted:
            continue
        number = progress[HEADERS]
        progress[HEADER_KEY_BYTES] = _append(targets[0], progress[HEADER_KEY_BYTES], data, key_begin, key_length)
        ends[0][number + 1] = progress[HEADER_KEY_BYTES]
        _put_bit(targets[2], number, value_length >= 0)
        if value_length < 0:
            progress[HEADER_VALUE_NULLS] += 1
        else:
            progress[HEADER_VALUE_BYTES] = _append(
                targets[1], progress[HEADER_VALUE_BYTES], data, value_begin, value_length
            )
        ends[1][number + 1] = progress[HEADER_VALUE_BYTES]
        progress[HEADERS] = number + 1
    return at


@_compiled
def decode_batches(
    data: _Bytes,
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    table_rows: NDArray[np.int64],
    table: tuple[NDArray[Any], ...],
    bounds: NDArray[np.int64],
    slab: _Bytes,
    layout: NDArray[np.int64],
    capacity: tuple[int, int],
    texts: tuple[_Bytes, ...],
    header_targets: tuple[_Bytes, ...],
    header_ends: tuple[NDArray[np.int32], ...],
    progress: NDArray[np.int64],
) -> int:
    """Decode records into the slab until the batches or the capacity (rows; bytes of records) end; return the verdict.

    The records of batch i, uncompressed, are data[starts[i]:ends[i]], its header is row table_rows[i] of `table`, the
    columns of a BatchTable. `bounds`: the least and the greatest offset and timestamp to keep. `texts` take keys and
    values, `header_targets` and `header_ends` the headers; each has room for the capacity in bytes.
    """
    (
        base_offsets, last_offsets, _, _, base_timestamps, max_timestamps, epochs, attributes,
        record_counts, producer_ids, producer_epochs, base_sequences,
    ) = table  # fmt: skip
    most_rows, most_bytes = capacity
    offsets = _part(slab, layout, OFFSETS, 8 * most_rows).view(np.int64)
    timestamps = _part(slab, layout, TIMESTAMPS, 8 * most_rows).view(np.int64)
    create_times = _part(slab, layout, CREATE_TIMES, 8 * most_rows).view(np.int64)
    key_ends = _part(slab, layout, KEY_ENDS, 4 * most_rows + 4).view(np.int32)
    key_validity = _part(slab, layout, KEY_VALIDITY, (most_rows + 7) >> 3)
    value_ends = _part(slab, layout, VALUE_ENDS, 4 * most_rows + 4).view(np.int32)
    value_validity = _part(slab, layout, VALUE_VALIDITY, (most_rows + 7) >> 3)
    count_ends = _part(slab, layout, HEADER_ENDS, 4 * most_rows + 4).view(np.int32)
    sequences = _part(slab, layout, SEQUENCES, 4 * most_rows).view(np.int32)
    for first_end in (key_ends, value_ends, count_ends):
        if first_end.size:
            first_end[0] = 0
    keys, values = texts
    first_offset, last_offset, first_time, last_time = bounds[0], bounds[1], bounds[2], bounds[3]
    progress[ROWS:] = 0
    row = used = key_bytes = value_bytes = 0
    verdict = ALL_DONE
    at = number = 0
    for i in range(progress[BATCH], starts.size):
        batch = table_rows[i]
        at, number, lowest = progress[POSITION], progress[RECORD], progress[LOWEST_DELTA]
        if number == 0:
            at = starts[i]
        end = ends[i]
        base = base_offsets[batch]
        base_time, append_time = base_timestamps[batch], max_timestamps[batch]
        is_appended = attributes[batch] & APPEND_TIME_BIT != 0
        base_sequence = np.int64(base_sequences[batch])
        highest = last_offsets[batch] - base
        count = np.int64(record_counts[batch])
        first_row = row
        while number < count:
            begin = at
            length, at = _varint(data, at, end)
            if at < 0:
                break
            if length < 0 or length > end - at:
                at = -RECORD_TOO_LONG
                break
            stop = at + length
            time_delta, at = _varlong(data, at + 1, stop)
            if at < 0:
                break
            delta, at = _varint(data, at, stop)
            if at < 0:
                break
            if delta < lowest or delta > highest:
                at = -OFFSET_OUT_OF_RANGE
                break
            key_length, key_begin, at = _field(data, at, stop)
            if at < 0:
                break
            value_length, value_begin, at = _field(data, at, stop)
            if at < 0:
                break
            header_count, at = _varint(data, at, stop)
            if at < 0:
                break
            if header_count < 0 or header_count > stop - at:
                at = -TOO_MANY_HEADERS
                break
            created = base_time + time_delta
            if not is_appended and ((created ^ base_time) & (created ^ time_delta)) < 0:
                at = -TIMESTAMP_TOO_WIDE
                break
            timestamp = append_time if is_appended else created
            offset = base + delta
            is_kept = first_offset <= offset <= last_offset and first_time <= timestamp <= last_time
            if is_kept and (row == most_rows or length > most_bytes - used):
                at, verdict = begin, FULL
                break
            if header_count:
                wanted = is_kept and count_ends.size > 0
                at = _headers(data, at, stop, header_count, wanted, header_targets, header_ends, progress)
                if at < 0:
                    break
            if at != stop:
                at = -LENGTH_WRONG
                break
            number += 1
            lowest = delta + 1
            if not is_kept:
                continue
            used += length
            if offsets.size:
                offsets[row] = offset
            if timestamps.size:
                timestamps[row] = timestamp
            if create_times.size:
                create_times[row] = created
            if sequences.size:
                sequences[row] = -1 if base_sequence < 0 else (base_sequence + delta) & INT32_MAX
            if key_ends.size:
                if key_length > 0:
                    key_bytes = _append(keys, key_bytes, data, key_begin, key_length)
                key_ends[row + 1] = key_bytes
                _put_bit(key_validity, row, key_length >= 0)
                progress[KEY_NULLS] += key_length < 0
            if value_ends.size:
                if value_length > 0:
                    value_bytes = _append(values, value_bytes, data, value_begin, value_length)
                value_ends[row + 1] = value_bytes
                _put_bit(value_validity, row, value_length >= 0)
                progress[VALUE_NULLS] += value_length < 0
            if count_ends.size:
                count_ends[row + 1] = progress[HEADERS]
            row += 1
        _fill_batch(
            slab, layout, most_rows, first_row, row, is_appended, append_time, epochs[batch], producer_ids[batch],
            producer_epochs[batch], attributes[batch],
        )  # fmt: skip
        progress[BATCH], progress[RECORD], progress[LOWEST_DELTA] = i, number, lowest
        if at >= 0 and verdict == ALL_DONE and at != end:
            at = -LEFT_OVER
        if at < 0 or verdict == FULL:
            break
        progress[BATCH], progress[RECORD], progress[LOWEST_DELTA] = i + 1, 0, 0
    progress[POSITION] = at
    progress[ROWS], progress[KEY_BYTES], progress[VALUE_BYTES] = row, key_bytes, value_bytes
    return -at if at < 0 else verdict


@_compiled
def _fill_batch(
    slab: _Bytes,
    layout: NDArray[np.int64],
    most_rows: int,
    begin: int,
    end: int,
    is_appended: bool,
    append_time: int,
    leader_epoch: int,
    producer_id: int,
    producer_epoch: int,
    attributes: int,
) -> None:
    """Write what all records of a batch have in common to the rows from `begin` to `end`."""
    kinds = _part(slab, layout, TIMESTAMP_TYPES, most_rows).view(np.int8)
    append_times = _part(slab, layout, APPEND_TIMES, 8 * most_rows).view(np.int64)
    append_validity = _part(slab, layout, APPEND_TIME_VALIDITY, (most_rows + 7) >> 3)
    epochs = _part(slab, layout, LEADER_EPOCHS, 4 * most_rows).view(np.int32)
    ids = _part(slab, layout, PRODUCER_IDS, 8 * most_rows).view(np.int64)
    producer_epochs = _part(slab, layout, PRODUCER_EPOCHS, 2 * most_rows).view(np.int16)
    transactional = _part(slab, layout, TRANSACTIONAL, (most_rows + 7) >> 3)
    control = _part(slab, layout, CONTROL, (most_rows + 7) >> 3)
    for row in range(begin, end):
        if kinds.size:
            kinds[row] = is_appended
        if append_times.size:
            append_times[row] = append_time if is_appended else 0
            _put_bit(append_validity, row, is_appended)
        if epochs.size:
            epochs[row] = leader_epoch
        if ids.size:
            ids[row] = producer_id
        if producer_epochs.size:
            producer_epochs[row] = producer_epoch
        if transactional.size:
            _put_bit(transactional, row, attributes & TRANSACTIONAL_BIT != 0)
        if control.size:
            _put_bit(control, row, attributes & CONTROL_BIT != 0)
