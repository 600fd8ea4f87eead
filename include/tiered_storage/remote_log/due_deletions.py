"""What a run that deletes would find marked already: it deletes that beside what it ends itself.

Marked it was by earlier runs: what expired and could not be deleted, what copies left that never finished, and topics
that are to go as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from tiered_storage.remote_log.deletion_gate import DeletionGate, DeletionKind
from tiered_storage.remote_log.metadata import RemoteLogMetadataManager
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, SegmentState, TopicIdPartition


@dataclass(frozen=True, slots=True)
class DueDeletion:
    """What is due of one partition: segments that readers could see once, what copies left, and the bytes of both.

    What copies left may yet turn out to be the last copy of its offsets: then it stays (leftover_check.py).
    """

    topic_id_partition: TopicIdPartition
    segments: int
    leftovers: int
    size: int
    as_a_whole: bool


def due_deletions(
    partitions: Iterable[TopicIdPartition],
    metadata: RemoteLogMetadataManager,
    gate: DeletionGate,
    going: Collection[TopicIdPartition],
    leftovers_before: int,
) -> list[DueDeletion]:
    """Return what is due in each of `partitions` as far as it is allowed, those in `going` as a whole.

    Of copies that never finished it is what was marked before the moment `leftovers_before` (ms). Changes nothing.
    """
    found = []
    for partition in partitions:
        may_go = gate.is_allowed(partition, DeletionKind.REMOTE)
        whole = may_go and partition in going
        segments: list[RemoteLogSegmentMetadata] = []
        leftovers: list[RemoteLogSegmentMetadata] = []
        for segment in metadata.list_remote_log_segments(partition):
            is_marked = segment.state is SegmentState.DELETE_SEGMENT_STARTED
            if segment.custom_metadata is not None and may_go and (is_marked or whole):
                segments.append(segment)
            elif segment.custom_metadata is None and is_marked and segment.event_timestamp <= leftovers_before:
                leftovers.append(segment)
        if segments or leftovers or whole:
            size = sum(segment.size for segment in (*segments, *leftovers))
            found.append(DueDeletion(partition, len(segments), len(leftovers), size, whole))
    return found
