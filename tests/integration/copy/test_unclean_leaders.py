"""After an unclean election below the remote end, readers follow the new leader (scenario 9)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from integration.broker_faults import by_fetch, ensure_as_their_leader, of_files
from integration.copies_beside_brokers import each_copied
from servers.kafka_programs import KafkaPrograms
from support.command_line import mentions
from support.kafka_clients import RealKafkaClient
from support.live_cluster import CopyLoop, LiveCluster, producer
from support.records import varied_records
from support.waiting import wait_for
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.remote_log.copy.tasks import CopyTask
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader
from tiered_storage_airflow.demo_cluster.brokers import BrokerCluster
from tiered_storage_airflow.demo_cluster.ledger import Ledger

CONFIG = {
    "internal.segment.bytes": "16384",
    "segment.ms": str(1 << 60),
    "retention.ms": "-1",
    "min.insync.replicas": "1",
    "unclean.leader.election.enable": "true",
}
PART = 150
"""Records that each leader takes at least, of a kilobyte: several segments."""
OURS = {"remote.storage.enable": True, "remote.deletion.allowed": True, "retention.ms": -1}


@pytest.fixture(scope="module")
def brokers(kafka_programs: KafkaPrograms, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    """Three brokers of these tests alone, all running before and after each."""
    with BrokerCluster(kafka_programs, tmp_path_factory.mktemp("unclean")) as cluster:
        yield cluster


def lineage(site: LiveCluster) -> list[int]:
    """Return where each leader begins."""
    with site.open() as remote_log:
        [partition] = remote_log.context.segments.list_partitions()
        return [each.start_offset for each in remote_log.context.segments.partition_state(partition).lineage]


def read(site: LiveCluster, start: int, end: int) -> list[Record]:
    """Read the remote log from offset `start` to `end` (exclusive)."""
    with site.open() as remote_log, BlockingLogReader(remote_log.open_log_reader()) as reader:
        [partition] = remote_log.context.segments.list_partitions()
        return list(reader.records(partition, start, end_offset=end))


def copied(site: LiveCluster) -> list[tuple[int, int]]:
    result = site.run("copy", "--json")
    assert result.exit_code == 0, result.err
    return sorted((row["start_offset"], row["end_offset"]) for row in result.rows)


def ensure_clean(site: LiveCluster) -> None:
    audit = site.run("audit", "--deep")
    assert audit.exit_code == 0, audit.out + audit.err


def has_in_sync(brokers: BrokerCluster, topic: str, replicas: set[int]) -> bool:
    return set(brokers.admin().list_topics(topic, timeout=10).topics[topic].partitions[0].isrs) == replicas


@dataclass(frozen=True, slots=True)
class Elected:
    """What both leaders have, what the new one lost although it is remote, and what it wrote in place of that."""

    shared: list[Record]
    first: list[RemoteLogSegmentMetadata]
    new: list[Record]

    @property
    def remote_end(self) -> int:
        """Where the remote log ended before (exclusive)."""
        return self.first[-1].end_offset + 1


def lose_follower(brokers: BrokerCluster, topic: str) -> None:
    """From now on only broker 1 has the written records."""
    wait_for(lambda: has_in_sync(brokers, topic, {1, 2}), lambda: "broker 2 does not follow")
    brokers.kill(2)
    wait_for(lambda: has_in_sync(brokers, topic, {1}), lambda: "broker 2 is not missed")


def elect_former_follower(brokers: BrokerCluster, topic: str) -> None:
    """Broker 2 leads, without what only broker 1 has, which is away; nothing happens if it leads already."""
    if brokers.leader(topic, 0) == 2:
        return
    brokers.kill(1)
    brokers.start(2)
    wait_for(lambda: brokers.leader(topic, 0) == 2, lambda: "broker 2 does not lead")


def elect_uncleanly(brokers: BrokerCluster, site: LiveCluster, topic: str) -> Elected:
    """Copy a topic, and let a replica lead it that lacks what was copied last."""
    brokers.create_topic(topic, 1, CONFIG, [[1, 2]])
    client = RealKafkaClient(brokers.bootstrap_servers)
    shared = client.produce(topic, varied_records(410, seed=1), batch_num_messages=20)
    lose_follower(brokers, topic)
    lost = client.produce(topic, varied_records(400, seed=2), batch_num_messages=20)
    copied(site)
    first = site.finished()
    assert lineage(site) == [0]
    remote_end = first[-1].end_offset + 1
    assert remote_end > len(shared)
    assert read(site, 0, remote_end) == [*shared, *lost][:remote_end]

    elect_former_follower(brokers, topic)
    new = client.produce(topic, varied_records(900, seed=3), batch_num_messages=20)
    assert new[0].offset == len(shared)
    brokers.start(1)
    wait_for(lambda: has_in_sync(brokers, topic, {1, 2}), lambda: "broker 1 does not follow")
    return Elected(shared, first, new)


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", ["fetched", "from-files"])
def test_readers_follow_an_unclean_leader_and_what_it_lost_is_removed(
    brokers: BrokerCluster, tmp_path: Path, way: str
) -> None:
    source = of_files(brokers) if way == "from-files" else by_fetch(brokers)
    site = LiveCluster(brokers, tmp_path, (), {**source, "topics": {way: OURS}}).write()
    elected = elect_uncleanly(brokers, site, way)
    shared, first, new, remote_end = elected.shared, elected.first, elected.new, elected.remote_end
    again = copied(site)

    # Both leaders' segments are there, and readers get the offsets up to the election of one, the rest of the other.
    assert again[0][0] == len(shared)
    assert lineage(site) == [0, len(shared)]
    leaked = {each.segment_id for each in first if each.start_offset >= len(shared)}
    assert leaked and leaked <= {each.segment_id for each in site.finished()}
    end = again[-1][1] + 1
    assert end > remote_end
    assert read(site, 0, end) == [*shared, *new][:end]
    ensure_clean(site)

    limited = replace(site, settings={**site.settings, "topics": {way: {**OURS, "retention.bytes": 30_000}}}).write()
    expired = limited.run("expire")
    assert expired.exit_code == 0, expired.out + expired.err
    left = site.finished()
    assert leaked.isdisjoint(each.segment_id for each in left)
    start = left[0].start_offset
    assert remote_end <= start < end
    assert read(site, start, end) == [*shared, *new][start:end]
    ensure_clean(site)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_an_unclean_leader_deletes_nothing_of_which_only_another_leaders_records_are_remote(
    brokers: BrokerCluster, tmp_path: Path
) -> None:
    topic = "trimmed"
    trimmed = {**OURS, "local.deletion.allowed": True, "local.retention.ms": 1}
    site = LiveCluster(brokers, tmp_path, (), {"topics": {topic: trimmed}}).write()
    elected = elect_uncleanly(brokers, site, topic)
    shared, new = elected.shared, elected.new
    assert elected.remote_end < new[-1].offset

    # All these offsets are remote, and those from the election on are records that nobody has any more.
    retained = site.run("retain", "--json")
    assert retained.exit_code == 0, retained.err
    [start] = site.log_starts(topic, 1).values()
    assert 0 < start <= len(shared)

    end = copied(site)[-1][1] + 1
    retained = site.run("retain", "--json")
    assert retained.exit_code == 0, retained.err
    assert site.log_starts(topic, 1) == {0: end}
    assert read(site, 0, end) == [*shared, *new][:end]
    ensure_clean(site)


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("when", ["amid-the-copies", "after-the-copies"])
def test_what_an_unclean_leader_lost_between_plan_and_commit_is_not_committed(
    brokers: BrokerCluster, tmp_path: Path, when: str
) -> None:
    topic, ledger = when, Ledger(tmp_path / "ledger.csv")
    brokers.create_topic(topic, 1, CONFIG, [[1, 2]])
    site = LiveCluster(brokers, tmp_path, (), {"topics": {topic: OURS}}).write()
    # An idempotent one ends at a leader that lacks what another one took.
    with producer(site, topic, ledger, enable_idempotence=False):
        wait_for_records(ledger, PART)
        lose_follower(brokers, topic)
        # The new leader lacks all from here on, and perhaps some before.
        lost_from = len(ledger)
        wait_for_records(ledger, PART)
        with site.open() as remote_log:
            begun = remote_log.begin_copy(remote_log.plan_copy(), "interrupted")

            def between(known: CopyTask) -> None:
                if when == "amid-the-copies" and known.metadata.start_offset >= lost_from:
                    elect_former_follower(brokers, topic)

            with remote_log.keep_leases(task.lease for task in begun.tasks):
                outcomes = each_copied(remote_log, begun.tasks, between)
                if when == "after-the-copies":
                    elect_former_follower(brokers, topic)
                wait_for_records(ledger, PART)
                report = remote_log.commit_copy(outcomes)
        brokers.start(1)
        assert any(each.failure is None and each.metadata.start_offset >= lost_from for each in outcomes)
        [refused] = report.failures
        assert mentions(refused.message, "leader epochs that no longer hold"), refused
        assert [each.segment_id for each in site.finished()] == [each.segment_id for each in report.committed]
        elected_at = lineage(site)[-1]
        assert 0 < report.committed[-1].end_offset < elected_at <= lost_from

        with CopyLoop(site, "expire") as runs:
            runs.wait_for_segments(2)
    site.catch_up()

    assert site.finished()[-1].end_offset > elected_at
    ensure_as_their_leader(site, ledger, topic)


def wait_for_records(ledger: Ledger, more: int) -> None:
    """Wait until so many more records are acknowledged than now."""
    wanted = len(ledger) + more
    wait_for(lambda: len(ledger) >= wanted, lambda: f"no more than {len(ledger)} records are acknowledged")
