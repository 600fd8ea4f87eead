"""The beginning of a copy run: takes leases and writes the tasks.

Then a Spark job or this process copies the bytes, without touching the metadata store. The end of a run is in
commit.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from tiered_storage.clock import Clock
from tiered_storage.errors import ForkedLogError, LeaseLostError, RemoteStorageError
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.copy.forked_log import ensure_continued
from tiered_storage.remote_log.copy.plan import why_deleted
from tiered_storage.remote_log.copy.tasks import CopyPlan, CopyTask, PlannedSegment, RollOrder
from tiered_storage.remote_log.coverage import Coverage
from tiered_storage.remote_log.lineage import merged, up_to, whole_lineage
from tiered_storage.remote_log.metadata.manifest_sync import (
    Refusal,
    Refusals,
    StoredState,
    raise_first,
    write_partition_states,
)
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from tiered_storage.remote_log.model import (
    UNKNOWN_SIZE,
    Finding,
    Lease,
    PartitionState,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    SegmentState,
    TopicIdPartition,
)
from tiered_storage.remote_log.source.partition_log import epochs_within
from tiered_storage.remote_log.storage.concurrent_requests import concurrent_map
from tiered_storage.remote_log.storage.transforms.encoding import PLAIN, Encoding
from tiered_storage.remote_log.tiering_policy import Decisions


@dataclass(frozen=True, slots=True)
class BegunCopy:
    """The tasks of a run, the partitions that another owner holds, and those that could not be begun and why.

    Failed partitions need a person, or a store that answers: the run's report must name them as failures.
    """

    tasks: tuple[CopyTask, ...]
    left: tuple[Finding, ...]
    failed: tuple[Finding, ...] = ()

    @property
    def leases(self) -> list[Lease]:
        """The leases that the tasks are done under."""
        return sorted({task.lease for task in self.tasks}, key=lambda lease: lease.topic_id_partition)


def begin_copy(
    plan: CopyPlan, context: RemoteLogContext, owner: str, new_segment_id: Callable[[], str] = random_uuid
) -> BegunCopy:
    """Take the leases, keep the lineages that the plan saw, and write COPY_SEGMENT_STARTED for all that is still due.

    Copies that an earlier holder began and never finished are marked for deletion: their lease is gone, so they can
    never be committed. A partition that another owner holds, or took over since, is left to that owner. One that
    changed too much since the plan is left to the next run. A partition fails alone if the store rejects its document
    or if its log is forked (see ensure_continued). If every partition fails so, the first such error is raised. Raises
    what the metadata store raises as a whole, after releasing the leases, and ConfigurationError for a topic whose
    settings contradict each other.
    """
    planned: dict[TopicIdPartition, list[PlannedSegment]] = {each.topic_id_partition: [] for each in plan.lineages}
    seen: dict[TopicIdPartition, tuple[EpochEntry, ...]] = {}
    for segment in plan.segments:
        planned.setdefault(segment.topic_id_partition, []).append(segment)
        seen[segment.topic_id_partition] = segment.lineage
    seen |= {each.topic_id_partition: each.leader_epochs for each in plan.lineages}
    errors: dict[TopicIdPartition, Refusal | ForkedLogError] = {}
    taken = context.leases.acquire_many(list(planned), owner, context.settings.lease_duration_ms)
    begun: list[_BegunPartition] = []
    try:
        decisions = Decisions(context.topics.list(), context.settings)
        run = _Run(context, decisions, plan.replacing, new_segment_id)
        states = context.segments.partition_states_of(lease.topic_id_partition for lease in taken.granted)

        def begin(lease: Lease) -> _BegunPartition | ForkedLogError | RemoteStorageError:
            partition = lease.topic_id_partition
            segments = tuple(context.segments.list_remote_log_segments(partition))
            try:
                ensure_continued(planned[partition], segments, context.storage, plan.replacing)
            except (ForkedLogError, RemoteStorageError) as error:
                return error
            return _begin(lease, planned[partition], seen.get(partition, ()), segments, states[partition], run)

        for lease, outcome in zip(taken.granted, list(concurrent_map(begin, taken.granted)), strict=True):
            if isinstance(outcome, _BegunPartition):
                begun.append(outcome)
            else:
                errors[lease.topic_id_partition] = outcome
        unwritten = _keep_in_store(begun, context)
        errors |= {partition: error for partition, error in unwritten.items() if not isinstance(error, LeaseLostError)}
        if errors and len(errors) == len(planned):
            raise_first(errors)
        refused = {partition: str(error) for partition, error in unwritten.items() if partition not in errors}
        refused |= _write([each for each in begun if each.partition not in unwritten], context.segments)
    except BaseException:
        context.leases.release_many(taken.granted)
        raise
    stopped = {*errors, *refused}
    busy = {each.partition for each in begun if each.tasks}.difference(stopped)
    idle = [lease for lease in taken.granted if lease.topic_id_partition not in busy]
    if idle:
        context.leases.release_many(idle)
    return BegunCopy(
        tuple(task for each in begun if each.partition not in stopped for task in each.tasks),
        (
            *(Finding(str(each.topic_id_partition), str(each.reason)) for each in taken.refused),
            *(finding for each in begun for finding in each.left),
            *(Finding(str(partition), reason) for partition, reason in refused.items()),
        ),
        tuple(Finding(str(partition), f"{type(error).__name__}: {error}") for partition, error in errors.items()),
    )


def unfinished_before(
    segments: Iterable[RemoteLogSegmentMetadata], lease: Lease, clock: Clock
) -> list[RemoteLogSegmentMetadataUpdate]:
    """Return the steps that mark those of `segments` for deletion whose copies began under an earlier lease."""
    return [
        RemoteLogSegmentMetadataUpdate(segment.segment_id, SegmentState.DELETE_SEGMENT_STARTED, clock())
        for segment in segments
        if segment.state is SegmentState.COPY_SEGMENT_STARTED and segment.fencing_number < lease.fencing_number
    ]


def abandon_unfinished(
    partition: TopicIdPartition, metadata: RemoteLogMetadataManager, lease: Lease, clock: Clock
) -> int:
    """Mark the copies that began under an earlier lease for deletion; return how many. Raises LeaseLostError."""
    updates = unfinished_before(metadata.list_remote_log_segments(partition), lease, clock)
    for outcome in metadata.update_remote_log_segments([(update, lease) for update in updates]):
        if not isinstance(outcome, RemoteLogSegmentMetadata):
            raise outcome
    return len(updates)


@dataclass(frozen=True, slots=True)
class _Run:
    """State that the partitions of a run share. Segments whose ids are `replacing` do not count as copied."""

    context: RemoteLogContext
    decisions: Decisions
    replacing: Collection[str]
    new_segment_id: Callable[[], str]
    encodings: dict[tuple[str, str], Encoding] = field(default_factory=dict)

    def encoding_of(self, partition: TopicIdPartition) -> Encoding:
        """Return how the new segments of the partition are encoded; it is worked out once for each topic."""
        key = partition.cluster_id, partition.topic_id
        if key not in self.encodings:
            self.encodings[key] = self.context.encoding_of(self.decisions.topic(partition))
        return self.encodings[key]


@dataclass(frozen=True, slots=True)
class _BegunPartition:
    """The updates to write for one partition before its copies begin; `stored` goes to the store as well."""

    lease: Lease
    abandoned: list[RemoteLogSegmentMetadataUpdate]
    lineage: tuple[EpochEntry, ...]
    tasks: list[CopyTask]
    left: list[Finding]
    stored: StoredState | None = None

    @property
    def partition(self) -> TopicIdPartition:
        return self.lease.topic_id_partition


def _begin(
    lease: Lease,
    planned: Sequence[PlannedSegment],
    seen: tuple[EpochEntry, ...],
    segments: Sequence[RemoteLogSegmentMetadata],
    state: PartitionState,
    run: _Run,
) -> _BegunPartition:
    # Planned before we held the lease: another run may have copied some meanwhile, or let them expire.
    partition, context = lease.topic_id_partition, run.context
    abandoned = unfinished_before(segments, lease, context.clock)
    if state.delete_state is not None:
        return _BegunPartition(lease, abandoned, (), [], [Finding(str(partition), why_deleted(state.delete_state))])
    lineage = whole_lineage(segments, merged(state.lineage, seen))
    still = [segment for segment in planned if _is_of(segment, lineage)]
    left = []
    if len(still) < len(planned):
        left.append(Finding(str(partition), "another leader was seen since this was planned: the next run plans again"))
    counting = [segment for segment in segments if segment.segment_id.id not in run.replacing]
    tasks = _tasks(lease, still, counting, replace(state, lineage=lineage), run)
    if lineage == state.lineage:
        return _BegunPartition(lease, abandoned, (), tasks, left)
    # The store needs no lineage before the first segment is finished: there is nothing to rebuild yet.
    stored = None
    if state.log_start_offset is not None or _first_readable(segments, 0) is not None:
        stored = StoredState.of(replace(state, lineage=lineage), segments)
    return _BegunPartition(lease, abandoned, lineage, tasks, left, stored)


def _is_of(segment: PlannedSegment, lineage: Sequence[EpochEntry]) -> bool:
    """Return whether `segment` was planned under the leaders that are known now."""
    planned = epochs_within(segment.lineage, segment.base_offset, segment.end_offset)
    return planned == epochs_within(lineage, segment.base_offset, segment.end_offset)


def _tasks(
    lease: Lease,
    planned: Iterable[PlannedSegment],
    segments: Sequence[RemoteLogSegmentMetadata],
    state: PartitionState,
    run: _Run,
) -> list[CopyTask]:
    """Return the tasks that copy what is still due of `planned`, along the lineage in `state`."""
    lineage = state.lineage
    coverage = Coverage.of(segments, lineage)
    log_start = state.log_start_offset or 0
    first = _first_readable(segments, log_start)
    tasks: list[CopyTask] = []
    continued: RemoteLogSegmentMetadata | None = None
    due = [each for each in planned if _is_due(each, coverage, log_start)]
    encoding = run.encoding_of(lease.topic_id_partition) if due else PLAIN
    for segment in due:
        start = segment.base_offset if segment.roll is None else _lowest_start(segment, coverage)
        started = RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(lease.topic_id_partition, run.new_segment_id()),
            start_offset=start,
            end_offset=segment.end_offset,
            max_timestamp=-1,
            event_timestamp=run.context.clock(),
            size=segment.size if segment.roll is None else UNKNOWN_SIZE,
            leader_epochs=epochs_within(lineage, start, segment.end_offset),
            fencing_number=lease.fencing_number,
        )
        first = segment.base_offset if first is None else min(first, segment.base_offset)
        lived = up_to(lineage, segment.end_offset)
        before = coverage.last_before(segment.base_offset)
        after = before if before is not continued else None
        continued = before
        order = None
        if segment.roll is not None:
            truncated = coverage.truncated_at(segment.base_offset)
            order = RollOrder(segment.roll, segment.base_offset, segment.size, truncated)
        readable_from = max(first, log_start)
        tasks.append(CopyTask(started, lease, segment.location, lived, readable_from, after, encoding, order))
    return tasks


def _is_due(segment: PlannedSegment, coverage: Coverage, log_start: int) -> bool:
    """Return whether the remote log still lacks `segment`; one that the copy rolls must begin at its end.

    If another run copied some of it meanwhile, the next run plans what is left.
    """
    end = segment.end_offset if segment.roll is None else segment.base_offset
    return coverage.lacks(segment.base_offset, end, log_start)


def _lowest_start(segment: PlannedSegment, coverage: Coverage) -> int:
    """Return the lowest offset of a segment that is rolled from `segment` on: its first batch may be older."""
    before = [covered.end_offset + 1 for covered in coverage.ranges if covered.end_offset < segment.base_offset]
    return before[-1] if before else 0


def _first_readable(segments: Iterable[RemoteLogSegmentMetadata], log_start: int) -> int | None:
    """Return the base offset of the first segment that readers see; None if they see none."""
    return next(
        (
            segment.start_offset
            for segment in segments
            if segment.state is SegmentState.COPY_SEGMENT_FINISHED and segment.end_offset >= log_start
        ),
        None,
    )


def _keep_in_store(begun: Sequence[_BegunPartition], context: RemoteLogContext) -> Refusals:
    changed = [(each.lease, each.stored) for each in begun if each.stored is not None]
    return write_partition_states(context.storage, context.leases, changed, context.clock(), is_copied=True)


def _write(begun: Sequence[_BegunPartition], metadata: RemoteLogMetadataManager) -> dict[TopicIdPartition, str]:
    """Write all of it in a few transactions; return the partitions that were refused, and why."""
    steps = [(update, each.lease) for each in begun for update in each.abandoned]
    lineages = [(each.partition, each.lineage, each.lease) for each in begun if each.lineage]
    additions = [(task.metadata, each.lease) for each in begun for task in each.tasks]
    refused: dict[TopicIdPartition, str] = {}
    outcomes = metadata.update_remote_log_segments(steps) if steps else []
    for (_, lease), outcome in zip(steps, outcomes, strict=True):
        if not isinstance(outcome, RemoteLogSegmentMetadata):
            refused[lease.topic_id_partition] = str(outcome)
    for (partition, _, _), lost in zip(lineages, metadata.put_lineages(lineages) if lineages else [], strict=True):
        if lost is not None:
            refused[partition] = str(lost)
    outcomes = metadata.add_remote_log_segments(additions) if additions else []
    for (_, lease), outcome in zip(additions, outcomes, strict=True):
        if not isinstance(outcome, RemoteLogSegmentMetadata):
            refused[lease.topic_id_partition] = str(outcome)
    return refused
