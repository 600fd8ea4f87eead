"""The progress of a job in groups: its workers report it, and the process that started the job watches it.

Beside the tasks of its group (groups.py) every worker writes

    progress-{group}.jsonl   GroupProgress: one line, written again every PROGRESS_SECONDS and at the group's end

A byte counts once it was read, checked, and handed on: if the disk or the store hangs, none does.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tiered_storage.errors import CopyStuckError, TieredStorageError
from tiered_storage.remote_log.jobs.groups import JobFolder
from tiered_storage.remote_log.jobs.messages import CopyFailure
from tiered_storage.remote_log.progress import REPORT_SECONDS, Progress

PROGRESS_SECONDS = 5.0
_RATE_SECONDS = 120.0
_NOT_BEGUN = 64
"""Groups begin about in order: after this many that have not begun, none is looked for."""


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """A worker's progress on its group: pieces that ended, successfully or not, and bytes moved.

    `fetched` are the bytes that came from a running cluster and are not handed on yet; they show that it goes on.
    """

    pieces: int = 0
    bytes: int = 0
    is_over: bool = False
    fetched: int = 0


class ProgressLog:
    """Writes the progress of one group, from a thread of its own, while a `with` block works on it.

    A failed write is retried at the next turn: a progress report never fails the work.
    """

    def __init__(self, job: JobFolder, number: int, seconds: float = PROGRESS_SECONDS) -> None:
        self._job = job
        self._number = number
        self._seconds = seconds
        self._lock = threading.Lock()
        self._pieces = 0
        self._bytes = 0
        self._fetched = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"progress-{number}", daemon=True)

    def moved(self, size: int) -> None:
        """Count `size` bytes; from any thread."""
        with self._lock:
            self._bytes += size

    def fetched(self, size: int) -> None:
        """Count `size` bytes that a running cluster sent; from any thread."""
        with self._lock:
            self._fetched += size

    def ended(self) -> None:
        """Count a piece of work that ended, successfully or not."""
        with self._lock:
            self._pieces += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        self._write(is_over=kind is None)

    def _run(self) -> None:
        self._write()
        while not self._stop.wait(self._seconds):
            self._write()

    def _write(self, *, is_over: bool = False) -> None:
        with self._lock:
            progress = GroupProgress(self._pieces, self._bytes, is_over, self._fetched)
        with suppress(TieredStorageError, OSError):
            self._job.work.write(self._job.path("progress", self._number), [progress], GroupProgress)


@dataclass(frozen=True, slots=True)
class JobSize:
    """The size of a job: groups, pieces of work in them, and bytes."""

    groups: int
    pieces: int
    bytes: int


class JobWatch:
    """Watches a job's progress while a `with` block waits for the job, reports it, and notices if it hangs.

    `say` gets the progress every `report_seconds`; `on_stuck` is called once when no byte has moved and nothing has
    ended for `stuck_after_ms`; both from a thread of the watch's own. `monotonic` is in seconds. After the block,
    `progress` is the final progress, and `stuck` why the job was given up, None if it was not.
    """

    def __init__(
        self,
        job: JobFolder,
        size: JobSize,
        *,
        stuck_after_ms: int,
        say: Callable[[Progress], None],
        on_stuck: Callable[[], None],
        report_seconds: float = REPORT_SECONDS,
        look_seconds: float = PROGRESS_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job = job
        self._size = size
        self._stuck_after = stuck_after_ms / 1000
        self._say = say
        self._on_stuck = on_stuck
        self._report_seconds = report_seconds
        self._look_seconds = min(look_seconds, self._stuck_after / 4)
        self._monotonic = monotonic
        self._groups: dict[int, GroupProgress] = {}
        self._state = (0, 0, 0)
        """The pieces, bytes moved and bytes fetched when something last changed."""
        self._moved_at = self._said_at = monotonic()
        self._seen: deque[tuple[float, int]] = deque([(self._moved_at, 0)])
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="job-watch", daemon=True)
        self.progress = Progress(0, size.pieces, 0, size.bytes, 0.0)
        self.stuck: CopyFailure | None = None

    def look(self) -> None:
        """Read the workers' reports; call `say` and `on_stuck` if it is time."""
        now = self._measure()
        if now - self._said_at >= self._report_seconds:
            self._said_at = now
            self._say(self.progress)
        if self.stuck is None and now - self._moved_at >= self._stuck_after:
            self._give_up()

    def is_moving(self) -> bool:
        """Return whether the job has not been given up."""
        return self.stuck is None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._measure()

    def _run(self) -> None:
        while not self._stop.wait(self._look_seconds):
            self.look()

    def _measure(self) -> float:
        self._read_groups()
        now = self._monotonic()
        pieces = sum(group.pieces for group in self._groups.values())
        moved = sum(group.bytes for group in self._groups.values())
        state = (pieces, moved, sum(group.fetched for group in self._groups.values()))
        if state != self._state:
            self._moved_at, self._state = now, state
        self._seen.append((now, moved))
        while len(self._seen) > 2 and now - self._seen[1][0] >= _RATE_SECONDS:
            self._seen.popleft()
        began, bytes_then = self._seen[0]
        rate = (moved - bytes_then) / (now - began) if now > began else 0.0
        self.progress = Progress(pieces, self._size.pieces, moved, self._size.bytes, rate)
        return now

    def _give_up(self) -> None:
        stuck = CopyStuckError(
            f"no byte moved for {self._stuck_after:g} s (copy.stuck.after.ms), at {self.progress}: the job was ended, "
            "and the next run does the rest; check the disks that it read and the store"
        )
        self.stuck = CopyFailure.of(stuck)
        self._on_stuck()

    def _read_groups(self) -> None:
        not_begun = 0
        for number in range(self._size.groups):
            known = self._groups.get(number)
            if known is not None and known.is_over:
                continue
            found = self._read(number)
            if found is not None:
                self._groups[number] = found
            elif known is None:
                not_begun += 1
                if not_begun == _NOT_BEGUN:
                    return

    def _read(self, number: int) -> GroupProgress | None:
        # A short outage of the work area only delays progress reports.
        with suppress(TieredStorageError, OSError):
            found = self._job.work.read_if_there(self._job.path("progress", number), GroupProgress)
            return found[0] if found else None
        return None
