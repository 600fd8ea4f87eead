"""The turns of remote work, in an event loop whose time the test sets."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from tiered_storage.gateway.limits.remote_turns import LOCAL_SECONDS, MOST_PAUSE_SECONDS, RemoteTurns

ROUND_SECONDS = 0.0001
"""What a round of the event loop takes beside the pieces in it."""


@dataclass(slots=True)
class Machine:
    """One processor that an event loop has alone; its time passes by rounds and by pieces of work."""

    percent: int = 100
    now: float = 0.0
    used: float = 0.0
    rounds: int = 0
    begun: list[tuple[int, float, int]] = field(default_factory=list)
    """Round, time (seconds) and client of each piece."""

    def turns(self) -> RemoteTurns:
        return RemoteTurns(self.percent, lambda: self.used)

    def start(self) -> None:
        """Let rounds and time pass in the running event loop."""
        loop = asyncio.get_running_loop()
        loop.time = lambda: self.now  # type: ignore[method-assign]

        def pass_round() -> None:
            self.rounds += 1
            self.now += ROUND_SECONDS
            loop.call_soon(pass_round)

        pass_round()

    async def work(self, turns: RemoteTurns, client: int, pieces: int, seconds: float, *, is_local: bool) -> None:
        """Do `pieces` that take `seconds` each; with `is_local`, local answers pass meanwhile."""
        for _ in range(pieces):
            if is_local:
                turns.pace()
            await turns.next()
            self.begun.append((self.rounds, self.now, client))
            self.now += seconds
            self.used += seconds

    def run(self, clients: int, pieces: int, seconds: float, *, is_local: bool = False) -> None:
        """Let `clients` do so at once."""

        async def all_at_once() -> None:
            self.start()
            turns = self.turns()
            work = (self.work(turns, each, pieces, seconds, is_local=is_local) for each in range(clients))
            await asyncio.gather(*work)

        asyncio.run(all_at_once())


@pytest.mark.parametrize(("seconds", "clients", "are_spread"), [(0.002, 10, True), (0.002, 1, True), (0.0, 1, False)])
def test_long_pieces_are_spread_over_rounds_and_each_client_gets_its_turn(
    seconds: float, clients: int, are_spread: bool
) -> None:
    machine = Machine()

    machine.run(clients, 3, seconds)

    rounds = [each for each, _, _ in machine.begun]
    assert (len(set(rounds)) == len(rounds)) == are_spread
    numbers = [client for _, _, client in machine.begun]
    assert [numbers.count(each) for each in range(clients)] == clients * [3]
    # Nobody has a third turn before all have had one.
    assert set(numbers[: clients + 1]) >= set(range(clients))


def test_a_piece_that_was_cancelled_holds_up_nobody() -> None:
    machine = Machine()

    async def with_one_cancelled() -> None:
        machine.start()
        turns = machine.turns()
        work = [asyncio.create_task(machine.work(turns, each, 3, 0.002, is_local=False)) for each in range(3)]
        await asyncio.sleep(0)
        work[1].cancel()
        await asyncio.gather(work[0], work[2])

    asyncio.run(with_one_cancelled())
    assert [client for _, _, client in machine.begun if client != 1].count(0) == 3


@pytest.mark.parametrize("percent", [20, 40, 80])
@pytest.mark.parametrize("seconds", [0.0005, 0.002])
def test_beside_local_answers_remote_work_keeps_to_its_share(percent: int, seconds: float) -> None:
    machine = Machine(percent)

    machine.run(10, 50, seconds, is_local=True)

    share = machine.used / machine.now
    assert 0.9 * percent / 100 < share < 1.05 * percent / 100


def test_without_local_answers_or_a_limit_remote_work_never_pauses() -> None:
    free, unlimited = Machine(40), Machine(100)

    free.run(10, 50, 0.002)
    unlimited.run(10, 50, 0.002, is_local=True)

    assert free.used / free.now > 0.9
    assert unlimited.used / unlimited.now > 0.9


def test_after_the_last_local_answer_remote_work_has_the_processor_again() -> None:
    machine = Machine(10)

    async def local_first() -> None:
        machine.start()
        turns = machine.turns()
        turns.pace()
        await machine.work(turns, 0, 1000, 0.002, is_local=False)

    asyncio.run(local_first())
    before = [at for _, at, _ in machine.begun if at < LOCAL_SECONDS]
    after = [at for _, at, _ in machine.begun if at > LOCAL_SECONDS + MOST_PAUSE_SECONDS]
    assert len(before) < 0.15 * LOCAL_SECONDS / 0.002
    assert len(after) > 800
    assert after[-1] - after[0] < 1.2 * len(after) * 0.002


def test_remote_work_continues_though_local_work_uses_more_than_the_share() -> None:
    machine = Machine(1)

    async def beside_busy_local_work() -> None:
        machine.start()
        turns = machine.turns()
        for _ in range(20):
            turns.pace()
            await turns.next()
            machine.begun.append((machine.rounds, machine.now, 0))
            machine.used += 10.0

    asyncio.run(beside_busy_local_work())
    assert machine.now < 20 * (MOST_PAUSE_SECONDS + 10 * ROUND_SECONDS)
