"""Ordinary consumers read whole topics through the gateway: trimmed records from the remote log, all others locally."""

from __future__ import annotations

import socket
from contextlib import closing
from datetime import timedelta

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from integration.gateway.remote_topics import fetch_until_answered
from integration.java_consumer import consume_with_java, java_lines
from servers.real_kafka import RealKafka
from support.gateways import RunningGateway, copied_and_trimmed, running_gateway
from support.kafka_clients import REQUEST_SECONDS, Isolation, send
from support.live_sites import LONG, SMALL_SEGMENTS, LiveSite
from support.records import varied_records
from tiered_storage.gateway.allowed_apis import FETCH
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.connections import apis
from tiered_storage.kafka_wire.connections.apis import OffsetSpec
from tiered_storage.kafka_wire.connections.client_settings import BrokerAddress, parse_client_settings
from tiered_storage.kafka_wire.connections.connection import open_connection
from tiered_storage.kafka_wire.connections.error_codes import (
    KAFKA_STORAGE_ERROR,
    OFFSET_OUT_OF_RANGE,
    UNKNOWN_LEADER_EPOCH,
)
from tiered_storage.kafka_wire.connections.frames import decode_answer, encode_request, request, request_module
from tiered_storage.kafka_wire.connections.transport import Deadline
from tiered_storage.kafka_wire.fetch import (
    LARGEST_FRAME,
    FetchBuffer,
    FetchDecoder,
    FetchedPartition,
    FetchLimits,
    FetchPosition,
    IsolationLevel,
    fetch_request,
)
from tiered_storage.kafka_wire.fetch_layout import EpochEnd
from tiered_storage.kafka_wire.metadata import TopicPartition
from tiered_storage.kafka_wire.partition_requests import ListedOffset
from tiered_storage_airflow.demo_cluster.brokers import free_first_port

PLAIN, DECIDED, HOLED, AGAIN, UNTIERED, COPIED_ON, OPEN, HOT, SKIPPED, SHARED = (
    f"gateway-reads-{name}"
    for name in ("plain", "decided", "holed", "again", "untiered", "copied-on", "open", "hot", "skipped", "shared")
)
ISOLATIONS: tuple[Isolation, ...] = ("read_uncommitted", "read_committed")


@pytest.fixture(scope="module")
def site(real_kafka: RealKafka, tmp_path_factory: pytest.TempPathFactory) -> LiveSite:
    root = tmp_path_factory.mktemp("gateway-site")
    return LiveSite(
        real_kafka,
        root,
        (PLAIN, DECIDED, HOLED, AGAIN, COPIED_ON, OPEN, HOT, SKIPPED, SHARED),
        {"gateway.port": free_first_port([1])},
    )


def wire(gateway: RunningGateway) -> ClusterClient:
    return ClusterClient.by_properties({"bootstrap.servers": gateway.bootstrap_servers})


def fetched(gateway: RunningGateway, topic: str, offset: int, limits: FetchLimits | None = None) -> FetchedPartition:
    """Fetch from partition 0 by hand."""
    with wire(gateway) as client:
        return fetch_until_answered(client, topic, offset, limits)


def fetched_once(
    gateway: RunningGateway,
    topic: str,
    topic_id: str,
    offset: int,
    limits: FetchLimits | None = None,
    leader_epoch: int | None = None,
) -> FetchedPartition:
    """Fetch from partition 0 without asking again after an error that may pass."""
    position = FetchPosition(topic, 0, offset, topic_id=topic_id, leader_epoch=leader_epoch)
    settings = parse_client_settings({"bootstrap.servers": gateway.bootstrap_servers}, "test")
    deadline = Deadline.after(REQUEST_SECONDS)
    connection = open_connection(BrokerAddress("127.0.0.1", gateway.port + 1 + 1), settings, deadline)
    with closing(connection):
        message = fetch_request(connection.version(apis.FETCH), [position], limits or FetchLimits(), "")
        answer = connection.receive(
            apis.FETCH, message, deadline, FetchDecoder([position]), FetchBuffer(8 << 20).room, LARGEST_FRAME
        )
    return answer.partitions[0]


def test_clients_see_no_address_but_the_gateways(gateway: RunningGateway) -> None:
    admin = AdminClient({"bootstrap.servers": gateway.bootstrap_servers})

    listed = admin.list_topics(timeout=REQUEST_SECONDS).brokers.values()
    described = admin.describe_cluster().result(REQUEST_SECONDS).nodes

    assert {f"{each.host}:{each.port}" for each in (*listed, *described)} == {f"127.0.0.1:{gateway.port + 1 + 1}"}


def test_producers_write_through_it(site: LiveSite, gateway: RunningGateway) -> None:
    topic = "gateway-reads-produced"
    gateway.client.create_topic(topic)

    produced = [
        *gateway.client.produce(topic, varied_records(50, seed=1), codec="zstd", enable_idempotence="true"),
        *gateway.client.produce(topic, varied_records(50, seed=2), acks="1"),
    ]
    unacknowledged = gateway.client.producer(acks="0")
    unacknowledged.produce(topic, b"no answer")
    assert not unacknowledged.flush(REQUEST_SECONDS)

    assert site.kafka.client.consume_all(topic)[: len(produced)] == produced


@pytest.fixture(scope="module")
def decided(site: LiveSite, gateway: RunningGateway) -> int:
    """Fill DECIDED with transactions, the last one aborted in the broker's log alone; return the remote log's end."""
    client = site.kafka.client
    client.create_topic(DECIDED, 1, SMALL_SEGMENTS | LONG)
    producers = [client.producer(transactional_id=f"{DECIDED}-{number}", batch_num_messages=10) for number in range(2)]
    for producer in producers:
        producer.init_transactions()
    for turn in range(10):
        producer = producers[turn % 2]
        producer.begin_transaction()
        send(producer, DECIDED, 0, varied_records(60, seed=turn))
        (producer.abort_transaction if turn % 3 else producer.commit_transaction)()
    across = producers[0]
    across.begin_transaction()
    send(across, DECIDED, 0, varied_records(200, seed=50))
    client.produce(DECIDED, varied_records(100, seed=51), batch_num_messages=20)
    across.abort_transaction()
    client.wait_until_decided(DECIDED)
    return copied_and_trimmed(site, DECIDED)


def test_only_committed_records_are_read_at_read_committed(
    site: LiveSite, gateway: RunningGateway, decided: int
) -> None:
    everything = gateway.client.consume_all(DECIDED)
    committed = gateway.client.consume_all(DECIDED, isolation="read_committed")

    local = site.kafka.client.consume_all(DECIDED, start=decided, isolation="read_committed")
    with site.open() as remote_log:
        from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader
        from tiered_storage.remote_log.read.read_values import Isolation

        [partition] = [one for one in remote_log.context.segments.list_partitions() if one.topic == DECIDED]
        with BlockingLogReader(remote_log.open_log_reader()) as reader:
            remote = list(reader.records(partition, 0, isolation=Isolation.READ_COMMITTED))
    assert committed == [*remote, *local]
    assert set(committed_offsets := [one.offset for one in committed]) < {one.offset for one in everything}
    assert committed_offsets == sorted(committed_offsets)


def test_java_skips_aborted_records_too(site: LiveSite, gateway: RunningGateway, decided: int) -> None:
    committed = gateway.client.consume_all(DECIDED, isolation="read_committed")

    servers = gateway.bootstrap_servers
    found = consume_with_java(
        site.kafka, DECIDED, isolation="read_committed", most=len(committed), bootstrap_servers=servers
    )

    assert found == java_lines(committed, 0)


COMMITTED = FetchLimits(max_bytes=4096, isolation=IsolationLevel.READ_COMMITTED)


def test_an_abort_that_is_copied_while_its_records_are_read_still_counts(
    site: LiveSite, gateway: RunningGateway
) -> None:
    client = site.kafka.client
    client.create_topic(COPIED_ON, 1, SMALL_SEGMENTS | LONG)
    producer = client.producer(transactional_id=COPIED_ON, batch_num_messages=10)
    producer.init_transactions()
    producer.begin_transaction()
    sent = send(producer, COPIED_ON, 0, varied_records(400, seed=1))
    producer.abort_transaction()
    client.wait_until_decided(COPIED_ON)
    before = copied_and_trimmed(site, COPIED_ON)
    assert 0 < before < len(sent)

    with wire(gateway) as opened:
        found = fetch_until_answered(opened, COPIED_ON, 0, COMMITTED)
        aborted = [found.aborted]
        client.produce(COPIED_ON, varied_records(400, seed=2), batch_num_messages=20)
        assert copied_and_trimmed(site, COPIED_ON) > len(sent)
        offset = _end(found)
        while offset < before:
            found = fetch_until_answered(opened, COPIED_ON, offset, COMMITTED)
            aborted.append(found.aborted)
            offset = _end(found)

    assert len(aborted) > 1
    assert [{each.first_offset for each in one} for one in aborted] == [{0}] * len(aborted)


def test_records_wait_while_only_an_open_transaction_shows_how_theirs_ended(
    site: LiveSite, gateway: RunningGateway
) -> None:
    """The broker's log begins at its last stable offset, where it tells nothing of transactions that ended later."""
    client = site.kafka.client
    topic_id = client.create_topic(OPEN, 1, SMALL_SEGMENTS)
    aborted, committed = (client.producer(transactional_id=f"{OPEN}-{number}") for number in range(2))
    for producer in (aborted, committed):
        producer.init_transactions()
        producer.begin_transaction()
    count = len(send(aborted, OPEN, 0, varied_records(50, seed=1)))
    send(committed, OPEN, 0, varied_records(50, seed=2))
    aborted.abort_transaction()
    client.wait_until_decided(OPEN, below=count)
    assert copied_and_trimmed(site, OPEN) == count

    waiting = [fetched_once(gateway, OPEN, topic_id, 0, COMMITTED) for _ in range(5)]
    committed.commit_transaction()
    found = fetched(gateway, OPEN, 0, COMMITTED)

    assert [(each.error_code, len(each.records)) for each in waiting] == [(0, 0)] * 5
    assert {each.first_offset for each in found.aborted} == {0}


def test_remote_records_come_beside_a_local_partition_that_fills_every_answer(
    site: LiveSite, gateway: RunningGateway
) -> None:
    client = site.kafka.client
    client.create_topic(HOT, 2, SMALL_SEGMENTS | LONG)
    for partition in range(2):
        client.produce(HOT, varied_records(400, seed=partition), partition=partition, batch_num_messages=20)
    assert copied_and_trimmed(site, HOT) > 0
    positions = [FetchPosition(HOT, partition, 0) for partition in range(2)]

    with wire(gateway) as opened:
        sizes = {0: 0, 1: 0}
        for _ in range(50):
            answer = opened.fetch(
                positions, FetchBuffer(8 << 20), FetchLimits(max_bytes=16_384), seconds=REQUEST_SECONDS
            )
            sizes = {each.partition: len(each.records) for each in answer.partitions}
            if sizes[0]:
                break

    assert 0 < sizes[0] < sizes[0] + sizes[1] <= 16_384


def test_several_remote_partitions_share_an_answer_within_its_limits(site: LiveSite, gateway: RunningGateway) -> None:
    client = site.kafka.client
    client.create_topic(SHARED, 3, SMALL_SEGMENTS | LONG)
    for partition in range(3):
        client.produce(SHARED, varied_records(400, seed=partition), partition=partition, batch_num_messages=5)
    assert min(copied_and_trimmed(site, SHARED, partition) for partition in range(3)) > 0
    of_partition, of_answer = 6_000, 14_000
    positions = [FetchPosition(SHARED, partition, 0, of_partition) for partition in range(3)]
    limits = FetchLimits(max_bytes=of_answer)

    with wire(gateway) as opened:
        for _ in range(50):
            answer = opened.fetch(positions, FetchBuffer(8 << 20), limits, seconds=REQUEST_SECONDS)
            found = [(each.error_code, len(each.records), _end(each)) for each in answer.partitions]
            if all(size for _, size, _ in found):
                break

    assert [code for code, _, _ in found] == [0, 0, 0]
    assert all(0 < size <= of_partition for _, size, _ in found)
    assert sum(size for _, size, _ in found) <= of_answer
    # Whole batches, from the first offset on.
    assert all(end % 5 == 0 and end > 0 for _, _, end in found)


@pytest.mark.parametrize("tier", ["remote", "local"])
def test_an_epoch_that_no_leader_had_yet_is_refused_in_both_tiers(
    gateway: RunningGateway, site: LiveSite, sent: list[Record], tier: str
) -> None:
    topic_id = site.kafka.client.topic_id(PLAIN)
    offset = 0 if tier == "remote" else len(sent) - 1

    found = fetched_once(gateway, PLAIN, topic_id, offset, leader_epoch=99)

    assert found.error_code == UNKNOWN_LEADER_EPOCH
    assert not found.records


def _end(found: FetchedPartition) -> int:
    """The offset after the last batch of an answer."""
    at, end = 0, -1
    while at < len(found.records):
        end = int.from_bytes(found.records[at : at + 8], "big") + int.from_bytes(
            found.records[at + 23 : at + 27], "big"
        )
        at += 12 + int.from_bytes(found.records[at + 8 : at + 12], "big")
    return end + 1


def test_an_answer_has_whole_batches_and_the_partitions_offsets(gateway: RunningGateway, sent: list[Record]) -> None:
    limits = FetchLimits(max_bytes=4096)

    found = fetched(gateway, PLAIN, 7, limits)

    assert (found.error_code, found.high_watermark, found.last_stable_offset) == (0, len(sent), len(sent))
    assert found.log_start_offset == 0
    assert 0 < len(found.records) <= limits.max_bytes
    first = int.from_bytes(found.records[:8], "big")
    assert first <= 7
    at = 0
    while at < len(found.records):
        at += 12 + int.from_bytes(found.records[at + 8 : at + 12], "big")
    assert at == len(found.records)


def test_a_first_batch_comes_whole_whatever_the_limit_is(gateway: RunningGateway, sent: list[Record]) -> None:
    found = fetched(gateway, PLAIN, 0, FetchLimits(max_bytes=1))

    assert len(found.records) == 12 + int.from_bytes(found.records[8:12], "big")


def test_an_offset_that_no_tier_ever_had_is_out_of_range(gateway: RunningGateway, sent: list[Record]) -> None:
    assert fetched(gateway, PLAIN, len(sent) + 1).error_code == OFFSET_OUT_OF_RANGE
    with pytest.raises(KafkaException) as refused:
        gateway.client.consume_all(PLAIN, start=len(sent) + 1)
    assert refused.value.args[0].code() == KafkaError._AUTO_OFFSET_RESET


def test_a_follower_gets_nothing_remote(site: LiveSite, gateway: RunningGateway, sent: list[Record]) -> None:
    asked = request_module(FETCH, FETCH.oldest)
    partition = asked.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    follower = request(
        FETCH,
        FETCH.oldest,
        replica_id=2,
        max_wait=timedelta(),
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        topics=(asked.FetchTopic(topic=PLAIN, partitions=(partition,)),),
    )
    with socket.create_connection(("127.0.0.1", gateway.port + 1 + 1), REQUEST_SECONDS) as opened:
        opened.sendall(encode_request(follower, 1, "a follower"))
        with opened.makefile("rb") as answers:
            size = int.from_bytes(answers.read(4), "big")
            answer = decode_answer(memoryview(bytearray(answers.read(size))), FETCH, FETCH.oldest, 1)

    [[found]] = [topic.partitions for topic in answer.responses]
    assert int(found.error_code) != 0
    assert not found.records


def test_a_topic_that_is_not_remote_stays_as_the_broker_has_it(site: LiveSite, gateway: RunningGateway) -> None:
    client = site.kafka.client
    client.create_topic(UNTIERED)
    client.produce(UNTIERED, varied_records(20, seed=1))
    client.delete_records(UNTIERED, 0, 10)

    assert fetched(gateway, UNTIERED, 5).error_code == OFFSET_OUT_OF_RANGE
    assert [one.offset for one in gateway.client.consume_all(UNTIERED, start=10)] == list(range(10, 20))


def test_records_that_neither_tier_has_are_never_skipped(site: LiveSite, gateway: RunningGateway) -> None:
    client = site.kafka.client
    topic_id = client.create_topic(HOLED, 1, SMALL_SEGMENTS | LONG)
    client.produce(HOLED, varied_records(400, seed=1), batch_num_messages=20)
    end = copied_and_trimmed(site, HOLED, more=3)

    assert fetched(gateway, HOLED, end - 1).error_code == 0
    assert fetched_once(gateway, HOLED, topic_id, end).error_code == KAFKA_STORAGE_ERROR
    assert fetched(gateway, HOLED, end + 3).error_code == 0
    assert f"{HOLED}-0: offset {end} is in neither tier" in gateway.log.read_text()


def test_consumers_continue_after_a_hole_where_a_setting_says_so(site: LiveSite, gateway: RunningGateway) -> None:
    client = site.kafka.client
    client.create_topic(SKIPPED, 1, SMALL_SEGMENTS | LONG)
    sent = client.produce(SKIPPED, varied_records(400, seed=1), batch_num_messages=20)
    end = copied_and_trimmed(site, SKIPPED, more=3)
    left = [record for record in sent if not end <= record.offset < end + 3]
    port = free_first_port([1])
    own = {**site.settings, "gateway.port": port, "gateway.skip.missing.offsets": True}
    folder = site.root / "skipping"
    folder.mkdir()
    skipping = LiveSite(site.kafka, folder, site.topics, own | {"state.directory": str(site.root / "state")})

    with running_gateway(skipping.config, port) as started:
        servers = started.bootstrap_servers
        found = [started.client.consume_all(SKIPPED, isolation=isolation) for isolation in ISOLATIONS]
        in_java = consume_with_java(site.kafka, SKIPPED, most=len(left), bootstrap_servers=servers)
        reported = started.log.read_text()

    assert found == [left, left]
    assert in_java == java_lines(left, 0)
    assert reported.count(f"{SKIPPED}-0: offset {end} is in neither tier") == 1


def test_a_topic_created_again_has_nothing_of_the_earlier_one(site: LiveSite, gateway: RunningGateway) -> None:
    client = site.kafka.client
    client.create_topic(AGAIN, 1, SMALL_SEGMENTS | LONG)
    client.produce(AGAIN, varied_records(400, seed=1), batch_num_messages=20)
    copied_and_trimmed(site, AGAIN)
    assert fetched(gateway, AGAIN, 0).error_code == 0
    client.delete_topic(AGAIN)
    client.create_topic(AGAIN)
    client.produce(AGAIN, varied_records(20, seed=2))
    client.delete_records(AGAIN, 0, 10)

    assert fetched(gateway, AGAIN, 0).error_code == OFFSET_OUT_OF_RANGE


def listed(gateway: RunningGateway, spec: int, topic: str = PLAIN) -> ListedOffset:
    with wire(gateway) as client:
        [found] = client.list_offsets({TopicPartition(topic, 0): spec}).values()
    assert isinstance(found, ListedOffset)
    return found


def test_offsets_are_listed_over_both_tiers(site: LiveSite, gateway: RunningGateway, sent: list[Record]) -> None:
    [local_start] = _local_starts(site)
    largest = max(sent, key=lambda record: (record.timestamp, -record.offset))

    assert listed(gateway, OffsetSpec.EARLIEST) == ListedOffset(0, -1, 0)
    assert listed(gateway, OffsetSpec.LATEST) == ListedOffset(len(sent), -1, 0)
    assert listed(gateway, OffsetSpec.EARLIEST_LOCAL).offset == local_start
    assert listed(gateway, OffsetSpec.LATEST_TIERED).offset == local_start - 1
    assert listed(gateway, OffsetSpec.EARLIEST_PENDING_UPLOAD).offset == local_start
    assert listed(gateway, OffsetSpec.MAX_TIMESTAMP)[:2] == (largest.offset, largest.timestamp)


def test_offsets_are_found_by_time_in_both_tiers(gateway: RunningGateway, sent: list[Record]) -> None:
    for record in (sent[0], sent[17], sent[len(sent) // 2], sent[-1]):
        first = next(one for one in sent if one.timestamp >= record.timestamp)
        assert listed(gateway, record.timestamp)[:2] == (first.offset, first.timestamp)
    later = max(one.timestamp for one in sent) + 1
    assert listed(gateway, later).offset == -1


def test_an_epochs_end_is_known_though_the_broker_forgot_it(gateway: RunningGateway, sent: list[Record]) -> None:
    with wire(gateway) as client:
        [found] = client.offsets_for_leader_epochs({TopicPartition(PLAIN, 0): 0}).values()

    assert found == EpochEnd(0, len(sent))


def _local_starts(site: LiveSite) -> list[int]:
    with ClusterClient.by_properties({"bootstrap.servers": site.kafka.bootstrap_servers}) as client:
        found = client.list_offsets({TopicPartition(PLAIN, 0): OffsetSpec.EARLIEST}).values()
    return [one.offset for one in found if isinstance(one, ListedOffset)]
