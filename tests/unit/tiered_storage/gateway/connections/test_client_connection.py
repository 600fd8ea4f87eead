from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from support.wires import Wire, arrive, framed
from tiered_storage.gateway.allowed_apis import API_VERSIONS, FETCH, PRODUCE, SASL_AUTHENTICATE, SASL_HANDSHAKE
from tiered_storage.gateway.connections.client_connection import LARGEST_BEFORE_LOGIN, MOST_WAITING, ClientConnection
from tiered_storage.gateway.connections.owed_answers import Change, Filled
from tiered_storage.gateway.limits.memory_budget import MemoryBudget
from tiered_storage.kafka_wire.connections.apis import Api
from tiered_storage.kafka_wire.connections.frames import request
from tiered_storage.kafka_wire.server.frame_protocol import FrameProtocol, memory_of
from tiered_storage.kafka_wire.server.request_header import RequestHeader
from tiered_storage.kafka_wire.server.send_queue import LINGER_SECONDS, Buffer
from unit.tiered_storage.resumed_protocols import resume

LIMIT = 1 << 20
LARGE = bytes(600_000)
ANY = Api(12, "Heartbeat", 0, 4)


class Joined:
    """A client and a broker that are connected, and what each is sent."""

    def __init__(self, change: Change | None = None, *, with_login: bool = False) -> None:
        self.change = change
        self.apis: dict[int, Api] = {}
        """The APIs of requests, by their numbers; others are ANY."""
        self.ends = 0
        self.budget = MemoryBudget(LIMIT)
        self.connection = ClientConnection(
            1 << 20, self._opened, self._ended, self.budget.account(), with_login=with_login
        )
        self.client, self.broker = Wire(), Wire()
        self.connection.client.connection_made(self.client)
        self.connection.broker.connection_made(self.broker)

    def _opened(self, _: ClientConnection) -> Joined:
        return self

    def take(self, frame: memoryview) -> bool:
        """Take a request whose body is its number."""
        number = int.from_bytes(frame[4:8], "big")
        asked = header(number, self.apis.get(number, ANY))
        if not self.connection.can_take(asked):
            return False
        self.connection.forward(frame, asked, self.change)
        return True

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
    connection = ClientConnection(1000, lambda _: Joined(), lambda _: None, MemoryBudget(LIMIT).account())
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


def test_a_connection_has_ended_once_both_sides_are_gone() -> None:
    async def work() -> None:
        joined = Joined()
        joined.connection.broker.connection_lost(None)
        assert (joined.connection.has_ended, joined.ends) == (True, 0)
        joined.connection.client.connection_lost(None)
        assert joined.ends == 1

    run(work)


def test_a_connection_without_a_broker_ends_with_its_client() -> None:
    ended: list[ClientConnection] = []
    connection = ClientConnection(1000, lambda _: Joined(), ended.append, MemoryBudget(LIMIT).account())
    connection.client.connection_made(Wire())

    connection.client.connection_lost(None)
    # A broker that was being connected meanwhile.
    connection.broker.connection_made(Wire())
    connection.broker.connection_lost(None)

    assert ended == [connection]


def test_a_client_that_does_not_read_is_cut_off_once_its_broker_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        calls: list[tuple[float, Callable[[], None]]] = []
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "call_later", lambda delay, call: calls.append((delay, call)))
        joined = Joined()
        joined.client.unsent = 1
        joined.connection.broker.connection_lost(None)

        [(delay, call)] = calls
        assert delay == LINGER_SECONDS
        call()
        assert joined.client.aborted

    run(work)


@pytest.mark.parametrize(
    ("side", "data", "reason", "level"),
    [
        ("client", b"", ConnectionResetError(), "DEBUG"),
        ("client", b"GET / HTTP/1.1", None, "INFO"),
        ("broker", b"", ConnectionResetError(), "DEBUG"),
        ("broker", b"GET / HTTP/1.1", None, "WARNING"),
    ],
)
def test_a_warning_is_what_an_operator_has_to_look_at(
    side: str, data: bytes, reason: Exception | None, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        joined = Joined()
        ending: FrameProtocol = getattr(joined.connection, side)
        arrive(ending, data)
        ending.connection_lost(reason)

    with caplog.at_level(logging.DEBUG, "tiered_storage"):
        run(work)
    assert [(each.levelname, f"a {side}" in each.getMessage()) for each in caplog.records] == [(level, True)]


def test_a_client_with_many_requests_waits() -> None:
    joined = Joined()

    joined.asks(*range(MOST_WAITING + 1))
    assert joined.broker.sent == b"".join(answer(number) for number in range(MOST_WAITING))
    assert not joined.client.is_read
    joined.answers(0)
    assert joined.client.is_read


def test_neither_side_is_read_while_the_other_takes_nothing() -> None:
    joined = Joined()

    joined.connection.client.pause_writing()
    assert not joined.broker.is_read
    resume(joined.connection.client)
    assert joined.broker.is_read
    joined.connection.broker.pause_writing()
    assert not joined.client.is_read
    resume(joined.connection.broker)
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


def test_a_fetch_waits_until_the_one_before_it_is_answered_and_sent() -> None:
    joined = Joined()
    joined.apis = {1: FETCH, 2: FETCH}

    joined.asks(1, 2, 3)
    assert joined.broker.sent == answer(1)
    assert not joined.client.is_read
    joined.connection.client.pause_writing()
    joined.answers(1)
    assert joined.broker.sent == answer(1)
    resume(joined.connection.client)

    assert joined.broker.sent == answer(1) + answer(2) + answer(3)
    assert joined.client.is_read


def test_a_fetch_that_is_being_filled_holds_the_next_one() -> None:
    async def work() -> None:
        continues = asyncio.Event()

        async def slow(frame: memoryview) -> list[Buffer]:
            await continues.wait()
            return [bytes(frame)]

        joined = Joined(slow)
        joined.apis = {1: FETCH, 2: FETCH}
        joined.asks(1, 2)
        joined.answers(1)
        await asyncio.sleep(0)
        assert joined.broker.sent == answer(1)

        continues.set()
        while joined.broker.sent == answer(1):
            await asyncio.sleep(0)
        assert joined.broker.sent == answer(1) + answer(2)

    run(work)


def test_a_login_waits_until_all_before_it_is_answered() -> None:
    async def work() -> None:
        joined = Joined()
        joined.apis = {1: FETCH, 2: SASL_HANDSHAKE, 3: SASL_AUTHENTICATE}
        joined.asks(1, 2, 3)
        own = asyncio.ensure_future(
            joined.connection.own.ask(API_VERSIONS, request(API_VERSIONS, 0), lambda frame, *_: bytes(frame))
        )
        await asyncio.sleep(0)
        joined.answers(1)
        own_question = joined.broker.sent[len(answer(1)) :]
        assert answer(2) not in own_question
        arrive(joined.connection.broker, answer(-1))
        await own

        assert joined.broker.sent == answer(1) + own_question + answer(2) + answer(3)

    run(work)


def test_requests_are_small_until_the_client_is_logged_in() -> None:
    large = framed(struct.pack(">i", 1) + bytes(LARGEST_BEFORE_LOGIN))
    refused = Joined(with_login=True)
    arrive(refused.connection.client, large[:8])
    assert refused.client.closed
    assert not refused.broker.sent

    taken = Joined(with_login=True)
    taken.connection.logged_in()
    arrive(taken.connection.client, large)
    assert taken.broker.sent == large


def test_draining_waits_until_the_last_answer_is_sent() -> None:
    async def work() -> None:
        joined = Joined()
        joined.asks(1)
        joined.connection.drain()
        joined.answers(1)
        joined.connection.broker.connection_lost(None)
        # The client has closed its connection only once it has read everything.
        assert (joined.client.closed, joined.ends) == (True, 0)
        joined.connection.client.connection_lost(None)
        assert joined.ends == 1

    run(work)


def test_draining_answers_the_requests_that_wait_too() -> None:
    joined = Joined()
    joined.apis = {1: FETCH, 2: FETCH}
    joined.asks(1, 2)

    joined.connection.drain()
    joined.answers(1, 2)

    assert joined.client.sent == answer(1) + answer(2)
    assert joined.client.closed


def test_forwarded_bytes_count_against_the_budget_until_they_are_sent() -> None:
    joined = Joined()
    joined.connection.broker.pause_writing()
    arrive(joined.connection.client, answer(1, LARGE))
    assert joined.budget.used > len(LARGE)
    resume(joined.connection.broker)
    assert joined.budget.used == 0

    joined.connection.client.pause_writing()
    arrive(joined.connection.broker, answer(1, LARGE))
    assert joined.budget.used > len(LARGE)
    resume(joined.connection.client)
    assert joined.budget.used == 0


def test_a_request_without_memory_is_read_once_there_is_some() -> None:
    joined = Joined()
    others, first = joined.budget.account(), joined.budget.account()
    assert others.take(LIMIT, lambda: None)
    assert first.take(1, lambda: None)

    large = answer(1, LARGE)
    arrive(joined.connection.client, large[:100])
    assert not joined.client.is_read
    others.give(LIMIT)
    assert joined.client.is_read
    arrive(joined.connection.client, large[100:])

    assert joined.broker.sent == large


def test_a_closed_connection_releases_its_memory() -> None:
    async def work() -> None:
        joined = Joined()
        joined.connection.client.pause_writing()
        joined.asks(1)
        arrive(joined.connection.broker, answer(1, LARGE))
        joined.connection.client.connection_lost(None)
        joined.connection.broker.connection_lost(None)

        assert (joined.ends, joined.budget.used) == (1, 0)

    run(work)


def test_a_client_over_its_quota_is_answered_and_then_muted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async def throttled(frame: memoryview) -> Filled:
            return Filled([bytes(frame)], 0, 5000)

        calls: list[tuple[float, Callable[[], None]]] = []
        loop = asyncio.get_running_loop()

        def call_later(delay: float, call: Callable[[], None]) -> Timer:
            calls.append((delay, call))
            return Timer()

        monkeypatch.setattr(loop, "call_later", call_later)
        joined = Joined(throttled)
        joined.asks(1)
        joined.answers(1)
        while not joined.client.sent:
            await asyncio.sleep(0)
        joined.change = None
        joined.asks(2)
        assert joined.client.sent == joined.broker.sent == answer(1)
        assert not joined.client.is_read

        [(delay, unmute)] = calls
        assert delay == 5
        unmute()
        assert joined.broker.sent == answer(1) + answer(2)
        assert joined.client.is_read

    run(work)


class Timer:
    def cancel(self) -> None:
        pass


def test_a_request_that_the_gateway_answers_itself_keeps_no_memory() -> None:
    joined, asked = Joined(), memoryview(LARGE)
    assert joined.connection.memory.take(memory_of(asked), lambda: None)

    joined.connection.reply(b"no such version", asked)

    assert joined.budget.used == 0
