"""Turns for those who send: however many they are, who asks for something small waits for few of them."""

from __future__ import annotations

import asyncio
from collections import deque


class Turns:
    """Lets `most` go on in one turn of the event loop, in the order in which they came. For one event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._left = most
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Return when it is one's turn."""
        loop = asyncio.get_running_loop()
        if self._left == self._most:
            loop.call_soon(self._begin_anew, loop)
        if self._left and not self._waiting:
            self._left -= 1
            return
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _begin_anew(self, loop: asyncio.AbstractEventLoop) -> None:
        self._left = self._most
        while self._left and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self._left -= 1
        if self._left < self._most:
            loop.call_soon(self._begin_anew, loop)
