"""Threads for blocking reads.

Local and remote reads have separate pools (KIP-405): a slow or failed store never delays a local read.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from tiered_storage.errors import ConfigurationError, ReaderBusyError
from tiered_storage.settings.settings import Settings

Result = TypeVar("Result")


class ReaderPool:
    """Runs tasks on a few threads in the order of submission; a bounded number of tasks may wait.

    Threads start when they are first needed. They are daemons: a process may end while one hangs in a store, where a
    ThreadPoolExecutor keeps it until that call returns. A task costs 6 us; with that executor and a semaphore, 10.
    """

    def __init__(self, name: str, threads: int, max_pending: int | None = None) -> None:
        """Use at most `threads` threads; let at most `max_pending` tasks wait (None: no limit)."""
        self._name = name
        self._most_threads = threads
        self._max_pending = max_pending
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._changed = threading.Condition()
        self._threads = 0
        self._idle = 0
        self._is_closed = False

    @property
    def pending(self) -> int:
        """How many tasks wait for a thread."""
        with self._changed:
            return max(0, len(self._waiting) - self._idle)

    @property
    def running(self) -> int:
        """How many tasks are running."""
        with self._changed:
            return self._threads - self._idle + min(self._idle, len(self._waiting))

    def has_room(self) -> bool:
        """Return whether the queue is less than half full, which leaves room to prefetch."""
        return self._max_pending is None or 2 * self.pending < self._max_pending

    def submit(self, work: Callable[[], Result]) -> Future[Result]:
        """Run `work` on a thread; the future gets its result or error. Raises ReaderBusyError if the queue is full."""
        future: Future[Result] = Future()
        with self._changed:
            if self._is_closed:
                raise _closed(self._name)
            free = self._idle + self._most_threads - self._threads
            if self._max_pending is not None and len(self._waiting) >= free + self._max_pending:
                raise ReaderBusyError(
                    f"the queue of {self._name} is full: {self._max_pending} tasks are waiting "
                    "(remote.log.reader.max.pending.tasks): try again in a moment"
                )
            self._waiting.append((future, work))
            if len(self._waiting) > self._idle and self._threads < self._most_threads:
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
                self._threads += 1
                self._idle += 1
            else:
                self._changed.notify()
        return future

    def withdraw(self, future: Future[Any]) -> bool:
        """Withdraw a task without waiters; return whether it was still in the queue."""
        with self._changed:
            for task in self._waiting:
                if task[0] is future:
                    self._waiting.remove(task)
                    break
            else:
                return False
        future.cancel()
        return True

    def close(self) -> None:
        """Start no further task: refuse waiting tasks, let running ones complete."""
        with self._changed:
            self._is_closed = True
            left = list(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()
        for future, _ in left:
            if future.set_running_or_notify_cancel():
                future.set_exception(_closed(self._name))

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._is_closed:
                    self._changed.wait()
                self._idle -= 1
                if not self._waiting:
                    self._threads -= 1
                    return
                future, work = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                _carry_out(future, work)
            del future, work  # a waiting thread must not keep objects alive
            with self._changed:
                self._idle += 1


@dataclass(frozen=True, slots=True)
class ReaderPools:
    """The threads of one reader, by what they do."""

    local: ReaderPool
    snapshots: ReaderPool
    """For what a partition has now."""
    searches: ReaderPool
    """For searches by time."""
    decoding: ReaderPool
    remote: ReaderPool

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the pools that `settings` allow."""
        threads = settings.local_log_reader_threads
        waiting = settings.remote_log_reader_max_pending_tasks
        return cls(
            ReaderPool("local reads", threads),
            ReaderPool("look-ups of partitions", threads),
            ReaderPool("searches by time", threads),
            ReaderPool("decoding", threads),
            ReaderPool("remote reads", settings.remote_log_reader_threads, waiting),
        )

    def close(self) -> None:
        """Close each pool."""
        for pool in (self.remote, self.local, self.snapshots, self.decoding, self.searches):
            pool.close()


def _closed(name: str) -> ConfigurationError:
    return ConfigurationError(f"the reader of the remote log was closed before {name} could run: open another one")


def _carry_out(future: Future[Any], work: Callable[[], Any]) -> None:
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - it is raised where the result is waited for
        future.set_exception(error)
    else:
        future.set_result(result)


async def outcome_of(future: Future[Result], seconds: float | None = None) -> Result:
    """Return the result of `future`. Raises TimeoutError after `seconds`; the work continues, even if cancelled."""
    if not future.done():
        loop = asyncio.get_running_loop()
        is_done = loop.create_future()

        def wake(_: Future[Result]) -> None:
            with suppress(RuntimeError):  # the loop is closed: no caller waits any more
                loop.call_soon_threadsafe(_set_done, is_done)

        future.add_done_callback(wake)
        async with asyncio.timeout(seconds):
            await is_done
    return future.result()


def _set_done(is_done: asyncio.Future[None]) -> None:
    if not is_done.done():
        is_done.set_result(None)
