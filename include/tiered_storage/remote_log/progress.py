"""Report the progress of one process's own work now and then; for jobs in groups see jobs/progress.py."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from tiered_storage.remote_log.model import RemoteLogSegmentMetadata

REPORT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a whole job is. `rate` is in bytes a second, of the last two minutes."""

    pieces: int
    of_pieces: int
    bytes: int
    of_bytes: int
    rate: float

    @property
    def seconds_left(self) -> float | None:
        """How long the rest takes at this rate; None while nothing moves."""
        return max(self.of_bytes - self.bytes, 0) / self.rate if self.rate > 0 else None

    def __str__(self) -> str:
        megabytes, of_megabytes, rate = (number / 1e6 for number in (self.bytes, self.of_bytes, self.rate))
        left = "time left unknown" if self.seconds_left is None else _time_left(self.seconds_left)
        return (
            f"{self.pieces:,} of {self.of_pieces:,} segments, {megabytes:,.1f} of {of_megabytes:,.1f} MB, "
            f"{rate:,.1f} MB/s, {left}"
        )


def _time_left(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s left"
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours} h {minutes:02d} min left" if hours else f"{minutes} min {whole % 60:02d} s left"


class OnMoved(Protocol):
    """Is called with `size` bytes that were processed, and `segments` that were completed; from any thread."""

    def __call__(self, size: int, segments: int = 0, /) -> None: ...


def unreported(_: int, __: int = 0, /) -> None:
    """Report nothing."""


@dataclass(frozen=True, slots=True)
class Amount:
    """An amount of work: segments, and their bytes."""

    segments: int = 0
    size: int = 0

    @classmethod
    def of(cls, segments: Iterable[RemoteLogSegmentMetadata]) -> Amount:
        """Return the amount of remote `segments`; holds none of them."""
        count = size = 0
        for segment in segments:
            count += 1
            size += segment.size
        return cls(count, size)

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.segments + other.segments, self.size + other.size)


class TaskProgress:
    """An OnMoved that reports the progress of `what`, at most every `every_seconds`; `monotonic` is in seconds.

    The work may exceed `amount` if work is added meanwhile.
    """

    def __init__(
        self,
        what: str,
        amount: Amount,
        report: Callable[[str], None],
        *,
        every_seconds: float = REPORT_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._amount = amount
        self._report = report
        self._every = every_seconds
        self._monotonic = monotonic
        self._begun = self._reported_at = monotonic()
        self._segments = self._size = 0
        self._lock = threading.Lock()

    def __call__(self, size: int, segments: int = 0, /) -> None:
        """Count; see OnMoved."""
        with self._lock:
            self._size += size
            self._segments += segments
            now = self._monotonic()
            if now - self._reported_at < self._every:
                return
            self._reported_at = now
            self._report(f"{self._what} so far: {self._progress(now)}")

    def conclude(self) -> None:
        """Report the final state, if there was anything to do."""
        with self._lock:
            if self._amount.segments or self._segments:
                self._report(f"{self._what} in total: {self._progress(self._monotonic())}")

    def _progress(self, now: float) -> Progress:
        seconds = now - self._begun
        rate = self._size / seconds if seconds > 0 else 0.0
        # Never more than all: "12 of 10" would be confusing.
        of_segments, of_size = max(self._amount.segments, self._segments), max(self._amount.size, self._size)
        return Progress(self._segments, of_segments, self._size, of_size, rate)
