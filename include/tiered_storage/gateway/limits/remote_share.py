"""Limit remote work to a share of one processor while clients write, or read what brokers have.

Without a limit, brokers and other programs wait for a processor behind remote work. So Fetches of remote records queue,
and each of their pieces begins when the earlier ones have paid for what they used. Many at once would keep the
processors from local work for as long as they take together, however small their share.

Local work is not counted: however much there is of it, remote work has its share.

Source: KIP-124, where brokers limit the share of their threads' time that a client uses.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from types import coroutine
from typing import Any, Final, TypeVar

Result = TypeVar("Result")

ALL_OF_A_PROCESSOR: Final = 100
LOCAL_SECONDS: Final = 1.0
"""For how long after a local answer remote work keeps to its share."""
MOST_PAUSE_SECONDS: Final = 1.0
"""Remote work pays for this time at most, whatever it used."""
_LOOK_SECONDS: Final = 0.1
"""How often Fetches that wait look whether local answers still pass."""
_SHORTEST_PAUSE_SECONDS: Final = 0.001
_SAVED_SECONDS: Final = 0.005
"""How much unused time may be used later: timers are only exact to a millisecond."""
_NEW_COST_WEIGHT: Final = 0.1


class _RemoteTime:
    """The processor time (seconds) that remote work uses. For one event loop."""

    def __init__(self, processor_time: Callable[[], float], loop_time: Callable[[], float]) -> None:
        self._processor_time = processor_time
        self._loop_time = loop_time
        self._in_loop = 0.0
        """The part that the event loop's thread used."""

    def used(self) -> float:
        """Return what it has used: the other threads of the process do nothing else."""
        return self._processor_time() - self._loop_time() + self._in_loop

    @coroutine
    def counted(self, work: Coroutine[Any, Any, Result]) -> Generator[Any, Any, Result]:
        """Run `work` in the task that awaits this, and count the event loop's time that it uses."""
        step: Callable[[], Any] = partial(work.send, None)
        while True:
            begun = self._loop_time()
            try:
                awaited = step()
            except StopIteration as end:
                result: Result = end.value
                return result
            finally:
                self._in_loop += self._loop_time() - begun
            try:
                given = yield awaited
            except BaseException as error:  # noqa: BLE001 - it belongs to the work
                step = partial(work.throw, error)
            else:
                step = partial(work.send, given)


class _Debt:
    """The processor time (seconds) that remote work has to wait for, as it used more than its `share` of a processor.

    What the pieces that run are expected to use is owed at once.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._owed = 0.0
        self._paid_at = 0.0
        self._used = 0.0
        """The processor time of remote work until then."""
        self._cost = 0.0
        """What a piece uses on average (seconds)."""
        self._used_by_ended = 0.0

    def forget(self, now: float, used: float) -> None:
        """Owe nothing at `now` (the loop's time); remote work has `used` so much in all."""
        self._owed, self._paid_at, self._used = 0.0, now, used

    def pause(self, now: float, used: float) -> float:
        """Return how long (seconds) the next piece has to wait."""
        owed = self._owed + used - self._used - self._share * (now - self._paid_at)
        self._owed = min(max(owed, -self._share * _SAVED_SECONDS), self._share * MOST_PAUSE_SECONDS)
        self._paid_at, self._used = now, used
        return self._owed / self._share

    def begin_piece(self) -> float:
        """Return what the piece that begins is expected to use; it is owed until `end_piece` gets it back."""
        self._owed += self._cost
        return self._cost

    def end_piece(self, expected: float, used: float) -> None:
        self._owed -= expected
        self._cost += _NEW_COST_WEIGHT * (used - self._used_by_ended - self._cost)
        self._used_by_ended = used


class RemoteShare:
    """Limits remote work to a share of one processor while local answers pass. For one event loop."""

    def __init__(
        self,
        percentage: int = ALL_OF_A_PROCESSOR,
        processor_time: Callable[[], float] = time.process_time,
        loop_time: Callable[[], float] = time.thread_time,
    ) -> None:
        """Leave remote work `percentage` of one processor; 100: no limit.

        `processor_time` is what all threads of the process used (seconds), `loop_time` what the event loop's used.
        """
        self._debt = None if percentage >= ALL_OF_A_PROCESSOR else _Debt(percentage / 100)
        self._time = _RemoteTime(processor_time, loop_time)
        self._paced_until = 0.0
        self._last_place = 0
        self._waiting: dict[int, asyncio.Future[None]] = {}
        """The Fetches that wait, by their clients' places."""
        self._is_timed = False
        self._turn: int | None = None
        """The place of the Fetch that began last, until all its pieces are in their queue."""
        self._turn_ends = 0.0
        self._next_piece = asyncio.Lock()
        """Held by the piece that begins next."""

    def pace(self) -> None:
        """Leave time for local work from now on, for LOCAL_SECONDS."""
        now = asyncio.get_running_loop().time()
        if self._debt is not None and now >= self._paced_until:
            self._debt.forget(now, self._time.used())
        self._paced_until = now + LOCAL_SECONDS

    def queue(self) -> int:
        """Return a client's place in the queue. It keeps the place until one of its Fetches begins."""
        self._last_place += 1
        return self._last_place

    async def begin(self, place: int, seconds: float) -> bool:
        """Wait for `seconds` at most until the Fetch of `place` may begin, and return whether it may.

        A client that does not wait has no turn meanwhile, and keeps nobody from theirs.
        """
        if self._may_begin() and place < min(self._waiting, default=place + 1):
            self._take_turn(place)
            return True
        begun = self._waiting[place] = asyncio.get_running_loop().create_future()
        self._begin_later()
        try:
            await asyncio.wait([begun], timeout=seconds)
        finally:
            self._waiting.pop(place, None)
        return begun.done()

    def pass_on(self, place: int) -> None:
        """Let the next Fetch begin: that of `place` has ended, or all its pieces are in their queue."""
        if self._turn == place:
            self._turn = None

    async def piece(self, work: Callable[[], Coroutine[Any, Any, Result]], end: float | None = None) -> Result:
        """Await what `work` begins, a piece of a Fetch that has begun, once the earlier pieces have paid.

        The loop's time that it uses is counted. Raises TimeoutError at `end` (the loop's time) if it did not begin.
        """
        debt = self._debt
        if debt is None:
            return await work()
        async with asyncio.timeout_at(end), self._next_piece:
            while (pause := self._pause()) > 0:
                await asyncio.sleep(min(pause, _LOOK_SECONDS))
        expected = debt.begin_piece()
        try:
            return await self.timed(work)
        finally:
            debt.end_piece(expected, self._time.used())

    async def timed(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Await what `work` begins for a Fetch, in one task, and count the event loop's time that it uses."""
        # A task may be cancelled before its first step: so the work does not exist earlier.
        return await (work() if self._debt is None else self._time.counted(work()))

    def _pause(self) -> float:
        """Return how long (seconds) the next piece has to wait."""
        now = asyncio.get_running_loop().time()
        if self._debt is None or now >= self._paced_until:
            return 0.0
        return max(self._debt.pause(now, self._time.used()), 0.0)

    def _may_begin(self) -> bool:
        """Return whether a Fetch may begin: the pieces of those that have begun come first."""
        now = asyncio.get_running_loop().time()
        if self._debt is None or now >= self._paced_until:
            return True
        # One that waits for its broker holds nobody up for long.
        has_turn = self._turn is not None and now < self._turn_ends
        return not (has_turn or self._next_piece.locked() or self._pause())

    def _take_turn(self, place: int) -> None:
        self._turn, self._turn_ends = place, asyncio.get_running_loop().time() + _LOOK_SECONDS

    def _begin_later(self) -> None:
        if self._is_timed:
            return
        self._is_timed = True
        pause = min(max(self._pause(), _SHORTEST_PAUSE_SECONDS), _LOOK_SECONDS)
        asyncio.get_running_loop().call_later(pause, self._begin_next)

    def _begin_next(self) -> None:
        self._is_timed = False
        if self._waiting and self._may_begin():
            place = min(self._waiting)
            self._take_turn(place)
            self._waiting.pop(place).set_result(None)
        if self._waiting:
            self._begin_later()
