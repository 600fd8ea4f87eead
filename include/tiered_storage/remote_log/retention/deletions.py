"""Everything that deletes from a remote log: local retention, total retention, and the deletion of marked segments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tiered_storage.errors import SourceClusterError
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.enabling.broker_limits import note_limits
from tiered_storage.remote_log.jobs.throttle import read_back_limit
from tiered_storage.remote_log.model import Finding, PartitionState, TopicIdPartition
from tiered_storage.remote_log.progress import Amount, OnMoved, unreported
from tiered_storage.remote_log.read.partition_snapshot import PartitionSnapshot
from tiered_storage.remote_log.retention.due_segments import DueSegments, PendingDeletion
from tiered_storage.remote_log.retention.expiry import ExpiryPlan
from tiered_storage.remote_log.retention.expiry_marking import ExpiryMarking
from tiered_storage.remote_log.retention.expiry_planning import (
    ExpiryPlanner,
    plan_cleanup_until,
    plan_record_deletion,
)
from tiered_storage.remote_log.retention.failed_deletions_topic import FailedDeletionsTopic
from tiered_storage.remote_log.retention.local.enforcement import LocalRetentionEnforcement, LocalRetentionReport
from tiered_storage.remote_log.retention.local.plan import LocalRetentionPlan
from tiered_storage.remote_log.retention.local.planning import LocalRetentionPlanner, Occasion
from tiered_storage.remote_log.retention.object_deletion import DeletionReport, ObjectDeletion
from tiered_storage.remote_log.retention.past_retention import PastRetention, past_retention
from tiered_storage.remote_log.retention.permission.clock_agreement import ClockAgreement
from tiered_storage.remote_log.retention.permission.deletion_permissions import DeletionKind, DeletionPermissions
from tiered_storage.remote_log.retention.topic_deletion import (
    TopicDeletionPlan,
    mark_replaced,
    mark_topic_deleted,
    plan_topic_deletion,
    replaced_topics,
)
from tiered_storage.remote_log.retention.undeletion import Undeletion, undelete
from tiered_storage.remote_log.selection import EVERYTHING, Selection


@dataclass(frozen=True, slots=True)
class RemoteLogDeletions:
    """Plans and executes deletions over an open `context`; each is documented where it is implemented."""

    context: RemoteLogContext

    @property
    def permissions(self) -> DeletionPermissions:
        """Decides whether anything may be deleted."""
        context = self.context
        return DeletionPermissions(
            context.safety, context.bind_store, context.decided_topic, context.guard.publish_pending
        )

    def plan_local_retention(
        self,
        selection: Selection,
        now: int,
        names: Collection[str] | None = None,
        max_segments: int | None = None,
    ) -> tuple[list[LocalRetentionPlan], list[Finding]]:
        """Return what local retention would delete at `now` (ms), and the partitions that must be left alone, with
        reasons.

        Only enabled topics for which local deletion is allowed. `names` (such as orders-0) narrow it further;
        `max_segments` limits the number of segments, which the partitions take in turns; None: to
        local.retention.max.segments.per.run. Planning works while deletions are stopped; the plan is not executed then.
        """
        return self.plan_local_retention_for(selection, [Occasion(now, names)], max_segments)

    def plan_local_retention_for(
        self, selection: Selection, occasions: Sequence[Occasion], max_segments: int | None = None
    ) -> tuple[list[LocalRetentionPlan], list[Finding]]:
        """Return as plan_local_retention, for all `occasions` of a run together and within one limit."""
        room = self.context.settings.local_retention_max_segments_per_run if max_segments is None else max_segments
        return self._local_planner.plan(selection, occasions, room)

    def enforce_local_retention(
        self, plans: Sequence[LocalRetentionPlan], on_moved: OnMoved = unreported
    ) -> LocalRetentionReport:
        """Delete what `plans` list; see LocalRetentionEnforcement, also for `on_moved`.

        A plan may be old: nothing of a topic is deleted that is no longer enabled, or whose right was revoked.
        Raises DeletionRefusedError if all deletions are stopped, and OutdatedMetadataError, before anything is
        deleted, if the metadata of any of the partitions are older than the store.
        """
        self._ensure_may_delete((plan.topic_id_partition for plan in plans if plan.segments), "local retention")
        note_limits(self.context, self.clocks.ensure_agrees)
        limit = read_back_limit(self.context.settings)
        return LocalRetentionEnforcement(self.context, self.permissions, self.clocks, limit, on_moved).enforce(plans)

    def ensure_follower_may_delete(self, partition: TopicIdPartition) -> None:
        """Raise what keeps a follower from deleting local segments of `partition`, as `enforce_local_retention`."""
        self.permissions.ensure(partition, DeletionKind.LOCAL)
        self._ensure_may_delete([partition], "local retention of a follower")
        self.clocks.ensure_not_ahead(partition, self.context.segments.list_remote_log_segments(partition))

    def plan_expiry(
        self, selection: Selection, now: int, max_segments: int | None = None
    ) -> tuple[list[ExpiryPlan], list[Finding]]:
        """Return what expires at `now` (ms), and the partitions that must be left alone, with reasons.

        Only topics for which remote deletion is allowed, and at most `max_segments`; see ExpiryPlanner.
        """
        return ExpiryPlanner(self.context, self.permissions).plan(selection, now, max_segments)

    def plan_record_deletion(
        self, partition: TopicIdPartition, before: int, snapshot: PartitionSnapshot | None = None
    ) -> ExpiryPlan | None:
        """Return the plan to delete the partition's records before an offset; see plan_record_deletion.

        Raises DeletionRefusedError if nothing remote of it may be deleted now.
        """
        self.permissions.ensure_allowed(partition, DeletionKind.REMOTE)
        return plan_record_deletion(partition, before, self.context, self.context.clock(), snapshot)

    def plan_cleanup_until(self, partition: TopicIdPartition, until_ms: int) -> ExpiryPlan | None:
        """Return the plan to delete remote segments whose records are all before `until_ms`; see plan_cleanup_until.

        Raises DeletionRefusedError if nothing remote of it may be deleted now.
        """
        self.permissions.ensure_allowed(partition, DeletionKind.REMOTE)
        return plan_cleanup_until(partition, until_ms, self.context, self.context.clock())

    def mark_expired(
        self, plans: Iterable[ExpiryPlan], owner: str, *, gives_up: bool = False
    ) -> tuple[tuple[TopicIdPartition, ...], tuple[Finding, ...]]:
        """Move global log starts and mark what lies below; see ExpiryMarking.

        A plan may be old: nothing is marked that the present decisions and settings would keep. Raises
        DeletionRefusedError if all deletions are stopped, and OutdatedMetadataError, before anything changes, if
        the metadata of any of the partitions are older than the store. Nothing of a partition expires if the store
        lacks objects of it, unless a person `gives_up` lost objects together with the records that they delete.
        """
        plans = list(plans)
        self._ensure_may_delete((plan.topic_id_partition for plan in plans), "an expiry")
        limit = read_back_limit(self.context.settings)
        return ExpiryMarking(self.context, self.permissions, self.clocks, owner, limit, gives_up).mark(plans)

    def _ensure_may_delete(self, partitions: Iterable[TopicIdPartition], run: str) -> None:
        """Renew the generation for a `run` that deletes.

        Raises whatever prevents all deletions: a stop, a foreign store, metadata that are not the store's, a wrong
        clock. Without any of `partitions`, only record the clock.
        """
        self.context.spend_reserves()
        self.permissions.ensure_running()
        self.context.guard.renew(run)
        if any(True for _ in partitions):
            self.clocks.ensure_agrees()
        else:
            self.clocks.note()

    def why_nothing_is_deleted(self) -> str | None:
        """Return why a run would delete nothing now: a stop, or a clock that jumped; None if nothing is known.

        Changes nothing. Reads only the start of the store's generation, and only if no clock was ever read.
        """
        return self.permissions.why_stopped() or self.clocks.why_refused()

    @property
    def clocks(self) -> ClockAgreement:
        """Comparisons of this machine's clock with others."""
        return ClockAgreement.of(self.context)

    @property
    def _local_planner(self) -> LocalRetentionPlanner:
        return LocalRetentionPlanner(self.context, self.permissions)

    def pending_deletions(self, selection: Selection = EVERYTHING) -> list[PendingDeletion]:
        """Return the marked segments that delete_marked would find; see DueSegments.pending. Works while deletions are
        stopped.

        Changes nothing, and does not access the store.
        """
        states = self.context.segments.partition_states()
        return self._due(states).pending(
            each for each in sorted(states) if selection.matches(each.topic, each.partition)
        )

    def _due(self, states: Mapping[TopicIdPartition, PartitionState]) -> DueSegments:
        return DueSegments.of(self.context, self.permissions, self.clocks, states)

    def marked(self, selection: Selection = EVERYTHING, only: Collection[TopicIdPartition] | None = None) -> Amount:
        """Return the amount of work for delete_marked with the same arguments."""
        due = [each for each in self.pending_deletions(selection) if only is None or each.topic_id_partition in only]
        return Amount(sum(each.segments + each.leftovers for each in due), sum(each.size for each in due))

    def delete_marked(
        self,
        owner: str,
        selection: Selection = EVERYTHING,
        only: Collection[TopicIdPartition] | None = None,
        on_moved: OnMoved = unreported,
        goes_on: Callable[[], bool] = lambda: True,
    ) -> DeletionReport:
        """Delete the objects of every marked segment, only in the partitions `only` if given; see ObjectDeletion.

        `on_moved` is called for each deleted segment; once `goes_on` returns False, no further batch begins. Raises
        DeletionRefusedError if all deletions are stopped, and OutdatedMetadataError, before anything is deleted, if the
        metadata of any partition with something to delete are older than the store.

        Before that, without `only`, mark the topics that their running cluster replaced, see mark_replaced, and note
        the limits that its brokers set, see note_limits.
        """
        failed_topic = FailedDeletionsTopic.of(self.context)
        left = self._mark_replaced(owner, selection) if only is None else ()
        states = self.context.segments.partition_states()
        due = self._due(states)
        selected = [
            each
            for each in sorted(states)
            if selection.matches(each.topic, each.partition) and (only is None or each in only)
        ]
        concerned = [partition for partition in selected if due.has_work(partition)]
        self._ensure_may_delete(concerned, "a deletion of what was marked")
        if only is None:
            note_limits(self.context, self.clocks.ensure_agrees)
        deletion = ObjectDeletion(
            self.context, self.permissions, self.clocks, due, owner, on_moved, failed_topic, goes_on
        )
        report = deletion.delete_marked(concerned)
        return replace(report, left=(*left, *report.left))

    def compare_topics(self, owner: str, selection: Selection) -> tuple[Finding, ...]:
        """Do what delete_marked does first without `only`, for callers that delete in some partitions at a time.

        Mark the topics that their running cluster replaced, and note the limits that its brokers set; return what was
        left, and why. Raises as delete_marked.
        """
        left = self._mark_replaced(owner, selection)
        note_limits(self.context, self.clocks.ensure_agrees)
        return left

    def _mark_replaced(self, owner: str, selection: Selection) -> tuple[Finding, ...]:
        try:
            found = replaced_topics(self.context)
        except SourceClusterError as error:
            return (Finding("", f"topics that were created again are left to the next run: {error}"),)
        meant = [each for each in found.topics if selection.matches(each.first.topic)]
        replaced = [each for each in meant if self.permissions.is_allowed(each.first, DeletionKind.REMOTE)]
        if not replaced:
            return ()
        if found.why_many is not None:
            return (Finding("", found.why_many),)
        self._ensure_may_delete((each.first for each in replaced), "a deletion of topics that were created again")
        return mark_replaced(replaced, self.context, self.permissions, owner)

    def plan_topic_deletion(self, topic: str, topic_id: str | None = None) -> TopicDeletionPlan:
        """Return the plan to delete everything remote of a topic; see plan_topic_deletion."""
        return plan_topic_deletion(topic, topic_id, self.context, self.permissions)

    def mark_topic_deleted(
        self, plan: TopicDeletionPlan, owner: str
    ) -> tuple[tuple[TopicIdPartition, ...], tuple[Finding, ...]]:
        """Mark the partitions of `plan`, for delete_marked to delete; see mark_topic_deleted.

        Raises OutdatedMetadataError, before anything is marked, if the store is ahead for any of them.
        """
        self._ensure_may_delete((planned.topic_id_partition for planned in plan.partitions), "a deletion of a topic")
        return mark_topic_deleted(plan, self.context, self.permissions, owner)

    def past_retention(self, partitions: Iterable[TopicIdPartition]) -> list[PastRetention]:
        """Return what of their topics is past retention, whether or not it may be deleted; see past_retention."""
        return past_retention(partitions, self.context, self.context.clock(), self._local_planner.of)

    def undelete(
        self,
        topic: str,
        owner: str,
        partitions: frozenset[int] | None = None,
        *,
        topic_id: str | None = None,
        dry_run: bool = False,
    ) -> tuple[list[Undeletion], list[Finding]]:
        """Bring back marked segments of a topic while their objects exist; see undelete."""
        return undelete(topic, partitions, self.context, owner, topic_id=topic_id, dry_run=dry_run)
