"""Kafka's record batch of magic 2: 61 bytes of header, big-endian, then its records, compressed as one piece.

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


_HIGHEST_CODEC = int(max(Compression))
_HEADER = struct.Struct(">qiibIhiqqqhii")
_SIZE = struct.Struct(">8xi4xb")
_CRC = struct.Struct(">17xI")
_SMALLEST_LENGTH_OF_ANY_MAGIC = 14


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
    """Return the size of the whole batch at `position` in bytes; `buffer` needs to hold only its first 17.

    Errors name `source` and the place in it; `source_position` is the place of the first byte of `buffer`.
    Raises UnsupportedMagicError for a batch of another magic, CorruptRecordError for an impossible size.
    """
    place = source_position + position
    if len(buffer) - position < MAGIC_END:
        raise CorruptRecordError(source, place, f"truncated: {len(buffer) - position} bytes of a batch header")
    length, magic = _SIZE.unpack_from(buffer, position)
    if length < _SMALLEST_LENGTH_OF_ANY_MAGIC:
        raise CorruptRecordError(source, place, f"a batch length of {length} is too small for a batch of any magic")
    if magic != MAGIC:
        raise UnsupportedMagicError(source, place, f"the batch has magic {magic}; only magic {MAGIC} is read here")
    size = LOG_OVERHEAD + int(length)
    if size < BATCH_OVERHEAD:
        raise CorruptRecordError(source, place, f"a batch length of {length} is too small for a batch header")
    return size


def read_batch_header(
    buffer: Buffer, position: int = 0, *, source: str = "<memory>", source_position: int = 0
) -> BatchHeader:
    """Read the header at `position` of `buffer`; the records after it need not be there.

    Errors name `source` and the place in it; `source_position` is the place of the first byte of `buffer`.
    Raises UnsupportedMagicError for a batch of another magic, CorruptRecordError for an invalid header.
    """
    place = source_position + position
    batch_size(buffer, position, source=source, source_position=source_position)
    if len(buffer) - position < BATCH_OVERHEAD:
        reason = f"truncated: {len(buffer) - position} bytes of a batch header of {BATCH_OVERHEAD}"
        raise CorruptRecordError(source, place, reason)
    base_offset, length, *rest = _HEADER.unpack_from(buffer, position)
    header = BatchHeader(base_offset, LOG_OVERHEAD + length, *rest)
    if base_offset < 0:
        raise CorruptRecordError(source, place, f"the base offset is {base_offset}")
    if header.last_offset_delta < 0:
        raise CorruptRecordError(source, place, f"the last offset delta is {header.last_offset_delta}")
    if header.last_offset > HIGHEST_OFFSET:
        raise CorruptRecordError(source, place, f"the last offset is {header.last_offset}, above {HIGHEST_OFFSET}")
    if not 0 <= header.record_count <= header.last_offset_delta + 1:
        reason = f"{header.record_count} records in a range of {header.last_offset_delta + 1} offsets"
        raise CorruptRecordError(source, place, reason)
    codec = header.attributes & CODEC_BITS
    if codec > _HIGHEST_CODEC:
        raise CorruptRecordError(source, place, f"codec {codec} is unknown; Kafka has 0 to {_HIGHEST_CODEC}")
    return header


def check_crc(batch: Buffer, *, source: str = "<memory>", source_position: int = 0) -> None:
    """Compare the checksum in the header of `batch`, which is exactly one whole batch, with that of its bytes.

    Raises CorruptRecordError, naming `source`, `source_position` and both checksums, if they differ.
    """
    (stored,) = _CRC.unpack_from(batch)
    computed = crc32c(memoryview(batch)[CRC_END:])
    if stored != computed:
        reason = f"the batch's CRC-32C is 0x{computed:08x}, its header says 0x{stored:08x}"
        raise CorruptRecordError(source, source_position, reason)
