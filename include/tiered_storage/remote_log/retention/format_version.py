"""Nothing ends its life of which a later release wrote the commit marker, the bundle of indexes or the manifest.

Such a segment is sound, and what its objects say may mean something else than we know: so they are looked at before it
is marked, for what readers no longer see does not come back. Two small reads a segment, some at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from tiered_storage.errors import RemoteStorageError
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, TopicIdPartition
from tiered_storage.remote_log.storage.remote_storage_manager import RemoteStorageManager
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager

READS_AT_ONCE = 8


def ensure_known_versions(segments: Iterable[RemoteLogSegmentMetadata], storage: RemoteStorageManager) -> None:
    """Raise LaterVersionError where a later release wrote one of `segments`, and what the store raises.

    What is missing or broken is passed over. A user's own RemoteStorageManager answers for its formats itself.
    """
    for _, error in _unknown(tuple(segments), storage):
        raise error


def unknown_versions(
    partitions: Mapping[TopicIdPartition, Sequence[RemoteLogSegmentMetadata]], storage: RemoteStorageManager
) -> Mapping[TopicIdPartition, RemoteStorageError]:
    """Return the first error of each partition with one, among those that `ensure_known_versions` would raise."""
    asked = [segment for segments in partitions.values() for segment in segments]
    found: dict[TopicIdPartition, RemoteStorageError] = {}
    for segment, error in _unknown(asked, storage):
        found.setdefault(segment.topic_id_partition, error)
    return found


def _unknown(
    asked: Sequence[RemoteLogSegmentMetadata], storage: RemoteStorageManager
) -> Iterator[tuple[RemoteLogSegmentMetadata, RemoteStorageError]]:
    """Yield the segments with an error, in order; who asks for no more of them cancels what has not begun."""
    if not isinstance(storage, ObjectRemoteStorageManager) or not asked:
        return

    def look(segment: RemoteLogSegmentMetadata) -> RemoteStorageError | None:
        try:
            return storage.later_version(segment)
        except RemoteStorageError as error:
            return error

    with ThreadPoolExecutor(min(READS_AT_ONCE, len(asked))) as readers:
        try:
            for segment, error in zip(asked, readers.map(look, asked), strict=True):
                if error is not None:
                    yield segment, error
        finally:
            readers.shutdown(wait=False, cancel_futures=True)


def ensure_known_partition(
    partition: TopicIdPartition, metadata: RemoteLogMetadataManager, storage: RemoteStorageManager
) -> None:
    """Raise LaterVersionError where a later release wrote a segment of `partition`, in whichever state it is."""
    ensure_known_versions(metadata.list_remote_log_segments(partition), storage)
