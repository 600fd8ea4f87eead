"""Store and database fail or hang, and a store is slow or wrong, under load: afterwards all catches up by itself."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import pytest

from integration.remote_servers import (
    Outage,
    RemoteServers,
    database_hangs,
    database_is_gone,
    store_hangs,
    store_is_gone,
)
from servers.s3_proxy import Asked, Refusal, proxy
from support.live_cluster import SMALL_SEGMENTS, CopyLoop, LiveCluster, producer, rows_of
from support.waiting import wait_for
from tiered_storage_airflow.demo_cluster.ledger import Ledger

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1500)]
FAULT_SECONDS = 30
LONG_FAULT_SECONDS = 240
"""Longer than any call waits for an answer: whole runs begin and fail meanwhile."""
WRONG_SECONDS = 120
ANSWER_SECONDS = 0.2
"""How long a slow store takes for each answer."""
SLOW_RATE = 30
"""Records a second, which a slow store keeps up with."""
TRIMMED = {"remote.storage.enable": True, "local.deletion.allowed": True, "local.retention.ms": 1}

EACH = (store_is_gone, store_hangs, database_is_gone, database_hangs)


def name_of(outage: Outage) -> str:
    """Return what stands for it in a test's name and in its topic's."""
    return str(getattr(outage, "__name__", "outage")).replace("_", "-")


def ensure_trims_catch_up(site: LiveCluster, topic: str) -> None:
    """Copy all due segments; the brokers' own retention then deletes all remote records."""
    site.catch_up()
    retained = site.run("retain")
    assert retained.exit_code == 0, retained.err
    assert site.log_starts(topic) == site.remote_ends()


@pytest.mark.parametrize("seconds", [FAULT_SECONDS, LONG_FAULT_SECONDS])
@pytest.mark.parametrize("outage", EACH, ids=name_of)
def test_all_catches_up_after(remote_servers: RemoteServers, tmp_path: Path, outage: Outage, seconds: int) -> None:
    topic, ledger = f"{name_of(outage)}-{seconds}", Ledger(tmp_path / "ledger.csv")
    remote_servers.brokers.create_topic(topic, 3, SMALL_SEGMENTS)
    site = remote_servers.site(tmp_path, topic, {"topics": {topic: TRIMMED}})
    with CopyLoop(site, "retain") as runs, producer(site, topic, ledger):
        runs.wait_for_trims()
        with outage(remote_servers):
            time.sleep(seconds)
        runs.wait_for_trims(3)

    results = [*runs.results, *runs.others["retain"]]
    assert [result.err for result in results if "Traceback" in result.err] == []
    ensure_trims_catch_up(site, topic)
    site.ensure_exactly_once(ledger, topic)


@pytest.mark.parametrize("outage", EACH, ids=name_of)
def test_a_trim_that_was_planned_before_an_outage_deletes_nothing_in_it(
    remote_servers: RemoteServers, tmp_path: Path, outage: Outage
) -> None:
    topic, ledger, plan = f"trimmed-while-{name_of(outage)}", Ledger(tmp_path / "ledger.csv"), tmp_path / "plan.jsonl"
    remote_servers.brokers.create_topic(topic, 3, SMALL_SEGMENTS)
    site = remote_servers.site(tmp_path, topic, {"topics": {topic: TRIMMED}})
    with producer(site, topic, ledger):
        with CopyLoop(site) as copies:
            copies.wait_for_segments(6)
        planned = site.run("retain", "--dry-run", "--save-plan", plan, "--json")
        assert planned.exit_code == 0, planned.err
        assert [row for row in rows_of(planned) if row["segments"]]
        with outage(remote_servers):
            refused = site.run("retain", "--plan", plan)
            starts = site.log_starts(topic)
    assert refused.exit_code == 1, refused
    assert "Traceback" not in refused.err
    assert starts == {0: 0, 1: 0, 2: 0}

    again = site.run("retain", "--plan", plan)
    assert again.exit_code == 0, again.err
    assert site.log_starts(topic) != starts
    ensure_trims_catch_up(site, topic)
    site.ensure_exactly_once(ledger, topic)


def test_a_slow_store_is_waited_for(remote_servers: RemoteServers, tmp_path: Path) -> None:
    topic, ledger, waited = "store-is-slow", Ledger(tmp_path / "ledger.csv"), list[Asked]()

    def slowly(asked: Asked) -> None:
        time.sleep(ANSWER_SECONDS)
        waited.append(asked)

    remote_servers.brokers.create_topic(topic, 3, SMALL_SEGMENTS)
    with proxy(remote_servers.bucket, slowly) as slow:
        site = remote_servers.site(tmp_path, topic, {"rsm.config.endpoint": slow.url})
        with CopyLoop(site) as copies, producer(site, topic, ledger, SLOW_RATE):
            copies.wait_for_segments(6)

        assert {result.exit_code for result in copies.results} == {0}, copies.results
        assert len(waited) > 6

    site = replace(site, settings={**site.settings, "rsm.config.endpoint": remote_servers.s3.url}).write()
    site.catch_up()

    site.ensure_exactly_once(ledger, topic)


@dataclass(slots=True)
class WrongWrites:
    """A store that, while `is_wrong`, answers some writes with success and keeps nothing, and fails others."""

    is_wrong: bool = False
    answers: int = 0
    _turn: int = 0

    def __call__(self, asked: Asked) -> Refusal | None:
        if not self.is_wrong or asked.method != "PUT":
            return None
        self._turn += 1
        if self._turn % 3 == 0:
            return Refusal(503, "SlowDown")
        if self._turn % 3 == 1:
            self.answers += 1
            # The client takes it for done.
            return Refusal(200, "Wrong", {"ETag": '"wrong"'})
        return None


def test_wrong_answers_of_a_store_to_writes_lose_nothing(remote_servers: RemoteServers, tmp_path: Path) -> None:
    topic, wrong = "wrong-writes", WrongWrites()
    remote_servers.brokers.create_topic(topic, 3, SMALL_SEGMENTS)
    ledger = Ledger(tmp_path / "ledger.csv")
    with ExitStack() as running:
        proxied = running.enter_context(proxy(remote_servers.bucket, wrong))
        site = remote_servers.site(tmp_path, topic, {"topics": {topic: TRIMMED}, "rsm.config.endpoint": proxied.url})
        runs = running.enter_context(CopyLoop(site, "retain"))
        running.enter_context(producer(site, topic, ledger))
        runs.wait_for_trims()
        wrong.is_wrong = True
        runs.wait_for_exit(1)
        wait_for(lambda: wrong.answers > 5, lambda: str(runs.results[-2:]))
        time.sleep(WRONG_SECONDS)
        wrong.is_wrong = False
        runs.wait_for_trims(3)

    site = replace(site, settings={**site.settings, "rsm.config.endpoint": remote_servers.s3.url}).write()
    ensure_trims_catch_up(site, topic)
    site.ensure_exactly_once(ledger, topic)


class WrongAnswer(StrEnum):
    """What a store answers to reads that is not so."""

    NOTHING_IS_LISTED = "nothing-is-listed"
    """As a listing that is older than every write."""
    NOTHING_IS_FOUND = "nothing-is-found"
    """As a read that is older than the write."""
    BYTES_DIFFER = "bytes-differ"
    """What is read of a segment ends with another byte."""


@dataclass(slots=True)
class WrongReads:
    """A store that gives a wrong answer while `is_wrong`."""

    answer: WrongAnswer
    is_wrong: bool = False
    answers: int = 0

    def look(self, asked: Asked) -> Refusal | None:
        reads = asked.method in {"GET", "HEAD"} and not _lists(asked)
        return Refusal(404, "NoSuchKey") if self._gives(WrongAnswer.NOTHING_IS_FOUND, reads) else None

    def change(self, asked: Asked, content: bytes) -> bytes:
        if self._gives(WrongAnswer.NOTHING_IS_LISTED, _lists(asked)):
            return b"<ListBucketResult><KeyCount>0</KeyCount><IsTruncated>false</IsTruncated></ListBucketResult>"
        if self._gives(WrongAnswer.BYTES_DIFFER, asked.method == "GET" and ".log" in asked.path and not _lists(asked)):
            return content[:-1] + bytes([content[-1] ^ 1])
        return content

    def _gives(self, answer: WrongAnswer, applies: bool) -> bool:
        is_given = self.is_wrong and self.answer is answer and applies
        self.answers += is_given
        return is_given


def _lists(asked: Asked) -> bool:
    return "list-type=" in asked.path


@pytest.mark.parametrize("answer", list(WrongAnswer))
def test_beside_wrong_answers_of_a_store_to_reads_brokers_delete_nothing(
    remote_servers: RemoteServers, tmp_path: Path, answer: WrongAnswer
) -> None:
    topic, wrong = f"while-{answer}", WrongReads(answer)
    remote_servers.brokers.create_topic(topic, 3, SMALL_SEGMENTS)
    ledger = Ledger(tmp_path / "ledger.csv")
    with ExitStack() as running:
        proxied = running.enter_context(proxy(remote_servers.bucket, wrong.look, change=wrong.change))
        settings = {"topics": {topic: TRIMMED}, "rsm.config.endpoint": proxied.url}
        site = remote_servers.site(tmp_path, topic, settings)
        copies = running.enter_context(CopyLoop(site))
        running.enter_context(producer(site, topic, ledger))
        copies.wait_for_segments(3)
        wrong.is_wrong = True
        refused = site.run("retain")
        assert refused.exit_code == 1, refused
        assert wrong.answers > 0
        site.run("expire")
        later = len(copies.results) + 2
        wait_for(lambda: len(copies.results) > later, lambda: str(copies.results[-2:]))
        time.sleep(WRONG_SECONDS)
        site.run("retain")
        assert site.log_starts(topic) == {0: 0, 1: 0, 2: 0}
        wrong.is_wrong = False
        copies.wait_for_segments()

    site = replace(site, settings={**site.settings, "rsm.config.endpoint": remote_servers.s3.url}).write()
    ensure_trims_catch_up(site, topic)
    site.ensure_exactly_once(ledger, topic)
