"""Limit a byte rate, so that copies, reads and checks leave bandwidth for others."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.storage.remote_storage_manager import DelegatingStorage
from tiered_storage.settings.settings import Settings

UNLIMITED = -1


@dataclass(frozen=True, slots=True)
class Quota:
    """At most `bytes_per_second` (-1: no limit) on average over any `window_seconds`.

    Kafka (KIP-956) averages over its last samples, quota.window.num of quota.window.size.seconds each. Here the window
    is as long, and slides by the byte instead of by the sample.
    """

    bytes_per_second: float = UNLIMITED
    window_seconds: int = 1

    @property
    def is_unlimited(self) -> bool:
        """Whether there is no limit."""
        return self.bytes_per_second <= 0

    def share(self, part: int, whole: int) -> Quota:
        """Return the quota of those who have `part` of the `whole` work of all who share this one."""
        if self.is_unlimited or part >= whole:
            return self
        return Quota(self.bytes_per_second * max(part, 1) / whole, self.window_seconds)


NO_QUOTA = Quota()


def copy_quota(settings: Settings) -> Quota:
    """Return the quota of one copy run."""
    return Quota(
        settings.remote_log_manager_copy_max_bytes_per_second,
        settings.remote_log_manager_copy_quota_window_num * settings.remote_log_manager_copy_quota_window_size_seconds,
    )


def fetch_quota(settings: Settings) -> Quota:
    """Return the quota of the remote reads of one process, or of one run."""
    return Quota(
        settings.remote_log_manager_fetch_max_bytes_per_second,
        settings.remote_log_manager_fetch_quota_window_num
        * settings.remote_log_manager_fetch_quota_window_size_seconds,
    )


class ByteQuota:
    """Counts the bytes that pass within a quota. Thread-safe.

    Bytes beyond the window count at the first later moment with room, so a large read is paid for in full.
    """

    def __init__(self, quota: Quota = NO_QUOTA, now: Callable[[], float] = time.monotonic) -> None:
        """Measure by `now` (seconds)."""
        self.quota = quota
        self._most = quota.bytes_per_second * quota.window_seconds
        self._now = now
        self._lock = threading.Lock()
        self._counted: deque[tuple[float, float]] = deque()
        """Moments and bytes within the window that ends at `_at`."""
        self._in_window = 0.0
        self._at = now()
        """The earliest moment with room."""

    def spend(self, size: int) -> float:
        """Count `size` bytes; return the seconds until all of them are within the quota."""
        if self.quota.is_unlimited:
            return 0.0
        with self._lock:
            left = float(size)
            self._find_room()
            while left > 0:
                self._find_room()
                taken = min(left, self._most - self._in_window)
                self._counted.append((self._at, taken))
                self._in_window += taken
                left -= taken
            return max(0.0, self._at - self._now())

    def seconds_left(self) -> float:
        """Return the seconds until more may pass; 0: now."""
        if self.quota.is_unlimited:
            return 0.0
        with self._lock:
            self._find_room()
            return max(0.0, self._at - self._now())

    @property
    def is_half_used(self) -> bool:
        """Whether half of what may pass in a window has passed in the one that ends now."""
        with self._lock:
            self._at = max(self._at, self._now())
            self._forget()
            return 2 * self._in_window >= self._most

    def _find_room(self) -> None:
        """Move `_at` to the first moment from now on whose window has room."""
        self._at = max(self._at, self._now())
        self._forget()
        while self._in_window >= self._most:
            self._at = self._counted[0][0] + self.quota.window_seconds
            self._forget()

    def _forget(self) -> None:
        """Drop what is no longer in the window that ends at `_at`."""
        while self._counted and self._counted[0][0] + self.quota.window_seconds <= self._at:
            self._in_window -= self._counted.popleft()[1]
        if not self._counted:
            self._in_window = 0.0  # without the rounding of many additions


class RateLimit:
    """Allows `bytes_per_second`, counted from the first; -1: no limit. For one thread.

    Bytes unused in a pause are not saved up: afterwards the same rate holds.
    """

    def __init__(
        self,
        bytes_per_second: int = UNLIMITED,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Measure by `now` (seconds) and wait by `sleep` (seconds)."""
        self._seconds_a_byte = 0.0 if bytes_per_second <= 0 else 1 / bytes_per_second
        self._now = now
        self._sleep = sleep
        self._free_at = now()

    def spend(self, size: int) -> None:
        """Report that `size` bytes have passed; return once they are allowed."""
        if not self._seconds_a_byte:
            return
        now = self._now()
        self._free_at = max(self._free_at, now) + size * self._seconds_a_byte
        if self._free_at > now:
            self._sleep(self._free_at - now)


NO_LIMIT = RateLimit()


class QuotaLimit(RateLimit):
    """A rate limit by a ByteQuota. For several threads.

    Half of a window's bytes may pass at once. The others pass evenly: others on the same disk, network or processor
    would wait behind each burst.
    """

    def __init__(
        self,
        quota: Quota = NO_QUOTA,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Measure by `now` (seconds) and wait by `sleep` (seconds)."""
        super().__init__(now=now, sleep=sleep)
        self._counted = ByteQuota(quota, now)
        self._lock = threading.Lock()

    @property
    def bytes_per_second(self) -> float:
        """The limit; -1: none."""
        return self._counted.quota.bytes_per_second

    @property
    def is_unlimited(self) -> bool:
        """Whether there is no limit."""
        return self._counted.quota.is_unlimited

    def another(self) -> QuotaLimit:
        """Return a limit by the same quota that counts other bytes."""
        return QuotaLimit(self._counted.quota, self._now, self._sleep)

    def spend(self, size: int) -> None:
        if self.is_unlimited:
            return
        is_even = self._counted.is_half_used
        seconds = self._counted.spend(size)
        if is_even:
            seconds = max(seconds, self._evenly(size))
        if seconds:
            self._sleep(seconds)

    def _evenly(self, size: int) -> float:
        """Return the seconds until `size` bytes have passed at an even rate, after those of other threads."""
        with self._lock:
            now = self._now()
            self._free_at = max(self._free_at, now) + size / self.bytes_per_second
            return self._free_at - now


def audit_limit(bytes_per_second: int, quota: Quota) -> RateLimit:
    """Return the limit of one worker of a deep audit: its own rate, within its share of the remote reads' quota."""
    return ReportingLimit(RateLimit(bytes_per_second), QuotaLimit(quota).spend)


def read_back_limit(settings: Settings) -> RateLimit:
    """Return the limit of one run that reads whole segments: to restore them, or before it deletes what they hold."""
    return QuotaLimit(fetch_quota(settings))


class ReportingLimit(RateLimit):
    """A rate limit that reports the bytes that passed to `on_spent`."""

    def __init__(self, limit: RateLimit, on_spent: Callable[[int], None]) -> None:
        super().__init__()
        self._limit = limit
        self._on_spent = on_spent

    def spend(self, size: int) -> None:
        self._limit.spend(size)
        self._on_spent(size)


@dataclass(frozen=True, slots=True)
class LimitedReads(DelegatingStorage):
    """The RemoteStorageManager `storage`, whose segments are fetched within `limit`. Indexes do not count."""

    limit: RateLimit

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int = 0, end_position: int | None = None
    ) -> Iterator[bytes]:
        """See RemoteStorageManager."""
        for piece in self.storage.fetch_log_segment(metadata, start_position, end_position):
            self.limit.spend(len(piece))
            yield piece
