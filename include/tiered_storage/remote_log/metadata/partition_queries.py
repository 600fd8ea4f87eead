"""The document's questions about a partition's remote segments, over every RemoteLogMetadataManager.

    listRemoteSegments(partition, minOffset)   list_remote_segments
    earliestLogOffset(partition)               earliest_log_offset
    registering a partition                    register_partitions

A metadata manager may answer the last two better than by a listing: if it has a method of that name, that is called. No
manager needs one. The document's cleanupLogUntil deletes; it is RemoteLogDeletions.plan_cleanup_until.

Source: KIP-405, drafts up to 85, sections RemoteLogMetadataManager and Handle expired remote segments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tiered_storage.remote_log.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, SegmentState, TopicIdPartition


def list_remote_segments(
    metadata: RemoteLogMetadataManager, partition: TopicIdPartition, min_offset: int = 0
) -> Iterator[RemoteLogSegmentMetadata]:
    """Yield the finished segments with any offset from `min_offset` (inclusive) on, by start offset."""
    for segment in metadata.list_remote_log_segments(partition):
        if segment.state is SegmentState.COPY_SEGMENT_FINISHED and segment.end_offset >= min_offset:
            yield segment


def earliest_log_offset(metadata: RemoteLogMetadataManager, partition: TopicIdPartition) -> int | None:
    """Return the first offset of the remote log, at or above the global log start; None if nothing is remote.

    A manager's own `earliest_log_offset(partition)` answers if it has one.
    """
    own = getattr(metadata, "earliest_log_offset", None)
    if own is not None:
        found: int | None = own(partition)
        return found
    log_start = metadata.log_start_offset(partition) or 0
    first = next(list_remote_segments(metadata, partition, log_start), None)
    return None if first is None else max(log_start, first.start_offset)


def register_partitions(metadata: RemoteLogMetadataManager, partitions: Sequence[TopicIdPartition]) -> None:
    """Tell the manager that this process leads or follows `partitions`, so that it can keep their metadata at hand.

    Calls the manager's own `register_partitions(partitions)`; one without it reads what it is asked for.
    """
    own = getattr(metadata, "register_partitions", None)
    if own is not None:
        own(partitions)
