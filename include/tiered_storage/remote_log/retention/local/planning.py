"""Plan local retention over all partitions, within the room of one run.

All partitions take a segment in turn until the room is used up. So a partition whose trim fails in every run keeps no
other from its share; if there are more partitions than room, chance decides in each run which get any.
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
from tiered_storage.remote_log.retention.local.cluster_plan import (
    IgnoredReaders,
    RemoteSide,
    plan_cluster_retention,
)
from tiered_storage.remote_log.retention.local.plan import LocalRetentionPlan, plan_local_retention
from tiered_storage.remote_log.retention.permission.clock_agreement import ClockAgreement
from tiered_storage.remote_log.retention.permission.deletion_permissions import DeletionKind, DeletionPermissions
from tiered_storage.remote_log.selection import Selection, plan_in_turns
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
    permissions: DeletionPermissions

    def plan(
        self, selection: Selection, occasions: Sequence[Occasion], max_segments: int
    ) -> tuple[list[LocalRetentionPlan], list[Finding]]:
        """Return what local retention would delete, at most `max_segments` in all, and what must be left alone and why.

        The latest of the `occasions` that name a partition counts: it deletes most. A note in its plan says what the
        limit leaves of a partition.
        """
        left: list[Finding] = []
        plans = plan_in_turns(
            self._allowed(selection, _moments(occasions), left),
            lambda one, most: self._plan_or_leave(one, most, max_segments, left),
            lambda plan: len(plan.segments),
            max_segments,
            seed=self.context.clock(),
        )
        return [_noted(plan, due, max_segments) for plan, due in plans], left

    def of(self, log: PartitionLog, settings: TopicSettings, now: int, most: int | None = None) -> LocalRetentionPlan:
        """Return the plan for one partition; see plan_local_retention and plan_cluster_retention.

        Raises also InvalidLogDirectoryError for what must not be removed.
        """
        context = self.context
        if not context.source.shows_segments:
            remote = RemoteSide.of(log.topic_id_partition, context.segments)
            return plan_cluster_retention(log, remote, settings, now, IgnoredReaders.of(context.settings), most)
        grace = ClockAgreement.of(context).grace(context.settings.remote_log_deletion_grace_ms)
        # Segments that were marked earlier can no longer be undeleted.
        settled_before = grace.over_for(context.clock())
        plan = plan_local_retention(log, context.segments, settings, now, most, settled_before, grace)
        context.source.local_trim.ensure_removable(plan.segments)
        return plan

    def _allowed(self, selection: Selection, moments: _Moments, left: list[Finding]) -> Iterator[_Allowed]:
        """Yield the partitions that may be trimmed; add to `left` those that were requested and may not be."""
        context = self.context
        is_named = context.settings.cluster_id is not None
        identities = LostIdentities(context.segments.list_partitions(), context.segments, is_cluster_named=is_named)
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
            objection = self.permissions.why_doubtful(log.topic_id_partition, DeletionKind.LOCAL)
            if objection is not None:
                left.append(Finding(name, objection))
                continue
            yield _Allowed(log, decision.settings, now)

    def _plan_or_leave(
        self, one: _Allowed, most: int | None, room: int, left: list[Finding]
    ) -> LocalRetentionPlan | None:
        """Return the plan of a partition; None, with the reason added to `left`, if it must be left alone.

        If its share of the `room` is too small for segments that are deleted together, it waits for a larger one.
        """
        try:
            plan = self.of(one.log, one.settings, one.now, most)
        except (LineageContradictedError, InvalidLogDirectoryError, SourceClusterError) as error:
            left.append(Finding(str(one.log.topic_id_partition), str(error)))
            return None
        is_short = plan.held_back is not None and not plan.segments and most is not None and most < room
        return replace(plan, waits=True) if is_short else plan


@dataclass(frozen=True, slots=True)
class _Allowed:
    """A partition that may be trimmed, its settings, and the moment (ms) to plan for."""

    log: PartitionLog
    settings: TopicSettings
    now: int


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


def _noted(plan: LocalRetentionPlan, due: int, max_segments: int) -> LocalRetentionPlan:
    """Return the plan, with a note about those of the `due` segments of its partition that the limit leaves."""
    taken = len(plan.segments)
    if taken == due or plan.held_back:
        return plan
    known = f"{due}" if due <= max_segments else f"{due} or more"
    note = (
        f"this run deletes {taken} of the {known} segments that are due; the next runs delete the others "
        "(local.retention.max.segments.per.run or --max-segments)"
    )
    return replace(plan, notes=(*plan.notes, note))
