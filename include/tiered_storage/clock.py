"""The clocks that everything is handed, so that a test, a backfill and a demo can bring their own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

Clock = Callable[[], int]
"""Returns ms since the epoch."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class BootTime:
    """How long a machine has been running: `ms` since the start `boot_id`, suspended time included.

    Nobody sets this clock. It stands still while a virtual machine is paused.
    """

    boot_id: str
    ms: int


BootClock = Callable[[], BootTime]


def machine_boot_time() -> BootTime:
    """Return how long this machine has been running."""
    try:
        boot_id = _BOOT_ID.read_text().strip()
    except OSError:
        # A sandbox may hide it: then a restart is noticed by the time since it, which is less than it was.
        boot_id = "unknown"
    return BootTime(boot_id, time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000)


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
