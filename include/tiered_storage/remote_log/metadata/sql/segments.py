"""The metadata of remote segments, in SQL.

Every change reads the partition's newest lease and the segment in the transaction that writes, so the life cycle and
the fencing number are checked as of the commit. Changes come in batches; a single one is a batch of one.

A read that does not find what it looked for makes sure that the database is still in use: after a move of the segments
into a metadata topic, a process that already runs would report that nothing is remote.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, Select, String, bindparam, func, select, tuple_

from tiered_storage.errors import ConfigurationError, LeaseLostError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.metadata.life_cycle import check_addition, check_lease_of, check_lineage, offsets_at
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import (
    Addition,
    LogStart,
    ObservedLineage,
    Outcome,
    SegmentTotals,
    Step,
    only_accepted,
)
from tiered_storage.remote_log.metadata.sql.database.engine import Database
from tiered_storage.remote_log.metadata.sql.database.schema import deleted_segments, partitions, segments
from tiered_storage.remote_log.metadata.sql.partition_states import (
    all_states,
    log_start_of,
    raise_log_starts,
    state_of,
    states_of,
    take_back_deletion,
    write_deletion,
    write_lineages,
)
from tiered_storage.remote_log.metadata.sql.segment_changes import (
    add_segments,
    known_ids,
    undelete_segments,
    update_segments,
)
from tiered_storage.remote_log.metadata.sql.segment_rows import (
    bound_key,
    has_bound_key,
    in_batches,
    partition_of,
    segment_of,
    state_of_row,
    totals_in,
    totals_of,
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

ROWS_AT_ONCE = 1000
"""The most rows that a listing holds in memory."""

BEFORE_ALL_OFFSETS = -1


_LONGEST_SPAN = select(partitions.c.longest_span).where(has_bound_key(partitions))
_MAY_HAVE_EPOCH = (segments.c.first_epoch <= bindparam("epoch")) & (segments.c.last_epoch >= bindparam("epoch"))
_WITH_ID = select(segments).where(has_bound_key(segments), segments.c.segment_id == bindparam("id"))
_COUNTS = select(segments.c.state, func.count()).where(has_bound_key(segments)).group_by(segments.c.state)
_TOTALS, _DELETED_TOTALS = totals_of(segments), totals_of(deleted_segments)
_FINISHED = select(segments).where(has_bound_key(segments), segments.c.state == int(SegmentState.COPY_SEGMENT_FINISHED))
_FINISHED_WITH_OFFSET = _FINISHED.where(
    segments.c.start_offset <= bindparam("offset"),
    segments.c.start_offset > bindparam("offset", type_=BigInteger) - _LONGEST_SPAN.scalar_subquery(),
    segments.c.end_offset >= bindparam("offset"),
).order_by(segments.c.finish_sequence)
_FINISHED_WITH_EPOCH = _FINISHED.where(_MAY_HAVE_EPOCH).order_by(segments.c.start_offset.desc())
_PAGE, _DELETED_PAGE = (
    select(table)
    .where(
        has_bound_key(table),
        tuple_(table.c.start_offset, table.c.segment_id)
        > tuple_(bindparam("last_start", type_=BigInteger), bindparam("last_id", type_=String)),
    )
    .order_by(table.c.start_offset, table.c.segment_id)
    .limit(ROWS_AT_ONCE)
    for table in (segments, deleted_segments)
)
_PAGE_WITH_EPOCH = _PAGE.where(_MAY_HAVE_EPOCH)
_DELETED_PAGE_OF_OFFSETS = _DELETED_PAGE.where(
    deleted_segments.c.start_offset <= bindparam("end_offset", type_=BigInteger),
    deleted_segments.c.end_offset >= bindparam("start_offset", type_=BigInteger),
)
_PARTITIONS = select(partitions).order_by(partitions.c.cluster_id, partitions.c.topic_id, partitions.c.partition)


class SqlRemoteLogMetadataManager:
    """`RemoteLogMetadataManager` in a SQL database, with calls for many segments that cost one commit a thousand."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata, lease: Lease) -> None:
        """As RemoteLogMetadataManager; also raises ConfigurationError for what `add_remote_log_segments` does."""
        only_accepted(self.add_remote_log_segments([(metadata, lease)]))

    def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate, lease: Lease
    ) -> RemoteLogSegmentMetadata:
        """As RemoteLogMetadataManager; also raises ConfigurationError for a lease of another partition."""
        return only_accepted(self.update_remote_log_segments([(update, lease)]))

    def add_remote_log_segments(self, additions: Sequence[Addition]) -> list[Outcome]:
        """Record many copies that start; return, in order, each segment or the error that refused it.

        A refusal does not affect the others. A transaction takes ROWS_A_STATEMENT of them, so that heartbeats get their
        turn. Raises ConfigurationError, before anything is written, for a lease of another partition or another number
        than the segment's, or for impossible offsets.
        """
        for segment, lease in additions:
            check_addition(segment, lease)
        outcomes: list[Outcome] = []
        for batch in in_batches(additions):
            with self._database.writing() as connection:
                outcomes += add_segments(connection, batch, self._database.where)
        return outcomes

    def update_remote_log_segments(self, steps: Sequence[Step]) -> list[Outcome]:
        """Make many changes; return, in order, each segment after it or the error that refused the change.

        A refusal does not affect the others. A transaction takes ROWS_A_STATEMENT of them, so that heartbeats get their
        turn. Raises ConfigurationError, before anything is written, for a lease of another partition.
        """
        for step, lease in steps:
            check_lease_of(step.segment_id.topic_id_partition, lease)
        outcomes: list[Outcome] = []
        for batch in in_batches(steps):
            with self._database.writing() as connection:
                outcomes += update_segments(connection, batch, self._database.where)
        return outcomes

    def remote_log_segment_metadata(
        self, partition: TopicIdPartition, offset: int, leader_epoch: int | None = None
    ) -> RemoteLogSegmentMetadata | None:
        """As RemoteLogMetadataManager."""
        with self._database.reading() as connection:
            for row in connection.execute(_FINISHED_WITH_OFFSET, {**bound_key(partition), "offset": offset}):
                segment = segment_of(row, self._database.where)
                if leader_epoch is None or offset in offsets_at(segment, leader_epoch):
                    return segment
            self._database.check_use(connection)
        return None

    def highest_offset_for_epoch(self, partition: TopicIdPartition, leader_epoch: int) -> int | None:
        """As RemoteLogMetadataManager."""
        key = bound_key(partition)
        highest: int | None = None
        with self._database.reading() as connection:
            span = connection.scalar(_LONGEST_SPAN, key) or 0
            for row in connection.execute(_FINISHED_WITH_EPOCH, {**key, "epoch": leader_epoch}):
                if highest is not None and row.start_offset + span - 1 <= highest:
                    break
                offsets = offsets_at(segment_of(row, self._database.where), leader_epoch)
                if offsets and (highest is None or offsets[-1] > highest):
                    highest = offsets[-1]
            self._database.check_use(connection)
        return highest

    def list_remote_log_segments(
        self, partition: TopicIdPartition, leader_epoch: int | None = None
    ) -> Iterator[RemoteLogSegmentMetadata]:
        """As RemoteLogMetadataManager. Reads ROWS_AT_ONCE at a time, so changes meanwhile may or may not show."""
        page = _PAGE if leader_epoch is None else _PAGE_WITH_EPOCH
        for segment in self._paged(page, {**bound_key(partition), "epoch": leader_epoch}):
            if leader_epoch is None or offsets_at(segment, leader_epoch):
                yield segment

    def list_deleted_segments(
        self, partition: TopicIdPartition, start_offset: int, end_offset: int
    ) -> Iterator[RemoteLogSegmentMetadata]:
        """As RemoteLogMetadataManager. ROWS_AT_ONCE are read at a time."""
        values = {**bound_key(partition), "start_offset": start_offset, "end_offset": end_offset}
        return self._paged(_DELETED_PAGE_OF_OFFSETS, values)

    def _paged(self, page: Select[Any], values: Mapping[str, Any]) -> Iterator[RemoteLogSegmentMetadata]:
        last = {"last_start": BEFORE_ALL_OFFSETS, "last_id": ""}
        while True:
            # No transaction stays open while the caller works, which may take hours.
            with self._database.reading() as connection:
                rows = connection.execute(page, {**values, **last}).all()
                if len(rows) < ROWS_AT_ONCE:
                    self._database.check_use(connection)
            partition: TopicIdPartition | None = None
            for row in rows:
                if partition is None or row.topic != partition.topic:
                    partition = partition_of(row)
                yield segment_of(row, self._database.where, partition)
            if len(rows) < ROWS_AT_ONCE:
                return
            last = {"last_start": rows[-1].start_offset, "last_id": rows[-1].segment_id}

    def count_remote_log_segments(self, partition: TopicIdPartition) -> Mapping[SegmentState, int]:
        """As RemoteLogMetadataManager."""
        with self._database.reading() as connection:
            rows = connection.execute(_COUNTS, bound_key(partition)).all()
            self._database.check_use(connection)
        return {state_of_row(state, self._database.where): count for state, count in rows}

    def segment_totals(self) -> Sequence[SegmentTotals]:
        """As RemoteLogMetadataManager: one pass over each table, in the database."""
        with self._database.reading() as connection:
            rows = [*connection.execute(_TOTALS), *connection.execute(_DELETED_TOTALS)]
            self._database.check_use(connection)
        return [totals_in(row, self._database.where) for row in rows]

    def segment_by_id(self, segment_id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        """As RemoteLogMetadataManager."""
        values = {**bound_key(segment_id.topic_id_partition), "id": segment_id.id}
        with self._database.reading() as connection:
            row = connection.execute(_WITH_ID, values).one_or_none()
            if row is None:
                self._database.check_use(connection)
        return None if row is None else segment_of(row, self._database.where)

    def list_partitions(self) -> Sequence[TopicIdPartition]:
        """As RemoteLogMetadataManager, by cluster, topic id and partition."""
        with self._database.reading() as connection:
            return [partition_of(row) for row in connection.execute(_PARTITIONS)]

    def known_segment_ids(self, partition: TopicIdPartition, ids: Iterable[str]) -> frozenset[str]:
        """As RemoteLogMetadataManager."""
        known: set[str] = set()
        for batch in in_batches(sorted(set(ids))):
            with self._database.reading() as connection:
                known |= known_ids(connection, partition, batch)
                if not known.issuperset(batch):
                    self._database.check_use(connection)
        return frozenset(known)

    def log_start_offset(self, partition: TopicIdPartition) -> int | None:
        """As RemoteLogMetadataManager."""
        with self._database.reading() as connection:
            return log_start_of(connection, partition)

    def advance_log_start_offset(
        self, partition: TopicIdPartition, offset: int, lease: Lease, moved_at: int | None = None
    ) -> None:
        """As RemoteLogMetadataManager; also raises ConfigurationError for a lease of another partition."""
        for refused in self.advance_log_start_offsets([(partition, offset, lease)], moved_at):
            if refused is not None:
                raise refused

    def advance_log_start_offsets(
        self, log_starts: Sequence[LogStart], moved_at: int | None = None
    ) -> list[LeaseLostError | None]:
        """As RemoteLogMetadataManager. A transaction takes ROWS_A_STATEMENT of them."""
        for partition, offset, lease in log_starts:
            check_lease_of(partition, lease)
            if offset < 0:
                raise ConfigurationError(f"{partition}: a log cannot begin at offset {offset}: give one of 0 or more")
        outcomes: list[LeaseLostError | None] = []
        for batch in in_batches(log_starts):
            with self._database.writing() as connection:
                outcomes += raise_log_starts(connection, batch, moved_at, self._database.where)
        return outcomes

    def undelete(
        self,
        partition: TopicIdPartition,
        segment_ids: Sequence[RemoteLogSegmentId],
        log_start_offset: int,
        event_timestamp: int,
        lease: Lease,
    ) -> Sequence[RemoteLogSegmentMetadata]:
        """As RemoteLogMetadataManager."""
        for each in (partition, *(segment_id.topic_id_partition for segment_id in segment_ids)):
            check_lease_of(each, lease)
        returned: list[RemoteLogSegmentMetadata] = []
        with self._database.writing() as connection:
            take_back_deletion(connection, partition, log_start_offset, lease, self._database.where)
            for batch in in_batches(segment_ids):
                returned += undelete_segments(connection, batch, event_timestamp, self._database.where)
        return returned

    def partition_state(self, partition: TopicIdPartition) -> PartitionState:
        """As RemoteLogMetadataManager."""
        with self._database.reading() as connection:
            return state_of(connection, partition, self._database.where)

    def partition_states_of(self, partitions: Iterable[TopicIdPartition]) -> Mapping[TopicIdPartition, PartitionState]:
        """As RemoteLogMetadataManager: a query of each table for each topic."""
        with self._database.reading() as connection:
            return states_of(connection, partitions, self._database.where)

    def partition_states(self) -> Mapping[TopicIdPartition, PartitionState]:
        """As RemoteLogMetadataManager."""
        with self._database.reading() as connection:
            return all_states(connection, self._database.where)

    def put_lineage(self, partition: TopicIdPartition, lineage: Sequence[EpochEntry], lease: Lease) -> None:
        """As RemoteLogMetadataManager; also raises ConfigurationError for a lease of another partition."""
        for refused in self.put_lineages([(partition, lineage, lease)]):
            if refused is not None:
                raise refused

    def put_lineages(self, observed: Sequence[ObservedLineage]) -> list[LeaseLostError | None]:
        """As RemoteLogMetadataManager. A transaction takes ROWS_A_STATEMENT of them."""
        for partition, lineage, lease in observed:
            check_lease_of(partition, lease)
            check_lineage(partition, lineage)
        outcomes: list[LeaseLostError | None] = []
        for batch in in_batches(observed):
            with self._database.writing() as connection:
                outcomes += write_lineages(connection, batch, self._database.where)
        return outcomes

    def put_remote_partition_delete_metadata(self, metadata: RemotePartitionDeleteMetadata, lease: Lease) -> None:
        """As RemoteLogMetadataManager; also raises ConfigurationError for a lease of another partition."""
        check_lease_of(metadata.topic_id_partition, lease)
        with self._database.writing() as connection:
            write_deletion(connection, metadata, lease, self._database.where)
