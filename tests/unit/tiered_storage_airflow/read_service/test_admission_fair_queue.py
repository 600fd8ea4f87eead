from __future__ import annotations

import asyncio
import selectors
from collections import Counter
from collections.abc import Coroutine
from itertools import pairwise
from typing import Any, TypeVar

from tiered_storage_airflow.read_service.admission import FairQueue, ShortCalls

Result = TypeVar("Result")
TURN = 2**-10
"""How long a turn of the loop takes by its own clock, in seconds: times are whole sums of it."""


class LoopWithItsOwnClock(asyncio.SelectorEventLoop):
    """A turn takes TURN; where nothing is to be done, the clock moves to when something is."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_NoWaiting(self))

    def time(self) -> float:
        return self.now


class _NoWaiting(selectors.SelectSelector):
    def __init__(self, loop: LoopWithItsOwnClock) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._loop.now += max(timeout or 0, TURN)
        return super().select(0)


def run(work: Coroutine[Any, Any, Result]) -> Result:
    with asyncio.Runner(loop_factory=LoopWithItsOwnClock) as runner:
        return runner.run(work)


async def turns_of_the_loop(counted: list[int]) -> None:
    while True:
        counted[0] += 1
        await asyncio.sleep(0)


def taken(clients: int, each: int, most: int) -> list[tuple[int, int]]:
    """Return at which turn of the loop which client had its turns, in order."""

    async def ask() -> list[tuple[int, int]]:
        turns, counted, seen = FairQueue(most, ShortCalls(), 0), [0], list[tuple[int, int]]()
        counting = asyncio.ensure_future(turns_of_the_loop(counted))

        async def client(number: int) -> None:
            for _ in range(each):
                await turns.take()
                seen.append((counted[0], number))

        await asyncio.gather(*map(client, range(clients)))
        counting.cancel()
        return seen

    return run(ask())


def test_few_have_their_turn_at_once_and_all_alike() -> None:
    seen = taken(clients=20, each=5, most=4)
    at = [turn for turn, _ in seen]
    assert max(at.count(turn) for turn in set(at)) <= 4
    order = [number for _, number in seen]
    for end in range(100):
        given = Counter(order[:end])
        assert max(given[number] for number in range(20)) - min(given[number] for number in range(20)) <= 5


def test_a_lone_client_waits_only_for_its_next_turn() -> None:
    at = [turn for turn, _ in taken(clients=1, each=12, most=4)]
    assert max(at.count(turn) for turn in set(at)) <= 4
    assert at[-1] - at[0] <= 12


def test_leaving_the_queue_takes_nobodys_turn() -> None:
    async def ask() -> int:
        turns = FairQueue(1, ShortCalls(), 0)
        await turns.take()
        leaving = [asyncio.ensure_future(turns.take()) for _ in range(5)]
        await asyncio.sleep(0)
        staying = asyncio.ensure_future(turns.take())
        for each in leaving:
            each.cancel()
        await asyncio.wait_for(staying, 5)
        await asyncio.sleep(0.01)
        await asyncio.wait_for(turns.take(), 5)
        return len(turns._waiting)

    assert run(ask()) == 0


def test_a_short_call_comes_first_and_holds_nobody_up_for_ever() -> None:
    patience = 64 * TURN

    async def ask() -> tuple[list[float], float]:
        short = ShortCalls(seconds=5, seconds_after=0)
        turns, loop = FairQueue(2, short, patience), asyncio.get_running_loop()
        taken: list[float] = []

        async def send() -> None:
            while True:
                await turns.take()
                taken.append(loop.time())

        sending = [asyncio.ensure_future(send()) for _ in range(4)]
        await asyncio.sleep(20 * TURN)
        assert len(taken) >= 20  # without a short call, two have their turn in each turn of the loop
        with short.one():
            await asyncio.sleep(0)
            before = len(taken)
            await asyncio.sleep(6.5 * patience)
            between = taken[before:]
            ended = loop.time()
        await asyncio.sleep(10 * TURN)
        for each in sending:
            each.cancel()
        return between, taken[before + len(between)] - ended

    meanwhile, after = run(ask())
    at = sorted(set(meanwhile))
    assert [meanwhile.count(each) for each in at] == [2] * 7  # one turn was planned before, then one each `patience`
    assert all(later - earlier >= patience for earlier, later in pairwise(at))
    assert after <= 3 * TURN


def test_a_call_that_takes_long_is_no_short_one() -> None:
    async def ask() -> tuple[bool, bool]:
        short = ShortCalls(seconds=0.01)
        calls: list[bool] = []
        with short.one():
            was = bool(short)
            short.when_none(lambda: calls.append(True))
            await asyncio.sleep(0.1)
            return was, calls == [True] and not short

    assert run(ask()) == (True, True)


def test_some_time_after_the_last_of_two_short_calls_it_is_reported() -> None:
    async def ask() -> list[int]:
        short, calls = ShortCalls(seconds_after=0.01), list[int]()
        with short.one():
            with short.one():
                short.when_none(lambda: calls.append(1))
            await asyncio.sleep(0.03)
            assert short and not calls
        assert short and not calls
        await asyncio.sleep(0.03)
        assert not short
        return calls

    assert run(ask()) == [1]


def test_short_calls_without_end_make_nothing_grow() -> None:
    async def ask() -> tuple[int, int]:
        short = ShortCalls(seconds=60)
        turns, taken = FairQueue(2, short, 0), 0
        with short.one():
            before = len(short._callbacks)
            for _ in range(200):
                await turns.take()
                taken += 1
            return len(short._callbacks) - before, taken

    assert run(ask()) == (0, 200)
