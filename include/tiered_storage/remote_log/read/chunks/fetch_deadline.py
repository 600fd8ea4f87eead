"""The deadline of one request, and its attempts until then: KIP-405's purgatory for remote fetches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception
from tenacity.wait import wait_base, wait_random_exponential

from tiered_storage.errors import ReadTimedOutError, TieredStorageError
from tiered_storage.remote_log.read.chunks.reader_pools import outcome_of

FIRST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 2.0
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ReadTiming:
    """The clock of reads: `now` (seconds, monotonic), how to `sleep`, and how long to `pause` after failures.

    Tests replace it.
    """

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    pause: wait_base = wait_random_exponential(multiplier=FIRST_PAUSE_SECONDS, max=LONGEST_PAUSE_SECONDS)  # noqa: RUF009 - it has no state


@dataclass(frozen=True, slots=True)
class FetchDeadline:
    """The moment (seconds, by `timing.now`) at which a request's `wait_ms` are over."""

    timing: ReadTiming
    wait_ms: int
    at: float

    @classmethod
    def after(cls, wait_ms: int, timing: ReadTiming) -> FetchDeadline:
        """Return the deadline of a request that begins now and may take `wait_ms`."""
        return cls(timing, wait_ms, timing.now() + wait_ms / 1000)

    @property
    def seconds_left(self) -> float:
        """The seconds left; 0 after the deadline."""
        return max(0.0, self.at - self.timing.now())

    async def outcome(self, future: Future[Result], what: str) -> Result:
        """Return the result of `future`. Raises ReadTimedOutError, naming `what`, at the deadline; work continues."""
        try:
            return await outcome_of(future, self.seconds_left)
        except TimeoutError:
            raise self._timed_out(what, "try again: the read continues, and its result is cached") from None

    async def pass_until(self, moment: float, what: str) -> None:
        """Wait until `moment` (seconds, by `timing.now`). Raises ReadTimedOutError, naming `what`, at the deadline."""
        left = moment - self.timing.now()
        if left > 0:
            await self.timing.sleep(min(left, self.seconds_left))
        if moment > self.at:
            reason = "reading this partition's metadata is slow and is not repeated so soon: try again in a few seconds"
            raise self._timed_out(what, reason)

    async def attempt(self, try_once: Callable[[], Awaitable[Result]]) -> Result:
        """Return the result of `try_once`; retry after a retriable error, with growing pauses, until the deadline.

        Raises the last error if there is no time for another attempt.
        """
        try:
            return await try_once()
        except TieredStorageError as error:
            if not error.retriable or isinstance(error, ReadTimedOutError):
                raise
        retrying = AsyncRetrying(
            sleep=self.timing.sleep,
            wait=self.timing.pause,
            stop=self._is_over,
            retry=retry_if_exception(_is_worth_another_try),
            reraise=True,
        )
        await self.timing.sleep(min(FIRST_PAUSE_SECONDS, self.seconds_left))
        return await retrying(try_once)

    def _timed_out(self, what: str, then: str) -> ReadTimedOutError:
        return ReadTimedOutError(f"{what}: no result within {self.wait_ms} ms (remote.fetch.max.wait.ms): {then}")

    def _is_over(self, state: RetryCallState) -> bool:
        return self.timing.now() + state.upcoming_sleep >= self.at


def _is_worth_another_try(error: BaseException) -> bool:
    return isinstance(error, TieredStorageError) and error.retriable and not isinstance(error, ReadTimedOutError)
