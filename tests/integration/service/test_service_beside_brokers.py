"""A service copies running brokers' partitions continuously, beside commands, and while leaders move or stores fail."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import httpx
import pytest

from integration.remote_servers import Outage, RemoteServers, store_hangs, store_is_gone
from servers.kafka_programs import KafkaPrograms
from servers.real_kafka import RealKafka
from support.live_cluster import SMALL_SEGMENTS, CopyLoop, LiveCluster, producer
from support.live_services import RunningService, running_service
from support.live_sites import LONG, LiveSite, finished, log_content
from support.live_sites import SMALL_SEGMENTS as SMALLER_SEGMENTS
from support.records import varied_records
from support.scraping import KAFKA_REMOTE, Scrape
from support.waiting import wait_for
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage_airflow.demo_cluster.brokers import BrokerCluster, free_ports
from tiered_storage_airflow.demo_cluster.ledger import Ledger

OFTEN = {"remote.log.manager.task.interval.ms": 500, "remote.log.manager.task.retry.backoff.max.ms": 2000}


def test_three_partitions_are_copied_as_they_grow_beside_copies_by_command(
    real_kafka: RealKafka, tmp_path: Path
) -> None:
    topic = "served"
    real_kafka.client.create_topic(topic, 3, SMALLER_SEGMENTS | LONG)
    [port] = free_ports(1)
    site = LiveSite(real_kafka, tmp_path, (topic,), {**OFTEN, "service.metrics.port": port})
    sent = 0
    with running_service(site) as service:
        for _ in range(3):
            for partition in range(3):
                real_kafka.client.produce(topic, varied_records(200, seed=sent), partition=partition,
                                          batch_num_messages=20)  # fmt: skip
                sent += 1
            # The first part is the service's; after that, both may be first.
            wait_for(lambda: "copied" in service.said, lambda: service.said)
            result = site.run("copy", "--json")
            assert result.exit_code == 0 or "works on it until" in result.err, result.err
        wait_for(lambda: nothing_is_due(site), lambda: service.said)
        pages = f"http://127.0.0.1:{port}"
        wait_for(lambda: httpx.get(f"{pages}/ready").status_code == 200, lambda: httpx.get(f"{pages}/ready").text)
        assert httpx.get(f"{pages}/health").status_code == 200
        found = Scrape.get(port)
        assert found.value(f"{KAFKA_REMOTE}remotelogmanagertasksavgidlepercent") is not None
        assert found.value("remote_log_service_partitions", role="leader") == 3
        assert (found.value("remote_log_service_tasks_total", pool="copier", outcome="done") or 0) > 0

    with site.open() as remote_log:
        segments = finished(remote_log, None)
        for partition in range(3):
            own = [each for each in segments if each.topic_id_partition.partition == partition]
            assert own
            assert [each.start_offset for each in own] == [0, *(each.end_offset + 1 for each in own[:-1])]
        assert remote_log.context.leases.held() == []
    site.audited()


def nothing_is_due(site: LiveSite) -> bool:
    with site.open() as remote_log:
        return not remote_log.plan_copy().segments and not remote_log.context.leases.held()


def test_a_service_beside_each_broker_copies_what_that_broker_leads(real_kafka: RealKafka, tmp_path: Path) -> None:
    topic = "led"
    real_kafka.client.create_topic(topic, 1, SMALLER_SEGMENTS | LONG)
    real_kafka.client.produce(topic, varied_records(200, seed=3), batch_num_messages=20)
    site = LiveSite(real_kafka, tmp_path, (topic,), OFTEN)
    site.run("plan")
    with running_service(site, "--broker", 77, name="of-another") as of_another:
        wait_for(lambda: "the service runs" in of_another.said, lambda: of_another.said)
        with running_service(site, "--broker", 1) as service:
            wait_for(lambda: nothing_is_due(site), lambda: service.said)
    assert "copied" in service.said
    assert "copied" not in of_another.said


def log_begins(directory: Path, topic: str) -> int | None:
    """Return the first offset of the topic's log there; None while there is no log."""
    segments = list_segments(directory / f"{topic}-0") if (directory / f"{topic}-0").is_dir() else []
    return segments[0].base_offset if segments else None


def has_all_of(directory: Path, leader: RealKafka, topic: str) -> bool:
    """Return whether the follower's log in `directory` is its leader's, from its own first offset on."""
    # Its files are replaced where it starts.
    with suppress(FileNotFoundError):
        begun = log_begins(directory, topic)
        if begun is not None:
            return log_content(directory, topic, begun) == log_content(leader.log_dir, topic, begun)
    return False


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_services_beside_brokers_follow_and_copy_on_as_their_brokers_change_roles(
    kafka_programs: KafkaPrograms, tmp_path: Path
) -> None:
    topic, own, others = "replicated", tmp_path / "of-first", tmp_path / "of-second"
    with RealKafka(kafka_programs, tmp_path / "first") as first:
        second = first.another(2, tmp_path / "second")
        site = LiveSite(first, tmp_path, (topic,), OFTEN)

        def caught_up(directory: Path, leader: RealKafka) -> bool:
            return has_all_of(directory, leader, topic) and nothing_is_due(site)

        with second:
            first.client.create_topic(topic, 1, SMALLER_SEGMENTS | LONG, replicas=[[2, 1]])
            sent = len(first.client.produce(topic, varied_records(500, seed=1), batch_num_messages=20))
            site.run("plan")
            beside_first = running_service(site, "--broker", 1, "--directory", own, name="first")
            beside_second = running_service(site, "--broker", 2, "--directory", others, name="second")
            with beside_first as of_first, beside_second as of_second:
                wait_for(lambda: caught_up(own, second), lambda: of_first.said + of_second.said)
                assert log_begins(own, topic) == 0
                assert ("copied" in of_first.said, "copied" in of_second.said) == (False, True)
                assert not others.joinpath(f"{topic}-0").exists()

                second.stop()
                sent += len(first.client.produce(topic, varied_records(500, seed=2), batch_num_messages=20))
                wait_for(lambda: caught_up(others, first), lambda: of_first.said + of_second.said)
                assert "copied" in of_first.said

                second.start()
                first.client.elect_preferred(topic)
                first.client.produce(topic, varied_records(500, seed=3), batch_num_messages=20)
                wait_for(lambda: caught_up(own, second), lambda: of_first.said + of_second.said)
        remote = [(each.start_offset, each.end_offset) for each in finished_of(site)]
        assert [start for start, _ in remote] == [0, *(end + 1 for _, end in remote[:-1])]
        assert remote[-1][1] > sent
        assert all((each / ".kafka_cleanshutdown").is_file() for each in (own, others))
        site.audited()


def finished_of(site: LiveSite) -> list[RemoteLogSegmentMetadata]:
    with site.open() as remote_log:
        return finished(remote_log)


@pytest.fixture(scope="module")
def brokers(kafka_programs: KafkaPrograms, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    with BrokerCluster(kafka_programs, tmp_path_factory.mktemp("service-brokers")) as cluster:
        yield cluster


def until_more_is_copied(site: LiveCluster, service: RunningService) -> None:
    """Wait until each partition's remote end has moved."""
    before = site.remote_ends()

    def moved() -> bool:
        after = site.remote_ends()
        return len(after) == 3 and all(end > before.get(number, 0) for number, end in after.items())

    wait_for(moved, lambda: service.said)


def is_led_by_another(brokers: BrokerCluster, topic: str, partition: int, leader: int) -> bool:
    return brokers.leader(topic, partition) not in {leader, -1}


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_it_goes_on_while_leaders_move(brokers: BrokerCluster, tmp_path: Path) -> None:
    topic, ledger = "served-by-others", Ledger(tmp_path / "ledger.csv")
    brokers.create_topic(topic, 3, SMALL_SEGMENTS)
    site = LiveCluster(brokers, tmp_path, (topic,), OFTEN).write()
    with running_service(site) as service, producer(site, topic, ledger):
        for partition in range(3):
            until_more_is_copied(site, service)
            leader = brokers.leader(topic, partition)
            brokers.kill(leader)
            wait_for(partial(is_led_by_another, brokers, topic, partition, leader))
            until_more_is_copied(site, service)
            brokers.start(leader)
    site.catch_up()
    site.ensure_exactly_once(ledger, topic)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("outage", [store_is_gone, store_hangs], ids=["gone", "hangs"])
def test_it_catches_up_after_the_store_was_away_for_a_minute(
    remote_servers: RemoteServers, tmp_path: Path, outage: Outage
) -> None:
    topic, ledger = f"served-{outage.__name__.replace('_', '-')}", Ledger(tmp_path / "ledger.csv")
    remote_servers.brokers.create_topic(topic, 3, SMALL_SEGMENTS)
    site = remote_servers.site(tmp_path, topic, OFTEN)
    with running_service(site) as service, producer(site, topic, ledger):
        until_more_is_copied(site, service)
        with outage(remote_servers):
            time.sleep(60)
        until_more_is_copied(site, service)
        with CopyLoop(site) as copies:
            until_more_is_copied(site, service)
    assert [result.err for result in copies.results if "Traceback" in result.err] == []
    site.catch_up()
    site.ensure_exactly_once(ledger, topic)
