"""Leaders change while clients read through the gateway."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Assigned

from servers.kafka_programs import KafkaPrograms
from servers.real_kafka import RealKafka
from support.gateways import copied_and_trimmed, running_gateway
from support.kafka_clients import REQUEST_SECONDS
from support.live_sites import LONG, SMALL_SEGMENTS, LiveSite
from support.records import varied_records
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.connections.error_codes import FENCED_LEADER_EPOCH
from tiered_storage.kafka_wire.fetch import FetchBuffer, FetchPosition
from tiered_storage.kafka_wire.metadata import TopicPartition
from tiered_storage_airflow.demo_cluster.brokers import free_first_port

TOPIC = "gateway-leaders"
TERMS = 3
"""How many times the broker is started; each time begins a leader epoch, or two."""


def epoch_ends(bootstrap_servers: str) -> list[object]:
    """Ask for the end of each leader epoch of the topic."""
    with ClusterClient.by_properties({"bootstrap.servers": bootstrap_servers}) as client:
        return [
            client.offsets_for_leader_epochs({TopicPartition(TOPIC, 0): epoch})[TopicPartition(TOPIC, 0)]
            for epoch in range(2 * TERMS)
        ]


def fenced(bootstrap_servers: str, offsets: list[int]) -> list[int]:
    """Fetch at each offset as a consumer that knows only the first leader; return what it gets."""
    with ClusterClient.by_properties({"bootstrap.servers": bootstrap_servers}) as client:
        return [
            client.fetch([FetchPosition(TOPIC, 0, offset, leader_epoch=0)], FetchBuffer(8 << 20), seconds=5)
            .partitions[0]
            .error_code
            for offset in offsets
        ]


@pytest.mark.nightly
def test_epochs_end_where_they_did_and_a_restarted_broker_continues(
    kafka_programs: KafkaPrograms, tmp_path: Path
) -> None:
    port = free_first_port([1])
    with RealKafka(kafka_programs, tmp_path / "kafka") as kafka:
        site = LiveSite(kafka, tmp_path, (TOPIC,), {"gateway.port": port})
        kafka.client.create_topic(TOPIC, 1, SMALL_SEGMENTS | LONG)
        sent = kafka.client.produce(TOPIC, varied_records(300, seed=0), batch_num_messages=20)
        for term in range(1, TERMS):
            kafka.stop()
            kafka.start()
            sent += kafka.client.produce(TOPIC, varied_records(300, seed=term), batch_num_messages=20)
        sent = kafka.client.consume_all(TOPIC)
        ends = epoch_ends(kafka.bootstrap_servers)
        assert len(set(ends)) >= TERMS
        copied_and_trimmed(site, TOPIC)
        assert epoch_ends(kafka.bootstrap_servers) != ends

        with running_gateway(site.config, port) as gateway:
            assert epoch_ends(gateway.bootstrap_servers) == ends
            assert fenced(gateway.bootstrap_servers, [0, len(sent) - 1]) == [FENCED_LEADER_EPOCH] * 2
            consumer = Consumer(
                {"bootstrap.servers": gateway.bootstrap_servers, "group.id": TOPIC, "enable.auto.commit": False}
            )
            try:
                consumer.assign([Assigned(TOPIC, 0, 0)])
                read = [consumer.poll(REQUEST_SECONDS) for _ in range(100)]
                kafka.stop()
                kafka.start()
                read += [consumer.poll(2 * REQUEST_SECONDS) for _ in range(len(sent) - 100)]
            finally:
                consumer.close()

    assert [None if each is None or each.error() else each.offset() for each in read] == [each.offset for each in sent]
