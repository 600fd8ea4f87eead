"""One client, and the connection to its broker: what each sends to the other, in which order.

Requests are forwarded in the order they arrive. The broker answers in that order; changing an answer may take time
(remote records), and later answers wait for it. The gateway's own requests use the same connection, with negative
correlation ids.

A connection holds the records of one Fetch: the next Fetch waits until that one is answered and sent. A login waits
until every earlier request is answered, since a broker accepts nothing between its messages. A waiting request delays
all later ones, and meanwhile the gateway stops reading from the client. It also stops reading from one side while too
many bytes wait to be sent to the other, or while the process has no memory for the next frame.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tiered_storage.errors import ClusterUnreachableError, MalformedAnswerError, TieredStorageError
from tiered_storage.gateway.limits.memory_budget import MemoryAccount
from tiered_storage.kafka_wire.connections.apis import API_VERSIONS, FETCH, SASL_HANDSHAKE, Api, ApiVersions
from tiered_storage.kafka_wire.connections.frames import (
    LARGEST_MESSAGE,
    SIZE_BYTES,
    Cursor,
    decode_answer,
    encode_request,
    request,
)
from tiered_storage.kafka_wire.server.frame_protocol import FrameProtocol, memory_of
from tiered_storage.kafka_wire.server.request_header import PRODUCE_KEY, RequestHeader, expects_answer
from tiered_storage.kafka_wire.server.send_queue import Buffer

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Filled:
    """What a client gets, with `memory` bytes of its connection's account beside those of the broker's answer.

    After it, nothing is taken from the client for `mute_ms`.
    """

    buffers: list[Buffer]
    memory: int
    mute_ms: int = 0


Changed = list[Buffer] | Coroutine[Any, Any, list[Buffer] | Filled]
Change = Callable[[memoryview], Changed]
"""Takes the broker's answer, and returns what the client gets instead."""
CLIENT_NAME: Final = "remote-log-gateway"
MOST_WAITING: Final = 64
"""Requests of a client that may wait for answers; brokers answer a connection's requests one after the other."""
LARGEST_BEFORE_LOGIN: Final = 512 << 10
"""Bytes of a request of a client that must log in first: as Kafka's sasl.server.max.receive.size."""


class Client(Protocol):
    """Takes a client's requests."""

    def take(self, frame: memoryview) -> bool:
        """Take a request; return False if it must wait for earlier ones. Raises MalformedAnswerError to refuse it."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """A request whose answer comes next: the client's, with a `change` or none, or one that the gateway `asked`."""

    correlation_id: int
    api: Api
    change: Change | None = None
    asked: asyncio.Future[memoryview] | None = None


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a client gets for a request of an API, now or once the task has ended; it holds `memory` bytes."""

    api: Api
    content: list[Buffer] | asyncio.Task[list[Buffer] | Filled]
    memory: int


class ClientConnection:
    """A client's connection and its broker's. For one event loop."""

    def __init__(
        self,
        largest_request: int,
        on_open: Callable[[ClientConnection], Client],
        on_end: Callable[[ClientConnection], None],
        memory: MemoryAccount,
        *,
        with_login: bool = False,
    ) -> None:
        """Call `on_open` once the client is connected: it connects the broker, and returns what takes each request.

        Call `on_end` once, when both are gone. All that either sends is counted in `memory`. With `with_login`,
        requests are small until the client is logged in.
        """
        largest = min(largest_request, LARGEST_BEFORE_LOGIN) if with_login else largest_request
        self.client = FrameProtocol(_ClientSide(self), largest, memory)
        self.broker = FrameProtocol(_BrokerSide(self), LARGEST_MESSAGE, memory)
        self.memory = memory
        self.versions: ApiVersions | None = None
        """What the broker offers; None: nobody asked yet."""
        self._largest_request = largest_request
        self._requests: Client | None = None
        self._on_open = on_open
        self._on_end = on_end
        self._arrived: deque[memoryview] = deque()
        self._pending: deque[_Pending] = deque()
        self._ready: deque[_Answer] = deque()
        self._waiting = 0
        self._fetches = 0
        self._last_own_id = 0
        self._muted: asyncio.TimerHandle | None = None
        self._is_full = False
        self._is_ending = False
        self._has_ended = False
        self._is_over = False
        # Until the broker is connected.
        self.client.hold()

    @property
    def carried(self) -> int:
        """How many bytes have gone over both connections so far."""
        return self.client.carried + self.broker.carried

    @property
    def has_ended(self) -> bool:
        """Whether one side is gone, and the other with it."""
        return self._has_ended

    # ------------------------------------------------------------------------------------------------- what is sent

    def can_take(self, header: RequestHeader) -> bool:
        """Return whether a client's request can go to the broker now."""
        if self._muted is not None:
            return False
        if header.api.key == SASL_HANDSHAKE.key:
            return not self._pending and not self._ready
        if header.api.key == FETCH.key and (self._fetches or not self.client.is_writable):
            return False
        return self._waiting < MOST_WAITING

    def forward(
        self, frame: memoryview, header: RequestHeader, change: Change | None = None, sent: Buffer | None = None
    ) -> None:
        """Send a client's request to the broker, or `sent` in its place; its answer goes through `change`.

        Raises MalformedAnswerError.
        """
        if header.api.key != PRODUCE_KEY or expects_answer(header, frame):
            self._pending.append(_Pending(header.correlation_id, header.api, change))
            self._waiting += 1
            self._fetches += header.api.key == FETCH.key
        self.broker.send([frame if sent is None else sent], memory_of(frame))

    def logged_in(self) -> None:
        """Take requests of all sizes from now on."""
        self.client.largest = self._largest_request

    def reply(self, answer: bytes, asked: memoryview) -> None:
        """Answer the request `asked` without the broker. Raises MalformedAnswerError if others are due before."""
        if not self._pending and not self._ready:
            self.client.send([answer], memory_of(asked))
            return
        raise MalformedAnswerError(
            "ApiVersions came in an unknown version while other requests waited for answers: the client must connect "
            "again"
        )

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
        self._requests = self._on_open(self)

    def requested(self, frame: memoryview) -> None:
        """Take a client's request."""
        if not self._is_ending:
            self._arrived.append(frame)
            self.take_arrived()

    def take_arrived(self) -> None:
        """Take the requests that wait for nothing any more."""
        try:
            while self._arrived and self._requests is not None:
                frame = self._arrived.popleft()
                if not self._requests.take(frame):
                    self._arrived.appendleft(frame)
                    break
        except TieredStorageError as error:
            self._arrived.clear()
            self.client.close(error)
        is_full = bool(self._arrived)
        if is_full and not self._is_full:
            self.client.hold()
        elif self._is_full and not is_full:
            self.client.release()
        self._is_full = is_full

    def answered(self, frame: memoryview) -> None:
        """Take a broker's answer. Raises MalformedAnswerError if it answers another request than the one due."""
        if not self._pending:
            raise MalformedAnswerError(f"{self.broker.peer}: the broker sent an answer without a request")
        due = self._pending.popleft()
        found = Cursor(frame, SIZE_BYTES).int32()
        if found != due.correlation_id:
            raise MalformedAnswerError(
                f"{self.broker.peer}: the answer to {due.api} has correlation id {found}, not {due.correlation_id}"
            )
        if due.asked is not None:
            self.memory.give(memory_of(frame))
            if not due.asked.done():
                due.asked.set_result(frame)
        else:
            changed: Changed = [frame] if due.change is None else due.change(frame)
            self._deliver(due.api, changed, memory_of(frame))
        self._proceed()

    def side_lost(self, other: FrameProtocol, who: str, reason: Exception | None) -> None:
        """End both connections, as one of them ended; what waits to be sent to the other is sent."""
        if not self._has_ended:
            self._has_ended = True
            if reason is not None:
                level = logging.WARNING if isinstance(reason, TieredStorageError) else logging.DEBUG
                _log.log(level, "the connection of %s ended: %s", who, reason)
            self._give_up()
            if not other.is_gone:
                other.close()
        if other.is_gone and not self._is_over:
            self._is_over = True
            self.memory.close()
            self._on_end(self)

    def _give_up(self) -> None:
        """Answer nothing any more."""
        if self._muted is not None:
            self._muted.cancel()
        for each in self._pending:
            if each.asked is not None and not each.asked.done():
                each.asked.set_exception(ClusterUnreachableError("the client's connection ended"))
        for waiting in self._ready:
            if isinstance(waiting.content, asyncio.Task):
                waiting.content.cancel()
        self._arrived.clear()
        self._pending.clear()
        self._ready.clear()

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

    def _deliver(self, api: Api, changed: Changed, memory: int) -> None:
        if isinstance(changed, list):
            self._ready.append(_Answer(api, changed, memory))
            return
        task = asyncio.get_running_loop().create_task(changed)
        self._ready.append(_Answer(api, task, memory))
        task.add_done_callback(self._changed)

    def _changed(self, _: asyncio.Task[list[Buffer] | Filled]) -> None:
        try:
            self._proceed()
        except Exception as error:  # noqa: BLE001 - a connection that cannot continue must not hang
            self.failed(error)

    def _proceed(self) -> None:
        """Send what is ready, up to the first answer that is not, and take the requests that waited for it."""
        while self._ready and not self._has_ended:
            api, content, memory = self._ready[0].api, self._ready[0].content, self._ready[0].memory
            if isinstance(content, asyncio.Task):
                if not content.done():
                    break
                failure = content.exception() if not content.cancelled() else asyncio.CancelledError()
                if failure is not None:
                    self.failed(failure)
                    return
                result = content.result()
                if isinstance(result, Filled):
                    memory += result.memory
                    self._mute(result.mute_ms)
                content = result.buffers if isinstance(result, Filled) else result
            self._ready.popleft()
            self._waiting -= 1
            self._fetches -= api.key == FETCH.key
            self.client.send(content, memory)
        if not self._has_ended:
            self.take_arrived()
            self._end_if_idle()

    def _mute(self, milliseconds: int) -> None:
        """Take nothing from the client for a time, whatever it sends: a quota asks for that (KIP-219)."""
        if milliseconds:
            self._muted = asyncio.get_running_loop().call_later(milliseconds / 1000, self._unmute)

    def _unmute(self) -> None:
        self._muted = None
        self.take_arrived()

    def failed(self, failure: BaseException) -> None:
        """Close, as an answer cannot be given; the client connects again."""
        expected = isinstance(failure, TieredStorageError | asyncio.CancelledError)
        _log.log(
            logging.WARNING if expected else logging.ERROR,
            "the connection of %s is closed, as an answer cannot be given: %s",
            self.client.peer, failure, exc_info=None if expected else failure,
        )  # fmt: skip
        self.abort()

    def _end_if_idle(self) -> None:
        if self._is_ending and not (self._arrived or self._pending or self._ready):
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
        self._connection.take_arrived()

    def lost(self, reason: Exception | None) -> None:
        self._connection.side_lost(self._connection.broker, "a client", reason)


class _BrokerSide:
    """What happens on the broker's connection."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    def opened(self) -> None:
        """Now requests can continue."""
        self._connection.client.release()

    def frame_received(self, frame: memoryview) -> None:
        self._connection.answered(frame)

    def writing_paused(self) -> None:
        self._connection.client.hold()

    def writing_resumed(self) -> None:
        self._connection.client.release()

    def lost(self, reason: Exception | None) -> None:
        self._connection.side_lost(self._connection.client, "a broker", reason)
