from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest

from tiered_storage.errors import ConfigurationError, ReaderBusyError
from tiered_storage.remote_log.read.chunks.reader_pools import ReaderPool, outcome_of


class Gate:
    """Work that waits until it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.open = threading.Event()

    def work(self) -> str:
        self.begun.release()
        assert self.open.wait(10)
        return "done"


def test_submitted_work_is_done_in_order_and_errors_are_returned() -> None:
    pool = ReaderPool("reads", 1)
    done: list[int] = []
    futures = [pool.submit(partial(done.append, number)) for number in range(20)]
    failing = pool.submit(lambda: 1 // 0)

    for future in futures:
        future.result(10)
    assert done == list(range(20))
    with pytest.raises(ZeroDivisionError):
        failing.result(10)
    pool.close()


@pytest.mark.parametrize(("threads", "pending"), [(1, 1), (3, 2), (2, 0)])
def test_so_many_run_at_once_and_so_many_may_wait(threads: int, pending: int) -> None:
    pool, gate = ReaderPool("reads", threads, pending), Gate()
    taken = [pool.submit(gate.work) for _ in range(threads + pending)]
    for _ in range(threads):
        assert gate.begun.acquire(timeout=10)

    assert (pool.running, pool.pending) == (threads, pending)
    assert not pool.has_room()
    with pytest.raises(ReaderBusyError, match=f"full: {pending} "):
        pool.submit(gate.work)
    gate.open.set()
    assert [future.result(10) for future in taken] == ["done"] * len(taken)
    assert pool.submit(lambda: "again").result(10) == "again"
    pool.close()


def test_withdrawing_waiting_work_frees_its_place() -> None:
    pool, gate = ReaderPool("reads", 1, 1), Gate()
    running = pool.submit(gate.work)
    assert gate.begun.acquire(timeout=10)
    waiting = pool.submit(gate.work)

    assert pool.withdraw(waiting)
    assert waiting.cancelled()
    assert pool.pending == 0
    assert not pool.withdraw(running)
    another = pool.submit(lambda: "another")
    gate.open.set()
    assert (running.result(10), another.result(10)) == ("done", "another")
    pool.close()


def test_after_its_end_a_pool_takes_nothing_and_what_waited_is_refused() -> None:
    pool, gate = ReaderPool("reads", 1), Gate()
    running, waiting = pool.submit(gate.work), pool.submit(gate.work)
    assert gate.begun.acquire(timeout=10)
    pool.close()

    with pytest.raises(ConfigurationError, match="closed"):
        waiting.result(10)
    with pytest.raises(ConfigurationError, match="closed"):
        pool.submit(gate.work)
    gate.open.set()
    assert running.result(10) == "done"


def test_work_continues_if_its_waiter_leaves_or_times_out() -> None:
    pool, gate = ReaderPool("reads", 1), Gate()
    future = pool.submit(gate.work)

    async def wait() -> None:
        with pytest.raises(TimeoutError):
            await outcome_of(future, 0.001)
        leaving = asyncio.create_task(outcome_of(future))
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        gate.open.set()
        assert await outcome_of(future) == "done"

    asyncio.run(wait())
    pool.close()
