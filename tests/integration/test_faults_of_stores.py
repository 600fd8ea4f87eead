"""Store and database fail, hang or lie while brokers are under load: afterwards all catches up by itself."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import psutil
import pytest

from servers.kafka_programs import KafkaPrograms
from servers.s3_proxy import Asked, Refusal, proxy
from support.live_cluster import SMALL_SEGMENTS, CopyLoop, LiveSite, producer, wait_for
from support.object_stores import S3Endpoint
from tiered_storage_airflow.demo_cluster.brokers import BrokerCluster, free_ports
from tiered_storage_airflow.demo_cluster.ledger import Ledger
from tiered_storage_airflow.demo_cluster.postgres import PostgresServer
from tiered_storage_airflow.demo_cluster.s3_server import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, S3Server

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]
FAULT_SECONDS = 30
TIERED = {"remote.storage.enable": True}
TRIMMED = {**TIERED, "local.deletion.allowed": True, "local.retention.ms": 1}


@dataclass(frozen=True, slots=True)
class Servers:
    """What a remote log stands on, all in processes of their own."""

    brokers: BrokerCluster
    s3: S3Server
    postgres: PostgresServer


@pytest.fixture(scope="module")
def servers(kafka_programs: KafkaPrograms, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("servers")
    with (
        BrokerCluster(kafka_programs, folder / "kafka") as brokers,
        S3Server(folder / "buckets", free_ports(1)[0]) as s3,
        PostgresServer() as postgres,
    ):
        yield Servers(brokers, s3, postgres)


def site_of(
    servers: Servers, root: Path, topic: str, endpoint: str, decided: Mapping[str, object] = TIERED
) -> LiveSite:
    """Return a remote log of `topic` whose bucket is at `endpoint`."""
    settings = {
        "rsm.config.url": f"s3://{BUCKET}/{topic}",
        "rsm.config.endpoint": endpoint,
        "rsm.config.region": REGION,
        "rsm.config.allow.http": True,
        "topics": {topic: decided},
    }
    secrets = {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "TIERED_STORAGE_RLMM_CONFIG_URL": servers.postgres.database(topic.replace("-", "_")),
    }
    return LiveSite(servers.brokers, root, (topic,), settings, secrets).write()


def store_is_gone(servers: Servers) -> None:
    """Nobody listens."""
    servers.s3.kill()
    time.sleep(FAULT_SECONDS)
    servers.s3.start()


def store_hangs(servers: Servers) -> None:
    """Connections are accepted, and nothing is answered."""
    servers.s3.pause()
    time.sleep(FAULT_SECONDS)
    servers.s3.resume()


def database_is_gone(servers: Servers) -> None:
    """It is killed, and comes back with what was committed."""
    servers.postgres.stop(signal.SIGQUIT)
    time.sleep(FAULT_SECONDS)
    servers.postgres.start()


def database_hangs(servers: Servers) -> None:
    """It keeps its connections and answers nothing."""
    server = psutil.Process(servers.postgres.pid)
    # The one that starts the others first; those may end by themselves meanwhile.
    server.suspend()
    processes = [server, *server.children(recursive=True)]
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.suspend()
    time.sleep(FAULT_SECONDS)
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.resume()


FAULTS = [store_is_gone, store_hangs, database_is_gone, database_hangs]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_all_catches_up_after(servers: Servers, tmp_path: Path, fault: Callable[[Servers], None]) -> None:
    topic = fault.__name__.replace("_", "-")
    servers.brokers.create_topic(topic, 3, SMALL_SEGMENTS)
    site, ledger = site_of(servers, tmp_path, topic, servers.s3.url), Ledger(tmp_path / "ledger.csv")
    with CopyLoop(site) as copies, producer(site, topic, ledger):
        copies.wait_for_segments()
        fault(servers)
        copies.wait_for_segments()

    site.catch_up()

    site.ensure_exactly_once(ledger, topic)


@dataclass(slots=True)
class Lies:
    """A store that, while it lies, answers some writes with success and keeps nothing, and fails others."""

    is_lying: bool = False
    told: int = 0
    _turn: int = 0

    def __call__(self, asked: Asked) -> Refusal | None:
        if not self.is_lying or asked.method != "PUT":
            return None
        self._turn += 1
        if self._turn % 3 == 0:
            return Refusal(503, "SlowDown")
        if self._turn % 3 == 1:
            self.told += 1
            # The client takes it for done.
            return Refusal(200, "Lie", {"ETag": '"lie"'})
        return None


def test_a_store_that_lies_about_writes_is_not_believed(servers: Servers, tmp_path: Path) -> None:
    topic, lies = "store-lies", Lies()
    servers.brokers.create_topic(topic, 3, SMALL_SEGMENTS)
    endpoint = S3Endpoint(servers.s3.url, ACCESS_KEY, SECRET_KEY, REGION, BUCKET)
    ledger = Ledger(tmp_path / "ledger.csv")
    with ExitStack() as running:
        proxied = running.enter_context(proxy(endpoint, lies))
        site = site_of(servers, tmp_path, topic, proxied.url)
        copies = running.enter_context(CopyLoop(site))
        running.enter_context(producer(site, topic, ledger))
        copies.wait_for_segments()
        lies.is_lying = True
        copies.wait_for_exit(1)
        wait_for(lambda: lies.told > 5, lambda: str(copies.results[-2:]))
        time.sleep(FAULT_SECONDS / 3)
        lies.is_lying = False
        copies.wait_for_segments()

    site = replace(site, settings={**site.settings, "rsm.config.endpoint": servers.s3.url}).write()
    site.catch_up()

    site.ensure_exactly_once(ledger, topic)


class Lie(StrEnum):
    """What a store answers to reads that is not so."""

    NOTHING_IS_LISTED = "nothing-is-listed"
    """As a listing that is older than every write."""
    NOTHING_IS_FOUND = "nothing-is-found"
    """As a read that is older than the write."""
    BYTES_DIFFER = "bytes-differ"
    """What is read of a segment ends with another byte."""


@dataclass(slots=True)
class ReadLies:
    """A store that tells a lie while it lies."""

    lie: Lie
    is_lying: bool = False
    told: int = 0

    def look(self, asked: Asked) -> Refusal | None:
        reads = asked.method in {"GET", "HEAD"} and not _lists(asked)
        return Refusal(404, "NoSuchKey") if self._tells(Lie.NOTHING_IS_FOUND, reads) else None

    def change(self, asked: Asked, content: bytes) -> bytes:
        if self._tells(Lie.NOTHING_IS_LISTED, _lists(asked)):
            return b"<ListBucketResult><KeyCount>0</KeyCount><IsTruncated>false</IsTruncated></ListBucketResult>"
        if self._tells(Lie.BYTES_DIFFER, asked.method == "GET" and ".log" in asked.path and not _lists(asked)):
            return content[:-1] + bytes([content[-1] ^ 1])
        return content

    def _tells(self, lie: Lie, applies: bool) -> bool:
        is_told = self.is_lying and self.lie is lie and applies
        self.told += is_told
        return is_told


def _lists(asked: Asked) -> bool:
    return "list-type=" in asked.path


@pytest.mark.parametrize("lie", list(Lie))
def test_while_a_store_lies_about_reads_brokers_delete_nothing(servers: Servers, tmp_path: Path, lie: Lie) -> None:
    topic, lies = f"while-{lie}", ReadLies(lie)
    servers.brokers.create_topic(topic, 3, SMALL_SEGMENTS)
    endpoint = S3Endpoint(servers.s3.url, ACCESS_KEY, SECRET_KEY, REGION, BUCKET)
    ledger = Ledger(tmp_path / "ledger.csv")
    with ExitStack() as running:
        proxied = running.enter_context(proxy(endpoint, lies.look, change=lies.change))
        site = site_of(servers, tmp_path, topic, proxied.url, TRIMMED)
        copies = running.enter_context(CopyLoop(site))
        running.enter_context(producer(site, topic, ledger))
        copies.wait_for_segments(3)
        lies.is_lying = True
        refused = site.run("retain")
        assert refused.exit_code == 1, refused
        assert lies.told > 0
        site.run("expire")
        later = len(copies.results) + 2
        wait_for(lambda: len(copies.results) > later, lambda: str(copies.results[-2:]))
        site.run("retain")
        assert site.log_starts(topic) == {0: 0, 1: 0, 2: 0}
        lies.is_lying = False
        copies.wait_for_segments()

    site = replace(site, settings={**site.settings, "rsm.config.endpoint": servers.s3.url}).write()
    site.catch_up()

    retained = site.run("retain")
    assert retained.exit_code == 0, retained.err
    assert site.log_starts(topic) == site.remote_ends()
    site.ensure_exactly_once(ledger, topic)
