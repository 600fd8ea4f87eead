from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tenacity.wait import wait_exponential

from support.clocks import FakeTime
from tiered_storage.errors import (
    ReaderBusyError,
    ReadTimedOutError,
    RemoteObjectCorruptError,
    RemoteStorageError,
    TieredStorageError,
)
from tiered_storage.remote_log.read.chunks.fetch_deadline import FetchDeadline, ReadTiming


def outcomes(*raised: TieredStorageError) -> Iterator[TieredStorageError | None]:
    yield from raised
    while True:
        yield None


def attempt(time: FakeTime, wait_ms: int, *raised: TieredStorageError) -> str:
    """Attempt what fails with `raised`, one after the other, and then succeeds."""
    coming = outcomes(*raised)
    deadline = FetchDeadline.after(wait_ms, ReadTiming(time.now, time.sleep, wait_exponential(multiplier=0.1)))

    async def once() -> str:
        error = next(coming)
        if error is not None:
            raise error
        return "fetched"

    return asyncio.run(deadline.attempt(once))


def test_a_fetch_that_succeeds_does_not_wait() -> None:
    time = FakeTime()
    assert attempt(time, 1000) == "fetched"
    assert time.slept == []


def test_retriable_errors_are_retried_after_growing_pauses() -> None:
    time = FakeTime()
    failures = [RemoteStorageError("503"), ReaderBusyError("full"), RemoteStorageError("503")]
    assert attempt(time, 10_000, *failures) == "fetched"
    assert time.slept == pytest.approx([0.02, 0.1, 0.2])


def test_when_the_time_is_up_the_last_error_is_reported_and_no_pause_outlasts_it() -> None:
    time = FakeTime()
    begun = time.seconds
    with pytest.raises(RemoteStorageError, match="number 3"):
        attempt(time, 500, *(RemoteStorageError(f"number {number}") for number in range(100)))
    assert time.seconds - begun < 0.5


@pytest.mark.parametrize("error", [RemoteObjectCorruptError("rotten"), ReadTimedOutError("slow")])
def test_a_permanent_error_is_reported_at_once(error: TieredStorageError) -> None:
    time = FakeTime()
    with pytest.raises(type(error)):
        attempt(time, 10_000, error)
    assert time.slept == []
