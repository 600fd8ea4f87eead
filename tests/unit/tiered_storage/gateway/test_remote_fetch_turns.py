"""When remote records of a Fetch are read, and what a consumer gets if their turn does not come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

import pytest

from tiered_storage.gateway import remote_fetch
from tiered_storage.gateway.limits.remote_share import RemoteShare
from tiered_storage.gateway.limits.remote_turns import RemoteTurns
from tiered_storage.kafka_wire.partition_offsets import PartitionOffsets
from unit.tiered_storage.gateway.brokers import ScriptedBroker
from unit.tiered_storage.gateway.remote_consumers import Consumer, filled_all


class BusyTurns(RemoteTurns):
    """Turns of a process with much remote work: a Fetch of 4 partitions waits until all but one are given up."""

    def __init__(self) -> None:
        super().__init__()
        self.count = self.given_up = 0
        self.is_free = asyncio.Event()

    async def next(self) -> None:
        self.count += 1
        if self.count in range(2, 6):
            try:
                await self.is_free.wait()
            except asyncio.CancelledError:
                self.given_up += 1
                if self.given_up == 3:
                    self.is_free.set()
                raise


def test_however_many_reads_wait_an_answer_has_the_records_of_one_partition() -> None:
    fetch = Consumer(ScriptedBroker(PartitionOffsets(105, 200, 200))).new_fetch(BusyTurns())

    _, found = asyncio.run(asyncio.wait_for(filled_all(fetch, 50, partitions=4), 30))

    assert [bool(each.records) for each in found] == [True, False, False, False]
    assert {each.error_code for each in found} == {0}
    assert fetch.needs_share()


Result = TypeVar("Result")


class FullShare(RemoteShare):
    """The share of a process that does all the remote work it may, until `is_free`."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[int] = []
        self.counted = 0
        self.is_free = False

    async def timed(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        self.counted += 1
        return await work()

    def queue(self) -> int:
        self.places.append(super().queue())
        return self.places[-1]

    async def begin(self, place: int, seconds: float) -> bool:
        del seconds
        assert place in self.places
        return self.is_free


def test_a_fetch_with_local_records_does_not_wait_for_its_place_and_the_next_one_takes_it() -> None:
    share = FullShare()
    fetch = Consumer(ScriptedBroker(PartitionOffsets(105, 200, 200))).new_fetch(share=share)

    async def three_times() -> list[bool]:
        answers = [await filled_all(fetch, 50, partitions=1, local=b"local") for _ in range(2)]
        share.is_free = True
        answers.append(await filled_all(fetch, 50, partitions=1, local=b"local"))
        assert {each.error_code for _, found in answers for each in found} == {0}
        assert {bytes(local.records) for _, (_, local) in answers} == {b"local"}
        return [bool(remote.records) for _, (remote, _) in answers]

    assert asyncio.run(asyncio.wait_for(three_times(), 30)) == [False, False, True]
    assert len(share.places) == 1
    # What may not begin is not counted: nothing would pace it, and it would take the time of what may.
    assert share.counted == 1


class UnpaidShare(RemoteShare):
    """The share of a process in which no piece gets its turn."""

    async def piece(self, work: Callable[[], Coroutine[Any, Any, Result]], end: float | None = None) -> Result:
        async with asyncio.timeout_at(end):
            await asyncio.Event().wait()
        return await work()


def test_a_fetch_whose_pieces_never_begin_is_answered_without_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_fetch, "QUEUED_SECONDS", 0.01)
    fetch = Consumer(ScriptedBroker(PartitionOffsets(105, 200, 200))).new_fetch(share=UnpaidShare())

    _, found = asyncio.run(asyncio.wait_for(filled_all(fetch, 50, partitions=2), 30))

    assert [(each.error_code, bytes(each.records)) for each in found] == [(0, b"")] * 2
    assert fetch.needs_share()


class StuckTurns(RemoteTurns):
    """Turns of which the third never comes."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    async def next(self) -> None:
        self.count += 1
        if self.count == 3:
            await asyncio.Event().wait()


@pytest.mark.parametrize("partitions", [1, 2], ids=["after-its-pieces", "amid-its-pieces"])
def test_a_fetch_that_is_given_up_ends_the_reads_that_it_opened(partitions: int) -> None:
    consumer, turns = Consumer(ScriptedBroker(PartitionOffsets(105, 200, 200))), StuckTurns()

    async def given_up() -> None:
        fetch = consumer.new_fetch(turns)
        work = asyncio.create_task(filled_all(fetch, 50, partitions=partitions))
        while turns.count < 3 or not consumer.remote.begun:
            await asyncio.sleep(0)
        await some_rounds()
        work.cancel()
        await some_rounds()
        # Without the reference to it, only the garbage collector would end it.
        assert [cast(Any, each).ag_frame for each in consumer.remote.opened] == [None]

    asyncio.run(asyncio.wait_for(given_up(), 30))


async def some_rounds() -> None:
    for _ in range(20):
        await asyncio.sleep(0)
