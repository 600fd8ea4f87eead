from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_payload_module, load_request_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader
from kio.static.constants import EntityType

from tiered_storage.errors import ConfigurationError, MalformedAnswerError
from tiered_storage.kafka_log.files.kafka_uuid import encode_uuid
from tiered_storage.kafka_wire.connections.apis import FETCH
from tiered_storage.kafka_wire.connections.frames import entity
from tiered_storage.kafka_wire.fetch import (
    FetchAnswer,
    FetchBuffer,
    FetchDecoder,
    FetchLimits,
    FetchPosition,
    IsolationLevel,
    fetch_request,
)
from tiered_storage.kafka_wire.fetch_layout import AbortedTransaction, EpochEnd
from unit.tiered_storage.kafka_wire.scripted_broker import encoded, framed

ORDERS, RETURNS = (UUID(int=number << 70) for number in (7, 8))
POSITIONS = [
    FetchPosition("orders", 0, 100, 1 << 20, encode_uuid(ORDERS.bytes), leader_epoch=5),
    FetchPosition("orders", 1, 200, 1 << 20, encode_uuid(ORDERS.bytes)),
    FetchPosition("returns", 0, 300, 1 << 20, encode_uuid(RETURNS.bytes)),
]
VERSIONS = range(FETCH.oldest, FETCH.latest + 1)
RECORDS = bytes(range(200)) * 3


def answer(version: int, **values: Any) -> Any:
    """The answer for POSITIONS: records; an error with all its tags; null records."""
    kio = load_payload_module(FETCH.key, version, EntityType.response)

    def partition(number: int, **others: Any) -> Any:
        defaults: dict[str, Any] = {
            "error_code": ErrorCode.none,
            "high_watermark": 1000,
            "last_stable_offset": 900,
            "log_start_offset": 50,
            "aborted_transactions": None,
            "preferred_read_replica": -1,
            "records": None,
        }
        return entity(kio.PartitionData, partition_index=number, **(defaults | others))

    diverged = {"error_code": ErrorCode.fenced_leader_epoch, "high_watermark": -1}
    if version >= 12:
        diverged["diverging_epoch"] = kio.EpochEndOffset(epoch=4, end_offset=150)
        diverged["current_leader"] = kio.LeaderIdAndEpoch(leader_id=2, leader_epoch=6)
    aborted = (kio.AbortedTransaction(producer_id=9, first_offset=120),)

    def topic(name: str, topic_id: UUID, *partitions: Any) -> Any:
        return entity(kio.FetchableTopicResponse, topic=name, topic_id=topic_id, partitions=partitions)

    first = partition(0, records=RECORDS, aborted_transactions=aborted)
    topics = (topic("orders", ORDERS, first, partition(1, **diverged)), topic("returns", RETURNS, partition(0)))
    if version >= 16:
        values["node_endpoints"] = (kio.NodeEndpoint(node_id=2, host="kafka-2", port=9092, rack=None),)
    defaults = {"throttle_time": timedelta(milliseconds=250), "error_code": ErrorCode.none, "responses": topics}
    return entity(kio.FetchResponse, **(defaults | values))


def decoded(frame: bytes | bytearray, version: int, positions: list[FetchPosition] = POSITIONS) -> FetchAnswer:
    return FetchDecoder(positions)(memoryview(frame), FETCH, version, 1)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_of_any_version_is_walked(version: int) -> None:
    frame = bytearray(framed(answer(version), 1)[4:])
    found = decoded(frame, version)
    first, second, third = found.partitions
    assert found.throttle_seconds == 0.25
    assert [(each.topic, each.partition) for each in found.partitions] == [("orders", 0), ("orders", 1), ("returns", 0)]
    assert bytes(first.records) == RECORDS
    assert (first.high_watermark, first.last_stable_offset, first.log_start_offset) == (1000, 900, 50)
    assert first.aborted == (AbortedTransaction(9, 120),)
    assert (first.error_code, first.preferred_read_replica, first.leader_epoch) == (0, -1, 5)
    assert first.diverging is None
    assert (second.error_code, second.high_watermark, second.leader_epoch) == (74, -1, -1)
    if version >= 12:
        assert second.diverging == EpochEnd(4, 150)
        assert (second.current_leader, second.current_leader_epoch) == (2, 6)
    assert (bytes(third.records), third.aborted) == (b"", ())


def test_records_are_a_view_of_the_buffer() -> None:
    frame = bytearray(framed(answer(18), 1)[4:])
    records = decoded(frame, 18).partitions[0].records
    frame[frame.index(RECORDS)] ^= 0xFF
    assert records[0] == RECORDS[0] ^ 0xFF


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
def test_a_garbled_answer_gives_values_or_is_malformed(version: int, data: st.DataObject) -> None:
    frame = bytearray(framed(answer(version), 1)[4:])
    # What is not records, so that most changes count.
    structure = [at for at in range(len(frame)) if not frame.index(RECORDS) <= at < frame.index(RECORDS) + len(RECORDS)]
    for at in data.draw(st.lists(st.sampled_from(structure), min_size=1, max_size=3)):
        frame[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    if data.draw(st.booleans()):
        del frame[data.draw(st.integers(0, len(frame))) :]
    try:
        found = decoded(frame, version)
    except MalformedAnswerError:
        return
    assert sum(len(each.records) for each in found.partitions) <= len(frame)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_that_is_cut_off_anywhere_is_malformed(version: int) -> None:
    frame = framed(answer(version), 1)[4:]
    for size in range(len(frame)):
        with pytest.raises(MalformedAnswerError):
            decoded(frame[:size], version)


def test_a_partition_that_was_not_asked_for_is_malformed() -> None:
    with pytest.raises(MalformedAnswerError, match="partition 0 of 0x"):
        decoded(framed(answer(18), 1)[4:], 18, POSITIONS[1:])
    with pytest.raises(MalformedAnswerError, match="partition 0 of orders"):
        decoded(framed(answer(12), 1)[4:], 12, POSITIONS[1:])


def test_an_error_of_the_whole_answer_is_raised_by_its_name() -> None:
    failed = answer(18, error_code=ErrorCode.fetch_session_topic_id_error, responses=())
    with pytest.raises(MalformedAnswerError, match="FETCH_SESSION_TOPIC_ID_ERROR"):
        decoded(framed(failed, 1)[4:], 18)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_of_any_version_asks_without_a_session(version: int) -> None:
    limits = FetchLimits(0.25, 7, 1 << 22, IsolationLevel.READ_COMMITTED)
    raw = encoded(fetch_request(version, POSITIONS, limits, "rack-a"))
    found: Any
    found, size = entity_reader(load_request_schema(FETCH.key, version))(raw, 0)
    assert size == len(raw)
    assert (found.session_id, found.session_epoch, found.forgotten_topics_data) == (0, -1, ())
    assert (found.max_wait, found.min_bytes, found.max_bytes) == (timedelta(milliseconds=250), 7, 1 << 22)
    assert (found.isolation_level, found.rack_id) == (1, "rack-a")
    topics = [(topic.topic_id if version >= 13 else topic.topic) for topic in found.topics]
    assert topics == ([ORDERS, RETURNS] if version >= 13 else ["orders", "returns"])
    partitions = [each for topic in found.topics for each in topic.partitions]
    assert [(each.partition, each.fetch_offset, each.current_leader_epoch) for each in partitions] == [
        (0, 100, 5),
        (1, 200, -1),
        (0, 300, -1),
    ]
    assert {(each.partition_max_bytes, getattr(each, "last_fetched_epoch", -1)) for each in partitions} == {
        (1 << 20, -1)
    }


def test_a_buffer_is_used_again_and_grows_to_its_limit() -> None:
    buffer = FetchBuffer(200_000)
    first = buffer.room(10)
    first[:2] = b"ab"
    assert bytes(buffer.room(2)) == b"ab"
    assert len(buffer.room(100_000)) == 100_000
    assert len(buffer.room(200_000)) == 200_000
    # The first one's memory is its own now.
    assert bytes(first[:2]) == b"ab"


def test_an_answer_larger_than_the_buffer_names_both_sizes() -> None:
    with pytest.raises(ConfigurationError, match=r"200,001.*200,000.*max\.message\.bytes"):
        FetchBuffer(200_000).room(200_001)
