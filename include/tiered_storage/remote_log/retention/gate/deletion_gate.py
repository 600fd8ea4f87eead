"""Decide whether a deletion may begin and go on: every deletion asks before it begins, and between its batches.

What concerns one segment (a fork, a last copy, an object of a later release) is refused where the segment is read. The
gate asks in this order: did a person stop all deletions; do store and metadata belong together, at one generation
(generation.py); is the right given for the topic; what did the last audits find. An audit that found fault with a topic
stops trimming it (audit/results.py), since its local segments may be the last good copy. If too large a share of a
store is unreferenced, all deletion in it stops: the metadata are probably not its own, or older than it. Without any
audit there is no objection.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from itertools import groupby
from typing import Self

from tiered_storage.clock import BootClock, Clock, as_date
from tiered_storage.errors import DeletionRefusedError, RemoteStorageError
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.metadata.metadata_store import ClockReading, ClockReadings
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import RemoteLogMetadataManager, Topic
from tiered_storage.remote_log.metadata.safety import AuditVerdict, Safety
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, TopicIdPartition
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions
from tiered_storage.remote_log.storage.listable_storage import ListableStorage
from tiered_storage.remote_log.storage.remote_storage_manager import RemoteStorageManager

WHOLE_STORE = ""
"""Replaces cluster and topic id in the verdict on a store as a whole."""

FEW_OBJECTS = 10
"""Up to this many unreferenced objects prove nothing, however small the store is."""


class DeletionKind(StrEnum):
    """What is to be deleted, which decides the checks."""

    LOCAL = "local"
    """Local segments that the remote tier holds."""
    REMOTE = "remote"
    """Remote segments that readers could see."""
    LEFTOVER = "leftover"
    """Objects that no reader ever saw: of unfinished copies, or unreferenced."""


@dataclass(frozen=True, slots=True)
class DeletionGate:
    """Checks `safety`, `bind_store` and the decisions on a partition's topic.

    `bind_store` raises StoreMismatchError, and OutdatedMetadataError for metadata that are not the store's.
    `publish_pending` publishes a decision that could not be published earlier, if possible now.
    """

    safety: Safety
    bind_store: Callable[[], None]
    decided_topic: Callable[[TopicIdPartition], Topic]
    publish_pending: Callable[[], None]

    def ensure_running(self) -> None:
        """Raise DeletionRefusedError if a person stopped all deletions."""
        stopped = self.why_stopped()
        if stopped is not None:
            # The stop itself may not be published yet, and every run that would publish it ends here.
            self.publish_pending()
            raise DeletionRefusedError(stopped)

    def why_stopped(self) -> str | None:
        """Return who stopped all deletions, when and why; None if nobody did."""
        stop = self.safety.stopped()
        if stop is None:
            return None
        return (
            f"{stop.said_by} stopped all deletions at {as_date(stop.said_at)} ({stop.reason or 'no reason given'}): "
            "nothing is deleted until that is lifted by 'tiered-storage stop-deletions --lift'"
        )

    def ensure(self, partition: TopicIdPartition, kind: DeletionKind) -> None:
        """Raise DeletionRefusedError if nothing of `kind` may be deleted now, and what `bind_store` raises."""
        for refused in self.refusals([partition], kind).values():
            raise refused

    def refusals(
        self, partitions: Iterable[TopicIdPartition], kind: DeletionKind
    ) -> dict[TopicIdPartition, DeletionRefusedError]:
        """Return those of `partitions` in which nothing of `kind` may be deleted now, and why.

        Raises what holds for all: DeletionRefusedError if a person stopped all deletions, and what `bind_store`
        raises.
        """
        self.ensure_running()
        self.bind_store()
        return {each: DeletionRefusedError(why) for each, why in self._refused(partitions, kind)}

    def ensure_allowed(self, partition: TopicIdPartition, kind: DeletionKind) -> None:
        """Raise DeletionRefusedError if nothing of `kind` may be deleted, whether or not all deletions are stopped.

        For planning, which changes nothing.
        """
        for _, why in self._refused([partition], kind):
            raise DeletionRefusedError(why)

    def _refused(
        self, partitions: Iterable[TopicIdPartition], kind: DeletionKind
    ) -> Iterator[tuple[TopicIdPartition, str]]:
        by_topic = sorted(partitions, key=_topic_of)
        for _, of_topic in groupby(by_topic, key=_topic_of):
            asked = list(of_topic)
            # Rights and verdicts belong to a topic: its partitions get the same answer.
            topic, verdicts = self.decided_topic(asked[0]), self._verdicts(asked[0], kind)
            for each in asked:
                why = _why_no_right(each, kind, topic) or _why_doubtful(each, verdicts)
                if why is not None:
                    yield each, why

    def is_allowed(self, partition: TopicIdPartition, kind: DeletionKind) -> bool:
        """Return whether the right is given."""
        return _why_no_right(partition, kind, self.decided_topic(partition)) is None

    def why_doubtful(self, partition: TopicIdPartition, kind: DeletionKind) -> str | None:
        """Return the objection of the last audits to a deletion; None if there is none."""
        return _why_doubtful(partition, self._verdicts(partition, kind))

    def _verdicts(self, partition: TopicIdPartition, kind: DeletionKind) -> tuple[AuditVerdict, ...]:
        of_store = self.safety.verdicts(WHOLE_STORE, WHOLE_STORE)
        of_topic = self.safety.verdicts(partition.cluster_id, partition.topic_id) if kind is DeletionKind.LOCAL else ()
        return (*of_store, *of_topic)


def store_verdict(unreferenced: int, objects: int, max_percent: int, audited_at: int, *, deep: bool) -> AuditVerdict:
    """Return the verdict on a store with this many unreferenced objects.

    Its `anomalies` are above 0 if that stops deletions: more than `max_percent` of all, and more than a few.
    """
    is_too_much = unreferenced > FEW_OBJECTS and unreferenced * 100 > objects * max_percent
    message = (
        f"nothing refers to {unreferenced} of {objects} objects of the store that were looked at, more than "
        f"remote.log.unreferenced.max.percent ({max_percent}): the metadata may not be this store's, or older than it"
    )
    anomalies = unreferenced if is_too_much else 0
    return AuditVerdict(WHOLE_STORE, WHOLE_STORE, deep, audited_at, anomalies, message if is_too_much else "")


def _objection(verdict: AuditVerdict, partition: TopicIdPartition) -> str:
    of_what = "the store" if verdict.topic_id == WHOLE_STORE else f"topic {partition.topic}"
    kind = "deep " if verdict.deep else ""
    return (
        f"{partition}: the last {kind}audit of {of_what}, at {as_date(verdict.audited_at)}, found something wrong "
        f"({verdict.message or verdict.anomalies}): nothing of it is removed before an audit of the same kind finds "
        "nothing; 'tiered-storage audit' shows what to repair"
    )


def _why_no_right(partition: TopicIdPartition, kind: DeletionKind, topic: Topic) -> str | None:
    if kind is DeletionKind.LOCAL and not (topic.remote_storage_enable and topic.local_deletion_allowed):
        return (
            f"{partition}: local deletion is not allowed any more, or the topic was disabled, since this was "
            "planned: nothing of it was removed"
        )
    if kind is DeletionKind.REMOTE and not topic.remote_deletion_allowed:
        return f"{partition}: remote deletion is not allowed: 'tiered-storage topics allow-deletion' allows it"
    return None


def _why_doubtful(partition: TopicIdPartition, verdicts: Iterable[AuditVerdict]) -> str | None:
    return next((_objection(verdict, partition) for verdict in verdicts if verdict.anomalies), None)


def _topic_of(partition: TopicIdPartition) -> tuple[str, str, str]:
    # With the name: the settings file goes by it, and of some partitions it is unknown.
    return partition.cluster_id, partition.topic_id, partition.topic


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
    reading: ClockReadings
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
        """Raise DeletionRefusedError unless the clock passes the first two checks; then record a reading.

        The reading of a refused clock is not recorded. Raises what store and metadata raise.
        """
        is_told = ensure_store_agrees(self.clock, self.storage, self.max_skew_ms)
        if not (is_told and self.is_store_independent):
            self._ensure_steady()
        self._record()

    def note(self) -> None:
        """Record a reading if it agrees with the last one, for a run that deletes nothing."""
        self.reading.begin(self._renewed_at)
        if self._why_unsteady() is None:
            self._record()

    def trust(self) -> None:
        """Record a reading at a person's request. Marked segments wait their grace time again."""
        now = self.clock()
        self.reading.record(ClockReading(self.boot_clock(), now, trusted_since=now))

    def why_refused(self) -> str | None:
        """Return what `ensure_agrees` would raise, as far as known without writing; None: nothing.

        If no clock was ever read, it reads the start of the store's generation, and does without if that fails.
        """
        return None if self.is_store_independent else self._why_unsteady()

    def grace(self, grace_ms: int) -> GraceTime:
        """Return the grace time as it counts now."""
        if self.is_store_independent:
            return GraceTime(grace_ms)
        return GraceTime(grace_ms, self._current(self.reading.read()).trusted_since)

    def ensure_not_ahead(self, partition: TopicIdPartition, segments: Iterable[RemoteLogSegmentMetadata]) -> None:
        """Raise DeletionRefusedError if `segments` of `partition` have a state change in the future.

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
            f"{as_date(newest.event_timestamp)}, but this machine's clock shows {as_date(now)}: it is behind, or that "
            "of an earlier run was ahead. Nothing of the partition is deleted. Set the clock by NTP. If it is "
            f"right, 'tiered-storage undelete {partition.topic}' takes back what was marked then; deletion in the "
            "partition goes on once that time has come, or by a run with a larger clock.max.skew.ms"
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
        return storage.generations.renewed_at() if isinstance(storage, ListableStorage) else None

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
    return "these metadata never read a clock, and the newest known time is"


_NOBODY_KNOWS = "Nothing is marked, trimmed or deleted, since the age of segments is uncertain."
_IF_IT_IS_RIGHT = "if it is right, 'tiered-storage metadata trust-clock' lets deletions go on"


def ensure_store_agrees(clock: Clock, storage: RemoteStorageManager, max_skew_ms: int) -> bool:
    """Write a small object to get the store's time; return whether the store reported it.

    A store that cannot be listed does not report it, nor does one without room. Raises DeletionRefusedError if `clock`
    is more than `max_skew_ms` from the store's, and what the store raises.
    """
    if not isinstance(storage, ListableStorage):
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
        f"{as_date(ended)}, more than clock.max.skew.ms ({max_skew_ms}) apart: nothing is deleted, since the age of "
        "segments is uncertain. Set both clocks by NTP, check the plan again, and repeat the run"
    )


_PROVIDERS = ("AWS_", "GOOGLE_", "AZURE_", "AZURITE_")
_NAMES_ENDPOINT = re.compile("ENDPOINT|BASE_URL|EMULATOR|SERVICE_ACCOUNT")
"""In names of properties and variables that obstore reads itself. Google's key files may name an endpoint too."""


def has_own_clock(
    storage: RemoteStorageManager, options: ObjectStoreOptions, environ: Mapping[str, str] = os.environ
) -> bool:
    """Return whether the store's clock is surely not this machine's: it is that of AWS, Google or Azure.

    A directory has this machine's clock. An endpoint in `options` or `environ` may be any machine, and so may a store
    that cannot be listed.
    """
    if not isinstance(storage, ListableStorage) or storage.place_of("").startswith("file:"):
        return False
    given = [*options.properties, *(name for name in environ if name.upper().startswith(_PROVIDERS))]
    return not options.endpoint and not any(_NAMES_ENDPOINT.search(name.upper()) for name in given)


def _duration(ms: int) -> str:
    return str(timedelta(seconds=ms // 1000))


READS_AT_ONCE = 8


def ensure_known_versions(segments: Iterable[RemoteLogSegmentMetadata], storage: RemoteStorageManager) -> None:
    """Raise LaterVersionError if a later release wrote one of `segments`, and what the store raises.

    Missing or corrupt objects are ignored. A store that cannot be listed is responsible for its own formats.
    """
    for _, error in _unknown(tuple(segments), storage):
        raise error


def unknown_versions(
    partitions: Mapping[TopicIdPartition, Sequence[RemoteLogSegmentMetadata]], storage: RemoteStorageManager
) -> Mapping[TopicIdPartition, RemoteStorageError]:
    """Return the first error of each affected partition that `ensure_known_versions` would raise."""
    asked = [segment for segments in partitions.values() for segment in segments]
    found: dict[TopicIdPartition, RemoteStorageError] = {}
    for segment, error in _unknown(asked, storage):
        found.setdefault(segment.topic_id_partition, error)
    return found


def _unknown(
    asked: Sequence[RemoteLogSegmentMetadata], storage: RemoteStorageManager
) -> Iterator[tuple[RemoteLogSegmentMetadata, RemoteStorageError]]:
    """Yield the segments with an error, in order; closing the generator cancels what has not begun."""
    if not isinstance(storage, ListableStorage) or not asked:
        return

    def look(segment: RemoteLogSegmentMetadata) -> RemoteStorageError | None:
        try:
            return storage.later_version(segment)
        except RemoteStorageError as error:
            return error

    with ThreadPoolExecutor(min(READS_AT_ONCE, len(asked))) as readers:
        try:
            for segment, error in zip(asked, readers.map(look, asked), strict=True):
                if error is not None:
                    yield segment, error
        finally:
            readers.shutdown(wait=False, cancel_futures=True)


def ensure_known_partition(
    partition: TopicIdPartition, metadata: RemoteLogMetadataManager, storage: RemoteStorageManager
) -> None:
    """Raise LaterVersionError if a later release wrote a segment of `partition`, in any state."""
    ensure_known_versions(metadata.list_remote_log_segments(partition), storage)
