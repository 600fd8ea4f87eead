"""One record of a v2 batch, and the run of records that a batch carries (compressed as one piece, or not at all).

    length            varint   bytes that follow
    attributes        int8     unused
    timestamp delta   varlong  ms, against the batch's base timestamp
    offset delta      varint   against the batch's base offset
    key length        varint   -1: null, as Java reads all below 0; then the key
    value length      varint   the same; then the value
    header count      varint   then, for each header:
        key length    varint   then the key, in UTF-8; Java's consumers read U+FFFD for invalid bytes
        value length  varint   as above; then the value

Source: KIP-98; KIP-82 (headers).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tiered_storage.errors import CorruptRecordError
from tiered_storage.kafka_log.records.batch_header import BatchHeader, TimestampType

MAX_VARINT_BYTES = 5
MAX_VARLONG_BYTES = 10
_MOST_ZIGZAG = {MAX_VARINT_BYTES: (1 << 32) - 1, MAX_VARLONG_BYTES: (1 << 64) - 1}


def append_varint(out: bytearray, value: int) -> None:
    """Append `value`, which fits int32 for a varint and int64 for a varlong, to `out`."""
    zigzag = value << 1 if value >= 0 else (~value << 1) | 1
    while zigzag > 0x7F:
        out.append((zigzag & 0x7F) | 0x80)
        zigzag >>= 7
    out.append(zigzag)


def read_varint(buffer: bytes, position: int, max_bytes: int = MAX_VARINT_BYTES) -> tuple[int, int]:
    """Return the value of the varint at `position`, an int32, and the position after it.

    Raises IndexError if the buffer ends inside it, ValueError if it exceeds 5 bytes: a caller names the place.
    """
    byte = buffer[position]
    if byte <= 0x7F:
        return (byte >> 1) ^ -(byte & 1), position + 1
    following = buffer[position + 1]
    if following <= 0x7F:
        zigzag = following << 7 | byte & 0x7F
        return (zigzag >> 1) ^ -(zigzag & 1), position + 2
    return _read_long_varint(buffer, position, max_bytes)


def read_varlong(buffer: bytes, position: int) -> tuple[int, int]:
    """Return the value of the varlong at `position`, an int64, and the position after it.

    Raises IndexError if the buffer ends inside it, ValueError if it exceeds 10 bytes: a caller names the place.
    """
    return read_varint(buffer, position, MAX_VARLONG_BYTES)


def _read_long_varint(buffer: bytes, position: int, max_bytes: int) -> tuple[int, int]:
    zigzag = 0
    for i in range(max_bytes):
        byte = buffer[position + i]
        zigzag |= (byte & 0x7F) << (7 * i)
        if byte <= 0x7F:
            break
    else:
        raise ValueError(f"a varint is longer than {max_bytes} bytes")
    zigzag &= _MOST_ZIGZAG[max_bytes]
    return (zigzag >> 1) ^ -(zigzag & 1), position + i + 1


INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Record:
    """A record: its absolute `offset`, its `timestamp` (ms since the epoch, -1: none), and its bytes as produced."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def encode_records(records: Sequence[Record], base_offset: int, base_timestamp: int) -> bytes:
    """Return `records` one after the other, relative to the base offset and timestamp of their batch.

    Raises UnicodeEncodeError for a header key that UTF-8 cannot hold, TypeError for one that is not text.
    """
    out = bytearray()
    for record in records:
        body = _encode_body(record, record.offset - base_offset, record.timestamp - base_timestamp)
        append_varint(out, len(body))
        out += body
    return bytes(out)


def _encode_body(record: Record, offset_delta: int, timestamp_delta: int) -> bytearray:
    body = bytearray(1)
    append_varint(body, timestamp_delta)
    append_varint(body, offset_delta)
    _append_bytes(body, record.key)
    _append_bytes(body, record.value)
    append_varint(body, len(record.headers))
    for key, value in record.headers:
        if not isinstance(key, str):
            raise TypeError(f"the header key {key!r} is not text")
        _append_bytes(body, key.encode())
        _append_bytes(body, value)
    return body


def _append_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        append_varint(out, -1)
        return
    append_varint(out, len(value))
    out += value


class LossyText(str):
    """Text with U+FFFD in place of invalid UTF-8: encoding it again does not give the original bytes."""

    __slots__ = ()


def decode_header_key(key: bytes) -> str:
    """Return a header's key; LossyText if it is not UTF-8, as Java's consumers get it: brokers accept it."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return LossyText(key.decode(errors="replace"))


def decode_records(data: bytes, header: BatchHeader, *, source: str, source_position: int) -> Iterator[Record]:
    """Yield the records in `data`, which is decompressed, from its first to its last byte.

    Raises CorruptRecordError, naming `source` and `source_position` (of the batch), if they contradict `header`.
    """
    append_time = header.max_timestamp if header.timestamp_type is TimestampType.LOG_APPEND_TIME else None
    position = count = 0
    lowest_offset, last_offset = header.base_offset, header.last_offset
    try:
        for count in range(header.record_count):  # noqa: B007 - errors name it
            record, position = _decode_record(data, position, header, append_time)
            _check_offset(record.offset, lowest_offset, last_offset)
            lowest_offset = record.offset + 1
            yield record
    except IndexError as error:
        reason = f"record {count + 1} of {header.record_count} runs past the end of its batch"
        raise CorruptRecordError(source, source_position, reason) from error
    except ValueError as error:
        reason = f"record {count + 1} of {header.record_count}: {error}"
        raise CorruptRecordError(source, source_position, reason) from error
    if position != len(data):
        reason = f"{len(data) - position} bytes follow the last of {header.record_count} records"
        raise CorruptRecordError(source, source_position, reason)


def _decode_record(data: bytes, position: int, header: BatchHeader, append_time: int | None) -> tuple[Record, int]:
    length, position = read_varint(data, position)
    end = position + length
    if length < 0 or end > len(data):
        raise ValueError(f"it has {length} bytes, its batch {len(data) - position}")
    timestamp_delta, position = read_varlong(data, position + 1)
    offset_delta, position = read_varint(data, position)
    key, position = _read_bytes(data, position, end)
    value, position = _read_bytes(data, position, end)
    header_count, position = read_varint(data, position)
    headers: Headers = ()
    if header_count:
        headers, position = _read_headers(data, position, end, header_count)
    if position != end:
        raise ValueError(f"its fields take {length - end + position} bytes, its length says {length}")
    timestamp = wrapped(header.base_timestamp + timestamp_delta) if append_time is None else append_time
    return Record(header.base_offset + offset_delta, timestamp, key, value, headers), position


def wrapped(timestamp: int) -> int:
    """Return `timestamp` wrapped to 64 bits: brokers and clients in Java add deltas so, and refuse no record."""
    return timestamp if INT64_MIN <= timestamp <= INT64_MAX else (timestamp - INT64_MIN) % (1 << 64) + INT64_MIN


def _check_offset(offset: int, lowest: int, highest: int) -> None:
    if not lowest <= offset <= highest:
        raise ValueError(f"offset {offset} is not in {lowest} to {highest}")


def _read_bytes(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = read_varint(data, position)
    if length < 0:
        return None, position
    stop = position + length
    if stop > end:
        raise ValueError(f"a field has {length} bytes, its record {end - position}")
    return data[position:stop], stop


def _read_headers(data: bytes, position: int, end: int, count: int) -> tuple[Headers, int]:
    if not 0 <= count <= end - position:
        raise ValueError(f"{count} headers in {end - position} bytes")
    headers = []
    for _ in range(count):
        key, position = _read_bytes(data, position, end)
        if key is None:
            raise ValueError("a header has no key")
        value, position = _read_bytes(data, position, end)
        headers.append((decode_header_key(key), value))
    return tuple(headers), position
