"""Three brokers that are their cluster's controllers too: any one of them may be killed, and the other two continue."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage_airflow.demo_cluster.kafka_programs import BrokerProcess, KafkaProgramError, KafkaPrograms

NODES = (1, 2, 3)
REQUEST_SECONDS = 60.0
_HOST = "127.0.0.1"

_PROPERTIES = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "auto.create.topics.enable": "false",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    # A killed broker is noticed after two seconds, and a restarted one leads again only when it is asked to.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    "auto.leader.rebalance.enable": "false",
    "log.retention.check.interval.ms": "1000",
}


class BrokerCluster:
    """Brokers 1 to 3, each with a folder of its own below `directory`. A context manager that starts and stops them.

    Their ports stay the same, so clients outlive restarts. `properties` come on top of those that a cluster of three
    needs; `listeners` have the security protocols of further listeners by name.
    """

    def __init__(
        self,
        programs: KafkaPrograms,
        directory: Path,
        properties: Mapping[str, str] | None = None,
        listeners: Mapping[str, str] | None = None,
    ) -> None:
        """Choose free ports; start nothing yet."""
        self.programs = programs
        self._directory = directory
        self._protocols = {"PLAINTEXT": "PLAINTEXT", **(listeners or {})}
        ports = iter(free_ports(len(NODES) * (1 + len(self._protocols))))
        self._controllers = {node: next(ports) for node in NODES}
        self._ports = {(node, name): next(ports) for node in NODES for name in self._protocols}
        self._properties = dict(properties or {})
        self._processes = {
            node: BrokerProcess(programs, directory / f"broker-{node}", self.address(node)) for node in NODES
        }

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all three."""
        return self.addresses("PLAINTEXT")

    def addresses(self, listener: str) -> str:
        """The addresses of all three at one listener."""
        return ",".join(self.address(node, listener) for node in NODES)

    def address(self, node: int, listener: str = "PLAINTEXT") -> str:
        """The address of one broker at a listener."""
        return f"{_HOST}:{self._ports[node, listener]}"

    def log_dir(self, node: int) -> Path:
        """The log directory of one broker."""
        return self._directory / f"broker-{node}" / "log-dir"

    def __enter__(self) -> Self:
        cluster_id = random_uuid()
        for node, process in self._processes.items():
            path = process.write_properties(self._of(node))
            self.programs.tool("kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}", "--config", path)
        try:
            for process in self._processes.values():
                process.launch()
            for process in self._processes.values():
                process.wait_until_it_serves()
            self._wait_for_all()
        except BaseException:
            self._kill_all()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        # Their controllers need a majority to stop in order, and their files are no longer needed.
        self._kill_all()

    def kill(self, node: int) -> None:
        """End one broker at once, as a lost machine would."""
        self._processes[node].kill()

    def stop(self, node: int) -> None:
        """End one broker in order: it hands its leaderships over first."""
        self._processes[node].stop()

    def start(self, *nodes: int) -> None:
        """Start brokers that were stopped or killed, and wait until the cluster has all that were started."""
        for node in nodes:
            self._processes[node].launch()
        for node in nodes:
            self._processes[node].wait_until_it_serves()
        self._wait_for_all()

    def admin(self) -> Any:
        """Return a client of confluent-kafka for administration."""
        return AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})

    def create_topic(
        self, name: str, partitions: int, config: Mapping[str, str], replicas: list[list[int]] | None = None
    ) -> None:
        """Create a topic of three replicas, or on the brokers that `replicas` has for each partition."""
        where: dict[str, Any] = {"replica_assignment": replicas} if replicas else {"replication_factor": len(NODES)}
        topic = NewTopic(name, num_partitions=partitions, config=dict(config), **where)
        admin = self.admin()
        admin.create_topics([topic], operation_timeout=REQUEST_SECONDS)[name].result(REQUEST_SECONDS)

    def leader(self, topic: str, partition: int) -> int:
        """Return the broker that leads a partition; -1: none does."""
        found = self.admin().list_topics(topic, timeout=REQUEST_SECONDS).topics[topic].partitions.get(partition)
        return -1 if found is None else int(found.leader)

    def _of(self, node: int) -> dict[str, str]:
        own = ",".join(f"{name}://{self.address(node, name)}" for name in self._protocols)
        protocols = {"CONTROLLER": "PLAINTEXT", **self._protocols}
        voters = (f"{each}@{_HOST}:{port}" for each, port in self._controllers.items())
        return {
            **_PROPERTIES,
            "node.id": str(node),
            "controller.quorum.voters": ",".join(voters),
            "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in protocols.items()),
            "listeners": f"{own},CONTROLLER://{_HOST}:{self._controllers[node]}",
            "advertised.listeners": own,
            "log.dirs": str(self.log_dir(node)),
            **self._properties,
        }

    def _wait_for_all(self) -> None:
        started = {node for node, process in self._processes.items() if process.is_started}
        end = time.monotonic() + REQUEST_SECONDS
        while not started <= self._registered():
            if time.monotonic() > end:
                raise KafkaProgramError(f"the cluster has not all of brokers {sorted(started)}")
            time.sleep(0.1)

    def _registered(self) -> set[int]:
        try:
            return set(self.admin().list_topics(timeout=5).brokers)
        except KafkaException:
            return set()

    def _kill_all(self) -> None:
        for process in self._processes.values():
            process.kill()


def free_ports(count: int) -> list[int]:
    """Return ports of this machine on which no process listens now."""
    sockets = [socket.create_server((_HOST, 0)) for _ in range(count)]
    try:
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def free_first_port(nodes: Sequence[int]) -> int:
    """Return a port that is free as those of the brokers `nodes` after it are: what a gateway before them needs.

    All are below those that the kernel gives to outgoing connections: none is taken before the gateway listens.
    Raises KafkaProgramError if there are none.
    """
    lowest_of_kernel = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    for _ in range(100):
        port = lowest_of_kernel // 2 + secrets.randbelow(lowest_of_kernel // 2 - max(nodes) - 1)
        with ExitStack() as opened:
            try:
                for each in (port, *(port + 1 + node for node in nodes)):
                    opened.enter_context(socket.socket()).bind((_HOST, each))
            except OSError:
                continue
            return port
    raise KafkaProgramError(f"{_HOST}: no ports in a row are free for a gateway before {len(nodes)} brokers: try again")
