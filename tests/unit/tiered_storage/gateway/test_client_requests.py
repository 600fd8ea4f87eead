from __future__ import annotations

import asyncio
import struct
from datetime import timedelta
from typing import Any, cast
from uuid import UUID

import pytest
from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from support.served_clusters import served_cluster
from support.wires import Wire, arrive, framed
from tiered_storage.gateway.allowed_apis import FETCH, PRODUCE
from tiered_storage.gateway.client_requests import ClientRequests
from tiered_storage.gateway.connections.client_connection import ClientConnection
from tiered_storage.gateway.deletions.client_deletions import DELETE_RECORDS, DELETE_TOPICS
from tiered_storage.gateway.limits.memory_budget import MemoryBudget
from tiered_storage.gateway.limits.remote_share import RemoteShare
from tiered_storage.kafka_wire.connections.apis import METADATA, ApiVersions
from tiered_storage.kafka_wire.connections.frames import encode_answer, encode_request, entity, request, request_module
from tiered_storage.kafka_wire.fetch import FetchLimits, FetchPosition, fetch_request

OWN_FIRST = -1
"""The number of the gateway's own first request on a connection."""


class CountedPace(RemoteShare):
    """Turns of remote work that count the calls of `pace`."""

    count = 0

    def pace(self) -> None:
        self.count += 1


class Unclear:
    """A remote log that takes the topics whose deletion is unclear."""

    def __init__(self) -> None:
        self.topics: list[set[str]] = []
        self.share = CountedPace()

    def forget(self, _: object) -> None:
        """Let the reader forget a client."""

    def lose_sight(self, topics: set[str], _: str) -> None:
        self.topics.append(topics)


def a_connection(unclear: Unclear | None = None) -> tuple[ClientConnection, Wire, Wire]:
    """Connect a client to a broker that offers Metadata and DeleteTopics."""
    unclear = unclear or Unclear()
    budget = MemoryBudget(1 << 20)
    opened_requests: list[ClientRequests] = []

    def opened(connection: ClientConnection) -> ClientRequests:
        requests = ClientRequests(1, connection, served_cluster(cast(Any, unclear), cast(Any, unclear), budget))
        opened_requests.append(requests)
        return requests

    connection = ClientConnection(1 << 20, opened, lambda _: opened_requests[0].close(), budget.account())
    connection.own.versions = ApiVersions("a broker", {METADATA.key: (9, 12), DELETE_TOPICS.key: (1, 6)})
    client, broker = Wire(), Wire()
    connection.client.connection_made(client)
    connection.broker.connection_made(broker)
    return connection, client, broker


def metadata_of(topic: str, topic_id: UUID) -> bytes:
    kio = load_payload_module(METADATA.key, 12, EntityType.response)
    topics = (
        entity(
            kio.MetadataResponseTopic,
            error_code=ErrorCode.none,
            name=topic,
            topic_id=topic_id,
            is_internal=False,
            partitions=(),
        ),
    )
    answer = entity(
        kio.MetadataResponse,
        throttle_time=timedelta(),
        brokers=(),
        cluster_id="cluster",
        controller_id=1,
        topics=topics,
    )
    return encode_answer(answer, OWN_FIRST)


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "garbled"])
def test_a_broker_gets_a_deletion_once_the_topics_id_is_known(is_known: bool) -> None:
    kio = request_module(DELETE_RECORDS, 2)
    partitions = (kio.DeleteRecordsPartition(partition_index=0, offset=10),)
    topics = (kio.DeleteRecordsTopic(name="orders", partitions=partitions),)
    message = request(DELETE_RECORDS, 2, topics=topics, timeout=timedelta(seconds=1))
    deletion = encode_request(message, 7, "test")
    answer = metadata_of("orders", UUID(int=7)) if is_known else framed(struct.pack(">i", OWN_FIRST) + b"\xff")

    async def run() -> tuple[bytes, bytes, bool]:
        connection, client, broker = a_connection()
        arrive(connection.client, deletion)
        await asyncio.sleep(0.01)
        before = bytes(broker.sent)
        arrive(connection.broker, answer)
        await asyncio.sleep(0.01)
        return before, bytes(broker.sent), client.closed

    before, sent, is_closed = asyncio.run(run())

    assert struct.unpack_from(">hhi", before, 4)[::2] == (METADATA.key, OWN_FIRST)
    assert sent.removeprefix(before) == (deletion if is_known else b"")
    assert is_closed is not is_known


def test_topics_whose_deletion_the_broker_never_answered_are_reported() -> None:
    message = request(DELETE_TOPICS, 1, topic_names=("orders",), timeout=timedelta(seconds=1))
    unclear = Unclear()

    async def run() -> int:
        connection, _, broker = a_connection(unclear)
        arrive(connection.client, encode_request(message, 7, "test"))
        await asyncio.sleep(0.01)
        connection.abort()
        connection.client.connection_lost(None)
        connection.broker.connection_lost(None)
        return int.from_bytes(broker.sent[6:8], "big")

    # The version that the broker got: its answer would have had the topic's id.
    assert asyncio.run(run()) == 6
    assert unclear.topics == [{"orders"}]


def fetched(records: bytes) -> bytes:
    """Return a broker's answer to a Fetch."""
    kio = load_payload_module(FETCH.key, 12, EntityType.response)
    partition = entity(
        kio.PartitionData,
        partition_index=0,
        error_code=ErrorCode.none,
        high_watermark=1,
        aborted_transactions=None,
        records=records,
    )
    topic = entity(kio.FetchableTopicResponse, topic="orders", partitions=(partition,))
    answer = entity(kio.FetchResponse, throttle_time=timedelta(), error_code=ErrorCode.none, responses=(topic,))
    return encode_answer(answer, 7)


@pytest.mark.parametrize("records", [b"", b"local records"], ids=["nothing", "records"])
def test_remote_work_is_paced_while_clients_read_local_records(records: bytes) -> None:
    unclear = Unclear()
    asked = fetch_request(12, [FetchPosition("orders", 0, 0)], FetchLimits(), "")

    async def run() -> int:
        connection, client, _ = a_connection(unclear)
        arrive(connection.client, encode_request(asked, 7, "test"))
        arrive(connection.broker, fetched(records))
        await asyncio.sleep(0)
        return len(client.sent)

    assert asyncio.run(run()) > 0
    assert unclear.share.count == bool(records)


def test_remote_work_is_paced_while_clients_produce() -> None:
    unclear = Unclear()
    asked = request(PRODUCE, 9, transactional_id=None, acks=1, timeout=timedelta(seconds=1), topic_data=())

    async def run() -> int:
        connection, _, broker = a_connection(unclear)
        arrive(connection.client, encode_request(asked, 7, "test"))
        return len(broker.sent)

    assert asyncio.run(run()) > 0
    assert unclear.share.count == 1
