"""Compare this machine's clock with the store's, with its last reading, and with the times of segments.

A clock that is ahead makes records look expired and a grace time over; see 'Clocks' in docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Self

from tiered_storage.clock import BootClock, Clock, as_date
from tiered_storage.errors import DeletionRefusedError
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.metadata.metadata_store import ClockReading, ClockReadings
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, TopicIdPartition
from tiered_storage.remote_log.storage.listable_storage import as_listable
from tiered_storage.remote_log.storage.remote_storage_manager import RemoteStorageManager

STORE_PRECISION_MS = 1_000
"""Some stores report whole seconds."""

READING_LASTS_MS = 3_600_000
"""How long (ms) a reading stays: a clock that is set ahead bit by bit is compared with an older reading."""


@dataclass(frozen=True, slots=True)
class GraceTime:
    """How long (ms) marked segments stay; time before `trusted_since` (ms) does not count."""

    ms: int
    trusted_since: int = 0

    def over_at(self, marked_at: int) -> int:
        """Return when the grace time of a mark of that moment ends (ms)."""
        return max(marked_at, self.trusted_since) + self.ms

    def over_for(self, now: int) -> int:
        """Return before when (ms) a mark must have been set for its grace time to be over at `now`."""
        return now - self.ms if self.trusted_since + self.ms <= now else -1


NO_GRACE = GraceTime(0)


@dataclass(frozen=True, slots=True)
class ClockAgreement:
    """Compares `clock` with other clocks; they may differ by `max_skew_ms` (clock.max.skew.ms).

    `is_store_independent`: whether the store's clock is another machine's.
    """

    clock: Clock
    boot_clock: BootClock
    storage: RemoteStorageManager
    readings: ClockReadings
    max_skew_ms: int
    is_store_independent: bool

    @classmethod
    def of(cls, context: RemoteLogContext) -> Self:
        """Return that of an open remote log."""
        is_independent = has_own_clock(context.storage)
        skew = context.settings.clock_max_skew_ms
        readings = context.store.clock_readings
        return cls(context.clock, context.boot_clock, context.storage, readings, skew, is_independent)

    def ensure_agrees(self) -> None:
        """Raise DeletionRefusedError unless the clock passes the first two checks; then record a reading.

        The reading of a refused clock is not recorded. Raises what store and metadata raise.
        """
        is_reported = ensure_store_agrees(self.clock, self.storage, self.max_skew_ms)
        if not (is_reported and self.is_store_independent):
            self._ensure_steady()
        self._record()

    def note(self) -> None:
        """Record a reading if it agrees with the last one, for a run that deletes nothing."""
        self.readings.begin(self._renewed_at)
        if self._why_unsteady() is None:
            self._record()

    def trust(self) -> None:
        """Record a reading at the user's request. Marked segments wait their grace time again."""
        now = self.clock()
        self.readings.forget_later_than(now + self.max_skew_ms)
        self.readings.record(ClockReading(self.boot_clock(), now, trusted_since=now))

    def why_refused(self) -> str | None:
        """Return what `ensure_agrees` would raise, as far as known without writing; None: nothing.

        If no clock was ever read, it reads the start of the store's generation, and does without if that fails.
        """
        return None if self.is_store_independent else self._why_unsteady()

    def grace(self, grace_ms: int) -> GraceTime:
        """Return the grace time as it counts now."""
        if self.is_store_independent:
            return GraceTime(grace_ms)
        return GraceTime(grace_ms, self._current(self._own()).trusted_since)

    def ensure_steady(self) -> None:
        """Raise DeletionRefusedError if the clock jumped since it was last checked: for a run between two of its steps.

        Reads the metadata alone. A clock that the store's own clock confirmed at the beginning is not asked again.
        """
        if not self.is_store_independent:
            self._ensure_steady()

    def ensure_not_ahead(self, partition: TopicIdPartition, segments: Iterable[RemoteLogSegmentMetadata]) -> None:
        """Raise DeletionRefusedError if `segments` of `partition` have a state change in the future.

        Also raises it if the clock jumped since the run began.
        """
        self.ensure_steady()
        now = self.clock()
        newest = max(segments, key=lambda segment: segment.event_timestamp, default=None)
        if newest is None or newest.event_timestamp <= now + self.max_skew_ms:
            return
        raise DeletionRefusedError(
            f"{partition}: segment {newest.segment_id.id} became {newest.state.name} at "
            f"{as_date(newest.event_timestamp)}, but this machine's clock shows {as_date(now)}: it is behind, or that "
            "of an earlier run was ahead. Nothing of the partition is deleted. Set the clock by NTP. If it is "
            f"right, 'tiered-storage undelete {partition.topic}' takes back what was marked then; deletion in the "
            "partition continues once that time has come, or by a run with a larger clock.max.skew.ms"
        )

    def _ensure_steady(self) -> None:
        why = self._why_unsteady()
        if why is not None:
            raise DeletionRefusedError(why)

    def _why_unsteady(self) -> str | None:
        """Return how the clock disagrees with the last readings; None if it agrees, or no time is known."""
        latest = self.readings.latest_or_newest(self._renewed_at)
        if latest is None:
            return None
        own = self._own()
        return self._why_unlike(latest) if own is None else self._why_jumped(own) or self._why_behind(latest)

    def _why_jumped(self, own: ClockReading) -> str | None:
        """Return how far the clock jumped since its own last reading."""
        now, running = self.clock(), self.boot_clock()
        expected = own.wall + running.ms - own.boot_time.ms
        if abs(now - expected) <= self.max_skew_ms:
            return None
        jump = f"{'ahead' if now > expected else 'back'} by {_duration(abs(now - expected))}"
        return (
            f"this machine's clock shows {as_date(now)}, and should show {as_date(expected)} by the time that "
            f"passed since it was last checked, at {as_date(own.wall)}: it was set {jump}, or the machine was "
            f"paused. {_NOBODY_KNOWS} Set the clock by NTP; {_IF_IT_IS_RIGHT}"
        )

    def _why_behind(self, latest: ClockReading) -> str | None:
        """Return how far the clock is behind that of another machine."""
        now = self.clock()
        is_own = latest.boot_time.boot_id == self.boot_clock().boot_id
        if is_own or latest.wall - now <= self.max_skew_ms:
            return None
        return (
            f"this machine's clock shows {as_date(now)}, and that of another one showed {as_date(latest.wall)} before, "
            f"{_duration(latest.wall - now)} later: one of them is wrong. {_NOBODY_KNOWS} Set both by NTP; "
            f"{_IF_IT_IS_RIGHT}"
        )

    def _why_unlike(self, latest: ClockReading) -> str | None:
        """Return why the clock of a machine that was not checked since its start is not proved by `latest`."""
        now, running = self.clock(), self.boot_clock()
        later = now - latest.wall
        explained = running.ms if latest.is_taken else 0
        if abs(later - explained) <= self.max_skew_ms or (running.is_synchronised and later >= -self.max_skew_ms):
            return None
        apart = "later" if later > 0 else "earlier"
        return (
            f"{_since(latest)} {as_date(latest.wall)}; this machine's clock shows {as_date(now)} now, "
            f"{_duration(abs(later))} {apart}, and nothing proves that it is right. {_NOBODY_KNOWS} Wait until NTP has "
            f"synchronised this machine's clock; {_IF_IT_IS_RIGHT}"
        )

    def _own(self) -> ClockReading | None:
        return self.readings.read(self.boot_clock().boot_id)

    def _renewed_at(self) -> int | None:
        storage = as_listable(self.storage)
        return None if storage is None else storage.generations.renewed_at()

    def _record(self) -> None:
        own = self._own()
        current = self._current(own)
        age = READING_LASTS_MS if own is None else current.boot_time.ms - own.boot_time.ms
        if age < READING_LASTS_MS and self._why_unsteady() is None:
            return
        self.readings.record(current)

    def _current(self, own: ClockReading | None) -> ClockReading:
        now, running = self.clock(), self.boot_clock()
        if own is not None:
            return replace(own, boot_time=running, wall=now)
        return ClockReading(running, now, trusted_since=now)


def _since(earlier: ClockReading) -> str:
    if earlier.is_taken:
        return "this machine was restarted, or is another one, since its clock was last checked, at"
    return "these metadata never read a clock, and the newest known time is"


_NOBODY_KNOWS = "Nothing is marked, trimmed or deleted, since the age of segments is uncertain."
_IF_IT_IS_RIGHT = "if it is right, 'tiered-storage metadata trust-clock' lets deletions continue"


def ensure_store_agrees(clock: Clock, storage: RemoteStorageManager, max_skew_ms: int) -> bool:
    """Write a small object to get the store's time; return whether the store reported it.

    A store that cannot be listed does not report it, nor does one without room. Raises DeletionRefusedError if `clock`
    is more than `max_skew_ms` from the store's, and what the store raises.
    """
    listable = as_listable(storage)
    if listable is None:
        return False
    begun = clock()
    store_time = listable.time_of_a_write()
    ended = clock()
    if store_time is None:
        return False
    if begun - store_time - STORE_PRECISION_MS <= max_skew_ms >= store_time - ended - STORE_PRECISION_MS:
        return True
    raise DeletionRefusedError(
        f"{listable.place_of('')}: the store's clock showed {as_date(store_time)} when this machine's showed "
        f"{as_date(ended)}, more than clock.max.skew.ms ({max_skew_ms}) apart: nothing is deleted, since the age of "
        "segments is uncertain. Set both clocks by NTP, check the plan again, and repeat the run"
    )


def has_own_clock(storage: RemoteStorageManager) -> bool:
    """Return whether the store's clock is surely not this machine's. A store that cannot be listed shows no time."""
    listable = as_listable(storage)
    return listable is not None and listable.has_own_clock


def _duration(ms: int) -> str:
    return str(timedelta(seconds=ms // 1000))
