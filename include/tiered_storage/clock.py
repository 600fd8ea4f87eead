"""Clocks are passed in as arguments, so that a test, a backfill or a demo can use its own."""

from __future__ import annotations

import ctypes
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

    This clock cannot be set. It stops while a virtual machine is paused. `is_synchronised`: whether the kernel
    reports that NTP synchronises the wall clock, which can be set.
    """

    boot_id: str
    ms: int
    is_synchronised: bool = False


BootClock = Callable[[], BootTime]


def machine_boot_time() -> BootTime:
    """Return how long this machine has been running."""
    try:
        boot_id = _BOOT_ID.read_text().strip()
    except OSError:
        # A sandbox may hide the id: then only a smaller uptime shows a restart.
        boot_id = "unknown"
    return BootTime(boot_id, time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000, is_synchronised_by_ntp())


class _KernelTime(ctypes.Structure):
    """The beginning of struct timex (adjtimex(2)), with more than enough room for the rest."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("frequency", ctypes.c_long),
        ("max_error", ctypes.c_long),
        ("estimated_error", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 512),
    )


_TIME_ERROR = 5
_STA_UNSYNC = 0x40


def is_synchronised_by_ntp() -> bool:
    """Return whether the kernel reports that NTP synchronised the clock; False for a clock set by hand.

    A kernel that does not report it counts as not synchronised.
    """
    found = _KernelTime(modes=0)
    try:
        state: int = ctypes.CDLL(None).adjtimex(ctypes.pointer(found))
    except (OSError, AttributeError):
        return False
    return 0 <= state < _TIME_ERROR and not found.status & _STA_UNSYNC


def wall_clock() -> int:
    """Return the machine's time in ms since the epoch."""
    return time.time_ns() // 1_000_000


def as_date(moment: int) -> str:
    """Format `moment` (ms) for people, such as 2026-11-23 10:00:00 UTC; with milliseconds if it has any."""
    # Not fromtimestamp: an invalid time in the database must not raise another kind of error.
    try:
        time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=moment)
    except OverflowError:
        return f"{moment} ms"
    return f"{time:%Y-%m-%d %H:%M:%S}{f'.{moment % 1000:03}' if moment % 1000 else ''} UTC"
