"""A real HDFS with two NameNodes of the name service `lake`, one of them active; they share their edits in a folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from servers.hdfs import HadoopPrograms, RealHdfs, beans_of
from tiered_storage_airflow.demo_cluster.brokers import free_ports

NAME_SERVICE = "lake"
NAME_NODES = ("nn0", "nn1")

_NAME_NODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
_HA_ADMIN = "org.apache.hadoop.hdfs.tools.DFSHAAdmin"


class RealHaHdfs(RealHdfs):
    """Two NameNodes and a DataNode; a context manager that starts and ends them. `nn0` is active at first."""

    def __init__(self, programs: HadoopPrograms, directory: Path) -> None:
        self._names = directory / "names"
        ports = free_ports(2 * len(NAME_NODES))
        self.addresses = {node: f"127.0.0.1:{ports.pop()}" for node in NAME_NODES}
        self._http_ports = dict(zip(NAME_NODES, ports, strict=True))
        settings = {
            "fs.defaultFS": f"hdfs://{NAME_SERVICE}",
            "dfs.nameservices": NAME_SERVICE,
            f"dfs.ha.namenodes.{NAME_SERVICE}": ",".join(NAME_NODES),
            f"dfs.client.failover.proxy.provider.{NAME_SERVICE}": (
                "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
            ),
            "dfs.namenode.shared.edits.dir": (directory / "shared").as_uri(),
            "dfs.ha.tail-edits.period": "1s",
        }
        for node in NAME_NODES:
            settings |= {
                f"dfs.namenode.rpc-address.{NAME_SERVICE}.{node}": self.addresses[node],
                f"dfs.namenode.http-address.{NAME_SERVICE}.{node}": f"127.0.0.1:{self._http_ports[node]}",
                f"dfs.namenode.name.dir.{NAME_SERVICE}.{node}": (self._names / node).as_uri(),
            }
        super().__init__(programs, directory, settings=settings)

    def start_name_node(self) -> None:
        """Start both NameNodes, and make the first active."""
        first, *others = NAME_NODES
        for other in others:
            shutil.copytree(self._names / first, self._names / other)
        for node in NAME_NODES:
            self.start_member(node)
        self.activate(first)

    def start_member(self, node: str) -> None:
        """Start a NameNode, as standby."""
        self._start(node, _NAME_NODE, f"-Ddfs.ha.namenode.id={node}")
        self._wait_until(lambda: self._is_up(node))

    def kill_member(self, node: str) -> None:
        """End a NameNode as a lost machine would."""
        self._kill(node)

    def signal_member(self, node: str, number: int) -> None:
        """Send a NameNode SIGSTOP or SIGCONT."""
        self._processes[node].send_signal(number)

    def activate(self, node: str) -> None:
        """Make a NameNode active, and wait until it takes changes."""
        # The other one may be lost, or stand still: it is not asked.
        self.admin_of(_HA_ADMIN, "-transitionToActive", "--forceactive", node)
        self._wait_until(lambda: self._is_active(node) and self._blocks_are_known(node))

    def fail_over(self, source: str, target: str) -> None:
        """Make one NameNode standby, then the other active, as an administrator would."""
        self.stand_by(source)
        self.activate(target)

    def stand_by(self, node: str) -> None:
        """Make the active NameNode standby."""
        self.admin_of(_HA_ADMIN, "-transitionToStandby", node)

    def admin_of(self, main_class: str, *args: str) -> str:
        """See RealHdfs; a NameNode is formatted as the first of the two."""
        first = (f"-Ddfs.ha.namenode.id={NAME_NODES[0]}",) if main_class == _NAME_NODE else ()
        return super().admin_of(main_class, *first, *args)

    def _is_up(self, node: str) -> bool:
        return bool(beans_of(self._http_ports[node], "Hadoop:service=NameNode,name=NameNodeStatus"))

    def _is_active(self, node: str) -> bool:
        found = beans_of(self._http_ports[node], "Hadoop:service=NameNode,name=NameNodeStatus")
        return any(bean["State"] == "active" for bean in found)

    def _blocks_are_known(self, node: str) -> bool:
        found = beans_of(self._http_ports[node], "Hadoop:service=NameNode,name=FSNamesystemState")
        return any(bean["FSState"] == "Operational" and bean["NumLiveDataNodes"] for bean in found)
