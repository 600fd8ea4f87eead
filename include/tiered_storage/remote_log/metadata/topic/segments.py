"""RemoteLogMetadataManager over a metadata topic: segments in the topic, all else in SQL.

Every read catches up with the log first; while nobody works on a partition, look-ups of its offsets need not ask the
brokers for that (TopicState.look_up). Deletions of whole partitions are decided in SQL, where an undelete can take them
back, and are written to the topic too. Segments that a record cannot hold are in SQL (segment_writes.py): reads look
there first and let the topic win, since a segment only moves from SQL to the topic.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from tiered_storage.errors import LeaseLostError, MetadataCorruptError, MetadataUnavailableError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.metadata.life_cycle import why_lost
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import (
    Addition,
    LogStart,
    ObservedLineage,
    Outcome,
    SegmentTotals,
    Step,
    only_accepted,
)
from tiered_storage.remote_log.metadata.sql.leases import newest_leases
from tiered_storage.remote_log.metadata.sql.segments import SqlRemoteLogMetadataManager
from tiered_storage.remote_log.metadata.sql.store import SqlMetadataStore
from tiered_storage.remote_log.metadata.topic.segment_writes import TopicSegmentWrites
from tiered_storage.remote_log.metadata.topic.topic_state import TopicState
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


class TopicRemoteLogMetadataManager:
    """`RemoteLogMetadataManager` with the segments in the topic of `state`, and the rest in the SQL store `sql`."""

    def __init__(self, state: TopicState, sql: SqlMetadataStore) -> None:
        """Read nothing yet."""
        self._state = state
        self._sql = sql.segments
        self._database = sql.database
        self._writes = TopicSegmentWrites(state, sql.database)

    def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata, lease: Lease) -> None:
        """As RemoteLogMetadataManager; also raises ConfigurationError for what a record cannot hold."""
        only_accepted(self.add_remote_log_segments([(metadata, lease)]))

    def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate, lease: Lease
    ) -> RemoteLogSegmentMetadata:
        """As RemoteLogMetadataManager."""
        return only_accepted(self.update_remote_log_segments([(update, lease)]))

    def add_remote_log_segments(self, additions: Sequence[Addition]) -> list[Outcome]:
        """As RemoteLogMetadataManager. A refused record is an InvalidTransitionError."""
        return self._writes.add(additions)

    def update_remote_log_segments(self, steps: Sequence[Step]) -> list[Outcome]:
        """As RemoteLogMetadataManager. A refused record is an InvalidTransitionError."""
        return self._writes.update(steps)

    def remote_log_segment_metadata(
        self, partition: TopicIdPartition, offset: int, leader_epoch: int | None = None
    ) -> RemoteLogSegmentMetadata | None:
        """As RemoteLogMetadataManager; of several, the one whose record is first in the log.

        What is finished in SQL stays there, so that it may be looked for after the topic.
        """
        found = self._state.look_up(
            partition, lambda cached: cached.remote_log_segment_metadata(partition, offset, leader_epoch)
        )
        return found or self._sql.remote_log_segment_metadata(partition, offset, leader_epoch)

    def highest_offset_for_epoch(self, partition: TopicIdPartition, leader_epoch: int) -> int | None:
        """As RemoteLogMetadataManager. Finished segments with leader epochs are all in the topic."""
        return self._state.look_up(partition, lambda cached: cached.highest_offset_for_epoch(partition, leader_epoch))

    def list_remote_log_segments(
        self, partition: TopicIdPartition, leader_epoch: int | None = None
    ) -> Iterator[RemoteLogSegmentMetadata]:
        """As RemoteLogMetadataManager."""
        beside = list(self._sql.list_remote_log_segments(partition, leader_epoch))
        cached = self._caught_up(partition)
        unknown = _unknown(cached, partition, beside)
        taken = {each.segment_id for each in unknown}
        listed = self._streamed(partition, lambda cached: cached.list_remote_log_segments(partition, leader_epoch))
        # A copy that finishes meanwhile comes into the topic: it is listed once, as it was.
        new = (each for each in listed if each.segment_id not in taken)
        yield from heapq.merge(unknown, new, key=_by_start)

    def list_deleted_segments(
        self, partition: TopicIdPartition, start_offset: int, end_offset: int
    ) -> Iterator[RemoteLogSegmentMetadata]:
        """As RemoteLogMetadataManager."""
        beside = self._sql.list_deleted_segments(partition, start_offset, end_offset)
        listed = self._streamed(
            partition, lambda cached: cached.list_deleted_segments(partition, start_offset, end_offset)
        )
        yield from heapq.merge(beside, listed, key=_by_start)

    def count_remote_log_segments(self, partition: TopicIdPartition) -> Mapping[SegmentState, int]:
        """As RemoteLogMetadataManager."""
        beside = list(self._sql.list_remote_log_segments(partition))
        cached = self._caught_up(partition)
        counts = Counter(each.state for each in _unknown(cached, partition, beside))
        counts.update(cached.count_remote_log_segments(partition))
        return dict(counts)

    def segment_totals(self) -> Sequence[SegmentTotals]:
        """As RemoteLogMetadataManager; a copy that finishes at this very moment may count twice."""
        totals: dict[tuple[TopicIdPartition, SegmentState, bool], SegmentTotals] = {}
        beside = self._sql.segment_totals()
        for each in (*self._state.read(None, lambda cached: cached.segment_totals()), *beside):
            key = each.topic_id_partition, each.state, each.was_finished
            totals[key] = _sum(totals[key], each) if key in totals else each
        return list(totals.values())

    def segment_by_id(self, segment_id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        """As RemoteLogMetadataManager."""
        beside = self._sql.segment_by_id(segment_id)
        cached = self._caught_up(segment_id.topic_id_partition)
        if cached.known_segment_ids(segment_id.topic_id_partition, [segment_id.id]):
            return cached.segment_by_id(segment_id)
        return beside

    def known_segment_ids(self, partition: TopicIdPartition, ids: Iterable[str]) -> frozenset[str]:
        """As RemoteLogMetadataManager. An id that only topic_segments has is unknown: the topic lost its records."""
        asked = list(ids)
        beside = self._sql.known_segment_ids(partition, asked)
        return beside | self._caught_up(partition).known_segment_ids(partition, asked)

    def list_partitions(self) -> Sequence[TopicIdPartition]:
        """As RemoteLogMetadataManager, by cluster, topic id and partition."""
        cached = self._state.read(None, lambda cached: cached.list_partitions())
        return sorted({*cached, *self._sql.list_partitions()})

    def log_start_offset(self, partition: TopicIdPartition) -> int | None:
        """As RemoteLogMetadataManager."""
        return self._sql.log_start_offset(partition)

    def advance_log_start_offset(
        self, partition: TopicIdPartition, offset: int, lease: Lease, moved_at: int | None = None
    ) -> None:
        """As RemoteLogMetadataManager."""
        self._sql.advance_log_start_offset(partition, offset, lease, moved_at)

    def advance_log_start_offsets(
        self, log_starts: Sequence[LogStart], moved_at: int | None = None
    ) -> list[LeaseLostError | None]:
        """As RemoteLogMetadataManager."""
        return self._sql.advance_log_start_offsets(log_starts, moved_at)

    def undelete(
        self,
        partition: TopicIdPartition,
        segment_ids: Sequence[RemoteLogSegmentId],
        log_start_offset: int,
        event_timestamp: int,
        lease: Lease,
    ) -> Sequence[RemoteLogSegmentMetadata]:
        """As RemoteLogMetadataManager; the segments' records follow what is in SQL."""
        return self._writes.undelete(partition, segment_ids, log_start_offset, event_timestamp, lease)

    def partition_state(self, partition: TopicIdPartition) -> PartitionState:
        """As RemoteLogMetadataManager."""
        return self._sql.partition_state(partition)

    def partition_states_of(self, partitions: Iterable[TopicIdPartition]) -> Mapping[TopicIdPartition, PartitionState]:
        """As RemoteLogMetadataManager."""
        return self._sql.partition_states_of(partitions)

    def partition_states(self) -> Mapping[TopicIdPartition, PartitionState]:
        """As RemoteLogMetadataManager."""
        with_segments = dict.fromkeys(self.list_partitions(), PartitionState())
        return with_segments | dict(self._sql.partition_states())

    def put_lineage(self, partition: TopicIdPartition, lineage: Sequence[EpochEntry], lease: Lease) -> None:
        """As RemoteLogMetadataManager."""
        self._sql.put_lineage(partition, lineage, lease)

    def put_lineages(self, observed: Sequence[ObservedLineage]) -> list[LeaseLostError | None]:
        """As RemoteLogMetadataManager."""
        return self._sql.put_lineages(observed)

    def put_remote_partition_delete_metadata(self, metadata: RemotePartitionDeleteMetadata, lease: Lease) -> None:
        """As RemoteLogMetadataManager: in SQL, then in the topic unless it has that state last."""
        self._sql.put_remote_partition_delete_metadata(metadata, lease)
        partition = metadata.topic_id_partition
        if self._caught_up(partition).partition_state(partition).delete_state is not metadata.state:
            self._state.write([metadata])
        with self._database.reading() as connection:
            self._state.check_use(connection)
            lost = why_lost(lease, newest_leases(connection, [partition]))
        if lost is not None:
            raise lost

    def _caught_up(self, partition: TopicIdPartition) -> SqlRemoteLogMetadataManager:
        """Catch up with the metadata partition of `partition`; return what reads the cache."""
        return self._state.read(self._state.partitions_of([partition]), lambda cached: cached)

    def _streamed(
        self,
        partition: TopicIdPartition,
        listed: Callable[[SqlRemoteLogMetadataManager], Iterator[RemoteLogSegmentMetadata]],
    ) -> Iterator[RemoteLogSegmentMetadata]:
        """Catch up and yield what is `listed`, by start offset; go on with another cache if the file is damaged."""
        last, is_complete = (-1, ""), False
        while not is_complete:
            try:
                for segment in listed(self._caught_up(partition)):
                    if _by_start(segment) > last:
                        last = _by_start(segment)
                        yield segment
                is_complete = True
            except (MetadataCorruptError, MetadataUnavailableError) as error:
                if not self._state.repairs(error):
                    raise


def _unknown(
    cached: SqlRemoteLogMetadataManager, partition: TopicIdPartition, beside: Sequence[RemoteLogSegmentMetadata]
) -> list[RemoteLogSegmentMetadata]:
    """Return those of `beside`, from SQL, that the topic does not have."""
    known = cached.known_segment_ids(partition, [each.segment_id.id for each in beside])
    return [each for each in beside if each.segment_id.id not in known]


def _by_start(segment: RemoteLogSegmentMetadata) -> tuple[int, str]:
    return segment.start_offset, segment.segment_id.id


def _sum(one: SegmentTotals, other: SegmentTotals) -> SegmentTotals:
    epochs = [each.last_epoch for each in (one, other) if each.last_epoch is not None]
    return replace(
        one,
        count=one.count + other.count,
        size=one.size + other.size,
        start_offset=min(one.start_offset, other.start_offset),
        end_offset=max(one.end_offset, other.end_offset),
        offsets=one.offsets + other.offsets,
        max_timestamp=max(one.max_timestamp, other.max_timestamp),
        oldest_event_timestamp=min(one.oldest_event_timestamp, other.oldest_event_timestamp),
        last_epoch=max(epochs, default=None),
    )
