"""A real HDFS for tests: a NameNode and its DataNodes on free ports of 127.0.0.1, each in a process of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread
from typing import Any, Self
from urllib.request import urlopen
from xml.sax.saxutils import escape

from tiered_storage_airflow.demo_cluster.brokers import free_ports
from tiered_storage_airflow.demo_cluster.maven_jars import MavenJars, fetched_jars
from tiered_storage_airflow.embedded.java import java_home

HADOOP = MavenJars("hadoop", "3.5.0", Path(__file__).parent)
BLOCK_BYTES = 4 << 20
START_SECONDS = 180
METRICS_SECONDS = 1
"""How old the figures may be that a server shows of itself."""
TOOL_SECONDS = 180

_NAME_NODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
_DATA_NODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
_ADMIN = "org.apache.hadoop.hdfs.tools.DFSAdmin"

# A small heap and the quick compiler alone: it starts in half the time.
_JVM_OPTIONS = (
    "-Xmx192m",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)


class RealHdfsError(RuntimeError):
    """A NameNode, a DataNode or a tool did not do what the test needs; the message has the end of its output."""


@dataclass(frozen=True, slots=True)
class HadoopPrograms:
    """Hadoop's programs: the `java` that runs them and the jars they are in."""

    java: Path
    jars: tuple[Path, ...]
    options: tuple[str, ...] = ()

    def with_options(self, *options: str) -> Self:
        """Return the programs with more options of Java."""
        return replace(self, options=(*self.options, *options))

    @classmethod
    def fetched(cls, state: Path) -> Self:
        """Have the programs under `state`, downloading them the first time."""
        return cls(java_home(state, os.environ) / "bin" / "java", tuple(fetched_jars(HADOOP, state)))

    def command(self, configuration: Path, main_class: str, *args: str) -> list[str]:
        """Return the command that runs a program with the settings in the folder `configuration`."""
        class_path = ":".join(map(str, (configuration, *self.jars)))
        return [str(self.java), *_JVM_OPTIONS, *self.options, "-cp", class_path, main_class, *args]


class RealHdfs:
    """A NameNode and `data_nodes` DataNodes; a context manager that starts and ends them.

    `settings` come on top of those that a cluster on one machine needs. The NameNode keeps its port when it is started
    again, and a DataNode its blocks.
    """

    def __init__(
        self,
        programs: HadoopPrograms,
        directory: Path,
        *,
        data_nodes: int = 1,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.configuration = directory / "configuration"
        self._programs = programs
        self._directory = directory
        self._data_nodes = data_nodes
        self._port, self._http_port, *self._data_node_ports = free_ports(2 + data_nodes)
        self._settings = {
            "fs.defaultFS": self.url,
            "dfs.namenode.rpc-address": f"127.0.0.1:{self._port}",
            "dfs.namenode.http-address": f"127.0.0.1:{self._http_port}",
            "dfs.namenode.name.dir": (directory / "names").as_uri(),
            "dfs.replication": "1",
            # A NameNode that has seen all blocks leaves its safe mode at once.
            "dfs.namenode.safemode.extension": "0",
            # By default it rounds down, and does not wait for the only block of a cluster.
            "dfs.namenode.safemode.threshold-pct": "1",
            "dfs.datanode.address": "127.0.0.1:0",
            "dfs.datanode.ipc.address": "127.0.0.1:0",
            # Small enough for tests to write several.
            "dfs.blocksize": str(BLOCK_BYTES),
            **(settings or {}),
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def slow_way(self) -> SlowWay:
        """Return a slower way to it."""
        return SlowWay(self._port)

    @property
    def address(self) -> str:
        """Host and port of the NameNode."""
        return f"127.0.0.1:{self._port}"

    @property
    def web_address(self) -> str:
        """Host and port at which the NameNode serves WebHDFS."""
        return f"127.0.0.1:{self._http_port}"

    @property
    def url(self) -> str:
        """The root of the file system."""
        return f"hdfs://{self.address}"

    def __enter__(self) -> Self:
        self._write_configuration()
        try:
            for number in range(self._data_nodes):
                self.start_data_node(number)
            self.admin_of(_NAME_NODE, "-format", "-nonInteractive")
            self.start_name_node()
        except BaseException:
            self.kill_all()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_all()

    def kill_all(self) -> None:
        """End all processes at once: nothing of theirs is needed any more."""
        for name in list(self._processes):
            self._kill(name)

    def start_name_node(self) -> None:
        """Start the NameNode and wait until it serves."""
        self._start("namenode", _NAME_NODE)
        self.wait_until_it_serves()

    def kill_name_node(self) -> None:
        """End it as a lost machine would."""
        self._kill("namenode")

    def signal_name_node(self, number: int) -> None:
        """Send it SIGSTOP or SIGCONT."""
        self._processes["namenode"].send_signal(number)

    def start_data_node(self, number: int = 0) -> None:
        """Start a DataNode; it looks for the NameNode by itself."""
        folder, port = (self._directory / f"blocks-{number}").as_uri(), self._data_node_ports[number]
        settings = (f"-Ddfs.datanode.data.dir={folder}", f"-Ddfs.datanode.http.address=127.0.0.1:{port}")
        self._start(f"datanode-{number}", _DATA_NODE, *settings)

    def kill_data_node(self, number: int = 0) -> None:
        """End it as a lost machine would."""
        self._kill(f"datanode-{number}")

    def wait_until_it_serves(self) -> None:
        """Wait until the NameNode takes changes, and all DataNodes have reported to it."""
        self._wait_until(lambda: self._is_operational() and all(map(self._has_reported, self._data_node_ports)))

    def synced_blocks(self) -> int:
        """Return how often the DataNodes have synced a block."""
        time.sleep(METRICS_SECONDS + 0.1)
        query = "Hadoop:service=DataNode,name=DataNodeActivity-*"
        return sum(int(bean["FsyncCount"]) for port in self._data_node_ports for bean in beans_of(port, query))

    def block_files(self) -> list[Path]:
        """Return the files in which DataNodes keep the bytes of blocks."""
        return [path for path in self._directory.glob("blocks-*/**/blk_*") if path.suffix != ".meta"]

    def admin(self, *args: str) -> str:
        """Run a command of dfsadmin, such as `-safemode enter`."""
        return self.admin_of(_ADMIN, *args)

    def admin_of(self, main_class: str, *args: str) -> str:
        """Run one of Hadoop's programs to its end. Raises RealHdfsError where it does not end with 0."""
        command = self._programs.command(self.configuration, main_class, *args)
        run = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_SECONDS, check=False)
        if run.returncode:
            raise RealHdfsError(f"{main_class} ended with {run.returncode}:\n{(run.stdout + run.stderr)[-4000:]}")
        return run.stdout

    def _is_operational(self) -> bool:
        return any(
            bean["FSState"] == "Operational" and bean["NumLiveDataNodes"] >= len(self._data_node_ports)
            for bean in beans_of(self._http_port, "Hadoop:service=NameNode,name=FSNamesystemState")
        )

    def _has_reported(self, port: int) -> bool:
        actors = [
            actor
            for bean in beans_of(port, "Hadoop:service=DataNode,name=DataNodeInfo")
            for actor in json.loads(bean.get("BPServiceActorInfo", "[]"))
        ]
        return bool(actors) and all(actor["ActorState"] == "RUNNING" for actor in actors)

    def _wait_until(self, happened: Callable[[], bool]) -> None:
        end = time.monotonic() + START_SECONDS
        while not happened():
            ended = [name for name, process in self._processes.items() if process.poll() is not None]
            if ended or time.monotonic() > end:
                why = f"{ended[0]} ended" if ended else f"{START_SECONDS} s passed"
                raise RealHdfsError(f"{why} before HDFS served:\n{self._output_tails()}")
            time.sleep(0.05)

    def _start(self, name: str, main_class: str, *args: str) -> None:
        with (self._directory / f"{name}.log").open("ab") as output:
            self._processes[name] = subprocess.Popen(
                self._programs.command(self.configuration, main_class, *args),
                cwd=self._directory,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C ends the test, and the test then ends its servers.
                start_new_session=True,
            )

    def _kill(self, name: str) -> None:
        process = self._processes.pop(name, None)
        if process is not None:
            process.kill()
            process.wait()

    def _output_tails(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-2500:] for path in sorted(self._directory.glob("*.log")))

    def _write_configuration(self) -> None:
        self.configuration.mkdir(parents=True)
        write_hadoop_settings(self.configuration / "core-site.xml", self._settings)
        write_hadoop_settings(self.configuration / "hdfs-site.xml", self._settings)
        (self.configuration / "hadoop-metrics2.properties").write_text(f"*.period={METRICS_SECONDS}\n")


def beans_of(port: int, query: str) -> list[dict[str, Any]]:
    """Return what a server shows of itself; nothing where it does not answer yet."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/jmx?qry={query}") as answer:
            found: list[dict[str, Any]] = json.load(answer)["beans"]
            return found
    except OSError:
        return []


class SlowWay:
    """A way to a NameNode on which every request takes 5 ms more; a context manager.

    A client that closes a file sooner than the DataNode's report comes in asks again after half a second.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self._clients: list[socket.socket] = []

    def __enter__(self) -> Self:
        Thread(target=self._accept, daemon=True).start()
        return self

    @property
    def url(self) -> str:
        """The root of the file system on this way."""
        return f"hdfs://127.0.0.1:{self._server.getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        # An accept that waits already ends by this, and by nothing else.
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def cut(self) -> None:
        """End every connection; a client may open a new one."""
        for client in self._clients:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                self._clients.append(client)
                server = socket.create_connection(("127.0.0.1", self._port))
                Thread(target=_pass_on, args=(client, server, 0.005), daemon=True).start()
                Thread(target=_pass_on, args=(server, client, 0.0), daemon=True).start()


def _pass_on(source: socket.socket, target: socket.socket, delay: float) -> None:
    target.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with suppress(OSError), source, target:
        while received := source.recv(1 << 16):
            time.sleep(delay)
            target.sendall(received)


def write_hadoop_settings(path: Path, settings: Mapping[str, str]) -> None:
    """Write a file such as core-site.xml."""
    rows = [
        f"<property><name>{escape(name)}</name><value>{escape(value)}</value></property>"
        for name, value in settings.items()
    ]
    path.write_text("\n".join(["<configuration>", *rows, "</configuration>\n"]))
