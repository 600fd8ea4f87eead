"""Encode and decode whole record batches of magic 2; batch_header.py and record.py have the layout.

Source: KIP-98; KIP-32 (timestamp types).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from tiered_storage.errors import ConfigurationError, CorruptRecordError
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.kafka_log.kernels.constants import (
    APPEND_TIME_BIT,
    BATCH_OVERHEAD,
    CONTROL_BIT,
    CRC_END,
    DELETE_HORIZON_BIT,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_BIT,
)
from tiered_storage.kafka_log.records.batch_header import (
    LEGACY_MAGICS,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    TimestampType,
    check_crc,
    read_batch_header,
    read_whole_header,
)
from tiered_storage.kafka_log.records.compression import (
    DEFAULT_MAX_DECOMPRESSED_BYTES,
    Compression,
    compress,
    decompress,
)
from tiered_storage.kafka_log.records.legacy_message import read_legacy_batch
from tiered_storage.kafka_log.records.record import INT64_MAX, Record, decode_records, encode_records

__all__ = [
    "BATCH_OVERHEAD",
    "LOG_OVERHEAD",
    "NO_LEADER_EPOCH",
    "NO_PRODUCER_EPOCH",
    "NO_PRODUCER_ID",
    "NO_SEQUENCE",
    "NO_TIMESTAMP",
    "BatchHeader",
    "Compression",
    "Record",
    "TimestampType",
    "assembled_batch",
    "correct_max_timestamp",
    "encode_batch",
    "encode_empty_batch",
    "iterate_batches",
    "iterate_records",
    "read_batch_header",
    "read_records",
    "restamp_batch",
]

_UNCHECKED_HEADER = struct.Struct(">qiib")
_CHECKED_HEADER = struct.Struct(">hiqqqhii")
_INT64 = struct.Struct(">q")
_MAX_TIMESTAMP_POSITION = 35


def encode_batch(
    records: Sequence[Record],
    compression: Compression = Compression.NONE,
    *,
    partition_leader_epoch: int = 0,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
    delete_horizon: int | None = None,
) -> bytes:
    """Return one batch of `records`, whose offsets rise; its base offset is the first one's.

    With LOG_APPEND_TIME the latest timestamp is the append time, which readers give to every record. A
    `delete_horizon` (ms) replaces the base timestamp, as compaction writes it.
    Raises ConfigurationError if there are no records, or one batch cannot hold them.
    """
    _check_records(records)
    first, last = records[0], records[-1]
    base_timestamp = first.timestamp if delete_horizon is None else delete_horizon
    attributes = (
        compression
        | (APPEND_TIME_BIT if timestamp_type is TimestampType.LOG_APPEND_TIME else 0)
        | (TRANSACTIONAL_BIT if is_transactional else 0)
        | (CONTROL_BIT if is_control else 0)
        | (0 if delete_horizon is None else DELETE_HORIZON_BIT)
    )
    try:
        return assembled_batch(
            first.offset,
            partition_leader_epoch,
            (
                attributes,
                last.offset - first.offset,
                base_timestamp,
                max(record.timestamp for record in records),
                producer_id,
                producer_epoch,
                base_sequence,
                len(records),
            ),
            compress(compression, encode_records(records, first.offset, base_timestamp)),
        )
    except (struct.error, UnicodeEncodeError, TypeError) as error:
        raise ConfigurationError(f"records from offset {first.offset} do not fit a batch: {error}") from error


def assembled_batch(base_offset: int, leader_epoch: int, fields: tuple[int, ...], records: bytes) -> bytes:
    """Return the batch of the encoded `records`; `fields` are those of its header from the attributes on.

    Raises struct.error if a field does not fit.
    """
    checked = _CHECKED_HEADER.pack(*fields) + records
    prefix = _UNCHECKED_HEADER.pack(base_offset, CRC_END - LOG_OVERHEAD + len(checked), leader_epoch, MAGIC)
    return prefix + crc32c(checked).to_bytes(4, "big") + checked


def encode_empty_batch(batch: Buffer) -> bytes:
    """Return the header that compaction leaves of `batch` if none of its records stays.

    It keeps offsets, producer and sequence numbers, but no base timestamp and no delete horizon. Raises as
    read_batch_header does.
    """
    header = read_batch_header(batch)
    kept = header.attributes & (APPEND_TIME_BIT | TRANSACTIONAL_BIT | CONTROL_BIT)
    fields = (
        kept,
        header.last_offset_delta,
        NO_TIMESTAMP,
        header.max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        0,
    )
    return assembled_batch(header.base_offset, header.partition_leader_epoch, fields, b"")


def restamp_batch(batch: bytearray, append_time: int) -> None:
    """Stamp the encoded `batch` in place with `append_time` (ms), as a broker does.

    The records keep the producer's times in their deltas, though no reader shows them. The checksum is recomputed.
    """
    attributes = int.from_bytes(batch[CRC_END : CRC_END + 2], "big") | APPEND_TIME_BIT
    batch[CRC_END : CRC_END + 2] = attributes.to_bytes(2, "big")
    correct_max_timestamp(batch, append_time)


def correct_max_timestamp(batch: bytearray, max_timestamp: int) -> None:
    """Set the largest timestamp (ms) in the header of the encoded `batch`, and recompute its checksum."""
    _INT64.pack_into(batch, _MAX_TIMESTAMP_POSITION, max_timestamp)
    batch[CRC_END - 4 : CRC_END] = crc32c(memoryview(batch)[CRC_END:]).to_bytes(4, "big")


def _check_records(records: Sequence[Record]) -> None:
    if not records:
        raise ConfigurationError("a batch needs at least one record")
    previous = -1
    for record in records:
        if record.offset <= previous:
            raise ConfigurationError(f"offset {record.offset} follows {previous}: offsets in a batch must rise from 0")
        if record.timestamp < NO_TIMESTAMP:
            raise ConfigurationError(f"timestamp {record.timestamp} at offset {record.offset} is before 1970")
        if record.timestamp - records[0].timestamp > INT64_MAX:
            raise ConfigurationError(
                f"timestamp {record.timestamp} at offset {record.offset} is too far after the batch's first one"
            )
        previous = record.offset


def read_records(
    buffer: Buffer,
    *,
    source: str = "<memory>",
    source_position: int = 0,
    verify_crc: bool = True,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> list[Record]:
    """Return the records of the one batch in `buffer`; otherwise as iterate_records."""
    return list(
        iterate_records(
            buffer,
            source=source,
            source_position=source_position,
            verify_crc=verify_crc,
            max_decompressed_bytes=max_decompressed_bytes,
        )
    )


def iterate_batches(buffer: Buffer, *, source: str = "<memory>") -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the header and the bytes of each whole batch in `buffer`, whose last one may be cut off, as by a fetch.

    Checksums are not verified. Errors name `source`. Raises as read_batch_header does.
    """
    data, position = memoryview(buffer), 0
    while (header := read_whole_header(data, position, source=source)) is not None:
        yield header, data[position : position + header.size]
        position += header.size


def iterate_records(
    buffer: Buffer,
    *,
    source: str = "<memory>",
    source_position: int = 0,
    verify_crc: bool = True,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> Iterator[Record]:
    """Yield the records of the one batch in `buffer` one at a time, from its first to its last byte.

    All of them as objects may take twenty times their decompressed size; messages of magic 0 and 1 are read at once.
    Errors name `source` and `source_position`, the place of the batch in it. Raises as read_batch_header does, and
    CorruptRecordError for a wrong checksum, corrupt or too large compressed data, and records that contradict the
    header.
    """
    header = read_batch_header(buffer, source=source, source_position=source_position)
    if header.magic in LEGACY_MAGICS:
        yield from read_legacy_batch(
            buffer,
            source=source,
            source_position=source_position,
            verify_crc=verify_crc,
            max_decompressed_bytes=max_decompressed_bytes,
        ).records()
        return
    if header.size != len(buffer):
        reason = f"the batch has {header.size} bytes, but {len(buffer)} are given"
        raise CorruptRecordError(source, source_position, reason)
    if verify_crc:
        check_crc(buffer, source=source, source_position=source_position)
    body = memoryview(buffer)[BATCH_OVERHEAD:]
    if header.record_count == 0:
        if body:
            raise CorruptRecordError(source, source_position, f"{len(body)} bytes follow the header of an empty batch")
        return
    data = decompress(
        header.compression, body, max_bytes=max_decompressed_bytes, source=source, source_position=source_position
    )
    yield from decode_records(data, header, source=source, source_position=source_position)
