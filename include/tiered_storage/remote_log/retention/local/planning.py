"""Plan local retention over all partitions, within the room of one run.

All partitions take a segment in turn until the room is used up. So a partition whose trim fails in every run keeps no
other from its share, unless there are more partitions than room.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tiered_storage.errors import (
    InvalidLogDirectoryError,
    LineageContradictedError,
    SourceClusterError,
    TieredStorageError,
)
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.metadata.lost_identity import LostIdentities
from tiered_storage.remote_log.model import Finding
from tiered_storage.remote_log.retention.gate.clock_agreement import ClockAgreement
from tiered_storage.remote_log.retention.gate.deletion_gate import DeletionGate, DeletionKind
from tiered_storage.remote_log.retention.local.cluster_plan import (
    IgnoredReaders,
    RemoteSide,
    plan_cluster_retention,
)
from tiered_storage.remote_log.retention.local.plan import LocalRetentionPlan, plan_local_retention
from tiered_storage.remote_log.selection import Selection, in_turns
from tiered_storage.remote_log.source.partition_log import PartitionLog, UnreadablePartition, name_of
from tiered_storage.remote_log.tiering_policy import decide, is_wanted
from tiered_storage.settings.topics import TopicSettings


@dataclass(frozen=True, slots=True)
class Occasion:
    """A moment (ms), and the names (such as orders-0) of the partitions to plan for it; None: all."""

    now: int
    names: Collection[str] | None = None


@dataclass(frozen=True, slots=True)
class LocalRetentionPlanner:
    """Plans over every partition of the local logs for which local deletion is allowed."""

    context: RemoteLogContext
    gate: DeletionGate

    def plan(
        self, selection: Selection, occasions: Sequence[Occasion], max_segments: int
    ) -> tuple[list[LocalRetentionPlan], list[Finding]]:
        """Return what local retention would delete, at most `max_segments` in all, and what must be left alone and why.

        The latest of the `occasions` that name a partition counts: it deletes most. A note in its plan says what the
        limit leaves of a partition.
        """
        moments = _moments(occasions)
        left: list[Finding] = []
        planned, held = list[_Planned](), 0
        for one in self._allowed(selection, moments, left):
            plan = self._plan_or_leave(one, max_segments + 1, left)
            if plan is None:
                continue
            due = len(plan.segments)
            # All plans of a backlog together would take memory without a bound: those beyond are made again.
            is_kept = held + due <= max_segments
            held += due if is_kept else 0
            planned.append(_Planned(one, due, plan if is_kept else None))
        shares = in_turns([each.due for each in planned], max_segments)
        return list(self._within(planned, shares, max_segments, left)), left

    def of(self, log: PartitionLog, settings: TopicSettings, now: int, most: int | None = None) -> LocalRetentionPlan:
        """Return the plan for one partition; see plan_local_retention and plan_cluster_retention.

        Raises also InvalidLogDirectoryError for what must not be removed.
        """
        context = self.context
        if not context.source.shows_segments:
            remote = RemoteSide.of(log.topic_id_partition, context.segments)
            return plan_cluster_retention(log, remote, settings, now, IgnoredReaders.of(context.settings), most)
        grace = ClockAgreement.of(context).grace(context.settings.remote_log_deletion_grace_ms)
        # What was marked before that can no longer be undeleted.
        settled_before = grace.over_for(context.clock())
        plan = plan_local_retention(log, context.segments, settings, now, most, settled_before, grace)
        context.source.local_trim.ensure_removable(plan.segments)
        return plan

    def _allowed(self, selection: Selection, moments: _Moments, left: list[Finding]) -> Iterator[_Allowed]:
        """Yield the partitions that may be trimmed; add to `left` those that somebody requested and that may not."""
        context = self.context
        identities = LostIdentities(context.segments.list_partitions(), context.segments)
        for log in identities.recognised(context.source.partitions(), unless_remote=True):
            topic, number = name_of(log)
            name = log.partition if isinstance(log, UnreadablePartition) else str(log.topic_id_partition)
            now = moments.of(name)
            if now is None or not selection.matches(topic, number):
                continue
            if isinstance(log, UnreadablePartition):
                if is_wanted(topic, context.topics, context.settings):
                    left.append(Finding(name, log.reason))
                continue
            try:
                decision = decide(log, context.topics, context.settings)
            except TieredStorageError as error:
                left.append(Finding(name, str(error)))
                continue
            if not decision.trims:
                continue
            objection = self.gate.why_doubtful(log.topic_id_partition, DeletionKind.LOCAL)
            if objection is not None:
                left.append(Finding(name, objection))
                continue
            yield _Allowed(log, decision.settings, now)

    def _plan_or_leave(self, one: _Allowed, most: int, left: list[Finding]) -> LocalRetentionPlan | None:
        try:
            return self.of(one.log, one.settings, one.now, most)
        except (LineageContradictedError, InvalidLogDirectoryError, SourceClusterError) as error:
            left.append(Finding(str(one.log.topic_id_partition), str(error)))
            return None

    def _within(
        self, planned: Iterable[_Planned], shares: Iterable[int], max_segments: int, left: list[Finding]
    ) -> Iterator[LocalRetentionPlan]:
        """Yield each plan within its share; what a partition cannot use of its share is for the next that was cut."""
        unused = 0
        for each, share in zip(planned, shares, strict=True):
            due, plan = each.due, each.plan
            most = min(due, share + unused)
            if plan is None or most < due:
                plan = self._plan_or_leave(each.allowed, most, left)
            taken = 0 if plan is None else len(plan.segments)
            unused += share - taken
            if plan is None:
                continue
            is_whole = taken == due or plan.held_back
            yield plan if is_whole else replace(plan, notes=(*plan.notes, _cut(taken, due, max_segments)))


@dataclass(frozen=True, slots=True)
class _Allowed:
    """A partition that may be trimmed, its settings, and the moment (ms) to plan for."""

    log: PartitionLog
    settings: TopicSettings
    now: int


@dataclass(frozen=True, slots=True)
class _Planned:
    """How many segments are `due` of a partition, at most one more than a run may delete; its plan, unless dropped."""

    allowed: _Allowed
    due: int
    plan: LocalRetentionPlan | None


@dataclass(frozen=True, slots=True)
class _Moments:
    """The latest moments (ms): `of_all` for every partition (None: none), `named` by a partition's name."""

    of_all: int | None
    named: Mapping[str, int]

    def of(self, name: str) -> int | None:
        """Return the moment for a partition; None if no occasion names it."""
        known = [now for now in (self.of_all, self.named.get(name)) if now is not None]
        return max(known, default=None)


def _moments(occasions: Iterable[Occasion]) -> _Moments:
    named: dict[str, int] = {}
    of_all: list[int] = []
    for occasion in occasions:
        if occasion.names is None:
            of_all.append(occasion.now)
        for name in occasion.names or ():
            named[name] = max(occasion.now, named.get(name, occasion.now))
    return _Moments(max(of_all, default=None), named)


def _cut(taken: int, due: int, max_segments: int) -> str:
    known = f"{due}" if due <= max_segments else f"{due} or more"
    return (
        f"this run deletes {taken} of the {known} segments that are due; the next runs delete the others "
        "(local.retention.max.segments.per.run or --max-segments)"
    )
