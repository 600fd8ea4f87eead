"""Requests that run at the same time: how many, in which order their results come, what an error does."""

from __future__ import annotations

from threading import Barrier, Event, Lock

import pytest

from tiered_storage.errors import RemoteStorageError
from tiered_storage.remote_log.storage.concurrent_requests import REQUESTS_AT_ONCE, concurrent_map

MANY = range(3 * REQUESTS_AT_ONCE)
PATIENCE = 60.0


def test_all_that_may_run_at_the_same_time_do_and_no_more() -> None:
    together, lock, running, most = Barrier(REQUESTS_AT_ONCE), Lock(), 0, 0

    def ask(_: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait(PATIENCE)
        with lock:
            running -= 1

    list(concurrent_map(ask, MANY))

    assert most == REQUESTS_AT_ONCE


def test_results_come_in_the_order_of_the_items() -> None:
    second = Event()

    def ask(number: int) -> int:
        if number == 0:
            assert second.wait(PATIENCE)
        second.set()
        return -number

    assert list(concurrent_map(ask, MANY)) == [-number for number in MANY]


@pytest.mark.parametrize("items", [(), (7,)])
def test_zero_or_one_item_needs_no_thread(items: tuple[int, ...]) -> None:
    assert list(concurrent_map(lambda number: number + 1, items)) == [number + 1 for number in items]


def test_an_error_comes_in_place_of_its_result_once_all_that_run_have_ended() -> None:
    failed, ended = Event(), list[int]()

    def ask(number: int) -> int:
        if number == 1:
            failed.set()
            raise RemoteStorageError("the store is down")
        if number == 2:
            assert failed.wait(PATIENCE)
        ended.append(number)
        return number

    results = concurrent_map(ask, range(3))

    assert next(results) == 0
    with pytest.raises(RemoteStorageError, match="is down"):
        next(results)
    assert sorted(ended) == [0, 2]
