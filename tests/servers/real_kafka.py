"""A real Apache Kafka broker for tests: one node that is its own KRaft controller, on free ports of 127.0.0.1.

It can have further listeners, and other brokers can join it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import uuid4

from servers.kafka_programs import KafkaPrograms
from support.kafka_clients import RealKafkaClient
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.kafka_log.files.meta_properties import META_PROPERTIES, MetaProperties
from tiered_storage_airflow.demo_cluster.brokers import free_ports
from tiered_storage_airflow.demo_cluster.kafka_programs import BrokerProcess

_PROPERTIES = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
    "log.retention.check.interval.ms": "1000",
    # Tests write records of any time: only a topic that asks for retention loses segments.
    "log.retention.ms": "-1",
}


class RealKafka:
    """A broker that keeps its log under `directory`/log-dir, or in `log_dir` where that is given.

    It is a context manager that starts it and stops it. Its ports stay the same through `stopped` and `restart_on`,
    so a client outlives them. `properties` come on top of those that a single node needs; `listeners` have the security
    protocols of further listeners by name, `advertised` the addresses of those that advertise another one than theirs.
    """

    def __init__(
        self,
        programs: KafkaPrograms,
        directory: Path,
        *,
        log_dir: Path | None = None,
        properties: Mapping[str, str] | None = None,
        listeners: Mapping[str, str] | None = None,
        advertised: Mapping[str, str] | None = None,
    ) -> None:
        self.programs = programs
        self.log_dir = log_dir or directory / "log-dir"
        self._properties = dict(properties or {})
        self._advertised = dict(advertised or {})
        self._protocols = {"PLAINTEXT": "PLAINTEXT", **(listeners or {})}
        self._controller_port, *ports = free_ports(1 + len(self._protocols))
        self._ports = dict(zip(self._protocols, ports, strict=True))
        self._process = BrokerProcess(programs, directory, self.bootstrap_servers)

    @property
    def bootstrap_servers(self) -> str:
        return self.address("PLAINTEXT")

    def address(self, listener: str) -> str:
        """Return the address of a listener."""
        return f"127.0.0.1:{self._ports[listener]}"

    @property
    def client(self) -> RealKafkaClient:
        return RealKafkaClient(self.bootstrap_servers)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Start the broker on its log directory, formatting an empty one, and wait until it serves.

        Raises RealKafkaError where it ends, or does not serve in a minute.
        """
        configuration = self._process.write_properties(self._broker_properties())
        if not (self.log_dir / "meta.properties").exists():
            self._format(configuration)
        self._process.launch()
        try:
            self._process.wait_until_it_serves()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """End the broker by SIGTERM; see BrokerProcess.stop."""
        self._process.stop()

    def kill(self) -> None:
        """End the broker at once, as a lost machine would."""
        self._process.kill()

    def another(
        self,
        node_id: int,
        directory: Path,
        properties: Mapping[str, str] | None = None,
        advertised: Mapping[str, str] | None = None,
    ) -> RealKafka:
        """Return one more broker of this one's cluster, without a controller; this one must run.

        It has the same listeners, and advertises other addresses of those in `advertised`.
        """
        other = RealKafka(
            self.programs,
            directory,
            properties={
                "process.roles": "broker",
                "node.id": str(node_id),
                "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
                **(properties or {}),
            },
            listeners=self._protocols,
            advertised=advertised,
        )
        other.log_dir.mkdir(parents=True)
        identity = MetaProperties(1, self.client.cluster_id(), node_id, random_uuid())
        identity.write(other.log_dir / META_PROPERTIES)
        return other

    @contextmanager
    def stopped(self) -> Iterator[Path]:
        """Stop the broker for as long as the block runs, which may change the log directory it is given."""
        self.stop()
        try:
            yield self.log_dir
        finally:
            self.start()

    def restart_on(self, log_dir: Path) -> None:
        """Stop the broker and start it again on another log directory."""
        self.stop()
        self.log_dir = log_dir
        self.start()

    def tool(self, main_class: str, *args: str | Path, given: str | None = None) -> str:
        """Run one of Kafka's tools; see KafkaPrograms.tool."""
        return self.programs.tool(main_class, *args, given=given)

    def output_tail(self) -> str:
        """See BrokerProcess.output_tail."""
        return self._process.output_tail()

    def _broker_properties(self) -> dict[str, str]:
        listeners = ",".join(f"{name}://{self.address(name)}" for name in self._protocols)
        advertised = ((name, self._advertised.get(name, self.address(name))) for name in self._protocols)
        protocols = {"CONTROLLER": "PLAINTEXT", **self._protocols}
        properties = {
            **_PROPERTIES,
            "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in protocols.items()),
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:{self._controller_port}",
            "advertised.listeners": ",".join(f"{name}://{address}" for name, address in advertised),
            "log.dirs": str(self.log_dir),
            **self._properties,
        }
        if "controller" not in properties["process.roles"]:
            properties["listeners"] = listeners
        return properties

    def _format(self, configuration: Path) -> None:
        cluster_id = base64.urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")
        self.tool("kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}", "--config", configuration)
