"""Show the progress of a long job: a bar on a terminal, otherwise a line now and then."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from tiered_storage.cli.common.output import Output, show_size
from tiered_storage.remote_log.jobs.groups import JobFolder
from tiered_storage.remote_log.jobs.progress import JobSize, JobWatch
from tiered_storage.remote_log.progress import REPORT_SECONDS, Amount, TaskProgress
from tiered_storage.remote_log.progress import Progress as JobProgress

PROGRESS_SHOWN_SECONDS = 1.0
"""How often, in seconds, a job in this process reports its progress, so that the bar moves."""


@contextmanager
def watched(
    job: JobFolder, size: JobSize, stuck_after_ms: int, on_stuck: Callable[[], None], output: Output
) -> Iterator[JobWatch]:
    """Watch a job in this process for a `with` block, and show its progress on standard error."""
    if not sys.stderr.isatty():
        with JobWatch(
            job, size, stuck_after_ms=stuck_after_ms, on_stuck=on_stuck, report_seconds=REPORT_SECONDS,
            report=lambda progress: output.say(f"copied so far: {progress}"),
        ) as watch:  # fmt: skip
            yield watch
        return
    with _bar(size) as show, JobWatch(
        job, size, stuck_after_ms=stuck_after_ms, on_stuck=on_stuck, report_seconds=0, report=show,
        check_seconds=PROGRESS_SHOWN_SECONDS,
    ) as watch:  # fmt: skip
        yield watch


@contextmanager
def _bar(size: JobSize) -> Iterator[Callable[[JobProgress], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.fields[pieces]:,} of {task.fields[of_pieces]:,} segments"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=size.bytes, pieces=0, of_pieces=size.pieces)

        def show(progress: JobProgress) -> None:
            bar.update(task, completed=progress.bytes, pieces=progress.pieces)

        yield show


class OffsetProgress:
    """Reports the progress of a read of offsets `start` to `end` (exclusive) on standard error, now and then."""

    def __init__(
        self, what: str, start: int, end: int, output: Output, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._what = what
        self._start = start
        self._end = end
        self._output = output
        self._monotonic = monotonic
        self._begun = self._said = monotonic()
        self._size = 0

    def __call__(self, next_offset: int, size: int) -> None:
        """Count `size` bytes that brought the read up to `next_offset` (exclusive)."""
        self._size += size
        now = self._monotonic()
        if now - self._said < REPORT_SECONDS:
            return
        self._said = now
        done, all_of_it = next_offset - self._start, max(1, self._end - self._start)
        rate = self._size / (now - self._begun) / 1e6
        self._output.say(
            f"{self._what} so far: {done:,} of {all_of_it:,} offsets ({100 * done // all_of_it} %), "
            f"{show_size(self._size)}, {rate:,.1f} MB/s"
        )


def said(what: str, amount: Amount, output: Output) -> TaskProgress:
    """Return a callback that reports the progress of `what` on standard error, now and then."""
    return TaskProgress(what, amount, output.say)


def leave_at_once(code: int) -> NoReturn:
    """End this process at once: Python would wait for threads that hang in a disk or a store."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
