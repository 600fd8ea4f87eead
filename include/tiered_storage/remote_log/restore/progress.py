"""Says now and then how far a restore is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class RestoreProgress:
    """Counts the bytes that came, from any thread, and says so at most every `every_seconds`."""

    def __init__(
        self,
        total: int,
        say: Callable[[str], None],
        *,
        every_seconds: float = 30,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Count up to `total` bytes."""
        self._total = total
        self._say = say
        self._every = every_seconds
        self._monotonic = monotonic
        self._begun = self._said = monotonic()
        self._done = 0
        self._lock = threading.Lock()

    def __call__(self, count: int) -> None:
        """Take `count` more bytes."""
        with self._lock:
            self._done += count
            now = self._monotonic()
            if now - self._said < self._every:
                return
            self._said = now
            self._say(self._told(now - self._begun))

    def _told(self, seconds: float) -> str:
        rate = self._done / seconds if seconds > 0 else 0
        left = f"{max(0, self._total - self._done) / rate:,.0f} s left" if rate else "no end in sight"
        return f"restored so far: {self._done:,} of {self._total:,} bytes, {rate / 1e6:,.1f} MB/s, {left}"
