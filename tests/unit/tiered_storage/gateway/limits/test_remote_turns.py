"""The turns of remote work, in an event loop whose time the test sets."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import pytest

from tiered_storage.gateway.limits.remote_share import LOCAL_SECONDS, RemoteShare
from tiered_storage.gateway.limits.remote_turns import RemoteTurns

ROUND_SECONDS = 0.0001
"""What a round of the event loop takes beside the pieces in it."""
LONG_SECONDS, PROMPT_SECONDS = 1e6, 0.02


@dataclass(slots=True)
class Machine:
    """A process whose event loop has a processor alone; its time passes by rounds and by what is done in them."""

    percent: int = 100
    now: float = 0.0
    in_loop: float = 0.0
    """What the event loop's thread used (seconds)."""
    in_threads: float = 0.0
    """What the other threads used, on the other processors."""
    rounds: int = 0
    begun: list[tuple[int, float, int]] = field(default_factory=list)
    """Round, time (seconds) and client of each piece."""

    def share(self) -> RemoteShare:
        return RemoteShare(self.percent, lambda: self.in_loop + self.in_threads, lambda: self.in_loop)

    def start(self) -> None:
        """Let rounds and time pass in the running event loop."""
        loop = asyncio.get_running_loop()
        loop.time = lambda: self.now  # type: ignore[method-assign]

        def pass_round() -> None:
            self.rounds += 1
            self.now += ROUND_SECONDS
            loop.call_soon(pass_round)

        pass_round()

    def use(self, seconds: float) -> None:
        """Let the event loop work."""
        self.now += seconds
        self.in_loop += seconds

    async def pieces(self, turns: RemoteTurns, client: int, number: int, seconds: float) -> None:
        """Do `number` pieces of remote work."""
        for _ in range(number):
            await turns.next()
            self.begun.append((self.rounds, self.now, client))
            self.use(seconds)

    async def read(self, share: RemoteShare, client: int, fetches: int, seconds: float) -> None:
        """Do `fetches` of two pieces each, begun at once, of which another thread does half."""
        turns = RemoteTurns()

        async def piece() -> None:
            await share.piece(partial(self.pieces, turns, client, 1, seconds / 4))
            self.in_threads += seconds / 4

        for _ in range(fetches):
            place = share.queue()
            assert await share.begin(place, LONG_SECONDS)
            pieces = asyncio.gather(piece(), piece())
            share.pass_on(place)
            await pieces

    async def pass_on(self, share: RemoteShare, busy: float) -> None:
        """Pass on local answers, which take the share `busy` of the event loop's time."""
        while True:
            share.pace()
            self.use(busy * 0.01)
            until = self.now + (1 - busy) * 0.01
            while self.now < until:
                await asyncio.sleep(0)

    def run(self, clients: int, fetches: int, seconds: float, *, busy: float | None = None) -> float:
        """Let `clients` read at once, beside local answers unless `busy` is None; return the seconds that it takes."""

        async def all_at_once() -> None:
            self.start()
            share = self.share()
            local = asyncio.create_task(asyncio.Event().wait() if busy is None else self.pass_on(share, busy))
            await asyncio.sleep(0)
            await asyncio.gather(*(self.read(share, each, fetches, seconds) for each in range(clients)))
            local.cancel()

        asyncio.run(all_at_once())
        return self.now


def numbers_of(machine: Machine) -> list[int]:
    return [client for _, _, client in machine.begun]


@pytest.mark.parametrize(("seconds", "clients", "are_spread"), [(0.002, 10, True), (0.002, 1, True), (0.0, 1, False)])
def test_long_pieces_are_spread_over_rounds_and_each_client_gets_its_turn(
    seconds: float, clients: int, are_spread: bool
) -> None:
    machine = Machine()

    async def at_once() -> None:
        machine.start()
        turns = RemoteTurns()
        await asyncio.gather(*(machine.pieces(turns, each, 3, seconds) for each in range(clients)))

    asyncio.run(at_once())
    rounds = [each for each, _, _ in machine.begun]
    assert (len(set(rounds)) == len(rounds)) == are_spread
    numbers = numbers_of(machine)
    assert [numbers.count(each) for each in range(clients)] == clients * [3]
    # Nobody has a third turn before all have had one.
    assert set(numbers[: clients + 1]) >= set(range(clients))


def test_a_piece_that_was_cancelled_holds_up_nobody() -> None:
    machine = Machine()

    async def with_one_cancelled() -> None:
        machine.start()
        turns = RemoteTurns()
        work = [asyncio.create_task(machine.pieces(turns, each, 3, 0.002)) for each in range(3)]
        await asyncio.sleep(0)
        work[1].cancel()
        await asyncio.gather(work[0], work[2])

    asyncio.run(with_one_cancelled())
    assert [client for client in numbers_of(machine) if client != 1].count(0) == 3


@pytest.mark.parametrize("percent", [10, 40])
@pytest.mark.parametrize("seconds", [0.001, 0.02])
@pytest.mark.parametrize("busy", [0.01, 0.5])
def test_beside_local_answers_remote_work_has_its_share_whatever_those_take(
    percent: int, seconds: float, busy: float
) -> None:
    machine = Machine(percent)

    taken = machine.run(10, 12, seconds, busy=busy)

    assert 0.8 * percent / 100 < 120 * seconds / taken < 1.1 * percent / 100
    # In the order of the queue: no client is far ahead of another one.
    numbers = numbers_of(machine)
    assert all(numbers[: len(numbers) // 2].count(each) > 8 for each in range(10))


def test_remote_work_comes_in_small_portions() -> None:
    machine = Machine(10)

    machine.run(50, 3, 0.01, busy=0.01)

    at = [each for _, each, _ in machine.begun][len(machine.begun) // 2 :]
    # A piece costs 5 ms, so one begins every 50 ms.
    assert max(sum(begin <= each < begin + 0.05 for each in at) for begin in at) <= 2


def test_without_local_answers_or_a_limit_remote_work_never_pauses() -> None:
    free, unlimited = Machine(40), Machine(100)

    assert free.run(10, 50, 0.002) < 1.1 * 500 * 0.002
    assert unlimited.run(10, 50, 0.002, busy=0.01) < 1.1 * 500 * 0.002


def test_after_the_last_local_answer_remote_work_has_the_processor_again() -> None:
    machine = Machine(10)

    async def local_first() -> None:
        machine.start()
        share = machine.share()
        share.pace()
        await machine.read(share, 0, 1000, 0.002)

    asyncio.run(local_first())
    before = [at for _, at, _ in machine.begun if at < LOCAL_SECONDS]
    after = [at for _, at, _ in machine.begun if at > 1.2 * LOCAL_SECONDS]
    assert len(before) < 2 * 0.15 * LOCAL_SECONDS / 0.002
    assert len(after) > 1500
    assert after[-1] - after[0] < 0.7 * len(after) / 2 * 0.002


def test_a_fetch_that_hangs_or_leaves_the_queue_holds_up_nobody() -> None:
    machine = Machine(20)

    async def beside_others() -> None:
        machine.start()
        share = machine.share()
        local = asyncio.create_task(machine.pass_on(share, 0.01))
        await asyncio.sleep(0)
        assert await share.begin(share.queue(), LONG_SECONDS)
        hung = asyncio.create_task(share.piece(hangs))
        reads = asyncio.gather(*(machine.read(share, each, 10, 0.01) for each in range(3)))
        left = asyncio.create_task(share.begin(share.queue(), LONG_SECONDS))
        await asyncio.sleep(0)
        left.cancel()
        await reads
        hung.cancel()
        local.cancel()

    async def hangs() -> None:
        await asyncio.Event().wait()

    asyncio.run(beside_others())
    assert [numbers_of(machine).count(each) for each in range(3)] == [20, 20, 20]


def test_clients_between_two_fetches_hold_up_nobody_keep_their_places_and_begin_one_after_the_other() -> None:
    machine = Machine(20)
    begun: list[tuple[int, float]] = []

    async def turn(share: RemoteShare, place: int) -> None:
        assert await share.begin(place, LONG_SECONDS)
        begun.append((place, machine.now))

    async def beside_local_answers() -> list[int]:
        machine.start()
        share = machine.share()
        local = asyncio.create_task(machine.pass_on(share, 0.01))
        await asyncio.sleep(0)
        places = [share.queue() for _ in range(5)]
        assert await share.begin(places[0], 0)
        # Three Fetches wait in vain, and their clients have others to do.
        assert [await share.begin(each, 0) for each in places[1:4]] == [False, False, False]
        share.pass_on(places[0])
        passed_on = machine.now
        await turn(share, places[4])
        assert begun[0][1] - passed_on < PROMPT_SECONDS

        returned = [asyncio.create_task(turn(share, each)) for each in reversed(places[1:4])]
        await asyncio.sleep(2 * PROMPT_SECONDS)
        for each in (places[4], *places[1:3]):
            share.pass_on(each)
            await asyncio.sleep(2 * PROMPT_SECONDS)
        await asyncio.gather(*returned)
        local.cancel()
        return [*places[4:], *places[1:4]]

    places = asyncio.run(beside_local_answers())
    assert [place for place, _ in begun] == places
    assert all(second - first > PROMPT_SECONDS for (_, first), (_, second) in pairwise(begun))


def test_work_that_is_cancelled_before_its_first_step_was_never_begun(recwarn: pytest.WarningsRecorder) -> None:
    async def cancelled() -> None:
        share = RemoteShare(20)
        work = [asyncio.create_task(await_it(asyncio.Event().wait)) for await_it in (share.timed, share.piece)]
        for each in work:
            each.cancel()
        await asyncio.gather(*work, return_exceptions=True)

    asyncio.run(cancelled())
    gc.collect()
    assert [str(each.message) for each in recwarn] == []
