"""The audit: holds the store against the metadata and changes nothing.

Quick: every object that the metadata refer to is there with its size, nothing else is, and no offset is missing or held
twice. Deep: every byte is read back and every checksum compared. Copies and deletions under way are no anomalies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from tiered_storage.clock import Clock
from tiered_storage.errors import RemoteObjectCorruptError, RemoteObjectNotFoundError
from tiered_storage.remote_log.coverage import Coverage, finished
from tiered_storage.remote_log.metadata import RemoteLogMetadataManager
from tiered_storage.remote_log.model import PartitionState, RemoteLogSegmentMetadata, TopicIdPartition
from tiered_storage.remote_log.segment_source import epochs_within
from tiered_storage.remote_log.selection import Selection
from tiered_storage.remote_log.storage.object_names import STORE_IDENTITY
from tiered_storage.remote_log.storage.segment_objects import ListedObject, ObjectRemoteStorageManager


class AnomalyKind(StrEnum):
    """What can be wrong, in the words of the field."""

    MISSING_OBJECT = "missing object"
    UNREFERENCED_OBJECT = "unreferenced object"
    GAP = "gap"
    OVERLAP = "overlap"
    WRONG_SIZE = "wrong size"
    WRONG_CHECKSUM = "wrong checksum"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One thing that is wrong: with which object or partition, and how."""

    kind: AnomalyKind
    what: str
    message: str


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What was looked at (finished segments, objects, bytes of segments) and what was found."""

    segments: int
    objects: int
    size: int
    anomalies: tuple[Anomaly, ...]
    notices: tuple[str, ...]


def audit_remote_log(
    metadata: RemoteLogMetadataManager,
    storage: ObjectRemoteStorageManager,
    selection: Selection,
    clock: Clock,
    *,
    grace_ms: int,
    deep: bool = False,
) -> AuditReport:
    """Audit the selected partitions; unreferenced objects are looked for in the same ones, and where no partition is.

    An unreferenced object counts once it is older than `grace_ms`. Raises what store and metadata raise as a whole.
    """
    # The store first: whatever is seen there had its metadata written before it.
    listed = {found.name: found for found in storage.list_objects() if _selected(found, selection)}
    anomalies: list[Anomaly] = []
    notices: list[str] = []
    referenced: set[str] = set()
    count = size = 0
    for partition in metadata.list_partitions():
        if not selection.matches(partition.topic, partition.partition):
            continue
        segments = list(metadata.list_remote_log_segments(partition))
        referenced.update(segment.segment_id.id for segment in segments)
        for segment in finished(segments):
            count += 1
            size += segment.size
            wrong = list(_check_objects(segment, listed, storage, deep=deep))
            # Asked for once more: it may have been marked and deleted since.
            if wrong and _is_still_finished(segment, metadata):
                anomalies.extend(wrong)
        anomalies.extend(_check_offsets(partition, segments, metadata.partition_state(partition)))
    unreferenced = [found for found in listed.values() if not _is_referenced(found, referenced)]
    old = [found for found in unreferenced if found.last_modified + grace_ms < clock()]
    # Asked for once more: a deletion may have ended since the listing was made.
    anomalies.extend(_unreferenced(found for found in old if _is_there(found.name, storage)))
    if len(old) < len(unreferenced):
        notices.append(
            f"{len(unreferenced) - len(old)} unreferenced objects are younger than remote.log.orphan.grace.ms"
        )
    return AuditReport(count, len(listed), size, tuple(anomalies), tuple(notices))


def _selected(found: ListedObject, selection: Selection) -> bool:
    if found.name == STORE_IDENTITY:
        return False
    if found.segment is None:
        return True
    partition = found.segment.segment_id.topic_id_partition
    return selection.matches(partition.topic, partition.partition)


def _is_referenced(found: ListedObject, referenced: set[str]) -> bool:
    return found.segment is not None and not found.segment.temporary and found.segment.segment_id.id in referenced


def _is_still_finished(segment: RemoteLogSegmentMetadata, metadata: RemoteLogMetadataManager) -> bool:
    return any(
        now.segment_id == segment.segment_id
        for now in finished(metadata.list_remote_log_segments(segment.topic_id_partition))
    )


def _is_there(name: str, storage: ObjectRemoteStorageManager) -> bool:
    try:
        storage.object_size(name)
    except RemoteObjectNotFoundError:
        return False
    return True


def _unreferenced(objects: Iterable[ListedObject]) -> Iterator[Anomaly]:
    for found in objects:
        what = "left behind by a writer that was killed" if _is_leftover(found) else "no segment's metadata refer to it"
        yield Anomaly(AnomalyKind.UNREFERENCED_OBJECT, found.name, f"{found.size} bytes, {what}")


def _is_leftover(found: ListedObject) -> bool:
    return found.segment is not None and found.segment.temporary


def _check_objects(
    segment: RemoteLogSegmentMetadata,
    listed: dict[str, ListedObject],
    storage: ObjectRemoteStorageManager,
    *,
    deep: bool,
) -> Iterator[Anomaly]:
    try:
        expected = storage.expected_objects(segment)
    except RemoteObjectCorruptError as error:
        yield Anomaly(AnomalyKind.WRONG_CHECKSUM, str(segment.segment_id), str(error))
        return
    seen_wrong = [name for name, size in expected.items() if name not in listed or listed[name].size != size]
    is_whole = True
    # Asked for once more, singly: the copy may have ended after the listing was made.
    for name in expected if deep else seen_wrong:
        try:
            found = storage.object_size(name)
        except RemoteObjectNotFoundError as error:
            is_whole = False
            yield Anomaly(AnomalyKind.MISSING_OBJECT, name, str(error))
            continue
        if found != expected[name]:
            is_whole = False
            yield Anomaly(AnomalyKind.WRONG_SIZE, name, f"has {found} bytes, {expected[name]} were sent")
    if deep and is_whole:
        try:
            storage.verify(segment)
        except RemoteObjectNotFoundError as error:
            yield Anomaly(AnomalyKind.MISSING_OBJECT, str(segment.segment_id), str(error))
        except RemoteObjectCorruptError as error:
            yield Anomaly(AnomalyKind.WRONG_CHECKSUM, str(segment.segment_id), str(error))


def _check_offsets(
    partition: TopicIdPartition, segments: list[RemoteLogSegmentMetadata], state: PartitionState
) -> Iterator[Anomaly]:
    coverage = Coverage.of(segments, state.lineage)
    our_log_start = state.log_start_offset
    log_start = our_log_start or 0
    for start, end in coverage.gaps():
        if end >= log_start:
            message = f"offsets {max(start, log_start)} to {end} are in no segment"
            yield Anomaly(AnomalyKind.GAP, str(partition), message)
    if our_log_start is not None and coverage.ranges and coverage.ranges[0].start_offset > our_log_start:
        message = f"offsets {log_start} to {coverage.ranges[0].start_offset - 1} are in no segment"
        yield Anomaly(AnomalyKind.GAP, str(partition), message)
    for one, other in _overlapping(finished(segments)):
        start, end = other.start_offset, min(one.end_offset, other.end_offset)
        # Copies of different leaders may overlap: the lineage says which of them is read.
        if epochs_within(one.leader_epochs, start, end) == epochs_within(other.leader_epochs, start, end):
            message = f"offsets {start} to {end} are in {one.segment_id.id} and in {other.segment_id.id}"
            yield Anomaly(AnomalyKind.OVERLAP, str(partition), message)


def _overlapping(
    segments: list[RemoteLogSegmentMetadata],
) -> Iterator[tuple[RemoteLogSegmentMetadata, RemoteLogSegmentMetadata]]:
    """Yield each segment that begins before the end of those before it, with the one that reaches furthest."""
    furthest: RemoteLogSegmentMetadata | None = None
    for segment in segments:
        if furthest is not None and segment.start_offset <= furthest.end_offset:
            yield furthest, segment
        if furthest is None or segment.end_offset > furthest.end_offset:
            furthest = segment
