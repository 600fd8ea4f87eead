"""Trims and expiries die beside three brokers under load, and the next run ends their work (scenarios 17 and 19)."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from crashes.crash_points import Crash, CrashPoint
from crashes.programs import Programs, ProgramServer
from servers.kafka_programs import KafkaPrograms
from support.live_cluster import SMALL_SEGMENTS, CopyLoop, LiveCluster, part_of, producer, rows_of
from support.waiting import wait_for
from tiered_storage_airflow.demo_cluster.brokers import BrokerCluster
from tiered_storage_airflow.demo_cluster.ledger import Ledger, read_remote

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

KEPT_BYTES = 4 * int(SMALL_SEGMENTS["internal.segment.bytes"])
TRIMMED = {"remote.storage.enable": True, "local.deletion.allowed": True, "local.retention.ms": 1}
EXPIRED = {"remote.storage.enable": True, "remote.deletion.allowed": True, "retention.bytes": KEPT_BYTES}
TRIM_CRASHES = [
    Crash(point, nth)
    for point in (CrashPoint.BEFORE_DELETE_RECORDS, CrashPoint.AFTER_DELETE_RECORDS)
    for nth in (1, 2, 3)
]
EXPIRY_CRASHES = [
    *(Crash(CrashPoint.AFTER_ACQUIRE, nth) for nth in (1, 2)),
    Crash(CrashPoint.AFTER_DOCUMENT),
    Crash(CrashPoint.AFTER_LOG_START),
    Crash(CrashPoint.BEFORE_MARKED),
    Crash(CrashPoint.AFTER_MARKED),
    *(Crash(CrashPoint.AFTER_OBJECT_GONE, nth) for nth in (1, 2, 3, 4)),
    Crash(CrashPoint.BEFORE_DELETED),
    Crash(CrashPoint.AFTER_DELETED),
    Crash(CrashPoint.BEFORE_RELEASE),
]


@pytest.fixture(scope="module")
def brokers(kafka_programs: KafkaPrograms, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    with BrokerCluster(kafka_programs, tmp_path_factory.mktemp("three-brokers")) as cluster:
        yield cluster


@pytest.fixture
def programs(program_server: ProgramServer, tmp_path: Path) -> Iterator[Programs]:
    """Programs that have the brokers' time."""
    with Programs(program_server, tmp_path / "programs", None) as programs:
        yield programs


def kill_beside_copies(programs: Programs, site: LiveCluster, command: str, crash: Crash) -> None:
    """Start `command` until it is killed at `crash`: a run with too little to do, or without a lease, ends before."""
    codes: list[int] = []

    def is_killed() -> bool:
        codes.append(programs.start(command, "--config", site.config, at=crash).wait())
        return codes[-1] == -signal.SIGKILL

    wait_for(is_killed, lambda: f"{command} never got to the point {crash}: {codes}")


def finish(site: LiveCluster, command: str) -> None:
    """Run `command` until it succeeds: the killed one may hold leases for some seconds."""
    wait_for(lambda: site.run(command).exit_code == 0, lambda: str(site.run(command)))


def read_through(site: LiveCluster) -> None:
    """Read all that is remote: no offset from the log start to the remote end is missing."""
    ends = site.remote_ends()
    with site.open() as remote_log:
        found = read_remote(remote_log)
    for number, start in site.remote_starts().items():
        offsets = sorted(place.offset for place in found if place.partition == number and place.offset >= start)
        assert offsets == list(range(start, start + len(offsets)))
        # Copies continue meanwhile.
        assert start + len(offsets) >= ends[number]


def all_are_remote(site: LiveCluster, starts: Mapping[int, int]) -> bool:
    """Return whether the remote log of each partition ends after its offset in `starts`."""
    ends = site.remote_ends()
    return len(ends) == len(starts) and all(end > starts[number] for number, end in ends.items())


def test_the_next_trim_finishes_a_killed_one(brokers: BrokerCluster, programs: Programs, tmp_path: Path) -> None:
    topic, ledger = "killed-trims", Ledger(tmp_path / "ledger.csv")
    brokers.create_topic(topic, 3, SMALL_SEGMENTS)
    site = LiveCluster(brokers, tmp_path, (topic,), {"topics": {topic: TRIMMED}}).write()
    with CopyLoop(site) as copies, producer(site, topic, ledger):
        for crash in TRIM_CRASHES:
            before = site.log_starts(topic)
            wait_for(partial(all_are_remote, site, before), partial(str, copies.results))
            programs.kill("retain", "--config", site.config, at=crash)
            starts, ends = site.log_starts(topic), site.remote_ends()
            moved = [number for number, start in starts.items() if start > before[number]]
            assert len(moved) == crash.nth - (crash.point is CrashPoint.BEFORE_DELETE_RECORDS)
            assert all(start <= ends[number] for number, start in starts.items()), (crash, starts, ends)
            read_through(site)
            finish(site, "retain")

    site.catch_up()
    finish(site, "retain")
    assert site.log_starts(topic) == site.remote_ends()
    counts = site.ensure_exactly_once(ledger, topic)
    assert counts.remote > counts.local


def test_the_next_expiry_finishes_a_killed_one(brokers: BrokerCluster, programs: Programs, tmp_path: Path) -> None:
    topic, ledger = "killed-expiries", Ledger(tmp_path / "ledger.csv")
    brokers.create_topic(topic, 3, SMALL_SEGMENTS)
    site = LiveCluster(brokers, tmp_path, (topic,), {"topics": {topic: EXPIRED}}).write()
    with CopyLoop(site) as copies, producer(site, topic, ledger):
        for crash in EXPIRY_CRASHES:
            copies.wait_for_segments(3)
            kill_beside_copies(programs, site, "expire", crash)
            read_through(site)
            finish(site, "expire")

    site.catch_up()
    finish(site, "expire")
    assert rows_of(site.run("expire", "--dry-run", "--json")) == []
    starts = site.remote_starts()
    for number, start in starts.items():
        of_partition = [each for each in site.finished() if each.topic_id_partition.partition == number]
        oldest = min(of_partition, key=lambda each: each.start_offset)
        assert 0 < start == oldest.start_offset
        assert KEPT_BYTES <= sum(each.size for each in of_partition) < KEPT_BYTES + oldest.size
    assert site.log_starts(topic) == {0: 0, 1: 0, 2: 0}
    site.ensure_exactly_once(part_of(ledger, tmp_path / "kept.csv", lambda number, at: at >= starts[number]), topic)
