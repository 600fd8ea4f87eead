"""A real Apache Kafka broker for tests: one node that is its own KRaft controller, on free ports of 127.0.0.1.

It can have further listeners, and other brokers can join it.
"""

from __future__ import annotations

import base64
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import uuid4

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from servers.kafka_programs import KafkaPrograms, RealKafkaError
from support.kafka_clients import RealKafkaClient
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.kafka_log.files.meta_properties import META_PROPERTIES, MetaProperties

START_SECONDS = 60
STOP_SECONDS = 60
STOPPED_BY_SIGTERM = 128 + signal.SIGTERM

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
    protocols of further listeners by name.
    """

    def __init__(
        self,
        programs: KafkaPrograms,
        directory: Path,
        *,
        log_dir: Path | None = None,
        properties: Mapping[str, str] | None = None,
        listeners: Mapping[str, str] | None = None,
    ) -> None:
        self.programs = programs
        self.log_dir = log_dir or directory / "log-dir"
        self._directory = directory
        self._properties = dict(properties or {})
        self._protocols = {"PLAINTEXT": "PLAINTEXT", **(listeners or {})}
        self._controller_port, *ports = _free_ports(1 + len(self._protocols))
        self._ports = dict(zip(self._protocols, ports, strict=True))
        self._process: subprocess.Popen[bytes] | None = None

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

        Raises RealKafkaError where it ends, or does not serve within START_SECONDS.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        configuration = self._write_configuration()
        if not (self.log_dir / "meta.properties").exists():
            self._format(configuration)
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                self.programs.command("kafka.Kafka", str(configuration)),
                cwd=self._directory,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C ends the test, and the test then ends its broker.
                start_new_session=True,
            )
        try:
            self._wait_until_it_serves()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """End the broker by SIGTERM, which leaves complete files; does nothing if it does not run.

        Raises RealKafkaError where it does not end within STOP_SECONDS (it is killed then), or ended by itself.
        """
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            code = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise RealKafkaError(f"the broker did not stop in {STOP_SECONDS} s:\n{self.output_tail()}") from None
        if code != STOPPED_BY_SIGTERM:
            raise RealKafkaError(f"the broker ended with {code}:\n{self.output_tail()}")

    def kill(self) -> None:
        """End the broker at once, as a lost machine would."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def another(self, node_id: int, directory: Path, properties: Mapping[str, str] | None = None) -> RealKafka:
        """Return one more broker of this one's cluster, without a controller; this one must run."""
        other = RealKafka(
            self.programs,
            directory,
            properties={
                "process.roles": "broker",
                "node.id": str(node_id),
                "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
                **(properties or {}),
            },
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

    def tool(self, main_class: str, *args: str | Path) -> str:
        """Run one of Kafka's tools; see KafkaPrograms.tool."""
        return self.programs.tool(main_class, *args)

    def output_tail(self) -> str:
        """The errors that the broker logged, and the last 4000 characters of all that it wrote."""
        if not self._output.exists():
            return ""
        output = self._output.read_text(errors="replace")
        errors = re.findall(r"^\[[^\n]*\] ERROR .*\n.*$", output, re.MULTILINE)
        return "\n".join([*errors[-5:], "...", output[-4000:]])

    @property
    def _output(self) -> Path:
        return self._directory / "output.log"

    def _write_configuration(self) -> Path:
        listeners = ",".join(f"{name}://{self.address(name)}" for name in self._protocols)
        protocols = {"CONTROLLER": "PLAINTEXT", **self._protocols}
        properties = {
            **_PROPERTIES,
            "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in protocols.items()),
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:{self._controller_port}",
            "advertised.listeners": listeners,
            "log.dirs": str(self.log_dir),
            **self._properties,
        }
        if "controller" not in properties["process.roles"]:
            properties["listeners"] = listeners
        path = self._directory / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        return path

    def _format(self, configuration: Path) -> None:
        cluster_id = base64.urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")
        self.tool("kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}", "--config", configuration)

    def _serves(self) -> bool:
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        try:
            return bool(admin.list_topics(timeout=1).brokers)
        except KafkaException:
            return False

    def _wait_until_it_serves(self) -> None:
        end = time.monotonic() + START_SECONDS
        while not self._serves():
            if self._process is None or self._process.poll() is not None:
                raise RealKafkaError(f"the broker ended before it served:\n{self.output_tail()}")
            if time.monotonic() > end:
                raise RealKafkaError(f"the broker did not serve within {START_SECONDS} s:\n{self.output_tail()}")
            time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()
