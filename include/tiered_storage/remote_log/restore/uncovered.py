"""What the store holds of a topic that no finished segment covers, so that no restore leaves it out in silence.

The metadata know nothing of it, or only that its copy never finished: a rebuild makes them so if segments at a
partition's end lost their indexes, or if all segments of a partition are lost and only its document is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from itertools import groupby

from tiered_storage.remote_log.copy.plan import Finding
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, SegmentState, TopicIdPartition
from tiered_storage.remote_log.restore.request import RestoreRequest
from tiered_storage.remote_log.storage.listable_storage import ListableStorage, ListedObject
from tiered_storage.remote_log.storage.object_names import parse_partition_folder, partition_folder


@dataclass(frozen=True, slots=True)
class KnownPartition:
    """A partition as the metadata know it: its finished segments end before `end_offset`.

    `end_offset` is None if nothing after the finished segments is asked for. `unfinished` are the ids of copies that
    never finished; `under_way` are those of them whose copy still runs.
    """

    end_offset: int | None
    unfinished: frozenset[str]
    under_way: frozenset[str]

    @classmethod
    def of(
        cls,
        end_offset: int | None,
        segments: Iterable[RemoteLogSegmentMetadata],
        held: Set[tuple[TopicIdPartition, int]],
    ) -> KnownPartition:
        """Return a partition that has these `segments`; `held` are the leases that run, with their fencing numbers."""
        unfinished, under_way = set(), set()
        for segment in segments:
            if segment.state is SegmentState.COPY_SEGMENT_FINISHED or segment.is_marked:
                continue
            unfinished.add(segment.segment_id.id)
            is_copied = segment.state is SegmentState.COPY_SEGMENT_STARTED
            if is_copied and (segment.topic_id_partition, segment.fencing_number) in held:
                under_way.add(segment.segment_id.id)
        return cls(end_offset, frozenset(unfinished), frozenset(under_way))


@dataclass(slots=True)
class Uncovered:
    """What was found: `gaps` a restore leaves out, `notices` are of copies under way; `missing` are partitions."""

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

    Partitions whose deletion was asked for are left out. Raises what store and metadata raise.
    """
    found = Uncovered()
    folder = partition_folder(topic).rpartition("/")[0]
    for partition, listed in groupby(storage.list_objects(folder), lambda each: parse_partition_folder(each.name)):
        if partition is None or not request.wants(partition):
            continue
        if partition in known:
            _look_after_the_end(partition, known[partition], listed, metadata, request, found)
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
    request: RestoreRequest,
    found: Uncovered,
) -> None:
    offsets = dict(_after_the_end(known, listed, request))
    strange = offsets.keys() - known.unfinished
    if strange:
        # What was deleted, and what was begun since the metadata were read.
        strange -= metadata.known_segment_ids(partition, strange)
    under_way = offsets.keys() & known.under_way
    left_out = (offsets.keys() & known.unfinished) - under_way | strange
    if left_out:
        message = (
            f"{_segments(left_out, offsets)} in the store, but unfinished or unknown: 'tiered-storage repair' finishes "
            "what is whole, and names the rest"
        )
        found.gaps.append(Finding(str(partition), message))
    if under_way:
        found.notices.append(Finding(str(partition), f"{_segments(under_way, offsets)} being copied: none comes back"))


def _after_the_end(
    known: KnownPartition, listed: Iterable[ListedObject], request: RestoreRequest
) -> Iterator[tuple[str, int]]:
    """Yield id and first offset of each segment that has an object after the end and may be in the range."""
    for each in listed:
        segment = each.segment
        if segment is None or segment.temporary or known.end_offset is None or segment.base_offset < known.end_offset:
            continue
        if request.to_offset is None or segment.base_offset < request.to_offset:
            yield segment.segment_id.id, segment.base_offset


def _is_whole(found: ListedObject) -> bool:
    """Whether it is a segment's object or a document, and none that a killed writer left half-written."""
    name = found.segment or found.document
    return name is not None and not name.temporary


def _segments(ids: Iterable[str], offsets: Mapping[str, int]) -> str:
    found = [offsets[each] for each in ids]
    first = f"from offset {min(found)} on"
    return f"1 segment {first} is" if len(found) == 1 else f"{len(found)} segments {first} are"
