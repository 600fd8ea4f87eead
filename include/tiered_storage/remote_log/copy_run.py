"""A copy run's two ends: beginning the copies of a plan under leases, and committing what came of them.

Between them anything may move the bytes: a Spark job, or this process. Nothing there touches the metadata store.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tiered_storage.clock import Clock
from tiered_storage.errors import InvalidTransitionError, LeaseHeldError, LeaseLostError, TieredStorageError
from tiered_storage.remote_log.copy_messages import CopyOutcome, CopyTask
from tiered_storage.remote_log.copy_plan import CopyPlan, Finding, PlannedSegment
from tiered_storage.remote_log.coverage import Coverage, on_lineage
from tiered_storage.remote_log.metadata import Leases, RemoteLogMetadataManager
from tiered_storage.remote_log.model import (
    Lease,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    SegmentState,
    TopicIdPartition,
)
from tiered_storage.remote_log.segment_source import PartitionLog, SegmentSource, epochs_within


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
    # Planned before we held the lease: another run may have copied some meanwhile, or let them expire.
    coverage = Coverage.of(metadata.list_remote_log_segments(partition), segments[-1].lineage)
    log_start = metadata.log_start_offset(partition) or 0
    first = _first_readable(partition, metadata, log_start)
    tasks = []
    for segment in segments:
        if not coverage.lacks(segment.base_offset, segment.end_offset, log_start):
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
        first = segment.base_offset if first is None else min(first, segment.base_offset)
        tasks.append(CopyTask(started, lease, segment.log_path, segment.lineage, max(first, log_start)))
    return tasks


def _first_readable(partition: TopicIdPartition, metadata: RemoteLogMetadataManager, log_start: int) -> int | None:
    """Return the base offset of the first segment that readers are given by now; None: they are given none."""
    return next(
        (
            segment.start_offset
            for segment in metadata.list_remote_log_segments(partition)
            if _is_visible(segment) and segment.end_offset >= log_start
        ),
        None,
    )


def commit_copy(
    outcomes: Iterable[CopyOutcome],
    source: SegmentSource,
    metadata: RemoteLogMetadataManager,
    leases: Leases,
    clock: Clock,
) -> CommitReport:
    """Make finished copies visible, partition by partition, in order, up to the first that failed.

    Checks that no newer lease exists, that the local log still has the leaders it was copied under, and that it still
    reaches as far. Copies behind a failed one go (a reader must find no gap); the next run plans them anew. While the
    local log cannot be looked at, nothing is decided: the same commit may be tried again. What was committed once stays
    so, whatever holds when it is run again. Raises MetadataUnavailableError; what concerns one partition is in the
    report.
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
    known = {segment.segment_id: segment for segment in metadata.list_remote_log_segments(partition)}
    committed = [segment for segment in _segments_of(outcomes, known) if _is_visible(segment)]
    pending = [outcome for outcome in outcomes if not _was_visible(known.get(outcome.task.metadata.segment_id))]
    local = _look(partition, source) if pending else ""
    updates, refusal = _committable(pending, local)
    try:
        if updates and isinstance(local, PartitionLog) and metadata.log_start_offset(partition) is None:
            visible = [segment for segment in known.values() if _is_visible(segment)]
            first = min((*visible, *_segments_of(pending[: len(updates)], known)), key=lambda one: one.start_offset)
            metadata.advance_log_start_offset(partition, _first_log_start(local, first), lease)
        committed.extend(metadata.update_remote_log_segment_metadata(update, lease) for update in updates)
        if refusal is None or refusal.is_final:
            for segment in _segments_of(pending[len(updates) :], known):
                if segment.state is SegmentState.COPY_SEGMENT_STARTED:
                    _mark_for_deletion(segment.segment_id, metadata, lease, clock)
            leases.release(lease)
    except (LeaseLostError, InvalidTransitionError) as error:
        return committed, Finding(str(partition), str(error)), False
    if refusal is None:
        return committed, None, True
    return committed, Finding(str(partition), refusal.reason), refusal.retriable


def _first_log_start(local: PartitionLog, first: RemoteLogSegmentMetadata) -> int:
    """Return where our log begins: from the first commit on it is ours, and what is missing above it was lost.

    The local log may have lost its start since the copy began: what was copied of it stays.
    """
    return local.log_start_offset if local.log_start_offset <= first.end_offset else first.start_offset


def _segments_of(
    outcomes: Iterable[CopyOutcome], known: Mapping[RemoteLogSegmentId, RemoteLogSegmentMetadata]
) -> list[RemoteLogSegmentMetadata]:
    ids = (outcome.task.metadata.segment_id for outcome in outcomes)
    return [known[segment_id] for segment_id in ids if segment_id in known]


def _is_visible(segment: RemoteLogSegmentMetadata) -> bool:
    return segment.state is SegmentState.COPY_SEGMENT_FINISHED


def _was_visible(segment: RemoteLogSegmentMetadata | None) -> bool:
    """Whether an earlier commit made it visible; it may have expired since. Whatever holds now, it stays committed."""
    return segment is not None and (_is_visible(segment) or segment.custom_metadata is not None)


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why a copy is not committed, and whether another try may help; unless `is_final`, of this very commit."""

    reason: str
    retriable: bool
    is_final: bool = True


def _committable(
    outcomes: Iterable[CopyOutcome], local: PartitionLog | str
) -> tuple[list[RemoteLogSegmentMetadataUpdate], _Refusal | None]:
    """Return the steps that commit `outcomes`, up to the first that cannot be committed, and why not."""
    updates: list[RemoteLogSegmentMetadataUpdate] = []
    for outcome in outcomes:
        if outcome.failure is not None:
            failed = f"{outcome.failure.error}: {outcome.failure.message}"
            return updates, _Refusal(failed, outcome.failure.retriable)
        if outcome.finished is None:
            return updates, _Refusal("the copy left no result: its worker died", retriable=True)
        if isinstance(local, str):
            return updates, _Refusal(local, retriable=True, is_final=False)
        reason = _why_outdated(outcome.task.metadata, local)
        if reason is not None:
            return updates, _Refusal(reason, retriable=True)
        updates.append(outcome.finished)
    return updates, None


def _look(partition: TopicIdPartition, source: SegmentSource) -> PartitionLog | str:
    """Return the local log as it is now, or why it cannot be looked at."""
    try:
        log = source.partition(partition)
    except (TieredStorageError, OSError) as error:
        return str(error)
    return f"{partition} is no longer in the log directories" if log is None else log


def _why_outdated(copied: RemoteLogSegmentMetadata, local: PartitionLog) -> str | None:
    """Return why the local log no longer is what was copied; what left it at its start was still copied rightly."""
    offsets = f"offsets {copied.start_offset} to {copied.end_offset}"
    if not on_lineage(copied, local.leader_epochs):
        return (
            f"{offsets} were copied under leader epochs that no longer hold: the leader changed meanwhile; the next "
            "run copies them anew"
        )
    if copied.end_offset >= local.stable_offset:
        return (
            f"{offsets} were copied, and the local log is now stable up to {local.stable_offset} only: it was "
            "truncated meanwhile; the next run copies what there is"
        )
    return None


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
