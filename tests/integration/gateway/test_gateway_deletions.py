"""What clients delete through the gateway is deleted in both tiers, as far as broker and remote log allow it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from integration.gateway.hostile_clients import connected, is_closed_by_the_other_side
from servers.real_kafka import RealKafka
from support.gateways import RunningGateway, copied_and_trimmed, running_gateway
from support.kafka_clients import REQUEST_SECONDS
from support.live_sites import LONG, SMALL_SEGMENTS, LiveSite, log_start, remote_ends
from support.records import varied_records
from tiered_storage.gateway.deletions.client_deletions import DELETE_TOPICS, LARGEST_REQUEST
from tiered_storage.kafka_log.files.kafka_uuid import decode_uuid
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_wire.connections.apis import DELETE_RECORDS
from tiered_storage.kafka_wire.connections.client_settings import parse_client_settings
from tiered_storage.kafka_wire.connections.connection import open_connection
from tiered_storage.kafka_wire.connections.error_codes import (
    KAFKA_STORAGE_ERROR,
    NONE,
    OFFSET_OUT_OF_RANGE,
    POLICY_VIOLATION,
)
from tiered_storage.kafka_wire.connections.frames import encode_request, request, request_module
from tiered_storage.kafka_wire.connections.transport import Deadline
from tiered_storage.remote_log.model import PartitionDeleteState
from tiered_storage_airflow.demo_cluster.brokers import free_first_port

RECORDS, KEPT, STOPPED, AWAY, AGAIN, BY_ID, LEFT, LOCAL, HOSTILE = (
    f"gateway-deletions-{name}"
    for name in ("records", "kept", "stopped", "away", "again", "by-id", "left", "local", "hostile")
)
TOOLS = "org.apache.kafka.tools"
COUNT = 400


@pytest.fixture(scope="module")
def site(real_kafka: RealKafka, tmp_path_factory: pytest.TempPathFactory) -> LiveSite:
    root = tmp_path_factory.mktemp("gateway-deletions")
    found = LiveSite(
        real_kafka,
        root,
        (RECORDS, KEPT, STOPPED, AWAY, AGAIN, BY_ID, LEFT, HOSTILE),
        {"gateway.port": free_first_port([1])},
    )
    with found.open():
        return found


@pytest.fixture(scope="module")
def gateway(site: LiveSite) -> Iterator[RunningGateway]:
    with running_gateway(site.config, site.settings["gateway.port"]) as started:
        yield started


def tiered(site: LiveSite, topic: str, *, allowed: bool) -> list[Record]:
    """Make a topic whose first records are remote only."""
    client = site.kafka.client
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    records = client.produce(topic, varied_records(COUNT, seed=1), batch_num_messages=20)
    assert 0 < copied_and_trimmed(site, topic) < COUNT
    if allowed:
        assert site.run("topics", "allow-deletion", topic, "--only", "remote").exit_code == 0
    return records


def deleted(gateway: RunningGateway, topic: str, before: int) -> int:
    """Delete records by confluent-kafka; return the low watermark, or the error's code."""
    admin = AdminClient({"bootstrap.servers": gateway.bootstrap_servers})
    wanted = TopicPartition(topic, 0, before)
    try:
        found = admin.delete_records([wanted], operation_timeout=REQUEST_SECONDS)[wanted].result(REQUEST_SECONDS)
    except KafkaException as error:
        return -int(error.args[0].code())
    return int(found.low_watermark)


def global_log_start(site: LiveSite, topic: str) -> int | None:
    with site.open() as remote_log:
        [partition] = [each for each in remote_log.context.segments.list_partitions() if each.topic == topic]
        return remote_log.context.segments.log_start_offset(partition)


def delete_states(site: LiveSite, topic: str) -> dict[str, PartitionDeleteState | None]:
    with site.open() as remote_log:
        states = remote_log.context.segments.partition_states()
        known = [each for each in remote_log.context.segments.list_partitions() if each.topic == topic]
        return {each.topic_id: states[each].delete_state if each in states else None for each in known}


def logged(gateway: RunningGateway, text: str) -> bool:
    return text in gateway.log.read_text()


def test_kafkas_tool_deletes_remote_records_and_the_broker_keeps_its_own(
    site: LiveSite, gateway: RunningGateway, tmp_path: Path
) -> None:
    records = tiered(site, RECORDS, allowed=True)
    broker_start = log_start(site.kafka, RECORDS)
    before = broker_start // 2
    wanted = tmp_path / "before.json"
    wanted.write_text(f'{{"partitions": [{{"topic": "{RECORDS}", "partition": 0, "offset": {before}}}], "version": 1}}')

    shown = site.kafka.tool(
        f"{TOOLS}.DeleteRecordsCommand",
        *("--bootstrap-server", gateway.bootstrap_servers, "--offset-json-file", wanted),
    )

    assert f"low_watermark: {before}" in shown
    assert global_log_start(site, RECORDS) == before
    assert log_start(site.kafka, RECORDS) == broker_start
    assert gateway.client.consume_all(RECORDS, start=OFFSET_BEGINNING) == records[before:]
    # Asked for again, or for an earlier one, nothing changes.
    assert deleted(gateway, RECORDS, before) == deleted(gateway, RECORDS, 0) == before
    assert deleted(gateway, RECORDS, -2) == deleted(gateway, RECORDS, COUNT + 1) == -OFFSET_OUT_OF_RANGE
    assert global_log_start(site, RECORDS) == before
    assert deleted(gateway, RECORDS, -1) == COUNT
    assert global_log_start(site, RECORDS) == log_start(site.kafka, RECORDS) == COUNT
    assert gateway.client.consume_all(RECORDS, start=OFFSET_BEGINNING) == []


def test_without_the_permission_remote_records_stay_and_the_client_hears_of_it(
    site: LiveSite, gateway: RunningGateway
) -> None:
    records = tiered(site, KEPT, allowed=False)

    assert deleted(gateway, KEPT, 20) == -POLICY_VIOLATION
    assert global_log_start(site, KEPT) == 0
    assert gateway.client.consume_all(KEPT) == records
    assert logged(gateway, f"{KEPT}-0: a client deleted")
    assert logged(gateway, "'tiered-storage topics allow-deletion' allows it")


def test_a_stop_refuses_a_clients_deletion_and_a_retry_after_it_succeeds(
    site: LiveSite, gateway: RunningGateway
) -> None:
    tiered(site, STOPPED, allowed=True)
    assert site.run("stop-deletions", "--reason", "a test").exit_code == 0
    try:
        refused = deleted(gateway, STOPPED, 20)
    finally:
        assert site.run("stop-deletions", "--lift").exit_code == 0

    assert refused == -POLICY_VIOLATION
    assert global_log_start(site, STOPPED) == 0
    assert deleted(gateway, STOPPED, 20) == 20


def test_during_a_store_outage_the_client_gets_a_retriable_error(site: LiveSite, gateway: RunningGateway) -> None:
    tiered(site, AWAY, allowed=True)
    store = site.root / "state" / "remote"
    elsewhere = store.rename(store.with_name("elsewhere"))
    try:
        failed = deleted(gateway, AWAY, 20)
    finally:
        elsewhere.rename(store)

    assert failed == -KAFKA_STORAGE_ERROR
    assert global_log_start(site, AWAY) == 0
    assert deleted(gateway, AWAY, 20) == 20


def test_untiered_topics_are_served_by_the_brokers_alone(site: LiveSite, gateway: RunningGateway) -> None:
    client = site.kafka.client
    client.create_topic(LOCAL)
    client.produce(LOCAL, varied_records(20, seed=1))

    assert deleted(gateway, LOCAL, 10) == 10
    gateway.client.delete_topic(LOCAL)
    assert not logged(gateway, LOCAL)


def test_a_deleted_topic_is_marked_by_its_id_and_the_next_one_of_the_name_is_not(
    site: LiveSite, gateway: RunningGateway
) -> None:
    tiered(site, AGAIN, allowed=True)
    [first] = delete_states(site, AGAIN)

    gateway.client.delete_topic(AGAIN)

    assert delete_states(site, AGAIN) == {first: PartitionDeleteState.MARKED}
    site.kafka.client.create_topic(AGAIN, 1, SMALL_SEGMENTS | LONG)
    records = site.kafka.client.produce(AGAIN, varied_records(COUNT, seed=2), batch_num_messages=20)
    copied_and_trimmed(site, AGAIN)
    states = delete_states(site, AGAIN)
    assert states.pop(first) is PartitionDeleteState.MARKED
    # The permission was given to the earlier topic.
    assert list(states.values()) == [None]
    assert site.run("topics", "allow-deletion", AGAIN, "--only", "remote").exit_code == 0
    assert gateway.client.consume_all(AGAIN) == records

    shown = site.kafka.tool(
        f"{TOOLS}.TopicCommand", "--bootstrap-server", gateway.bootstrap_servers, "--delete", "--topic", AGAIN
    )

    assert "Error" not in shown
    assert set(delete_states(site, AGAIN).values()) == {PartitionDeleteState.MARKED}


def test_a_topic_is_deleted_by_its_id(site: LiveSite, gateway: RunningGateway) -> None:
    tiered(site, BY_ID, allowed=True)
    [topic_id] = delete_states(site, BY_ID)
    kio = request_module(DELETE_TOPICS, 6)
    wanted = kio.DeleteTopicState(name=None, topic_id=UUID(bytes=decode_uuid(topic_id)))
    message = request(DELETE_TOPICS, 6, topics=(wanted,), timeout=timedelta(seconds=REQUEST_SECONDS))
    settings = parse_client_settings({"bootstrap.servers": gateway.bootstrap_servers}, "test")
    deadline = Deadline.after(REQUEST_SECONDS)

    with closing(open_connection(settings.bootstrap[0], settings, deadline)) as connection:
        answer = connection.exchange(DELETE_TOPICS, message, deadline, lambda found: found)

    assert [int(each.error_code) for each in answer.responses] == [NONE]
    assert delete_states(site, BY_ID) == {topic_id: PartitionDeleteState.MARKED}


def test_without_the_permission_a_deleted_topics_remote_data_stay(site: LiveSite, gateway: RunningGateway) -> None:
    tiered(site, LEFT, allowed=False)
    [topic_id] = delete_states(site, LEFT)

    gateway.client.delete_topic(LEFT)

    assert delete_states(site, LEFT) == {topic_id: None}
    assert remote_ends(site, LEFT)[0] > 0
    assert logged(gateway, f"'tiered-storage delete-topic {LEFT} --topic-id {topic_id}'")


@pytest.fixture(scope="module")
def attacked(site: LiveSite) -> str:
    tiered(site, HOSTILE, allowed=True)
    return HOSTILE


@pytest.mark.usefixtures("attacked")
@pytest.mark.parametrize("kind", ["garbled", "twice", "huge"])
def test_a_hostile_deletion_ends_its_connection_and_deletes_nothing(
    site: LiveSite, gateway: RunningGateway, kind: str
) -> None:
    before = log_start(site.kafka, HOSTILE), global_log_start(site, HOSTILE)
    kio = request_module(DELETE_RECORDS, 2)
    numbers = {"garbled": range(1), "twice": [0, 0], "huge": range(LARGEST_REQUEST // 12)}[kind]
    partitions = tuple(kio.DeleteRecordsPartition(partition_index=number, offset=COUNT) for number in numbers)
    topic = kio.DeleteRecordsTopic(name=HOSTILE, partitions=partitions)
    frame = encode_request(request(DELETE_RECORDS, 2, topics=(topic,), timeout=timedelta(seconds=1)), 7, "test")
    if kind == "garbled":
        frame = struct.pack(">i", len(frame) - 8) + frame[4:-4]

    with connected(gateway) as opened:
        opened.sendall(frame)
        assert is_closed_by_the_other_side(opened)

    assert (log_start(site.kafka, HOSTILE), global_log_start(site, HOSTILE)) == before
