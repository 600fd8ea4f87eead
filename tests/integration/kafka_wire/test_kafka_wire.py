"""The client for Kafka's protocol reads what a real broker stores, and sends it the requests of Kafka's own tools."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import IsolationLevel as ClientIsolation
from confluent_kafka import Producer, admin
from confluent_kafka import TopicPartition as ClientPartition

from servers.kafka_programs import KafkaPrograms
from servers.real_kafka import RealKafka
from servers.tiering_kafka import TIERED, tiering_kafka
from support.kafka_clients import CODECS
from support.records import varied_records
from support.waiting import wait_for
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.connections.apis import OffsetSpec
from tiered_storage.kafka_wire.connections.error_codes import OFFSET_OUT_OF_RANGE, POLICY_VIOLATION, PartitionError
from tiered_storage.kafka_wire.fetch import FetchBuffer, FetchedPartition, FetchLimits, FetchPosition, IsolationLevel
from tiered_storage.kafka_wire.fetch_layout import AbortedTransaction, EpochEnd
from tiered_storage.kafka_wire.metadata import TopicPartition
from tiered_storage.kafka_wire.partition_requests import ListedOffset

TOPIC = "read-by-fetch"
READ = TopicPartition(TOPIC, 0)
TIME = 1_700_000_000_000
WAIT_SECONDS = 60
GET_OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
_KAFKAS: Any = admin.OffsetSpec  # type: ignore[attr-defined]


def client_of(kafka: RealKafka) -> ClusterClient:
    return ClusterClient.by_properties({"bootstrap.servers": kafka.bootstrap_servers})


@pytest.fixture(scope="module")
def topic_id(real_kafka: RealKafka) -> str:
    """A topic of several codecs and segments: idempotent, committed, aborted and open transactions."""
    client = real_kafka.client
    topic_id = client.create_topic(TOPIC, 2, {"internal.segment.bytes": "65536"})
    for seed, codec in enumerate(CODECS):
        client.produce(TOPIC, varied_records(200, seed=seed), codec=codec, batch_num_messages=20)
    client.produce(TOPIC, varied_records(100, seed=9), enable_idempotence="true")
    for number, ends in enumerate(("commit", "abort", "nothing")):
        producer = client.producer(transactional_id=f"{TOPIC}-{number}")
        producer.init_transactions()
        producer.begin_transaction()
        for each in range(10):
            producer.produce(TOPIC, f"{ends} {each}".encode(), partition=0, timestamp=TIME)
        producer.flush()
        if ends != "nothing":
            (producer.commit_transaction if ends == "commit" else producer.abort_transaction)()
            client.wait_until_decided(TOPIC)
        else:
            OPEN.append(producer)
    client.produce(TOPIC, varied_records(20, seed=10))
    return topic_id


OPEN: list[Producer] = []
"""Keeps its transaction open."""


@pytest.fixture
def cluster(real_kafka: RealKafka) -> Iterator[ClusterClient]:
    with client_of(real_kafka) as cluster:
        yield cluster


def read_on(
    cluster: ClusterClient, position: FetchPosition, buffer: FetchBuffer, limits: FetchLimits
) -> tuple[FetchedPartition, bytes, int]:
    """Fetch once; return the answer, its whole batches, and the offset after them."""
    [found] = cluster.fetch([position], buffer, limits).partitions
    at, offset = 0, position.offset
    while len(found.records) - at >= 61:
        size = 12 + int.from_bytes(found.records[at + 8 : at + 12], "big")
        if at + size > len(found.records):
            break
        first, delta = found.records[at : at + 8], found.records[at + 23 : at + 27]
        offset = int.from_bytes(first, "big") + int.from_bytes(delta, "big") + 1
        at += size
    return found, bytes(found.records[:at]), offset


@pytest.mark.parametrize("max_bytes", [3_000, 50_000, 8 << 20])
@pytest.mark.parametrize("names_topic", [True, False])
def test_fetched_bytes_are_those_of_the_brokers_files(
    real_kafka: RealKafka, cluster: ClusterClient, topic_id: str, max_bytes: int, names_topic: bool
) -> None:
    stored = b"".join(each.log_path.read_bytes() for each in list_segments(real_kafka.log_dir / f"{TOPIC}-0"))
    end = cluster.list_offsets({READ: OffsetSpec.LATEST})[READ]
    assert isinstance(end, ListedOffset)
    buffer, limits = FetchBuffer(9 << 20), FetchLimits(max_bytes=max_bytes)
    offset, parts = 0, []
    while offset < end.offset:
        position = FetchPosition(TOPIC, 0, offset, max_bytes, topic_id if names_topic else None)
        found, batches, offset = read_on(cluster, position, buffer, limits)
        assert (found.error_code, found.high_watermark, found.log_start_offset) == (0, end.offset, 0)
        assert found.leader_epoch == 0
        parts.append(batches)
    assert b"".join(parts) == stored
    assert len(list_segments(real_kafka.log_dir / f"{TOPIC}-0")) > 2


def test_a_committed_read_ends_at_the_stable_offset_and_names_the_aborted(
    cluster: ClusterClient, topic_id: str
) -> None:
    buffer = FetchBuffer(9 << 20)
    limits = FetchLimits(isolation=IsolationLevel.READ_COMMITTED)
    offset, aborted, stable = 0, set[AbortedTransaction](), 0
    while offset < stable or not stable:
        found, batches, offset = read_on(cluster, FetchPosition(TOPIC, 0, offset, topic_id=topic_id), buffer, limits)
        aborted.update(found.aborted)
        stable = found.last_stable_offset
        assert batches
    latest = cluster.list_offsets({READ: OffsetSpec.LATEST}, isolation=IsolationLevel.READ_COMMITTED)[READ]
    assert isinstance(latest, ListedOffset)
    assert offset == stable == latest.offset < found.high_watermark
    [transaction] = aborted
    # 1100 records, a committed transaction of 10 with its marker.
    assert transaction.first_offset == 1111


def test_an_empty_partition_is_waited_for_and_gives_nothing(cluster: ClusterClient, topic_id: str) -> None:
    position = FetchPosition(TOPIC, 1, 0, topic_id=topic_id)
    [found] = cluster.fetch([position], FetchBuffer(1 << 20), FetchLimits(max_wait_seconds=0.05)).partitions
    assert (found.error_code, len(found.records), found.high_watermark) == (0, 0, 0)


def test_several_partitions_come_in_one_answer(cluster: ClusterClient, topic_id: str) -> None:
    positions = [FetchPosition(TOPIC, 0, 0, 1000, topic_id), FetchPosition(TOPIC, 1, 5, 1000, topic_id)]
    found = {each.partition: each for each in cluster.fetch(positions, FetchBuffer(1 << 20)).partitions}
    assert found[0].records
    assert found[1].error_code == OFFSET_OUT_OF_RANGE


def test_offsets_are_those_that_librdkafka_gets(real_kafka: RealKafka, cluster: ClusterClient, topic_id: str) -> None:
    client = admin.AdminClient({"bootstrap.servers": real_kafka.bootstrap_servers})
    specs = {
        OffsetSpec.EARLIEST: _KAFKAS.earliest(),
        OffsetSpec.LATEST: _KAFKAS.latest(),
        OffsetSpec.MAX_TIMESTAMP: _KAFKAS.max_timestamp(),
        **{at: _KAFKAS.for_timestamp(at) for at in (0, TIME, TIME + 1, 1 << 50)},
    }
    levels = {
        IsolationLevel.READ_UNCOMMITTED: ClientIsolation.READ_UNCOMMITTED,
        IsolationLevel.READ_COMMITTED: ClientIsolation.READ_COMMITTED,
    }
    for isolation, level in levels.items():
        for spec, theirs in specs.items():
            asked = client.list_offsets({ClientPartition(TOPIC, 0): theirs}, isolation_level=level)
            [expected] = [future.result() for future in asked.values()]
            found = cluster.list_offsets({READ: spec}, isolation=isolation)[READ]
            assert isinstance(found, ListedOffset)
            assert (found.offset, found.timestamp) == (expected.offset, expected.timestamp), (isolation, spec)


def test_the_ends_of_leader_epochs_are_known(cluster: ClusterClient, topic_id: str) -> None:
    end = cluster.list_offsets({READ: OffsetSpec.LATEST})[READ]
    assert isinstance(end, ListedOffset)
    asked = {READ: 0, TopicPartition(TOPIC, 1): 7}
    assert cluster.offsets_for_leader_epochs(asked) == {
        READ: EpochEnd(0, end.offset),
        TopicPartition(TOPIC, 1): EpochEnd(-1, -1),
    }


def test_metadata_are_those_of_the_cluster(real_kafka: RealKafka, cluster: ClusterClient, topic_id: str) -> None:
    found = cluster.metadata([TOPIC, "no-such-topic"])
    assert found.cluster_id == real_kafka.client.cluster_id()
    assert {str(each.address) for each in found.brokers.values()} == {real_kafka.bootstrap_servers}
    assert found.topics[TOPIC].topic_id == topic_id
    assert {number: each.leader for number, each in found.topics[TOPIC].partitions.items()} == {0: 1, 1: 1}
    assert found.topics["no-such-topic"].error_code == 3
    assert "no-such-topic" not in cluster.metadata().topics
    assert TOPIC in cluster.metadata().topics


def test_records_are_deleted_from_many_partitions_at_once(real_kafka: RealKafka, cluster: ClusterClient) -> None:
    client = real_kafka.client
    client.create_topic("trimmed", 3)
    client.create_topic("compacted", 1, {"cleanup.policy": "compact"})
    for partition in range(3):
        client.produce("trimmed", varied_records(30, seed=partition), partition=partition)
    zero, one, two = (TopicPartition("trimmed", number) for number in range(3))
    compacted = TopicPartition("compacted", 0)
    found = cluster.delete_records({zero: 10, one: 31, two: 0, compacted: 0})
    assert (found[zero], found[two]) == (10, 0)
    errors = {each: error.code for each, error in found.items() if isinstance(error, PartitionError)}
    assert errors == {one: OFFSET_OUT_OF_RANGE, compacted: POLICY_VIOLATION}
    starts = cluster.list_offsets(dict.fromkeys((zero, one, two), OffsetSpec.EARLIEST))
    offsets = {each: start.offset for each, start in starts.items() if isinstance(start, ListedOffset)}
    assert offsets == {zero: 10, one: 0, two: 0}


def test_offsets_of_a_tiered_topic_are_those_of_kafkas_tool(kafka_programs: KafkaPrograms, tmp_path: Path) -> None:
    with tiering_kafka(kafka_programs, tmp_path) as kafka, client_of(kafka) as cluster:
        kafka.client.create_topic("tiered", 1, TIERED)
        kafka.client.produce("tiered", varied_records(1_500, seed=1), batch_num_messages=50)
        partition = TopicPartition("tiered", 0)
        specs = (OffsetSpec.EARLIEST_LOCAL, OffsetSpec.LATEST_TIERED, OffsetSpec.EARLIEST_PENDING_UPLOAD)

        def found(isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED) -> dict[OffsetSpec, int]:
            answers = {spec: cluster.list_offsets({partition: spec}, isolation=isolation)[partition] for spec in specs}
            return {spec: each.offset for spec, each in answers.items() if isinstance(each, ListedOffset)}

        active = list_segments(kafka.log_dir / "tiered-0")[-1].base_offset
        # Then all that is closed is remote, and nothing of it local.
        tiered = dict(zip(specs, (active, active - 1, active), strict=True))
        wait_for(lambda: found() == tiered, lambda: f"the broker did not tier up to {active}: {found()}", WAIT_SECONDS)
        expected = {spec: kafkas(kafka, spec) for spec in specs}
        assert found() == found(IsolationLevel.READ_COMMITTED) == expected
        earliest = cluster.list_offsets({partition: OffsetSpec.EARLIEST})[partition]
        assert isinstance(earliest, ListedOffset)
        assert earliest.offset == 0 < expected[OffsetSpec.EARLIEST_LOCAL]
        [gone] = cluster.fetch([FetchPosition("tiered", 0, 0)], FetchBuffer(2 << 20)).partitions
        assert gone.records, "the broker serves its remote tier"


def kafkas(kafka: RealKafka, spec: OffsetSpec) -> int:
    """The output of GetOffsetShell."""
    options = ("--bootstrap-server", kafka.bootstrap_servers, "--topic", "tiered", "--time", str(int(spec)))
    said = kafka.tool(GET_OFFSETS, *options)
    found = re.search(r"^tiered:0:(-?\d+)$", said, re.MULTILINE)
    assert found, said
    return int(found[1])
