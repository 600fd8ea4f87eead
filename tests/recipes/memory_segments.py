"""The segments and partitions of the example of a metadata store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from recipes.memory_content import Content
from tiered_storage.errors import ConfigurationError, InvalidTransitionError, LeaseLostError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.lineage import merged
from tiered_storage.remote_log.metadata.life_cycle import (
    check_addition,
    check_deletion,
    check_lease_of,
    check_lineage,
    offsets_at,
    stepped,
    why_deleted,
    why_lost,
    why_not_added,
)
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import (
    Addition,
    LogStart,
    ObservedLineage,
    Outcome,
    SegmentTotals,
    Step,
    only_accepted,
)
from tiered_storage.remote_log.model import (
    Lease,
    PartitionDeleteState,
    PartitionState,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    SegmentState,
    TopicIdPartition,
)


class MemorySegments:
    """See RemoteLogMetadataManager."""

    def __init__(self, content: Content) -> None:
        self._content = content

    def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata, lease: Lease) -> None:
        only_accepted(self.add_remote_log_segments([(metadata, lease)]))

    def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate, lease: Lease
    ) -> RemoteLogSegmentMetadata:
        return only_accepted(self.update_remote_log_segments([(update, lease)]))

    def add_remote_log_segments(self, additions: Sequence[Addition]) -> list[Outcome]:
        for segment, lease in additions:
            check_addition(segment, lease)
        with self._content.lock:
            return [self._add(segment, lease) for segment, lease in additions]

    def _add(self, segment: RemoteLogSegmentMetadata, lease: Lease) -> Outcome:
        known = self._content.segments.get(segment.segment_id)
        deleted = [each for each, state in self._content.states.items() if state.delete_state is not None]
        refused = (
            why_lost(lease, self._content.leases)
            or why_not_added(segment, known)
            or why_deleted(segment, known, deleted)
        )
        if refused is not None:
            return refused
        partition = segment.topic_id_partition
        self._content.segments[segment.segment_id] = segment
        self._content.partitions.setdefault(partition, partition)
        return segment

    def update_remote_log_segments(self, steps: Sequence[Step]) -> list[Outcome]:
        for update, lease in steps:
            check_lease_of(update.segment_id.topic_id_partition, lease)
        with self._content.lock:
            return [self._step(update, lease) for update, lease in steps]

    def _step(self, update: RemoteLogSegmentMetadataUpdate, lease: Lease) -> Outcome:
        known = self._content.segments.get(update.segment_id)
        outcome = why_lost(lease, self._content.leases) or stepped(known, update, lease)
        if isinstance(outcome, RemoteLogSegmentMetadata):
            self._content.segments[outcome.segment_id] = outcome
            if outcome.state is SegmentState.COPY_SEGMENT_FINISHED:
                self._content.finished.setdefault(outcome.segment_id, len(self._content.finished))
        return outcome

    def remote_log_segment_metadata(
        self, partition: TopicIdPartition, offset: int, leader_epoch: int | None = None
    ) -> RemoteLogSegmentMetadata | None:
        with self._content.lock:
            holding = [
                segment
                for segment in self._finished(partition)
                if segment.start_offset <= offset <= segment.end_offset
                and (leader_epoch is None or offset in offsets_at(segment, leader_epoch))
            ]
            return min(holding, key=lambda each: self._content.finished[each.segment_id], default=None)

    def highest_offset_for_epoch(self, partition: TopicIdPartition, leader_epoch: int) -> int | None:
        with self._content.lock:
            found = (offsets_at(segment, leader_epoch) for segment in self._finished(partition))
            return max((offsets[-1] for offsets in found if offsets), default=None)

    def list_remote_log_segments(
        self, partition: TopicIdPartition, leader_epoch: int | None = None
    ) -> Iterator[RemoteLogSegmentMetadata]:
        for segment in self._of(partition, deleted=False):
            if leader_epoch is None or offsets_at(segment, leader_epoch):
                yield segment

    def list_deleted_segments(
        self, partition: TopicIdPartition, start_offset: int, end_offset: int
    ) -> Iterator[RemoteLogSegmentMetadata]:
        for segment in self._of(partition, deleted=True):
            if segment.start_offset <= end_offset and segment.end_offset >= start_offset:
                yield segment

    def count_remote_log_segments(self, partition: TopicIdPartition) -> Mapping[SegmentState, int]:
        return Counter(segment.state for segment in self._of(partition, deleted=False))

    def segment_totals(self) -> Sequence[SegmentTotals]:
        with self._content.lock:
            alike: dict[tuple[object, ...], list[RemoteLogSegmentMetadata]] = {}
            for each in self._content.segments.values():
                key = each.topic_id_partition, each.state, each.segment_id in self._content.finished
                alike.setdefault(key, []).append(each)
        return [_totals(some, was_finished=bool(key[-1])) for key, some in alike.items()]

    def segment_by_id(self, segment_id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        with self._content.lock:
            found = self._content.segments.get(segment_id)
        return None if found is None or _is_deleted(found) else found

    def known_segment_ids(self, partition: TopicIdPartition, ids: Iterable[str]) -> frozenset[str]:
        with self._content.lock:
            return frozenset(each for each in ids if RemoteLogSegmentId(partition, each) in self._content.segments)

    def list_partitions(self) -> Sequence[TopicIdPartition]:
        with self._content.lock:
            return sorted(self._content.partitions.values())

    def log_start_offset(self, partition: TopicIdPartition) -> int | None:
        return self.partition_state(partition).log_start_offset

    def advance_log_start_offset(
        self, partition: TopicIdPartition, offset: int, lease: Lease, moved_at: int | None = None
    ) -> None:
        _raise_refusals(self.advance_log_start_offsets([(partition, offset, lease)], moved_at))

    def advance_log_start_offsets(
        self, log_starts: Sequence[LogStart], moved_at: int | None = None
    ) -> list[LeaseLostError | None]:
        for partition, offset, lease in log_starts:
            check_lease_of(partition, lease)
            if offset < 0:
                raise ConfigurationError(f"{partition}: a log cannot begin at offset {offset}: give one of 0 or more")
        with self._content.lock:
            refused = [why_lost(lease, self._content.leases) for _, _, lease in log_starts]
            for (partition, offset, _), lost in zip(log_starts, refused, strict=True):
                if lost is None:
                    self._advance(partition, offset, moved_at)
        return refused

    def _advance(self, partition: TopicIdPartition, offset: int, moved_at: int | None) -> None:
        known = self._content.states.get(partition, PartitionState())
        if moved_at is not None and offset > (known.log_start_offset or 0):
            known = known.with_log_start(offset, moved_at)
        highest = offset if known.log_start_offset is None else max(known.log_start_offset, offset)
        self._content.states[partition] = replace(known, log_start_offset=highest)

    def undelete(
        self,
        partition: TopicIdPartition,
        segment_ids: Sequence[RemoteLogSegmentId],
        log_start_offset: int,
        event_timestamp: int,
        lease: Lease,
    ) -> Sequence[RemoteLogSegmentMetadata]:
        for each in (partition, *(segment_id.topic_id_partition for segment_id in segment_ids)):
            check_lease_of(each, lease)
        with self._content.lock:
            self._content.ensure_newest(lease)
            known = self._content.states.get(partition, PartitionState())
            if known.delete_state is PartitionDeleteState.FINISHED:
                raise InvalidTransitionError(f"{partition} is FINISHED for deletion and cannot be undeleted")
            returned = [self._known(each).undeleted(event_timestamp) for each in segment_ids]
            self._content.segments |= {segment.segment_id: segment for segment in returned}
            self._content.states[partition] = known.undeleted(log_start_offset)
        return returned

    def partition_state(self, partition: TopicIdPartition) -> PartitionState:
        with self._content.lock:
            return self._content.states.get(partition, PartitionState())

    def partition_states_of(self, partitions: Iterable[TopicIdPartition]) -> Mapping[TopicIdPartition, PartitionState]:
        with self._content.lock:
            return {each: self._content.states.get(each, PartitionState()) for each in partitions}

    def partition_states(self) -> Mapping[TopicIdPartition, PartitionState]:
        with self._content.lock:
            return dict.fromkeys(self._content.partitions, PartitionState()) | self._content.states

    def put_lineage(self, partition: TopicIdPartition, lineage: Sequence[EpochEntry], lease: Lease) -> None:
        _raise_refusals(self.put_lineages([(partition, lineage, lease)]))

    def put_lineages(self, observed: Sequence[ObservedLineage]) -> list[LeaseLostError | None]:
        for partition, lineage, lease in observed:
            check_lease_of(partition, lease)
            check_lineage(partition, lineage)
        with self._content.lock:
            refused = [why_lost(lease, self._content.leases) for _, _, lease in observed]
            for (partition, lineage, _), lost in zip(observed, refused, strict=True):
                if lost is None:
                    known = self._content.states.get(partition, PartitionState())
                    self._content.states[partition] = replace(known, lineage=merged(known.lineage, lineage))
        return refused

    def put_remote_partition_delete_metadata(self, metadata: RemotePartitionDeleteMetadata, lease: Lease) -> None:
        partition = metadata.topic_id_partition
        check_lease_of(partition, lease)
        with self._content.lock:
            self._content.ensure_newest(lease)
            known = self._content.states.get(partition, PartitionState())
            check_deletion(known, metadata)
            self._content.states[partition] = replace(known, delete_state=metadata.state)

    def _finished(self, partition: TopicIdPartition) -> Iterator[RemoteLogSegmentMetadata]:
        listed = self._of(partition, deleted=False)
        return (segment for segment in listed if segment.state is SegmentState.COPY_SEGMENT_FINISHED)

    def _of(self, partition: TopicIdPartition, *, deleted: bool) -> list[RemoteLogSegmentMetadata]:
        with self._content.lock:
            every = [each for each in self._content.segments.values() if each.topic_id_partition == partition]
        found = (segment for segment in every if _is_deleted(segment) is deleted)
        return sorted(found, key=lambda segment: (segment.start_offset, segment.segment_id.id))

    def _known(self, segment_id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata:
        if segment_id not in self._content.segments:
            raise InvalidTransitionError(f"{segment_id}: is not known and cannot be undeleted")
        return self._content.segments[segment_id]


def _is_deleted(segment: RemoteLogSegmentMetadata) -> bool:
    return segment.state is SegmentState.DELETE_SEGMENT_FINISHED


def _raise_refusals(refused: Iterable[LeaseLostError | None]) -> None:
    for lost in refused:
        if lost is not None:
            raise lost


def _totals(alike: Sequence[RemoteLogSegmentMetadata], *, was_finished: bool) -> SegmentTotals:
    first = alike[0]
    epochs = [entry.epoch for each in alike for entry in each.leader_epochs]
    return SegmentTotals(
        first.topic_id_partition,
        first.state,
        was_finished=was_finished,
        count=len(alike),
        size=sum(each.size for each in alike),
        start_offset=min(each.start_offset for each in alike),
        end_offset=max(each.end_offset for each in alike),
        offsets=sum(each.end_offset - each.start_offset + 1 for each in alike),
        max_timestamp=max(each.max_timestamp for each in alike),
        oldest_event_timestamp=min(each.event_timestamp for each in alike),
        last_epoch=max(epochs, default=None),
    )
