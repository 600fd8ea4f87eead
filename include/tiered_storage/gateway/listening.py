"""A port of the gateway, and the end of its connections: with brokers and without.

Every process may share a port with others (SO_REUSEPORT): the kernel spreads the connections.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Collection
from typing import Final, Protocol

from tiered_storage.errors import ConfigurationError
from tiered_storage.kafka_wire.server.frame_protocol import FrameProtocol

_log = logging.getLogger(__name__)

_BACKLOG: Final = 512


class Connection(Protocol):
    """A client's connection."""

    def drain(self) -> None:
        """Take no further request; close once those that came before are answered."""

    def abort(self) -> None:
        """Close at once."""


async def listen(
    accept: Callable[[], FrameProtocol], host: str, port: int, tls: ssl.SSLContext | None
) -> asyncio.Server:
    """Listen at `host` and `port`; `accept` makes each connection's protocol. Raises ConfigurationError."""
    try:
        return await asyncio.get_running_loop().create_server(
            accept, host, port, ssl=tls, backlog=_BACKLOG, reuse_port=True
        )
    except OSError as error:
        raise ConfigurationError(
            f"the gateway cannot listen at {host}:{port} ({error.strerror or error}): set another gateway.port or "
            "gateway.listen.host"
        ) from error


async def drained(connections: Collection[Connection], one_ended: asyncio.Event, seconds: float) -> None:
    """Answer what clients have asked, then close `connections`; after `seconds`, close at once what is left.

    `connections` shrinks as they end, and `one_ended` is set each time.
    """
    for connection in list(connections):
        connection.drain()
    try:
        async with asyncio.timeout(seconds):
            while connections:
                one_ended.clear()
                await one_ended.wait()
    except TimeoutError:
        _log.warning("closing %s connections that are still busy after gateway.shutdown.timeout.ms", len(connections))
        for connection in list(connections):
            connection.abort()
