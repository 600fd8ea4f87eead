"""A database that is slow, loses or garbles answers, or forgets what it acknowledged, while brokers are under load."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration.remote_servers import RemoteServers
from servers.postgres_proxy import proxy
from support.command_line import CommandResult, mentions
from support.live_cluster import RATE, SMALL_SEGMENTS, CopyLoop, LiveCluster, producer
from support.waiting import wait_for
from tiered_storage_airflow.demo_cluster.ledger import Ledger
from tiered_storage_airflow.demo_cluster.postgres import USER, PostgresServer

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1500)]

TIMES = 10
"""How often each fault happens at least."""
FAULT_SECONDS = 120
"""How long it continues after that."""
FORGETFUL = {"synchronous_commit": "off", "wal_writer_delay": "10s"}
"""What is acknowledged is written after seconds only: a crash loses it."""
TRIMMED = {"remote.storage.enable": True, "local.deletion.allowed": True, "local.retention.ms": 1}


ANSWER_SECONDS = 0.02
"""How long a slow database takes for each answer."""
SLOW_RATE = 30
"""Records a second, which copies keep up with while the database is slow."""


def slow(answer: bytes) -> bytes:
    """Pass an answer on after a while."""
    time.sleep(ANSWER_SECONDS)
    return answer


def lost(_: bytes) -> bytes:
    """Lose the connection in place of an answer."""
    return b""


def garbled(answer: bytes) -> bytes:
    """Pass an answer on with a bit changed that makes no text of it."""
    middle = len(answer) // 2
    return answer[:middle] + bytes([answer[middle] ^ 0x80]) + answer[middle + 1 :]


def cut(answer: bytes) -> bytes:
    """Lose the connection in the middle of an answer."""
    return answer[: len(answer) // 2]


def to_commit(answer: bytes) -> bool:
    """Whether it confirms a commit."""
    return b"COMMIT\0" in answer


def to_anything(_: bytes) -> bool:
    """Every answer."""
    return True


@dataclass(slots=True)
class Fault:
    """Changes every `nth` of the answers that it `applies` to, while it is on."""

    change: Callable[[bytes], bytes]
    nth: int
    applies: Callable[[bytes], bool] = to_anything
    is_on: bool = False
    times: int = 0
    _seen: int = 0

    def __call__(self, answer: bytes) -> bytes:
        if not (self.is_on and self.applies(answer)):
            return answer
        self._seen += 1
        if self._seen % self.nth:
            return answer
        self.times += 1
        return self.change(answer)


@pytest.mark.parametrize(
    ("change", "nth", "applies"),
    [(slow, 1, to_anything), (cut, 30, to_anything), (lost, 3, to_commit), (garbled, 30, to_anything)],
    ids=["slow", "answers-cut", "commits-not-confirmed", "answers-garbled"],
)  # fmt: skip
def test_all_catches_up_after_a_database_was(
    remote_servers: RemoteServers,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    change: Callable[[bytes], bytes],
    nth: int,
    applies: Callable[[bytes], bool],
) -> None:
    topic, fault = f"database-{request.node.callspec.id}", Fault(change, nth, applies)
    remote_servers.brokers.create_topic(topic, 3, SMALL_SEGMENTS)
    ledger, port = Ledger(tmp_path / "ledger.csv"), remote_servers.postgres.port
    url = remote_servers.postgres.database(remote_servers.database(topic))
    with proxy(port) as between:
        between.change = fault
        site = remote_servers.site(tmp_path, topic, database=url.replace(f":{port}/", f":{between.port}/"))
        rate = SLOW_RATE if change is slow else RATE
        with CopyLoop(site, "expire") as runs, producer(site, topic, ledger, rate):
            runs.wait_for_segments()
            fault.is_on = True
            later = len(runs.results) + 1
            wait_for(lambda: fault.times >= TIMES and len(runs.results) > later, lambda: f"{runs.results[-2:]}")
            time.sleep(FAULT_SECONDS)
            fault.is_on = False
            runs.wait_for_segments()

        assert [each.err for each in (*runs.results, *runs.others["expire"]) if "Traceback" in each.err] == []
        site.catch_up()

        site.ensure_exactly_once(ledger, topic)


def test_a_database_that_forgets_trims_is_not_believed_until_its_metadata_are_rebuilt(
    remote_servers: RemoteServers, tmp_path: Path
) -> None:
    topic, ledger, postgres = "database-forgets", Ledger(tmp_path / "ledger.csv"), remote_servers.postgres
    remote_servers.brokers.create_topic(topic, 3, SMALL_SEGMENTS)
    site = remote_servers.site(tmp_path, topic, {"topics": {topic: TRIMMED}})
    with producer(site, topic, ledger):
        postgres.stop()
        postgres.start(**FORGETFUL)
        try:
            while (refused := _copied_after_a_crash(postgres, site)).exit_code == 0:
                # Only copies were forgotten: they are made again.
                pass
        finally:
            postgres.stop()
            postgres.start()
        starts = site.log_starts(topic)
        for result in (refused, site.run("copy"), site.run("retain"), site.run("expire")):
            assert result.exit_code == 1, result
            assert mentions(result.err, "older than", "rebuild-metadata")
        assert site.log_starts(topic) == starts

        # A person decides.
        schema = f"DROP SCHEMA public CASCADE; CREATE SCHEMA public AUTHORIZATION {USER}"
        postgres.execute(schema, remote_servers.database(topic))
        rebuilt = site.run("rebuild-metadata", "--yes")
        assert rebuilt.exit_code == 0, rebuilt.err
        assert site.run("topics", "allow-deletion", topic, "--only", "local").exit_code == 0
        with CopyLoop(site, "retain") as runs:
            runs.wait_for_trims(3)
    site.catch_up()

    site.ensure_exactly_once(ledger, topic)


def _copied_after_a_crash(postgres: PostgresServer, site: LiveCluster) -> CommandResult:
    """Copy and trim, crash the database, and copy again; return the result of that."""
    with CopyLoop(site, "retain") as runs:
        runs.wait_for_trims()
    postgres.stop(signal.SIGQUIT)
    postgres.start(**FORGETFUL)
    return site.run("copy")
