"""What removes anything of a remote log: local retention, total retention, and the deletion of what was marked."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from tiered_storage.errors import DeletionRefusedError, TieredStorageError
from tiered_storage.remote_log.copy_plan import Finding
from tiered_storage.remote_log.deletion_gate import DeletionGate, DeletionKind
from tiered_storage.remote_log.expiry import ExpiryPlan, mark_expired, plan_expiry
from tiered_storage.remote_log.local_retention import (
    LocalRetentionPlan,
    LocalRetentionReport,
    enforce_local_retention,
    plan_local_retention,
)
from tiered_storage.remote_log.log_directory_trim import LogDirectoryTrim
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.object_deletion import DeletionReport, ObjectDeletion
from tiered_storage.remote_log.remote_log_parts import RemoteLogParts
from tiered_storage.remote_log.segment_source import UnreadablePartition
from tiered_storage.remote_log.selection import EVERYTHING, Selection
from tiered_storage.remote_log.topic_decision import decide, is_wanted
from tiered_storage.topic_settings import effective


@dataclass(frozen=True, slots=True)
class RemoteLogDeletions:
    """Plans and carries out deletions over the open `parts`; what each does is said where it is implemented."""

    parts: RemoteLogParts

    @property
    def gate(self) -> DeletionGate:
        """What says whether anything may be deleted."""
        return DeletionGate(self.parts.safety, self.parts.bind_store, self.parts.decided_topic)

    def plan_local_retention(
        self, selection: Selection, now: int, names: Collection[str] | None = None
    ) -> tuple[list[LocalRetentionPlan], list[Finding]]:
        """Return what local retention would remove at `now` (ms), and the partitions that must be left alone, and why.

        Only topics that are enabled, and where local deletion is allowed. `names` (such as orders-0) narrow it
        further.
        """
        plans: list[LocalRetentionPlan] = []
        unreadable: list[Finding] = []
        for log in self.parts.source.partitions():
            if isinstance(log, UnreadablePartition):
                name, topic, number = log.partition, log.topic, log.number
            else:
                partition = log.topic_id_partition
                name, topic, number = str(partition), partition.topic, partition.partition
            if not selection.matches(topic, number) or (names is not None and name not in names):
                continue
            if isinstance(log, UnreadablePartition):
                if is_wanted(topic, self.parts.topics, self.parts.settings):
                    unreadable.append(Finding(name, log.reason))
                continue
            try:
                decision = decide(log, self.parts.topics, self.parts.settings)
            except TieredStorageError as error:
                unreadable.append(Finding(name, str(error)))
                continue
            if not decision.trims:
                continue
            objection = self.gate.why_doubtful(log.topic_id_partition, DeletionKind.LOCAL)
            if objection is not None:
                unreadable.append(Finding(name, objection))
            else:
                plans.append(plan_local_retention(log, self.parts.segments, decision.settings, now))
        return plans, unreadable

    def enforce_local_retention(self, plans: Sequence[LocalRetentionPlan]) -> LocalRetentionReport:
        """Remove what `plans` name; see enforce_local_retention.

        A plan may be old: nothing goes of a topic that is not enabled any more, or where the right was taken away.
        Raises DeletionRefusedError where a person stopped all deletions.
        """
        self.parts.bind_store()
        return enforce_local_retention(
            plans,
            LogDirectoryTrim(),
            self.parts.storage,
            gate=self.gate,
            refuse_if_last_copy=self._refuse_if_last_copy,
        )

    def _refuse_if_last_copy(self, plan: LocalRetentionPlan) -> None:
        topic = self.parts.decided_topic(plan.topic_id_partition)
        if not plan.is_held_whole and not topic.remote_deletion_allowed:
            raise DeletionRefusedError(
                f"{plan.topic_id_partition}: remote deletion is not allowed any more since this was planned, and what "
                "lies below our log start may be the last copy: nothing of it was removed"
            )

    def plan_expiry(self, selection: Selection, now: int) -> tuple[list[ExpiryPlan], list[Finding]]:
        """Return what total retention would end at `now` (ms), and the partitions that nothing can be said of.

        Only topics where remote deletion is allowed. A partition whose local log is there and cannot be read is left
        alone: it may hold what a later leader wrote.
        """
        plans: list[ExpiryPlan] = []
        unreadable: list[Finding] = []
        for partition in self.parts.segments.list_partitions():
            if not selection.matches(partition.topic, partition.partition):
                continue
            try:
                plan = self._plan_expiry_of(partition, now)
            except TieredStorageError as error:
                unreadable.append(Finding(str(partition), str(error)))
                continue
            if plan is not None:
                plans.append(plan)
        return plans, unreadable

    def _plan_expiry_of(self, partition: TopicIdPartition, now: int) -> ExpiryPlan | None:
        topic = self.parts.decided_topic(partition)
        if not topic.remote_deletion_allowed:
            return None
        objection = self.gate.why_doubtful(partition, DeletionKind.REMOTE)
        if objection is not None:
            raise DeletionRefusedError(objection)
        resolved = effective(topic, self.parts.settings)
        local = self.parts.source.partition(partition) if self.parts.settings.log_dirs else None
        return plan_expiry(partition, self.parts.segments, resolved, now, local)

    def _still_due(self, plan: ExpiryPlan) -> ExpiryPlan | None:
        """Return `plan` as far as the decisions and settings of this moment still want it."""
        if not self._may_delete(plan.topic_id_partition):
            return None
        if (self.parts.segments.log_start_offset(plan.topic_id_partition) or 0) >= plan.new_log_start:
            return plan
        current = self._plan_expiry_of(plan.topic_id_partition, plan.now)
        return plan if current is not None and current.new_log_start >= plan.new_log_start else current

    def mark_expired(
        self, plans: Iterable[ExpiryPlan], owner: str
    ) -> tuple[tuple[TopicIdPartition, ...], tuple[Finding, ...]]:
        """Move our log starts and mark what lies below; see mark_expired.

        A plan may be old: nothing goes that the decisions and settings of this moment would keep. Raises
        DeletionRefusedError where a person stopped all deletions.
        """
        self.parts.bind_store()
        still_due: list[ExpiryPlan] = []
        unreadable: list[Finding] = []
        for plan in plans:
            try:
                current = self._still_due(plan)
            except TieredStorageError as error:
                unreadable.append(Finding(str(plan.topic_id_partition), str(error)))
                continue
            if current is not None:
                still_due.append(current)
        done, left = mark_expired(
            still_due,
            self.parts.segments,
            self.parts.leases,
            owner=owner,
            lease_duration_ms=self.parts.settings.lease_duration_ms,
            clock=self.parts.clock,
            gate=self.gate,
        )
        return done, (*unreadable, *left)

    def delete_marked(self, owner: str, selection: Selection = EVERYTHING) -> DeletionReport:
        """Delete the objects of every marked segment; see delete_marked.

        Raises DeletionRefusedError where a person stopped all deletions.
        """
        deletion = ObjectDeletion(
            self.parts.segments,
            self.parts.leases,
            self.parts.safety,
            self.parts.storage,
            self.gate,
            self.parts.clock,
            owner,
            self.parts.settings.lease_duration_ms,
            self.parts.settings.remote_log_orphan_grace_ms,
            self.parts.settings.deletion_batch_segments,
        )
        self.parts.bind_store()
        return deletion.delete_marked(
            each for each in self.parts.segments.list_partitions() if selection.matches(each.topic, each.partition)
        )

    def _may_delete(self, partition: TopicIdPartition) -> bool:
        return self.parts.decided_topic(partition).remote_deletion_allowed
