"""Brokers under load are killed and restarted, copies are killed: each acknowledged record is in the tiers once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]

from servers.kafka_programs import KafkaPrograms
from support.live_cluster import SMALL_SEGMENTS, CopyLoop, LiveSite, producer, wait_for
from tiered_storage_airflow.demo_cluster.brokers import NODES, REQUEST_SECONDS, BrokerCluster
from tiered_storage_airflow.demo_cluster.ledger import Ledger, read_remote

nightly = pytest.mark.nightly


@pytest.fixture(scope="module")
def brokers(kafka_programs: KafkaPrograms, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    """Three brokers of these tests alone, all running before and after each."""
    folder = tmp_path_factory.mktemp("three-brokers")
    with BrokerCluster(kafka_programs, folder) as cluster:
        yield cluster


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic's name, of the test's own."""
    name = str(request.node.name).removeprefix("test_").replace("[", "-").rstrip("]")
    return "".join(letter if letter.isalnum() else "-" for letter in name)[:100]


@pytest.fixture
def site(brokers: BrokerCluster, tmp_path: Path, topic: str) -> LiveSite:
    """A remote log of the topic."""
    return LiveSite(brokers, tmp_path, (topic,)).write()


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.csv")


def add_partitions(brokers: BrokerCluster, topic: str, count: int) -> None:
    """Let a topic have `count` partitions."""
    admin = brokers.admin()
    admin.create_partitions([NewPartitions(topic, count)])[topic].result(REQUEST_SECONDS)


@pytest.mark.timeout(600)
def test_nothing_is_lost_or_doubled_when_a_leader_is_killed_and_partitions_are_added(
    brokers: BrokerCluster, site: LiveSite, topic: str, ledger: Ledger
) -> None:
    brokers.create_topic(topic, 2, SMALL_SEGMENTS)
    with CopyLoop(site) as copies, producer(site, topic, ledger):
        copies.wait_for_segments()
        killed = brokers.leader(topic, 0)
        brokers.kill(killed)
        copies.wait_for_segments(2)
        add_partitions(brokers, topic, 3)
        brokers.start(killed)
        wait_for(lambda: len(site.partitions()) == 3, lambda: str(copies.results[-3:]))

    site.catch_up()

    site.ensure_exactly_once(ledger, topic)


def restart_one_by_one(brokers: BrokerCluster, topic: str, copies: CopyLoop) -> None:
    """As in an upgrade."""
    for node in NODES:
        brokers.stop(node)
        brokers.start(node)
        wait_for(lambda: _in_sync(brokers, topic), lambda: "replicas do not come back")
        copies.wait_for_segments()


def kill_copies(_: BrokerCluster, __: str, copies: CopyLoop) -> None:
    """A copy is killed in the middle."""
    copies.kill()
    copies.wait_for_segments(3)


@nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", [restart_one_by_one, kill_copies], ids=lambda fault: fault.__name__)
def test_every_acknowledged_record_is_in_the_tiers_once_after(
    brokers: BrokerCluster,
    site: LiveSite,
    topic: str,
    ledger: Ledger,
    fault: Callable[[BrokerCluster, str, CopyLoop], None],
) -> None:
    brokers.create_topic(topic, 3, SMALL_SEGMENTS)
    with CopyLoop(site) as copies, producer(site, topic, ledger):
        copies.wait_for_segments()
        fault(brokers, topic, copies)
        copies.wait_for_segments()

    site.catch_up()

    site.ensure_exactly_once(ledger, topic)


@nightly
@pytest.mark.timeout(600)
def test_a_topic_that_is_deleted_and_created_again_has_a_log_of_its_own(
    brokers: BrokerCluster, site: LiveSite, topic: str, ledger: Ledger, tmp_path: Path
) -> None:
    brokers.create_topic(topic, 2, SMALL_SEGMENTS)
    with CopyLoop(site) as copies:
        with producer(site, topic, ledger):
            copies.wait_for_segments(2)
        former = {each.topic_id for each in site.partitions()}
        admin = brokers.admin()
        admin.delete_topics([topic])[topic].result(REQUEST_SECONDS)
        wait_for(lambda: topic not in brokers.admin().list_topics(timeout=10).topics, lambda: "it is not deleted")
        brokers.create_topic(topic, 2, SMALL_SEGMENTS)
        again = Ledger(tmp_path / "again.csv")
        with producer(site, topic, again):
            wait_for(lambda: len({each.topic_id for each in site.partitions()}) == 2, lambda: str(copies.results[-2:]))
            copies.wait_for_segments(2)
    site.catch_up()

    [new] = {each.topic_id for each in site.partitions()} - former
    site.ensure_exactly_once(again, topic, new)
    with site.open() as remote_log:
        old = [each for each in remote_log.segments.list_partitions() if each.topic_id in former]
        kept = read_remote(remote_log, old)
    assert kept
    assert kept.items() <= {place: [key] for key, place in ledger.acknowledged().items()}.items()


def _in_sync(brokers: BrokerCluster, topic: str) -> bool:
    found = brokers.admin().list_topics(topic, timeout=10).topics[topic].partitions.values()
    return all(len(each.isrs) == len(each.replicas) for each in found)
