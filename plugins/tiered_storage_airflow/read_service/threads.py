"""Threads for work that waits for disks and stores, with a bounded queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeVar

from tiered_storage.errors import ReaderBusyError
from tiered_storage.remote_log.read.chunks.reader_pools import ReaderPool, outcome_of
from tiered_storage_airflow.read_service.problem import busy

if TYPE_CHECKING:
    from tiered_storage.settings.settings import Settings

MOST_WAITING_CALLS = 1000
MOST_SEARCHES = 8

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


@dataclass(frozen=True, slots=True)
class ServiceThreads:
    """The threads of an open read service, by what they wait for."""

    rights: BoundedThreads
    """One thread of its own, so that a read that hangs delays nothing else."""
    moving: BoundedThreads
    """For encoding records as JSON or Arrow."""
    asking: BoundedThreads
    """For metadata, so that they never wait for bytes."""
    searching: BoundedThreads
    """For slow searches, such as for the run that copied a segment."""
    looking: Mapping[str, BoundedThreads]
    """One thread for each kind of background check, so that one that hangs delays no other."""

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Create the threads that `settings` allow."""
        threads = settings.read_service_threads
        return cls(
            BoundedThreads("rights", 1, MOST_WAITING_CALLS),
            BoundedThreads("moving", threads, settings.read_service_max_streams),
            BoundedThreads("asking", threads, MOST_WAITING_CALLS),
            BoundedThreads("searching", 1, MOST_SEARCHES),
            {name: BoundedThreads(f"looking-{name}", 1, 0) for name in ("metadata", "store", "pair")},
        )

    def close(self) -> None:
        """Close all of them."""
        for threads in (self.rights, self.moving, self.asking, self.searching, *self.looking.values()):
            threads.close()
