from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from tiered_storage.errors import DeletionRefusedError, MetadataUnavailableError, TieredStorageError
from tiered_storage.gateway.deletions import client_deletions
from tiered_storage.gateway.deletions.client_deletions import DELETE_RECORDS, DELETE_TOPICS, ClientDeletions, Topics
from tiered_storage.gateway.deletions.remote_deletions import LogStart
from tiered_storage.kafka_log.files.kafka_uuid import encode_uuid
from tiered_storage.kafka_wire.connections.apis import Api
from tiered_storage.kafka_wire.connections.error_codes import (
    KAFKA_STORAGE_ERROR,
    NONE,
    NOT_LEADER_OR_FOLLOWER,
    POLICY_VIOLATION,
    REQUEST_TIMED_OUT,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from tiered_storage.kafka_wire.connections.frames import (
    SIZE_BYTES,
    answer,
    answer_module,
    decode_answer,
    encode_answer,
    encode_request,
    request,
    request_module,
)
from tiered_storage.kafka_wire.server.request_header import RequestHeader, read_header
from tiered_storage.remote_log.model import TopicIdPartition

TOPIC = "orders"
EARLIER, LATER = UUID(int=7), UUID(int=8)
KNOWN: Topics = {TOPIC: (TOPIC, encode_uuid(EARLIER.bytes))}


class Remote:
    """The remote log of a cluster, and what becomes of deletions in it."""

    def __init__(self, outcome: LogStart = 0, seconds: float = 0.0) -> None:
        self.outcome = outcome
        self.seconds = seconds
        self.asked: dict[tuple[str, int], int] = {}
        self.deleted: list[str] = []
        self.looked_at: list[int] = []

    def partition(self, topic: str, topic_id: str, number: int) -> TopicIdPartition:
        return TopicIdPartition("cluster", topic_id, number, topic)

    async def latest(self, partition: TopicIdPartition) -> None:
        self.looked_at.append(partition.partition)

    async def delete_records(self, wanted: Mapping[TopicIdPartition, int]) -> Mapping[TopicIdPartition, LogStart]:
        self.asked |= {(each.topic_id, each.partition): before for each, before in wanted.items()}
        await asyncio.sleep(self.seconds)
        return dict.fromkeys(wanted, self.outcome)

    async def delete_topic(self, topic: TopicIdPartition) -> None:
        await asyncio.sleep(self.seconds)
        self.deleted.append(topic.topic_id)


async def nobody_asks(_: object) -> Topics:
    raise AssertionError


def received(api: Api, version: int, asked: Any) -> tuple[RequestHeader, Any]:
    frame = memoryview(encode_request(asked, 5, "test"))
    header = read_header(frame, {api.key: api})
    return header, ClientDeletions.decode(frame, header)


def answered(remote: Remote, api: Api, version: int, asked: Any, found: Any, topics: Topics = KNOWN) -> Any:
    """Return what a client gets that `asked`, where the broker's answer is `found`."""
    header, decoded = received(api, version, asked)
    deletions = ClientDeletions(remote, nobody_asks, remote)  # type: ignore[arg-type] # its two methods
    frame = memoryview(encode_answer(found, 5))
    [changed] = asyncio.run(deletions.answer(frame, header, decoded, topics))
    return decode_answer(memoryview(changed)[SIZE_BYTES:], api, version, 5)


def records_asked(*offsets: int) -> Any:
    kio = request_module(DELETE_RECORDS, 2)
    partitions = tuple(
        kio.DeleteRecordsPartition(partition_index=number, offset=offset) for number, offset in enumerate(offsets)
    )
    topic = kio.DeleteRecordsTopic(name=TOPIC, partitions=partitions)
    return request(DELETE_RECORDS, 2, topics=(topic,), timeout=timedelta(seconds=1))


def records_answer(*found: tuple[int, int]) -> Any:
    """The low watermark and the error code of each partition."""
    kio = answer_module(DELETE_RECORDS, 2)
    partitions = tuple(
        kio.DeleteRecordsPartitionResult(partition_index=number, low_watermark=low, error_code=ErrorCode(code))
        for number, (low, code) in enumerate(found)
    )
    topic = kio.DeleteRecordsTopicResult(name=TOPIC, partitions=partitions)
    return answer(DELETE_RECORDS, 2, topics=(topic,), throttle_time=timedelta())


def of_partitions(found: Any) -> list[tuple[int, int]]:
    return [(int(each.low_watermark), int(each.error_code)) for each in found.topics[0].partitions]


def test_only_what_the_broker_deleted_is_deleted_remotely() -> None:
    remote = Remote(30)
    asked = records_asked(10, -1, 10, 90)
    brokers = records_answer((40, NONE), (70, NONE), (-1, NOT_LEADER_OR_FOLLOWER), (50, NONE))

    found = answered(remote, DELETE_RECORDS, 2, asked, brokers)

    topic_id = encode_uuid(EARLIER.bytes)
    assert remote.asked == {(topic_id, 0): 10, (topic_id, 1): 70}
    assert of_partitions(found) == [
        (30, NONE),
        (30, NONE),
        (-1, NOT_LEADER_OR_FOLLOWER),
        (-1, KAFKA_STORAGE_ERROR),
    ]
    assert remote.looked_at == [0, 1]


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (None, (40, NONE)),
        (DeletionRefusedError("not allowed"), (-1, POLICY_VIOLATION)),
        (MetadataUnavailableError("locked"), (-1, KAFKA_STORAGE_ERROR)),
    ],
)
def test_a_client_learns_what_became_of_the_remote_records(
    outcome: TieredStorageError | None, expected: tuple[int, int]
) -> None:
    found = answered(Remote(outcome), DELETE_RECORDS, 2, records_asked(10), records_answer((40, NONE)))

    assert of_partitions(found) == [expected]


def test_a_topic_whose_id_is_unknown_is_asked_for_again() -> None:
    remote = Remote()
    topics: Topics = {TOPIC: UNKNOWN_TOPIC_OR_PARTITION}

    found = answered(remote, DELETE_RECORDS, 2, records_asked(10), records_answer((40, NONE)), topics)

    assert of_partitions(found) == [(-1, KAFKA_STORAGE_ERROR)]
    assert not remote.asked


def test_an_answer_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_deletions, "_MOST_SECONDS", 0.01)

    found = answered(Remote(10, 60.0), DELETE_RECORDS, 2, records_asked(10), records_answer((40, NONE)))

    assert of_partitions(found) == [(-1, REQUEST_TIMED_OUT)]


def topics_answer(version: int, code: int = NONE, topic_id: UUID | None = None) -> Any:
    kind = answer_module(DELETE_TOPICS, version).DeletableTopicResult
    values = {"name": TOPIC, "topic_id": topic_id, "error_code": ErrorCode(code), "error_message": None}
    known = {name: value for name, value in values.items() if name in kind.__dataclass_fields__}
    return answer(DELETE_TOPICS, version, responses=(kind(**known),), throttle_time=timedelta())


@pytest.mark.parametrize(
    ("version", "code", "answered_id", "deleted"),
    [
        (1, NONE, None, [EARLIER]),
        (6, NONE, EARLIER, [EARLIER]),
        (6, NONE, LATER, [LATER]),
        (1, UNKNOWN_TOPIC_OR_PARTITION, None, []),
    ],
    ids=["by name", "with its id", "created again meanwhile", "refused"],
)
def test_a_topic_is_deleted_by_the_id_that_it_had(
    version: int, code: int, answered_id: UUID | None, deleted: list[UUID]
) -> None:
    remote = Remote()
    kio = request_module(DELETE_TOPICS, version)
    names = (
        {"topics": (kio.DeleteTopicState(name=TOPIC, topic_id=None),)} if version == 6 else {"topic_names": (TOPIC,)}
    )
    asked = request(DELETE_TOPICS, version, timeout=timedelta(seconds=1), **names)

    found = answered(remote, DELETE_TOPICS, version, asked, topics_answer(version, code, answered_id))

    assert remote.deleted == [encode_uuid(each.bytes) for each in deleted]
    assert int(found.responses[0].error_code) == code


def test_topics_are_looked_up_by_name_and_by_id() -> None:
    looked_up: list[object] = []

    async def ask(keys: object) -> Topics:
        looked_up.append(keys)
        return {}

    kio = request_module(DELETE_TOPICS, 6)
    topics = (kio.DeleteTopicState(name=TOPIC, topic_id=None), kio.DeleteTopicState(name=None, topic_id=LATER))
    _, asked = received(DELETE_TOPICS, 6, request(DELETE_TOPICS, 6, topics=topics, timeout=timedelta(seconds=1)))
    asyncio.run(ClientDeletions(Remote(), ask, Remote()).topics(asked))  # type: ignore[arg-type] # its two methods

    assert looked_up == [{TOPIC, LATER.bytes}]
