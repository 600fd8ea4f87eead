"""Threads for work that waits for disks and stores, with a bounded queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from tiered_storage.errors import ReaderBusyError
from tiered_storage.remote_log.read.chunks.reader_pools import ReaderPool, outcome_of
from tiered_storage_airflow.read_service.problem import busy

_T = TypeVar("_T")


class BoundedThreads:
    """Runs calls in its own daemon threads, so that a call that hangs does not keep the process alive."""

    def __init__(self, name: str, threads: int, most_waiting: int) -> None:
        """Let at most `most_waiting` calls wait for one of the `threads`."""
        self._pool = ReaderPool(f"remote-log-{name}", threads, most_waiting)

    @property
    def under_way(self) -> int:
        """How many calls run or wait."""
        return self._pool.pending + self._pool.running

    async def run(self, work: Callable[[], _T]) -> _T:
        """Return the result of `work`, called on a thread. Raises ProblemError (429) if too many calls wait.

        A cancelled call leaves the queue; once it has begun, it keeps its thread until it ends.
        """
        try:
            future = self._pool.submit(work)
        except ReaderBusyError:
            raise busy("too many requests are waiting") from None
        try:
            return await outcome_of(future)
        except asyncio.CancelledError:
            self._pool.withdraw(future)
            raise

    def close(self) -> None:
        """Refuse waiting calls, and let running ones complete."""
        self._pool.close()
