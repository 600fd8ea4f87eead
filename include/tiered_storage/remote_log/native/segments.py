"""The segments of a cluster that tiers by itself, as a RemoteLogMetadataManager that is read only.

Every call first reads what the topic has new, so that each answer is as new as the brokers'. The global log start and
the leader epochs are those of the partitions' own logs.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from tiered_storage.errors import InvalidLogDirectoryError, SourceClusterError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.lineage import merged, whole_lineage
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import (
    Addition,
    LogStart,
    ObservedLineage,
    Outcome,
    SegmentTotals,
    Step,
)
from tiered_storage.remote_log.model import (
    Lease,
    PartitionState,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    SegmentState,
    TopicIdPartition,
)
from tiered_storage.remote_log.native.metadata_topic import MetadataTopic
from tiered_storage.remote_log.native.read_only_storage import refuse
from tiered_storage.remote_log.native.replay import MOST_SHOWN, PartitionContent, Replay
from tiered_storage.remote_log.source.partition_log import PartitionLog, UnreadablePartition
from tiered_storage.remote_log.source.segment_source import BulkLookup, SegmentSource


class NativeSegments:
    """See RemoteLogMetadataManager; everything that changes something raises ConfigurationError."""

    def __init__(self, topic: MetadataTopic, replay: Replay, logs: SegmentSource) -> None:
        """Read `topic` into `replay`; `logs` has the partitions' own logs. Nothing is read yet."""
        self._topic, self._replay, self._logs = topic, replay, logs
        self._lock = threading.RLock()
        self._unknown: dict[TopicIdPartition, str] = {}
        self._older: dict[TopicIdPartition, str] = {}

    def catch_up(self) -> Replay:
        """Apply what the topic has new, and return all of it. Raises what the topic raises."""
        with self._lock:
            for record in self._topic.read(self._replay.positions):
                self._replay.apply(record)
            return self._replay

    @property
    def seen(self) -> Replay:
        """What was applied so far; nothing is read."""
        return self._replay

    def list_remote_log_segments(
        self, partition: TopicIdPartition, leader_epoch: int | None = None
    ) -> Iterator[RemoteLogSegmentMetadata]:
        """See RemoteLogMetadataManager."""
        for segment in self._listed(partition):
            if leader_epoch is None or any(entry.epoch == leader_epoch for entry in segment.leader_epochs):
                yield segment

    def remote_log_segment_metadata(
        self, partition: TopicIdPartition, offset: int, leader_epoch: int | None = None
    ) -> RemoteLogSegmentMetadata | None:
        """See RemoteLogMetadataManager; the earliest event timestamp shows which copy finished first."""
        found = [
            segment
            for segment in self._listed(partition)
            if segment.state is SegmentState.COPY_SEGMENT_FINISHED
            and segment.start_offset <= offset <= segment.end_offset
            and leader_epoch in {None, _epoch_at(segment, offset)}
        ]
        return min(found, key=lambda each: (each.event_timestamp, each.segment_id.id), default=None)

    def highest_offset_for_epoch(self, partition: TopicIdPartition, leader_epoch: int) -> int | None:
        """See RemoteLogMetadataManager."""
        ends = [
            end
            for segment in self._listed(partition)
            if segment.state is SegmentState.COPY_SEGMENT_FINISHED
            for epoch, end in _ends_of_epochs(segment)
            if epoch == leader_epoch
        ]
        return max(ends, default=None)

    def list_deleted_segments(
        self,
        partition: TopicIdPartition,  # noqa: ARG002
        start_offset: int,  # noqa: ARG002
        end_offset: int,  # noqa: ARG002
    ) -> Iterator[RemoteLogSegmentMetadata]:
        """Yield nothing: Kafka forgets deleted segments."""
        return iter(())

    def count_remote_log_segments(self, partition: TopicIdPartition) -> Mapping[SegmentState, int]:
        """See RemoteLogMetadataManager."""
        counts: dict[SegmentState, int] = {}
        for segment in self._listed(partition):
            counts[segment.state] = counts.get(segment.state, 0) + 1
        return counts

    def segment_totals(self) -> Sequence[SegmentTotals]:
        """See RemoteLogMetadataManager."""
        with self._lock:
            contents = [content.by_offset() for _, content in self.catch_up().partitions.values()]
        by_state = (sorted(segments, key=_state_and_past) for segments in contents)
        return [_totals(list(alike)) for each in by_state for _, alike in groupby(each, _state_and_past)]

    def segment_by_id(self, segment_id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        """See RemoteLogMetadataManager."""
        with self._lock:
            return self.catch_up().content(segment_id.topic_id_partition).segments.get(segment_id.id)

    def known_segment_ids(self, partition: TopicIdPartition, ids: Iterable[str]) -> frozenset[str]:
        """Return those of `ids` that the partition has: Kafka forgets deleted ones."""
        with self._lock:
            return frozenset(self.catch_up().content(partition).segments.keys() & set(ids))

    def list_partitions(self) -> Sequence[TopicIdPartition]:
        """See RemoteLogMetadataManager; without earlier incarnations of a topic of which no segment is left.

        Kafka records no deletion of a topic, only those of its segments.
        """
        with self._lock:
            known = list(self.catch_up().partitions.values())
            living = {partition.topic_id for partition, content in known if content.segments}
        partitions = sorted((partition for partition, _ in known), key=lambda each: (each.topic_id in living, each))
        # One incarnation of each name stays, even if none has a segment.
        last = {each.topic: each.topic_id for each in partitions}
        return sorted(each for each in partitions if each.topic_id in living or each.topic_id == last[each.topic])

    def log_start_offset(self, partition: TopicIdPartition) -> int | None:
        """See RemoteLogMetadataManager."""
        return self.partition_state(partition).log_start_offset

    def partition_state(self, partition: TopicIdPartition) -> PartitionState:
        """See RemoteLogMetadataManager."""
        return self.partition_states_of([partition])[partition]

    def partition_states_of(self, partitions: Iterable[TopicIdPartition]) -> Mapping[TopicIdPartition, PartitionState]:
        """See RemoteLogMetadataManager."""
        wanted = list(partitions)
        with self._lock:
            replay = self.catch_up()
            logs = self._logs_of(wanted)
            found = {each: _state(replay.content(each), logs.get(each)) for each in wanted}
            for each, state in found.items():
                self._note(each, state, logs.get(each))
            return found

    @property
    def notices(self) -> Sequence[str]:
        """Of the partitions that were looked at: whose log start is unknown and why, and whose log is outdated."""
        with self._lock:
            unknown, older = sorted(self._unknown.items()), sorted(self._older.items())
        shown = [
            f"the log start of {partition} is unknown, so records that were deleted may be read: {why}"
            for partition, why in unknown[:MOST_SHOWN]
        ]
        more = len(unknown) - len(shown)
        if more:
            shown.append(f"the log starts of {more:,} more partitions are unknown")
        shown += [
            f"the log of {partition} at {place} is outdated: leaders that it does not know wrote some of its remote "
            "segments, so the metadata alone decide which segments are valid"
            for partition, place in older[:MOST_SHOWN]
        ]
        more = len(older) - len(older[:MOST_SHOWN])
        return [*shown, *([f"the logs of {more:,} more partitions are outdated"] if more else [])]

    def partition_states(self) -> Mapping[TopicIdPartition, PartitionState]:
        """See RemoteLogMetadataManager."""
        return self.partition_states_of(self.list_partitions())

    def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata, lease: Lease) -> None:  # noqa: ARG002
        """Raise ConfigurationError."""
        refuse(f"{metadata.segment_id} cannot be added")

    def update_remote_log_segment_metadata(
        self,
        update: RemoteLogSegmentMetadataUpdate,
        lease: Lease,  # noqa: ARG002
    ) -> RemoteLogSegmentMetadata:
        """Raise ConfigurationError."""
        refuse(f"{update.segment_id} cannot be changed")

    def add_remote_log_segments(self, additions: Sequence[Addition]) -> list[Outcome]:
        """Raise ConfigurationError if there are any."""
        return [refuse(f"{segment.segment_id} cannot be added") for segment, _ in additions]

    def update_remote_log_segments(self, steps: Sequence[Step]) -> list[Outcome]:
        """Raise ConfigurationError if there are any."""
        return [refuse(f"{update.segment_id} cannot be changed") for update, _ in steps]

    def advance_log_start_offset(
        self,
        partition: TopicIdPartition,
        offset: int,
        lease: Lease,  # noqa: ARG002
        moved_at: int | None = None,  # noqa: ARG002
    ) -> None:
        """Raise ConfigurationError."""
        refuse(f"the log start of {partition} cannot be moved to {offset}")

    def advance_log_start_offsets(
        self,
        log_starts: Sequence[LogStart],
        moved_at: int | None = None,  # noqa: ARG002
    ) -> list[None]:
        """Raise ConfigurationError if there are any."""
        return [refuse(f"the log start of {partition} cannot be moved to {to}") for partition, to, _ in log_starts]

    def undelete(
        self,
        partition: TopicIdPartition,
        segment_ids: Sequence[RemoteLogSegmentId],  # noqa: ARG002
        log_start_offset: int,  # noqa: ARG002
        event_timestamp: int,  # noqa: ARG002
        lease: Lease,  # noqa: ARG002
    ) -> Sequence[RemoteLogSegmentMetadata]:
        """Raise ConfigurationError."""
        refuse(f"{partition} cannot be undeleted")

    def put_lineage(self, partition: TopicIdPartition, lineage: Sequence[EpochEntry], lease: Lease) -> None:  # noqa: ARG002
        """Raise ConfigurationError."""
        refuse(f"the leader epochs of {partition} cannot be recorded")

    def put_lineages(self, observed: Sequence[ObservedLineage]) -> list[None]:
        """Raise ConfigurationError if there are any."""
        return [refuse(f"the leader epochs of {partition} cannot be recorded") for partition, _, _ in observed]

    def put_remote_partition_delete_metadata(self, metadata: RemotePartitionDeleteMetadata, lease: Lease) -> None:  # noqa: ARG002
        """Raise ConfigurationError."""
        refuse(f"{metadata.topic_id_partition} cannot be deleted")

    def close(self) -> None:
        """Close both connections."""
        with self._lock:
            self._topic.close()
            self._logs.close()

    def _listed(self, partition: TopicIdPartition) -> Sequence[RemoteLogSegmentMetadata]:
        with self._lock:
            return self.catch_up().content(partition).by_offset()

    def _logs_of(self, partitions: Sequence[TopicIdPartition]) -> Mapping[TopicIdPartition, PartitionLog]:
        """Return the logs of those partitions that the cluster shows; of the others, note why it does not."""
        self._unknown |= dict.fromkeys(partitions, "its log is not there")
        if isinstance(self._logs, BulkLookup):
            try:
                found = self._logs.partitions_of(partitions)
            except SourceClusterError as error:
                self._unknown |= dict.fromkeys(partitions, str(error))
                return {}
            self._unknown |= {each: log.reason for each, log in found.items() if isinstance(log, UnreadablePartition)}
            return {each: log for each, log in found.items() if not isinstance(log, UnreadablePartition)}
        logs: dict[TopicIdPartition, PartitionLog] = {}
        for each in partitions:
            try:
                log = self._logs.partition(each)
            except (InvalidLogDirectoryError, OSError) as error:
                self._unknown[each] = str(error)
                continue
            if log is not None:
                logs[each] = log
        return logs

    def _note(self, partition: TopicIdPartition, state: PartitionState, log: PartitionLog | None) -> None:
        """Keep why the log start of `partition` is unknown, if that matters, and whether its log is outdated."""
        content = self._replay.content(partition)
        if log is not None and _is_older(log, content):
            self._older[partition] = log.place
        else:
            self._older.pop(partition, None)
        if state.log_start_offset is not None or next(_finished(content), None) is None:
            self._unknown.pop(partition, None)
        elif log is not None:
            self._unknown[partition] = f"{log.place} begins after the first remote segment, and no checkpoint names it"


def _state(content: PartitionContent, log: PartitionLog | None) -> PartitionState:
    """Return the state of a partition; without its log, log start and lineage are unknown."""
    if log is None:
        return PartitionState(delete_state=content.delete_state)
    first = next((each.start_offset for each in _finished(content)), log.log_start_offset)
    # A leader shows the start over both tiers; a log directory only its own first segment, and the checkpoint's entry.
    is_over_tiers = log.unsegmented is not None or log.log_start_offset <= first
    start = log.log_start_offset if is_over_tiers else log.log_start_over_tiers
    lineage = log.leader_epochs
    if _is_older(log, content):
        # What later leaders wrote cannot be contradicted by a log that does not know them.
        lineage = merged(lineage, whole_lineage(content.by_offset(), ()))
    return PartitionState(log_start_offset=start, lineage=lineage, delete_state=content.delete_state)


def _is_older(log: PartitionLog, content: PartitionContent) -> bool:
    """Return whether `log` does not know a leader that wrote a finished segment."""
    epochs = (entry.epoch for each in _finished(content) for entry in each.leader_epochs[-1:])
    return bool(log.leader_epochs) and max(epochs, default=-1) > log.leader_epochs[-1].epoch


def _finished(content: PartitionContent) -> Iterator[RemoteLogSegmentMetadata]:
    return (each for each in content.by_offset() if each.state is SegmentState.COPY_SEGMENT_FINISHED)


def _epoch_at(segment: RemoteLogSegmentMetadata, offset: int) -> int | None:
    epochs = (entry.epoch for entry in reversed(segment.leader_epochs) if entry.start_offset <= offset)
    return next(epochs, None)


def _ends_of_epochs(segment: RemoteLogSegmentMetadata) -> Iterator[tuple[int, int]]:
    """Yield each leader epoch of the segment with its last offset there."""
    starts = [entry.start_offset for entry in segment.leader_epochs[1:]]
    for entry, following in zip(segment.leader_epochs, [*starts, segment.end_offset + 1], strict=True):
        yield entry.epoch, min(following - 1, segment.end_offset)


def _state_and_past(segment: RemoteLogSegmentMetadata) -> tuple[SegmentState, bool]:
    return segment.state, segment.state is SegmentState.COPY_SEGMENT_FINISHED or segment.custom_metadata is not None


def _totals(alike: Sequence[RemoteLogSegmentMetadata]) -> SegmentTotals:
    first = alike[0]
    epochs = [entry.epoch for each in alike for entry in each.leader_epochs]
    return SegmentTotals(
        first.topic_id_partition,
        first.state,
        was_finished=_state_and_past(first)[1],
        count=len(alike),
        size=sum(each.size for each in alike),
        start_offset=min(each.start_offset for each in alike),
        end_offset=max(each.end_offset for each in alike),
        offsets=sum(each.end_offset - each.start_offset + 1 for each in alike),
        max_timestamp=max(each.max_timestamp for each in alike),
        oldest_event_timestamp=min(each.event_timestamp for each in alike),
        last_epoch=max(epochs, default=None),
    )
