"""The memory that all connections of a process share: large requests, answers on their way, and remote records.

What finds no memory waits in line, and nothing more is read from its side meanwhile. One connection at a time may go
over the limit, the first in line: whatever the others hold, it can take all that it needs, be answered, and give it
back. So the memory in use is never more than the limit and what one connection needs, and no two wait for each other.

A Fetch gets a quarter at most of the memory that is free when it comes. So clients that do not read what they asked for
leave some to others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

LEAST_SHARE: Final = 1 << 20
"""Bytes that a Fetch may always have: less would make consumers slow."""
_SHARES: Final = 4


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    account: MemoryAccount
    size: int
    proceed: Callable[[], None]


class MemoryBudget:
    """The memory of one process's connections, `limit` bytes. For one event loop."""

    def __init__(self, limit: int) -> None:
        """Begin with nothing in use."""
        self.limit = limit
        self.used = 0
        self.most_used = 0
        self.waits = 0
        """How often something had to wait."""
        self.spare: Callable[[int], None] = lambda _: None
        """Called if `size` bytes are wanted and not free: gives back memory that is only kept to save time."""
        self._waiting: deque[_Waiting] = deque()
        self._ahead: MemoryAccount | None = None

    @property
    def is_short(self) -> bool:
        """Whether anything waits for memory."""
        return bool(self._waiting)

    @property
    def share(self) -> int:
        """How many bytes of records a Fetch that comes now may have."""
        return max((self.limit - self.used) // _SHARES, LEAST_SHARE)

    def account(self) -> MemoryAccount:
        """Return the account of a new connection."""
        return MemoryAccount(self)

    def _take(self, account: MemoryAccount, size: int, proceed: Callable[[], None]) -> bool:
        self._make_room(size)
        if (not self._waiting or account is self._ahead) and self._may_take(account, size):
            self._add(account, size)
            return True
        self.waits += 1
        self._waiting.append(_Waiting(account, size, proceed))
        return False

    def _take_if_free(self, account: MemoryAccount, size: int) -> bool:
        self._make_room(size)
        is_free = self.used + size <= self.limit
        if is_free:
            self._add(account, size)
        return is_free

    def _make_room(self, size: int) -> None:
        if self.used + size > self.limit:
            self.spare(self.used + size - self.limit)

    def _may_take(self, account: MemoryAccount, size: int) -> bool:
        if self.used + size <= self.limit or account is self._ahead:
            return True
        if self._ahead is not None:
            return False
        self._ahead = account
        return True

    def _add(self, account: MemoryAccount, size: int) -> None:
        account.held += size
        self.used += size
        self.most_used = max(self.most_used, self.used)

    def _give(self, account: MemoryAccount, size: int) -> None:
        size = min(size, account.held)
        account.held -= size
        self.used -= size
        if self.used <= self.limit or (account is self._ahead and not account.held):
            self._ahead = None
        self._serve()

    def _serve(self) -> None:
        """Let those continue that waited and now have memory, in their order; all of the connection that is ahead."""
        while self._waiting:
            first = next((each for each in self._waiting if each.account is self._ahead), self._waiting[0])
            if not self._may_take(first.account, first.size):
                return
            self._waiting.remove(first)
            self._add(first.account, first.size)
            first.proceed()

    def _waits(self, account: MemoryAccount) -> bool:
        return any(each.account is account for each in self._waiting)

    def _withdraw(self, account: MemoryAccount, proceed: Callable[[], None] | None = None) -> bool:
        """Let an account wait no more, or for one thing no more; return whether it did."""
        kept = [each for each in self._waiting if each.account is not account or proceed not in {None, each.proceed}]
        did_wait = len(kept) < len(self._waiting)
        self._waiting = deque(kept)
        return did_wait


class MemoryAccount:
    """What one connection holds of a budget. For one event loop."""

    def __init__(self, budget: MemoryBudget) -> None:
        """Begin with nothing."""
        self._budget = budget
        self.held = 0
        """Bytes in use."""

    @property
    def is_waiting(self) -> bool:
        """Whether the connection waits for memory."""
        return self._budget._waits(self)

    @property
    def share(self) -> int:
        """How many bytes of records a Fetch that comes now may have."""
        return self._budget.share

    def take(self, size: int, proceed: Callable[[], None]) -> bool:
        """Take `size` bytes and return True, or return False and call `proceed` once they are taken."""
        return self._budget._take(self, size, proceed)

    def take_if_free(self, size: int) -> bool:
        """Take `size` bytes if they are free, and return whether they are."""
        return self._budget._take_if_free(self, size)

    def give(self, size: int) -> None:
        """Give back `size` bytes."""
        self._budget._give(self, size)

    def settle(self, taken: int, size: int) -> None:
        """Hold `size` bytes instead of `taken`, even if that is more: they are in use already."""
        if size > taken:
            self._budget._add(self, size - taken)
        else:
            self.give(taken - size)

    async def wait(self, size: int, seconds: float) -> bool:
        """Take `size` bytes and return True, or return False after `seconds` without them."""
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def proceed() -> None:
            if not taken.done():
                taken.set_result(None)

        if self.take(size, proceed):
            return True
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(taken)
        except TimeoutError:
            return self._stop_waiting(size, proceed, is_taken=True)
        except asyncio.CancelledError:
            self._stop_waiting(size, proceed, is_taken=False)
            raise
        return True

    def _stop_waiting(self, size: int, proceed: Callable[[], None], *, is_taken: bool) -> bool:
        """Return whether the memory was taken just now and is kept, as `is_taken` asks."""
        if self._budget._withdraw(self, proceed):
            self._budget._serve()
            return False
        if not is_taken:
            self.give(size)
        return is_taken

    def close(self) -> None:
        """Give back everything."""
        self._budget._withdraw(self)
        self._budget._give(self, self.held)
