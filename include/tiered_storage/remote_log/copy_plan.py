"""What a copy run would do: closed segments that are stable and not yet remote, earliest first.

Planning changes nothing: the plan IS the dry run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tiered_storage.errors import TieredStorageError, UnsupportedTopicError
from tiered_storage.kafka_log.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.coverage import Coverage
from tiered_storage.remote_log.metadata import RemoteLogMetadataManager, Topics
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.segment_source import LocalSegment, PartitionLog, SegmentSource, UnreadablePartition
from tiered_storage.remote_log.selection import EVERYTHING, Selection
from tiered_storage.remote_log.topic_decision import decide, is_wanted
from tiered_storage.settings import Settings


@dataclass(frozen=True, slots=True)
class PlannedSegment:
    """A closed local segment that is due. `end_offset` is inclusive; `lineage` reaches up to it."""

    topic_id_partition: TopicIdPartition
    log_path: Path
    base_offset: int
    end_offset: int
    size: int
    lineage: tuple[EpochEntry, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about a partition that a person should know."""

    partition: str
    message: str


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """The segments that are due, and what was left out and why.

    `refused` are partitions that must not be tiered though somebody asked for it; `unreadable` ones could not be
    looked at. Both make a run fail at its end, after everything else was done.
    """

    segments: tuple[PlannedSegment, ...]
    refused: tuple[Finding, ...] = ()
    unreadable: tuple[Finding, ...] = ()
    notices: tuple[Finding, ...] = ()

    @property
    def size(self) -> int:
        """The bytes of all segments together."""
        return sum(segment.size for segment in self.segments)

    @property
    def partitions(self) -> list[TopicIdPartition]:
        """The partitions with something due, in order."""
        return sorted({segment.topic_id_partition for segment in self.segments})


@dataclass(frozen=True, slots=True)
class CopySelection:
    """What a run asks for: of which partitions, and how much.

    `window_end` (ms) is set for a backfill: only segments whose successor began at or before it, in order (a bad
    timestamp can only hold a backfill back).
    """

    scope: Selection = EVERYTHING
    window_end: int | None = None
    max_segments: int | None = None


def plan_copy(
    source: SegmentSource,
    metadata: RemoteLogMetadataManager,
    topics: Topics,
    settings: Settings,
    selection: CopySelection,
) -> CopyPlan:
    """Look at every partition of `source` and return what is due.

    Raises whatever `source` and `metadata` raise as a whole; what concerns one partition is in the plan.
    """
    if not settings.remote_log_storage_system_enable:
        return CopyPlan((), notices=(Finding("", "nothing is copied: remote.log.storage.system.enable is false"),))
    segments: list[PlannedSegment] = []
    refused: dict[str, Finding] = {}
    unreadable: list[Finding] = []
    notices = [Finding("", notice) for notice in source.notices]
    for log in source.partitions():
        if isinstance(log, UnreadablePartition):
            if not log.is_internal and selection.scope.matches(log.topic, log.number):
                # Of a topic that nobody asked to copy it is worth knowing, but no failure.
                told = unreadable if is_wanted(log.topic, topics, settings) else notices
                told.append(Finding(log.partition, log.reason))
            continue
        topic = log.topic_id_partition.topic
        if log.is_internal or not selection.scope.matches(topic, log.topic_id_partition.partition):
            continue
        try:
            decision = decide(log, topics, settings)
        except UnsupportedTopicError as error:
            refused.setdefault(topic, Finding(topic, str(error)))
            continue
        except TieredStorageError as error:
            unreadable.append(Finding(str(log.topic_id_partition), str(error)))
            continue
        if not decision.copies:
            continue
        due, partition_notices = _due(log, metadata, selection)
        segments.extend(due)
        notices.extend(partition_notices)
    chosen, left = _limit(segments, selection.max_segments)
    if left:
        notices.append(
            Finding("", f"{left} more segments are due; the next runs take them (copy.max.segments.per.run)")
        )
    return CopyPlan(tuple(chosen), tuple(refused.values()), tuple(unreadable), tuple(notices))


def _due(
    log: PartitionLog, metadata: RemoteLogMetadataManager, selection: CopySelection
) -> tuple[list[PlannedSegment], list[Finding]]:
    partition = log.topic_id_partition
    coverage = Coverage.of(metadata.list_remote_log_segments(partition), log.leader_epochs)
    log_start = metadata.log_start_offset(partition) or 0
    due = [
        PlannedSegment(
            partition,
            segment.log_path,
            segment.base_offset,
            end_offset,
            segment.size,
            tuple(entry for entry in log.leader_epochs if entry.start_offset <= end_offset),
        )
        for segment, end_offset in _closed_by(log, selection.window_end)
        if log.log_start_offset <= end_offset < log.stable_offset
        and coverage.lacks(segment.base_offset, end_offset, log_start)
    ]
    notices = []
    if coverage.end_offset is not None and coverage.end_offset + 1 < log.log_start_offset:
        gap = f"offsets {coverage.end_offset + 1} to {log.log_start_offset - 1} went locally and were never copied"
        notices.append(Finding(str(partition), gap))
    return due, notices


def _closed_by(log: PartitionLog, window_end: int | None) -> Iterator[tuple[LocalSegment, int]]:
    """Yield closed segments and their last offsets, up to the first whose successor began after `window_end`."""
    for segment, successor in zip(log.segments, log.segments[1:], strict=False):
        if window_end is not None and (successor.first_timestamp is None or successor.first_timestamp > window_end):
            return
        yield segment, successor.base_offset - 1


def _limit(segments: list[PlannedSegment], limit: int | None) -> tuple[list[PlannedSegment], int]:
    """Cut to `limit` segments, taking the earliest of every partition in turns so that none waits for another."""
    if limit is None or len(segments) <= limit:
        return segments, 0
    ranks = _ranks(segments)
    chosen = sorted(range(len(segments)), key=lambda index: (ranks[index], index))[:limit]
    return [segments[index] for index in sorted(chosen)], len(segments) - limit


def _ranks(segments: Iterable[PlannedSegment]) -> list[int]:
    seen: dict[TopicIdPartition, int] = {}
    ranks = []
    for segment in segments:
        rank = seen.get(segment.topic_id_partition, 0)
        ranks.append(rank)
        seen[segment.topic_id_partition] = rank + 1
    return ranks
