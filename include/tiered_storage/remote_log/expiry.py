"""Total retention: the oldest offsets end their life, in the remote tier and so for every reader.

KIP-405: retention.ms and retention.bytes count both tiers. Our log start moves first, so that no reader is shown what
goes; then each segment below it is marked DELETE_SEGMENT_STARTED. object_deletion.py deletes what is marked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tiered_storage.clock import Clock
from tiered_storage.errors import DeletionRefusedError, LeaseHeldError, LeaseLostError
from tiered_storage.kafka_log.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.copy_plan import Finding
from tiered_storage.remote_log.coverage import Coverage, finished
from tiered_storage.remote_log.deletion_gate import DeletionGate, DeletionKind
from tiered_storage.remote_log.metadata import Leases, RemoteLogMetadataManager
from tiered_storage.remote_log.model import (
    Lease,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    SegmentState,
    TopicIdPartition,
)
from tiered_storage.remote_log.segment_source import PartitionLog
from tiered_storage.topic_settings import TopicSettings


@dataclass(frozen=True, slots=True)
class ExpiryPlan:
    """Where our log start of a partition moves to at `now` (ms), and the remote segments that then lie below it."""

    topic_id_partition: TopicIdPartition
    new_log_start: int
    now: int
    segments: tuple[RemoteLogSegmentMetadata, ...]

    @property
    def size(self) -> int:
        """The bytes that go."""
        return sum(segment.size for segment in self.segments)


def plan_expiry(
    partition: TopicIdPartition,
    metadata: RemoteLogMetadataManager,
    settings: TopicSettings,
    now: int,
    local: PartitionLog | None,
) -> ExpiryPlan | None:
    """Return what of `partition` is past total retention at `now` (ms), oldest first; None where nothing is.

    `local` (None: not in reach) adds the bytes that are not remote yet, and tells the lineage. Unfinished copies never
    count; what is remote in two copies counts once. A segment without timestamps does not grow old.
    """
    segments = list(metadata.list_remote_log_segments(partition))
    lineage: Sequence[EpochEntry] = local.leader_epochs if local else ()
    coverage = Coverage.of(segments, lineage)
    log_start = metadata.log_start_offset(partition) or 0
    new_log_start = max(log_start, _start_after_retention(coverage, settings, now, local))
    going = tuple(segment for segment in finished(segments) if segment.end_offset < new_log_start)
    if not going and new_log_start <= log_start:
        return None
    return ExpiryPlan(partition, new_log_start, now, going)


def mark_expired(
    plans: Iterable[ExpiryPlan],
    metadata: RemoteLogMetadataManager,
    leases: Leases,
    *,
    owner: str,
    lease_duration_ms: int,
    clock: Clock,
    gate: DeletionGate,
) -> tuple[tuple[TopicIdPartition, ...], tuple[Finding, ...]]:
    """Move our log starts and mark what lies below them; return the partitions done and those left, with the reason.

    Raises DeletionRefusedError where a person stopped all deletions before the first of them.
    """
    gate.ensure_running()
    done: list[TopicIdPartition] = []
    left: list[Finding] = []
    for plan in plans:
        partition = plan.topic_id_partition
        try:
            lease = leases.acquire(partition, owner, lease_duration_ms)
        except LeaseHeldError as error:
            left.append(Finding(str(partition), str(error)))
            continue
        try:
            gate.ensure(partition, DeletionKind.REMOTE)
            metadata.advance_log_start_offset(partition, plan.new_log_start, lease)
            # Planned before we held the lease: another run may have marked or deleted some meanwhile.
            for segment in finished(metadata.list_remote_log_segments(partition)):
                if segment.end_offset < plan.new_log_start:
                    _step(segment, SegmentState.DELETE_SEGMENT_STARTED, metadata, lease, clock)
        except LeaseLostError as error:
            left.append(Finding(str(partition), str(error)))
            continue
        except DeletionRefusedError as error:
            left.append(Finding(str(partition), str(error)))
        else:
            done.append(partition)
        leases.release(lease)
    return tuple(done), tuple(left)


def _start_after_retention(coverage: Coverage, settings: TopicSettings, now: int, local: PartitionLog | None) -> int:
    excess = _total_size(coverage, local) - settings.retention_bytes if settings.retention_bytes >= 0 else 0
    start = 0
    for covered in coverage.ranges:
        over_size = excess >= covered.size > 0
        if not over_size and not _past(covered.segment, settings.retention_ms, now):
            break
        excess -= covered.size
        start = covered.end_offset + 1
    return start


def _total_size(coverage: Coverage, local: PartitionLog | None) -> int:
    remote = sum(covered.size for covered in coverage.ranges)
    if local is None:
        return remote
    remote_end = -1 if coverage.end_offset is None else coverage.end_offset
    return remote + sum(segment.size for segment in local.segments if segment.base_offset > remote_end)


def _past(segment: RemoteLogSegmentMetadata, limit_ms: int, now: int) -> bool:
    return limit_ms >= 0 and segment.max_timestamp >= 0 and segment.max_timestamp + limit_ms < now


def _step(
    segment: RemoteLogSegmentMetadata,
    state: SegmentState,
    metadata: RemoteLogMetadataManager,
    lease: Lease,
    clock: Clock,
) -> RemoteLogSegmentMetadata:
    update = RemoteLogSegmentMetadataUpdate(segment.segment_id, state, clock())
    return metadata.update_remote_log_segment_metadata(update, lease)
