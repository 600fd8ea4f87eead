"""What a connection owes to its client: the answers of the broker, in the order of the requests.

The broker answers in the order in which it was asked. Changing an answer may take time (remote records), and later ones
wait for it. The gateway's own requests are answered between them; they have negative correlation ids.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from tiered_storage.errors import ClusterUnreachableError, MalformedAnswerError
from tiered_storage.kafka_wire.connections.apis import API_VERSIONS, FETCH, Api, ApiVersions
from tiered_storage.kafka_wire.connections.frames import SIZE_BYTES, decode_answer, encode_request, request
from tiered_storage.kafka_wire.server.frame_protocol import FrameProtocol
from tiered_storage.kafka_wire.server.send_queue import Buffer

CLIENT_NAME: Final = "remote-log-gateway"
_CORRELATION_ID: Final = struct.Struct(">i")
"""After the size of a frame; no frame is shorter."""


@dataclass(frozen=True, slots=True)
class Filled:
    """An answer for the client, with `memory` bytes of its connection's account besides those of the broker's answer.

    After it, nothing is taken from the client for `mute_ms`.
    """

    buffers: list[Buffer]
    memory: int
    mute_ms: int = 0


Changed = list[Buffer] | Coroutine[Any, Any, list[Buffer] | Filled]
Change = Callable[[memoryview], Changed]
"""Takes the broker's answer, and returns the client's."""
Changing = asyncio.Task[list[Buffer] | Filled]


@dataclass(frozen=True, slots=True)
class Expected:
    """A request whose answer comes next: the client's, with a `change` or none, or one that the gateway `asked`."""

    correlation_id: int
    api: Api
    change: Change | None = None
    asked: asyncio.Future[memoryview] | None = None


@dataclass(slots=True)
class _Owed:
    """The answer to a client's request, ready or once its task has ended; it holds `memory` bytes."""

    api: Api
    content: Filled | Changing
    memory: int


class OwedAnswers:
    """The answers that are due on one connection. For one event loop."""

    def __init__(self, broker: FrameProtocol, on_changed: Callable[[Changing], None]) -> None:
        """Expect answers of `broker`; call `on_changed` each time that a change which took time has ended."""
        self.waiting = 0
        """Requests of the client that are not answered."""
        self.fetches = 0
        """The Fetches among the waiting requests."""
        self.is_over = False
        self._broker = broker
        self._on_changed = on_changed
        self._expected: deque[Expected] = deque()
        self._owed: deque[_Owed] = deque()

    @property
    def is_empty(self) -> bool:
        """Whether all that was asked is answered, by the broker and to the client."""
        return not (self._expected or self._owed)

    def expect(self, correlation_id: int, api: Api, change: Change | None) -> None:
        """Expect the broker's answer to a client's request; it goes through `change`."""
        self._expected.append(Expected(correlation_id, api, change))
        self.waiting += 1
        self.fetches += api.key == FETCH.key

    def expect_own(self, correlation_id: int, api: Api) -> asyncio.Future[memoryview]:
        """Expect the broker's answer to a request of the gateway's own, and return what gets it.

        Raises ClusterUnreachableError if the connection is closed; the future does so if it ends first.
        """
        if self.is_over:
            raise ClusterUnreachableError("the client's connection is closed")
        asked: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self._expected.append(Expected(correlation_id, api, asked=asked))
        return asked

    def expected(self, frame: memoryview) -> Expected:
        """Return the request that a broker answers. Raises MalformedAnswerError if it is not the one that is due."""
        if not self._expected:
            raise MalformedAnswerError(f"{self._broker.peer}: the broker sent an answer without a request")
        due = self._expected.popleft()
        (found,) = _CORRELATION_ID.unpack_from(frame, SIZE_BYTES)
        if found != due.correlation_id:
            raise MalformedAnswerError(
                f"{self._broker.peer}: the answer to {due.api} has correlation id {found}, not {due.correlation_id}"
            )
        return due

    def owe(self, api: Api, changed: Changed, memory: int) -> None:
        """Owe the client an answer, after those that it is owed already; the broker's holds `memory` bytes."""
        if isinstance(changed, list):
            self._owed.append(_Owed(api, Filled(changed, memory), 0))
            return
        task = asyncio.get_running_loop().create_task(changed)
        self._owed.append(_Owed(api, task, memory))
        task.add_done_callback(self._on_changed)

    def next(self) -> Filled | BaseException | None:
        """Return what the client gets next, None if that is not ready, or the failure that leaves it without."""
        if not self._owed:
            return None
        owed = self._owed[0]
        content = owed.content
        if isinstance(content, asyncio.Task):
            if not content.done():
                return None
            failure = asyncio.CancelledError() if content.cancelled() else content.exception()
            if failure is not None:
                return failure
            found = content.result()
            more, mute_ms = (found.memory, found.mute_ms) if isinstance(found, Filled) else (0, 0)
            content = Filled(found.buffers if isinstance(found, Filled) else found, owed.memory + more, mute_ms)
        self._owed.popleft()
        self.waiting -= 1
        self.fetches -= owed.api.key == FETCH.key
        return content

    def give_up(self) -> None:
        """Answer nothing any more, as the connection ends."""
        self.is_over = True
        for each in self._expected:
            if each.asked is not None and not each.asked.done():
                each.asked.set_exception(ClusterUnreachableError("the client's connection ended"))
        for owed in self._owed:
            if isinstance(owed.content, asyncio.Task):
                owed.content.cancel()
        self._expected.clear()
        self._owed.clear()


class OwnRequests:
    """The requests of the gateway's own on one client's connection, so with the client's rights. For one event loop."""

    def __init__(self, broker: FrameProtocol, owed: OwedAnswers) -> None:
        """Ask `broker`; its answers come among those of `owed`."""
        self.versions: ApiVersions | None = None
        """The API versions that the broker offers; None: not asked yet."""
        self._broker = broker
        self._owed = owed
        self._last_id = 0

    async def version(self, api: Api) -> int:
        """Return the version of `api` that broker and gateway share. Raises ClusterRefusedError."""
        if self.versions is None:
            answer = await self.ask(API_VERSIONS, request(API_VERSIONS, 0))
            self.versions = ApiVersions.of(self._broker.peer, answer)
        return self.versions.choose(api)

    async def ask(
        self, api: Api, message: Any, decode: Callable[[memoryview, Api, int, int], Any] = decode_answer
    ) -> Any:
        """Send kio's request `message`, and return what `decode` makes of its answer.

        Raises ClusterUnreachableError if the connection ends first, MalformedAnswerError.
        """
        self._last_id -= 1
        own_id = self._last_id
        asked = self._owed.expect_own(own_id, api)
        self._broker.send([encode_request(message, own_id, CLIENT_NAME)])
        frame = await asked
        return decode(frame[SIZE_BYTES:], api, message.__version__, own_id)
