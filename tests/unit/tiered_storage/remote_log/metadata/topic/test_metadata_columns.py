from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.metadata_topic import GOLDEN, MetadataTopic
from support.metadata_records import CLUSTER, metadata_events
from tiered_storage.errors import MalformedMetadataRecordError
from tiered_storage.kafka_log.files.kafka_uuid import decode_uuid
from tiered_storage.remote_log.metadata.topic.metadata_columns import MetadataColumns, decode_values
from tiered_storage.remote_log.metadata.topic.records import (
    MetadataEvent,
    RemoteLogSegmentMetadataSnapshot,
    decode_event,
    encode_event,
)
from tiered_storage.remote_log.model import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)


def columns_of(values: Sequence[bytes | None]) -> MetadataColumns:
    return decode_values(pa.array(values, pa.binary()))


def partition_in(columns: MetadataColumns, row: int) -> tuple[bytes, int, str]:
    return columns.topic_ids().tolist()[row], int(columns.partition[row]), columns.topic(row)


def partition_fields(partition: TopicIdPartition) -> tuple[bytes, int, str]:
    return decode_uuid(partition.topic_id), partition.partition, partition.topic


def assert_row_is(columns: MetadataColumns, row: int, event: MetadataEvent) -> None:
    """Compare every column that the kind of `event` has."""
    record = event.record
    found = [columns.state[row], columns.broker_id[row], columns.event_timestamp[row]]
    assert found == [record.state, event.broker_id, record.event_timestamp]
    assert columns.is_transaction_index_empty[row] == event.is_transaction_index_empty
    if isinstance(record, RemotePartitionDeleteMetadata):
        assert partition_in(columns, row) == partition_fields(record.topic_id_partition)
        return
    if isinstance(record, RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate):
        assert partition_in(columns, row) == partition_fields(record.segment_id.topic_id_partition)
    segment_id = record.id if isinstance(record, RemoteLogSegmentMetadataSnapshot) else record.segment_id.id
    assert columns.segment_ids().tolist()[row] == decode_uuid(segment_id)
    assert columns.custom_metadata(row) == record.custom_metadata
    if isinstance(record, RemoteLogSegmentMetadata | RemoteLogSegmentMetadataSnapshot):
        offsets = [columns.start_offset[row], columns.end_offset[row], columns.max_timestamp[row], columns.size[row]]
        assert offsets == [record.start_offset, record.end_offset, record.max_timestamp, record.size]
        assert columns.leader_epochs(row) == record.leader_epochs


@given(st.lists(metadata_events(), max_size=8), st.integers(0, 3))
def test_every_column_is_what_the_record_has(events: list[MetadataEvent], skipped: int) -> None:
    values = pa.array([encode_event(event) for event in events], pa.binary())

    columns = decode_values(values[skipped:])

    assert columns.malformed == 0
    assert len(columns) == len(events[skipped:])
    for row, event in enumerate(events[skipped:]):
        assert columns.is_sound[row]
        assert_row_is(columns, row, event)
        assert columns.event(row, CLUSTER) == event


def is_sound(value: bytes) -> bool:
    try:
        decode_event(value, CLUSTER)
    except MalformedMetadataRecordError:
        return False
    return True


@st.composite
def broken_values(draw: st.DrawFn) -> bytes:
    """A value with some of its bytes changed, cut off or added."""
    value = bytearray(encode_event(draw(metadata_events())))
    for at in draw(st.lists(st.integers(0, len(value) - 1), max_size=3)):
        value[at] = draw(st.sampled_from([0, 1, 2, 3, 4, 0x2E, 0x7F, 0x80, 0xFF]))
    size = draw(st.integers(0, len(value)) | st.just(len(value)))
    return bytes(value[:size]) + draw(st.binary(max_size=2))


@given(st.lists(broken_values() | st.binary(max_size=60), min_size=1, max_size=6))
def test_it_accepts_what_a_single_value_is_accepted_for_and_nothing_else(values: list[bytes]) -> None:
    columns = columns_of(values)

    assert columns.is_sound.tolist() == [is_sound(value) for value in values]
    assert columns.malformed == len(values) - sum(map(is_sound, values))
    for row, value in enumerate(values):
        if columns.is_sound[row]:
            assert_row_is(columns, row, decode_event(value, CLUSTER))


def test_a_malformed_value_says_why_and_a_null_is_one() -> None:
    sound = MetadataTopic.load(GOLDEN).records[0].value

    columns = columns_of([sound, sound[:-1], None, b"", sound])

    assert columns.is_sound.tolist() == [True, False, False, False, True]
    for row in (1, 2, 3):
        with pytest.raises(MalformedMetadataRecordError):
            columns.event(row, CLUSTER)


@pytest.mark.parametrize("values", [[], [None], [b""]])
def test_there_may_be_nothing(values: list[bytes | None]) -> None:
    columns = columns_of(values)

    assert (len(columns), columns.malformed) == (len(values), len(values))


def test_what_lies_below_a_null_is_not_read() -> None:
    sound = MetadataTopic.load(GOLDEN).records[0].value
    ends = pa.array([0, len(sound)], pa.int32()).buffers()[1]
    null = pa.BinaryArray.from_buffers(pa.binary(), 1, [pa.py_buffer(b"\0"), ends, pa.py_buffer(sound)])

    columns = decode_values(null)

    assert (columns.malformed, columns.is_sound.tolist()) == (1, [False])


def test_nothing_may_come_without_memory() -> None:
    assert len(decode_values(pa.BinaryArray.from_buffers(pa.binary(), 0, [None, None, pa.py_buffer(b"")]))) == 0


def test_the_records_of_a_broker_come_out_as_columns() -> None:
    golden = MetadataTopic.load(GOLDEN)

    columns = columns_of([each.value for each in golden.records])

    assert columns.malformed == 0
    for row, event in enumerate(golden.events()):
        assert_row_is(columns, row, event)
