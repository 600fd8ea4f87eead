"""A gateway before two brokers in racks of their own: clients find leaders and near replicas at its ports alone."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Assigned

from servers.kafka_programs import KafkaPrograms
from servers.real_kafka import RealKafka
from support.gateways import RunningGateway, copied_and_trimmed, running_gateway
from support.kafka_clients import REQUEST_SECONDS, RealKafkaClient
from support.live_sites import LONG, SMALL_SEGMENTS, LiveSite
from support.records import varied_records
from tiered_storage.gateway.allowed_apis import FETCH
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.connections.error_codes import FENCED_LEADER_EPOCH
from tiered_storage.kafka_wire.connections.frames import decode_answer, encode_request
from tiered_storage.kafka_wire.fetch import FetchBuffer, FetchLimits, FetchPosition, fetch_request
from tiered_storage_airflow.demo_cluster.brokers import free_first_port

pytestmark = pytest.mark.nightly

TOPIC = "gateway-two-brokers"
RACKS = {1: "a", 2: "b"}
PROPERTIES = {
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "auto.leader.rebalance.enable": "false",
}
NEVER = "900000"
"""Milliseconds after which a client asks for leaders without a reason."""


@dataclass(frozen=True)
class Site:
    """Two brokers, the second of which leads TOPIC, and a gateway before them; the first of `sent` are remote."""

    brokers: tuple[RealKafka, RealKafka]
    gateway: RunningGateway
    topic_id: str
    sent: list[Record]
    local_start: int

    def port(self, node: int) -> int:
        return self.gateway.port + 1 + node

    def fetched(self, node: int, offset: int, rack: str = "", leader_epoch: int = -1) -> tuple[Any, Any]:
        """Fetch at the gateway's port of a broker; return the whole answer and that for the partition."""
        position = FetchPosition(TOPIC, 0, offset, topic_id=self.topic_id, leader_epoch=leader_epoch)
        message = fetch_request(FETCH.latest, [position], FetchLimits(), rack)
        with socket.create_connection(("127.0.0.1", self.port(node)), REQUEST_SECONDS) as opened:
            opened.sendall(encode_request(message, 1, "a raw client"))
            with opened.makefile("rb") as arriving:
                content = arriving.read(int.from_bytes(arriving.read(4), "big"))
        answer = decode_answer(memoryview(content), FETCH, FETCH.latest, 1)
        [[partition]] = [topic.partitions for topic in answer.responses]
        return answer, partition


@pytest.fixture
def site(kafka_programs: KafkaPrograms, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder, port = tmp_path_factory.mktemp("two-brokers"), free_first_port([*RACKS])
    first = RealKafka(kafka_programs, folder / "1", properties={**PROPERTIES, "broker.rack": RACKS[1]})
    with first, first.another(2, folder / "2", {**PROPERTIES, "broker.rack": RACKS[2]}) as second:
        topic_id = first.client.create_topic(TOPIC, 1, SMALL_SEGMENTS | LONG, [[2, 1]])
        sent = first.client.produce(TOPIC, varied_records(600, seed=1), batch_num_messages=20, acks="all")
        live = LiveSite(first, folder, (TOPIC,), {"gateway.port": port})
        local_start = copied_and_trimmed(live, TOPIC)
        with running_gateway(live.config, port) as gateway:
            found = Site((first, second), gateway, topic_id, sent, local_start)
            # The gateway opens a broker's port once it knows the broker.
            assert described(gateway) == {node: (f"127.0.0.1:{found.port(node)}", RACKS[node]) for node in RACKS}
            yield found


def described(gateway: RunningGateway) -> dict[int, tuple[str, str | None]]:
    """The address and the rack of each broker, as clients of the gateway see them."""
    with ClusterClient.by_properties({"bootstrap.servers": gateway.bootstrap_servers}) as client:
        return {each.node_id: (str(each.address), each.rack) for each in client.metadata().brokers.values()}


def direct_connections(site: Site) -> set[tuple[str, int]]:
    """This process's own ends of its connections to brokers' own ports."""
    ports = {int(each.bootstrap_servers.rpartition(":")[2]) for each in site.brokers}
    found = psutil.Process().net_connections("tcp")
    return {tuple(each.laddr) for each in found if each.raddr and each.raddr.port in ports}


def read(consumer: Consumer, count: int) -> list[int | None]:
    """Return the offsets of the next `count` records."""
    found = []
    for _ in range(count):
        message = consumer.poll(REQUEST_SECONDS)
        assert message is not None
        assert message.error() is None
        found.append(message.offset())
    return found


def test_the_nearest_replica_is_recommended_and_read_at_its_port_of_the_gateway(site: Site) -> None:
    _, alone = site.fetched(2, site.local_start)
    _, recommended = site.fetched(2, site.local_start, rack=RACKS[1])
    _, near = site.fetched(1, site.local_start, rack=RACKS[1])

    assert (alone.preferred_read_replica, recommended.preferred_read_replica) == (-1, 1)
    assert not recommended.records
    assert bytes(near.records) == bytes(alone.records)

    properties = {"bootstrap.servers": site.gateway.bootstrap_servers, "client.rack": RACKS[1]}
    position = FetchPosition(TOPIC, 0, site.local_start)
    before = direct_connections(site)
    with ClusterClient.by_properties(properties) as nearby:
        [found] = nearby.fetch([position], FetchBuffer(2 << 20)).partitions
        assert (found.error_code, nearby._fetcher._node(position)) == (0, 1)
        assert direct_connections(site) <= before
    assert RealKafkaClient(site.gateway.bootstrap_servers, {"client.rack": RACKS[1]}).consume_all(TOPIC) == site.sent


def test_a_consumer_learns_a_new_leader_at_the_gateways_port(site: Site) -> None:
    """The former leader continues, and says in its answer who leads now (KIP-951)."""
    _, second = site.brokers
    second.stop()
    second.start()
    assert described(site.gateway).keys() == RACKS.keys()
    client, before = site.gateway.client, direct_connections(site)
    properties = {"group.id": TOPIC, "enable.auto.commit": False, "topic.metadata.refresh.interval.ms": NEVER}
    with closing(Consumer({"bootstrap.servers": site.gateway.bootstrap_servers, **properties})) as consumer:
        consumer.assign([Assigned(TOPIC, 0, 0)])
        offsets = read(consumer, len(site.sent))
        _, known = site.fetched(1, len(site.sent) - 1)
        client.elect_preferred(TOPIC)
        more = client.produce(TOPIC, varied_records(200, seed=2), batch_num_messages=20, acks="all")
        offsets += read(consumer, len(more))
        assert direct_connections(site) <= before

    answer, fenced = site.fetched(1, len(site.sent), leader_epoch=0)
    assert known.error_code.value == 0
    assert fenced.error_code.value == FENCED_LEADER_EPOCH
    assert fenced.current_leader.leader_id == 2
    assert [(each.node_id, each.host, each.port) for each in answer.node_endpoints] == [(2, "127.0.0.1", site.port(2))]
    assert offsets == [each.offset for each in site.sent + more]
