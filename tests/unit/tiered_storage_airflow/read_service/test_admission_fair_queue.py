from __future__ import annotations

import asyncio
from collections import Counter

from tiered_storage_airflow.read_service.admission import FairQueue, ShortCalls


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

    return asyncio.run(ask())


def test_few_have_their_turn_at_once_and_all_alike() -> None:
    seen = taken(clients=20, each=5, most=4)
    at = [turn for turn, _ in seen]
    assert max(at.count(turn) for turn in set(at)) <= 4
    order = [number for _, number in seen]
    for end in range(100):
        given = Counter(order[:end])
        assert max(given[number] for number in range(20)) - min(given[number] for number in range(20)) <= 5


def test_one_alone_waits_for_nobody_but_for_its_next_turn() -> None:
    at = [turn for turn, _ in taken(clients=1, each=12, most=4)]
    assert max(at.count(turn) for turn in set(at)) <= 4
    assert at[-1] - at[0] <= 12


def test_who_leaves_while_waiting_takes_nobodys_turn() -> None:
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

    assert asyncio.run(ask()) == 0


def test_a_short_call_comes_first_and_holds_nobody_up_for_ever() -> None:
    async def ask() -> tuple[int, float]:
        short = ShortCalls(seconds=5, seconds_after=0)
        turns, loop = FairQueue(2, short, 0.05), asyncio.get_running_loop()
        taken: list[float] = []

        async def send() -> None:
            while True:
                await turns.take()
                taken.append(loop.time())

        sending = [asyncio.ensure_future(send()) for _ in range(4)]
        await asyncio.sleep(0.02)
        with short.one():
            await asyncio.sleep(0)
            before = len(taken)
            await asyncio.sleep(0.3)
            between = taken[before:]
            ended = loop.time()
        await asyncio.sleep(0.01)
        for each in sending:
            each.cancel()
        return len(between), taken[before + len(between)] - ended

    turns_meanwhile, after = asyncio.run(ask())
    assert 2 <= turns_meanwhile <= 14
    assert after < 0.04


def test_a_call_that_takes_long_is_no_short_one() -> None:
    async def ask() -> tuple[bool, bool]:
        short = ShortCalls(seconds=0.01)
        told: list[bool] = []
        with short.one():
            was = bool(short)
            short.when_none(lambda: told.append(True))
            await asyncio.sleep(0.1)
            return was, told == [True] and not short

    assert asyncio.run(ask()) == (True, True)


def test_some_time_after_the_last_of_two_short_calls_it_is_reported() -> None:
    async def ask() -> list[int]:
        short, told = ShortCalls(seconds_after=0.01), list[int]()
        with short.one():
            with short.one():
                short.when_none(lambda: told.append(1))
            await asyncio.sleep(0.03)
            assert short and not told
        assert short and not told
        await asyncio.sleep(0.03)
        assert not short
        return told

    assert asyncio.run(ask()) == [1]


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

    assert asyncio.run(ask()) == (0, 200)
