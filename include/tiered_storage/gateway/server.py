"""Listens for clients, a port for each broker, and connects each client to the broker of its port.

Every port may be shared with other processes (SO_REUSEPORT): the kernel spreads the connections.

Source: Linux's socket(7) for SO_REUSEPORT; KIP-61 and KIP-402 for limits of connections.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from tiered_storage.errors import ConfigurationError
from tiered_storage.gateway.broker_ports import BrokerPorts
from tiered_storage.gateway.broker_questions import NamedTopic
from tiered_storage.gateway.client_requests import ClientRequests
from tiered_storage.gateway.connections.client_connection import ClientConnection
from tiered_storage.gateway.connections.listening import OpenConnections, listen
from tiered_storage.gateway.deletions.remote_deletions import RemoteDeletions
from tiered_storage.gateway.fetch_errors import ReadFailures
from tiered_storage.gateway.limits.client_quotas import ClientQuotas
from tiered_storage.gateway.limits.memory_budget import MemoryBudget
from tiered_storage.gateway.operation.metrics import GatewayMetrics
from tiered_storage.gateway.remote_partitions import RemotePartitions
from tiered_storage.kafka_wire.connections.client_settings import BrokerAddress, ClientSettings, TlsSettings
from tiered_storage.kafka_wire.connections.transport import tls_context
from tiered_storage.kafka_wire.server.frame_protocol import FrameProtocol

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """Where one process listens, and how much it takes on."""

    listen_host: str
    most_connections: int
    largest_request: int
    most_fetch_bytes: int
    most_wait_ms: int
    """How long a Fetch waits for remote records."""
    shutdown_seconds: float
    idle_seconds: float
    """Seconds after which an idle connection is closed."""
    client_bytes_per_second: int | None
    """Remote records for each client; None: all that it wants."""
    skips_missing: bool
    """Whether consumers continue after offsets that neither tier has."""


class GatewayServer:
    """The clients of one process. For one event loop."""

    def __init__(
        self,
        ports: BrokerPorts,
        partitions: RemotePartitions,
        brokers: ClientSettings,
        limits: GatewayLimits,
        metrics: GatewayMetrics,
        budget: MemoryBudget,
        deletions: RemoteDeletions,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Connect to brokers as `brokers` says, without its login and certificate; take TLS from clients with `tls`.

        All connections share the memory of `budget`, and delete from the remote log by `deletions`.

        Raises ConfigurationError if a file of certificates cannot be read.
        """
        self._ports = ports
        self._partitions = partitions
        self._brokers = brokers
        self._broker_tls = tls_context(_for_clients(brokers.tls)) if brokers.tls else None
        self._limits = limits
        self._metrics = metrics
        self._budget = budget
        self._connections = OpenConnections(limits.most_connections, limits.idle_seconds, budget, metrics)
        self._deletions = deletions
        self._failures = ReadFailures(metrics)
        self._quotas = ClientQuotas(limits.client_bytes_per_second)
        self._tls = tls
        self._names: dict[bytes, NamedTopic] = {}
        self._numbers = count(1)
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, nodes: Sequence[int]) -> None:
        """Listen on the first port and on those of `nodes`, and on that of every other broker once it is seen.

        Raises ConfigurationError if a port cannot be had.
        """
        await self._listen(None)
        for node_id in nodes:
            await self._listen(node_id)
        self._ports.on_new = lambda node_id: self._run(self._listen(node_id))
        self._run(self._connections.close_idle())

    async def stop(self) -> None:
        """Accept no more, answer what clients have asked, and close; what takes too long is cut off."""
        for server in self._servers:
            server.close()
        await self._connections.drain(self._limits.shutdown_seconds)

    async def _listen(self, node_id: int | None) -> None:
        """Listen on a broker's port, None: on the first one."""
        port = self._ports.first_port if node_id is None else self._ports.port(node_id)
        self._servers.append(await listen(lambda: self._accept(node_id), self._limits.listen_host, port, self._tls))

    def _accept(self, node_id: int | None) -> FrameProtocol:
        """Return the protocol of a connection that a client begins; with TLS it is open after the handshake."""

        def opened(connection: ClientConnection) -> ClientRequests:
            requests = ClientRequests(
                next(self._numbers),
                connection,
                self._ports,
                self._partitions,
                self._metrics,
                self._failures,
                self._quotas,
                self._deletions,
                self._names,
                most_fetch_bytes=self._limits.most_fetch_bytes,
                most_wait_ms=self._limits.most_wait_ms,
                skips_missing=self._limits.skips_missing,
            )
            self._connections.add(connection, on_end=requests.close)
            self._run(self._serve(connection, node_id))
            return requests

        limit, with_login = self._limits.largest_request, self._brokers.sasl is not None
        ended, memory = self._connections.remove, self._budget.account()
        return ClientConnection(limit, opened, ended, memory, with_login=with_login).client

    async def _serve(self, connection: ClientConnection, node_id: int | None) -> None:
        """Connect a client to its broker, or close it."""
        if self._connections.refuse_excess(connection):
            return
        failures = []
        for address in self._ports.addresses(node_id):
            try:
                await self._connect(connection, address)
            except (OSError, TimeoutError) as error:
                failures.append(f"{address}: {error or 'no connection in time'}")
            else:
                return
        broker = "any broker" if node_id is None else f"broker {node_id}"
        _log.warning("closing a client's connection: %s cannot be reached: %s", broker, "; ".join(failures))
        self._metrics.refused.labels("broker").inc()
        connection.abort()

    async def _connect(self, connection: ClientConnection, address: BrokerAddress) -> None:
        async with asyncio.timeout(self._brokers.connect_seconds):
            transport, protocol = await asyncio.get_running_loop().create_connection(
                lambda: connection.broker,
                address.host,
                address.port,
                ssl=self._broker_tls,
                server_hostname=address.host if self._broker_tls else None,
            )
        _set_options(transport)
        if connection.has_ended:
            protocol.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("%s", error, exc_info=None if isinstance(error, ConfigurationError) else error)


def _for_clients(tls: TlsSettings) -> TlsSettings:
    """Return `tls` without our own certificate: by it, a broker would give every client our own rights."""
    return replace(tls, certificate_location="", key_location="", key_password="")


def _set_options(transport: asyncio.BaseTransport) -> None:
    opened = transport.get_extra_info("socket")
    if opened is not None:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
