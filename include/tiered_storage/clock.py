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
    """Return `moment` (ms) as a person reads it."""
    # Not fromtimestamp: what somebody wrote into the database must not end in an error of another kind.
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=moment)).isoformat(timespec="seconds")
    except OverflowError:
        return f"{moment} ms"
