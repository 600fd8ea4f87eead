"""The clock that everything is handed, so that a test, a backfill and a demo can bring their own."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

Clock = Callable[[], int]
"""Returns ms since the epoch."""


def wall_clock() -> int:
    """Return the machine's time in ms since the epoch."""
    return time.time_ns() // 1_000_000


def as_date(moment: int) -> str:
    """Return `moment` (ms) as a person reads it, such as 2026-11-23 10:00:00 UTC; with milliseconds if it has any."""
    # Not fromtimestamp: what somebody wrote into the database must not end in an error of another kind.
    try:
        time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=moment)
    except OverflowError:
        return f"{moment} ms"
    return f"{time:%Y-%m-%d %H:%M:%S}{f'.{moment % 1000:03}' if moment % 1000 else ''} UTC"
