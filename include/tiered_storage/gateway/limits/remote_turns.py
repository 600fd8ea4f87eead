"""Spread and limit remote work, so that answers passed on from brokers wait little for it.

Many remote readers that never pause use all that a process gets. Local answers then wait for the event loop, and the
process itself for a processor, behind brokers and other programs. So remote work leaves time: between two pieces, and
more of it while clients write, or read what brokers have.

Source: KIP-124, where brokers limit the share of their threads' time that a client uses.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

ALL_OF_A_PROCESSOR: Final = 100
LOCAL_SECONDS: Final = 1.0
"""For how long after a local answer remote work is paced."""
MOST_PAUSE_SECONDS: Final = 0.05
"""Remote work begins again after this time, even if other work has used up its share."""
_TURN_SECONDS: Final = 0.001
_SAVED_SECONDS: Final = 0.005
"""How much unused time may be used later: timers are only exact to a millisecond."""


class RemoteTurns:
    """Spreads pieces of work over rounds of the event loop, in the order in which they came. For one event loop.

    While pieces wait, each round has one of them. Otherwise a round has all that come in its first millisecond: a
    client that reads alone never waits. While local answers pass, a pause follows each round with remote work, so that
    the process uses a share of one processor at most.
    """

    def __init__(
        self, percentage: int = ALL_OF_A_PROCESSOR, processor_time: Callable[[], float] = time.process_time
    ) -> None:
        """Leave the process `percentage` of one processor, by its `processor_time` (seconds); 100: do not pause."""
        self._share = None if percentage >= ALL_OF_A_PROCESSOR else percentage / 100
        self._processor_time = processor_time
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_taken = False
        self._taken_at = 0.0
        self._used = 0.0
        """The processor time when the last round began."""
        self._paid_until = 0.0
        """When the processor time that was used is within the share."""
        self._paced_until = 0.0

    def pace(self) -> None:
        """Leave time for local work from now on, for LOCAL_SECONDS."""
        self._paced_until = asyncio.get_running_loop().time() + LOCAL_SECONDS

    async def next(self) -> None:
        """Wait for a round that has time for a piece."""
        loop = asyncio.get_running_loop()
        if not self._is_taken:
            self._is_taken, self._taken_at, self._used = True, loop.time(), self._processor_time()
            loop.call_soon(self._end_round)
            return
        if not self._waiting and loop.time() - self._taken_at < _TURN_SECONDS:
            return
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _end_round(self) -> None:
        loop = asyncio.get_running_loop()
        pause = self._pause(loop.time())
        if pause > 0:
            loop.call_later(pause, self._begin_round)
        else:
            self._begin_round()

    def _pause(self, now: float) -> float:
        """Return how long (seconds) the next round has to wait."""
        if self._share is None or now >= self._paced_until:
            return 0.0
        before, self._used = self._used, self._processor_time()
        paid_until = max(self._paid_until, now - _SAVED_SECONDS) + (self._used - before) / self._share
        self._paid_until = min(paid_until, now + MOST_PAUSE_SECONDS)
        return self._paid_until - now

    def _begin_round(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                loop = asyncio.get_running_loop()
                self._taken_at = loop.time()
                loop.call_soon(self._end_round)
                return
        self._is_taken = False
