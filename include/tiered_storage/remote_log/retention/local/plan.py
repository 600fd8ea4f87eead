"""Plan local retention: the closed local segments that are past their limit and safe in the remote tier.

KIP-405: local.retention.ms and local.retention.bytes. A segment is deleted, oldest first, only if finished remote
segments on the lineage hold every offset of it and the store still has their objects. Segments below the global log
start may be the last copy. They are deleted without a remote copy if remote deletion is allowed too, and if their bytes
are those of deleted remote segments, or total retention expires them by the local log alone (expired_segments.py).
Nothing is deleted unless local deletion was allowed for the topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.coverage import Coverage
from tiered_storage.remote_log.lineage import trusted_lineage
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from tiered_storage.remote_log.model import Finding, RemoteLogSegmentMetadata, TopicIdPartition
from tiered_storage.remote_log.progress import Amount
from tiered_storage.remote_log.retention.local.expired_segments import (
    ExpiredSegments,
    TotalRetention,
    why_not_allowed,
    why_together,
    why_waiting,
)
from tiered_storage.remote_log.retention.permission.clock_agreement import NO_GRACE, GraceTime
from tiered_storage.remote_log.source.partition_log import LocalSegment, PartitionLog, of_same_offsets
from tiered_storage.settings.topics import TopicSettings

DELETED_AS_A_WHOLE: Final = (
    "everything remote of this incarnation of the topic is deleted, or will be: what is local stays"
)
"""Why nothing local is deleted then."""


@dataclass(frozen=True, slots=True)
class LocalRetentionPlan:
    """The local segments of one partition that may be deleted, oldest first, and the remote ones that hold them.

    `held_back` is why a segment past its limit stays; if it `waits`, a later run deletes it without any action.
    `lineage` is the full lineage: it must be recorded before the local log forgets it. `now` (ms) is the time of the
    plan, `total` what total retention had expired by then. `notes` prevent nothing; they inform the user.
    """

    topic_id_partition: TopicIdPartition
    segments: tuple[LocalSegment, ...]
    new_local_start: int
    held_by: tuple[RemoteLogSegmentMetadata, ...]
    held_back: str | None = None
    lineage: tuple[EpochEntry, ...] = ()
    now: int = 0
    total: TotalRetention = field(default_factory=TotalRetention)
    waits: bool = False
    notes: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """The size of the segments in bytes."""
        return sum(segment.size for segment in self.segments)

    @property
    def is_held_whole(self) -> bool:
        """Whether the remote segments hold all of it, including what lies below the global log start."""
        return all(segment.base_offset >= self.held_from for segment in self.segments)

    @property
    def held_from(self) -> int:
        """The offset from which on the remote segments hold all of it."""
        return min((segment.start_offset for segment in self.held_by), default=self.new_local_start)

    @property
    def looked_at(self) -> Amount:
        """What is checked before a deletion: all remote and local segments concerned."""
        return Amount.of(self.held_by) + Amount(len(self.segments), self.size)

    def start_in(self, current: LocalRetentionPlan) -> int:
        """Return the new log start if a `current` plan also applies: what only one of them lists stays.

        `held_by` of this plan was checked; what only other remote segments hold now stays too, and so do segments below
        it if total retention expires less now.
        """
        looked_at = {segment.segment_id for segment in self.held_by}
        start = self.segments[0].base_offset if self.segments else self.new_local_start
        sure_from = start if self.total.expires_no_more_than(current.total) else self.held_from
        for planned, due in zip(self.segments, current.segments, strict=False):
            end = planned.end_offset
            if planned != due or end is None or planned.base_offset < sure_from:
                break
            holders = [one for one in current.held_by if one.start_offset <= end and one.end_offset >= due.base_offset]
            if not all(holder.segment_id in looked_at for holder in holders):
                break
            start = end + 1
        return start

    def steps(self, step_bytes: int) -> Iterator[LocalRetentionPlan]:
        """Yield the plan in steps, each to be executed after the one before it; see trim_steps."""
        for chosen, held_by in trim_steps(self.segments, self.held_by, step_bytes, self.held_from):
            end = chosen[-1].end_offset
            start = self.new_local_start if chosen[-1] is self.segments[-1] or end is None else end + 1
            yield replace(self, segments=chosen, held_by=held_by, new_local_start=start)

    def up_to(self, new_local_start: int) -> LocalRetentionPlan:
        """Return the part of the plan up to a log start of `new_local_start`."""
        chosen = tuple(one for one in self.segments if one.end_offset is not None and one.end_offset < new_local_start)
        return replace(self, segments=chosen, new_local_start=new_local_start)


@dataclass(frozen=True, slots=True)
class LocalRetentionRun:
    """The work of one run of local retention, and the partitions that it could not examine."""

    plans: tuple[LocalRetentionPlan, ...]
    left_alone: tuple[Finding, ...] = ()


def amount_to_look_at(plans: Iterable[LocalRetentionPlan]) -> Amount:
    """Return what is checked before anything of `plans` is deleted."""
    return sum((plan.looked_at for plan in plans if plan.segments), Amount())


def plan_local_retention(
    log: PartitionLog,
    metadata: RemoteLogMetadataManager,
    settings: TopicSettings,
    now: int,
    max_segments: int | None = None,
    settled_before: int | None = None,
    grace: GraceTime = NO_GRACE,
) -> LocalRetentionPlan:
    """Return the closed segments of `log` that are past local retention at `now` (ms) and safe to delete.

    `max_segments` limits them to the oldest ones.

    `held_back` is why a segment past its limit in bytes, or below the global log start, stays. The age of a segment
    that is not remote is unknown. Where the global log start moved later than `settled_before` (ms; None: ever), a
    person may still undelete what fell below it until its `grace` time is over: it counts as if it had not moved.
    Nothing is deleted if all remote data of the partition are being deleted. Raises LineageContradictedError.
    """
    partition = log.topic_id_partition
    state = metadata.partition_state(partition)
    lineage = trusted_lineage(state.lineage, log)
    if state.delete_state is not None:
        return LocalRetentionPlan(
            partition,
            (),
            log.log_start_offset,
            (),
            DELETED_AS_A_WHOLE,
            lineage,
            now,
        )
    coverage = Coverage.of(metadata.list_remote_log_segments(partition), lineage)
    log_start = state.log_start_offset or 0
    # Expired segments may be the last copy: they need the right to delete remotely.
    settled = log_start if settled_before is None else state.log_start_before(settled_before + 1)
    needed_from = settled if settings.remote_deletion_allowed else 0
    held_from = min([needed_from, *(each.start_offset for each in islice(coverage.ranges_from(needed_from), 1))])
    expired = ExpiredSegments(log, metadata, held_from, TotalRetention.of(log, settings, now, held_from))
    excess = _excess(log, settings.local_retention_bytes)
    chosen: list[LocalSegment] = []
    held_by: dict[str, RemoteLogSegmentMetadata] = {}
    held_back, waits = None, False
    for segment in log.closed_segments:
        if len(chosen) == max_segments:
            break
        end_offset = segment.base_offset if segment.end_offset is None else segment.end_offset
        over_size = excess >= segment.size > 0
        is_expired = end_offset < needed_from
        holders = [] if end_offset < held_from else _holders(coverage, max(segment.base_offset, held_from), end_offset)
        if holders is None:
            below = segment.base_offset, min(end_offset, log_start - 1)
            if needed_from < log_start and _is_missing(coverage, max(segment.base_offset, needed_from), below[1]):
                waits = settings.remote_deletion_allowed
                until = grace.over_at(state.log_start_passed(below[1]))
                held_back = why_waiting(below, until) if waits else why_not_allowed(below)
            elif over_size:
                held_back = f"offsets {segment.base_offset} to {end_offset} are past local retention but not yet remote"
            break
        if not is_expired and not over_size and not is_past(holders, settings.local_retention_ms, now):
            break
        if log.topic_id_is_derived and not any(of_same_offsets(holder, segment) for holder in holders):
            place = "lie below the global log start" if is_expired else "are remote in segments with other boundaries"
            held_back = (
                f"offsets {segment.base_offset} to {end_offset} {place}, but without partition.metadata it is unknown "
                "whether they are of the same topic"
            )
            break
        held_back = expired.why_kept(segment, end_offset)
        if held_back is not None:
            break
        excess -= segment.size
        chosen.append(segment)
        held_by.update({holder.segment_id.id: holder for holder in holders})
    due, chosen = chosen, expired.comparable(chosen)
    if held_back is None and len(chosen) < len(due):
        waits = len(due) != max_segments
        if waits or not chosen:
            held_back = why_together(due[len(chosen) :], None if waits else max_segments)
    new_start = (chosen[-1].end_offset or 0) + 1 if chosen else log.log_start_offset
    return LocalRetentionPlan(
        partition, tuple(chosen), new_start, tuple(held_by.values()), held_back, lineage, now, expired.total, waits
    )


def _holders(coverage: Coverage, start_offset: int, end_offset: int) -> list[RemoteLogSegmentMetadata] | None:
    held = coverage.holding(start_offset, end_offset)
    return None if held is None else [covered.segment for covered in held]


def _is_missing(coverage: Coverage, start_offset: int, end_offset: int) -> bool:
    return start_offset <= end_offset and coverage.holding(start_offset, end_offset) is None


def _excess(log: PartitionLog, limit: int) -> int:
    """Return how many bytes the local log has beyond `limit`; negative: no limit."""
    return sum(segment.size for segment in log.segments) - limit if limit >= 0 else 0


def is_past(holders: Sequence[RemoteLogSegmentMetadata], limit_ms: int, now: int) -> bool:
    """Return whether the largest record timestamp is over `limit_ms` old; False without timestamps."""
    largest = max(holder.max_timestamp for holder in holders)
    return limit_ms >= 0 and largest >= 0 and largest + limit_ms < now


STEP_BYTES = 4 << 30
"""How much is read back before a step, or what one local segment needs: a minute or two with most stores."""


def trim_steps(
    segments: Sequence[LocalSegment],
    held_by: Sequence[RemoteLogSegmentMetadata],
    step_bytes: int,
    together_below: int = 0,
) -> Iterator[tuple[tuple[LocalSegment, ...], tuple[RemoteLogSegmentMetadata, ...]]]:
    """Yield the local segments of each step, in order, and those of `held_by` that hold any offset of them.

    A step has as many as remote segments of `step_bytes` together hold, and at least one. All that begin below the
    offset `together_below` are in the first step.
    """
    ordered = sorted(held_by, key=lambda each: each.start_offset)
    step: list[LocalSegment] = []
    holders: dict[str, RemoteLogSegmentMetadata] = {}
    first = 0
    for local in segments:
        while first < len(ordered) and ordered[first].end_offset < local.base_offset:
            first += 1
        needed = {one.segment_id.id: one for one in _holding(local, ordered, first)}
        is_full = sum(one.size for one in (holders | needed).values()) > step_bytes
        if step and is_full and local.base_offset >= together_below:
            yield tuple(step), tuple(holders.values())
            step, holders = [], {}
        step.append(local)
        holders |= needed
    if step:
        yield tuple(step), tuple(holders.values())


def _holding(
    local: LocalSegment, ordered: Sequence[RemoteLogSegmentMetadata], first: int
) -> Iterator[RemoteLogSegmentMetadata]:
    end = local.base_offset if local.end_offset is None else local.end_offset
    for at in range(first, len(ordered)):
        if ordered[at].start_offset > end:
            return
        if ordered[at].end_offset >= local.base_offset:
            yield ordered[at]
