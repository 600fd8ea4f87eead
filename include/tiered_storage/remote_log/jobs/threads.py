"""Run the groups of a job in threads of this process, and abandon those that hang."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class JobThreads:
    """Threads that run the groups of a job, `workers` at once; `give_up` ends the wait for them.

    A thread cannot be ended from outside. They are daemons, so that a process may end while one of them hangs.
    """

    def __init__(self, groups: int, workers: int, run_group: Callable[[int], object]) -> None:
        self._run_group = run_group
        self._waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in range(groups):
            self._waiting.put(number)
        self._left = groups
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._failure: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._run, name=f"group-{number}", daemon=True)
            for number in range(min(workers, groups))
        ]

    def run(self) -> None:
        """Run all groups; re-raise the first exception. Returns at once after `give_up`."""
        if not self._threads:
            return
        for thread in self._threads:
            thread.start()
        self._is_over.wait()
        if self._failure is not None:
            raise self._failure

    def give_up(self) -> None:
        """Stop waiting, and begin no other group."""
        self._is_over.set()

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                number = self._waiting.get_nowait()
            except queue.Empty:
                return
            try:
                self._run_group(number)
            except BaseException as error:  # noqa: BLE001 - it is raised where the groups are waited for
                self._failure = error
                self._is_over.set()
                return
            with self._lock:
                self._left -= 1
                if self._left == 0:
                    self._is_over.set()
