"""Control records: records that Kafka writes for itself, in control batches (attribute bit 5).

    key     version             int16   0
            type                int16   0 abort, 1 commit, 2 leader change, 3 snapshot header, 4 snapshot footer,
                                        5 KRaft version, 6 KRaft voters
    value   of an abort or a commit, the end marker of a transaction:
            version             int16   0
            coordinator epoch   int32   of the transaction coordinator that ended it

KRaft puts several into one batch. The batch of an end marker has only that one, is transactional and has the producer's
id and epoch, but no sequence. A later version may add fields after these; they are skipped, as are unknown types.
Compaction can leave the batch without its record, once nothing else is left of the transaction.

Source: KIP-98; KIP-595 and KIP-630 (the types of KRaft); released Kafka.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tiered_storage.errors import CorruptRecordError
from tiered_storage.kafka_log.kernels.constants import (
    CONTROL_BIT,
    HIGHEST_OFFSET,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_BIT,
)
from tiered_storage.kafka_log.records.batch_header import NO_LEADER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, Buffer
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import encode_batch, read_records

VERSION = 0

_USUAL = struct.Struct(">qi4xb4xhiq22xi5shhchic")
"""The whole batch of an end marker as brokers write it, except the fields that are irrelevant for the marker."""
_USUAL_BYTES = _USUAL.size
_USUAL_FIELDS = (
    _USUAL_BYTES - LOG_OVERHEAD, MAGIC, TRANSACTIONAL_BIT | CONTROL_BIT, 0, 1, bytes.fromhex("2000000008"), VERSION,
    b"\x0c", VERSION, b"\x00",
)  # fmt: skip

_KEY = struct.Struct(">hh")
_END_MARKER = struct.Struct(">hi")


class ControlRecordType(IntEnum):
    """The type of a control record; UNKNOWN stands for every type of a later Kafka."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


_TYPES = {int(kind): kind for kind in ControlRecordType if kind is not ControlRecordType.UNKNOWN}


@dataclass(frozen=True, slots=True)
class EndTransactionMarker:
    """The end of a producer's transaction: `kind` is ABORT or COMMIT, `timestamp` (ms) the coordinator's time."""

    kind: ControlRecordType
    coordinator_epoch: int
    timestamp: int

    @property
    def is_abort(self) -> bool:
        """Whether the transaction's records are to be skipped by read_committed consumers."""
        return self.kind is ControlRecordType.ABORT


def read_control_type(key: bytes | None, *, source: str = "<memory>", source_position: int = 0) -> ControlRecordType:
    """Return the type of a control record with this `key`.

    Raises CorruptRecordError, naming `source` and `source_position`, if the key is too short or of no version.
    """
    if key is None or len(key) < _KEY.size:
        raise CorruptRecordError(source, source_position, "the key of a control record is cut")
    version, kind = _KEY.unpack_from(key)
    if version < 0:
        raise CorruptRecordError(source, source_position, f"a control record has version {version}")
    return _TYPES.get(kind, ControlRecordType.UNKNOWN)


def read_end_marker(
    batch: Buffer, *, source: str = "<memory>", source_position: int = 0
) -> EndTransactionMarker | None:
    """Return the end marker in the control batch `batch`; None if it has another control record, or none.

    Its checksum is not verified again. Raises CorruptRecordError, naming `source` and `source_position`, if its record
    cannot be read.
    """
    if marker := _usual_end_marker(batch):
        return marker
    records = read_records(batch, source=source, source_position=source_position, verify_crc=False)
    if not records:
        return None
    [record, *_] = records
    kind = read_control_type(record.key, source=source, source_position=source_position)
    if kind not in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
        return None
    if record.value is None or len(record.value) < _END_MARKER.size:
        raise CorruptRecordError(source, source_position, "the value of an end marker is cut")
    version, coordinator_epoch = _END_MARKER.unpack_from(record.value)
    if version < 0:
        raise CorruptRecordError(source, source_position, f"an end marker has version {version}")
    return EndTransactionMarker(kind, coordinator_epoch, record.timestamp)


def _usual_end_marker(batch: Buffer) -> EndTransactionMarker | None:
    """Return the marker of a batch as brokers write it, without decoding a record; None for any other batch."""
    if len(batch) != _USUAL_BYTES:
        return None
    (
        base_offset, length, magic, attributes, offset_delta, timestamp, count,
        until_key, key_version, kind, value_length, version, coordinator_epoch, headers,
    ) = _USUAL.unpack_from(batch)  # fmt: skip
    fields = length, magic, attributes, offset_delta, count, until_key, key_version, value_length, version, headers
    if fields != _USUAL_FIELDS or not 0 <= base_offset <= HIGHEST_OFFSET or kind not in (0, 1):
        return None
    return EndTransactionMarker(_TYPES[kind], coordinator_epoch, timestamp)


def encode_end_marker(
    marker: EndTransactionMarker,
    offset: int,
    *,
    producer_id: int,
    producer_epoch: int,
    partition_leader_epoch: int = NO_LEADER_EPOCH,
) -> bytes:
    """Return the control batch that ends a producer's transaction at `offset`, as a coordinator writes it."""
    key = _KEY.pack(VERSION, marker.kind)
    value = _END_MARKER.pack(VERSION, marker.coordinator_epoch)
    return encode_batch(
        [Record(offset, marker.timestamp, key, value)],
        partition_leader_epoch=partition_leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=NO_SEQUENCE,
        is_transactional=True,
        is_control=True,
    )


def marker_rows(batches: BatchTable) -> NDArray[np.int64]:
    """Return the rows of the control batches that may hold an end marker.

    Compaction leaves a control batch without its record if nothing is left of the transaction either.
    """
    is_control = (batches.attributes & CONTROL_BIT) != 0
    return np.flatnonzero((batches.producer_id > NO_PRODUCER_ID) & is_control & (batches.record_count > 0))


def marker_at(path: Path | str, window: memoryview, batches: BatchTable, row: int) -> EndTransactionMarker | None:
    """Return the end marker in one of `batches` of the log `path`, whose bytes are `window`; None: it has another one.

    Raises CorruptRecordError if its control record cannot be read.
    """
    position = int(batches.position[row])
    start = position - int(batches.position[0])
    batch = window[start : start + int(batches.size[row])]
    return read_end_marker(batch, source=str(path), source_position=position)


def abort_markers(path: Path | str, window: memoryview, batches: BatchTable) -> list[tuple[int, int]]:
    """Return producer id and offset of each abort marker in `batches` of the log `path`, whose bytes are `window`.

    Raises CorruptRecordError if a control record cannot be read.
    """
    return [
        (int(batches.producer_id[row]), int(batches.base_offset[row]))
        for row in marker_rows(batches).tolist()
        if (marker := marker_at(path, window, batches, row)) is not None and marker.is_abort
    ]
