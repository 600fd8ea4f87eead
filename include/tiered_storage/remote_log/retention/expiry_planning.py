"""Plan expiry over all partitions: what is past total retention, and what is remote of topics no longer tiered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tiered_storage.errors import ConfigurationError, DeletionRefusedError, OffsetOutOfRangeError, TieredStorageError
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.coverage import finished
from tiered_storage.remote_log.metadata.lost_identity import LostIdentities
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from tiered_storage.remote_log.model import Finding, RemoteLogSegmentMetadata, TopicIdPartition, finding_of
from tiered_storage.remote_log.read.partition_snapshot import PartitionSnapshot, snapshot_partition
from tiered_storage.remote_log.read.read_values import Isolation
from tiered_storage.remote_log.retention.expiry import ExpiryPlan, Reason, ending_below, plan_expiry
from tiered_storage.remote_log.retention.permission.deletion_permissions import DeletionKind, DeletionPermissions
from tiered_storage.remote_log.selection import Selection, plan_in_turns
from tiered_storage.remote_log.source.partition_log import PartitionLog, UnreadablePartition
from tiered_storage.remote_log.source.segment_source import configured_partitions
from tiered_storage.remote_log.tiering_policy import decide_partition

TO_THE_END = -1
"""The offset that stands for the end of what is stable, as in Kafka."""


def plan_record_deletion(
    partition: TopicIdPartition,
    before: int,
    context: RemoteLogContext,
    now: int,
    snapshot: PartitionSnapshot | None = None,
) -> ExpiryPlan | None:
    """Return the plan to delete all records of `partition` before the offset `before`; None if there are none.

    `snapshot` is what the caller knows of the partition; otherwise it is taken now.

    While the first copy is under way, the plan sets the log start even if the local log begins there already: the copy
    may hold earlier records. TO_THE_END stands for all that are stable.

    Raises ConfigurationError for any other negative offset, and OffsetOutOfRangeError for one past the end, both with
    the offsets that the partition has.
    """
    snapshot = snapshot or snapshot_partition(partition, context.source, context.segments)
    start, end = snapshot.log_start_offset, snapshot.end_offset(Isolation.READ_COMMITTED)
    if before < TO_THE_END:
        raise ConfigurationError(
            f"{partition}: {before} is not an offset: give one from {start} to {end}, or {TO_THE_END} for the end"
        )
    if before > end:
        raise OffsetOutOfRangeError(str(partition), before, start, end + 1)
    new_log_start = end if before == TO_THE_END else before
    segments = list(context.segments.list_remote_log_segments(partition))
    expired = ending_below(segments, new_log_start)
    if segments and not snapshot.is_log_start_known and not snapshot.coverage.ranges:
        # Never below what both the local log and the copy have: an audit would miss what is between.
        first = min(start, *(segment.start_offset for segment in segments))
        return ExpiryPlan(partition, max(new_log_start, first), now, expired, Reason.RECORDS)
    if not expired and new_log_start <= start:
        return None
    return ExpiryPlan(partition, max(new_log_start, start), now, expired, Reason.RECORDS)


def plan_cleanup_until(
    partition: TopicIdPartition, until_ms: int, context: RemoteLogContext, now: int
) -> ExpiryPlan | None:
    """Return the plan to delete, from the first on, the remote segments whose records are all before `until_ms` (ms).

    None if there are none. It is the document's cleanupLogUntil; the plan has the new log start.
    """
    snapshot = snapshot_partition(partition, context.source, context.segments)
    before = snapshot.log_start_offset
    for covered in snapshot.coverage.ranges:
        if covered.segment.max_timestamp >= until_ms:
            break
        before = max(before, covered.end_offset + 1)
    if before == snapshot.log_start_offset:
        return None
    return plan_record_deletion(partition, before, context, now, snapshot)


@dataclass(frozen=True, slots=True)
class ExpiryPlanner:
    """Plans over every partition of the local logs and of the remote log, as far as remote deletion is allowed."""

    context: RemoteLogContext
    permissions: DeletionPermissions

    def plan(
        self, selection: Selection, now: int, max_segments: int | None = None
    ) -> tuple[list[ExpiryPlan], list[Finding]]:
        """Return what expires at `now` (ms), and the partitions that must be left alone, with reasons.

        At most `max_segments` in all if given, which the partitions take in turns.

        A partition whose local log is there and cannot be read is left alone: it may hold what a later leader wrote.
        So is one of an enabled topic that cannot be tiered (compacted, or tiered by Kafka itself), as by a copy.
        Planning works while deletions are stopped; the plan is not executed then.
        """
        left: list[Finding] = []
        plans = plan_in_turns(
            self._partitions(selection),
            lambda found, most: self._plan_or_leave(*found, now, most, left),
            lambda plan: plan.count,
            max_segments,
            seed=now,
        )
        return [plan for plan, _ in plans], left

    def _plan_or_leave(
        self,
        partition: TopicIdPartition,
        local: PartitionLog | UnreadablePartition | None,
        now: int,
        most: int | None,
        left: list[Finding],
    ) -> ExpiryPlan | None:
        """Return the plan of a partition; None, with the reason added to `left`, if it must be left alone."""
        try:
            if not isinstance(local, UnreadablePartition):
                return self._plan_of(partition, local, now, most)
            if self._is_allowed(partition):
                left.append(Finding(str(partition), local.reason))
        except (TieredStorageError, OSError) as error:
            left.append(finding_of(partition, error))
        return None

    def replan(self, plan: ExpiryPlan) -> ExpiryPlan | None:
        """Plan the partition of an older `plan` again, for the same reason and time; None: nothing is due any more.

        Segments that our clock says are due later stay: the clock of `plan` may have been ahead.
        Raises the reason if the partition must be left alone.
        """
        partition = plan.topic_id_partition
        if plan.reason is Reason.RECORDS:
            return plan_record_deletion(partition, plan.new_log_start, self.context, plan.now)
        current = self._plan_of(partition, self._look(partition), min(plan.now, self.context.clock()))
        return current if current is not None and current.reason is plan.reason else None

    def _partitions(
        self, selection: Selection
    ) -> Iterator[tuple[TopicIdPartition, PartitionLog | UnreadablePartition | None]]:
        """Yield each selected partition once, with its local log.

        If a log directory cannot be read as a whole, any partition may have its local log there; if the cluster is
        another one than all copies are of, at another address.
        """
        known, is_named = self.context.segments.list_partitions(), self.context.settings.cluster_id is not None
        identities = LostIdentities(known, self.context.segments, is_cluster_named=is_named)
        unreadable: dict[str, UnreadablePartition] = {}
        beyond_reach: str | None = None
        seen: set[TopicIdPartition] = set()
        try:
            for log in configured_partitions(self.context.source):
                if isinstance(log, UnreadablePartition):
                    unreadable[log.partition] = log
                elif why := identities.why_unknown_cluster(log):
                    beyond_reach = why
                elif not log.is_internal:
                    seen.add(log.topic_id_partition)
                    if selection.matches(log.topic_id_partition.topic, log.topic_id_partition.partition):
                        yield log.topic_id_partition, log
        except TieredStorageError as error:
            beyond_reach = str(error)
        for partition in known:
            if partition in seen or not selection.matches(partition.topic, partition.partition):
                continue
            if beyond_reach is not None:
                yield partition, UnreadablePartition(str(partition), beyond_reach)
            else:
                yield partition, unreadable.get(str(partition))

    def _look(self, partition: TopicIdPartition) -> PartitionLog | None:
        return self.context.source.partition(partition)

    def _is_allowed(self, partition: TopicIdPartition) -> bool:
        return self.permissions.is_allowed(partition, DeletionKind.REMOTE)

    def _plan_of(
        self, partition: TopicIdPartition, local: PartitionLog | None, now: int, max_segments: int | None = None
    ) -> ExpiryPlan | None:
        if not self._is_allowed(partition):
            return None
        objection = self.permissions.why_doubtful(partition, DeletionKind.REMOTE)
        if objection is not None:
            raise DeletionRefusedError(objection)
        settings = decide_partition(partition, local, self.context.topics, self.context.settings).settings
        if not settings.remote_storage_enable:
            remote = finished(self.context.segments.list_remote_log_segments(partition))
            if not remote:
                return _follow_local_log(partition, self.context.segments, local, now)
            if settings.remote_log_delete_on_disable:
                oldest = sorted(remote, key=lambda each: each.end_offset)[:max_segments]
                return _plan_disabled(partition, self.context.segments, local, now, oldest)
        grace = self.context.settings.remote_log_orphan_grace_ms
        return plan_expiry(
            partition, self.context.segments, settings, now, local, grace_ms=grace, max_segments=max_segments
        )


def _plan_disabled(
    partition: TopicIdPartition,
    metadata: RemoteLogMetadataManager,
    local: PartitionLog | None,
    now: int,
    expired: Sequence[RemoteLogSegmentMetadata],
) -> ExpiryPlan | None:
    """Return the plan to delete the remote segments `expired`; the global log start moves at most to the local log's.

    As in Kafka (KIP-950), the log then begins at the start of the local log, since no tier holds earlier offsets. The
    decision to delete moves the global log start; the broker's log start only limits how far. Without a local log in
    sight, the global log start stays: only the local log may hold offsets that no remote segment holds.
    """
    if not expired:
        return None
    end = max(segment.end_offset for segment in expired) + 1
    new_log_start = min(end, local.log_start_offset) if local else metadata.log_start_offset(partition) or 0
    return ExpiryPlan(partition, new_log_start, now, tuple(expired), Reason.DISABLED)


def _follow_local_log(
    partition: TopicIdPartition, metadata: RemoteLogMetadataManager, local: PartitionLog | None, now: int
) -> ExpiryPlan | None:
    """Return the plan that moves the global log start to that of the local log; None if it is not below that.

    If a topic is no longer tiered, what its broker deletes counts as deleted, not lost. The plan deletes nothing
    remote.
    """
    log_start = metadata.log_start_offset(partition)
    if local is None or log_start is None or local.log_start_offset <= log_start:
        return None
    return ExpiryPlan(partition, local.log_start_offset, now, (), Reason.DISABLED)
