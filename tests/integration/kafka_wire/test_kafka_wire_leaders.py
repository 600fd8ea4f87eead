"""The client for Kafka's protocol follows leaders of a real cluster: one is killed, one takes over, one recommends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from servers.kafka_programs import KafkaPrograms
from servers.real_kafka import RealKafka
from support.records import varied_records
from tiered_storage.kafka_wire.brokers import Brokers
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.connections.apis import OffsetSpec
from tiered_storage.kafka_wire.connections.client_settings import parse_client_settings
from tiered_storage.kafka_wire.fetch import FetchBuffer, FetchPosition
from tiered_storage.kafka_wire.fetch_layout import EpochEnd
from tiered_storage.kafka_wire.metadata import TopicPartition
from tiered_storage.kafka_wire.partition_requests import ListedOffset

TOPIC = "moving"
MOVING = TopicPartition(TOPIC, 0)
SECONDS = 60
PROPERTIES = {
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "auto.leader.rebalance.enable": "false",
}


@pytest.fixture
def brokers(kafka_programs: KafkaPrograms, tmp_path: Path) -> Iterator[tuple[RealKafka, RealKafka]]:
    """Two brokers, in racks of their own: the first is the controller, the second leads the topic."""
    first = RealKafka(kafka_programs, tmp_path / "1", properties={**PROPERTIES, "broker.rack": "a"})
    with first, first.another(2, tmp_path / "2", {**PROPERTIES, "broker.rack": "b"}) as second:
        admin = AdminClient({"bootstrap.servers": first.bootstrap_servers})
        topic = NewTopic(TOPIC, 1, replica_assignment=[[2, 1]])
        admin.create_topics([topic], operation_timeout=SECONDS)[TOPIC].result(SECONDS)
        first.client.produce(TOPIC, varied_records(10, seed=1), acks="all")
        yield first, second


def test_leaders_are_followed_wherever_they_go(brokers: tuple[RealKafka, RealKafka]) -> None:
    first, second = brokers
    settings = parse_client_settings({"bootstrap.servers": first.bootstrap_servers}, "test")
    buffer = FetchBuffer(2 << 20)
    position = FetchPosition(TOPIC, 0, 0)
    latest = {MOVING: OffsetSpec.LATEST}
    with (
        ClusterClient(Brokers(settings)) as client,
        ClusterClient(Brokers(replace(settings, rack="a"))) as nearby,
    ):
        [before] = client.fetch([position], buffer).partitions
        batches = bytes(before.records)
        assert (before.error_code, before.leader_epoch, before.high_watermark) == (0, 0, 10)
        assert client.metadata([TOPIC]).topics[TOPIC].partitions[0].leader == 2

        # A follower in the client's rack is recommended, and serves the same bytes.
        [near] = nearby.fetch([position], FetchBuffer(2 << 20)).partitions
        assert bytes(near.records) == batches
        assert nearby._fetcher._node(position) == 1

        # The leader is gone without a word: both continue with the next one.
        second.kill()
        [after] = client.fetch([position], buffer).partitions
        assert (after.error_code, after.leader_epoch, bytes(after.records)) == (0, 1, batches)
        assert client.list_offsets(latest) == {MOVING: ListedOffset(10, -1, 1)}
        assert client.offsets_for_leader_epochs({MOVING: 0}) == {MOVING: EpochEnd(0, 10)}
        assert client.delete_records({MOVING: 0}) == {MOVING: 0}
        [fenced] = client.fetch([replace(position, leader_epoch=0)], buffer).partitions
        assert fenced.error_code == 74

        # It comes back and leads again, while the one asked so far runs on.
        second.start()
        first.client.elect_preferred(TOPIC)
        [again] = client.fetch([position], buffer).partitions
        assert (again.error_code, bytes(again.records)) == (0, batches)
        assert again.leader_epoch > 1
        assert client.metadata([TOPIC]).topics[TOPIC].partitions[0].leader == 2
