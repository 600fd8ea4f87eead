from __future__ import annotations

import threading

import pytest

from tiered_storage.remote_log.jobs.threads import JobThreads


def test_every_group_is_run_once_by_so_many_at_a_time() -> None:
    both = threading.Barrier(2, timeout=20)
    ran: list[int] = []

    def run(number: int) -> None:
        both.wait()
        ran.append(number)

    JobThreads(4, 2, run).run()
    assert sorted(ran) == [0, 1, 2, 3]
    JobThreads(0, 2, run).run()


def test_an_error_of_a_group_is_raised_and_no_other_group_begins() -> None:
    ran: list[int] = []

    def run(number: int) -> None:
        ran.append(number)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        JobThreads(4, 1, run).run()
    assert ran == [0]


def test_a_hanging_group_is_abandoned() -> None:
    hangs, goes_on = threading.Event(), threading.Event()
    ran: list[int] = []

    def run(number: int) -> None:
        ran.append(number)
        hangs.set()
        goes_on.wait(20)

    threads = JobThreads(2, 1, run)
    waiting = threading.Thread(target=threads.run)
    waiting.start()
    assert hangs.wait(20)
    threads.give_up()
    waiting.join(20)
    assert not waiting.is_alive()
    goes_on.set()
    for thread in threading.enumerate():
        if thread.name.startswith("group-"):
            assert thread.daemon
            thread.join(20)
    assert ran == [0]
