"""Threads for work that waits on disks and stores: so many at once, and so many more in the queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from tiered_storage.errors import ReaderBusyError
from tiered_storage.remote_log.read.chunks.reader_pools import ReaderPool, outcome_of
from tiered_storage_airflow.read_service.problem import busy

_T = TypeVar("_T")


class BoundedThreads:
    """Runs calls in threads of its own, which do not keep the process from ending while they hang."""

    def __init__(self, name: str, threads: int, most_waiting: int) -> None:
        """Let at most `most_waiting` calls wait for one of the `threads`."""
        self._pool = ReaderPool(f"remote-log-{name}", threads, most_waiting)

    @property
    def under_way(self) -> int:
        """How many calls run or wait."""
        return self._pool.pending + self._pool.running

    async def run(self, work: Callable[[], _T]) -> _T:
        """Return what `work` returns, called in a thread. Raises ProblemError (429) if too many calls wait already.

        A cancelled call leaves the queue; once it has begun, it keeps its thread until it ends.
        """
        try:
            future = self._pool.submit(work)
        except ReaderBusyError:
            raise busy("too many requests wait already") from None
        try:
            return await outcome_of(future)
        except asyncio.CancelledError:
            self._pool.withdraw(future)
            raise

    def close(self) -> None:
        """Refuse what waits; what runs ends by itself."""
        self._pool.close()
