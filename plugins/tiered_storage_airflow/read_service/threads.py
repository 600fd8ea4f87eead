"""Threads for work that waits on disks and stores: so many at once, and so many more in the queue."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tiered_storage_airflow.read_service.problem import busy

_T = TypeVar("_T")


class BoundedThreads:
    """Runs calls in threads of its own. For one event loop."""

    def __init__(self, name: str, threads: int, most_waiting: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"remote-log-{name}")
        self._most = threads + most_waiting
        self._under_way = 0

    @property
    def under_way(self) -> int:
        """How many calls run or wait."""
        return self._under_way

    async def run(self, work: Callable[[], _T]) -> _T:
        """Return what `work` returns, called in a thread. Raises ProblemError (429) if too many wait already.

        Who is cancelled leaves its place taken until a thread has ended the work, or passed over what had not begun: so
        the queue stays bounded while the threads hang.
        """
        if self._under_way >= self._most:
            raise busy("too many requests wait already")
        self._under_way += 1
        given_up = threading.Event()
        future = self._pool.submit(lambda: None if given_up.is_set() else (work(),))
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda _: loop.is_closed() or loop.call_soon_threadsafe(self._ended))
        running = asyncio.wrap_future(future)
        try:
            outcome = await asyncio.shield(running)
        except asyncio.CancelledError:
            given_up.set()
            running.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            raise
        if outcome is None:
            raise asyncio.CancelledError
        return outcome[0]

    def _ended(self) -> None:
        self._under_way -= 1

    def close(self) -> None:
        """Let go of the threads; what waits is not begun any more, what runs ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)
