"""Listens for clients, and answers them out of a log directory and the remote log, without any broker."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address
from itertools import count
from typing import Final

from tiered_storage.clock import wall_clock
from tiered_storage.errors import ConfigurationError
from tiered_storage.gateway.connections.client_connection import LARGEST_BEFORE_LOGIN
from tiered_storage.gateway.connections.listening import OpenConnections, listen
from tiered_storage.gateway.operation.metrics import GatewayMetrics
from tiered_storage.gateway.standalone.connection import StandaloneConnection
from tiered_storage.gateway.standalone.descriptions import Node
from tiered_storage.gateway.standalone.log_fetch import LogFetch
from tiered_storage.gateway.standalone.requests import StandaloneRequests
from tiered_storage.gateway.standalone.served_log import ServedLog
from tiered_storage.gateway.workers import ended_by_signal, serve_metrics_of, serve_until, server_tls
from tiered_storage.kafka_wire.server.frame_protocol import FrameProtocol
from tiered_storage.process.health import Health, needs_of
from tiered_storage.remote_log.context import RemoteLogContext, store_options
from tiered_storage.remote_log.metrics.exposition import CountedStorage
from tiered_storage.remote_log.read.log_reader import RemoteLogReader
from tiered_storage.settings.settings import Settings

_log = logging.getLogger(__name__)

_THIS_MACHINE: Final = "127.0.0.1"


async def serve_standalone(settings: Settings, number: int, on_ready: Callable[[], None]) -> None:
    """Serve clients in process `number` until it gets a signal; call `on_ready` once the port is open.

    Raises ConfigurationError for invalid settings and a port in use, and what opening the remote log raises.
    """
    _ensure_local(settings)
    tls, stop = server_tls(settings), ended_by_signal()
    with RemoteLogContext.open(settings, wall_clock, store_options(settings), only_looks=True) as context:
        metrics = GatewayMetrics()
        health = Health(needs_of(context))
        end_metrics = serve_metrics_of(settings, number, metrics, health)
        counted = replace(context, storage=CountedStorage(context.storage, metrics.fetched))
        with RemoteLogReader(counted, local_may_be_hidden=True) as reader:
            server = StandaloneServer(context, reader, metrics, tls)
            try:
                await server.start()
                await serve_until(stop, health, on_ready)
                await server.stop()
            finally:
                end_metrics()


def _ensure_local(settings: Settings) -> None:
    """Raise ConfigurationError if other machines could connect without a login."""
    if settings.gateway_users_file is not None:
        return
    host = settings.gateway_listen_host or _THIS_MACHINE
    with suppress(ValueError):
        if ip_address(host).is_loopback:
            return
    if host != "localhost":
        raise ConfigurationError(
            f"gateway.listen.host is {host}, and nobody logs in: without brokers and gateway.users.file, the gateway "
            f"serves only this machine: set that file, or set gateway.listen.host to {_THIS_MACHINE}"
        )


class StandaloneServer:
    """The clients of one process. For one event loop."""

    def __init__(
        self, context: RemoteLogContext, reader: RemoteLogReader, metrics: GatewayMetrics, tls: ssl.SSLContext | None
    ) -> None:
        """Serve `context` through `reader`; clients connect with TLS if `tls` is set."""
        self._settings = settings = context.settings
        self._host = settings.gateway_listen_host or _THIS_MACHINE
        self._tls = tls
        node = Node(settings.gateway_advertised_host or self._host, settings.gateway_port)
        self._log = ServedLog.of(context, reader, metrics, node)
        idle_seconds = settings.gateway_connections_max_idle_ms / 1000
        self._connections = OpenConnections(settings.gateway_max_connections, idle_seconds, self._log.budget, metrics)
        self._numbers = count()
        self._server: asyncio.Server | None = None
        self._closing_idle: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Look at the topics, and listen. Raises ConfigurationError for a port in use, and as Catalog.topics."""
        await self._log.catalog.topics()
        self._server = await listen(self._accept, self._host, self._settings.gateway_port, self._tls)
        self._closing_idle = asyncio.get_running_loop().create_task(self._connections.close_idle())

    async def stop(self) -> None:
        """Accept no more, answer what clients have asked, and close; what takes too long is cut off."""
        if self._closing_idle is not None:
            self._closing_idle.cancel()
        if self._server is not None:
            self._server.close()
        await self._connections.drain(self._settings.gateway_shutdown_timeout_ms / 1000)

    def _accept(self) -> FrameProtocol:
        """Return the protocol of a connection that a client begins; with TLS it is open after the handshake."""

        def opened(connection: StandaloneConnection) -> StandaloneRequests:
            fetch = LogFetch(next(self._numbers), self._log, connection.memory)
            self._connections.add(connection)
            self._connections.refuse_excess(connection)
            return StandaloneRequests(self._log, fetch, connection, most, with_tls=self._tls is not None)

        most = self._settings.gateway_request_max_bytes
        largest = most if self._log.access is None else min(most, LARGEST_BEFORE_LOGIN)
        return StandaloneConnection(largest, opened, self._connections.remove, self._log.budget.account()).client
