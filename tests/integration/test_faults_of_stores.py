"""The store fails while brokers are under load: afterwards all catches up by itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from servers.kafka_programs import KafkaPrograms
from support.live_cluster import SMALL_SEGMENTS, CopyLoop, LiveSite, producer
from tiered_storage_airflow.demo_cluster.brokers import BrokerCluster, free_ports
from tiered_storage_airflow.demo_cluster.ledger import Ledger
from tiered_storage_airflow.demo_cluster.postgres import PostgresServer
from tiered_storage_airflow.demo_cluster.s3_server import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, S3Server

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]
FAULT_SECONDS = 30


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


def site_of(servers: Servers, root: Path, topic: str, endpoint: str) -> LiveSite:
    """Return a remote log of `topic` whose bucket is at `endpoint`."""
    settings = {
        "rsm.config.url": f"s3://{BUCKET}/{topic}",
        "rsm.config.endpoint": endpoint,
        "rsm.config.region": REGION,
        "rsm.config.allow.http": True,
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


@pytest.mark.parametrize("fault", [store_is_gone], ids=lambda fault: fault.__name__)
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
