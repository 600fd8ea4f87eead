from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from support.wires import Wire, arrive, framed
from tiered_storage.errors import MalformedAnswerError
from tiered_storage.gateway.limits.memory_budget import MemoryBudget
from tiered_storage.gateway.standalone.connection import StandaloneConnection
from tiered_storage.kafka_wire.server.send_queue import Buffer


class Joined:
    """A client that is connected, and what it is sent."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.asked: list[bytes] = []
        self.ends = 0
        self.is_over = False
        self.wire = Wire()
        self.connection = StandaloneConnection(1 << 20, lambda _: self, self._ended, MemoryBudget(1 << 20).account())
        self.connection.client.connection_made(self.wire)

    async def answer(self, frame: memoryview) -> list[Buffer]:
        self.asked.append(bytes(frame[4:]))
        await self.may_answer.wait()
        if self.asked[-1] == b"garbage":
            raise MalformedAnswerError("garbage")
        return [framed(b"to " + frame[4:])]

    def close(self) -> None:
        self.ends += 1

    def _ended(self, _: StandaloneConnection) -> None:
        self.ends += 1

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 30))


def test_requests_are_answered_in_their_order() -> None:
    async def work() -> None:
        joined = Joined()
        arrive(joined.connection.client, framed(b"first") + framed(b"second"))
        await joined.settle()
        arrive(joined.connection.client, framed(b"third"))
        await joined.settle()

        assert bytes(joined.wire.sent) == framed(b"to first") + framed(b"to second") + framed(b"to third")

    run(work)


def test_a_client_is_not_read_while_it_is_answered() -> None:
    async def work() -> None:
        joined = Joined()
        joined.may_answer.clear()
        arrive(joined.connection.client, framed(b"first") + framed(b"second"))
        await joined.settle()
        assert not joined.wire.is_read
        assert joined.asked == [b"first"]

        joined.may_answer.set()
        await joined.settle()
        assert joined.wire.is_read

    run(work)


def test_a_client_that_does_not_read_is_answered_once() -> None:
    async def work() -> None:
        joined = Joined()
        joined.connection.writing_paused()
        arrive(joined.connection.client, framed(b"first") + framed(b"second"))
        await joined.settle()
        assert joined.asked == [b"first"]

        joined.connection.writing_resumed()
        await joined.settle()
        assert joined.asked == [b"first", b"second"]

    run(work)


def test_requests_received_before_draining_are_answered() -> None:
    async def work() -> None:
        joined = Joined()
        joined.may_answer.clear()
        arrive(joined.connection.client, framed(b"first"))
        await joined.settle()
        joined.connection.drain()
        arrive(joined.connection.client, framed(b"late"))
        assert not joined.wire.closed

        joined.may_answer.set()
        await joined.settle()
        assert bytes(joined.wire.sent) == framed(b"to first")
        assert joined.wire.closed

    run(work)


def test_garbage_ends_the_connection() -> None:
    async def work() -> None:
        joined = Joined()
        arrive(joined.connection.client, framed(b"garbage") + framed(b"second"))
        await joined.settle()

        assert joined.wire.closed
        assert joined.asked == [b"garbage"]
        joined.connection.client.connection_lost(None)
        assert joined.ends == 2

    run(work)
