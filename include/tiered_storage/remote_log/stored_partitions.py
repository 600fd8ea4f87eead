"""What the store alone tells of its partitions: whole segments by their manifests, and what else lies there.

A segment with a commit marker is whole; all that the metadata knew of it is in its bundle. What has none was never
finished, or was being deleted: nobody may read it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby

from tiered_storage.errors import ConfigurationError, RemoteObjectCorruptError, RemoteObjectNotFoundError
from tiered_storage.remote_log.copy_plan import Finding
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, TopicIdPartition
from tiered_storage.remote_log.storage.object_names import ObjectKind, SegmentObjectName, parse_partition_folder
from tiered_storage.remote_log.storage.partition_document import PartitionDocument
from tiered_storage.remote_log.storage.segment_objects import ListedObject, ObjectRemoteStorageManager

READERS = 8
"""Manifests that are read at once: most of the time goes by waiting for the store."""


@dataclass(frozen=True, slots=True)
class StoredPartition:
    """One partition: its whole segments, as finished copies; one name of each that is not; and what is unreadable.

    `document` is what the store keeps beside the segments, None where it never did. Where that cannot be read, nothing
    else is told: nobody could say which segments readers may be given.
    """

    topic_id_partition: TopicIdPartition
    document: PartitionDocument | None
    finished: tuple[RemoteLogSegmentMetadata, ...]
    unfinished: tuple[SegmentObjectName, ...]
    unreadable: tuple[Finding, ...]


def stored_partitions(storage: ObjectRemoteStorageManager) -> Iterator[StoredPartition]:
    """Yield every partition that has a folder in the store, holding one at a time in memory.

    Raises ConfigurationError where a topic id goes by two names: then nobody can say which of them is meant.
    """
    names: dict[tuple[str, str], str] = {}
    with ThreadPoolExecutor(READERS) as readers:
        for partition, listed in groupby(storage.list_objects(), lambda found: parse_partition_folder(found.name)):
            if partition is None:
                continue
            known = names.setdefault((partition.cluster_id, partition.topic_id), partition.topic)
            if known != partition.topic:
                raise ConfigurationError(
                    f"the topic id {partition.topic_id} has folders of two names in the store, {known} and "
                    f"{partition.topic}: move the one that is not the topic's out of the store, and begin again"
                )
            yield _read(partition, listed, storage, readers)


def _read(
    partition: TopicIdPartition,
    listed: Iterable[ListedObject],
    storage: ObjectRemoteStorageManager,
    readers: ThreadPoolExecutor,
) -> StoredPartition:
    try:
        document = storage.partition_documents.read(partition)
    except RemoteObjectCorruptError as error:
        message = (
            f"nothing of it can be known, as its document is broken: {error}; remove that one where an earlier one is "
            "still in the same folder, or put it back from a backup, and begin again"
        )
        return StoredPartition(partition, None, (), (), (Finding(str(partition), message),))
    by_id: dict[str, dict[ObjectKind, SegmentObjectName]] = {}
    for found in listed:
        if found.segment is not None:
            of_segment = by_id.setdefault(found.segment.segment_id.id, {})
            kind = ObjectKind.DATA if found.segment.temporary else found.segment.kind
            of_segment[kind] = found.segment
    marked = [each[ObjectKind.COMMIT_MARKER] for each in by_id.values() if ObjectKind.COMMIT_MARKER in each]
    unfinished = [next(iter(each.values())) for each in by_id.values() if ObjectKind.COMMIT_MARKER not in each]
    finished: list[RemoteLogSegmentMetadata] = []
    unreadable: list[Finding] = []
    for outcome in readers.map(lambda name: _metadata_of(name, storage), marked):
        if isinstance(outcome, Finding):
            unreadable.append(outcome)
        else:
            finished.append(outcome)
    # In the order in which they were copied: of two copies of an offset readers are given the earlier one.
    finished.sort(key=lambda segment: (segment.event_timestamp, segment.start_offset, segment.segment_id.id))
    return StoredPartition(partition, document, tuple(finished), tuple(unfinished), tuple(unreadable))


def _metadata_of(name: SegmentObjectName, storage: ObjectRemoteStorageManager) -> RemoteLogSegmentMetadata | Finding:
    try:
        return storage.read_metadata(name)
    except (RemoteObjectCorruptError, RemoteObjectNotFoundError) as error:
        message = (
            f"segment {name.segment_id.id}, from offset {name.base_offset} on, cannot be known: {error}; put its "
            "objects back from a backup, or move them out of the store, and begin again"
        )
        return Finding(str(name.segment_id.topic_id_partition), message)
