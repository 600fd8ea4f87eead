"""How the kernels read one record, field by field; record.py has the layout.

Every position is an address, checked against the end of its container before it is read. A function that returns an
address returns the negated status of constants.py instead if something is corrupt.
"""

from __future__ import annotations

import numpy as np

from tiered_storage.kafka_log.kernels import constants
from tiered_storage.kafka_log.kernels.kernel_memory import (
    compiled,
    copy_bytes,
    inlined,
    load_byte,
    load_word,
    put_bit,
    store,
)

_HIGH_BITS = np.int64(-0x7F7F7F7F7F7F7F80)
"""The high bit of each byte of a word, which ASCII leaves unset."""


@compiled
def _long_varint(at: int, end: int, max_bytes: int, last_bits: int) -> tuple[int, int]:
    """Read a varint of up to `max_bytes`: like Java, take `last_bits` of the last one and drop the rest."""
    zigzag = np.uint64(0)
    for i in range(max_bytes):
        if at + i >= end:
            return 0, -constants.RUNS_OUT
        byte = load_byte(at + i)
        zigzag |= np.uint64(byte & (0x7F if i < max_bytes - 1 else last_bits)) << np.uint64(7 * i)
        if byte < 0x80:
            return int(np.int64(zigzag >> np.uint64(1)) ^ -np.int64(zigzag & np.uint64(1))), at + i + 1
    return 0, -constants.VARINT_TOO_LONG


@inlined
def _read_varlong(at: int, end: int) -> tuple[int, int]:
    """Return the int64 at address `at` and the address after it, or a negated status."""
    if at < end:
        byte = load_byte(at)
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), at + 1
    return _long_varint(at, end, 10, 0x01)


@inlined
def read_varint(at: int, end: int) -> tuple[int, int]:
    """Return the int32 at address `at`, as `_read_varlong` does."""
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
def _read_field(at: int, stop: int) -> tuple[int, int]:
    """Return the length of the field at `at` (below 0: null) and where its bytes begin, or a status."""
    length, begin = read_varint(at, stop)
    if begin < 0:
        return 0, begin
    if length > stop - begin:
        return 0, -constants.FIELD_TOO_LONG
    return length, begin


@inlined
def read_fields(at: int, stop: int) -> tuple[int, int, int, int, int, int, int, int]:
    """Read a record from its attributes to the number of its headers.

    Returns the deltas of timestamp and offset, length and address of key and value, the number of headers, and the
    address after it, or a status.
    """
    time_delta, at = _read_varlong(at + 1, stop)
    if at < 0:
        return 0, 0, 0, 0, 0, 0, 0, at
    delta, at = read_varint(at, stop)
    if at < 0:
        return 0, 0, 0, 0, 0, 0, 0, at
    key_length, key = _read_field(at, stop)
    if key < 0:
        return 0, 0, 0, 0, 0, 0, 0, key
    value_length, value = _read_field(key + max(key_length, 0), stop)
    if value < 0:
        return 0, 0, 0, 0, 0, 0, 0, value
    count, at = read_varint(value + max(value_length, 0), stop)
    if at >= 0 and (count < 0 or count > stop - at):
        at = -constants.TOO_MANY_HEADERS
    return time_delta, delta, key_length, key, value_length, value, count, at


@compiled
def _is_utf8(at: int, end: int, readable: int) -> bool:
    """Return whether the bytes are UTF-8: the shortest form of each character, and no surrogates.

    Bytes up to `readable` may be read: short ASCII, the usual case, then takes one comparison.
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
def read_record_headers(
    at: int, stop: int, count: int, targets: tuple[int, int, int, int, int], used: tuple[int, int, int, int, int]
) -> tuple[int, tuple[int, int, int, int, int]]:
    """Read `count` headers; if they are wanted, write them after those already there.

    `targets` are the addresses of keys, their ends, values, their ends and their validity; `used` counts headers, bytes
    of keys, bytes of values, null values, and keys that are not UTF-8. Returns the address after them, or a status,
    and the new `used`.
    """
    keys, key_ends, values, value_ends, validity = targets
    number, key_bytes, value_bytes, nulls, strange_keys = used
    for _ in range(count):
        key_length, key = _read_field(at, stop)
        if key < 0:
            return key, used
        if key_length < 0:
            return -constants.HEADER_KEY_NULL, used
        at = key + key_length
        value_length, value = _read_field(at, stop)
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
