"""The clocks that everything is handed, so that a test, a backfill and a demo can bring their own."""

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

    Nobody sets this clock. It stands still while a virtual machine is paused. `is_synchronised`: whether the kernel
    says that the wall clock, which can be set, is synchronised by NTP.
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
        # A sandbox may hide it: then a restart is noticed by the time since it, which is less than it was.
        boot_id = "unknown"
    return BootTime(boot_id, time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000, is_synchronised_by_ntp())


class _KernelTime(ctypes.Structure):
    """The beginning of struct timex (adjtimex(2)), and more room than its rest takes."""

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
    """Return whether the kernel says that NTP synchronised the clock. A clock that is set by hand is not.

    A kernel that does not say so counts as not synchronised.
    """
    found = _KernelTime(modes=0)
    try:
        state: int = ctypes.CDLL(None).adjtimex(ctypes.byref(found))
    except (OSError, AttributeError):
        return False
    return 0 <= state < _TIME_ERROR and not found.status & _STA_UNSYNC


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
