"""Limit a byte rate, so that a check in the background leaves bandwidth for others."""

from __future__ import annotations

import time
from collections.abc import Callable

UNLIMITED = -1


class RateLimit:
    """Allows `bytes_per_second`, counted from the first; -1: no limit. For one thread.

    Bytes unused in a pause are not saved up: afterwards the same rate holds.
    """

    def __init__(
        self,
        bytes_per_second: int = UNLIMITED,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Measure by `now` (seconds) and wait by `sleep` (seconds)."""
        self._seconds_a_byte = 0.0 if bytes_per_second <= 0 else 1 / bytes_per_second
        self._now = now
        self._sleep = sleep
        self._free_at = now()

    def spend(self, size: int) -> None:
        """Report that `size` bytes have passed; return once they are allowed."""
        if not self._seconds_a_byte:
            return
        now = self._now()
        self._free_at = max(self._free_at, now) + size * self._seconds_a_byte
        if self._free_at > now:
            self._sleep(self._free_at - now)


class ToldLimit(RateLimit):
    """A rate limit that reports the bytes that passed to `on_spent`."""

    def __init__(self, limit: RateLimit, on_spent: Callable[[int], None]) -> None:
        super().__init__()
        self._limit = limit
        self._on_spent = on_spent

    def spend(self, size: int) -> None:
        self._limit.spend(size)
        self._on_spent(size)
