"""A real Apache Kafka of 2.8: one broker and the ZooKeeper that keeps its metadata, on free ports of 127.0.0.1."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from servers.kafka_programs import KafkaPrograms
from servers.real_kafka import RealKafka
from tiered_storage_airflow.demo_cluster.brokers import free_ports

_ZOOKEEPER = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_NOT_KNOWN = ("process.roles", "node.id", "controller.", "share.")
"""The beginnings of properties that only brokers without ZooKeeper have."""


class ZooKeeperKafka(RealKafka):
    """A broker of 2.8, started and stopped together with its ZooKeeper. `properties` come on top of its own."""

    def __init__(self, programs: KafkaPrograms, directory: Path, properties: Mapping[str, str] | None = None) -> None:
        super().__init__(programs, directory, properties=properties)
        self._folder = directory
        [self._zookeeper_port] = free_ports(1)
        self._zookeeper: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start both; the broker waits for its ZooKeeper. Raises as RealKafka."""
        self._folder.mkdir(parents=True, exist_ok=True)
        given = {
            "dataDir": str(self._folder / "zookeeper"),
            "clientPort": str(self._zookeeper_port),
            "clientPortAddress": "127.0.0.1",
            "admin.enableServer": "false",
        }
        configuration = self._folder / "zookeeper.properties"
        configuration.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
        with (self._folder / "zookeeper.log").open("ab") as output:
            self._zookeeper = subprocess.Popen(
                self.programs.command(_ZOOKEEPER, str(configuration)),
                cwd=self._folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            super().start()
        except BaseException:
            self._end_zookeeper()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Stop the broker, then its ZooKeeper."""
        try:
            super().__exit__(kind, error, tb)
        finally:
            self._end_zookeeper()

    def __enter__(self) -> Self:
        self.start()
        return self

    def _end_zookeeper(self) -> None:
        if self._zookeeper is not None:
            self._zookeeper.kill()
            self._zookeeper.wait()

    def _broker_properties(self) -> dict[str, str]:
        found = {name: value for name, value in super()._broker_properties().items() if not name.startswith(_NOT_KNOWN)}
        return {
            **found,
            "broker.id": "1",
            "zookeeper.connect": f"127.0.0.1:{self._zookeeper_port}",
            "listeners": f"PLAINTEXT://{self.bootstrap_servers}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT",
        }

    def _format(self, configuration: Path) -> None:
        """The broker formats its directory itself."""
