"""Messages of Kafka's formats v0 and v1, which record batches (v2) replaced in release 0.11. Big-endian:

     0  offset                   int64
     8  message size             int32    bytes after this field
    12  crc                      uint32   CRC-32 (zlib's) of everything after this field
    16  magic                    int8     0 or 1
    17  attributes               int8     bits 0-2 codec: none, gzip, snappy or lz4; in v1, bit 3 timestamp type.
                                          Kafka ignores the others
    18  timestamp                int64    only in v1: ms since the epoch, -1: none
    ..  key size                 int32    below 0: null; then the key
    ..  value size               int32    the same; then the value. Kafka ignores what follows

A message with a codec is a wrapper: its value is compressed, and holds messages of the same magic without a codec. Its
offset is that of the last one. In v0 the offsets inside are absolute; in v1 they are relative: the last one has the
wrapper's offset, the others lie as far before it as their numbers say. A v1 wrapper of create time has the largest
timestamp inside; one of log append time has the broker's, which is valid for all messages inside. Compaction leaves
gaps between the offsets inside. A message that is cut off at the end of a wrapper is ignored, as Kafka does.

The lz4 frames of v0 have a wrong checksum in their header: it covers the frame's magic number too. Readers ignore it.

Such a message, or wrapper, stands for a batch here, without leader epoch, producer and transaction.

Source: KIP-31 (relative offsets); KIP-32 (timestamps); LegacyRecord, AbstractLegacyRecordBatch and
KafkaLZ4BlockOutputStream of released Kafka.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tiered_storage.errors import ConfigurationError, CorruptRecordError
from tiered_storage.kafka_log.kernels.constants import APPEND_TIME_BIT, CODEC_BITS, LOG_OVERHEAD
from tiered_storage.kafka_log.records.batch_header import (
    LEGACY_CRC_END,
    LEGACY_HEADER,
    LEGACY_MAGICS,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    TimestampType,
    check_crc,
    read_batch_header,
)
from tiered_storage.kafka_log.records.compression import (
    DEFAULT_MAX_DECOMPRESSED_BYTES,
    Compression,
    compress,
    decompress,
)
from tiered_storage.kafka_log.records.record import Record

_INT64, _INT32 = struct.Struct(">q"), struct.Struct(">i")
_LEAST_SIZE = 14
"""Kafka refuses a smaller message size."""

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_CONTENT_SIZE, _LZ4_DICTIONARY = 1 << 3, 1
_MASK = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class LegacyMessage:
    """One message as it is stored: in a wrapper of v1 its `offset` is relative. `timestamp` (ms) is -1 in v0."""

    offset: int
    crc: int
    magic: int
    attributes: int
    timestamp: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class LegacyBatch:
    """A message that is no wrapper, or the messages in a wrapper, with absolute offsets and their producers' times.

    `header` is what the header of a batch would say. With log append time, its largest timestamp is valid for all
    messages.
    """

    header: BatchHeader
    messages: tuple[LegacyMessage, ...]

    def records(self) -> Iterator[Record]:
        """Yield the records as consumers get them."""
        append_time = self.append_time
        for one in self.messages:
            yield Record(one.offset, one.timestamp if append_time is None else append_time, one.key, one.value)

    @property
    def append_time(self) -> int | None:
        """The broker's time (ms) that is valid for every record; None with create time."""
        by_broker = self.header.timestamp_type is TimestampType.LOG_APPEND_TIME
        return self.header.max_timestamp if by_broker else None


def read_legacy_batch(
    buffer: Buffer,
    *,
    source: str = "<memory>",
    source_position: int = 0,
    verify_crc: bool = True,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> LegacyBatch:
    """Read the one message or wrapper of magic 0 or 1 in `buffer`, from its first to its last byte.

    With `verify_crc`, the checksums of the messages in a wrapper are verified too. Errors name `source` and
    `source_position`, the place of the message in it. Raises as read_batch_header does, and CorruptRecordError for a
    wrong checksum, fields that do not fit, compressed data that is corrupt or too large, and messages that do not
    belong in their wrapper: compressed ones, ones of another magic, and offsets that do not rise up to the wrapper's.
    """
    header = read_batch_header(buffer, source=source, source_position=source_position)
    if header.size != len(buffer):
        reason = f"the message has {header.size} bytes, but {len(buffer)} are given"
        raise CorruptRecordError(source, source_position, reason)
    if verify_crc:
        check_crc(buffer, source=source, source_position=source_position)
    try:
        outer = _read_message(bytes(buffer), 0, header.size)
        if header.compression is Compression.NONE:
            return LegacyBatch(header, (outer,))
        content = decompress(
            header.compression,
            _compressed(outer),
            max_bytes=max_decompressed_bytes,
            source=source,
            source_position=source_position,
        )
        messages = _absolute(header, list(_messages_within(content, header.magic, verify_crc=verify_crc)))
    except ValueError as error:
        raise CorruptRecordError(source, source_position, str(error)) from error
    first = messages[0]
    return LegacyBatch(
        replace(
            header,
            base_offset=first.offset,
            last_offset_delta=header.last_offset - first.offset,
            base_timestamp=first.timestamp,
            record_count=len(messages),
        ),
        messages,
    )


def read_true_header(batch: Buffer, *, source: str = "<memory>", source_position: int = 0) -> BatchHeader:
    """Return the header of the one whole batch in `batch`; for compressed messages with what only the inside shows.

    Their checksum is not verified. Raises as read_legacy_batch does.
    """
    header = read_batch_header(batch, source=source, source_position=source_position)
    if header.magic not in LEGACY_MAGICS or header.compression is Compression.NONE:
        return header
    return read_legacy_batch(batch, source=source, source_position=source_position, verify_crc=False).header


def _read_message(data: bytes, position: int, end: int) -> LegacyMessage:
    offset, _, crc, magic, attributes = LEGACY_HEADER.unpack_from(data, position)
    at, timestamp = position + LEGACY_HEADER.size, NO_TIMESTAMP
    if magic == 1:
        if at + _INT64.size > end:
            raise ValueError("the message ends before its timestamp does")
        (timestamp,) = _INT64.unpack_from(data, at)
        at += _INT64.size
    key, at = _read_bytes(data, at, end, "key")
    value, _ = _read_bytes(data, at, end, "value")
    return LegacyMessage(offset, crc, magic, attributes, timestamp, key, value)


def _read_bytes(data: bytes, position: int, end: int, what: str) -> tuple[bytes | None, int]:
    start = position + _INT32.size
    if start > end:
        raise ValueError(f"the message ends before the size of its {what}")
    (size,) = _INT32.unpack_from(data, position)
    if size < 0:
        return None, start
    if start + size > end:
        raise ValueError(f"the {what} has {size} bytes, its message {end - start}")
    return data[start : start + size], start + size


def _compressed(wrapper: LegacyMessage) -> bytes:
    """Return what `wrapper` holds, which an lz4 frame's checksum need not fit in v0."""
    if wrapper.value is None:
        raise ValueError("a compressed message has no value")
    if wrapper.magic == 0 and wrapper.value.startswith(_LZ4_MAGIC):
        return _with_checksum(wrapper.value, covers_magic=False)
    return wrapper.value


def _messages_within(content: bytes, magic: int, *, verify_crc: bool) -> Iterator[LegacyMessage]:
    """Yield the messages in the decompressed `content` of a wrapper of `magic`, with their offsets as they are."""
    position = number = 0
    while len(content) - position >= LOG_OVERHEAD:
        number += 1
        (size,) = _INT32.unpack_from(content, position + 8)
        if size < _LEAST_SIZE:
            raise ValueError(f"message {number} in the wrapper has a size of {size} bytes, less than {_LEAST_SIZE}")
        end = position + LOG_OVERHEAD + size
        if end > len(content):
            return
        message = _read_message(content, position, end)
        if message.magic != magic:
            raise ValueError(f"message {number} in the wrapper has magic {message.magic}, the wrapper {magic}")
        if message.attributes & CODEC_BITS:
            raise ValueError(f"message {number} in the wrapper is compressed itself")
        if verify_crc and zlib.crc32(memoryview(content)[position + LEGACY_CRC_END : end]) != message.crc:
            raise ValueError(f"message {number} in the wrapper does not have the CRC-32 that it says")
        yield message
        position = end


def _absolute(header: BatchHeader, messages: list[LegacyMessage]) -> tuple[LegacyMessage, ...]:
    """Return `messages` of the wrapper with `header` with their absolute offsets."""
    if not messages:
        raise ValueError("there is no message in the wrapper")
    shift = header.last_offset - messages[-1].offset if header.magic == 1 else 0
    lowest = 0
    for number, message in enumerate(messages, 1):
        if not lowest <= message.offset + shift <= header.last_offset:
            raise ValueError(
                f"message {number} in the wrapper has offset {message.offset + shift}, not in {lowest} to "
                f"{header.last_offset}"
            )
        lowest = message.offset + shift + 1
    return tuple(replace(message, offset=message.offset + shift) for message in messages) if shift else tuple(messages)


def encode_messages(
    records: Sequence[Record],
    magic: int,
    compression: Compression = Compression.NONE,
    *,
    append_time: int | None = None,
) -> bytes:
    """Return `records`, whose offsets rise, as messages of `magic` (0 or 1), or as one wrapper with a codec.

    `append_time` (ms) stamps them with log append time, in v1: what is compressed keeps the producers' times inside.
    Raises ConfigurationError if there are no records, or these formats cannot hold them: headers, zstd.
    """
    if magic not in (0, 1) or compression is Compression.ZSTD or not records or any(one.headers for one in records):
        what = f"{len(records)} records with codec {compression.name.lower()} as messages of magic {magic}"
        raise ConfigurationError(f"{what}: magic 0 and 1 hold records without headers, and know no zstd")
    if magic == 0 and append_time is not None:
        raise ConfigurationError("messages of magic 0 have no time")
    attributes = 0 if append_time is None else APPEND_TIME_BIT
    try:
        if compression is Compression.NONE:
            stamped = (one if append_time is None else replace(one, timestamp=append_time) for one in records)
            return b"".join(
                _encode(one.offset, magic, attributes, one.timestamp, one.key, one.value) for one in stamped
            )
        base = records[0].offset if magic == 1 else 0
        inside = (_encode(one.offset - base, magic, 0, one.timestamp, one.key, one.value) for one in records)
        value = compress(compression, b"".join(inside))
        if compression is Compression.LZ4 and magic == 0:
            value = _with_checksum(value, covers_magic=True)
        timestamp = max(one.timestamp for one in records) if append_time is None else append_time
        return _encode(records[-1].offset, magic, attributes | compression, timestamp, None, value)
    except struct.error as error:
        raise ConfigurationError(f"records from offset {records[0].offset} do not fit messages: {error}") from error


def _encode(offset: int, magic: int, attributes: int, timestamp: int, key: bytes | None, value: bytes | None) -> bytes:
    checked = struct.pack(">bB", magic, attributes) + (_INT64.pack(timestamp) if magic == 1 else b"")
    for field in (key, value):
        checked += _INT32.pack(-1) if field is None else _INT32.pack(len(field)) + field
    return struct.pack(">qiI", offset, 4 + len(checked), zlib.crc32(checked)) + checked


def _with_checksum(frame: bytes, *, covers_magic: bool) -> bytes:
    """Return the lz4 `frame` with the checksum of its descriptor, or of its magic number and that (v0)."""
    if len(frame) <= len(_LZ4_MAGIC):
        return frame
    flags = frame[len(_LZ4_MAGIC)]
    end = len(_LZ4_MAGIC) + 2 + (8 if flags & _LZ4_CONTENT_SIZE else 0) + (4 if flags & _LZ4_DICTIONARY else 0)
    covered = frame[0 if covers_magic else len(_LZ4_MAGIC) : end]
    return frame[:end] + bytes([_xxh32(covered) >> 8 & 0xFF]) + frame[end + 1 :]


def _xxh32(data: bytes) -> int:
    """Return the xxHash of fewer than 16 bytes, or of any number of them in a way that no reader compares."""
    first, second, third, fourth, fifth = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1
    state = fifth + len(data)
    whole = len(data) // 4 * 4
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        state = _rotated(state + word * third, 17) * fourth
    for byte in data[whole:]:
        state = _rotated(state + byte * fifth, 11) * first
    state &= _MASK
    state = (state ^ state >> 15) * second & _MASK
    state = (state ^ state >> 13) * third & _MASK
    return state ^ state >> 16


def _rotated(state: int, bits: int) -> int:
    state &= _MASK
    return (state << bits | state >> (32 - bits)) & _MASK
