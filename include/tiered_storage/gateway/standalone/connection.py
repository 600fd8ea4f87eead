"""One client: its requests are answered one after the other, as a broker answers them.

While one is answered, or its answer waits to be sent, the client is not read. So a connection holds one answer, and the
few small requests that arrived with the one before; all that is large is counted in the memory of the process.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from tiered_storage.errors import TieredStorageError
from tiered_storage.gateway.connections.listening import log_end
from tiered_storage.gateway.connections.owed_answers import Filled
from tiered_storage.gateway.limits.memory_budget import MemoryAccount
from tiered_storage.kafka_wire.server.frame_protocol import FrameProtocol, memory_of
from tiered_storage.kafka_wire.server.send_queue import Buffer

_log = logging.getLogger(__name__)


class Answers(Protocol):
    """Answers the requests of one client."""

    @property
    def is_over(self) -> bool:
        """Whether the connection ends once the last answer is sent."""

    async def answer(self, frame: memoryview) -> list[Buffer] | Filled:
        """Return the answer to a request, nothing if it gets none. TieredStorageError ends the connection."""

    def close(self) -> None:
        """End what the client left open."""


class StandaloneConnection:
    """A client's connection. For one event loop."""

    def __init__(
        self,
        largest_request: int,
        on_open: Callable[[StandaloneConnection], Answers],
        on_end: Callable[[StandaloneConnection], None],
        memory: MemoryAccount,
    ) -> None:
        """Call `on_open` once the client is connected: it returns what answers it. Call `on_end` once at its end."""
        self.client = FrameProtocol(self, largest_request, memory)
        self.memory = memory
        self._on_open = on_open
        self._on_end = on_end
        self._answers: Answers | None = None
        self._arrived: deque[memoryview] = deque()
        self._answering: asyncio.Task[None] | None = None
        self._is_writable = asyncio.Event()
        self._is_writable.set()
        self._is_ending = False

    @property
    def carried(self) -> int:
        """How many bytes have gone over the connection so far, both ways."""
        return self.client.carried

    def drain(self) -> None:
        """Take no further request; close once those that came before are answered."""
        self._is_ending = True
        if self._answering is None:
            self.client.close()

    def abort(self) -> None:
        """Close at once."""
        self.client.abort()

    # --------------------------------------------------------------------------------------- what the client does

    def opened(self) -> None:
        """Take over a client."""
        self._answers = self._on_open(self)

    def frame_received(self, frame: memoryview) -> None:
        """Take a request."""
        if self._is_ending:
            return
        self._arrived.append(frame)
        if self._answering is None and self._answers is not None:
            self.client.hold()
            self._answering = asyncio.get_running_loop().create_task(self._answer(self._answers))

    def writing_paused(self) -> None:
        """Answer nothing more until the client has read."""
        self._is_writable.clear()

    def writing_resumed(self) -> None:
        """Go on."""
        self._is_writable.set()

    def lost(self, reason: Exception | None) -> None:
        """End what is under way."""
        log_end(reason, of_client=True)
        self._arrived.clear()
        if self._answering is not None:
            self._answering.cancel()
        if self._answers is not None:
            self._answers.close()
        self.memory.close()
        self._on_end(self)

    async def _answer(self, answers: Answers) -> None:
        try:
            while self._arrived:
                frame = self._arrived.popleft()
                found = await answers.answer(frame)
                self.memory.give(memory_of(frame))
                buffers, held = (found.buffers, found.memory) if isinstance(found, Filled) else (found, 0)
                self.client.send(buffers, held)
                if answers.is_over:
                    self.client.close()
                    break
                await self._is_writable.wait()
        except TieredStorageError as error:
            self.client.close(error)
        except Exception as error:  # noqa: BLE001 - a connection that cannot continue must not hang
            _log.error("the connection of %s is closed, as an answer cannot be given", self.client.peer, exc_info=error)
            self.client.close(error)
        self._answering = None
        if self._is_ending:
            self.client.close()
        self.client.release()
