"""The deletion of many segments from an object store: first all commit markers, then all else that a segment can have.

So a segment that still has its marker is complete. Uploads that an attempt left unfinished are discarded last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tiered_storage.errors import LaterVersionError, RemoteObjectCorruptError, RemoteStorageError, TieredStorageError
from tiered_storage.remote_log.model import RemoteLogSegmentId, RemoteLogSegmentMetadata
from tiered_storage.remote_log.storage.clients.object_client import ObjectClient, discard_unfinished
from tiered_storage.remote_log.storage.commit_marker import CommitMarker
from tiered_storage.remote_log.storage.documents.object_names import ObjectKind, partition_folder
from tiered_storage.remote_log.storage.listable_storage import ListedObject
from tiered_storage.remote_log.storage.stored_segments import names_of

ListObjects = Callable[[str], Iterator[ListedObject]]


def delete_objects_of(
    segments: Sequence[RemoteLogSegmentMetadata], client: ObjectClient, list_objects: ListObjects
) -> dict[str, TieredStorageError]:
    """Delete all objects of `segments` in the store of `client`, which `list_objects` lists by folder.

    Return by segment id the errors of those that are not deleted.
    """
    failed: dict[str, TieredStorageError] = {}
    segments = list(_with_true_starts(segments, list_objects, failed))
    names = {segment.segment_id.id: names_of(segment) for segment in segments}
    for of_markers in (True, False):
        left = [segment for segment in segments if segment.segment_id.id not in failed]
        segment_of = {
            f"{names[segment.segment_id.id].stem}.{kind}": segment.segment_id.id
            for segment in left
            for kind in ((ObjectKind.COMMIT_MARKER,) if of_markers else _kinds_beside_marker(segment))
        }
        for name, error in client.delete_many(list(segment_of)).items():
            failed.setdefault(segment_of[name], error)
    try:
        discard_unfinished(client, {of_one.stem for of_one in names.values()})
    except RemoteStorageError as error:
        return dict.fromkeys(names, error) | failed
    return failed


def _with_true_starts(
    segments: Sequence[RemoteLogSegmentMetadata], list_objects: ListObjects, failed: dict[str, TieredStorageError]
) -> Iterator[RemoteLogSegmentMetadata]:
    """Yield `segments`; one with bounds only as often as objects with its id are listed, by their start offset."""
    bounded = {segment.segment_id: segment for segment in segments if segment.is_bounded_only}
    yield from (segment for segment in segments if segment.segment_id not in bounded)
    for partition in dict.fromkeys(each.topic_id_partition for each in bounded):
        found: dict[tuple[RemoteLogSegmentId, int], None] = {}
        try:
            for listed in list_objects(partition_folder(partition)):
                if listed.segment is not None and listed.segment.segment_id in bounded:
                    found[listed.segment.segment_id, listed.segment.base_offset] = None
        except RemoteStorageError as error:
            failed |= {each.id: error for each in bounded if each.topic_id_partition == partition}
            continue
        yield from (replace(bounded[segment_id], start_offset=start) for segment_id, start in found)


def _kinds_beside_marker(segment: RemoteLogSegmentMetadata) -> tuple[ObjectKind, ...]:
    """Return the kinds of objects that a segment can have besides its commit marker."""
    every = (ObjectKind.INDEXES, ObjectKind.DATA, ObjectKind.KEY)
    if segment.custom_metadata is None:
        return every
    try:
        is_encrypted = CommitMarker.from_custom_metadata(segment, segment.custom_metadata).is_encrypted
    except (RemoteObjectCorruptError, LaterVersionError):
        return every
    return every if is_encrypted else every[:2]
