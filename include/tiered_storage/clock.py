"""The clock that everything is handed, so that a test, a backfill and a demo can bring their own."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], int]
"""Returns ms since the epoch."""


def wall_clock() -> int:
    """Return the machine's time in ms since the epoch."""
    return time.time_ns() // 1_000_000
