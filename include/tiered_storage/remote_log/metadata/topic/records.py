"""The values of the records in the metadata topic, byte for byte as released Kafka writes them.

    frame version        uvarint   1
    apiKey               uvarint   0 segment, 1 segment update, 2 partition delete, 3 segment snapshot
    version              uvarint   0
    the message:
      topic name         compact string    \\
      topic id           uuid               | the topic-id-partition; not in a snapshot
      partition          int32              |
      tags                                 /
      segment id         uuid              not in a partition delete
      tags                                 not in a partition delete, not in a snapshot
      start offset       int64             \\
      end offset         int64              | a segment and a snapshot only; the end is inclusive
      broker id          int32             (in all)
      max timestamp      int64              | ms; a segment and a snapshot only
      event timestamp    int64             (in all) ms
      leader epochs      compact array      | of (epoch int32, start offset int64, tags), by rising epoch
      size               int32             /  bytes
      custom metadata    nullable compact bytes; not in a partition delete
      state              int8              RemoteLogSegmentState, or RemotePartitionDeleteState
      tags               tag 0, of a segment and a snapshot: int8, 1 if its transaction index is empty

A tags section is a uvarint count of (tag uvarint, size uvarint, bytes); unknown tags are skipped, as Kafka does. The
bytes cannot hold a fencing number, the `max_timestamp` of an update or its `rolled`.

Source: KIP-405; the messages of released Kafka 4.3.1 (RemoteLogMetadataSerde).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

from tiered_storage.errors import ConfigurationError
from tiered_storage.kafka_log.files.kafka_uuid import decode_uuid
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.files.topic_partition import is_topic_name
from tiered_storage.remote_log.metadata.topic.value_reader import (
    BROKER_AND_EVENT,
    EPOCH,
    INT32,
    OFFSETS_AND_TIMES,
    ValueReader,
)
from tiered_storage.remote_log.model import (
    PartitionDeleteState,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    SegmentState,
    TopicIdPartition,
)

FRAME_VERSION: Final = 1
RECORD_VERSION: Final = 0
TRANSACTION_INDEX_EMPTY_TAG: Final = 0
UNKNOWN_BROKER: Final = -1


class RecordKind(IntEnum):
    """The apiKey of a record."""

    SEGMENT = 0
    SEGMENT_UPDATE = 1
    PARTITION_DELETE = 2
    SEGMENT_SNAPSHOT = 3


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentMetadataSnapshot:
    """A segment in a snapshot of one partition's metadata, which names the partition elsewhere.

    `id` is the segment's Kafka Uuid; the other fields are those of RemoteLogSegmentMetadata.
    """

    id: str
    start_offset: int
    end_offset: int
    max_timestamp: int
    event_timestamp: int
    size: int
    leader_epochs: tuple[EpochEntry, ...]
    state: SegmentState
    broker_id: int = UNKNOWN_BROKER
    custom_metadata: bytes | None = None


MetadataRecord: TypeAlias = (
    RemoteLogSegmentMetadata
    | RemoteLogSegmentMetadataUpdate
    | RemotePartitionDeleteMetadata
    | RemoteLogSegmentMetadataSnapshot
)
"""What a record of the metadata topic says."""


@dataclass(frozen=True, slots=True)
class MetadataEvent:
    """A record with what its value has besides.

    `broker_id` is the broker that wrote it. `is_transaction_index_empty` is False for an update and a partition delete.
    """

    record: MetadataRecord
    broker_id: int = UNKNOWN_BROKER
    is_transaction_index_empty: bool = False


def encode_record(record: MetadataRecord, broker_id: int = UNKNOWN_BROKER) -> bytes:
    """Return the value that Kafka writes for `record`; `broker_id` is written unless the record has one of its own.

    Raises as `encode_event`.
    """
    if isinstance(record, RemoteLogSegmentMetadata | RemoteLogSegmentMetadataSnapshot):
        broker_id = broker_id if record.broker_id == UNKNOWN_BROKER else record.broker_id
    return encode_event(MetadataEvent(record, broker_id))


def encode_event(event: MetadataEvent) -> bytes:
    """Return the value that Kafka writes for `event`.

    Raises ConfigurationError if the format cannot hold it: a segment without leader epochs, an update with `rolled`, a
    number that is too large, an id that is not a UUID, a name that is not a topic's.
    """
    record, broker_id = event.record, event.broker_id
    try:
        match record:
            case RemoteLogSegmentMetadata():
                head = _frame(RecordKind.SEGMENT) + _segment_id(record.segment_id)
                return head + _segment_fields(record, broker_id) + _segment_tags(event)
            case RemoteLogSegmentMetadataUpdate():
                if record.rolled is not None:
                    raise _refused(record, "an update cannot hold offsets: write them with the segment")
                head = _frame(RecordKind.SEGMENT_UPDATE) + _segment_id(record.segment_id)
                fields = BROKER_AND_EVENT.pack(broker_id, record.event_timestamp)
                return head + fields + _custom(record.custom_metadata) + bytes((record.state, 0))
            case RemotePartitionDeleteMetadata():
                head = _frame(RecordKind.PARTITION_DELETE) + _partition(record.topic_id_partition)
                return head + BROKER_AND_EVENT.pack(broker_id, record.event_timestamp) + bytes((record.state, 0))
            case RemoteLogSegmentMetadataSnapshot():
                head = _frame(RecordKind.SEGMENT_SNAPSHOT) + decode_uuid(record.id)
                return head + _segment_fields(record, broker_id) + _segment_tags(event)
    except struct.error as error:
        raise _refused(record, str(error)) from error


def decode_record(value: bytes | memoryview, cluster_id: str) -> MetadataRecord:
    """Return the record in `value`, which came from the metadata topic of the cluster `cluster_id`.

    A segment's fencing number is 0. Raises as `decode_event`.
    """
    return decode_event(value, cluster_id).record


def decode_event(value: bytes | memoryview, cluster_id: str) -> MetadataEvent:
    """Return the record in `value` and what it has besides.

    Raises MalformedMetadataRecordError for every value that Kafka's own reader refuses, for names and ids that no topic
    or segment has, and for a negative partition or size.
    """
    reader = ValueReader(bytes(value))
    event = _DECODERS[_kind(reader)](reader, cluster_id)
    reader.end()
    return event


def _refused(record: MetadataRecord, reason: str) -> ConfigurationError:
    match record:
        case RemotePartitionDeleteMetadata():
            what: object = record.topic_id_partition
        case RemoteLogSegmentMetadataSnapshot():
            what = record.id
        case _:
            what = record.segment_id
    return ConfigurationError(f"{what}: cannot be written to the metadata topic: {reason}")


def _frame(kind: RecordKind) -> bytes:
    return bytes((FRAME_VERSION, kind, RECORD_VERSION))


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _partition(partition: TopicIdPartition) -> bytes:
    if not is_topic_name(partition.topic):
        raise ConfigurationError(f"{partition.topic!r} is not a topic name: the metadata topic cannot have it")
    name = partition.topic.encode()
    if partition.partition < 0:
        raise ConfigurationError(f"{partition}: a partition's number is 0 or more")
    number = INT32.pack(partition.partition)
    return _uvarint(len(name) + 1) + name + decode_uuid(partition.topic_id) + number + b"\0"


def _segment_id(segment_id: RemoteLogSegmentId) -> bytes:
    return _partition(segment_id.topic_id_partition) + decode_uuid(segment_id.id) + b"\0"


def _segment_fields(segment: RemoteLogSegmentMetadata | RemoteLogSegmentMetadataSnapshot, broker_id: int) -> bytes:
    if not segment.leader_epochs:
        raise _refused(segment, "it has no leader epochs, and Kafka requires one")
    if not 0 <= segment.start_offset <= segment.end_offset:
        raise _refused(segment, f"its offsets {segment.start_offset} to {segment.end_offset} are invalid")
    if segment.size < 0:
        raise _refused(segment, f"its size of {segment.size} bytes is invalid")
    offsets_and_times = OFFSETS_AND_TIMES.pack(
        segment.start_offset, segment.end_offset, broker_id, segment.max_timestamp, segment.event_timestamp
    )
    epochs = {entry.epoch: entry.start_offset for entry in segment.leader_epochs}
    encoded = b"".join(EPOCH.pack(epoch, epochs[epoch]) + b"\0" for epoch in sorted(epochs))
    after = INT32.pack(segment.size) + _custom(segment.custom_metadata) + bytes((segment.state,))
    return offsets_and_times + _uvarint(len(epochs) + 1) + encoded + after


def _custom(custom_metadata: bytes | None) -> bytes:
    return b"\0" if custom_metadata is None else _uvarint(len(custom_metadata) + 1) + custom_metadata


def _segment_tags(event: MetadataEvent) -> bytes:
    return bytes((1, TRANSACTION_INDEX_EMPTY_TAG, 1, 1)) if event.is_transaction_index_empty else b"\0"


def _kind(reader: ValueReader) -> RecordKind:
    reader.expect("frame version", FRAME_VERSION)
    at = reader.position
    api_key = reader.uvarint()
    if api_key not in _DECODERS:
        raise reader.refused(f"apiKey {api_key} is unknown", at)
    reader.expect("version", RECORD_VERSION)
    return RecordKind(api_key)


def _segment(reader: ValueReader, cluster_id: str) -> MetadataEvent:
    segment_id = reader.segment_id(cluster_id)
    start, end, broker_id, max_timestamp, event_timestamp = reader.offsets_and_times()
    epochs, size, custom = reader.leader_epochs(), reader.size(), reader.custom_metadata()
    state, is_empty = reader.state(SegmentState), reader.tags(TRANSACTION_INDEX_EMPTY_TAG)
    segment = RemoteLogSegmentMetadata(
        segment_id, start, end, max_timestamp, event_timestamp, size, epochs, state, broker_id, custom
    )
    return MetadataEvent(segment, broker_id, is_empty)


def _segment_update(reader: ValueReader, cluster_id: str) -> MetadataEvent:
    segment_id = reader.segment_id(cluster_id)
    broker_id, event_timestamp = reader.broker_and_event()
    custom, state = reader.custom_metadata(), reader.state(SegmentState)
    reader.tags()
    return MetadataEvent(RemoteLogSegmentMetadataUpdate(segment_id, state, event_timestamp, custom), broker_id)


def _partition_delete(reader: ValueReader, cluster_id: str) -> MetadataEvent:
    partition = reader.partition(cluster_id)
    broker_id, event_timestamp = reader.broker_and_event()
    state = reader.state(PartitionDeleteState)
    reader.tags()
    return MetadataEvent(RemotePartitionDeleteMetadata(partition, state, event_timestamp), broker_id)


def _segment_snapshot(reader: ValueReader, _: str) -> MetadataEvent:
    segment_id = reader.uuid()
    start, end, broker_id, max_timestamp, event_timestamp = reader.offsets_and_times()
    epochs, size, custom = reader.leader_epochs(), reader.size(), reader.custom_metadata()
    state, is_empty = reader.state(SegmentState), reader.tags(TRANSACTION_INDEX_EMPTY_TAG)
    snapshot = RemoteLogSegmentMetadataSnapshot(
        segment_id, start, end, max_timestamp, event_timestamp, size, epochs, state, broker_id, custom
    )
    return MetadataEvent(snapshot, broker_id, is_empty)


_DECODERS: Mapping[int, Callable[[ValueReader, str], MetadataEvent]] = {
    RecordKind.SEGMENT: _segment,
    RecordKind.SEGMENT_UPDATE: _segment_update,
    RecordKind.PARTITION_DELETE: _partition_delete,
    RecordKind.SEGMENT_SNAPSHOT: _segment_snapshot,
}
