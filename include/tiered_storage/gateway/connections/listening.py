"""A port of the gateway, and the connections that clients opened to it: with brokers and without.

Every process may share a port with others (SO_REUSEPORT): the kernel spreads the connections.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Final, Protocol

from tiered_storage.errors import ConfigurationError, MalformedAnswerError, TieredStorageError
from tiered_storage.gateway.limits import idle_connections
from tiered_storage.gateway.limits.idle_connections import IdleConnections
from tiered_storage.gateway.limits.memory_budget import MemoryBudget
from tiered_storage.gateway.operation.metrics import GatewayMetrics
from tiered_storage.kafka_wire.server.frame_protocol import FrameProtocol

_log = logging.getLogger(__name__)

_BACKLOG: Final = 512
_IDLE_CHECK_SECONDS: Final = 1.0
_HANDSHAKE_SECONDS: Final = 10.0
"""Before TLS is agreed on, a connection does not count among those of gateway.max.connections."""


async def listen(
    accept: Callable[[], FrameProtocol], host: str, port: int, tls: ssl.SSLContext | None
) -> asyncio.Server:
    """Listen at `host` and `port`; `accept` makes each connection's protocol. Raises ConfigurationError."""
    try:
        return await asyncio.get_running_loop().create_server(
            accept,
            host,
            port,
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else _HANDSHAKE_SECONDS,
            backlog=_BACKLOG,
            reuse_port=True,
        )
    except OSError as error:
        raise ConfigurationError(
            f"the gateway cannot listen at {host}:{port} ({error.strerror or error}): set another gateway.port or "
            "gateway.listen.host"
        ) from error


def log_end(reason: Exception | None, *, of_client: bool) -> None:
    """Log why a client's connection ended, or a broker's, as a warning if an operator has to look at it.

    A reset is ordinary. Anybody who reaches the port can send an invalid request: OpenConnections counts it.
    """
    if reason is None:
        return
    level = logging.DEBUG
    if isinstance(reason, TieredStorageError):
        level = logging.INFO if of_client and isinstance(reason, MalformedAnswerError) else logging.WARNING
    _log.log(level, "the connection of %s ended: %s", "a client" if of_client else "a broker", reason)


class Connection(idle_connections.Connection, Protocol):
    """A client's connection."""

    def drain(self) -> None:
        """Take no further request; close once those that came before are answered."""


class OpenConnections:
    """The connections that clients of one process have open. For one event loop."""

    def __init__(self, most: int, idle_seconds: float, budget: MemoryBudget, metrics: GatewayMetrics) -> None:
        """Refuse more than `most`; close what is idle for `idle_seconds`, sooner if others wait for memory."""
        self._most = most
        self._idle_connections = IdleConnections(idle_seconds)
        self._budget = budget
        self._metrics = metrics
        self._on_end: dict[Connection, Callable[[], None]] = {}
        self._one_ended = asyncio.Event()
        self._is_stopping = False

    def add(self, connection: Connection, on_end: Callable[[], None] = lambda: None) -> None:
        """Count `connection` in; call `on_end` once it has ended."""
        self._on_end[connection] = on_end
        self._metrics.connections.set(len(self._on_end))

    def remove(self, connection: Connection) -> None:
        """Count a connection out that has ended."""
        if isinstance(connection.client.failure, MalformedAnswerError):
            self._metrics.refused.labels("invalid").inc()
        self._on_end.pop(connection, lambda: None)()
        self._metrics.connections.set(len(self._on_end))
        self._one_ended.set()

    def refuse_excess(self, connection: Connection) -> bool:
        """Close `connection` if too many are open or the process is about to end, and return whether it was closed."""
        is_refused = len(self._on_end) > self._most or self._is_stopping
        if is_refused:
            self._metrics.refused.labels("limit").inc()
            connection.abort()
        return is_refused

    async def close_idle(self) -> None:
        """Close connections that are idle too long, until `drain` is called."""
        loop = asyncio.get_running_loop()
        while not self._is_stopping:
            await asyncio.sleep(_IDLE_CHECK_SECONDS)
            closed = self._idle_connections.close_idle(self._on_end, loop.time(), is_short=self._budget.is_short)
            self._metrics.refused.labels("idle").inc(closed)

    async def drain(self, seconds: float) -> None:
        """Answer what clients have asked, then close all connections; after `seconds`, close at once what is left."""
        self._is_stopping = True
        for connection in list(self._on_end):
            connection.drain()
        try:
            async with asyncio.timeout(seconds):
                while self._on_end:
                    self._one_ended.clear()
                    await self._one_ended.wait()
        except TimeoutError:
            _log.warning(
                "closing %s connections that are still busy after gateway.shutdown.timeout.ms", len(self._on_end)
            )
            for connection in list(self._on_end):
                connection.abort()
