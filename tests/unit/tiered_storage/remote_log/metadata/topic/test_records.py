from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.metadata_topic import GOLDEN, MetadataTopic
from support.metadata_records import CLUSTER, metadata_events
from tiered_storage.errors import ConfigurationError, MalformedMetadataRecordError
from tiered_storage.kafka_log.files.kafka_uuid import encode_uuid
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.metadata.topic.partitioner import metadata_partition
from tiered_storage.remote_log.metadata.topic.records import (
    MetadataEvent,
    MetadataRecord,
    RemoteLogSegmentMetadataSnapshot,
    decode_event,
    decode_record,
    encode_event,
    encode_record,
)
from tiered_storage.remote_log.model import (
    PartitionDeleteState,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    RolledSegment,
    SegmentState,
    TopicIdPartition,
)

TOPIC_ID, SEGMENT_ID = bytes(range(16)), bytes(range(100, 116))
PARTITION = TopicIdPartition(CLUSTER, encode_uuid(TOPIC_ID), 3, "orders")
ID = RemoteLogSegmentId(PARTITION, encode_uuid(SEGMENT_ID))
EPOCHS = (EpochEntry(0, 5), EpochEntry(2, 1_000))
SEGMENT = RemoteLogSegmentMetadata(
    ID,
    start_offset=10,
    end_offset=1_999,
    max_timestamp=1_700_000_000_123,
    event_timestamp=1_700_000_999_456,
    size=16_384,
    leader_epochs=EPOCHS,
    broker_id=7,
)
UPDATE = RemoteLogSegmentMetadataUpdate(ID, SegmentState.COPY_SEGMENT_FINISHED, 1_700_000_999_999, b"at")
DELETE = RemotePartitionDeleteMetadata(PARTITION, PartitionDeleteState.STARTED, 1_700_001_000_000)

_PARTITION_BYTES = b"\7orders" + TOPIC_ID + bytes.fromhex("00000003 00")
_TIMES = bytes.fromhex("0000018bcfe5687b 0000018bcff4a820")
_SEGMENT_BYTES = (
    bytes.fromhex("000000000000000a 00000000000007cf 00000007")
    + _TIMES
    + bytes.fromhex("03 00000000 0000000000000005 00 00000002 00000000000003e8 00 00004000 00 00 00")
)
SEGMENT_VALUE = bytes.fromhex("01 00 00") + _PARTITION_BYTES + SEGMENT_ID + b"\0" + _SEGMENT_BYTES
UPDATE_VALUE = (
    bytes.fromhex("01 01 00")
    + _PARTITION_BYTES
    + SEGMENT_ID
    + bytes.fromhex("00 00000009 0000018bcff4aa3f 03 6174 01 00")
)
DELETE_VALUE = bytes.fromhex("01 02 00") + _PARTITION_BYTES + bytes.fromhex("00000009 0000018bcff4aa40 01 00")
SNAPSHOT_VALUE = bytes.fromhex("01 03 00") + SEGMENT_ID + _SEGMENT_BYTES


@pytest.mark.parametrize(
    ("record", "value"), [(SEGMENT, SEGMENT_VALUE), (UPDATE, UPDATE_VALUE), (DELETE, DELETE_VALUE)]
)
def test_the_layout_is_that_of_the_module(record: MetadataRecord, value: bytes) -> None:
    assert encode_record(record, broker_id=9).hex() == value.hex()
    assert decode_record(memoryview(value), CLUSTER) == record


def test_a_snapshot_names_no_partition() -> None:
    snapshot = decode_record(SNAPSHOT_VALUE, CLUSTER)

    assert isinstance(snapshot, RemoteLogSegmentMetadataSnapshot)
    assert (snapshot.id, snapshot.size, snapshot.leader_epochs) == (ID.id, 16_384, EPOCHS)
    assert encode_record(snapshot) == SNAPSHOT_VALUE


@given(metadata_events())
def test_every_record_comes_back(event: MetadataEvent) -> None:
    value = encode_event(event)

    assert decode_event(value, CLUSTER) == event
    assert decode_record(value, CLUSTER) == event.record


@given(metadata_events(), st.data())
def test_no_part_of_a_value_is_a_record_and_nothing_may_follow(event: MetadataEvent, data: st.DataObject) -> None:
    value = encode_event(event)
    size = data.draw(st.integers(0, len(value) - 1))

    with pytest.raises(MalformedMetadataRecordError) as cut:
        decode_record(value[:size], CLUSTER)
    with pytest.raises(MalformedMetadataRecordError) as longer:
        decode_record(value + data.draw(st.binary(min_size=1, max_size=5)), CLUSTER)

    assert 0 <= cut.value.position <= size
    assert longer.value.position == len(value)


@given(metadata_events(), st.data())
def test_changed_bytes_are_another_record_or_malformed(event: MetadataEvent, data: st.DataObject) -> None:
    value = bytearray(encode_event(event))
    for at in data.draw(st.lists(st.integers(0, len(value) - 1), min_size=1, max_size=4)):
        value[at] = data.draw(st.integers(0, 255))
    try:
        decoded = decode_event(bytes(value), CLUSTER)
    except MalformedMetadataRecordError as error:
        assert 0 <= error.position <= len(value)
    else:
        assert decode_event(encode_event(decoded), CLUSTER) == decoded


@given(st.binary(max_size=200), st.integers(0, 3))
def test_random_bytes_are_malformed(random: bytes, kind: int) -> None:
    with pytest.raises(MalformedMetadataRecordError):
        decode_record(random[:40], CLUSTER)
    with pytest.raises(MalformedMetadataRecordError):
        decode_record(bytes((1, kind, 0)) + b"\xff" * 4 + random, CLUSTER)


def changed(value: bytes, at: int, new: bytes) -> bytes:
    return value[:at] + new + value[at + len(new) :]


NAME_AT, TOPIC_ID_AT = 3, 10
PARTITION_AT = TOPIC_ID_AT + 16
SEGMENT_ID_AT = PARTITION_AT + 5
OFFSETS_AT = SEGMENT_ID_AT + 17
EPOCHS_AT = OFFSETS_AT + 36
SIZE_AT = EPOCHS_AT + 1 + 26


@pytest.mark.parametrize(
    ("value", "position", "reason"),
    [
        (b"", 0, "varint"),
        (changed(SEGMENT_VALUE, 0, b"\0"), 0, "frame version 0"),
        (changed(SEGMENT_VALUE, 0, b"\2"), 0, "frame version 2"),
        (changed(SEGMENT_VALUE, 1, b"\4"), 1, "apiKey 4"),
        (changed(SEGMENT_VALUE, 2, b"\1"), 2, "version 1"),
        (b"\x80\x80\x80\x80\x80\1" + SEGMENT_VALUE[1:], 0, "varint"),
        (changed(SEGMENT_VALUE, NAME_AT, b"\0"), 4, "-1 bytes"),
        (changed(SEGMENT_VALUE, NAME_AT, b"\1"), NAME_AT, "not a topic name"),
        (changed(SEGMENT_VALUE, NAME_AT + 1, b"/"), NAME_AT, "not a topic name"),
        (changed(SEGMENT_VALUE, NAME_AT + 1, b"\xff"), NAME_AT, "not a topic name"),
        (changed(SEGMENT_VALUE, NAME_AT, b"\xff\xff\xff\xff\x0f"), 8, "4294967294 bytes"),
        (changed(SEGMENT_VALUE, TOPIC_ID_AT, bytes(16)), TOPIC_ID_AT, "reserves"),
        (changed(SEGMENT_VALUE, PARTITION_AT, b"\xff" * 4), PARTITION_AT, "-1 is negative"),
        (changed(SEGMENT_VALUE, SEGMENT_ID_AT, bytes(15) + b"\1"), SEGMENT_ID_AT, "reserves"),
        (changed(SEGMENT_VALUE, OFFSETS_AT, b"\xff" * 8), OFFSETS_AT, "-1 to 1999"),
        (changed(SEGMENT_VALUE, OFFSETS_AT + 8, bytes(8)), OFFSETS_AT, "10 to 0"),
        (changed(SEGMENT_VALUE, EPOCHS_AT, b"\0"), EPOCHS_AT, "-1 leader epochs"),
        (changed(SEGMENT_VALUE, EPOCHS_AT, b"\1"), EPOCHS_AT, "0 leader epochs"),
        (changed(SEGMENT_VALUE, EPOCHS_AT, b"\x7f"), EPOCHS_AT, "126 leader epochs"),
        (changed(SEGMENT_VALUE, SIZE_AT, b"\x80"), SIZE_AT, "-2147467264 bytes"),
        (changed(SEGMENT_VALUE, len(SEGMENT_VALUE) - 2, b"\4"), len(SEGMENT_VALUE) - 2, "SegmentState 4"),
        (changed(DELETE_VALUE, len(DELETE_VALUE) - 2, b"\3"), len(DELETE_VALUE) - 2, "PartitionDeleteState 3"),
        (SEGMENT_VALUE[:-1] + bytes.fromhex("01 00 02 01 01"), len(SEGMENT_VALUE), "boolean has 2"),
        (SEGMENT_VALUE[:-1] + bytes.fromhex("01 05 09 00"), len(SEGMENT_VALUE) + 2, "9 bytes"),
    ],
)
def test_the_error_names_the_reason_and_the_byte(value: bytes, position: int, reason: str) -> None:
    with pytest.raises(MalformedMetadataRecordError, match=reason) as raised:
        decode_record(value, CLUSTER)

    assert raised.value.position == position


def test_tags_that_are_unknown_are_skipped_wherever_they_are() -> None:
    tags = bytes.fromhex("02 05 01 ff 06 00")
    with_tags = (
        SEGMENT_VALUE[: SEGMENT_ID_AT - 1]
        + tags
        + SEGMENT_ID
        + tags
        + SEGMENT_VALUE[OFFSETS_AT : EPOCHS_AT + 13]
        + tags
        + SEGMENT_VALUE[EPOCHS_AT + 14 : -1]
        + bytes.fromhex("02 00 01 01 07 03 010203")
    )

    assert decode_event(with_tags, CLUSTER) == MetadataEvent(SEGMENT, 7, is_transaction_index_empty=True)


def test_epochs_are_read_as_a_map_of_theirs() -> None:
    first, second = SEGMENT_VALUE[EPOCHS_AT + 1 : EPOCHS_AT + 14], SEGMENT_VALUE[EPOCHS_AT + 14 : EPOCHS_AT + 27]
    turned = SEGMENT_VALUE[: EPOCHS_AT + 1] + second + first + SEGMENT_VALUE[EPOCHS_AT + 27 :]

    assert decode_record(turned, CLUSTER) == SEGMENT


def test_the_broker_of_the_segment_is_written_rather_than_the_one_given() -> None:
    known, unknown = encode_record(SEGMENT, 9), encode_record(replace(SEGMENT, broker_id=-1), 9)

    assert [decode_event(value, CLUSTER).broker_id for value in (known, unknown)] == [7, 9]


@pytest.mark.parametrize(
    "record",
    [
        replace(SEGMENT, leader_epochs=()),
        replace(SEGMENT, size=2**31),
        replace(SEGMENT, size=-1),
        replace(SEGMENT, end_offset=9),
        replace(SEGMENT, segment_id=replace(ID, id="short")),
        replace(UPDATE, rolled=RolledSegment(1, 2, 3, EPOCHS)),
        replace(UPDATE, event_timestamp=2**63),
        replace(UPDATE, segment_id=replace(ID, topic_id_partition=replace(PARTITION, topic="a b"))),
        replace(DELETE, topic_id_partition=replace(PARTITION, partition=-1)),
    ],
)
def test_what_no_record_can_hold_is_not_written(record: MetadataRecord) -> None:
    with pytest.raises(ConfigurationError):
        encode_record(record)


@pytest.fixture(scope="module")
def golden() -> MetadataTopic:
    return MetadataTopic.load(GOLDEN)


def test_what_a_broker_wrote_is_read_and_would_be_written_the_same(golden: MetadataTopic) -> None:
    events = golden.events()

    assert [encode_event(event) for event in events] == [each.value for each in golden.records]
    assert {event.is_transaction_index_empty for event in events} == {True, False}
    assert {event.broker_id for event in events} == {1}


def test_a_broker_put_each_record_where_the_partitioner_finds_it(golden: MetadataTopic) -> None:
    ids = [getattr(event.record, "segment_id", None) for event in golden.events()]

    where = [metadata_partition(each.topic_id_partition, golden.partitions) for each in ids if each is not None]

    assert where == [each.partition for each in golden.records]
    assert len(set(where)) > 1
