"""Waiting for something with a bound."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(
    condition: Callable[[], bool],
    seconds: float,
    *,
    interval: float = 0.25,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Ask `condition` every `interval` seconds until it holds or `seconds` have passed; return whether it held."""
    end = monotonic() + seconds
    while not condition():
        if monotonic() >= end:
            return False
        sleep(interval)
    return True
