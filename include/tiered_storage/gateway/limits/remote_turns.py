"""Spread remote work over rounds of the event loop, so that answers passed on from brokers wait little for it.

Many remote readers that never pause use all that a process gets; local answers then wait for the event loop. So each
piece of remote work takes a round of the loop of its own. See also remote_share.py.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

_TURN_SECONDS: Final = 0.001


class RemoteTurns:
    """Spreads pieces of remote work over rounds of the event loop. For one event loop.

    While pieces wait, each round has one of them, in the order in which they came. Otherwise a round has all that come
    in its first millisecond: a client that reads alone never waits.
    """

    def __init__(self) -> None:
        """Let the first piece begin at once."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_taken = False
        self._taken_at = 0.0

    async def next(self) -> None:
        """Wait for a round that has time for a piece."""
        loop = asyncio.get_running_loop()
        if not self._is_taken:
            self._is_taken, self._taken_at = True, loop.time()
            loop.call_soon(self._begin_round)
            return
        if not self._waiting and loop.time() - self._taken_at < _TURN_SECONDS:
            return
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _begin_round(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                loop = asyncio.get_running_loop()
                self._taken_at = loop.time()
                loop.call_soon(self._begin_round)
                return
        self._is_taken = False
