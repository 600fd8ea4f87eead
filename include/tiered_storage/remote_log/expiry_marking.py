"""What a plan of an expiry does: our log start moves, and what lies below it is marked for deletion.

A plan may be old, and another run may have worked on the partition since. So it is planned once more under the lease,
and what both plans have in common is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tiered_storage.clock import Clock
from tiered_storage.errors import OutdatedMetadataError, TieredStorageError
from tiered_storage.remote_log.copy_plan import Finding, finding_of
from tiered_storage.remote_log.deletion_gate import DeletionGate, DeletionKind
from tiered_storage.remote_log.expiry import ExpiryPlan, Reason, ending_below
from tiered_storage.remote_log.metadata import Leases, RemoteLogMetadataManager
from tiered_storage.remote_log.model import (
    Lease,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    SegmentState,
    TopicIdPartition,
)


@dataclass(frozen=True, slots=True)
class ExpiryMarking:
    """Carries plans out under the leases of `owner`.

    `replan` plans a partition anew for the same reason and time: None where nothing is due any more. `ensure_whole`
    raises unless the store still has every byte of a segment. `before_leasing` is called before the lease is taken,
    `before_moving` under it, before anything changes. What one of them raises leaves the partition as it is.
    """

    metadata: RemoteLogMetadataManager
    leases: Leases
    gate: DeletionGate
    clock: Clock
    owner: str
    lease_duration_ms: int
    replan: Callable[[ExpiryPlan], ExpiryPlan | None]
    ensure_whole: Callable[[RemoteLogSegmentMetadata], None]
    before_leasing: Callable[[TopicIdPartition], None]
    before_moving: Callable[[ExpiryPlan, Lease], None]

    def mark(self, plans: Iterable[ExpiryPlan]) -> tuple[tuple[TopicIdPartition, ...], tuple[Finding, ...]]:
        """Move our log starts and mark; return the partitions done, and those left with the reason.

        It ends with the first of which the metadata turn out older than the store. Raises DeletionRefusedError where a
        person stopped all deletions before the first of them.
        """
        self.gate.ensure_running()
        done: list[TopicIdPartition] = []
        left: list[Finding] = []
        for plan in plans:
            partition = plan.topic_id_partition
            try:
                if self._mark(plan):
                    done.append(partition)
            except OutdatedMetadataError as error:
                # They are an old backup: nobody knows what else was copied or decided since.
                left.append(finding_of(partition, error))
                break
            except (TieredStorageError, OSError) as error:
                left.append(finding_of(partition, error))
        return tuple(done), tuple(left)

    def _mark(self, plan: ExpiryPlan) -> bool:
        partition = plan.topic_id_partition
        self.before_leasing(partition)
        lease = self.leases.acquire(partition, self.owner, self.lease_duration_ms)
        try:
            self.gate.ensure(partition, DeletionKind.REMOTE)
            current = self._still_due(plan)
            if current is None:
                return False
            self.before_moving(current, lease)
            if current.new_log_start > (self.metadata.log_start_offset(partition) or 0):
                self.metadata.advance_log_start_offset(partition, current.new_log_start, lease)
            self._mark_segments((*current.segments, *current.superseded), lease)
        finally:
            self.leases.release(lease)
        return True

    def _still_due(self, plan: ExpiryPlan) -> ExpiryPlan | None:
        partition = plan.topic_id_partition
        is_about_log_start = plan.reason is not Reason.DISABLED and not plan.superseded
        if is_about_log_start and (self.metadata.log_start_offset(partition) or 0) >= plan.new_log_start:
            # Moved already, by whomever: what lies below is read no more, whatever a plan would say by now.
            below = ending_below(list(self.metadata.list_remote_log_segments(partition)), plan.new_log_start)
            return plan.within(ExpiryPlan(partition, plan.new_log_start, plan.now, below))
        current = self.replan(plan)
        if current is None:
            return None
        common = plan.within(current)
        for segment in common.read_instead if common.superseded else ():
            self.ensure_whole(segment)
        return common

    def _mark_segments(self, segments: Iterable[RemoteLogSegmentMetadata], lease: Lease) -> None:
        now = self.clock()
        steps = [
            (RemoteLogSegmentMetadataUpdate(segment.segment_id, SegmentState.DELETE_SEGMENT_STARTED, now), lease)
            for segment in segments
        ]
        for outcome in self.metadata.update_remote_log_segments(steps):
            if not isinstance(outcome, RemoteLogSegmentMetadata):
                raise outcome
