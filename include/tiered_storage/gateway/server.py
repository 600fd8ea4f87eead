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
from dataclasses import replace
from itertools import count
from typing import Any

from tiered_storage.errors import ConfigurationError
from tiered_storage.gateway.broker_ports import BrokerPorts
from tiered_storage.gateway.client_requests import ClientRequests
from tiered_storage.gateway.connections.client_connection import ClientConnection
from tiered_storage.gateway.connections.listening import OpenConnections, listen
from tiered_storage.gateway.served_cluster import ServedCluster
from tiered_storage.kafka_wire.connections.client_settings import BrokerAddress, ClientSettings, TlsSettings
from tiered_storage.kafka_wire.connections.transport import tls_context
from tiered_storage.kafka_wire.server.frame_protocol import FrameProtocol

_log = logging.getLogger(__name__)


class GatewayServer:
    """The clients of one process. For one event loop."""

    def __init__(
        self, host: str, cluster: ServedCluster, brokers: ClientSettings, tls: ssl.SSLContext | None = None
    ) -> None:
        """Listen at `host` for clients of `cluster`, with `tls` if it is set; connect to brokers as `brokers` says.

        The login and the certificate of `brokers` are left out: clients have their own.

        Raises ConfigurationError if a file of certificates cannot be read.
        """
        limits = cluster.limits
        self._host = host
        self._cluster = cluster
        self._brokers = _Brokers(cluster.ports, brokers)
        self._with_login = brokers.sasl is not None
        self._tls = tls
        self._connections = OpenConnections(
            limits.most_connections, limits.idle_seconds, cluster.budget, cluster.metrics
        )
        self._numbers = count(1)
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, nodes: Sequence[int]) -> None:
        """Listen on the first port and on those of `nodes`, and on that of every other broker once it is seen.

        Raises ConfigurationError if a port cannot be opened.
        """
        await self._listen(None)
        for node_id in nodes:
            await self._listen(node_id)
        self._cluster.ports.on_new = lambda node_id: self._run(self._listen(node_id))
        self._run(self._connections.close_idle())

    async def stop(self) -> None:
        """Accept no more, answer what clients have asked, and close; what takes too long is cut off."""
        for server in self._servers:
            server.close()
        await self._connections.drain(self._cluster.limits.shutdown_seconds)

    async def _listen(self, node_id: int | None) -> None:
        """Listen on a broker's port, None: on the first one."""
        ports = self._cluster.ports
        port = ports.first_port if node_id is None else ports.port(node_id)
        self._servers.append(await listen(lambda: self._accept(node_id), self._host, port, self._tls))

    def _accept(self, node_id: int | None) -> FrameProtocol:
        """Return the protocol of a connection that a client begins; with TLS it is open after the handshake."""

        def opened(connection: ClientConnection) -> ClientRequests:
            requests = ClientRequests(next(self._numbers), connection, self._cluster)
            self._connections.add(connection, on_end=requests.close)
            self._run(self._serve(connection, node_id))
            return requests

        cluster, ended = self._cluster, self._connections.remove
        limit, memory = cluster.limits.largest_request, cluster.budget.account()
        return ClientConnection(limit, opened, ended, memory, with_login=self._with_login).client

    async def _serve(self, connection: ClientConnection, node_id: int | None) -> None:
        """Connect a client to its broker, or close it."""
        if self._connections.refuse_excess(connection):
            return
        if not await self._brokers.connect(connection, node_id):
            self._cluster.metrics.refused.labels("broker").inc()
            connection.abort()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("%s", error, exc_info=None if isinstance(error, ConfigurationError) else error)


class _Brokers:
    """The brokers that clients are connected to. For one event loop."""

    def __init__(self, ports: BrokerPorts, settings: ClientSettings) -> None:
        """Look for brokers in `ports`; connect as `settings` says. Raises ConfigurationError for invalid files."""
        self._ports = ports
        self._seconds = settings.connect_seconds
        self._tls = tls_context(_for_clients(settings.tls)) if settings.tls else None
        self._unreachable: set[int | None] = set()
        """The brokers that could not be reached last time; None: any one."""

    async def connect(self, connection: ClientConnection, node_id: int | None) -> bool:
        """Connect a client to a broker, None: to any one; return whether that worked.

        The first failure is a warning, and those after it are not until it works again: clients try again at once.
        """
        failures = []
        for address in self._ports.addresses(node_id):
            try:
                await self._connect(connection, address)
            except (OSError, TimeoutError) as error:
                failures.append(f"{address}: {error or 'no connection in time'}")
            else:
                self._unreachable.discard(node_id)
                return True
        level = logging.INFO if node_id in self._unreachable else logging.WARNING
        self._unreachable.add(node_id)
        broker = "any broker" if node_id is None else f"broker {node_id}"
        _log.log(level, "closing a client's connection: %s cannot be reached: %s", broker, "; ".join(failures))
        return False

    async def _connect(self, connection: ClientConnection, address: BrokerAddress) -> None:
        async with asyncio.timeout(self._seconds):
            transport, protocol = await asyncio.get_running_loop().create_connection(
                lambda: connection.broker,
                address.host,
                address.port,
                ssl=self._tls,
                server_hostname=address.host if self._tls else None,
            )
        _set_options(transport)
        if connection.has_ended:
            protocol.close()


def _for_clients(tls: TlsSettings) -> TlsSettings:
    """Return `tls` without our own certificate: by it, a broker would give every client our own rights."""
    return replace(tls, certificate_location="", key_location="", key_password="")


def _set_options(transport: asyncio.BaseTransport) -> None:
    opened = transport.get_extra_info("socket")
    if opened is not None:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
