"""One client, and the connection to its broker: what each sends to the other, in which order.

Requests are forwarded in the order they arrive, and `owed_answers` knows in which order their answers go back. A
connection holds the records of one Fetch: the next Fetch waits until that one is answered and sent. A login waits until
every earlier request is answered, since a broker accepts nothing between its messages. A waiting request delays all
later ones, and meanwhile the gateway stops reading from the client. It also stops reading from one side while too many
bytes wait to be sent to the other, or while the process has no memory for the next frame.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from tiered_storage.errors import MalformedAnswerError, TieredStorageError
from tiered_storage.gateway.connections.listening import log_end
from tiered_storage.gateway.connections.owed_answers import Change, Changing, OwedAnswers, OwnRequests
from tiered_storage.gateway.limits.memory_budget import MemoryAccount
from tiered_storage.kafka_wire.connections.apis import FETCH, SASL_HANDSHAKE
from tiered_storage.kafka_wire.connections.frames import LARGEST_MESSAGE
from tiered_storage.kafka_wire.server.frame_protocol import FrameProtocol, memory_of
from tiered_storage.kafka_wire.server.request_header import PRODUCE_KEY, RequestHeader, expects_answer
from tiered_storage.kafka_wire.server.send_queue import Buffer

_log = logging.getLogger(__name__)

MOST_WAITING: Final = 64
"""Requests of a client that may wait for answers; brokers answer a connection's requests one after the other."""
LARGEST_BEFORE_LOGIN: Final = 512 << 10
"""Bytes of a request of a client that must log in first: as Kafka's sasl.server.max.receive.size."""


class Client(Protocol):
    """Takes a client's requests."""

    def take(self, frame: memoryview) -> bool:
        """Take a request; return False if it must wait for earlier ones. Raises MalformedAnswerError to refuse it."""


class ArrivedRequests:
    """A queue of requests that arrived from a client and were not taken yet. For one event loop.

    While a request waits here, the gateway reads no more from the client.
    """

    def __init__(self, client: FrameProtocol) -> None:
        """Begin with an empty queue for the connection `client`."""
        self.is_muted = False
        """Whether a quota forbids to take requests for a time."""
        self.is_closed = False
        """Whether further requests are dropped."""
        self._client = client
        self._requests: Client | None = None
        self._frames: deque[memoryview] = deque()
        self._is_full = False
        self._unmuting: asyncio.TimerHandle | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no request waits."""
        return not self._frames

    def open(self, requests: Client) -> None:
        """Let `requests` take the queue's requests from now on."""
        self._requests = requests

    def add(self, frame: memoryview) -> None:
        """Queue a request, and take those that can be taken."""
        if not self.is_closed:
            self._frames.append(frame)
            self.take()

    def take(self) -> None:
        """Take requests in order, up to the first that must wait."""
        frames, requests = self._frames, self._requests
        try:
            while frames and requests is not None:
                frame = frames.popleft()
                if not requests.take(frame):
                    frames.appendleft(frame)
                    break
        except TieredStorageError as error:
            frames.clear()
            self._client.close(error)
        is_full = bool(frames)
        if is_full and not self._is_full:
            self._client.hold()
        elif self._is_full and not is_full:
            self._client.release()
        self._is_full = is_full

    def mute(self, milliseconds: int) -> None:
        """Take nothing from the client for a time, whatever it sends: a quota asks for that (KIP-219)."""
        self.is_muted = True
        self._unmuting = asyncio.get_running_loop().call_later(milliseconds / 1000, self._unmute)

    def _unmute(self) -> None:
        self.is_muted = False
        self.take()

    def give_up(self) -> None:
        """Drop the queue, because the connection ends."""
        if self._unmuting is not None:
            self._unmuting.cancel()
        self._frames.clear()


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

        Call `on_end` once, when both are closed. All that either sends is counted in `memory`. With `with_login`,
        requests are small until the client is logged in.
        """
        largest = min(largest_request, LARGEST_BEFORE_LOGIN) if with_login else largest_request
        self.client = FrameProtocol(_ClientSide(self), largest, memory)
        self.broker = FrameProtocol(_BrokerSide(self), LARGEST_MESSAGE, memory)
        self.memory = memory
        self._owed = OwedAnswers(self.broker, self._changed)
        self.own = OwnRequests(self.broker, self._owed)
        """The gateway's own questions to the broker."""
        self.arrived = ArrivedRequests(self.client)
        self._largest_request = largest_request
        self._on_open = on_open
        self._on_end = on_end
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
        """Whether one side is closed, and so the other."""
        return self._has_ended

    # ------------------------------------------------------------------------------------------------- what is sent

    def can_take(self, header: RequestHeader) -> bool:
        """Return whether a client's request can go to the broker now."""
        owed, key = self._owed, header.api.key
        if self.arrived.is_muted:
            return False
        if key == SASL_HANDSHAKE.key:
            return owed.is_empty
        if key == FETCH.key and (owed.fetches or not self.client.is_writable):
            return False
        return owed.waiting < MOST_WAITING

    def forward(
        self, frame: memoryview, header: RequestHeader, change: Change | None = None, sent: Buffer | None = None
    ) -> None:
        """Send a client's request to the broker, or `sent` in its place; its answer goes through `change`.

        Raises MalformedAnswerError.
        """
        if header.api.key != PRODUCE_KEY or expects_answer(header, frame):
            self._owed.expect(header.correlation_id, header.api, change)
        self.broker.send([frame if sent is None else sent], memory_of(frame))

    def logged_in(self) -> None:
        """Take requests of all sizes from now on."""
        self.client.largest = self._largest_request

    def reply(self, answer: bytes, asked: memoryview) -> None:
        """Answer the request `asked` without the broker. Raises MalformedAnswerError if others are due before."""
        if self._owed.is_empty:
            self.client.send([answer], memory_of(asked))
            return
        raise MalformedAnswerError(
            "ApiVersions came in an unknown version while other requests waited for answers: the client must connect "
            "again"
        )

    # --------------------------------------------------------------------------------------------------- the two sides

    def opened(self) -> None:
        """Take over a client."""
        self.arrived.open(self._on_open(self))

    def answered(self, frame: memoryview) -> None:
        """Take a broker's answer. Raises MalformedAnswerError if it answers another request than the one due."""
        due = self._owed.expected(frame)
        if due.asked is not None:
            self.memory.give(memory_of(frame))
            if not due.asked.done():
                due.asked.set_result(frame)
        else:
            self._owed.owe(due.api, [frame] if due.change is None else due.change(frame), memory_of(frame))
        self._proceed()

    def side_lost(self, other: FrameProtocol, reason: Exception | None) -> None:
        """End both connections, as one of them ended; what waits to be sent to the other is sent."""
        if not self._has_ended:
            self._has_ended = True
            log_end(reason, of_client=other is self.broker)
            self._owed.give_up()
            self.arrived.give_up()
            if not other.is_gone:
                other.close()
        if other.is_gone and not self._is_over:
            self._is_over = True
            self.memory.close()
            self._on_end(self)

    def drain(self) -> None:
        """Take no further request; close when all that came before are answered."""
        self.arrived.is_closed = True
        self.client.hold()
        self._end_if_idle()

    def abort(self) -> None:
        """Close both connections at once."""
        self.client.abort()
        self.broker.abort()

    # -------------------------------------------------------------------------------------------------------- answers

    def _changed(self, _: Changing) -> None:
        try:
            self._proceed()
        except Exception as error:  # noqa: BLE001 - a connection that cannot continue must not hang
            self.failed(error)

    def _proceed(self) -> None:
        """Send what is ready, up to the first answer that is not, and take the requests that waited for it."""
        while not self._has_ended and (found := self._owed.next()) is not None:
            if isinstance(found, BaseException):
                self.failed(found)
                return
            if found.mute_ms:
                self.arrived.mute(found.mute_ms)
            self.client.send(found.buffers, found.memory)
        if not self._has_ended:
            self.arrived.take()
            self._end_if_idle()

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
        if self.arrived.is_closed and self.arrived.is_empty and self._owed.is_empty:
            self.client.close()
            self.broker.close()


class _ClientSide:
    """Handles events of the client's connection."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    def opened(self) -> None:
        """Now a broker is needed."""
        self._connection.opened()

    def frame_received(self, frame: memoryview) -> None:
        self._connection.arrived.add(frame)

    def writing_paused(self) -> None:
        self._connection.broker.hold()

    def writing_resumed(self) -> None:
        self._connection.broker.release()
        self._connection.arrived.take()

    def lost(self, reason: Exception | None) -> None:
        self._connection.side_lost(self._connection.broker, reason)


class _BrokerSide:
    """Handles events of the broker's connection."""

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
        self._connection.side_lost(self._connection.client, reason)
