"""Segments that earlier runs marked, and that a deletion run would find.

They expired and could not be deleted, are orphans of unfinished copies, or belong to topics that are being deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, SegmentState, TopicIdPartition
from tiered_storage.remote_log.retention.permission.clock_agreement import GraceTime
from tiered_storage.remote_log.retention.permission.deletion_permissions import DeletionKind, DeletionPermissions


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


def pending_deletions(
    partitions: Iterable[TopicIdPartition],
    context: RemoteLogContext,
    permissions: DeletionPermissions,
    whole_partitions: Collection[TopicIdPartition],
    grace: GraceTime,
) -> list[PendingDeletion]:
    """Return what is due now in each of `partitions` as far as allowed, those in `whole_partitions` as a whole.

    Once-visible segments are due when their `grace` is over, orphans of copies `remote.log.orphan.grace.ms` after their
    mark. Changes nothing.
    """
    now, orphan_grace_ms = context.clock(), context.settings.remote_log_orphan_grace_ms
    found = []
    for partition in partitions:
        is_allowed = permissions.is_allowed(partition, DeletionKind.REMOTE)
        whole = is_allowed and partition in whole_partitions
        segments: list[RemoteLogSegmentMetadata] = []
        leftovers: list[RemoteLogSegmentMetadata] = []
        waiting: dict[RemoteLogSegmentMetadata, int] = {}
        for segment in context.segments.list_remote_log_segments(partition):
            is_marked = segment.state is SegmentState.DELETE_SEGMENT_STARTED
            if segment.custom_metadata is not None and is_allowed and (is_marked or whole):
                due_at = grace.over_at(segment.event_timestamp) if is_marked else now + grace.ms
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
