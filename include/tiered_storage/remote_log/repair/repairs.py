"""The repairs of a remote log: planning and execution."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from tiered_storage.remote_log.audit.report import AuditReport
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.copy.forked_log import forked_copies
from tiered_storage.remote_log.copy.plan import CopySelection, plan_copy
from tiered_storage.remote_log.copy.sent_records import why_other_records
from tiered_storage.remote_log.copy.tasks import CommitReport, CopyPlan
from tiered_storage.remote_log.coverage import Coverage
from tiered_storage.remote_log.jobs.throttle import audit_limit, fetch_quota
from tiered_storage.remote_log.model import Finding, RemoteLogSegmentMetadata, TopicIdPartition, finding_of
from tiered_storage.remote_log.repair.lost_indexes import LostIndexes, has_lost_indexes
from tiered_storage.remote_log.repair.plan import RemotePartition, RepairPlan, damaged_ids, plan_repair
from tiered_storage.remote_log.repair.repair import Repair
from tiered_storage.remote_log.repair.uncommitted_segments import StoreCopier, UncommittedSegments
from tiered_storage.remote_log.retention.orphan_check import OrphanCheck
from tiered_storage.remote_log.retention.permission.clock_agreement import ClockAgreement
from tiered_storage.remote_log.retention.permission.deletion_permissions import DeletionKind, DeletionPermissions
from tiered_storage.remote_log.selection import Selection
from tiered_storage.remote_log.storage.listable_storage import listing_storage


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What was copied again, which damaged segments were marked, which objects were deleted, and what failed.

    `finished` are uncommitted copies, under the ids that readers see now. `documents` are the partitions whose document
    was written again from the metadata. `rebuilt` had lost their indexes: new segments cover their offsets, with
    everything that the `.log` gave. `notices` report what it could not give, and what waits for a right to delete.
    """

    copied: tuple[RemoteLogSegmentMetadata, ...]
    retired: tuple[RemoteLogSegmentMetadata, ...]
    removed: tuple[str, ...]
    failures: tuple[Finding, ...]
    finished: tuple[RemoteLogSegmentMetadata, ...] = ()
    documents: tuple[TopicIdPartition, ...] = ()
    notices: tuple[Finding, ...] = ()
    rebuilt: tuple[RemoteLogSegmentMetadata, ...] = ()


@dataclass(frozen=True, slots=True)
class RemoteLogRepairs:
    """Repairs over an open `context`."""

    context: RemoteLogContext
    permissions: DeletionPermissions

    def plan(self, report: AuditReport, selection: Selection) -> RepairPlan:
        """Return the repair plan for `report`, an audit of `selection`; see plan_repair."""
        segments = self.context.segments
        named = {anomaly.partition for anomaly in report.anomalies if anomaly.partition is not None}
        partitions = {
            partition: RemotePartition(
                tuple(segments.list_remote_log_segments(partition)), segments.partition_state(partition)
            )
            for partition in named
        }
        copyable = CopyPlan(())
        if named and self.context.source.is_configured:
            copyable = plan_copy(self.context, CopySelection(selection), replacing=damaged_ids(report))
        forks = self._forks(copyable, named)
        selected = [each for each in segments.list_partitions() if selection.matches(each.topic, each.partition)]
        storage = listing_storage(self.context.storage)
        unfinished, left = self._unfinished("plan").find(selected)
        plan = plan_repair(
            report,
            partitions,
            copyable.without(forks),
            unfinished,
            has_lost_indexes=lambda segment: has_lost_indexes(segment, storage),
            why_other_records=lambda segment, others: self._why_other_records(segment, others, partitions),
        )
        return replace(plan, advice=(*forks, *plan.advice, *left))

    def _forks(self, copyable: CopyPlan, named: Collection[TopicIdPartition]) -> list[Finding]:
        """Return why the local log cannot replace damaged segments of some of the partitions `named`."""
        planned = {partition: due for partition, due in copyable.by_partition.items() if partition in named}
        found = forked_copies(planned, self.context.segments, self.context.storage, copyable.replacing)
        return [finding_of(partition, error) for partition, error in found.items()]

    def _why_other_records(
        self,
        segment: RemoteLogSegmentMetadata,
        others: Coverage,
        partitions: Mapping[TopicIdPartition, RemotePartition],
    ) -> str | None:
        state = partitions[segment.topic_id_partition].state
        return why_other_records(segment, others, state.log_start_offset or 0, state.lineage, self.context.storage)

    def carry_out(self, plan: RepairPlan, owner: str, copy: Callable[[CopyPlan], CommitReport]) -> RepairReport:
        """Write documents again; let `copy` begin, run and commit the copies; then commit uncommitted copies, rebuild
        lost indexes, mark what copies replace, and delete orphans.

        Raises StoreMismatchError, OutdatedMetadataError and, if the clock is not trusted, DeletionRefusedError before
        anything is changed, and errors of store and metadata that are not specific to a partition.
        """
        self.context.guard.renew("a repair")
        # The age of orphans counts: objects of a copy under way must not look old.
        ClockAgreement.of(self.context).ensure_agrees()
        settings = self.context.settings
        limit = audit_limit(settings.audit_worker_bytes_per_second, fetch_quota(settings))
        young_from = self.context.clock() - settings.remote_log_orphan_grace_ms
        repair = Repair(self.context, listing_storage(self.context.storage), self.permissions, owner, young_from, limit)
        written, not_written = repair.write_documents(plan.documents)
        copied = copy(plan.copies) if plan.copies.segments else None
        finished, not_finished = self._unfinished(owner).finish(plan.unfinished)
        lost = LostIndexes(StoreCopier(self.context, owner), settings.index_interval_bytes, limit)
        rebuilt, not_rebuilt, without = lost.rebuild(plan.without_indexes)
        retired, held_back = repair.retire((*plan.replaced, *rebuilt), plan.damaged)
        removed, refused = repair.remove(plan.leftovers)
        failures = (*copied.failures, *copied.damages) if copied else ()
        return RepairReport(
            copied.committed if copied else (),
            tuple(retired),
            tuple(removed),
            (*not_written, *failures, *not_finished, *not_rebuilt, *held_back, *refused),
            tuple(finished),
            tuple(written),
            (*without, *self._waiting(retired)),
            tuple(rebuilt),
        )

    def _waiting(self, retired: Iterable[RemoteLogSegmentMetadata]) -> Iterator[Finding]:
        """Yield a notice for each partition with marked segments that may not be deleted yet."""
        for partition, count in Counter(segment.topic_id_partition for segment in retired).items():
            if self.permissions.is_allowed(partition, DeletionKind.REMOTE):
                continue
            message = (
                f"{count} damaged segments were replaced; their objects stay in the store until remote deletion is "
                f"allowed for the topic: 'tiered-storage topics allow-deletion {partition.topic}', and then 'expire'"
            )
            yield Finding(str(partition), message)

    def _unfinished(self, owner: str) -> UncommittedSegments:
        copies = StoreCopier(self.context, owner)
        check = OrphanCheck(self.context.segments, copies.storage, self.context.local_log)
        return UncommittedSegments(copies, check, self.context.settings.remote_log_orphan_grace_ms)
