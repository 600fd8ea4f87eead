"""Kafka's record batch of magic 2: 61 bytes of header, big-endian, then its records, compressed as one piece.

Messages of magic 0 and 1 (legacy_message.py) stand beside batches in older segments, and have a header here too.

     0  base offset              int64    of the first record as it was written
     8  batch length             int32    bytes after this field
    12  partition leader epoch   int32    the broker sets it, so no checksum covers it
    16  magic                    int8     2
    17  crc                      uint32   CRC-32C of everything after this field
    21  attributes               int16    bits 0-2 codec, 3 timestamp type, 4 transactional, 5 control,
                                          6 the base timestamp is the delete horizon
    23  last offset delta        int32    stays when compaction takes the last record
    27  base timestamp           int64    of the first record, ms since the epoch
    35  max timestamp            int64    ms; with log append time the broker's time, valid for every record
    43  producer id              int64    -1: none
    51  producer epoch           int16
    53  base sequence            int32
    57  record count             int32
    61  records                           see record.py

The first 12 bytes are called the log overhead. Compaction can leave only the header of a batch.

Source: KIP-98; KIP-32 (timestamp types); KIP-534 (delete horizon); released Kafka.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum

from tiered_storage.errors import CorruptRecordError, UnsupportedMagicError
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.kafka_log.kernels.constants import (
    APPEND_TIME_BIT,
    BATCH_OVERHEAD,
    CODEC_BITS,
    CONTROL_BIT,
    CRC_END,
    DELETE_HORIZON_BIT,
    HIGHEST_OFFSET,
    INT32_MAX,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_BIT,
)
from tiered_storage.kafka_log.records.compression import Compression

Buffer = bytes | bytearray | memoryview

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1
NO_LEADER_EPOCH = -1

MAGIC_END = 17
"""Bytes up to and including the magic, the least that shows a batch's size and generation."""


LEGACY_MAGICS = (0, 1)
"""The magics of messages, which are older than batches."""

_HIGHEST_CODECS = (int(Compression.LZ4), int(Compression.LZ4), int(max(Compression)))
"""By magic."""
_HEADER = struct.Struct(">qiibIhiqqqhii")
LEGACY_HEADER = struct.Struct(">qiIbB")
"""Of a message, up to its attributes: see legacy_message.py."""
_LEGACY_TIMESTAMP = struct.Struct(">18xq")
_SIZE = struct.Struct(">8xi4xb")
_CRC = struct.Struct(">17xI")
LEGACY_CRC_END = MAGIC_END - 1
"""Where a message's checksum ends, and what it covers begins."""
_LEAST_LENGTHS = (14, 22, BATCH_OVERHEAD - LOG_OVERHEAD)
"""By magic."""
LEAST_BATCH_BYTES = LOG_OVERHEAD + min(_LEAST_LENGTHS)
"""The size of the smallest batch or message of any magic."""


class TimestampType(IntEnum):
    """Whose clock stamped a batch: the producer's (CREATE_TIME) or the broker's (LOG_APPEND_TIME)."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The header of one batch; `size` is all of it on disk, header and records, in bytes."""

    base_offset: int
    size: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> int:
        """The last offset that the batch covers (inclusive), though its record may be compacted away."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The first offset after the batch."""
        return self.last_offset + 1

    @property
    def last_sequence(self) -> int:
        """The last record's sequence number, which wraps from 2**31 - 1 to 0; -1 without a producer id."""
        return sequence_after(self.base_sequence, self.last_offset_delta)

    @property
    def has_producer(self) -> bool:
        """Whether the batch comes from a producer that numbers its records: ids below 0 mean none."""
        return self.producer_id > NO_PRODUCER_ID

    @property
    def compression(self) -> Compression:
        """The codec of the records."""
        return Compression(self.attributes & CODEC_BITS)

    @property
    def timestamp_type(self) -> TimestampType:
        """Whose clock stamped the records."""
        return TimestampType.LOG_APPEND_TIME if self.attributes & APPEND_TIME_BIT else TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        """Whether the records become visible to read_committed consumers with a later commit marker only."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """Whether the batch carries a marker of Kafka's own, which no consumer gets."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def has_delete_horizon(self) -> bool:
        """Whether compaction replaced the base timestamp by the delete horizon (ms)."""
        return bool(self.attributes & DELETE_HORIZON_BIT)


def sequence_after(sequence: int, records: int) -> int:
    """Return the sequence number `records` after `sequence`; -1 (none) stays -1."""
    return NO_SEQUENCE if sequence == NO_SEQUENCE else (sequence + records) & INT32_MAX


def batch_size(buffer: Buffer, position: int = 0, *, source: str = "<memory>", source_position: int = 0) -> int:
    """Return the size of the whole batch or message at `position` in bytes; `buffer` needs to hold only its first 17.

    Errors name `source` and the place in it; `source_position` is the place of the first byte of `buffer`.
    Raises UnsupportedMagicError for an unknown magic, CorruptRecordError for an impossible size.
    """
    place = source_position + position
    if len(buffer) - position < MAGIC_END:
        raise CorruptRecordError(source, place, f"truncated: {len(buffer) - position} bytes of a batch header")
    length, magic = _SIZE.unpack_from(buffer, position)
    if length < min(_LEAST_LENGTHS):
        raise CorruptRecordError(source, place, f"a batch length of {length} is too small for a batch of any magic")
    if not 0 <= magic <= MAGIC:
        raise UnsupportedMagicError(source, place, f"the batch has magic {magic}; only magic 0 to {MAGIC} are known")
    if length < _LEAST_LENGTHS[magic]:
        reason = f"a batch length of {length} is too small for a batch header of magic {magic}"
        raise CorruptRecordError(source, place, reason)
    return LOG_OVERHEAD + int(length)


def read_batch_header(
    buffer: Buffer, position: int = 0, *, source: str = "<memory>", source_position: int = 0
) -> BatchHeader:
    """Read the header at `position` of `buffer`; the records after it need not be there.

    The header of compressed messages of magic 0 or 1 shows only the last of their offsets: the base offset is that one
    too, and the record count -1. Their attributes are those that Kafka heeds.
    Errors name `source` and the place in it; `source_position` is the place of the first byte of `buffer`.
    Raises UnsupportedMagicError for an unknown magic, CorruptRecordError for an invalid header.
    """
    place = source_position + position
    batch_size(buffer, position, source=source, source_position=source_position)
    magic = buffer[position + MAGIC_END - 1]
    least = LOG_OVERHEAD + _LEAST_LENGTHS[magic]
    if len(buffer) - position < least:
        reason = f"truncated: {len(buffer) - position} bytes of a batch header of {least}"
        raise CorruptRecordError(source, place, reason)
    header = _read_legacy(buffer, position) if magic in LEGACY_MAGICS else _read_current(buffer, position)
    if header.base_offset < 0:
        raise CorruptRecordError(source, place, f"the base offset is {header.base_offset}")
    if header.last_offset_delta < 0:
        raise CorruptRecordError(source, place, f"the last offset delta is {header.last_offset_delta}")
    if header.last_offset > HIGHEST_OFFSET:
        raise CorruptRecordError(source, place, f"the last offset is {header.last_offset}, above {HIGHEST_OFFSET}")
    if magic == MAGIC and not 0 <= header.record_count <= header.last_offset_delta + 1:
        reason = f"{header.record_count} records in a range of {header.last_offset_delta + 1} offsets"
        raise CorruptRecordError(source, place, reason)
    codec, highest = header.attributes & CODEC_BITS, _HIGHEST_CODECS[magic]
    if codec > highest:
        raise CorruptRecordError(source, place, f"codec {codec} is unknown; Kafka has 0 to {highest} in magic {magic}")
    return header


def read_whole_header(
    buffer: Buffer, position: int = 0, *, source: str = "<memory>", source_position: int = 0
) -> BatchHeader | None:
    """Return the header at `position` as read_batch_header does; None if `buffer` ends before its batch does.

    A header that is there is checked all the same.
    """
    left = len(buffer) - position
    if left < MAGIC_END:
        return None
    magic = buffer[position + MAGIC_END - 1]
    if left < LOG_OVERHEAD + _LEAST_LENGTHS[magic if magic in LEGACY_MAGICS else MAGIC]:
        return None
    header = read_batch_header(buffer, position, source=source, source_position=source_position)
    return header if header.size <= left else None


def _read_current(buffer: Buffer, position: int) -> BatchHeader:
    base_offset, length, *rest = _HEADER.unpack_from(buffer, position)
    return BatchHeader(base_offset, LOG_OVERHEAD + length, *rest)


def _read_legacy(buffer: Buffer, position: int) -> BatchHeader:
    offset, length, crc, magic, attributes = LEGACY_HEADER.unpack_from(buffer, position)
    timestamp = _LEGACY_TIMESTAMP.unpack_from(buffer, position)[0] if magic else NO_TIMESTAMP
    heeded = attributes & (CODEC_BITS | APPEND_TIME_BIT if magic else CODEC_BITS)
    return BatchHeader(
        base_offset=offset,
        size=LOG_OVERHEAD + length,
        partition_leader_epoch=NO_LEADER_EPOCH,
        magic=magic,
        crc=crc,
        attributes=heeded,
        last_offset_delta=0,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        base_sequence=NO_SEQUENCE,
        record_count=-1 if heeded & CODEC_BITS else 1,
    )


def check_crc(batch: Buffer, *, source: str = "<memory>", source_position: int = 0) -> None:
    """Compare the checksum in the header of `batch`, which is exactly one whole batch, with that of its bytes.

    Raises CorruptRecordError, naming `source`, `source_position` and both checksums, if they differ.
    """
    view = memoryview(batch)
    if view[MAGIC_END - 1] in LEGACY_MAGICS:
        name, stored, computed = "CRC-32", LEGACY_HEADER.unpack_from(batch)[2], zlib.crc32(view[LEGACY_CRC_END:])
    else:
        name, stored, computed = "CRC-32C", _CRC.unpack_from(batch)[0], crc32c(view[CRC_END:])
    if stored != computed:
        reason = f"the batch's {name} is 0x{computed:08x}, its header says 0x{stored:08x}"
        raise CorruptRecordError(source, source_position, reason)
