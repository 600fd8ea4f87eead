"""Ordinary clients read a topic from its first offset, which only the remote log has, to its end, each record once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from golden.aiokafka_clients import consume_all as consume_with_aiokafka
from integration.java_consumer import consume_with_java, java_lines
from integration.kafka_python_consumer import consume_all as consume_with_kafka_python
from integration.spark_kafka_source import BATCH, STREAM, read_with_spark
from servers.real_kafka import RealKafka
from support.gateways import RunningGateway
from support.kafka_clients import REQUEST_SECONDS, RealKafkaClient
from support.live_sites import LiveSite
from tiered_storage.kafka_log.records.record import Record
from tiered_storage_airflow.demo_cluster.brokers import free_first_port

PLAIN = "gateway-clients"
MEGABYTE = 1 << 20
PYTHON_CLIENTS: dict[str, Callable[[str, str], list[Record]]] = {
    "librdkafka": lambda servers, topic: RealKafkaClient(servers).consume_all(topic),
    "aiokafka": lambda servers, topic: consume_with_aiokafka(servers, topic, 0),
    "kafka-python": consume_with_kafka_python,
    "kafka-python in a group": lambda servers, topic: consume_with_kafka_python(servers, topic, group=topic),
}


@pytest.fixture(scope="module")
def site(real_kafka: RealKafka, tmp_path_factory: pytest.TempPathFactory) -> LiveSite:
    root = tmp_path_factory.mktemp("gateway-clients")
    return LiveSite(real_kafka, root, (PLAIN,), {"gateway.port": free_first_port([1])})


@pytest.mark.parametrize("consume", PYTHON_CLIENTS.values(), ids=PYTHON_CLIENTS.keys())
def test_a_python_client_reads_trimmed_and_local_records_once_each(
    gateway: RunningGateway, sent: list[Record], consume: Callable[[str, str], list[Record]]
) -> None:
    assert consume(gateway.bootstrap_servers, PLAIN) == sent


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_javas_console_consumer_reads_them_too(
    site: LiveSite, gateway: RunningGateway, sent: list[Record], protocol: str
) -> None:
    found = consume_with_java(
        site.kafka,
        PLAIN,
        most=len(sent),
        bootstrap_servers=gateway.bootstrap_servers,
        properties=[f"group.protocol={protocol}"],
    )

    assert found == java_lines(sent, 0)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_javas_performance_consumer_counts_every_record_and_byte(
    site: LiveSite, gateway: RunningGateway, sent: list[Record], protocol: str
) -> None:
    """It ends once it has that many records: repeated or skipped ones would come to other bytes."""
    counted = site.kafka.tool(
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--bootstrap-server", gateway.bootstrap_servers, "--topic", PLAIN, "--num-records", str(len(sent))),
        *("--command-property", f"group.protocol={protocol}", "--timeout", "60000", "--hide-header"),
    )

    _begin, _end, megabytes, _rate, records, *_ = counted.splitlines()[-1].split(", ")
    size = sum(len(record.key or b"") + len(record.value or b"") for record in sent)
    assert (int(records), megabytes) == (len(sent), f"{size / MEGABYTE:.4f}")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_reads_from_the_first_remote_offset_and_commits(
    gateway: RunningGateway, sent: list[Record], protocol: str
) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": gateway.bootstrap_servers,
            "group.id": f"{PLAIN}-{protocol}",
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([PLAIN])
    offsets: list[int] = []
    try:
        while len(offsets) < len(sent):
            message = consumer.poll(REQUEST_SECONDS)
            assert message is not None
            assert message.error() is None
            offsets.append(int(message.offset() or 0))
        [committed] = consumer.commit(asynchronous=False)
    finally:
        consumer.close()

    assert offsets == [record.offset for record in sent]
    assert committed.offset == len(sent)


@pytest.mark.nightly
def test_sparks_kafka_source_reads_them_as_a_batch_and_as_a_stream(
    gateway: RunningGateway, sent: list[Record], state_directory: Path, tmp_path: Path
) -> None:
    found = read_with_spark(state_directory, tmp_path, gateway.bootstrap_servers, PLAIN)

    assert found == {BATCH: sent, STREAM: sent}
