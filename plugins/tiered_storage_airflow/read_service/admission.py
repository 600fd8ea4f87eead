"""Admit requests for bytes or records one by one: each check of a login blocks the event loop for a moment."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from airflow.api_fastapi.auth.managers.base_auth_manager import COOKIE_NAME_JWT_TOKEN
from fastapi import Request

from tiered_storage_airflow.read_service.access import Metrics
from tiered_storage_airflow.read_service.problem import busy

MOST_LARGE = 4
SECONDS_FOR_ROOM = 30.0

MOST_KNOWN = 10_000
MOST_UNKNOWN = 1000
SECONDS_BETWEEN = 0.05


class Admission:
    """Keeps requests with credentials that were valid before from waiting for unknown ones. For one event loop."""

    def __init__(self, short: ShortCalls) -> None:
        """Admit requests with pauses while `short` calls are under way."""
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._accepted = FairQueue(1, short, SECONDS_BETWEEN)
        self._unknown = FairQueue(1, short, SECONDS_BETWEEN)

    async def wait(self, request: Request) -> None:
        """Wait for the turn of `request`. Raises ProblemError (429) if too many unknown requests wait."""
        credentials = _credentials(request)
        if credentials is None:
            return  # the check of logins refuses it, at no cost
        if credentials in self._known:
            self._known.move_to_end(credentials)
            await self._accepted.take()
            return
        if self._unknown.waiting >= MOST_UNKNOWN:
            raise busy("too many requests are waiting")
        await self._unknown.take()

    def know(self, request: Request) -> None:
        """Remember that the credentials of `request` were valid. Each request is checked all the same."""
        credentials = _credentials(request)
        if credentials is not None:
            self._known[credentials] = None
            if len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)


def _credentials(request: Request) -> bytes | None:
    given = [request.headers.get("authorization", ""), request.cookies.get(COOKIE_NAME_JWT_TOKEN, "")]
    return hashlib.sha256("\n".join(given).encode()).digest() if any(given) else None


class ShortCalls:
    """Tracks the short calls under way, and notifies when none is left. For one event loop.

    A call that takes longer than `seconds`, such as one that waits for a slow store, no longer counts. Any other counts
    until `seconds_after` its end: the next call often comes soon.
    """

    def __init__(self, seconds: float = 0.05, seconds_after: float = 0.003) -> None:
        self._seconds = seconds
        self._seconds_after = seconds_after
        self._under_way: set[object] = set()
        self._callbacks: list[Callable[[], None]] = []

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count as one during the `with` block."""
        call = object()
        self._under_way.add(call)
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._seconds, self._end, call)
        try:
            yield
        finally:
            timer.cancel()
            loop.call_later(self._seconds_after, self._end, call)

    def _end(self, call: object) -> None:
        self._under_way.discard(call)
        if not self._under_way:
            for callback in self._callbacks:
                callback()

    def __bool__(self) -> bool:
        return bool(self._under_way)

    def when_none(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever no call is left."""
        self._callbacks.append(callback)


class FairQueue:
    """Admits `most` waiters per turn of the event loop, first come, first served. For one event loop.

    While `short` calls are under way, turns begin at least `patience` seconds apart: short calls have priority, but
    no caller waits for ever.
    """

    def __init__(self, most: int, short: ShortCalls, patience: float) -> None:
        self._most = most
        self._short = short
        self._patience = patience
        self._left = most
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._next: asyncio.Handle | None = None
        self._is_delayed = False
        self._begun = 0.0
        short.when_none(self._begin_now)

    @property
    def waiting(self) -> int:
        """How many waiters there are."""
        return len(self._waiting)

    async def take(self) -> None:
        """Wait for the caller's turn."""
        loop = asyncio.get_running_loop()
        if self._next is None:
            self._plan_next(loop)
        if self._left and not self._waiting and not self._short:
            self._left -= 1
            return
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _plan_next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_delayed = bool(self._short)
        if self._is_delayed:
            self._next = loop.call_at(self._begun + self._patience, self._begin_turn, loop)
        else:
            self._next = loop.call_soon(self._begin_turn, loop)

    def _begin_now(self) -> None:
        if self._next is not None and self._is_delayed:
            self._next.cancel()
            self._plan_next(asyncio.get_running_loop())

    def _begin_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._next = None
        self._begun = loop.time()
        self._left = self._most
        while self._left and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self._left -= 1
        if self._left < self._most:
            self._plan_next(loop)


class Places:
    """The places for responses with bytes or records, and for the large batches among them. For one event loop."""

    def __init__(self, most_streams: int, metrics: Metrics) -> None:
        """Let `most_streams` responses be in progress, and MOST_LARGE large batches be decompressed at once."""
        self.most_streams = most_streams
        self.streams = 0
        """How many responses are in progress."""
        self.large = asyncio.Semaphore(MOST_LARGE)
        """For records that take much memory decompressed; each holder may decompress one such batch."""
        self._metrics = metrics

    def take(self) -> None:
        """Take a place for a response with bytes or records. Raises ProblemError (429) if none is free."""
        if self.streams >= self.most_streams:
            self._metrics.refused.labels("stream").inc()
            raise busy(f"{self.most_streams} responses with bytes or records are in progress, the most allowed")
        self._count(1)

    def free(self) -> None:
        """Release the place."""
        self._count(-1)

    def _count(self, change: int) -> None:
        self.streams += change
        self._metrics.streams.set(self.streams)

    @asynccontextmanager
    async def for_a_large_batch(self) -> AsyncIterator[None]:
        """Wait for one of the places for large batches. Raises ProblemError (429) if none becomes free in time."""
        try:
            async with asyncio.timeout(SECONDS_FOR_ROOM):
                await self.large.acquire()
        except TimeoutError:
            self._metrics.refused.labels("large batch").inc()
            raise busy(f"{MOST_LARGE} large batches are being sent, the most allowed") from None
        try:
            yield
        finally:
            self.large.release()
