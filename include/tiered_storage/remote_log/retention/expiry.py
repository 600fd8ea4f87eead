"""Total retention: the oldest offsets expire, in the remote tier and so for every reader.

KIP-405: retention.ms and retention.bytes count both tiers. The global log start moves first, so that readers no longer
see what expires; then each segment below it is marked DELETE_SEGMENT_STARTED. object_deletion.py deletes the marked
segments.

Offsets that were never copied, because the store was away for longer than total retention, expire too: the global log
start moves past them, they are no longer copied, and local retention deletes them. If the remote tier holds offsets
twice, the copy that readers do not get is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

from pydantic import AliasChoices, Field

from tiered_storage.errors import CorruptLogError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.coverage import Coverage, finished
from tiered_storage.remote_log.lineage import on_lineage, trusted_lineage, whole_lineage
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from tiered_storage.remote_log.model import Finding, RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition
from tiered_storage.remote_log.source.opening import open_segment
from tiered_storage.remote_log.source.partition_log import LocalSegment, PartitionLog
from tiered_storage.remote_log.source.segment_source import OpenSegment, is_older_than
from tiered_storage.settings.topics import TopicSettings


class Reason(StrEnum):
    """Why something expires."""

    RETENTION = "retention"
    RECORDS = "records"
    """A person deleted the records before an offset."""
    DISABLED = "disabled"
    """The topic is no longer tiered, and its remote data are to be deleted."""


@dataclass(frozen=True, slots=True)
class ExpiryPlan:
    """The new log start of a partition at `now` (ms), and the remote segments that lie below it.

    `superseded` are segments whose every offset is held by others, those of `held_by`: they are deleted wherever our
    log start is. Offsets that were never copied expire too: local retention deletes them.
    """

    topic_id_partition: TopicIdPartition
    new_log_start: int
    now: int
    segments: tuple[RemoteLogSegmentMetadata, ...]
    reason: Reason = Reason.RETENTION
    superseded: tuple[RemoteLogSegmentMetadata, ...] = ()
    held_by: Annotated[
        tuple[RemoteLogSegmentMetadata, ...], Field(validation_alias=AliasChoices("held_by", "read_instead"))
    ] = ()
    """Saved plans of earlier releases call it read_instead."""
    never_copied_segments: int = 0
    """Local segments with offsets below the new log start that are nowhere else."""
    never_copied_bytes: int = 0

    @property
    def count(self) -> int:
        """The number of segments, including those that were never copied."""
        return len(self.segments) + len(self.superseded) + self.never_copied_segments

    @property
    def size(self) -> int:
        """The size of the remote segments in bytes."""
        return sum(segment.size for segment in (*self.segments, *self.superseded))

    def within(self, current: ExpiryPlan) -> ExpiryPlan:
        """Return what this plan and a `current` one have in common: the lower log start, the segments of both."""
        still_due = {segment.segment_id for segment in (*current.segments, *current.superseded)}
        new_log_start = min(self.new_log_start, current.new_log_start)
        expired = [segment for segment in self.segments if segment.segment_id in still_due]
        if self.reason is not Reason.DISABLED:
            expired = [segment for segment in expired if segment.end_offset < new_log_start]
        return replace(
            current,
            new_log_start=new_log_start,
            segments=tuple(expired),
            superseded=tuple(segment for segment in self.superseded if segment.segment_id in still_due),
        )


@dataclass(frozen=True, slots=True)
class ExpiryRun:
    """The work of one expiry run, and the partitions that it could not examine."""

    plans: tuple[ExpiryPlan, ...]
    left_alone: tuple[Finding, ...] = ()


def plan_expiry(
    partition: TopicIdPartition,
    metadata: RemoteLogMetadataManager,
    settings: TopicSettings,
    now: int,
    local: PartitionLog | None,
    *,
    grace_ms: int = 0,
    max_segments: int | None = None,
    is_older: Callable[[OpenSegment, int], bool] = is_older_than,
) -> ExpiryPlan | None:
    """Return what of `partition` is past total retention at `now` (ms), oldest first; None if nothing is.

    `max_segments` limits the plan: the global log start moves only past the oldest ones. Other segments below it, such
    as copies of deposed leaders, follow in the next plan.

    `local` (None: out of reach) adds the bytes that are not remote yet, and the lineage. Unfinished copies never count;
    an offset with several holders counts once. A segment without timestamps does not age. Local-only segments expire if
    the topic is tiered, in order, up to the stable end. A second copy is deleted once it is older than `grace_ms`, but
    not if it is unknown whether both copies are of one incarnation of the topic: without the local log or its
    partition.metadata. `is_older` returns whether a local-only segment is older than a moment. Raises
    LineageContradictedError, CorruptRecordError and OSError.
    """
    segments = list(metadata.list_remote_log_segments(partition))
    state = metadata.partition_state(partition)
    lineage = trusted_lineage(state.lineage, local)
    coverage = Coverage.of(segments, lineage)
    log_start = state.log_start_offset or 0
    only_local = [] if local is None else _only_local(coverage, local, log_start)
    start = _start_after_retention(coverage, settings, now, local, only_local, max_segments, is_older)
    new_log_start = max(log_start, start)
    ending = [retained for retained in only_local if retained.end_offset < start]
    never_copied = len({retained.holder for retained in ending})
    expired = ending_below(segments, new_log_start)
    superseded: tuple[RemoteLogSegmentMetadata, ...] = ()
    holders: tuple[RemoteLogSegmentMetadata, ...] = ()
    if local is not None and not local.topic_id_is_derived:
        superseded, holders = _superseded(segments, coverage, lineage, new_log_start, now - grace_ms)
    if max_segments is not None:
        room = max_segments - never_copied
        expired = expired[:room]
        superseded = superseded[: room - len(expired)]
    if not expired and not superseded and new_log_start <= log_start:
        return None
    return ExpiryPlan(
        partition,
        new_log_start,
        now,
        expired,
        superseded=superseded,
        held_by=holders,
        never_copied_segments=never_copied,
        never_copied_bytes=sum(retained.size for retained in ending),
    )


def ending_below(segments: Sequence[RemoteLogSegmentMetadata], log_start: int) -> tuple[RemoteLogSegmentMetadata, ...]:
    """Return the finished segments that lie wholly below `log_start`."""
    return tuple(segment for segment in finished(segments) if segment.end_offset < log_start)


def _superseded(
    segments: Sequence[RemoteLogSegmentMetadata],
    coverage: Coverage,
    lineage: Sequence[EpochEntry],
    log_start: int,
    finished_before: int,
) -> tuple[tuple[RemoteLogSegmentMetadata, ...], tuple[RemoteLogSegmentMetadata, ...]]:
    """Return segments on the lineage that readers do not get, and those that hold all their offsets instead.

    Segments of deposed leaders wait until their offsets expire.
    """
    whole = whole_lineage(segments, lineage)
    read = {covered.segment.segment_id for covered in coverage.ranges}
    superseded: list[RemoteLogSegmentMetadata] = []
    holders: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata] = {}
    for segment in finished(segments):
        if segment.segment_id in read or segment.end_offset < log_start or segment.event_timestamp >= finished_before:
            continue
        held = coverage.holding(segment.start_offset, segment.end_offset)
        if held is not None and on_lineage(segment, whole):
            superseded.append(segment)
            holders.update({covered.segment.segment_id: covered.segment for covered in held})
    return tuple(superseded), tuple(holders.values())


@dataclass(frozen=True, slots=True)
class _RetainedRange:
    """Offsets (inclusive) that expire together, the bytes that count, and what holds them.

    Ranges never overlap: of several holders one counts.
    """

    start_offset: int
    end_offset: int
    size: int
    holder: RemoteLogSegmentMetadata | LocalSegment


def _start_after_retention(
    coverage: Coverage,
    settings: TopicSettings,
    now: int,
    local: PartitionLog | None,
    only_local: Sequence[_RetainedRange],
    max_ranges: int | None,
    is_older: Callable[[OpenSegment, int], bool],
) -> int:
    ranges = sorted((*_remote(coverage), *only_local), key=lambda retained: retained.start_offset)
    size = sum(retained.size for retained in ranges) + _active_size(local, coverage)
    excess = size - settings.retention_bytes if settings.retention_bytes >= 0 else 0
    start = 0
    for retained in ranges[:max_ranges]:
        if isinstance(retained.holder, LocalSegment) and not _may_expire(retained.holder, settings, local):
            break
        over_size = excess > 0 and excess >= retained.size
        if not over_size and not _is_past(retained.holder, settings.retention_ms, now, is_older):
            break
        excess -= retained.size
        start = retained.end_offset + 1
    return start


def _remote(coverage: Coverage) -> list[_RetainedRange]:
    """Return the remote ranges, each with its share above the one before."""
    ranges = []
    reached = 0
    for covered in coverage.ranges:
        start = max(reached, covered.start_offset)
        ranges.append(_RetainedRange(start, covered.end_offset, covered.size_from(start), covered.segment))
        reached = covered.end_offset + 1
    return ranges


def _only_local(coverage: Coverage, local: PartitionLog, log_start: int) -> list[_RetainedRange]:
    """Return the local-only ranges of the closed local segments."""
    return [
        _RetainedRange(
            start, end, segment.size * (end - start + 1) // (segment.end_offset - segment.base_offset + 1), segment
        )
        for segment in local.segments
        if segment.end_offset is not None and coverage.lacks(segment.base_offset, segment.end_offset, log_start)
        for start, end in coverage.missing(segment.base_offset, segment.end_offset)
    ]


def _active_size(local: PartitionLog | None, coverage: Coverage) -> int:
    """Return the bytes of the active segment that are not remote: another leader may have closed its segment earlier.

    An unreadable segment does not count, so that nothing expires too early.
    """
    remote_end = -1 if coverage.end_offset is None else coverage.end_offset
    size = 0
    for segment in () if local is None else local.segments:
        if not segment.is_active:
            continue
        if segment.base_offset > remote_end:
            size += segment.size
            continue
        with suppress(CorruptLogError, OSError):
            found = open_segment(segment.location).read(remote_end + 1)
            size += 0 if found is None else max(0, segment.size - found[1])
    return size


def _may_expire(segment: LocalSegment, settings: TopicSettings, local: PartitionLog | None) -> bool:
    """Return whether local-only offsets may expire: they are stable, and the topic is tiered."""
    if local is None or segment.end_offset is None:
        return False
    return segment.end_offset < local.last_stable_offset and settings.remote_storage_enable


def _is_past(
    holder: RemoteLogSegmentMetadata | LocalSegment,
    limit_ms: int,
    now: int,
    is_older: Callable[[OpenSegment, int], bool],
) -> bool:
    if limit_ms < 0:
        return False
    if isinstance(holder, LocalSegment):
        return is_older(open_segment(holder.location), now - limit_ms)
    return 0 <= holder.max_timestamp < now - limit_ms
