"""A copy run's two ends: beginning the copies of a plan under leases, and committing what came of them.

Between them anything may move the bytes: a Spark job, or this process. Nothing there touches the metadata store.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tiered_storage.clock import Clock
from tiered_storage.errors import InvalidTransitionError, LeaseHeldError, LeaseLostError, TieredStorageError
from tiered_storage.kafka_log.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.copy_messages import CopyOutcome, CopyTask
from tiered_storage.remote_log.copy_plan import CopyPlan, Finding, PlannedSegment
from tiered_storage.remote_log.coverage import Coverage
from tiered_storage.remote_log.metadata import Leases, RemoteLogMetadataManager
from tiered_storage.remote_log.model import (
    Lease,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    SegmentState,
    TopicIdPartition,
)
from tiered_storage.remote_log.segment_source import SegmentSource, epochs_within


@dataclass(frozen=True, slots=True)
class BegunCopy:
    """The tasks of a run, and the partitions that were left to somebody else."""

    tasks: tuple[CopyTask, ...]
    left: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class CommitReport:
    """What became visible to readers, and what a person must look at: failed copies and damaged files."""

    committed: tuple[RemoteLogSegmentMetadata, ...]
    failures: tuple[Finding, ...]
    damages: tuple[Finding, ...]
    notices: tuple[Finding, ...]
    retriable: bool

    @property
    def is_whole(self) -> bool:
        """Whether all that was asked for was done and nothing was found damaged."""
        return not self.failures and not self.damages


def begin_copy(
    plan: CopyPlan,
    metadata: RemoteLogMetadataManager,
    leases: Leases,
    *,
    owner: str,
    lease_duration_ms: int,
    clock: Clock,
    new_segment_id: Callable[[], str],
) -> BegunCopy:
    """Take the leases, write COPY_SEGMENT_STARTED for every segment that is still due, and return the tasks.

    What an earlier holder began and never finished is marked for deletion: its lease is gone, so it can never be
    committed. A partition that somebody else holds is left to them. Raises what the metadata store raises.
    """
    by_partition: dict[TopicIdPartition, list[PlannedSegment]] = defaultdict(list)
    for segment in plan.segments:
        by_partition[segment.topic_id_partition].append(segment)
    tasks: list[CopyTask] = []
    left: list[Finding] = []
    for partition, segments in by_partition.items():
        try:
            lease = leases.acquire(partition, owner, lease_duration_ms)
        except LeaseHeldError as error:
            left.append(Finding(str(partition), str(error)))
            continue
        abandon_unfinished(partition, metadata, lease, clock)
        started = _start(partition, segments, metadata, lease, clock, new_segment_id)
        if not started:
            leases.release(lease)
        tasks.extend(started)
    return BegunCopy(tuple(tasks), tuple(left))


def abandon_unfinished(
    partition: TopicIdPartition, metadata: RemoteLogMetadataManager, lease: Lease, clock: Clock
) -> int:
    """Mark the copies that began under an earlier lease for deletion; return how many."""
    unfinished = [
        segment
        for segment in metadata.list_remote_log_segments(partition)
        if segment.state is SegmentState.COPY_SEGMENT_STARTED and segment.fencing_number < lease.fencing_number
    ]
    for segment in unfinished:
        _mark_for_deletion(segment.segment_id, metadata, lease, clock)
    return len(unfinished)


def _start(
    partition: TopicIdPartition,
    segments: Sequence[PlannedSegment],
    metadata: RemoteLogMetadataManager,
    lease: Lease,
    clock: Clock,
    new_segment_id: Callable[[], str],
) -> list[CopyTask]:
    # Planned before we held the lease: another run may have copied some meanwhile.
    coverage = Coverage.of(metadata.list_remote_log_segments(partition), segments[-1].lineage)
    tasks = []
    for segment in segments:
        if coverage.holding(segment.base_offset, segment.end_offset) is not None:
            continue
        started = RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(partition, new_segment_id()),
            start_offset=segment.base_offset,
            end_offset=segment.end_offset,
            max_timestamp=-1,
            event_timestamp=clock(),
            size=segment.size,
            leader_epochs=epochs_within(segment.lineage, segment.base_offset, segment.end_offset),
            fencing_number=lease.fencing_number,
        )
        metadata.add_remote_log_segment_metadata(started, lease)
        tasks.append(CopyTask(started, lease, segment.log_path, segment.lineage))
    return tasks


def commit_copy(
    outcomes: Iterable[CopyOutcome],
    source: SegmentSource,
    metadata: RemoteLogMetadataManager,
    leases: Leases,
    clock: Clock,
) -> CommitReport:
    """Make finished copies visible, partition by partition, in order, up to the first that failed.

    Checks that no newer lease exists and that the local log still has the segment with the lineage it was copied
    under. Copies behind a failed one go (a reader must find no gap); the next run plans them anew. Running it again
    changes nothing. Raises MetadataUnavailableError; what concerns one partition is in the report.
    """
    by_partition: dict[TopicIdPartition, list[CopyOutcome]] = defaultdict(list)
    for outcome in outcomes:
        by_partition[outcome.task.metadata.topic_id_partition].append(outcome)
    committed: list[RemoteLogSegmentMetadata] = []
    failures: list[Finding] = []
    retriable = True
    for partition, of_partition in by_partition.items():
        of_partition.sort(key=lambda outcome: outcome.task.metadata.start_offset)
        done, failure, may_retry = _commit_partition(partition, of_partition, source, metadata, leases, clock)
        committed.extend(done)
        if failure is not None:
            failures.append(failure)
            retriable = retriable and may_retry
    return CommitReport(
        tuple(committed),
        tuple(failures),
        _findings(by_partition, lambda outcome: outcome.damages),
        _findings(by_partition, lambda outcome: outcome.notices),
        retriable,
    )


def _commit_partition(
    partition: TopicIdPartition,
    outcomes: Sequence[CopyOutcome],
    source: SegmentSource,
    metadata: RemoteLogMetadataManager,
    leases: Leases,
    clock: Clock,
) -> tuple[list[RemoteLogSegmentMetadata], Finding | None, bool]:
    lease = outcomes[0].task.lease
    committed: list[RemoteLogSegmentMetadata] = []
    failure: Finding | None = None
    retriable = True
    try:
        lineage = _lineage_now(partition, source)
        for outcome in outcomes:
            if failure is not None:
                _mark_for_deletion(outcome.task.metadata.segment_id, metadata, lease, clock)
                continue
            reason, may_retry = _why_not(outcome, lineage)
            if reason is not None:
                failure, retriable = Finding(str(partition), reason), may_retry
                _mark_for_deletion(outcome.task.metadata.segment_id, metadata, lease, clock)
                continue
            assert outcome.finished is not None  # noqa: S101 - _why_not gives a reason for every outcome without it
            committed.append(metadata.update_remote_log_segment_metadata(outcome.finished, lease))
        leases.release(lease)
    except (LeaseLostError, InvalidTransitionError) as error:
        return committed, Finding(str(partition), str(error)), False
    return committed, failure, retriable


def _lineage_now(partition: TopicIdPartition, source: SegmentSource) -> tuple[EpochEntry, ...] | str:
    """Return the local lineage as it is now, or why it cannot be had."""
    try:
        log = source.partition(partition)
    except TieredStorageError as error:
        return str(error)
    return f"{partition} is no longer in the log directories" if log is None else log.leader_epochs


def _why_not(outcome: CopyOutcome, lineage: tuple[EpochEntry, ...] | str) -> tuple[str | None, bool]:
    """Return why `outcome` cannot be committed (None: it can), and whether another try may help."""
    if outcome.failure is not None:
        return f"{outcome.failure.error}: {outcome.failure.message}", outcome.failure.retriable
    if outcome.finished is None:
        return "the copy left no result: its worker died", True
    if isinstance(lineage, str):
        return lineage, True
    copied = outcome.task.metadata
    if epochs_within(lineage, copied.start_offset, copied.end_offset) != copied.leader_epochs:
        return (
            f"offsets {copied.start_offset} to {copied.end_offset} were copied under leader epochs that no longer "
            "hold: the leader changed meanwhile; the next run copies them anew"
        ), True
    return None, True


def _mark_for_deletion(
    segment_id: RemoteLogSegmentId, metadata: RemoteLogMetadataManager, lease: Lease, clock: Clock
) -> None:
    update = RemoteLogSegmentMetadataUpdate(segment_id, SegmentState.DELETE_SEGMENT_STARTED, clock())
    metadata.update_remote_log_segment_metadata(update, lease)


def _findings(
    by_partition: dict[TopicIdPartition, list[CopyOutcome]], told: Callable[[CopyOutcome], tuple[str, ...]]
) -> tuple[Finding, ...]:
    return tuple(
        Finding(str(partition), message)
        for partition, outcomes in by_partition.items()
        for outcome in outcomes
        for message in told(outcome)
    )
