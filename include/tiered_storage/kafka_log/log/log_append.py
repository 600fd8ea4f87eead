"""How a log changes batches from producers, and checks batches from a leader, before it appends them.

batch_validation.py checks batches from producers.

Source: LogValidator and UnifiedLog of released Kafka.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from tiered_storage.errors import ConfigurationError, UnexpectedAppendOffsetError
from tiered_storage.kafka_log.kernels.constants import INT32_MAX
from tiered_storage.kafka_log.log.batch_validation import SOURCE
from tiered_storage.kafka_log.records.batch_header import (
    LEGACY_MAGICS,
    NO_LEADER_EPOCH,
    BatchHeader,
    TimestampType,
    check_crc,
    read_batch_header,
    read_whole_header,
)
from tiered_storage.kafka_log.records.control_record import EndTransactionMarker, read_end_marker
from tiered_storage.kafka_log.records.legacy_message import read_true_header
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import correct_max_timestamp, restamp_batch

_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")
_LEADER_EPOCH_POSITION = 12


@dataclass(frozen=True, slots=True)
class PlacedBatch:
    """A batch as it is appended, and its header."""

    content: bytes | bytearray | memoryview
    header: BatchHeader

    @classmethod
    def of(cls, content: bytes | bytearray) -> PlacedBatch:
        """Read the header of `content`."""
        return cls(content, read_batch_header(content, source=SOURCE))


def place_records(records: Sequence[Record], base_offset: int) -> list[Record]:
    """Return `records` with offsets from `base_offset` on."""
    return [
        Record(offset, record.timestamp, record.key, record.value, record.headers)
        for offset, record in enumerate(records, base_offset)
    ]


def place_batch(
    batch: bytes, base_offset: int, leader_epoch: int, max_timestamp: int, timestamp_type: TimestampType
) -> PlacedBatch:
    """Return the encoded `batch` of a producer with its place in the log, and its largest timestamp (ms) corrected.

    With LOG_APPEND_TIME that is the log's own time, and stamps the batch. Raises CorruptRecordError if its offsets
    would exceed the highest possible one.
    """
    placed = bytearray(batch)
    _BASE_OFFSET.pack_into(placed, 0, base_offset)
    _LEADER_EPOCH.pack_into(placed, _LEADER_EPOCH_POSITION, leader_epoch)
    if timestamp_type is TimestampType.LOG_APPEND_TIME:
        restamp_batch(placed, max_timestamp)
    elif max_timestamp != read_batch_header(batch, source=SOURCE).max_timestamp:
        correct_max_timestamp(placed, max_timestamp)
    return PlacedBatch.of(placed)


def split_batches(content: bytes, next_offset: int, leader_epoch: int | None, partition: str) -> list[PlacedBatch]:
    """Return the batches in `content`, as a leader sent them for a log that ends before `next_offset`.

    An incomplete last batch is left out, and so is everything from the first batch with a leader epoch above
    `leader_epoch` on. Raises CorruptRecordError if one is corrupt, and UnexpectedAppendOffsetError, naming `partition`,
    if one begins below the end of the one before it.
    """
    batches: list[PlacedBatch] = []
    at = 0
    while (header := read_whole_header(content, at, source=SOURCE)) is not None:
        if leader_epoch is not None and header.partition_leader_epoch > leader_epoch:
            break
        batch = memoryview(content)[at : at + header.size]
        check_crc(batch, source=SOURCE, source_position=at)
        if header.magic in LEGACY_MAGICS:
            header = read_true_header(batch, source=SOURCE, source_position=at)
        if header.base_offset < next_offset:
            raise UnexpectedAppendOffsetError(
                f"{partition}: a batch begins at offset {header.base_offset}, the log continues at {next_offset}: "
                "truncate the log to where it agrees with its leader, or fetch from there"
            )
        batches.append(PlacedBatch(batch, header))
        next_offset = header.next_offset
        at += header.size
    return batches


def read_markers(batches: Sequence[PlacedBatch]) -> list[EndTransactionMarker | None]:
    """Return the end marker of each of `batches`, sent by a leader one after the other; None if it has none.

    Raises CorruptRecordError, with the position in what was sent, if a control record cannot be read.
    """
    markers: list[EndTransactionMarker | None] = []
    at = 0
    for batch in batches:
        is_control = batch.header.is_control
        markers.append(read_end_marker(batch.content, source=SOURCE, source_position=at) if is_control else None)
        at += batch.header.size
    return markers


def check_size(header: BatchHeader, most: int, partition: str) -> None:
    """Raise ConfigurationError, naming `partition`, if a batch has more than `most` bytes."""
    if header.size > most:
        raise ConfigurationError(
            f"{partition}: a batch of {header.size} bytes is larger than the {most} bytes that "
            "max_message_bytes and segment_bytes allow: append fewer records at once"
        )


def check_leader_epoch(leader_epoch: int, latest: int | None, partition: str) -> None:
    """Raise ConfigurationError, naming `partition`, if `leader_epoch` is invalid, or before the `latest` one."""
    if leader_epoch > INT32_MAX or leader_epoch < (0 if latest is None else latest):
        raise ConfigurationError(f"{partition}: leader epoch {leader_epoch} cannot follow epoch {latest or 0}")


def check_followed_epochs(batches: Sequence[PlacedBatch], latest: int | None, partition: str) -> None:
    """Raise ConfigurationError, naming `partition`, if the known leader epochs of `batches` fall."""
    for batch in batches:
        epoch = batch.header.partition_leader_epoch
        if epoch != NO_LEADER_EPOCH:
            check_leader_epoch(epoch, latest, partition)
            latest = epoch
