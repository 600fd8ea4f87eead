"""Which marked segments are due: their objects may be deleted now. A dry run shows them, and a deletion run asks.

They expired, are orphans of unfinished copies, or belong to topics that are being deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.coverage import Coverage
from tiered_storage.remote_log.lineage import on_lineage, whole_lineage
from tiered_storage.remote_log.model import (
    PartitionDeleteState,
    PartitionState,
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)
from tiered_storage.remote_log.retention.orphan_check import listed_segments
from tiered_storage.remote_log.retention.permission.clock_agreement import ClockAgreement, GraceTime
from tiered_storage.remote_log.retention.permission.deletion_permissions import DeletionKind, DeletionPermissions
from tiered_storage.remote_log.storage.documents.object_names import partition_folder
from tiered_storage.remote_log.storage.listable_storage import as_listable

_DELETED_AS_A_WHOLE = {PartitionDeleteState.MARKED, PartitionDeleteState.STARTED}


@dataclass(frozen=True, slots=True)
class PendingDeletion:
    """What is due of one partition: once-visible segments, orphans of copies, and the bytes of both.

    An orphan may turn out to be the last copy of its offsets: then it stays (orphan_check.py). `waiting` segments of
    `waiting_size` bytes are marked, or are about to be, and wait for their grace time: the last of them until
    `all_due_at` (ms).
    """

    topic_id_partition: TopicIdPartition
    segments: int
    leftovers: int
    size: int
    as_a_whole: bool
    waiting: int = 0
    waiting_size: int = 0
    all_due_at: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionWork:
    """What a deletion run has to do in a partition: `segments` that were visible are due, or something is to find out.

    A partition that is deleted as a whole, or has unfinished copies, is handled alone. `is_forbidden` if it was to be
    deleted as a whole, and the topic's rights no longer allow it.
    """

    partition: TopicIdPartition
    segments: int
    is_whole: bool
    is_forbidden: bool
    is_alone: bool
    is_marked: bool

    @property
    def is_anything(self) -> bool:
        """Whether there is anything to do."""
        return self.is_alone or self.is_marked


@dataclass(frozen=True, slots=True)
class DueSegments:
    """Decides which marked segments are due, by one reading of the grace time.

    - A copy that never finished stays for `remote.log.orphan.grace.ms` after it was marked, as its worker may still be
      writing. It stays for longer if it may be the last copy of its offsets (OrphanCheck).
    - Segments that readers could see stay for `grace` after they were marked, for an undelete.
    """

    context: RemoteLogContext
    permissions: DeletionPermissions
    clocks: ClockAgreement
    grace: GraceTime
    whole_partitions: Collection[TopicIdPartition]
    """The partitions that are to be deleted as a whole."""

    @classmethod
    def of(
        cls,
        context: RemoteLogContext,
        permissions: DeletionPermissions,
        clocks: ClockAgreement,
        states: Mapping[TopicIdPartition, PartitionState],
    ) -> Self:
        """Return those of partitions with `states`, by the grace time as it counts now."""
        grace = clocks.grace(context.settings.remote_log_deletion_grace_ms)
        whole = {partition for partition, state in states.items() if state.delete_state in _DELETED_AS_A_WHOLE}
        return cls(context, permissions, clocks, grace, whole)

    def pending(self, partitions: Iterable[TopicIdPartition]) -> list[PendingDeletion]:
        """Return what is due now in each of `partitions` as far as allowed. Changes nothing."""
        now, orphan_grace_ms = self.context.clock(), self.context.settings.remote_log_orphan_grace_ms
        found = []
        for partition in partitions:
            is_allowed = self.permissions.is_allowed(partition, DeletionKind.REMOTE)
            whole = is_allowed and partition in self.whole_partitions
            segments: list[RemoteLogSegmentMetadata] = []
            leftovers: list[RemoteLogSegmentMetadata] = []
            waiting: dict[RemoteLogSegmentMetadata, int] = {}
            for segment in self.context.segments.list_remote_log_segments(partition):
                is_marked = segment.state is SegmentState.DELETE_SEGMENT_STARTED
                if segment.custom_metadata is not None and is_allowed and (is_marked or whole):
                    due_at = self.grace.over_at(segment.event_timestamp) if is_marked else now + self.grace.ms
                    if due_at <= now:
                        segments.append(segment)
                    else:
                        waiting[segment] = due_at
                elif segment.custom_metadata is None and is_marked and segment.event_timestamp + orphan_grace_ms <= now:
                    leftovers.append(segment)
            if segments or leftovers or whole or waiting:
                size = sum(segment.size for segment in (*segments, *leftovers))
                waiting_size = sum(segment.size for segment in waiting)
                all_due_at = max(waiting.values(), default=None)
                due = (len(segments), len(leftovers), size, whole)
                found.append(PendingDeletion(partition, *due, len(waiting), waiting_size, all_due_at))
        return found

    def has_work(self, partition: TopicIdPartition) -> bool:
        """Return whether anything of `partition` is being deleted, is marked, or is an unfinished copy."""
        return partition in self.whole_partitions or self.work(partition).is_anything

    def work(self, partition: TopicIdPartition) -> PartitionWork:
        """Return what a deletion run has to do in `partition`."""
        unfinished = marked = segments = 0
        for segment in self.context.segments.list_remote_log_segments(partition):
            if segment.is_marked:
                segments += self._is_over(segment)
            elif segment.state is not SegmentState.COPY_SEGMENT_FINISHED:
                unfinished += 1
                marked += segment.state is SegmentState.DELETE_SEGMENT_STARTED
        marked += segments
        is_requested = partition in self.whole_partitions
        is_whole = is_requested and self.permissions.is_allowed(partition, DeletionKind.REMOTE)
        return PartitionWork(
            partition,
            segments,
            is_whole=is_whole,
            is_forbidden=is_requested and not is_whole,
            is_alone=is_whole or unfinished > 0,
            is_marked=marked > 0,
        )

    def of_partition(
        self, partition: TopicIdPartition
    ) -> tuple[list[RemoteLogSegmentMetadata], list[RemoteLogSegmentMetadata]]:
        """Return what is due of unfinished copies, and of once-visible segments."""
        unfinished, finished = [], []
        for segment in self.context.segments.list_remote_log_segments(partition):
            if segment.state is not SegmentState.DELETE_SEGMENT_STARTED:
                continue
            if segment.custom_metadata is not None:
                finished += [segment] if self._is_over(segment) else []
            elif segment.event_timestamp <= self.clocks.clock() - self.context.settings.remote_log_orphan_grace_ms:
                unfinished.append(segment)
        return unfinished, finished

    def _is_over(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Return whether the grace time of a marked segment is over; True for a mark in the future."""
        now, marked_at = self.clocks.clock(), segment.event_timestamp
        return self.grace.over_at(marked_at) <= now or marked_at > now + self.clocks.max_skew_ms

    def only_copies(self, partition: TopicIdPartition, due: Sequence[RemoteLogSegmentMetadata]) -> dict[str, str]:
        """Return, by segment id, why second copies among `due` stay: nothing else in the store holds their offsets.

        Only finished segments that the store lists count. The copies were marked a grace time ago because others held
        their offsets. If a later leader has contradicted one since, the others of its own leaders count, which hold the
        same records. If the topic is no longer tiered, all its remote data are deleted, whatever else holds them.
        """
        log_start = self.context.segments.log_start_offset(partition) or 0
        second = [one for one in due if one.end_offset >= log_start]
        is_ended = (
            partition in self.whole_partitions or not self.permissions.decided_topic(partition).remote_storage_enable
        )
        storage = as_listable(self.context.storage)
        if not second or is_ended or storage is None:
            return {}
        sizes = {listed.name: listed.size for listed in storage.list_objects(partition_folder(partition))}
        there = listed_segments(partition, self.context.segments, storage, sizes)
        lineage = self.context.segments.partition_state(partition).lineage
        coverage = Coverage.of(there, lineage)
        whole = whole_lineage(there, lineage)

        def is_held(one: RemoteLogSegmentMetadata) -> bool:
            is_contradicted = bool(one.leader_epochs) and not on_lineage(one, whole)
            of_its_leaders = Coverage.of(there, one.leader_epochs) if is_contradicted else coverage
            return of_its_leaders.holding(max(one.start_offset, log_start), one.end_offset) is not None

        return {one.segment_id.id: _only_copy(one) for one in second if not is_held(one)}


def _only_copy(segment: RemoteLogSegmentMetadata) -> str:
    return (
        f"it was marked because other segments hold offsets {segment.start_offset} to {segment.end_offset}, but the "
        "store no longer has all of these: it stays, as it may be the only copy. 'tiered-storage audit' names what is "
        "missing: restore that from a backup, or run 'tiered-storage repair'; then the next run deletes this segment"
    )
