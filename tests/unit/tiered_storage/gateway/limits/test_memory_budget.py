from __future__ import annotations

import asyncio
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from tiered_storage.gateway.limits.memory_budget import LEAST_SHARE, MemoryAccount, MemoryBudget

LIMIT = 100
NEED = 60
"""The most that one connection takes at a time."""


def nothing() -> None:
    pass


def waits_for(account: MemoryAccount, size: int) -> list[bool]:
    """Take what is not there; return a list that has an entry once it is."""
    taken: list[bool] = []
    assert not account.take(size, lambda: taken.append(True))
    return taken


def test_what_is_given_back_goes_to_those_that_wait_in_their_order() -> None:
    budget = MemoryBudget(LIMIT)
    holding, ahead, second, third = (budget.account() for _ in range(4))
    assert holding.take(LIMIT, nothing)
    assert ahead.take(1, nothing)
    of_second, of_third = waits_for(second, 50), waits_for(third, 10)
    assert budget.is_short

    holding.give(1)
    assert (of_second, of_third, budget.used) == ([True], [], 150)
    holding.give(49)
    # A small need does not overtake a large one, and one connection at a time is over the limit.
    assert (of_third, budget.used) == ([], 101)
    holding.give(11)
    assert (of_third, budget.used, budget.is_short) == ([True], 100, False)


def test_one_connection_continues_whatever_the_others_hold() -> None:
    budget = MemoryBudget(LIMIT)
    first, second = budget.account(), budget.account()
    assert first.take(LIMIT, nothing)
    assert second.take(NEED, nothing)
    assert second.take(NEED, nothing)
    of_first = waits_for(first, 1)

    second.give(2 * NEED)

    assert of_first == [True]


def test_what_is_kept_to_save_time_is_given_back_first() -> None:
    budget = MemoryBudget(LIMIT)
    kept, other = budget.account(), budget.account()
    assert kept.take(LIMIT, nothing)
    budget.spare = kept.give

    assert other.take(30, nothing)
    assert (kept.held, budget.used, budget.waits) == (70, LIMIT, 0)

    assert other.take_if_free(60)
    assert (kept.held, other.held) == (10, 90)
    assert not other.take_if_free(11)
    assert (kept.held, other.held, budget.is_short) == (0, 90, False)


def test_a_fetch_gets_a_part_of_what_is_free() -> None:
    budget = MemoryBudget(80 * LEAST_SHARE)
    account = budget.account()
    assert account.share == 20 * LEAST_SHARE
    assert account.take(60 * LEAST_SHARE, nothing)
    assert account.share == 5 * LEAST_SHARE
    assert account.take(20 * LEAST_SHARE, nothing)
    assert account.share == LEAST_SHARE


def test_an_account_that_is_closed_waits_no_more() -> None:
    budget = MemoryBudget(LIMIT)
    holding, ahead, waiting = (budget.account() for _ in range(3))
    assert holding.take(LIMIT, nothing)
    assert ahead.take(1, nothing)
    taken = waits_for(waiting, 10)

    waiting.close()
    holding.close()
    ahead.close()

    assert (taken, budget.used, budget.is_short) == ([], 0, False)


def test_a_wait_ends_with_the_memory_or_with_its_time() -> None:
    async def work() -> None:
        budget = MemoryBudget(LIMIT)
        holding, ahead, waiting = (budget.account() for _ in range(3))
        assert await holding.wait(LIMIT, 0)
        assert await ahead.wait(1, 0)
        assert not await waiting.wait(10, 0.01)
        assert not budget.is_short

        given_up = asyncio.ensure_future(waiting.wait(10, 30))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        assert (waiting.held, budget.is_short) == (0, False)

        asked = asyncio.ensure_future(waiting.wait(10, 30))
        await asyncio.sleep(0)
        holding.give(50)
        assert await asked
        assert (waiting.held, budget.used) == (10, 61)

    asyncio.run(asyncio.wait_for(work(), 30))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, NEED)), max_size=60))
def test_all_needs_are_met_and_never_more_than_one_over_the_limit(needs: list[tuple[int, int]]) -> None:
    budget = MemoryBudget(LIMIT)
    accounts = [budget.account() for _ in range(6)]
    met: list[tuple[int, int]] = []

    def on_met(number: int, size: int) -> Callable[[], None]:
        return lambda: met.append((number, size))

    # Each connection takes twice before it gives anything back, as for a request and its answer.
    for number, size in needs:
        if accounts[number].take(size, on_met(number, size)):
            met.append((number, size))
        over = [each.held for each in accounts if each.held]
        assert budget.used == sum(over)
        assert budget.used - max(over, default=0) <= LIMIT

    while any(each.held for each in accounts):
        if budget.is_short:
            # Only a connection whose needs are all met can be answered.
            done = [number for number, each in enumerate(accounts) if each.held and _all_met(number, needs, met)]
            assert done
            accounts[done[0]].give(accounts[done[0]].held)
        else:
            for account in accounts:
                account.give(account.held)
    assert sorted(met) == sorted(needs)


def _all_met(number: int, needs: list[tuple[int, int]], met: list[tuple[int, int]]) -> bool:
    return [each for each in met if each[0] == number] == [each for each in needs if each[0] == number]
