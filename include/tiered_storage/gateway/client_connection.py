"""One client, and the connection to its broker: what goes from one to the other, in which order.

Requests go on as they come. A broker answers in their order; what is changed on the way back may take its time (remote
records), and later answers wait for it. While it does, the client is not read. Requests of the gateway's own go over
the same connection, with negative correlation ids, and their answers to whoever asked.

Nothing is read from a side while too much waits to be sent to the other.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from tiered_storage.errors import ClusterUnreachableError, MalformedAnswerError, TieredStorageError
from tiered_storage.gateway.allowed_apis import API_VERSIONS, PRODUCE
from tiered_storage.kafka_wire.connections.apis import Api, ApiVersions
from tiered_storage.kafka_wire.connections.frames import (
    LARGEST_MESSAGE,
    SIZE_BYTES,
    Cursor,
    decode_answer,
    encode_request,
    request,
)
from tiered_storage.kafka_wire.server.frame_protocol import FrameProtocol, Piece
from tiered_storage.kafka_wire.server.request_header import RequestHeader, expects_answer

_log = logging.getLogger(__name__)

Changed = list[Piece] | Coroutine[Any, Any, list[Piece]]
Change = Callable[[memoryview], Changed]
"""Takes the broker's answer, and returns what the client gets instead."""
CLIENT_NAME: Final = "remote-log-gateway"
MOST_WAITING: Final = 64
"""Requests of a client that may wait for answers; brokers answer a connection's requests one after the other."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """A request whose answer comes next: the client's, with a `change` or none, or one that the gateway `asked`."""

    correlation_id: int
    api: Api
    change: Change | None = None
    asked: asyncio.Future[memoryview] | None = None


class ClientConnection:
    """A client's connection and its broker's. For one event loop."""

    def __init__(
        self,
        largest_request: int,
        on_open: Callable[[ClientConnection], Callable[[memoryview], None]],
        on_end: Callable[[ClientConnection], None],
    ) -> None:
        """Call `on_open` once the client is connected: it connects the broker, and returns what takes each request.

        Call `on_end` once, when one of the two is gone.
        """
        self.client = FrameProtocol(_ClientSide(self), largest_request)
        self.broker = FrameProtocol(_BrokerSide(self), LARGEST_MESSAGE)
        self.versions: ApiVersions | None = None
        """What the broker offers; None: nobody asked yet."""
        self._take: Callable[[memoryview], None] | None = None
        self._on_open = on_open
        self._on_end = on_end
        self._pending: deque[_Pending] = deque()
        self._ready: deque[list[Piece] | asyncio.Task[list[Piece]]] = deque()
        self._last_own_id = 0
        self._is_full = False
        self._is_ending = False
        self._has_ended = False
        # Until the broker is connected.
        self.client.hold()

    @property
    def has_ended(self) -> bool:
        """Whether one side is gone, and the other with it."""
        return self._has_ended

    # ------------------------------------------------------------------------------------------------- what is sent

    def forward(self, frame: memoryview, header: RequestHeader, change: Change | None = None) -> None:
        """Send a client's request to the broker; its answer goes through `change`. Raises MalformedAnswerError."""
        if header.api.key != PRODUCE.key or expects_answer(header, frame):
            self._pending.append(_Pending(header.correlation_id, header.api, change))
        self.broker.send([frame])
        self._hold_if_full()

    def reply(self, frame: bytes) -> None:
        """Answer a client's request without the broker, after all answers that are due before."""
        if not self._pending and not self._ready:
            self.client.send([frame])
            return
        raise MalformedAnswerError("a request that only the gateway can answer came among others")

    async def version(self, api: Api) -> int:
        """Return the version of `api` that broker and gateway share. Raises ClusterRefusedError."""
        if self.versions is None:
            answer = await self.ask(API_VERSIONS, request(API_VERSIONS, 0))
            self.versions = ApiVersions.of(self.broker.peer, answer)
        return self.versions.choose(api)

    async def ask(
        self, api: Api, message: Any, decode: Callable[[memoryview, Api, int, int], Any] = decode_answer
    ) -> Any:
        """Send kio's request `message` of the gateway's own, and return what `decode` makes of its answer.

        Raises ClusterUnreachableError if the connection ends first, MalformedAnswerError.
        """
        if self._has_ended:
            raise ClusterUnreachableError("the client's connection is closed")
        self._last_own_id -= 1
        own_id = self._last_own_id
        asked: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self._pending.append(_Pending(own_id, api, asked=asked))
        self.broker.send([encode_request(message, own_id, CLIENT_NAME)])
        frame = await asked
        return decode(frame[SIZE_BYTES:], api, message.__version__, own_id)

    # --------------------------------------------------------------------------------------------------- the two sides

    def opened(self) -> None:
        """Take over a client."""
        self._take = self._on_open(self)

    def requested(self, frame: memoryview) -> None:
        """Take a client's request. Raises MalformedAnswerError."""
        if not self._is_ending and self._take is not None:
            self._take(frame)

    def answered(self, frame: memoryview) -> None:
        """Take a broker's answer. Raises MalformedAnswerError if it answers another request than the one due."""
        if not self._pending:
            raise MalformedAnswerError(f"{self.broker.peer}: an answer came that nobody asked for")
        due = self._pending.popleft()
        found = Cursor(frame, SIZE_BYTES).int32()
        if found != due.correlation_id:
            raise MalformedAnswerError(
                f"{self.broker.peer}: the answer to {due.api} has correlation id {found}, not {due.correlation_id}"
            )
        if due.asked is not None:
            if not due.asked.done():
                due.asked.set_result(frame)
            return
        changed: Changed = [frame] if due.change is None else due.change(frame)
        if isinstance(changed, list):
            self._deliver(changed)
        else:
            self._deliver_later(changed)
        self._hold_if_full()
        self._end_if_idle()

    def side_lost(self, other: FrameProtocol, who: str, reason: Exception | None) -> None:
        """End both connections, as one of them ended; what waits to be sent to the other is sent."""
        if reason is not None and not self._has_ended:
            level = logging.WARNING if isinstance(reason, TieredStorageError) else logging.DEBUG
            _log.log(level, "the connection of %s ended: %s", who, reason)
        other.close()
        if self._has_ended:
            return
        self._has_ended = True
        for each in self._pending:
            if each.asked is not None and not each.asked.done():
                each.asked.set_exception(ClusterUnreachableError("the client's connection ended"))
        for waiting in self._ready:
            if isinstance(waiting, asyncio.Task):
                waiting.cancel()
        self._pending.clear()
        self._ready.clear()
        self._on_end(self)

    def drain(self) -> None:
        """Take no further request; close when all that came before are answered."""
        self._is_ending = True
        self.client.hold()
        self._end_if_idle()

    def abort(self) -> None:
        """Close both connections at once."""
        self.client.abort()
        self.broker.abort()

    # -------------------------------------------------------------------------------------------------------- answers

    def _deliver(self, pieces: list[Piece]) -> None:
        if self._ready:
            self._ready.append(pieces)
        else:
            self.client.send(pieces)

    def _deliver_later(self, changing: Coroutine[Any, Any, list[Piece]]) -> None:
        task = asyncio.get_running_loop().create_task(changing)
        self._ready.append(task)
        self.client.hold()
        task.add_done_callback(self._changed)

    def _changed(self, _: asyncio.Task[list[Piece]]) -> None:
        """Send what is ready, up to the first answer that is not."""
        self.client.release()
        while self._ready and not self._has_ended:
            first = self._ready[0]
            if isinstance(first, asyncio.Task):
                if not first.done():
                    return
                failure = first.exception() if not first.cancelled() else asyncio.CancelledError()
                if failure is not None:
                    self._failed(failure)
                    return
                first = first.result()
            self._ready.popleft()
            self.client.send(first)
        self._end_if_idle()

    def _failed(self, failure: BaseException) -> None:
        """Close, as an answer cannot be given; the client connects again."""
        expected = isinstance(failure, TieredStorageError | asyncio.CancelledError)
        _log.log(
            logging.WARNING if expected else logging.ERROR,
            "the connection of %s is closed, as an answer cannot be given: %s",
            self.client.peer, failure, exc_info=None if expected else failure,
        )  # fmt: skip
        self.abort()

    def _hold_if_full(self) -> None:
        is_full = len(self._pending) >= MOST_WAITING
        if is_full and not self._is_full:
            self.client.hold()
        elif self._is_full and not is_full:
            self.client.release()
        self._is_full = is_full

    def _end_if_idle(self) -> None:
        if self._is_ending and not self._pending and not self._ready:
            self.client.close()
            self.broker.close()


class _ClientSide:
    """What happens on the client's connection."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    def opened(self) -> None:
        """Now a broker is needed."""
        self._connection.opened()

    def frame_received(self, frame: memoryview) -> None:
        self._connection.requested(frame)

    def writing_paused(self) -> None:
        self._connection.broker.hold()

    def writing_resumed(self) -> None:
        self._connection.broker.release()

    def lost(self, reason: Exception | None) -> None:
        self._connection.side_lost(self._connection.broker, "a client", reason)


class _BrokerSide:
    """What happens on the broker's connection."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    def opened(self) -> None:
        """Now requests can go on."""
        self._connection.client.release()

    def frame_received(self, frame: memoryview) -> None:
        self._connection.answered(frame)

    def writing_paused(self) -> None:
        self._connection.client.hold()

    def writing_resumed(self) -> None:
        self._connection.client.release()

    def lost(self, reason: Exception | None) -> None:
        self._connection.side_lost(self._connection.client, "a broker", reason)
