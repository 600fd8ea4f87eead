"""Execute an expiry plan: the global log start moves, and segments below it are marked for deletion.

A plan may be old, and another run may have worked on the partition since. So it is planned again under the lease, and
what both plans have in common is executed. Partitions are handled in groups: each step is done for a whole group at the
cost of a few, and a refusal of one does not affect the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from tiered_storage.errors import (
    CorruptLogError,
    RemoteObjectCorruptError,
    RemoteObjectNotFoundError,
    TieredStorageError,
)
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.copy.forked_log import ensure_joined, ensure_same_below
from tiered_storage.remote_log.copy.sent_records import why_other_records
from tiered_storage.remote_log.coverage import Coverage
from tiered_storage.remote_log.jobs.throttle import RateLimit
from tiered_storage.remote_log.lineage import trusted_lineage
from tiered_storage.remote_log.metadata.manifest_sync import StoredState, incomplete_partitions, write_partition_states
from tiered_storage.remote_log.model import (
    Finding,
    Lease,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    SegmentState,
    TopicIdPartition,
    finding_of,
)
from tiered_storage.remote_log.retention.expiry import ExpiryPlan, Reason, ending_below
from tiered_storage.remote_log.retention.expiry_planning import ExpiryPlanner
from tiered_storage.remote_log.retention.permission.clock_agreement import ClockAgreement
from tiered_storage.remote_log.retention.permission.deletion_permissions import DeletionKind, DeletionPermissions
from tiered_storage.remote_log.retention.permission.object_checks import ensure_whole, unknown_versions

GROUP_PARTITIONS = 50
GROUP_SEGMENTS = 10_000
"""The limit on a group, so that leases are held only for seconds; a larger partition is a group of its own."""


@dataclass(frozen=True, slots=True)
class ExpiryMarking:
    """Executes plans under the leases of `owner`.

    `clocks` refuse partitions to which something happened later than now. The store knows of every change before the
    metadata do.
    """

    context: RemoteLogContext
    permissions: DeletionPermissions
    clocks: ClockAgreement
    owner: str
    limit: RateLimit
    """The limit on the rate at which segments are read back whole."""
    gives_up: bool = False
    """Whether a person deletes records even though the store has lost objects of the partition."""

    def mark(self, plans: Iterable[ExpiryPlan]) -> tuple[tuple[TopicIdPartition, ...], tuple[Finding, ...]]:
        """Move global log starts and mark segments; return the partitions done, and those left with the reason.

        A partition can be in both if only some of its segments could be marked. Raises DeletionRefusedError if all
        deletions are stopped before the first of them.
        """
        self.permissions.ensure_running()
        marked = _Marked()
        for group in _groups(plans):
            marked.begin()
            try:
                self._mark_group(group, marked)
            except (TieredStorageError, OSError) as error:
                marked.leave([plan.topic_id_partition for plan in group], error)
        return tuple(dict.fromkeys(marked.done)), tuple(marked.left)

    def _mark_group(self, group: Sequence[ExpiryPlan], marked: _Marked) -> None:
        plans = {plan.topic_id_partition: plan for plan in group}
        # Not under the lease: for many segments it takes a while.
        to_mark = {
            partition: (*plans[partition].segments, *plans[partition].superseded)
            for partition in marked.undecided(plans)
        }
        for partition, unknown in unknown_versions(to_mark, self.context.storage).items():
            marked.leave([partition], unknown)
        for partition in marked.undecided(plans):
            try:
                self._ensure_no_fork(plans[partition])
            except RemoteObjectNotFoundError as error:
                # The store may have lost more objects than this one: the error about all of them names what to do.
                lost = incomplete_partitions(self.context.storage, self.context.segments, [partition], {partition})
                marked.leave([partition], lost.get(partition, error))
            except (TieredStorageError, OSError) as error:
                marked.leave([partition], error)
        taken = self.context.leases.acquire_many(
            marked.undecided(plans), self.owner, self.context.settings.lease_duration_ms
        )
        for refused in taken.refused:
            marked.leave([refused.topic_id_partition], refused.reason)
        try:
            self._leave_refused(plans, marked)
            due = [self._due(lease, plans[lease.topic_id_partition], marked) for lease in taken.granted]
            self._move([each for each in due if each is not None], marked)
        finally:
            self.context.leases.release_many(taken.granted)

    def _leave_refused(self, partitions: Iterable[TopicIdPartition], marked: _Marked) -> None:
        for partition, error in self.permissions.refusals(marked.undecided(partitions), DeletionKind.REMOTE).items():
            marked.leave([partition], error)

    def _due(self, lease: Lease, plan: ExpiryPlan, marked: _Marked) -> _Due | None:
        partition = plan.topic_id_partition
        if not marked.is_undecided(partition):
            return None
        try:
            self.clocks.ensure_not_ahead(partition, self.context.segments.list_remote_log_segments(partition))
            current = self._still_due(plan)
        except (TieredStorageError, OSError) as error:
            marked.leave([partition], error)
            return None
        if current is None:
            marked.nothing_due.add(partition)
            return None
        return _Due(lease, current)

    def _still_due(self, plan: ExpiryPlan) -> ExpiryPlan | None:
        partition = plan.topic_id_partition
        is_about_log_start = plan.reason is not Reason.DISABLED and not plan.superseded
        if is_about_log_start and (self.context.segments.log_start_offset(partition) or 0) >= plan.new_log_start:
            # Another run moved the log start already: readers see nothing below it, so execute the old plan for what
            # lies there.
            below = ending_below(list(self.context.segments.list_remote_log_segments(partition)), plan.new_log_start)
            return plan.within(ExpiryPlan(partition, plan.new_log_start, plan.now, below))
        current = ExpiryPlanner(self.context, self.permissions).replan(plan)
        if current is None:
            return None
        common = plan.within(current)
        if not common.superseded:
            return common
        for segment in common.held_by:
            ensure_whole(segment, self.context.storage, self.limit.spend)
        # The other segments of a forked log hold the offsets, but not the records: keep this one; the audit names it.
        same = [segment for segment in common.superseded if self._is_read_from(common.held_by, segment)]
        return replace(common, superseded=tuple(same))

    def _is_read_from(self, others: Sequence[RemoteLogSegmentMetadata], segment: RemoteLogSegmentMetadata) -> bool:
        """Return whether `others` have every readable batch of `segment`."""
        lineage = self.context.segments.partition_state(segment.topic_id_partition).lineage
        held_by = Coverage.of(others, lineage)
        return why_other_records(segment, held_by, segment.start_offset, lineage, self.context.storage) is None

    def _ensure_no_fork(self, plan: ExpiryPlan) -> None:
        """Raise ForkedLogError if the local log differs from the remote one below the new log start.

        Local retention would remove it as expired.
        """
        partition, segments, storage = plan.topic_id_partition, self.context.segments, self.context.storage
        log = self.context.local_log(partition)
        if log is None:
            return
        lineage = trusted_lineage(segments.partition_state(partition).lineage, log)
        coverage = Coverage.of(segments.list_remote_log_segments(partition), lineage)
        given_up = (CorruptLogError, RemoteObjectCorruptError, RemoteObjectNotFoundError) if self.gives_up else ()
        with suppress(*given_up):
            ensure_joined(log, coverage, lineage, storage)
        # Local retention keeps what nothing remote holds, if the topic's id is unknown.
        if not log.topic_id_is_derived:
            with suppress(*given_up):
                ensure_same_below(log, plan.new_log_start, coverage, lineage, storage)

    def _move(self, due: Sequence[_Due], marked: _Marked) -> None:
        """Write everything: the store first, then global log starts, then the marks."""
        partitions = [each.partition for each in due]
        whole = {each.partition for each in due if not (self.gives_up and each.plan.reason is Reason.RECORDS)}
        for partition, incomplete in incomplete_partitions(
            self.context.storage, self.context.segments, partitions, whole
        ).items():
            marked.leave([partition], incomplete)
        now = self.clocks.clock()
        changes = [self._change(each, now) for each in due if marked.is_undecided(each.partition)]
        # A decision may have changed while the rest of the group was checked.
        self._leave_refused(partitions, marked)
        stored = [(each.lease, each.stored) for each in changes if marked.is_undecided(each.partition)]
        for partition, error in write_partition_states(self.context.storage, self.context.leases, stored, now).items():
            marked.leave([partition], error)
        self._write([each for each in changes if marked.is_undecided(each.partition)], now, marked)

    def _change(self, due: _Due, now: int) -> _Change:
        plan, partition = due.plan, due.partition
        state = self.context.segments.partition_state(partition)
        log_start = plan.new_log_start if plan.new_log_start > (state.log_start_offset or 0) else None
        if log_start is not None:
            state = state.with_log_start(log_start, now)
        segments = list(self.context.segments.list_remote_log_segments(partition))
        planned = (*plan.segments, *plan.superseded)
        to_mark = StoredState.of(state, segments).room_for(planned)
        stored = StoredState.of(state, segments, to_mark)
        return _Change(due.lease, log_start, to_mark, len(planned) - len(to_mark), stored)

    def _write(self, changes: Sequence[_Change], now: int, marked: _Marked) -> None:
        moves = [(one.partition, one.log_start, one.lease) for one in changes if one.log_start is not None]
        moved = self.context.segments.advance_log_start_offsets(moves, now) if moves else []
        for (partition, _, _), lost in zip(moves, moved, strict=True):
            if lost is not None:
                marked.leave([partition], lost)
        marking = SegmentState.DELETE_SEGMENT_STARTED
        steps = [
            (RemoteLogSegmentMetadataUpdate(segment.segment_id, marking, now), each.lease)
            for each in changes
            if marked.is_undecided(each.partition)
            for segment in each.to_mark
        ]
        outcomes = self.context.segments.update_remote_log_segments(steps) if steps else []
        for (step, _), outcome in zip(steps, outcomes, strict=True):
            partition = step.segment_id.topic_id_partition
            if not isinstance(outcome, RemoteLogSegmentMetadata) and marked.is_undecided(partition):
                marked.leave([partition], outcome)
        for each in changes:
            if marked.is_undecided(each.partition):
                marked.finish(each)


@dataclass(frozen=True, slots=True)
class _Due:
    """The work on a partition whose lease we hold."""

    lease: Lease
    plan: ExpiryPlan

    @property
    def partition(self) -> TopicIdPartition:
        return self.lease.topic_id_partition


@dataclass(frozen=True, slots=True)
class _Change:
    """The changes to a partition; `waiting` segments are for another run."""

    lease: Lease
    log_start: int | None
    to_mark: list[RemoteLogSegmentMetadata]
    waiting: int
    stored: StoredState

    @property
    def partition(self) -> TopicIdPartition:
        return self.lease.topic_id_partition


@dataclass(slots=True)
class _Marked:
    """The results of a run so far."""

    done: list[TopicIdPartition] = field(default_factory=list)
    left: list[Finding] = field(default_factory=list)
    nothing_due: set[TopicIdPartition] = field(default_factory=set)
    _decided: set[TopicIdPartition] = field(default_factory=set)

    def begin(self) -> None:
        """Begin a group: another plan for a partition of an earlier group is executed as well."""
        self.nothing_due.clear()
        self._decided.clear()

    def is_undecided(self, partition: TopicIdPartition) -> bool:
        return partition not in self._decided and partition not in self.nothing_due

    def undecided(self, partitions: Iterable[TopicIdPartition]) -> list[TopicIdPartition]:
        return [partition for partition in partitions if self.is_undecided(partition)]

    def leave(self, partitions: Iterable[TopicIdPartition], error: TieredStorageError | OSError) -> None:
        for partition in self.undecided(partitions):
            self._decided.add(partition)
            self.left.append(finding_of(partition, error))

    def finish(self, change: _Change) -> None:
        self._decided.add(change.partition)
        self.done.append(change.partition)
        if change.waiting:
            message = (
                f"{change.waiting} segments wait: the store's document of the partition names no more than "
                f"{len(change.stored.marked)} that are marked; once those are deleted the next run marks the rest"
            )
            self.left.append(Finding(str(change.partition), message))


def _groups(plans: Iterable[ExpiryPlan]) -> Iterator[list[ExpiryPlan]]:
    """Yield the plans in groups that hold each partition once.

    A plan whose segments are read back whole is a group of its own: no other partition's lease waits for that.
    """
    group: list[ExpiryPlan] = []
    partitions: set[TopicIdPartition] = set()
    segments = 0
    for plan in plans:
        count = len(plan.segments) + len(plan.superseded)
        is_full = len(group) == GROUP_PARTITIONS or segments + count > GROUP_SEGMENTS
        if group and (is_full or plan.topic_id_partition in partitions or plan.superseded or group[-1].superseded):
            yield group
            group, partitions, segments = [], set(), 0
        group.append(plan)
        partitions.add(plan.topic_id_partition)
        segments += count
    if group:
        yield group
