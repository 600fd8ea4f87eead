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
from tiered_storage.remote_log.jobs.groups import JobFailure, JobFolder
from tiered_storage.remote_log.progress import REPORT_SECONDS, Progress

PROGRESS_SECONDS = 5.0
_RATE_SECONDS = 120.0
_NOT_BEGUN = 64
"""Groups begin roughly in order: after this many that have not begun, no later one is looked for."""


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """A worker's progress on its group: pieces that ended, successfully or not, and bytes moved.

    `fetched` are the bytes that came from a running cluster and are not handed on yet; they show that it continues.
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


class _GroupReports:
    """The latest reports of a job's workers."""

    def __init__(self, job: JobFolder, groups: int) -> None:
        self._job = job
        self._groups = groups
        self._known: dict[int, GroupProgress] = {}

    def read(self) -> GroupProgress:
        """Read what was reported since; return the sum of all groups."""
        not_begun = 0
        for number in range(self._groups):
            known = self._known.get(number)
            if known is not None and known.is_over:
                continue
            found = self._read(number)
            if found is not None:
                self._known[number] = found
            elif known is None:
                not_begun += 1
                if not_begun == _NOT_BEGUN:
                    break
        reports = self._known.values()
        return GroupProgress(
            sum(group.pieces for group in reports),
            sum(group.bytes for group in reports),
            fetched=sum(group.fetched for group in reports),
        )

    def _read(self, number: int) -> GroupProgress | None:
        # A short outage of the work area only delays progress reports.
        with suppress(TieredStorageError, OSError):
            found = self._job.work.read_if_there(self._job.path("progress", number), GroupProgress)
            return found[0] if found else None
        return None


class _JobMeter:
    """When a job last moved, and how fast it moves; times are in seconds."""

    def __init__(self, size: JobSize, now: float) -> None:
        self._size = size
        self._latest = GroupProgress()
        self._seen: deque[tuple[float, int]] = deque([(now, 0)])
        self.moved_at = now
        self.progress = Progress(0, size.pieces, 0, size.bytes, 0.0)

    def add(self, now: float, latest: GroupProgress) -> None:
        """Take the sum of all groups' reports as of `now`."""
        if latest != self._latest:
            self.moved_at, self._latest = now, latest
        moved = latest.bytes
        self._seen.append((now, moved))
        while len(self._seen) > 2 and now - self._seen[1][0] >= _RATE_SECONDS:
            self._seen.popleft()
        began, bytes_then = self._seen[0]
        rate = (moved - bytes_then) / (now - began) if now > began else 0.0
        self.progress = Progress(latest.pieces, self._size.pieces, moved, self._size.bytes, rate)


class JobWatch:
    """Watches a job's progress while a `with` block waits for the job, reports it, and notices if it hangs.

    `report` gets the progress every `report_seconds`; `on_stuck` is called once when no byte has moved and nothing has
    ended for `stuck_after_ms`; both from a thread of the watch's own. `monotonic` is in seconds. After the block,
    `progress` is the final progress, and `stuck` why the job was given up, None if it was not.
    """

    def __init__(
        self,
        job: JobFolder,
        size: JobSize,
        *,
        stuck_after_ms: int,
        report: Callable[[Progress], None],
        on_stuck: Callable[[], None],
        report_seconds: float = REPORT_SECONDS,
        check_seconds: float = PROGRESS_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reports = _GroupReports(job, size.groups)
        self._monotonic = monotonic
        self._reported_at = monotonic()
        self._meter = _JobMeter(size, self._reported_at)
        self._stuck_after = stuck_after_ms / 1000
        self._report, self._report_seconds = report, report_seconds
        self._on_stuck = on_stuck
        self._stop = threading.Event()
        seconds = min(check_seconds, self._stuck_after / 4)
        self._thread = threading.Thread(target=self._run, args=(seconds,), name="job-watch", daemon=True)
        self.stuck: JobFailure | None = None

    @property
    def progress(self) -> Progress:
        """The progress at the last check."""
        return self._meter.progress

    def check(self) -> None:
        """Read the workers' reports; call `report` and `on_stuck` if it is time."""
        now = self._measure()
        if now - self._reported_at >= self._report_seconds:
            self._reported_at = now
            self._report(self.progress)
        if self.stuck is None and now - self._meter.moved_at >= self._stuck_after:
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

    def _run(self, seconds: float) -> None:
        while not self._stop.wait(seconds):
            self.check()

    def _measure(self) -> float:
        latest = self._reports.read()
        now = self._monotonic()
        self._meter.add(now, latest)
        return now

    def _give_up(self) -> None:
        stuck = CopyStuckError(
            f"no byte moved for {self._stuck_after:g} s (copy.stuck.after.ms), at {self.progress}: the job was ended, "
            "and the next run does the rest; check the disks that it read and the store"
        )
        self.stuck = JobFailure.of(stuck)
        self._on_stuck()
