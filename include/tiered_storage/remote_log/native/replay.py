"""Apply the records of __remote_log_metadata, in log order, by the rules of Kafka's own reader.

A segment begins with COPY_SEGMENT_STARTED; updates move it along its life cycle; what is DELETE_SEGMENT_FINISHED is
forgotten. A record that breaks the rules or its format changes nothing: it is counted, and the first ones are kept with
their topic, partition and offset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tiered_storage.errors import InvalidTransitionError, MalformedMetadataRecordError
from tiered_storage.remote_log.metadata.life_cycle import check_deletion
from tiered_storage.remote_log.metadata.topic.records import decode_record
from tiered_storage.remote_log.model import (
    PartitionDeleteState,
    PartitionState,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    SegmentState,
    TopicIdPartition,
)
from tiered_storage.remote_log.native.metadata_topic import MetadataRecordValue

MOST_SHOWN = 20
"""How many refused records are kept with their reasons."""

_DELETED = (SegmentState.DELETE_SEGMENT_STARTED, SegmentState.DELETE_SEGMENT_FINISHED)


@dataclass(slots=True)
class PartitionContent:
    """The segments of one partition by their ids, without deleted ones, and how far its deletion came."""

    segments: dict[str, RemoteLogSegmentMetadata] = field(default_factory=dict)
    delete_state: PartitionDeleteState | None = None
    _sorted: tuple[RemoteLogSegmentMetadata, ...] | None = None

    def put(self, segment: RemoteLogSegmentMetadata) -> None:
        """Add a segment, or replace it."""
        self.segments[segment.segment_id.id] = segment
        self._sorted = None

    def remove(self, segment_id: str) -> None:
        """Forget a segment."""
        self.segments.pop(segment_id, None)
        self._sorted = None

    def by_offset(self) -> Sequence[RemoteLogSegmentMetadata]:
        """Return the segments by start offset."""
        if self._sorted is None:
            in_order = sorted(self.segments.values(), key=lambda each: (each.start_offset, each.segment_id.id))
            self._sorted = tuple(in_order)
        return self._sorted


class Replay:
    """The state that the records lead to; one lock of the caller's guards it."""

    def __init__(self, topic: str, cluster_id: str) -> None:
        """Begin before the first record; messages name `topic`."""
        self._topic, self._cluster_id = topic, cluster_id
        self._partitions: dict[TopicIdPartition, tuple[TopicIdPartition, PartitionContent]] = {}
        self.positions: dict[int, int] = {}
        """The offset after the last applied record of each partition of the topic."""
        self.records = 0
        self.refused = 0
        self.shown: list[str] = []
        """The first refused records: where they are, and why they changed nothing."""

    @property
    def partitions(self) -> Mapping[TopicIdPartition, tuple[TopicIdPartition, PartitionContent]]:
        """Every partition that has, or had, a segment, with its id under its last name and its content."""
        return self._partitions

    def content(self, partition: TopicIdPartition) -> PartitionContent:
        """Return what is known of `partition`; an empty content for an unknown one."""
        known = self._partitions.get(partition)
        return PartitionContent() if known is None else known[1]

    def apply(self, record: MetadataRecordValue) -> None:
        """Apply the next record of its partition."""
        self.positions[record.partition] = max(self.positions.get(record.partition, 0), record.offset + 1)
        if record.broken is not None:
            self._refuse(record, record.broken)
            return
        if record.value is None:
            return
        self.records += 1
        try:
            found = decode_record(record.value, self._cluster_id)
        except MalformedMetadataRecordError as error:
            self._refuse(record, str(error))
            return
        match found:
            case RemoteLogSegmentMetadata():
                why = self._begin(found)
            case RemoteLogSegmentMetadataUpdate():
                why = self._update(found)
            case RemotePartitionDeleteMetadata():
                why = self._delete_partition(found)
            case _:
                why = "a snapshot's record, which only files of snapshots have"
        if why is not None:
            self._refuse(record, why)

    def _refuse(self, record: MetadataRecordValue, reason: str) -> None:
        self.refused += 1
        if len(self.shown) < MOST_SHOWN:
            self.shown.append(f"{self._topic}-{record.partition}, offset {record.offset}: {reason}")

    def _known(self, partition: TopicIdPartition) -> tuple[TopicIdPartition, PartitionContent]:
        return self._partitions.setdefault(partition, (partition, PartitionContent()))

    def _begin(self, segment: RemoteLogSegmentMetadata) -> str | None:
        """Add a segment whose copy starts; return why not."""
        if segment.state is not SegmentState.COPY_SEGMENT_STARTED:
            return f"{segment.segment_id} begins as {segment.state.name}, not as COPY_SEGMENT_STARTED"
        if segment.is_bounded_only:
            return f"{segment.segment_id} has no bytes"
        same, content = self._known(segment.topic_id_partition)
        known = content.segments.get(segment.segment_id.id)
        if known is not None:
            # A producer's repetition; Kafka's reader would begin the segment again and hide it.
            return None if _is_same(known, segment) else f"{segment.segment_id} is known with other content"
        # One object for the partition's name, however many segments it has.
        content.put(replace(segment, segment_id=RemoteLogSegmentId(same, segment.segment_id.id)))
        return None

    def _update(self, update: RemoteLogSegmentMetadataUpdate) -> str | None:
        """Change a segment's state; return why not. The deletion of an unknown segment is no contradiction."""
        content = self.content(update.segment_id.topic_id_partition)
        known = content.segments.get(update.segment_id.id)
        if known is None:
            if update.state in _DELETED:
                return None
            return f"{update.segment_id} becomes {update.state.name}, and never began"
        try:
            changed = known.updated(update)
        except InvalidTransitionError as error:
            return str(error)
        if changed.state is SegmentState.DELETE_SEGMENT_FINISHED:
            content.remove(update.segment_id.id)
        else:
            content.put(changed)
        return None

    def _delete_partition(self, deletion: RemotePartitionDeleteMetadata) -> str | None:
        content = self._known(deletion.topic_id_partition)[1]
        try:
            check_deletion(PartitionState(delete_state=content.delete_state), deletion)
        except InvalidTransitionError as error:
            return str(error)
        content.delete_state = deletion.state
        if deletion.state is PartitionDeleteState.FINISHED:
            content.segments.clear()
            content.remove("")
        return None


def _is_same(known: RemoteLogSegmentMetadata, again: RemoteLogSegmentMetadata) -> bool:
    return (known.start_offset, known.end_offset, known.size) == (again.start_offset, again.end_offset, again.size)
