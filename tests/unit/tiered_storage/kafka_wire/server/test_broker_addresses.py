from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from tiered_storage.kafka_wire.connections.apis import Api
from tiered_storage.kafka_wire.connections.frames import decode_answer, encode_answer, entity
from tiered_storage.kafka_wire.server import broker_addresses
from tiered_storage.kafka_wire.server.request_header import RequestHeader
from tiered_storage.kafka_wire.server.send_queue import Buffer

METADATA = Api(3, "Metadata", 0, 13)
PRODUCE = Api(0, "Produce", 3, 13)
FIND_COORDINATOR = Api(10, "FindCoordinator", 0, 6)
DESCRIBE_CLUSTER = Api(60, "DescribeCluster", 0, 2)
ORDERS = UUID(int=7 << 70)
CORRELATION_ID = 12


def module(api: Api, version: int) -> Any:
    return load_payload_module(api.key, version, EntityType.response)


def translate(node_id: int, host: str, port: int) -> tuple[str, int]:
    assert (host, port) == (f"kafka-{node_id}", 9092)
    return "a-gateway-with-a-longer-name", 19093 + node_id


def whole(buffers: Sequence[Buffer]) -> memoryview:
    frame = b"".join(buffers)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    return memoryview(frame)


def changed(message: Any, api: Api, change: Any, version: int) -> Any:
    header = RequestHeader(api, version, CORRELATION_ID, "", 0)
    frame = whole(change(memoryview(bytearray(encode_answer(message, CORRELATION_ID))), header, translate))
    return decode_answer(frame[4:], api, version, CORRELATION_ID)


def metadata(version: int) -> Any:
    kio = module(METADATA, version)
    brokers = tuple(
        entity(kio.MetadataResponseBroker, node_id=node, host=f"kafka-{node}", port=9092, rack=rack)
        for node, rack in ((1, None), (20, "here"))
    )
    partition = entity(
        kio.MetadataResponsePartition,
        error_code=ErrorCode.none,
        partition_index=0,
        leader_id=1,
        leader_epoch=3,
        replica_nodes=(1, 20),
        isr_nodes=(1,),
        offline_replicas=(),
    )
    topic = entity(
        kio.MetadataResponseTopic,
        error_code=ErrorCode.none,
        name="orders",
        topic_id=ORDERS,
        is_internal=False,
        partitions=(partition,),
        topic_authorized_operations=5,
    )
    return entity(
        kio.MetadataResponse,
        throttle_time=timedelta(milliseconds=4),
        brokers=brokers,
        cluster_id="a cluster",
        controller_id=1,
        topics=(topic,),
        cluster_authorized_operations=6,
        error_code=ErrorCode.none,
    )


@pytest.mark.parametrize("version", range(METADATA.oldest, METADATA.latest + 1))
def test_metadata_name_the_gateway_and_are_otherwise_the_same(version: int) -> None:
    sent = metadata(version)

    found = changed(sent, METADATA, broker_addresses.in_metadata, version)

    moved = tuple(
        replace(each, host="a-gateway-with-a-longer-name", port=19093 + each.node_id) for each in sent.brokers
    )
    assert found == replace(sent, brokers=moved)


def produced(version: int, endpoints: tuple[int, ...]) -> Any:
    kio = module(PRODUCE, version)
    errors = (kio.BatchIndexAndErrorMessage(batch_index=2, batch_index_error_message="no"),)
    partition = entity(
        kio.PartitionProduceResponse,
        index=3,
        error_code=ErrorCode.not_leader_or_follower,
        base_offset=-1,
        log_append_time=None,
        log_start_offset=7,
        record_errors=errors,
        error_message=None,
        current_leader=kio.LeaderIdAndEpoch(leader_id=20, leader_epoch=9),
    )
    topic = entity(kio.TopicProduceResponse, name="orders", topic_id=ORDERS, partition_responses=(partition,))
    nodes = tuple(kio.NodeEndpoint(node_id=node, host=f"kafka-{node}", port=9092, rack="r") for node in endpoints)
    return kio.ProduceResponse(responses=(topic,), throttle_time=timedelta(milliseconds=4), node_endpoints=nodes)


@pytest.mark.parametrize("version", range(broker_addresses.PRODUCE_WITH_ENDPOINTS, PRODUCE.latest + 1))
@pytest.mark.parametrize("endpoints", [(), (20,), (1, 20)])
def test_new_leaders_in_an_answer_to_produce_are_those_of_the_gateway(version: int, endpoints: tuple[int, ...]) -> None:
    sent = produced(version, endpoints)

    found = changed(sent, PRODUCE, broker_addresses.in_produce, version)

    moved = tuple(
        replace(each, host="a-gateway-with-a-longer-name", port=19093 + each.node_id) for each in sent.node_endpoints
    )
    assert found == replace(sent, node_endpoints=moved)


@pytest.mark.parametrize("version", range(FIND_COORDINATOR.oldest, FIND_COORDINATOR.latest + 1))
@pytest.mark.parametrize("node", [1, -1])
def test_coordinators_are_found_at_the_gateway(version: int, node: int) -> None:
    kio = module(FIND_COORDINATOR, version)
    place = {"node_id": node, "host": f"kafka-{node}" if node > 0 else "", "port": 9092 if node > 0 else -1}
    values = {"error_code": ErrorCode.none, "error_message": None, **place}
    if hasattr(kio, "Coordinator"):
        values = {"coordinators": (kio.Coordinator(key="readers", **values),)}
    sent = entity(kio.FindCoordinatorResponse, throttle_time=timedelta(), **values)

    found = changed(sent, FIND_COORDINATOR, broker_addresses.in_coordinators, version)

    [place_found] = found.coordinators if hasattr(found, "coordinators") else [found]
    expected = ("a-gateway-with-a-longer-name", 19094) if node > 0 else ("", -1)
    assert (place_found.host, place_found.port) == expected


@pytest.mark.parametrize("version", range(DESCRIBE_CLUSTER.oldest, DESCRIBE_CLUSTER.latest + 1))
def test_a_described_cluster_has_the_ports_of_the_gateway(version: int) -> None:
    kio = module(DESCRIBE_CLUSTER, version)
    broker = entity(kio.DescribeClusterBroker, broker_id=1, host="kafka-1", port=9092, rack=None, is_fenced=False)
    sent = entity(
        kio.DescribeClusterResponse,
        throttle_time=timedelta(),
        error_code=ErrorCode.none,
        error_message=None,
        endpoint_type=1,
        cluster_id="a cluster",
        controller_id=1,
        brokers=(broker,),
        cluster_authorized_operations=6,
    )

    found = changed(sent, DESCRIBE_CLUSTER, broker_addresses.in_cluster, version)

    assert found == replace(sent, brokers=(replace(broker, host="a-gateway-with-a-longer-name", port=19094),))
