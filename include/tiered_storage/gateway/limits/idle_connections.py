"""Closes idle connections, and those whose client no longer reads.

Such a connection may hold memory: answers that its client does not read, a request that its broker does not read, or
half of one. While others wait for memory, it has less time, unless it waits for memory itself.

Source: released Kafka's connections.max.idle.ms.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Protocol

from tiered_storage.gateway.limits.memory_budget import MemoryAccount
from tiered_storage.kafka_wire.server.frame_protocol import FrameProtocol
from tiered_storage.kafka_wire.server.send_queue import LINGER_SECONDS

_log = logging.getLogger(__name__)


class Connection(Protocol):
    """A client's connection, and the one to its broker if it has one."""

    client: FrameProtocol
    memory: MemoryAccount

    @property
    def carried(self) -> int:
        """How many bytes have gone over it so far."""

    def abort(self) -> None:
        """Close all at once."""


class IdleConnections:
    """What went over each connection at the last look. For one event loop."""

    def __init__(self, idle_seconds: float) -> None:
        """Close what is idle for `idle_seconds`."""
        self._idle_seconds = idle_seconds
        self._seen: dict[Connection, tuple[int, float]] = {}

    def close_idle(self, connections: Collection[Connection], now: float, *, is_short: bool) -> int:
        """Close what has been idle too long at `now` (seconds), and return how many; `is_short`: others need memory."""
        seen, closed = {}, 0
        for each in connections:
            known = self._seen.get(each)
            since = known[1] if known is not None and known[0] == each.carried else now
            seen[each] = (each.carried, since)
            is_in_the_way = is_short and each.memory.held and not each.memory.is_waiting
            if now - since >= (min(self._idle_seconds, LINGER_SECONDS) if is_in_the_way else self._idle_seconds):
                _log.info(
                    "the connection of %s is closed: no byte went over it for %.0f seconds",
                    each.client.peer,
                    now - since,
                )
                each.abort()
                closed += 1
        self._seen = seen
        return closed
