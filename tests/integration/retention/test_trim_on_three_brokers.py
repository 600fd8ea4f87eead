"""Local retention beside three brokers: a leader deletes what every group has read of its partitions, and no more."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from servers.kafka_programs import KafkaPrograms
from support.command_line import mentions
from support.kafka_clients import RealKafkaClient
from support.live_cluster import LiveCluster
from support.records import varied_records
from support.waiting import wait_for
from tiered_storage.remote_log.model import SegmentState
from tiered_storage_airflow.demo_cluster.brokers import NODES, REQUEST_SECONDS, BrokerCluster

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

SEGMENTS = {"internal.segment.bytes": "16384", "segment.ms": str(1 << 60), "retention.ms": "-1"}
"""The records are years old: no broker deletes them by itself, and no tail is copied for its age."""
TRIMMED = {"remote.storage.enable": True, "local.deletion.allowed": True, "local.retention.ms": 1}
GROUP_PARTITIONS = {"offsets.topic.num.partitions": "9"}
OFFSETS_TOPIC = "__consumer_offsets"


@pytest.fixture(scope="module")
def brokers(kafka_programs: KafkaPrograms, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    """Three brokers, each the coordinator of some groups."""
    with BrokerCluster(kafka_programs, tmp_path_factory.mktemp("trimmed-brokers"), GROUP_PARTITIONS) as started:
        yield started


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return str(request.node.name).removeprefix("test_")[:80].replace("_", "-")


@pytest.fixture
def site(brokers: BrokerCluster, tmp_path: Path, topic: str) -> LiveCluster:
    return LiveCluster(brokers, tmp_path, (topic,), {"topics": {topic: TRIMMED}}).write()


def filled(site: LiveCluster, topic: str) -> dict[int, list[int]]:
    """Make a topic of a partition led by each broker, fill and copy it; return the ends of the remote segments."""
    site.kafka.create_topic(topic, 3, SEGMENTS, [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    assert {site.kafka.leader(topic, number) for number in range(3)} == set(NODES)
    for number in range(3):
        records = varied_records(600, seed=number)
        RealKafkaClient(site.kafka.bootstrap_servers).produce(topic, records, partition=number, batch_num_messages=20)
    site.catch_up()
    with site.open() as remote_log:
        return {
            each.partition: [
                segment.end_offset + 1
                for segment in remote_log.context.segments.list_remote_log_segments(each)
                if segment.state is SegmentState.COPY_SEGMENT_FINISHED
            ]
            for each in remote_log.context.segments.list_partitions()
        }


def commit(site: LiveCluster, group: str, topic: str, offsets: Mapping[int, int]) -> None:
    """Let a group commit an offset of each partition, as one that is not active any more."""
    with closing(Consumer({"bootstrap.servers": site.kafka.bootstrap_servers, "group.id": group})) as consumer:
        wanted = [TopicPartition(topic, number, offset) for number, offset in offsets.items()]
        consumer.commit(offsets=wanted, asynchronous=False)


def test_each_leader_deletes_up_to_what_the_last_of_several_groups_has_read(site: LiveCluster, topic: str) -> None:
    ends = filled(site, topic)
    client = RealKafkaClient(site.kafka.bootstrap_servers)
    sent = {number: client.consume_all(topic, number) for number in range(3)}
    whole = {number: found[-1] for number, found in ends.items()}
    commit(site, "reads-first", topic, whole)
    commit(site, "reads-slowly", topic, {0: ends[0][1], 1: ends[1][3], 2: ends[2][0] + 1})
    commit(site, "reads-0-and-1", topic, {0: ends[0][2], 1: ends[1][2]})

    result = site.run("retain", "--json")

    assert result.exit_code == 0, result.err
    assert mentions(result.err, "reads-slowly", "reads-0-and-1 that", "other partitions only")
    assert site.log_starts(topic) == {0: ends[0][1], 1: ends[1][2], 2: 0}
    commit(site, "reads-0-and-1", topic, {2: whole[2]})
    assert site.run("retain").exit_code == 0
    assert site.log_starts(topic) == {0: ends[0][1], 1: ends[1][2], 2: ends[2][0]}

    # What a leader deleted, its followers deleted too: another one leads, and begins there.
    for node in NODES:
        site.kafka.stop(node)
        wait_for(lambda: all(site.kafka.leader(topic, number) > 0 for number in range(3)), lambda: "no leader")
        assert site.log_starts(topic) == {0: ends[0][1], 1: ends[1][2], 2: ends[2][0]}
        site.kafka.start(node)
    assert site.run("audit", "--deep").exit_code == 0
    for number, start in site.log_starts(topic).items():
        assert client.consume_all(topic, number, start=start) == sent[number][start:]


def test_while_coordinators_move_and_load_their_groups_nothing_is_deleted_that_a_group_has_not_read(
    site: LiveCluster, topic: str
) -> None:
    ends = filled(site, topic)
    bound = {number: found[1] for number, found in ends.items()}
    groups = [f"group-{number}" for number in range(12)]
    for group in groups:
        commit(site, group, topic, bound)
    held: list[str] = []
    for node in NODES:
        coordinated = {number for number in range(9) if site.kafka.leader(OFFSETS_TOPIC, number) == node}
        site.kafka.kill(node)
        for _ in range(3):
            held += _trimmed(site, topic, bound)
        site.kafka.start(node)
        held += _trimmed(site, topic, bound)
        assert coordinated or node != NODES[0]
    # However often it was held, afterwards it continues by itself.
    wait_for(lambda: site.run("retain").exit_code == 0, lambda: str(held[-3:]))
    assert site.log_starts(topic) == bound
    for group in groups:
        commit(site, group, topic, {number: found[-1] for number, found in ends.items()})
    assert site.run("retain").exit_code == 0
    assert site.log_starts(topic) == {number: found[-1] for number, found in ends.items()}
    assert site.run("audit", "--deep").exit_code == 0


def _trimmed(site: LiveCluster, topic: str, bound: Mapping[int, int]) -> list[str]:
    """Run local retention; whatever it does, no log may begin after `bound`. Return what it said if it failed."""
    result = site.run("retain", "--json")
    wait_for(lambda: len(site.log_starts(topic)) == len(bound), lambda: "no leader", REQUEST_SECONDS)
    starts = site.log_starts(topic)
    assert all(starts[number] <= end for number, end in bound.items()), (starts, bound, result)
    if result.exit_code == 0:
        assert starts == bound
        assert json.loads(result.out)
        return []
    return [result.err]
