"""Kafka's own command-line tools, and transactional producers, work through the gateway."""

from __future__ import annotations

from contextlib import closing

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Assigned

from servers.real_kafka import RealKafka
from support.gateways import RunningGateway, copied_and_trimmed
from support.kafka_clients import REQUEST_SECONDS, send
from support.live_sites import LONG, SMALL_SEGMENTS, LiveSite
from support.records import varied_records
from tiered_storage.kafka_log.records.record import Record
from tiered_storage_airflow.demo_cluster.brokers import free_first_port
from tiered_storage_airflow.demo_cluster.kafka_programs import KafkaProgramError

TOPIC, WRITTEN, GROUP = "gateway-tools", "gateway-tools-written", "gateway-tools"
TYPED, SET_BACK = "gateway-tools-typed", "gateway-tools-set-back"
TOOLS = "org.apache.kafka.tools"


@pytest.fixture(scope="module")
def site(real_kafka: RealKafka, tmp_path_factory: pytest.TempPathFactory) -> LiveSite:
    root = tmp_path_factory.mktemp("gateway-tools")
    return LiveSite(real_kafka, root, (TOPIC,), {"gateway.port": free_first_port([1])})


@pytest.fixture(scope="module")
def sent(site: LiveSite) -> list[Record]:
    client = site.kafka.client
    client.create_topic(TOPIC, 1, SMALL_SEGMENTS | LONG)
    records = client.produce(TOPIC, varied_records(400, seed=1), batch_num_messages=20)
    assert copied_and_trimmed(site, TOPIC) > 0
    return records


def test_a_transaction_takes_remote_records_and_writes_what_it_makes_of_them(
    site: LiveSite, gateway: RunningGateway, sent: list[Record]
) -> None:
    gateway.client.create_topic(WRITTEN)
    consumer = Consumer(
        {"bootstrap.servers": gateway.bootstrap_servers, "group.id": GROUP, "enable.auto.commit": False}
    )
    producer = gateway.client.producer(transactional_id=WRITTEN)
    try:
        consumer.assign([Assigned(TOPIC, 0, 0)])
        taken = consumer.consume(100, REQUEST_SECONDS)
        producer.init_transactions(REQUEST_SECONDS)
        producer.begin_transaction()
        send(producer, WRITTEN, 0, varied_records(20, seed=2))
        producer.abort_transaction(REQUEST_SECONDS)
        producer.begin_transaction()
        written = send(producer, WRITTEN, 0, varied_records(len(taken), seed=3))
        group = consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction([Assigned(TOPIC, 0, len(taken))], group, REQUEST_SECONDS)
        producer.commit_transaction(REQUEST_SECONDS)
        [committed] = consumer.committed([Assigned(TOPIC, 0)], REQUEST_SECONDS)
    finally:
        consumer.close()

    assert [message.offset() for message in taken] == [record.offset for record in sent[:100]]
    assert committed.offset == 100
    assert gateway.client.consume_all(WRITTEN, isolation="read_committed") == written
    described = site.kafka.tool(
        f"{TOOLS}.consumer.group.ConsumerGroupCommand",
        *("--bootstrap-server", gateway.bootstrap_servers, "--describe", "--group", GROUP),
    )
    [row] = [line.split() for line in described.splitlines() if line.startswith(GROUP)]
    assert row[1:6] == [TOPIC, "0", "100", str(len(sent)), str(len(sent) - 100)]


def test_the_console_producer_writes_and_a_group_is_set_back_to_remote_records(
    site: LiveSite, gateway: RunningGateway, sent: list[Record]
) -> None:
    servers = ("--bootstrap-server", gateway.bootstrap_servers)
    gateway.client.create_topic(TYPED)
    site.kafka.tool(f"{TOOLS}.ConsoleProducer", *servers, "--topic", TYPED, given="one\ntwo\n")
    assert [record.value for record in gateway.client.consume_all(TYPED)] == [b"one", b"two"]

    ids = {"bootstrap.servers": gateway.bootstrap_servers, "group.id": SET_BACK, "enable.auto.commit": False}
    with closing(Consumer(ids)) as consumer:
        consumer.commit(offsets=[Assigned(TOPIC, 0, len(sent))], asynchronous=False)
    site.kafka.tool(
        f"{TOOLS}.consumer.group.ConsumerGroupCommand",
        *(*servers, "--group", SET_BACK, "--topic", TOPIC, "--reset-offsets", "--to-earliest", "--execute"),
    )
    with closing(Consumer(ids)) as consumer:
        [committed] = consumer.committed([Assigned(TOPIC, 0)], REQUEST_SECONDS)
        consumer.assign([committed])
        [first] = consumer.consume(1, REQUEST_SECONDS)
    assert (committed.offset, first.offset(), first.value()) == (0, 0, sent[0].value)


def test_the_shell_for_offsets_shows_both_tiers(site: LiveSite, gateway: RunningGateway, sent: list[Record]) -> None:
    def shown(time: str) -> str:
        options = ("--bootstrap-server", gateway.bootstrap_servers, "--topic", TOPIC, "--time", time)
        return site.kafka.tool(f"{TOOLS}.GetOffsetShell", *options).strip()

    assert shown("earliest") == f"{TOPIC}:0:0"
    assert shown("latest") == f"{TOPIC}:0:{len(sent)}"


def test_tools_describe_topics_and_settings(site: LiveSite, gateway: RunningGateway) -> None:
    server = ("--bootstrap-server", gateway.bootstrap_servers)

    topic = site.kafka.tool(f"{TOOLS}.TopicCommand", *server, "--describe", "--topic", TOPIC)
    settings = site.kafka.tool(
        "kafka.admin.ConfigCommand", *server, "--describe", "--entity-type", "topics", "--entity-name", TOPIC
    )

    assert "Leader: 1" in topic
    assert f"segment.ms={1 << 60}" in settings


def test_limits_that_a_tool_sets_at_the_brokers_count_for_the_remote_log(
    site: LiveSite, gateway: RunningGateway, sent: list[Record]
) -> None:
    topic = ("--bootstrap-server", gateway.bootstrap_servers, "--entity-type", "topics", "--entity-name", TOPIC)
    total, local = 1 << 61, 1 << 50

    def set_to(added: str) -> None:
        site.kafka.tool("kafka.admin.ConfigCommand", *topic, "--alter", "--add-config", added)

    set_to(f"retention.ms={total},local.retention.ms={local}")
    # The brokers have no tiering: only 'tiered-storage topics enable' begins ours.
    with pytest.raises(KafkaProgramError, match="disabled in the broker"):
        set_to("remote.storage.enable=true")

    shown = site.kafka.tool("kafka.admin.ConfigCommand", *topic, "--describe")
    assert f"retention.ms={total}" in shown
    assert f"local.retention.ms={local}" in shown
    [listed] = [row for row in site.run("topics", "list", "--json").rows if row["topic"] == TOPIC]
    assert (listed["retention.ms"], listed["local.retention.ms"]) == (total, local)
