from __future__ import annotations

import asyncio
from collections import Counter

from tiered_storage_airflow.read_service.turns import Turns


async def turns_of_the_loop(counted: list[int]) -> None:
    while True:
        counted[0] += 1
        await asyncio.sleep(0)


def taken(clients: int, each: int, most: int) -> list[tuple[int, int]]:
    """Return at which turn of the loop which client had its turns, in order."""

    async def ask() -> list[tuple[int, int]]:
        turns, counted, seen = Turns(most), [0], list[tuple[int, int]]()
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
        turns = Turns(1)
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
