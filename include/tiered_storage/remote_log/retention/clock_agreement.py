"""Checks this machine's clock before anything is marked, trimmed or deleted: by that clock a plan says what is old.

Three checks:

- the object store's clock, by an object that is written for it;
- the last reading, which the metadata keep (sql_clock_reading.py): since then the clock must have moved on as far as
  the machine has been running, which nobody can set. After a restart, it must have moved on as far as the machine has
  been running since, or the kernel must say that NTP synchronised it. Where no clock was read yet (metadata of an
  earlier release, rebuilt ones), the newest time that metadata and store know stands for a reading before a restart;
- the times in the metadata: none may be later than now.

A store in a local directory has this machine's own clock, and one at an endpoint of the user's may have it. So only the
clocks of AWS, Google and Azure stand above the reading. The grace time of what is marked begins again at every restart,
since nobody knows how long it took (GraceTime).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Self

from tiered_storage.clock import BootClock, Clock, as_date
from tiered_storage.errors import DeletionRefusedError
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.metadata.sql_clock_reading import ClockReading, SqlClockReading
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, TopicIdPartition
from tiered_storage.remote_log.storage.object_client import ObjectStoreOptions
from tiered_storage.remote_log.storage.remote_storage_manager import RemoteStorageManager
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager

STORE_PRECISION_MS = 1_000
"""Some stores tell whole seconds."""

READING_LASTS_MS = 3_600_000
"""So long a reading stays: a clock that is set ahead by a little at a time is compared with what it was before."""


@dataclass(frozen=True, slots=True)
class GraceTime:
    """For how long (ms) what was marked stays: time before `trusted_since` (ms) does not count."""

    ms: int
    trusted_since: int = 0

    def over_at(self, marked_at: int) -> int:
        """Return when the grace time of what was marked then is over (ms)."""
        return max(marked_at, self.trusted_since) + self.ms

    def over_for(self, now: int) -> int:
        """Return until when (ms) something must have been marked for its grace time to be over `now`."""
        return now - self.ms if self.trusted_since + self.ms <= now else -1


@dataclass(frozen=True, slots=True)
class ClockAgreement:
    """Compares `clock` with the others; `max_skew_ms` is how far apart they may be (clock.max.skew.ms).

    `is_store_independent`: whether the store's clock is another machine's.
    """

    clock: Clock
    boot_clock: BootClock
    storage: RemoteStorageManager
    reading: SqlClockReading
    max_skew_ms: int
    is_store_independent: bool

    @classmethod
    def of(cls, context: RemoteLogContext) -> Self:
        """Return that of an open remote log."""
        is_independent = has_own_clock(context.storage, context.options)
        skew = context.settings.clock_max_skew_ms
        return cls(
            context.clock, context.boot_clock, context.storage, context.store.clock_reading, skew, is_independent
        )

    def ensure_agrees(self) -> None:
        """Raise DeletionRefusedError unless the clock passes the first two checks; then record what it shows.

        A clock that was refused is not recorded. Raises what store and metadata raise.
        """
        is_told = ensure_store_agrees(self.clock, self.storage, self.max_skew_ms)
        if not (is_told and self.is_store_independent):
            self._ensure_steady()
        self._record()

    def note(self) -> None:
        """Record what the clock shows if it agrees with the last reading, for a run that deletes nothing."""
        self.reading.begin(self._renewed_at)
        if self._why_unsteady() is None:
            self._record()

    def trust(self) -> None:
        """Record what the clock shows, by a person's word. What is marked waits its grace time once more."""
        now = self.clock()
        self.reading.record(ClockReading(self.boot_clock(), now, trusted_since=now))

    def why_refused(self) -> str | None:
        """Return what `ensure_agrees` would raise, as far as can be told without writing; None: nothing.

        If no clock was ever read, it asks the store when its generation was begun, and goes without where that fails.
        """
        return None if self.is_store_independent else self._why_unsteady()

    def grace(self, grace_ms: int) -> GraceTime:
        """Return the grace time as it counts by now."""
        if self.is_store_independent:
            return GraceTime(grace_ms)
        return GraceTime(grace_ms, self._current(self.reading.read()).trusted_since)

    def ensure_not_ahead(self, partition: TopicIdPartition, segments: Iterable[RemoteLogSegmentMetadata]) -> None:
        """Raise DeletionRefusedError if anything happened to `segments` of `partition` later than now.

        Also raises it if the clock jumped since the run began.
        """
        if not self.is_store_independent:
            self._ensure_steady()
        now = self.clock()
        newest = max(segments, key=lambda segment: segment.event_timestamp, default=None)
        if newest is None or newest.event_timestamp <= now + self.max_skew_ms:
            return
        raise DeletionRefusedError(
            f"{partition}: segment {newest.segment_id.id} became {newest.state.name} at "
            f"{as_date(newest.event_timestamp)}, and this machine's clock shows {as_date(now)}: it is behind, or the "
            "one of an earlier run was ahead. Nothing of the partition is deleted. Set the clock by NTP. If it is "
            f"right, 'tiered-storage undelete {partition.topic}' takes back what was marked then; the partition is "
            "deleted from again once that time has come, or by a run with a larger clock.max.skew.ms"
        )

    def _ensure_steady(self) -> None:
        why = self._why_unsteady()
        if why is not None:
            raise DeletionRefusedError(why)

    def _why_unsteady(self) -> str | None:
        """Return how the clock disagrees with the last reading; None if it agrees, or no time is known."""
        earlier = self.reading.read_or_newest(self._renewed_at)
        if earlier is None:
            return None
        now, running = self.clock(), self.boot_clock()
        if running.boot_id == earlier.boot_time.boot_id:
            expected = earlier.wall + running.ms - earlier.boot_time.ms
            if abs(now - expected) <= self.max_skew_ms:
                return None
            jump = f"{'ahead' if now > expected else 'back'} by {_duration(abs(now - expected))}"
            return (
                f"this machine's clock shows {as_date(now)}, and should show {as_date(expected)} by the time that "
                f"passed since it was last checked, at {as_date(earlier.wall)}: it was set {jump}, or the machine was "
                f"paused. {_NOBODY_KNOWS} Set the clock by NTP; {_IF_IT_IS_RIGHT}"
            )
        later = now - earlier.wall
        explained = running.ms if earlier.is_taken else 0
        if abs(later - explained) <= self.max_skew_ms or (running.is_synchronised and later >= -self.max_skew_ms):
            return None
        apart = "later" if later > 0 else "earlier"
        return (
            f"{_since(earlier)} {as_date(earlier.wall)}; this machine's clock shows {as_date(now)} now, "
            f"{_duration(abs(later))} {apart}, and nothing proves that it is right. {_NOBODY_KNOWS} Wait until NTP has "
            f"synchronised this machine's clock; {_IF_IT_IS_RIGHT}"
        )

    def _renewed_at(self) -> int | None:
        storage = self.storage
        return storage.generations.renewed_at() if isinstance(storage, ObjectRemoteStorageManager) else None

    def _record(self) -> None:
        earlier = self.reading.read()
        current = self._current(earlier)
        is_of_this_start = earlier is not None and earlier.boot_time.boot_id == current.boot_time.boot_id
        age = 0 if earlier is None else current.boot_time.ms - earlier.boot_time.ms
        if is_of_this_start and age < READING_LASTS_MS and self._why_unsteady() is None:
            return
        self.reading.record(current)

    def _current(self, earlier: ClockReading | None) -> ClockReading:
        now, running = self.clock(), self.boot_clock()
        if earlier is not None and running.boot_id == earlier.boot_time.boot_id:
            return replace(earlier, boot_time=running, wall=now)
        return ClockReading(running, now, trusted_since=now)


def _since(earlier: ClockReading) -> str:
    if earlier.is_taken:
        return "this machine was restarted, or is another one, since its clock was last checked, at"
    return "these metadata never read a clock, and the newest time known before is"


_NOBODY_KNOWS = "Nothing is marked, trimmed or deleted by it: nobody knows what is old."
_IF_IT_IS_RIGHT = "if it is right, 'tiered-storage metadata trust-clock' lets deletions go on"


def ensure_store_agrees(clock: Clock, storage: RemoteStorageManager, max_skew_ms: int) -> bool:
    """Write a small object to ask the store for the time; return whether it told it.

    A user's own RemoteStorageManager has no clock that could be asked, nor does a store without room. Raises
    DeletionRefusedError if `clock` is more than `max_skew_ms` from the store's, and what the store raises.
    """
    if not isinstance(storage, ObjectRemoteStorageManager):
        return False
    begun = clock()
    told = storage.time_of_a_write()
    ended = clock()
    if told is None:
        return False
    if begun - told - STORE_PRECISION_MS <= max_skew_ms >= told - ended - STORE_PRECISION_MS:
        return True
    raise DeletionRefusedError(
        f"{storage.place_of('')}: the store's clock showed {as_date(told)} when this machine's showed "
        f"{as_date(ended)}, more than clock.max.skew.ms ({max_skew_ms}) apart: nothing is deleted, since "
        "nobody knows what is old. Set both clocks by NTP, look at the plan again, and repeat the run"
    )


_PROVIDERS = ("AWS_", "GOOGLE_", "AZURE_", "AZURITE_")
_NAMES_ENDPOINT = re.compile("ENDPOINT|BASE_URL|EMULATOR|SERVICE_ACCOUNT")
"""In names of properties and variables, which obstore reads by itself. Google's key files may name an endpoint too."""


def has_own_clock(
    storage: RemoteStorageManager, options: ObjectStoreOptions, environ: Mapping[str, str] = os.environ
) -> bool:
    """Whether the store's clock is surely not this machine's: it is the one of AWS, Google or Azure.

    A directory has this machine's clock. Which machine an endpoint that is named in `options` or `environ` means, and
    whose clock a user's own RemoteStorageManager has, nobody knows.
    """
    if not isinstance(storage, ObjectRemoteStorageManager) or storage.place_of("").startswith("file:"):
        return False
    given = [*options.properties, *(name for name in environ if name.upper().startswith(_PROVIDERS))]
    return not options.endpoint and not any(_NAMES_ENDPOINT.search(name.upper()) for name in given)


def _duration(ms: int) -> str:
    return str(timedelta(seconds=ms // 1000))
