"""Looks that are shared: whoever asks while one is under way, or soon after, gets what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

_T = TypeVar("_T")


class SingleFlight(Generic[_T]):
    """Looks at most once at a time, and anew only after `seconds`; what fails is not kept. For one event loop."""

    def __init__(self, seconds: float) -> None:
        """Keep what is seen for so long."""
        self._seconds = seconds
        self._begun = 0.0
        self._look: asyncio.Future[_T] | None = None

    async def get(self, look: Callable[[], Awaitable[_T]]) -> _T:
        """Return what `look` returns, or returned. Raises what it raises."""
        now = asyncio.get_running_loop().time()
        if self._look is None or self._is_over(self._look, now):
            self._begun = now
            self._look = asyncio.ensure_future(look())
        return await asyncio.shield(self._look)

    def _is_over(self, look: asyncio.Future[_T], now: float) -> bool:
        if not look.done():
            return False
        return look.cancelled() or look.exception() is not None or now > self._begun + self._seconds
