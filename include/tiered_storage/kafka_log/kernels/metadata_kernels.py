"""The compiled loop over values of the metadata topic; tiered_storage.remote_log.metadata.topic.records has the layout.

It accepts exactly the values that the module accepts, which gives the reason where this one refuses.
"""

from __future__ import annotations

import numpy as np

from tiered_storage.kafka_log.kernels import constants
from tiered_storage.kafka_log.kernels.kernel_memory import (
    compiled,
    inlined,
    load_byte,
    load_half,
    load_int32,
    load_int64,
    store,
)

_SEGMENT, _UPDATE, _DELETE, _SNAPSHOT = 0, 1, 2, 3
_MOST_VARINT_BYTES = 5
_MOST_NAME_BYTES = 249
_UUID_BYTES = 16
_OFFSETS_AND_TIMES_BYTES = 36
_BROKER_AND_EVENT_BYTES = 12
_EPOCH_BYTES = 13
_LAST_SEGMENT_STATE, _LAST_DELETE_STATE = 3, 2


@inlined
def _uvarint(at: int, end: int) -> tuple[int, int]:
    """Return the number at `at` and the address after it, 0 if it is cut off or too long."""
    value = 0
    for i in range(_MOST_VARINT_BYTES):
        if at + i >= end:
            return 0, 0
        byte = load_byte(at + i)
        value |= (byte & 0x7F) << (7 * i)
        if byte <= 0x7F:
            return value, at + i + 1
    return 0, 0


@compiled
def _long_tags(at: int, end: int, flagged: int) -> tuple[int, int]:
    """Return whether the boolean with tag 0 is set, if `flagged`, and the address after the tags; 0: malformed."""
    found = 0
    count, at = _uvarint(at, end)
    while at and count:
        tag, at = _uvarint(at, end)
        if not at:
            break
        size, at = _uvarint(at, end)
        if not at or size > end - at:
            return 0, 0
        if flagged and tag == 0:
            if size != 1:
                return 0, 0
            found = int(load_byte(at) != 0)
        at += size
        count -= 1
    return found, at


@inlined
def _tags(at: int, end: int, flagged: int) -> tuple[int, int]:
    if at < end and load_byte(at) == 0:
        return 0, at + 1
    return _long_tags(at, end, flagged)


@inlined
def _is_in_name(byte: int) -> bool:
    if 0x61 <= byte <= 0x7A or 0x41 <= byte <= 0x5A or 0x30 <= byte <= 0x39:
        return True
    return byte in (0x2E, 0x2D, 0x5F)


@inlined
def _is_name(at: int, size: int) -> bool:
    if size < 1 or size > _MOST_NAME_BYTES:
        return False
    for i in range(size):
        if not _is_in_name(load_byte(at + i)):
            return False
    if size > 2:
        return True
    return load_byte(at) != 0x2E or load_byte(at + size - 1) != 0x2E


@inlined
def _put(columns: int, rows: int, row: int, column: int, value: int) -> None:
    store(columns + 8 * (column * rows + row), np.int64(value))


@inlined
def _uuid(at: int, end: int, columns: int, rows: int, row: int, column: int) -> int:
    """Read a UUID into two columns; return the address after it, 0 if it is cut off or one that Kafka reserves."""
    if end - at < _UUID_BYTES:
        return 0
    high, low = load_int64(at), load_int64(at + 8)
    if high == 0 and 0 <= low <= 1:
        return 0
    _put(columns, rows, row, column, high)
    _put(columns, rows, row, column + 1, low)
    return at + _UUID_BYTES


@inlined
def _partition(at: int, end: int, values: int, columns: int, rows: int, row: int) -> int:
    """Read a topic-id-partition; return the address after it, 0 if it is malformed."""
    size, at = _uvarint(at, end)
    size -= 1
    if not at or size > end - at or not _is_name(at, size):
        return 0
    _put(columns, rows, row, constants.METADATA_NAME, at - values)
    _put(columns, rows, row, constants.METADATA_NAME + 1, size)
    at = _uuid(at + size, end, columns, rows, row, constants.METADATA_TOPIC_ID)
    if not at or end - at < 4:
        return 0
    number = load_int32(at)
    if number < 0:
        return 0
    _put(columns, rows, row, constants.METADATA_PARTITION, number)
    _, at = _tags(at + 4, end, 0)
    return at


@inlined
def _epochs(at: int, end: int, values: int, columns: int, rows: int, row: int) -> int:
    """Read leader epochs; return the address after them, 0 if they are malformed."""
    _put(columns, rows, row, constants.METADATA_EPOCHS, at - values)
    count, at = _uvarint(at, end)
    count -= 1
    if not at or count < 1 or count * _EPOCH_BYTES > end - at:
        return 0
    _put(columns, rows, row, constants.METADATA_EPOCH_COUNT, count)
    _put(columns, rows, row, constants.METADATA_FIRST_EPOCH, load_int32(at))
    _put(columns, rows, row, constants.METADATA_FIRST_EPOCH + 1, load_int64(at + 4))
    for _ in range(count):
        if end - at < _EPOCH_BYTES - 1:
            return 0
        _, at = _tags(at + _EPOCH_BYTES - 1, end, 0)
        if not at:
            return 0
    return at


@inlined
def _segment_fields(at: int, end: int, values: int, columns: int, rows: int, row: int) -> int:
    """Read from the start offset to the size; return the address after it, 0 if something is malformed."""
    if end - at < _OFFSETS_AND_TIMES_BYTES:
        return 0
    start, last = load_int64(at), load_int64(at + 8)
    if start < 0 or last < start:
        return 0
    _put(columns, rows, row, constants.METADATA_START_OFFSET, start)
    _put(columns, rows, row, constants.METADATA_END_OFFSET, last)
    _put(columns, rows, row, constants.METADATA_BROKER, load_int32(at + 16))
    _put(columns, rows, row, constants.METADATA_MAX_TIMESTAMP, load_int64(at + 20))
    _put(columns, rows, row, constants.METADATA_EVENT_TIMESTAMP, load_int64(at + 28))
    at = _epochs(at + _OFFSETS_AND_TIMES_BYTES, end, values, columns, rows, row)
    if not at or end - at < 4:
        return 0
    size = load_int32(at)
    if size < 0:
        return 0
    _put(columns, rows, row, constants.METADATA_SIZE, size)
    return at + 4


@inlined
def _custom(at: int, end: int, values: int, columns: int, rows: int, row: int) -> int:
    """Read custom metadata; return the address after them, 0 if they are malformed."""
    size, at = _uvarint(at, end)
    size -= 1
    if not at or size > end - at:
        return 0
    _put(columns, rows, row, constants.METADATA_CUSTOM, at - values)
    _put(columns, rows, row, constants.METADATA_CUSTOM + 1, size)
    return at + max(size, 0)


@inlined
def _ids(at: int, end: int, kind: int, values: int, columns: int, rows: int, row: int) -> int:
    """Read the ids that a record of `kind` begins with; return the address after them, 0 if they are malformed."""
    if kind != _SNAPSHOT:
        at = _partition(at, end, values, columns, rows, row)
        if not at or kind == _DELETE:
            return at
    at = _uuid(at, end, columns, rows, row, constants.METADATA_SEGMENT_ID)
    if at and kind != _SNAPSHOT:
        _, at = _tags(at, end, 0)
    return at


@inlined
def _kind(at: int, end: int) -> tuple[int, int]:
    """Return the apiKey and the address after the version, 0 if one of the three numbers is unknown."""
    frame, at = _uvarint(at, end)
    if not at or frame != 1:
        return 0, 0
    kind, at = _uvarint(at, end)
    if not at or kind > _SNAPSHOT:
        return 0, 0
    version, at = _uvarint(at, end)
    if version:
        return 0, 0
    return kind, at


@inlined
def _fields(at: int, end: int, kind: int, values: int, columns: int, rows: int, row: int) -> int:
    """Read what a record of `kind` has between ids and state; return the address after it, 0: malformed."""
    if kind in (_SEGMENT, _SNAPSHOT):
        at = _segment_fields(at, end, values, columns, rows, row)
    elif end - at < _BROKER_AND_EVENT_BYTES:
        return 0
    else:
        _put(columns, rows, row, constants.METADATA_BROKER, load_int32(at))
        _put(columns, rows, row, constants.METADATA_EVENT_TIMESTAMP, load_int64(at + 4))
        at += _BROKER_AND_EVENT_BYTES
    if not at or kind == _DELETE:
        return at
    return _custom(at, end, values, columns, rows, row)


@compiled
def _is_sound(at: int, end: int, values: int, columns: int, rows: int, row: int) -> bool:
    """Decode one value into its row; return whether it is sound."""
    kind, at = _kind(at, end)
    if not at:
        return False
    _put(columns, rows, row, constants.METADATA_KIND, kind)
    at = _ids(at, end, kind, values, columns, rows, row)
    if not at:
        return False
    at = _fields(at, end, kind, values, columns, rows, row)
    if not at or at >= end or load_byte(at) > (_LAST_DELETE_STATE if kind == _DELETE else _LAST_SEGMENT_STATE):
        return False
    _put(columns, rows, row, constants.METADATA_STATE, load_byte(at))
    is_empty, at = _tags(at + 1, end, int(kind in (_SEGMENT, _SNAPSHOT)))
    _put(columns, rows, row, constants.METADATA_TRANSACTION_INDEX_EMPTY, is_empty)
    return at == end


def decode_metadata(values: int, ends: int, rows: int, columns: int) -> int:
    """Decode `rows` values into METADATA_COLUMNS `columns`; return how many are malformed.

    `ends` has the int32 position of the first value in `values`, then the end of each, as Arrow has them.
    """
    malformed = 0
    begin = load_half(ends)
    for row in range(rows):
        end = load_half(ends + 4 * (row + 1))
        sound = _is_sound(values + begin, values + end, values, columns, rows, row)
        _put(columns, rows, row, constants.METADATA_SOUND, int(sound))
        malformed += not sound
        begin = end
    return malformed
