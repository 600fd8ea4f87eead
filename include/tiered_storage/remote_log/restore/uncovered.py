"""Find what the store has of a topic and the metadata do not: segments that a restore would leave out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field

from tiered_storage.remote_log.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from tiered_storage.remote_log.model import Finding, RemoteLogSegmentMetadata, SegmentState, TopicIdPartition
from tiered_storage.remote_log.restore.request import RestoreRequest
from tiered_storage.remote_log.storage.documents.object_names import partition_folder
from tiered_storage.remote_log.storage.listable_storage import ListableStorage, ListedObject, list_by_partition


@dataclass(frozen=True, slots=True)
class KnownPartition:
    """A partition in the metadata: its finished segments end before `end_offset`.

    `end_offset` is None if nothing after the finished segments is requested. `unfinished` are the unfinished copies, by
    id; `under_way` are the ids of those whose copy still runs.
    """

    end_offset: int | None
    unfinished: Mapping[str, RemoteLogSegmentMetadata]
    under_way: frozenset[str]

    @classmethod
    def of(
        cls,
        end_offset: int | None,
        segments: Iterable[RemoteLogSegmentMetadata],
        held: Set[tuple[TopicIdPartition, int]],
    ) -> KnownPartition:
        """Return a partition with these `segments`; `held` are the valid leases, with their fencing numbers."""
        unfinished: dict[str, RemoteLogSegmentMetadata] = {}
        under_way = set()
        for segment in segments:
            if segment.state is SegmentState.COPY_SEGMENT_FINISHED or segment.is_marked:
                continue
            unfinished[segment.segment_id.id] = segment
            is_copied = segment.state is SegmentState.COPY_SEGMENT_STARTED
            if is_copied and (segment.topic_id_partition, segment.fencing_number) in held:
                under_way.add(segment.segment_id.id)
        return cls(end_offset, unfinished, frozenset(under_way))


@dataclass(slots=True)
class Uncovered:
    """The result: `gaps` that a restore leaves out, `notices` of copies under way; `missing` partitions."""

    gaps: list[Finding] = field(default_factory=list)
    notices: list[Finding] = field(default_factory=list)
    missing: set[int] = field(default_factory=set)


def find_uncovered(
    known: Mapping[TopicIdPartition, KnownPartition],
    topic: TopicIdPartition,
    metadata: RemoteLogMetadataManager,
    storage: ListableStorage,
    request: RestoreRequest,
) -> Uncovered:
    """List what the store has of the topic of `topic`, and return what none of the `known` partitions covers.

    Partitions whose deletion was requested are left out. Raises what store and metadata raise.
    """
    found = Uncovered()
    folder = partition_folder(topic).rpartition("/")[0]
    for partition, listed in list_by_partition(storage, folder):
        if partition is None or not request.wants(partition):
            continue
        if partition in known:
            _look_after_the_end(partition, known[partition], listed, metadata, storage, request, found)
        elif any(map(_is_whole, listed)) and metadata.partition_state(partition).delete_state is None:
            message = (
                "the store has objects of it, but the metadata know no segment: its segments are lost or unknown, or "
                "all of them expired"
            )
            found.gaps.append(Finding(str(partition), message))
            found.missing.add(partition.partition)
    return found


def _look_after_the_end(
    partition: TopicIdPartition,
    known: KnownPartition,
    listed: Iterable[ListedObject],
    metadata: RemoteLogMetadataManager,
    storage: ListableStorage,
    request: RestoreRequest,
    found: Uncovered,
) -> None:
    offsets = dict(_after_the_end(known, listed, storage, request))
    strange = offsets.keys() - known.unfinished
    if strange:
        # Deleted segments, and those begun since the metadata were read.
        strange -= metadata.known_segment_ids(partition, strange)
    under_way = offsets.keys() & known.under_way
    left_out = (offsets.keys() & known.unfinished) - under_way | strange
    if left_out:
        message = (
            f"{_segments(left_out, offsets)} in the store, but unfinished or unknown: 'tiered-storage repair' commits "
            "complete ones, and reports the rest"
        )
        found.gaps.append(Finding(str(partition), message))
    if under_way:
        found.notices.append(Finding(str(partition), f"{_segments(under_way, offsets)} being copied: not restored"))


def _after_the_end(
    known: KnownPartition, listed: Iterable[ListedObject], storage: ListableStorage, request: RestoreRequest
) -> Iterator[tuple[str, int]]:
    """Yield id and first uncovered offset of each segment in the store that reaches past the end, into the range."""
    end = known.end_offset
    seen: set[str] = set()
    for each in listed:
        segment = each.segment
        if end is None or segment is None or segment.temporary or segment.segment_id.id in seen:
            continue
        first = max(end, segment.base_offset)
        if request.to_offset is not None and first >= request.to_offset:
            continue
        seen.add(segment.segment_id.id)
        if segment.base_offset >= end or _reaches(known.unfinished.get(segment.segment_id.id), end, storage):
            yield segment.segment_id.id, first


def _reaches(unfinished: RemoteLogSegmentMetadata | None, end: int, storage: ListableStorage) -> bool:
    """Return whether an unfinished segment that begins before `end` has offsets from there on."""
    if unfinished is None:
        return False
    if unfinished.size:
        return unfinished.end_offset >= end
    # A rebuild does not know its end.
    copy = storage.find_copy(unfinished)
    return copy is not None and copy.finished.end_offset >= end


def _is_whole(found: ListedObject) -> bool:
    """Return whether it is a complete object of a segment or a document, not the remainder of a killed writer."""
    name = found.segment or found.document
    return name is not None and not name.temporary


def _segments(ids: Iterable[str], offsets: Mapping[str, int]) -> str:
    found = [offsets[each] for each in ids]
    first = f"from offset {min(found)} on"
    return f"1 segment {first} is" if len(found) == 1 else f"{len(found)} segments {first} are"
