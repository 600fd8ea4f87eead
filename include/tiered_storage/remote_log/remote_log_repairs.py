"""What mends a remote log: the plan of a repair, and the repair."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tiered_storage.remote_log.audit_report import AuditReport
from tiered_storage.remote_log.copy_commit import CommitReport
from tiered_storage.remote_log.copy_plan import CopyPlan, CopySelection, Finding, plan_copy
from tiered_storage.remote_log.deletion_gate import DeletionGate, DeletionKind
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.remote_log_checks import listing_storage
from tiered_storage.remote_log.remote_log_parts import RemoteLogParts
from tiered_storage.remote_log.repair import Repair
from tiered_storage.remote_log.repair_plan import RemotePartition, RepairPlan, damaged_ids, plan_repair
from tiered_storage.remote_log.selection import Selection
from tiered_storage.remote_log.store_states import ensure_none_outdated


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What was copied anew, which damaged segments ended, which objects went, and what could not be done."""

    copied: tuple[RemoteLogSegmentMetadata, ...]
    retired: tuple[RemoteLogSegmentMetadata, ...]
    removed: tuple[str, ...]
    failures: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class RemoteLogRepairs:
    """Repairs over the open `parts`."""

    parts: RemoteLogParts
    gate: DeletionGate

    def plan(self, report: AuditReport, selection: Selection) -> RepairPlan:
        """Return what a repair would do about `report`, an audit of `selection`; see plan_repair."""
        segments = self.parts.segments
        named = {anomaly.partition for anomaly in report.anomalies if anomaly.partition is not None}
        partitions = {
            partition: RemotePartition(
                tuple(segments.list_remote_log_segments(partition)), segments.partition_state(partition)
            )
            for partition in named
        }
        copyable = CopyPlan(())
        if named and self.parts.settings.log_dirs:
            copyable = plan_copy(
                self.parts.source,
                segments,
                self.parts.topics,
                self.parts.settings,
                CopySelection(selection),
                replacing=damaged_ids(report),
            )
        return plan_repair(report, partitions, copyable)

    def carry_out(self, plan: RepairPlan, owner: str, copy: Callable[[CopyPlan], CommitReport]) -> RepairReport:
        """Let `copy` begin, make and commit the copies; then end what they replace, and remove leftovers.

        Raises StoreMismatchError and OutdatedMetadataError before anything is changed, and what store and metadata
        raise as a whole.
        """
        self.parts.bind_to_delete()
        changed = {
            *plan.copies.partitions,
            *(segment.topic_id_partition for segment in plan.replaced),
            *(leftovers.topic_id_partition for leftovers in plan.leftovers),
        }
        ensure_none_outdated(changed, self.parts.storage, self.parts.segments, self.parts.leases)
        settings = self.parts.settings
        repair = Repair(
            self.parts.segments,
            self.parts.leases,
            listing_storage(self.parts.storage),
            self.parts.clock,
            owner,
            settings.lease_duration_ms,
            self.parts.clock() - settings.remote_log_orphan_grace_ms,
            lambda partition: self.gate.ensure(partition, DeletionKind.LEFTOVER),
        )
        copied = copy(plan.copies) if plan.copies.segments else None
        retired, held_back = repair.retire(plan.replaced, plan.damaged)
        removed, refused = repair.remove(plan.leftovers)
        failures = (*copied.failures, *copied.damages) if copied else ()
        return RepairReport(
            copied.committed if copied else (), tuple(retired), tuple(removed), (*failures, *held_back, *refused)
        )
