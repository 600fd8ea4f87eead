"""What a copy run would do: closed segments that are stable and not yet remote, earliest first.

Planning changes nothing: the plan IS the dry run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

from tiered_storage.errors import (
    InvalidLogDirectoryError,
    RemoteMetadataError,
    TieredStorageError,
    UnsupportedTopicError,
)
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.copy.roll_plan import RollTimes, as_the_topic_rolls, find_gap, plan_rolls
from tiered_storage.remote_log.copy.tasks import CopyPlan, PlannedSegment, SeenLineage
from tiered_storage.remote_log.coverage import Coverage, finished
from tiered_storage.remote_log.enabling.topic_watch import TopicWatch
from tiered_storage.remote_log.lineage import trusted_lineage, up_to, whole_lineage
from tiered_storage.remote_log.metadata.lost_identity import LostIdentities
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from tiered_storage.remote_log.model import Finding, PartitionDeleteState, PartitionState, TopicIdPartition
from tiered_storage.remote_log.selection import EVERYTHING, Selection, in_turns
from tiered_storage.remote_log.source.opening import CLUSTER_SCHEME, open_segment
from tiered_storage.remote_log.source.partition_log import (
    Elsewhere,
    LocalSegment,
    PartitionLog,
    SegmentLocation,
    UnreadablePartition,
    UnsegmentedLog,
    name_of,
)
from tiered_storage.remote_log.source.segment_source import first_timestamp, is_indexed_since
from tiered_storage.remote_log.tiering_policy import Decisions, TieringPolicy
from tiered_storage.settings.topics import TopicSettings

if TYPE_CHECKING:
    from tiered_storage.remote_log.context import RemoteLogContext


@dataclass(frozen=True, slots=True)
class CopySelection:
    """What a run requests: which partitions, and how much.

    `window_end` (ms) is set for a backfill. It takes, in order, only segments whose successor began at or before it: a
    bad timestamp can only hold a backfill back. `now` (ms) is the time for the lag of topics (remote.copy.lag.ms,
    remote.copy.lag.bytes), for which segments wait; None: no segment waits, and none is rolled because it is old.
    """

    scope: Selection = EVERYTHING
    window_end: int | None = None
    max_segments: int | None = None
    now: int | None = None


def plan_copy(
    context: RemoteLogContext,
    selection: CopySelection,
    why_no_name: Callable[[TopicIdPartition], str | None] = lambda _: None,
    replacing: frozenset[str] = frozenset(),
) -> CopyPlan:
    """Check every local partition and return what is due, as if the segments `replacing` were missing.

    `why_no_name` returns why the store can never hold a partition, None if it can. Raises what source and metadata
    raise as a whole; the plan has the errors of single partitions.
    """
    source, metadata, settings = context.source, context.segments, context.settings
    if not settings.remote_log_storage_system_enable:
        return CopyPlan((), notices=(Finding("", "nothing is copied: remote.log.storage.system.enable is false"),))
    refused: dict[str, Finding] = {}
    unreadable: list[Finding] = []
    notices: list[Finding] = []
    looked: list[_Found] = []
    looking = _Looking(metadata, selection, replacing)
    states = metadata.partition_states()
    watch, decisions = TopicWatch(context), Decisions(context.topics.list(), settings)
    identities = LostIdentities(states, metadata, is_cluster_named=settings.cluster_id is not None)
    for log in identities.recognised(source.partitions()):
        topic, number = name_of(log)
        watch.see(log)
        if log.is_internal or not selection.scope.matches(topic, number):
            continue
        if isinstance(log, UnreadablePartition):
            # If the topic was not requested, this is a notice and no failure.
            (unreadable if decisions.is_wanted(topic) else notices).append(Finding(log.partition, log.reason))
            continue
        try:
            decision = decisions.of(log)
        except UnsupportedTopicError as error:
            refused.setdefault(topic, Finding(topic, str(error)))
            continue
        except TieredStorageError as error:
            unreadable.append(Finding(str(log.topic_id_partition), str(error)))
            continue
        watch.leave_alone(topic, decision.left_alone)
        if not decision.copies:
            continue
        if reason := why_no_name(log.topic_id_partition) or identities.why_unknown_cluster(log):
            refused.setdefault(topic, Finding(topic, reason))
            continue
        state = states.get(log.topic_id_partition, PartitionState())
        if state.delete_state is not None:
            notices.append(Finding(str(log.topic_id_partition), why_deleted(state.delete_state)))
            continue
        # Partitions that cannot be copied need the alarm of a short or lowered retention most.
        steps = partial(looking.add, looked, log, decision, state), partial(watch.compare_retention, log, decision)
        unreadable.extend(_troubles(log, *steps))
    notices.extend((*watch.notices(selection.scope, states), *(notice for found in looked for notice in found.notices)))
    unreadable.extend(found.uncopyable for found in looked if found.uncopyable is not None)
    _report_elsewhere(looked, notices, unreadable)
    chosen, lost, left = _within(looked, selection.max_segments)
    notices.extend(_left_to_later(sum(found.waiting for found in looked), left))
    return CopyPlan(
        tuple(chosen),
        tuple(refused.values()),
        tuple(unreadable),
        # A cluster that is out of reach would have ended the plan by now, so this adds no second wait for it.
        (*(Finding("", notice) for notice in source.notices), *notices),
        tuple(seen for found in looked for seen in found.lineages),
        replacing,
        (*watch.alarms, *lost),
    )


def _troubles(log: PartitionLog, *steps: Callable[[], None]) -> Iterable[Finding]:
    """Take each step. Return why they failed: no content of one partition's log may stop the copies of others.

    Raises RemoteMetadataError.
    """
    found: dict[Finding, None] = {}
    for step in steps:
        try:
            step()
        except RemoteMetadataError:
            raise
        except TieredStorageError as error:
            found[Finding(str(log.topic_id_partition), str(error))] = None
    return found


def _left_to_later(waiting: int, left: int) -> Iterator[Finding]:
    """Yield how many segments wait for a lag, and how many are due and left to the next runs."""
    if waiting:
        yield Finding("", f"{waiting} closed segments wait until their topic's remote.copy.lag.ms or .bytes is reached")
    if left:
        yield Finding("", f"{left} more segments are due; the next runs take them (copy.max.segments.per.run)")


def why_deleted(state: PartitionDeleteState) -> str:
    """Return why nothing is copied of a partition in this state of deletion."""
    return f"its remote log is being deleted ({state.name}): nothing more of it is copied"


@dataclass(frozen=True, slots=True)
class _Found:
    """How many segments of one partition are due, and `waiting` for the topic's lag, and what else its log showed.

    `first` returns so many of the due ones: of thousands, a run takes few. Nothing is due if this host cannot read the
    leader's files: `elsewhere`. `alarms` name records that are lost if the copy continues.
    """

    due: int
    first: Callable[[int], list[PlannedSegment]]
    lineages: list[SeenLineage]
    notices: list[Finding]
    uncopyable: Finding | None
    waiting: int
    elsewhere: tuple[TopicIdPartition, Elsewhere] | None = None
    alarms: tuple[Finding, ...] = ()


def _within(looked: Sequence[_Found], most: int | None) -> tuple[list[PlannedSegment], list[Finding], int]:
    """Return what is due, each partition's earliest in turns up to `most` in all, its alarms, and how many are left."""
    chosen, alarms = list[PlannedSegment](), list[Finding]()
    for found, share in zip(looked, in_turns([found.due for found in looked], most), strict=True):
        chosen += found.first(share)
        alarms += found.alarms if share else ()
    return chosen, alarms, sum(found.due for found in looked) - len(chosen)


def _nothing(_: int) -> list[PlannedSegment]:
    return []


def _report_elsewhere(looked: Sequence[_Found], notices: list[Finding], unreadable: list[Finding]) -> None:
    """Add one finding for all partitions that the same broker leads, and whose files this host cannot see."""
    partitions: dict[Elsewhere, list[TopicIdPartition]] = {}
    for partition, where in (found.elsewhere for found in looked if found.elsewhere is not None):
        partitions.setdefault(where, []).append(partition)
    for where, (first, *others) in partitions.items():
        findings = notices if where.is_left else unreadable
        more = f" (and {len(others)} more partitions)" if others else ""
        findings.append(Finding(str(first), f"not copied here{more}: {where.reason}"))


@dataclass(frozen=True, slots=True)
class _Looking:
    """How a plan looks at each partition; `replacing` are segments that count as missing."""

    metadata: RemoteLogMetadataManager
    selection: CopySelection
    replacing: frozenset[str]

    def add(self, to: list[_Found], log: PartitionLog, decision: TieringPolicy, state: PartitionState) -> None:
        """Look at a log that is tiered by `decision`, and add what is found."""
        topic, unsegmented = decision.settings, log.unsegmented
        if unsegmented is None:
            to.append(self._at_segments(log, topic, state))
        else:
            to.append(self._at_unsegmented(log, as_the_topic_rolls(unsegmented, topic), topic, state))

    def _at_segments(self, log: PartitionLog, topic: TopicSettings, state: PartitionState) -> _Found:
        """Look at a log that shows its segments."""
        partition, selection = log.topic_id_partition, self.selection
        lineage, coverage = self._covered(log, state)
        log_start = state.log_start_offset or 0
        missing_locals = [
            (segment, end_offset)
            for segment, end_offset in _closed_by(log, selection.window_end)
            if log.log_start_offset <= end_offset < log.last_stable_offset
            and coverage.lacks(segment.base_offset, end_offset, log_start)
        ]
        waiting = 0 if selection.now is None else _waiting_for_lag(missing_locals, log, topic, selection.now)
        copyable, uncopyable = _cut_at_unreadable(
            missing_locals[: len(missing_locals) - waiting], selection.max_segments
        )

        def first(share: int) -> list[PlannedSegment]:
            return [
                PlannedSegment(
                    partition,
                    segment.location,
                    segment.base_offset,
                    end_offset,
                    segment.size,
                    up_to(lineage, end_offset),
                )
                for segment, end_offset in copyable[:share]
            ]

        notices = []
        if coverage.end_offset is not None and coverage.end_offset + 1 < log.log_start_offset:
            lost = f"offsets {coverage.end_offset + 1} to {log.log_start_offset - 1}"
            notices.append(Finding(str(partition), f"{lost} were deleted locally and never copied"))
        why_not = None if uncopyable is None else Finding(str(partition), str(uncopyable))
        return _Found(len(copyable), first, _newly_seen(partition, lineage, state), notices, why_not, waiting)

    def _at_unsegmented(
        self, log: PartitionLog, unsegmented: UnsegmentedLog, topic: TopicSettings, state: PartitionState
    ) -> _Found:
        """Look at a log whose segments the copy rolls itself."""
        partition, selection = log.topic_id_partition, self.selection
        if unsegmented.elsewhere is not None:
            # Not even a lineage: a lease here would keep the worker that sees the files from its work.
            return _Found(0, _nothing, [], [], None, 0, (partition, unsegmented.elsewhere))
        lineage, coverage = self._covered(log, state)
        seen = _newly_seen(partition, lineage, state)
        gap = find_gap(log, coverage, state)
        if gap is not None and not topic.copy_over_gaps:
            return _Found(0, _nothing, seen, [], Finding(str(partition), f"{gap}: {gap.remedy}"), 0)
        lost = [] if gap is None else [Finding(str(partition), f"{gap}: {gap.loss}")]
        times = RollTimes(selection.now, selection.window_end)
        rolls = plan_rolls(log, unsegmented, coverage, state, topic, times, selection.max_segments)
        if rolls is None:
            return _Found(0, _nothing, seen, lost, None, 0)
        place = SegmentLocation(f"{CLUSTER_SCHEME}://{partition.cluster_id}/{partition}")
        epochs = up_to(lineage, rolls.end_offset)
        due = [
            PlannedSegment(partition, place, rolls.start_offset, rolls.end_offset, size, epochs, unsegmented.rules)
            for size in rolls.sizes
        ]
        # After this copy the gap lies inside the remote log, so no later plan finds it.
        return _Found(len(due), lambda share: due[:share], seen, [], None, 0, alarms=tuple(lost))

    def _covered(self, log: PartitionLog, state: PartitionState) -> tuple[tuple[EpochEntry, ...], Coverage]:
        """Return all known leaders of a partition, and what is remote of it."""
        segments = finished(self.metadata.list_remote_log_segments(log.topic_id_partition))
        lineage = whole_lineage(segments, trusted_lineage(state.lineage, log))
        kept = (each for each in segments if each.segment_id.id not in self.replacing)
        return lineage, Coverage.of(kept, lineage)


def _newly_seen(
    partition: TopicIdPartition, lineage: tuple[EpochEntry, ...], state: PartitionState
) -> list[SeenLineage]:
    return [SeenLineage(partition, lineage)] if lineage != state.lineage else []


def _waiting_for_lag(due: Sequence[tuple[LocalSegment, int]], log: PartitionLog, topic: TopicSettings, now: int) -> int:
    """Return how many of `due`, at its end, wait for the topic's lag: all from the first that has to (KIP-1241)."""
    if topic.remote_copy_lag_ms == 0:
        return 0
    backwards = log.segments[::-1]
    passed = accumulate((segment.size for segment in backwards), initial=0)
    bytes_after = {segment.base_offset: size for segment, size in zip(backwards, passed, strict=False)}
    for at, (segment, _) in enumerate(due):
        if not _has_lagged(segment, bytes_after[segment.base_offset], topic, now):
            return len(due) - at
    return 0


def _has_lagged(segment: LocalSegment, bytes_after: int, topic: TopicSettings, now: int) -> bool:
    """Return whether one of the topic's two lags is reached; resolved, -1 means that it never is."""
    lag_ms, lag_bytes = topic.remote_copy_lag_ms, topic.remote_copy_lag_bytes
    if 0 <= lag_bytes <= bytes_after:
        return True
    # By the index alone, as a broker does. What an index does not show only lets a segment be copied sooner.
    return lag_ms > 0 and not is_indexed_since(open_segment(segment.location), now - lag_ms + 1)


def _cut_at_unreadable(
    due: Sequence[tuple[LocalSegment, int]], limit: int | None
) -> tuple[Sequence[tuple[LocalSegment, int]], TieredStorageError | None]:
    """Return those of `due`, at most `limit`, before the first that cannot be read, and why that one cannot.

    Segments after it wait, since readers must find no gap.
    """
    for at, (segment, _) in enumerate(due[:limit]):
        try:
            open_segment(segment.location).head()
        except OSError as error:
            reason = f"{segment.location} cannot be read: {error}: give this user the right to, or look at the disk"
            return due[:at], InvalidLogDirectoryError(reason + _waiting(len(due) - at - 1, "it"))
    return due, None


def _waiting(count: int, what: str) -> str:
    return f"; {count} closed segments after {what} wait, since readers must find no gap" if count else ""


def _closed_by(log: PartitionLog, window_end: int | None) -> Iterator[tuple[LocalSegment, int]]:
    """Yield closed segments and their last offsets, up to the first whose successor began after `window_end`."""
    for segment, successor in zip(log.segments, log.segments[1:], strict=False):
        if window_end is not None:
            begun = first_timestamp(open_segment(successor.location))
            if begun is None or begun > window_end:
                return
        yield segment, successor.base_offset - 1
