from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tiered_storage.errors import ClusterUnreachableError, MalformedAnswerError
from tiered_storage.gateway.allowed_apis import API_VERSIONS, PRODUCE
from tiered_storage.gateway.client_connection import MOST_WAITING, Change, ClientConnection
from tiered_storage.kafka_wire.connections.apis import Api
from tiered_storage.kafka_wire.connections.frames import request
from tiered_storage.kafka_wire.server.frame_protocol import Piece
from tiered_storage.kafka_wire.server.request_header import RequestHeader
from unit.tiered_storage.kafka_wire.server.wires import Wire, arrive, framed

ANY = Api(12, "Heartbeat", 0, 4)


class Joined:
    """A client and a broker that are connected, and what each is sent."""

    def __init__(self, change: Change | None = None) -> None:
        self.change = change
        self.ends = 0
        self.connection = ClientConnection(1000, self._opened, self._ended)
        self.client, self.broker = Wire(), Wire()
        self.connection.client.connection_made(self.client)
        self.connection.broker.connection_made(self.broker)

    def _opened(self, connection: ClientConnection) -> Callable[[memoryview], None]:
        return lambda frame: connection.forward(frame, header(int.from_bytes(frame[4:8], "big")), self.change)

    def _ended(self, _: ClientConnection) -> None:
        self.ends += 1

    def asks(self, *numbers: int) -> None:
        for number in numbers:
            arrive(self.connection.client, answer(number))

    def answers(self, *numbers: int) -> None:
        for number in numbers:
            arrive(self.connection.broker, answer(number))


def header(number: int, api: Api = ANY) -> RequestHeader:
    return RequestHeader(api, 0, number, "", 8)


def answer(number: int, more: bytes = b"") -> bytes:
    return framed(struct.pack(">i", number) + more)


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 30))


def test_the_client_is_read_once_the_broker_is_connected() -> None:
    connection = ClientConnection(1000, lambda _: lambda _: None, lambda _: None)
    client = Wire()
    connection.client.connection_made(client)
    assert not client.is_read

    connection.broker.connection_made(Wire())
    assert client.is_read


def test_requests_and_answers_pass_as_they_are() -> None:
    joined = Joined()

    joined.asks(1, 2)
    joined.answers(1, 2)

    assert joined.broker.sent == answer(1) + answer(2)
    assert joined.client.sent == answer(1) + answer(2)


def test_an_answer_that_takes_time_holds_the_later_ones_and_the_client() -> None:
    async def work() -> None:
        goes_on = asyncio.Event()

        async def slow(frame: memoryview) -> list[Piece]:
            await goes_on.wait()
            return [bytes(frame), b"more"]

        joined = Joined()
        joined.change = slow
        joined.asks(1)
        joined.change = None
        joined.asks(2)
        joined.answers(1, 2)
        await asyncio.sleep(0)
        assert not joined.client.sent
        assert not joined.client.is_read

        goes_on.set()
        while not joined.client.sent:
            await asyncio.sleep(0)
        assert joined.client.sent == answer(1) + b"more" + answer(2)
        assert joined.client.is_read

    run(work)


def test_what_the_gateway_asks_goes_to_it_and_not_to_the_client() -> None:
    async def work() -> None:
        joined = Joined()
        joined.asks(1)
        asked = asyncio.ensure_future(
            joined.connection.ask(API_VERSIONS, request(API_VERSIONS, 0), lambda frame, *_: bytes(frame[4:]))
        )
        await asyncio.sleep(0)
        joined.answers(1)
        arrive(joined.connection.broker, answer(-1, b"for the gateway"))

        assert await asked == b"for the gateway"
        assert joined.client.sent == answer(1)

    run(work)


def test_an_answer_out_of_order_ends_both_connections() -> None:
    joined = Joined()
    joined.asks(1, 2)

    joined.answers(2)
    joined.connection.broker.connection_lost(None)

    assert (joined.client.closed, joined.broker.closed, joined.ends) == (True, True, 1)


def test_an_answer_that_nobody_asked_for_ends_both_connections() -> None:
    joined = Joined()

    joined.answers(1)

    assert joined.broker.closed


def test_a_lost_broker_fails_what_the_gateway_asked() -> None:
    async def work() -> None:
        joined = Joined()
        asked = asyncio.ensure_future(joined.connection.ask(API_VERSIONS, request(API_VERSIONS, 0)))
        await asyncio.sleep(0)
        joined.connection.broker.connection_lost(None)

        with pytest.raises(ClusterUnreachableError, match="ended"):
            await asked
        with pytest.raises(ClusterUnreachableError, match="closed"):
            await joined.connection.ask(API_VERSIONS, request(API_VERSIONS, 0))
        assert joined.client.closed

    run(work)


def test_a_client_with_many_requests_waits() -> None:
    joined = Joined()

    joined.asks(*range(MOST_WAITING))
    assert not joined.client.is_read
    joined.answers(0)
    assert joined.client.is_read


def test_neither_side_is_read_while_the_other_takes_nothing() -> None:
    joined = Joined()

    joined.connection.client.pause_writing()
    assert not joined.broker.is_read
    joined.connection.client.resume_writing()
    assert joined.broker.is_read
    joined.connection.broker.pause_writing()
    assert not joined.client.is_read
    joined.connection.broker.resume_writing()
    assert joined.client.is_read


def test_draining_answers_what_was_asked_and_takes_no_more() -> None:
    joined = Joined()
    joined.asks(1)

    joined.connection.drain()
    assert not joined.client.closed
    joined.asks(2)
    joined.answers(1)

    assert joined.client.sent == answer(1)
    assert joined.broker.sent == answer(1)
    assert joined.client.closed


def test_a_produce_without_acknowledgements_expects_no_answer() -> None:
    joined = Joined()
    body = struct.pack(">hh", -1, 0)
    frame = memoryview(bytearray(framed(bytes(4) + body)))

    joined.connection.forward(frame, RequestHeader(PRODUCE, 3, 1, "", 8), None)
    joined.asks(2)
    joined.answers(2)

    assert joined.client.sent == answer(2)


def test_a_change_that_fails_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async def fails(_: memoryview) -> list[Piece]:
            raise MalformedAnswerError("cannot be read")

        joined = Joined(fails)
        joined.asks(1)
        joined.answers(1)
        for _ in range(5):
            await asyncio.sleep(0)
        assert joined.client.closed
        assert not joined.client.sent

    run(work)
    assert "cannot be read" in caplog.text
