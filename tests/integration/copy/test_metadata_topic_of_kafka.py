"""The metadata topic of a broker that tiers by itself: the library reads it, and Kafka's tool reads the library's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from golden.metadata_topic import METADATA_PARTITIONS, TOPICS, let_it_tier, metadata_kafka, metadata_topic_of
from servers.kafka_programs import KafkaPrograms
from servers.real_kafka import RealKafka
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.remote_log.metadata.topic.partitioner import metadata_partition
from tiered_storage.remote_log.metadata.topic.records import (
    MetadataEvent,
    RemoteLogSegmentMetadataSnapshot,
    decode_event,
    encode_event,
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

_DUMP = "org.apache.kafka.tools.DumpLogSegments"
_PAYLOAD = re.compile(r"^\| offset: .* payload: (.*)$", re.MULTILINE)

_PARTITION = TopicIdPartition("", random_uuid(), 7, "orders.eu")
_ID = RemoteLogSegmentId(_PARTITION, random_uuid())
_SEGMENT = RemoteLogSegmentMetadata(
    _ID,
    start_offset=300,
    end_offset=2**40,
    max_timestamp=1_700_000_000_000,
    event_timestamp=1_700_000_000_500,
    size=2**31 - 1,
    leader_epochs=tuple(EpochEntry(epoch, 300 + epoch) for epoch in range(140)),
    broker_id=3,
)
_SNAPSHOT = RemoteLogSegmentMetadataSnapshot(
    random_uuid(), 0, 9, 11, 12, 13, (EpochEntry(0, 0), EpochEntry(4, 5)), SegmentState.DELETE_SEGMENT_STARTED, 1, b"at"
)
OURS = (
    MetadataEvent(_SEGMENT, 3),
    MetadataEvent(replace(_SEGMENT, custom_metadata=bytes(200), state=SegmentState.DELETE_SEGMENT_FINISHED), 3, True),
    *(MetadataEvent(RemoteLogSegmentMetadataUpdate(_ID, state, 5, b"at"), 4) for state in list(SegmentState)[1:]),
    MetadataEvent(RemoteLogSegmentMetadataUpdate(_ID, SegmentState.COPY_SEGMENT_FINISHED, 5), 4),
    *(MetadataEvent(RemotePartitionDeleteMetadata(_PARTITION, state, 6), -1) for state in PartitionDeleteState),
    MetadataEvent(_SNAPSHOT, 1, True),
)
"""Of every kind, and in every state that Kafka's classes take."""


@pytest.fixture(scope="module")
def tiering(kafka_programs: KafkaPrograms, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    """A broker that has tiered some topics."""
    with metadata_kafka(kafka_programs, tmp_path_factory.mktemp("tiering")) as kafka:
        let_it_tier(kafka)
        yield kafka


def test_every_record_of_the_broker_is_read_and_would_be_written_the_same(tiering: RealKafka) -> None:
    topic = metadata_topic_of(tiering)

    events = topic.events()

    assert [encode_event(event) for event in events] == [each.value for each in topic.records]
    partitions = {_partition(event) for event in events}
    assert {(each.topic, each.partition) for each in partitions} == {
        (topic, partition) for topic, count in TOPICS.items() for partition in range(count)
    }
    assert {each.topic_id for each in partitions if each.topic == "orders"} == {tiering.client.topic_id("orders")}


def test_the_broker_has_put_each_record_where_the_partitioner_finds_it(tiering: RealKafka) -> None:
    topic = metadata_topic_of(tiering)

    where = [metadata_partition(_partition(event), METADATA_PARTITIONS) for event in topic.events()]

    assert where == [each.partition for each in topic.records]
    assert len(set(where)) > 1


def test_the_tool_of_kafka_prints_our_records(tiering: RealKafka, tmp_path: Path) -> None:
    values = [encode_event(event) for event in OURS]
    tiering.client.create_topic("written_by_us")
    tiering.client.produce("written_by_us", [Record(at, 1, None, value) for at, value in enumerate(values)])
    [log] = (tiering.log_dir / "written_by_us-0").glob("*.log")

    printed = tiering.tool(_DUMP, "--remote-log-metadata-decoder", "--files", log)

    assert _PAYLOAD.findall(printed) == [_printed(event) for event in OURS]
    assert [decode_event(value, "") for value in values] == list(OURS)


def _partition(event: MetadataEvent) -> TopicIdPartition:
    record = event.record
    assert not isinstance(record, RemoteLogSegmentMetadataSnapshot)
    return record.topic_id_partition if hasattr(record, "topic_id_partition") else record.segment_id.topic_id_partition


def _printed(event: MetadataEvent) -> str:
    """Return what Kafka's classes print of `event`."""
    record, broker, empty = event.record, event.broker_id, str(event.is_transaction_index_empty).lower()
    match record:
        case RemoteLogSegmentMetadata():
            return (
                f"RemoteLogSegmentMetadata{{remoteLogSegmentId={_id(record.segment_id)}, "
                f"startOffset={record.start_offset}, endOffset={record.end_offset}, brokerId={broker}, "
                f"maxTimestampMs={record.max_timestamp}, eventTimestampMs={record.event_timestamp}, "
                f"segmentLeaderEpochs={_epochs(record.leader_epochs)}, segmentSizeInBytes={record.size}, "
                f"customMetadata={_custom(record.custom_metadata)}, state={record.state.name}, txnIdxEmpty={empty}}}"
            )
        case RemoteLogSegmentMetadataUpdate():
            return (
                f"RemoteLogSegmentMetadataUpdate{{remoteLogSegmentId={_id(record.segment_id)}, "
                f"customMetadata={_custom(record.custom_metadata)}, state={record.state.name}, "
                f"eventTimestampMs={record.event_timestamp}, brokerId={broker}}}"
            )
        case RemotePartitionDeleteMetadata():
            return (
                f"RemotePartitionDeleteMetadata{{topicPartition={_name(record.topic_id_partition)}, "
                f"state=DELETE_PARTITION_{record.state.name}, eventTimestampMs={record.event_timestamp}, "
                f"brokerId={broker}}}"
            )
        case RemoteLogSegmentMetadataSnapshot():
            return (
                f"RemoteLogSegmentMetadataSnapshot{{segmentId={record.id}, startOffset={record.start_offset}, "
                f"endOffset={record.end_offset}, maxTimestampMs={record.max_timestamp}, "
                f"segmentLeaderEpochs={_epochs(record.leader_epochs)}, segmentSizeInBytes={record.size}, "
                f"customMetadata={_custom(record.custom_metadata)}, state={record.state.name}, txnIdxEmpty={empty}}}"
            )


def _name(partition: TopicIdPartition) -> str:
    return f"{partition.topic_id}:{partition.topic}-{partition.partition}"


def _id(segment_id: RemoteLogSegmentId) -> str:
    return f"RemoteLogSegmentId{{topicIdPartition={_name(segment_id.topic_id_partition)}, id={segment_id.id}}}"


def _epochs(entries: tuple[EpochEntry, ...]) -> str:
    return "{" + ", ".join(f"{each.epoch}={each.start_offset}" for each in entries) + "}"


def _custom(content: bytes | None) -> str:
    return "Optional.empty" if content is None else f"Optional[CustomMetadata{{{len(content)} bytes}}]"
