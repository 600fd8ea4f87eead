"""The servers that a remote log beside three brokers needs, and faults of its store and its database."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from servers.kafka_programs import KafkaPrograms
from support.live_cluster import LiveCluster
from support.object_stores import S3Endpoint
from tiered_storage_airflow.demo_cluster.brokers import BrokerCluster, free_ports
from tiered_storage_airflow.demo_cluster.postgres import PostgresServer
from tiered_storage_airflow.demo_cluster.s3_server import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, S3Server


@dataclass(frozen=True, slots=True)
class RemoteServers:
    """Three brokers, an S3 server and a PostgreSQL server, all in processes of their own."""

    brokers: BrokerCluster
    s3: S3Server
    postgres: PostgresServer

    @property
    def bucket(self) -> S3Endpoint:
        """The bucket of every remote log."""
        return S3Endpoint(self.s3.url, ACCESS_KEY, SECRET_KEY, REGION, BUCKET)

    def database(self, topic: str) -> str:
        """Return the name of the database that has the metadata of `topic`."""
        return topic.replace("-", "_")

    def site(
        self, root: Path, topic: str, settings: Mapping[str, Any] | None = None, database: str = ""
    ) -> LiveCluster:
        """Return a remote log of `topic` in the bucket, with `settings`; its metadata are at the URL `database`."""
        store = {
            "rsm.config.url": f"s3://{BUCKET}/{topic}",
            "rsm.config.endpoint": self.s3.url,
            "rsm.config.region": REGION,
            "rsm.config.allow.http": True,
        }
        secrets = {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "TIERED_STORAGE_RLMM_CONFIG_URL": database or self.postgres.database(self.database(topic)),
        }
        return LiveCluster(self.brokers, root, (topic,), {**store, **(settings or {})}, secrets).write()


@contextmanager
def running_servers(programs: KafkaPrograms, folder: Path) -> Iterator[RemoteServers]:
    """Run all of them while the block runs, with their files below `folder`."""
    with (
        BrokerCluster(programs, folder / "kafka") as brokers,
        S3Server(folder / "buckets", free_ports(1)[0]) as s3,
        PostgresServer() as postgres,
    ):
        yield RemoteServers(brokers, s3, postgres)


Outage = Callable[[RemoteServers], AbstractContextManager[None]]
"""What is wrong with the store or the database during a `with`."""


@contextmanager
def store_is_gone(servers: RemoteServers) -> Iterator[None]:
    """Nobody listens."""
    servers.s3.kill()
    try:
        yield
    finally:
        servers.s3.start()


@contextmanager
def store_hangs(servers: RemoteServers) -> Iterator[None]:
    """Connections are accepted, and nothing is answered."""
    servers.s3.pause()
    try:
        yield
    finally:
        servers.s3.resume()


@contextmanager
def database_is_gone(servers: RemoteServers) -> Iterator[None]:
    """Kill the server, and restart it at the end of the block."""
    servers.postgres.stop(signal.SIGQUIT)
    try:
        yield
    finally:
        servers.postgres.start()


@contextmanager
def database_hangs(servers: RemoteServers) -> Iterator[None]:
    """It keeps its connections and answers nothing."""
    server = psutil.Process(servers.postgres.pid)
    # The one that starts the others first; those may end by themselves meanwhile.
    server.suspend()
    processes = [server, *server.children(recursive=True)]
    try:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        yield
    finally:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.resume()
