from __future__ import annotations

import asyncio

import pytest

from support.wires import arrive
from tiered_storage.errors import ClusterUnreachableError, MalformedAnswerError
from tiered_storage.gateway.allowed_apis import API_VERSIONS
from tiered_storage.gateway.connections.client_connection import MOST_WAITING
from tiered_storage.kafka_wire.connections.frames import request
from tiered_storage.kafka_wire.server.send_queue import Buffer
from unit.tiered_storage.gateway.connections.test_client_connection import Joined, answer, run


def test_a_slow_answer_delays_the_later_ones() -> None:
    async def work() -> None:
        continues = asyncio.Event()

        async def slow(frame: memoryview) -> list[Buffer]:
            await continues.wait()
            return [bytes(frame), b"more"]

        joined = Joined()
        joined.change = slow
        joined.asks(1)
        joined.change = None
        joined.asks(2)
        joined.answers(1, 2)
        await asyncio.sleep(0)
        assert not joined.client.sent

        continues.set()
        while not joined.client.sent:
            await asyncio.sleep(0)
        assert joined.client.sent == answer(1) + b"more" + answer(2)

    run(work)


def test_what_the_gateway_asks_goes_to_it_and_not_to_the_client() -> None:
    async def work() -> None:
        joined = Joined()
        joined.asks(1)
        asked = asyncio.ensure_future(
            joined.connection.own.ask(API_VERSIONS, request(API_VERSIONS, 0), lambda frame, *_: bytes(frame[4:]))
        )
        await asyncio.sleep(0)
        joined.answers(1)
        arrive(joined.connection.broker, answer(-1, b"for the gateway"))

        assert await asked == b"for the gateway"
        assert joined.client.sent == answer(1)

    run(work)


def test_an_answer_out_of_order_ends_both_connections() -> None:
    async def work() -> None:
        joined = Joined()
        joined.asks(1, 2)

        joined.answers(2)
        joined.connection.broker.connection_lost(None)

        assert (joined.client.closed, joined.broker.closed) == (True, True)

    run(work)


def test_an_answer_that_nobody_asked_for_ends_both_connections() -> None:
    joined = Joined()

    joined.answers(1)

    assert joined.broker.closed


def test_a_lost_broker_fails_what_the_gateway_asked() -> None:
    async def work() -> None:
        joined = Joined()
        asked = asyncio.ensure_future(joined.connection.own.ask(API_VERSIONS, request(API_VERSIONS, 0)))
        await asyncio.sleep(0)
        joined.connection.broker.connection_lost(None)

        with pytest.raises(ClusterUnreachableError, match="ended"):
            await asked
        with pytest.raises(ClusterUnreachableError, match="closed"):
            await joined.connection.own.ask(API_VERSIONS, request(API_VERSIONS, 0))
        assert joined.client.closed

    run(work)


def test_a_change_that_fails_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async def fails(_: memoryview) -> list[Buffer]:
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


def test_any_number_of_the_gateways_own_questions_leaves_the_client_connected() -> None:
    async def work() -> None:
        joined = Joined()
        asked = [
            asyncio.ensure_future(
                joined.connection.own.ask(API_VERSIONS, request(API_VERSIONS, 0), lambda frame, *_: bytes(frame))
            )
            for _ in range(MOST_WAITING + 1)
        ]
        await asyncio.sleep(0)
        joined.asks(1)
        for number in range(len(asked)):
            arrive(joined.connection.broker, answer(-1 - number))
        await asyncio.gather(*asked)
        joined.asks(2)
        joined.answers(1, 2)

        assert joined.client.sent == answer(1) + answer(2)
        assert joined.client.is_read

    run(work)
