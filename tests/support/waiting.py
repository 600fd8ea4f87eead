"""Waiting for what another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_SECONDS = 300


def wait_for(
    condition: Callable[[], object], why: Callable[[], object] = lambda: None, seconds: float = PATIENCE_SECONDS
) -> None:
    """Wait until `condition` holds; an AssertionError says `why` not."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, why()
        time.sleep(0.05)
