from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
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
    INVALID_REQUEST,
    KAFKA_STORAGE_ERROR,
    NONE,
    NOT_LEADER_OR_FOLLOWER,
    POLICY_VIOLATION,
    REQUEST_TIMED_OUT,
    TOPIC_DELETION_DISABLED,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from tiered_storage.kafka_wire.connections.frames import (
    SIZE_BYTES,
    answer,
    answer_module,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
    entity,
    request,
    request_module,
)
from tiered_storage.kafka_wire.server.request_header import RequestHeader, read_header
from tiered_storage.remote_log.model import TopicIdPartition

TOPIC = "orders"
EARLIER, LATER = UUID(int=7), UUID(int=8)
KNOWN: Topics = {TOPIC: (TOPIC, encode_uuid(EARLIER.bytes))}
HIGH_WATERMARK = 60


class Remote:
    """The remote log of a cluster, and what becomes of deletions in it."""

    def __init__(self, outcome: LogStart = 0, seconds: float = 0.0, snapshot_seconds: float = 0.0) -> None:
        self.outcome = outcome
        self.seconds = seconds
        self.snapshot_seconds = snapshot_seconds
        self.asked: dict[tuple[str, int], int] = {}
        self.deleted: list[str] = []
        self.looked_at: list[int] = []
        self.unclear: list[set[str]] = []

    def partition(self, topic: str, topic_id: str, number: int) -> TopicIdPartition:
        return TopicIdPartition("cluster", topic_id, number, topic)

    async def latest(self, partition: TopicIdPartition) -> None:
        self.looked_at.append(partition.partition)
        await asyncio.sleep(self.snapshot_seconds)

    async def delete_records(self, wanted: Mapping[TopicIdPartition, int]) -> Mapping[TopicIdPartition, LogStart]:
        self.asked |= {(each.topic_id, each.partition): before for each, before in wanted.items()}
        await asyncio.sleep(self.seconds)
        return dict.fromkeys(wanted, self.outcome)

    async def delete_topics(self, topics: Sequence[TopicIdPartition]) -> None:
        await asyncio.sleep(self.seconds)
        self.deleted.extend(each.topic_id for each in topics)

    def lose_sight(self, topics: Collection[str], _: str) -> None:
        self.unclear.append(set(topics))


@dataclass
class Broker:
    """What a client's broker answers: `known` topics, and the high watermark of each partition, or an error."""

    known: Topics = field(default_factory=lambda: KNOWN)
    high_watermark: int | None = HIGH_WATERMARK
    latest: int = 6
    """Its latest version of DeleteTopics."""

    async def topics(self, _: Collection[str | bytes]) -> Topics:
        return self.known

    async def high_watermarks(self, partitions: Collection[tuple[str, int]]) -> Mapping[tuple[str, int], int]:
        return {} if self.high_watermark is None else dict.fromkeys(partitions, self.high_watermark)

    async def version(self, api: Api) -> int:
        return min(self.latest, api.latest)


def received(api: Api, asked: Any) -> tuple[memoryview, RequestHeader, Any]:
    frame = memoryview(encode_request(asked, 5, "test"))
    header = read_header(frame, {api.key: api})
    return frame, header, ClientDeletions.decode(frame, header)


def of(remote: Remote, broker: Broker) -> ClientDeletions:
    return ClientDeletions(remote, broker, broker, remote)  # type: ignore[arg-type] # its methods


def forwarded(api: Api, asked: Any, broker: Broker | None = None) -> Any:
    """Return what the broker gets of the request `asked`."""
    deletion = asyncio.run(of(Remote(), broker or Broker()).prepare(*received(api, asked)))
    frame = memoryview(deletion.frame)
    return decode_request(read_header(frame, {api.key: api}).body(frame), api, deletion.version)


def answered(remote: Remote, api: Api, version: int, asked: Any, found: Any, broker: Broker | None = None) -> Any:
    """Return what a client gets that `asked`, where the broker's answer is `found`."""
    frame = memoryview(encode_answer(found, 5))

    async def run() -> Any:
        taken, header, decoded = received(api, asked)
        deletions = of(remote, broker or Broker())
        [changed] = await deletions.answer(frame, header, await deletions.prepare(taken, header, decoded))
        deletions.close()
        return changed

    return decode_answer(memoryview(asyncio.run(run()))[SIZE_BYTES:], api, version, 5)


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
    assert remote.asked == {(topic_id, 0): 10, (topic_id, 1): HIGH_WATERMARK}
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
    broker = Broker({TOPIC: UNKNOWN_TOPIC_OR_PARTITION})

    found = answered(remote, DELETE_RECORDS, 2, records_asked(10), records_answer((40, NONE)), broker)

    assert of_partitions(found) == [(-1, KAFKA_STORAGE_ERROR)]
    assert not remote.asked


@pytest.mark.parametrize("remote", [Remote(10, seconds=60), Remote(10, snapshot_seconds=60)])
def test_an_answer_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch, remote: Remote) -> None:
    monkeypatch.setattr(client_deletions, "_MOST_SECONDS", 0.01)
    monkeypatch.setattr(client_deletions, "_LEAST_SECONDS", 0.01)

    found = answered(remote, DELETE_RECORDS, 2, records_asked(10), records_answer((40, NONE)))

    assert of_partitions(found) == [(-1, REQUEST_TIMED_OUT)]


def test_the_broker_gets_the_high_watermark_in_the_place_of_the_end() -> None:
    sent = forwarded(DELETE_RECORDS, records_asked(10, -1))

    assert [int(each.offset) for each in sent.topics[0].partitions] == [10, HIGH_WATERMARK]


def test_an_end_that_the_broker_does_not_show_is_asked_for_again() -> None:
    remote, broker = Remote(), Broker(high_watermark=None)

    found = answered(remote, DELETE_RECORDS, 2, records_asked(-1), records_answer((90, NONE)), broker)

    assert forwarded(DELETE_RECORDS, records_asked(-1), broker) == records_asked(-1)
    assert of_partitions(found) == [(-1, KAFKA_STORAGE_ERROR)]
    assert not remote.asked


def topics_asked(version: int, name: str | None = TOPIC, topic_id: UUID | None = None) -> Any:
    kio = request_module(DELETE_TOPICS, version)
    names = (
        {"topic_names": (name,)} if version < 6 else {"topics": (kio.DeleteTopicState(name=name, topic_id=topic_id),)}
    )
    return request(DELETE_TOPICS, version, timeout=timedelta(seconds=1), **names)


def topics_answer(version: int, code: int = NONE, topic_id: UUID | None = None) -> Any:
    kind = answer_module(DELETE_TOPICS, version).DeletableTopicResult
    found = entity(kind, name=TOPIC, topic_id=topic_id, error_code=ErrorCode(code), error_message=None)
    return answer(DELETE_TOPICS, version, responses=(found,), throttle_time=timedelta())


@pytest.mark.parametrize("version", range(1, 7))
def test_the_broker_deletes_topics_by_the_version_that_answers_with_ids(version: int) -> None:
    assert forwarded(DELETE_TOPICS, topics_asked(version)) == topics_asked(6)


@pytest.mark.parametrize("version", range(1, 7))
@pytest.mark.parametrize("answered_id", [EARLIER, LATER], ids=["the same", "created again meanwhile"])
def test_a_topic_is_deleted_by_the_id_that_the_broker_deleted(version: int, answered_id: UUID) -> None:
    remote = Remote()

    found = answered(remote, DELETE_TOPICS, version, topics_asked(version), topics_answer(6, NONE, answered_id))

    assert remote.deleted == [encode_uuid(answered_id.bytes)]
    assert found == topics_answer(version, NONE, answered_id)
    assert not remote.unclear


@pytest.mark.parametrize(
    ("version", "code", "expected"),
    [
        (1, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_OR_PARTITION),
        (2, TOPIC_DELETION_DISABLED, INVALID_REQUEST),
        (3, TOPIC_DELETION_DISABLED, TOPIC_DELETION_DISABLED),
    ],
)
def test_a_refusal_is_passed_on_in_the_clients_version(version: int, code: int, expected: int) -> None:
    remote = Remote()

    found = answered(remote, DELETE_TOPICS, version, topics_asked(version), topics_answer(6, code))

    assert int(found.responses[0].error_code) == expected
    assert not remote.deleted
    assert not remote.unclear


def test_a_topic_that_is_perhaps_deleted_is_reported() -> None:
    remote, old = Remote(), Remote()

    answered(remote, DELETE_TOPICS, 6, topics_asked(6), topics_answer(6, REQUEST_TIMED_OUT))
    answered(old, DELETE_TOPICS, 1, topics_asked(1), topics_answer(1), Broker(latest=5))

    assert remote.unclear == old.unclear == [{TOPIC}]
    assert not remote.deleted + old.deleted


def test_topics_whose_deletion_the_broker_did_not_answer_are_reported() -> None:
    remote = Remote()

    async def run() -> None:
        deletions = of(remote, Broker())
        await deletions.prepare(*received(DELETE_TOPICS, topics_asked(6, None, LATER)))
        deletions.close()

    asyncio.run(run())

    assert remote.unclear == [{encode_uuid(LATER.bytes)}]
