"""Move the segments between the SQL store and a metadata topic, both ways, and verify a topic.

A move into a topic may be repeated until it ends; until then SQL keeps every segment:

    1. nobody may hold a lease; the topic is created, and recorded in SQL as arriving, so that no process uses either
    2. write what the topic lacks, the copies of each partition in the order in which they finished
    3. in one transaction, compare the topic, as it is read back, with SQL, segment by segment, delete these segments
       from SQL, and record the topic as complete

A move back is one transaction in SQL, which begins by reading what is new in the topic. The topic stays, and is not
used any more. Processes that run during a move are refused after it: see TopicState.check_use and Database.check_use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Final

from sqlalchemy import Connection, Table, delete, func, insert, select

from tiered_storage.clock import Clock
from tiered_storage.errors import ConfigurationError, MetadataUnavailableError, RemoteMetadataError
from tiered_storage.remote_log.metadata.sql.database.engine import Database, insert_or_replace
from tiered_storage.remote_log.metadata.sql.database.moving import ensure_free
from tiered_storage.remote_log.metadata.sql.database.row_copies import ensure_same_rows
from tiered_storage.remote_log.metadata.sql.database.schema import (
    deleted_segments,
    partition_deletions,
    partitions,
    segments,
    topic_segments,
)
from tiered_storage.remote_log.metadata.sql.segment_rows import (
    ROWS_A_STATEMENT,
    bound_key,
    has_bound_key,
    in_batches,
    partition_of,
    segment_of,
)
from tiered_storage.remote_log.metadata.sql.topic_segments import (
    MetadataTopicId,
    read_metadata_topic,
    write_beginnings,
    write_metadata_topic,
)
from tiered_storage.remote_log.metadata.topic.cache import next_offsets
from tiered_storage.remote_log.metadata.topic.segment_writes import fits_a_record
from tiered_storage.remote_log.metadata.topic.store import TopicMetadataStore
from tiered_storage.remote_log.metadata.topic.topic_state import Written
from tiered_storage.remote_log.model import (
    PartitionDeleteState,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    SegmentState,
)

_TABLES: Final = (segments, deleted_segments)
_READ_AT_ONCE: Final = 1000
_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class MovedSegments:
    """What a move moved, and the names of both places."""

    source: str
    target: str
    segments: int


@dataclass(frozen=True, slots=True)
class VerifiedTopic:
    """What a verification found: how many segments the topic has, deleted ones too, and how many records changed
    nothing.
    """

    topic: MetadataTopicId
    segments: int
    skipped: int


def move_into_topic(store: TopicMetadataStore, clock: Clock) -> MovedSegments:
    """Move all segments that a record can hold from SQL into the topic of `store`; see the module.

    Raises LeaseHeldError while anybody works on a partition, ConfigurationError if the topic has other metadata or the
    segments are in a topic already, and RemoteMetadataError if what is read back differs.
    """
    database = store.sql.database
    with database.reading() as connection:
        ensure_free(connection, clock(), database.where)
    topic = store.state.begin_arrival()
    if not topic.is_arriving:
        raise ConfigurationError(f"{database.where}: the segments are in metadata topic {topic} already")
    with database.writing() as locked:
        database.keep_transaction(locked)
        ensure_free(locked, clock(), database.where)
        # Read beside the transaction that writes, here and below: nobody else writes until it ends.
        for batch in _batches(store):
            write_beginnings(locked, [segment for segment, _ in batch])
    for batch in _batches(store):
        known = _in_topic(store, [each.segment_id for each, _ in batch])
        records = [record for each, was in batch for record in _records_of(each, known.get(each.segment_id), was)]
        _written(store, records, {each.segment_id: each.broker_id for each, _ in batch})
    _written(store, _missing_deletions(store))
    moved = 0
    with database.writing() as locked:
        database.keep_transaction(locked)
        ensure_free(locked, clock(), database.where)
        _ensure_unchanged(locked, topic, database.where)
        for batch in _batches(store):
            _ensure_arrived(store, [segment for segment, _ in batch])
            for segment, _ in batch:
                _delete(locked, segment.segment_id)
            moved += len(batch)
        write_metadata_topic(locked, replace(topic, is_arriving=False))
    return MovedSegments(database.where, str(replace(topic, is_arriving=False)), moved)


def move_into_database(store: TopicMetadataStore, clock: Clock) -> MovedSegments:
    """Move all segments from the topic of `store` into its SQL database; every process must be started again after it.

    Takes back a move into the topic that has not ended. Raises LeaseHeldError while anybody works on a partition, and
    ConfigurationError if SQL has the segments.
    """
    database = store.sql.database
    with database.reading() as connection:
        ensure_free(connection, clock(), database.where)
        topic = read_metadata_topic(connection, database.where)
    if topic is None:
        raise ConfigurationError(f"{database.where}: has the segments already")
    if not topic.is_arriving:
        # So that little is left to read while everybody else waits.
        store.state.catch_up()
    with database.writing() as locked:
        database.keep_transaction(locked)
        ensure_free(locked, clock(), database.where)
        _ensure_unchanged(locked, topic, database.where)
        moved = 0 if topic.is_arriving else _copy_from_cache(store, locked)
        _forget_topic(locked)
    return MovedSegments(str(topic), database.where, moved)


def verify_topic(store: TopicMetadataStore) -> VerifiedTopic:
    """Read the whole topic once more, and compare the result with this host's cache, row by row.

    Raises RemoteMetadataError for the first row that differs, and MetadataUnavailableError if records arrive faster
    than they are read.
    """
    with TemporaryDirectory(prefix="remote-log-") as folder:
        scratch = store.state.scratch(Path(folder))
        try:
            for _ in range(_TRIES):
                scratch.catch_up()
                store.state.catch_up()
                with scratch.cache.database.reading() as read, store.state.cache.database.reading() as cached:
                    # In the same transactions: other processes of this host apply records meanwhile.
                    if next_offsets(read) == next_offsets(cached):
                        ensure_same_rows(read, cached, str(store.state.cache.path))
                        counts = [cached.scalar(select(func.count()).select_from(table)) or 0 for table in _TABLES]
                        return VerifiedTopic(store.state.topic, sum(counts), store.state.cache.skipped_count())
        finally:
            scratch.close()
    raise MetadataUnavailableError(
        f"{store.state.topic}: its records arrive faster than they are read, so nothing was compared: try again, or "
        "end the processes that copy and delete"
    )


def _rows_that_fit(connection: Connection, where: str) -> Iterator[tuple[RemoteLogSegmentMetadata, bool]]:
    """Yield the segments in SQL that a record can hold, by partition and the order in which they finished.

    With each, whether its copy finished once.
    """
    for table in _TABLES:
        keys = table.c.cluster_id, table.c.topic_id, table.c.partition
        ordered = select(table).order_by(*keys, table.c.finish_sequence.is_(None), table.c.finish_sequence)
        for row in connection.execute(ordered.execution_options(yield_per=_READ_AT_ONCE)):
            segment = segment_of(row, where)
            if fits_a_record(segment):
                yield segment, row.finish_sequence is not None


def _batches(store: TopicMetadataStore) -> Iterator[Sequence[tuple[RemoteLogSegmentMetadata, bool]]]:
    database = store.sql.database
    with database.reading() as connection:
        database.keep_transaction(connection)
        rows = _rows_that_fit(connection, database.where)
        while batch := list(islice(rows, ROWS_A_STATEMENT)):
            yield batch


def _in_topic(
    store: TopicMetadataStore, ids: Sequence[RemoteLogSegmentId]
) -> dict[RemoteLogSegmentId, RemoteLogSegmentMetadata]:
    return store.state.known(store.state.partitions_of(each.topic_id_partition for each in ids), ids)


def _records_of(
    segment: RemoteLogSegmentMetadata, known: RemoteLogSegmentMetadata | None, was_finished: bool
) -> list[Written]:
    """Return the records of the life of `segment` that the topic lacks; `known` is what it has."""
    life = [SegmentState.COPY_SEGMENT_STARTED]
    life += [SegmentState.COPY_SEGMENT_FINISHED] if was_finished else []
    life += [state for state in SegmentState if SegmentState.COPY_SEGMENT_FINISHED < state <= segment.state]
    missing = [state for state in life if known is None or state > known.state]
    records: list[Written] = []
    for state in missing:
        if state is SegmentState.COPY_SEGMENT_STARTED:
            records.append(replace(segment, state=state, custom_metadata=None))
        else:
            custom = segment.custom_metadata
            records.append(RemoteLogSegmentMetadataUpdate(segment.segment_id, state, segment.event_timestamp, custom))
    return records


def _written(
    store: TopicMetadataStore,
    records: Sequence[Written],
    brokers: Mapping[RemoteLogSegmentId, int] = MappingProxyType({}),
) -> None:
    for batch in in_batches(records):
        skipped = store.state.write(batch, brokers)
        if skipped:
            number, reason = min(skipped.items())
            raise RemoteMetadataError(f"{store.state.topic}: {batch[number]} was refused: {reason}")


def _missing_deletions(store: TopicMetadataStore) -> list[RemotePartitionDeleteMetadata]:
    """Return how far the deletions of whole partitions are, unless the topic has that already."""
    store.state.catch_up()
    found, there = (_deletions(each) for each in (store.sql.database, store.state.cache.database))
    return [each for each in found if each not in there]


def _deletions(database: Database) -> list[RemotePartitionDeleteMetadata]:
    with database.reading() as connection:
        rows = connection.execute(select(partition_deletions)).all()
    return [
        RemotePartitionDeleteMetadata(partition_of(row), PartitionDeleteState(row.state), row.event_timestamp)
        for row in rows
    ]


def _ensure_arrived(store: TopicMetadataStore, moved: Sequence[RemoteLogSegmentMetadata]) -> None:
    """Raise RemoteMetadataError for a segment that the topic has otherwise than SQL."""
    known = _in_topic(store, [segment.segment_id for segment in moved])
    for segment in moved:
        there = known.get(segment.segment_id)
        if there != segment:
            raise RemoteMetadataError(
                f"{store.state.topic}: segment {segment.segment_id} is there as {there}, and in SQL as {segment}: "
                "nothing was deleted in SQL; make sure that nobody else writes to the topic, then move again"
            )


def _ensure_unchanged(connection: Connection, topic: MetadataTopicId, where: str) -> None:
    """Raise ConfigurationError unless SQL still names `topic`."""
    found = read_metadata_topic(connection, where)
    if found != topic:
        raise ConfigurationError(
            f"{where}: another 'tiered-storage metadata move' went on meanwhile: the segments are in "
            f"{found or 'the database'} now; nothing was changed: see 'tiered-storage metadata status'"
        )


def _delete(connection: Connection, segment_id: RemoteLogSegmentId) -> None:
    for table in _TABLES:
        statement = delete(table).where(has_bound_key(table), table.c.segment_id == segment_id.id)
        connection.execute(statement, bound_key(segment_id.topic_id_partition))


def _copy_from_cache(store: TopicMetadataStore, target: Connection) -> int:
    """Copy all segments of the topic to `target`, which nobody else writes; return how many."""
    store.state.catch_up()
    with store.state.cache.database.reading() as cached:
        moved = sum(_copy_rows(cached, target, table) for table in _TABLES)
        _merge_partitions(cached, target)
    return moved


def _copy_rows(source: Connection, target: Connection, table: Table) -> int:
    copied = 0
    for batch in source.execute(select(table).execution_options(yield_per=_READ_AT_ONCE)).partitions(_READ_AT_ONCE):
        for row in batch:
            # What an interrupted end of a copy left in SQL.
            _delete(target, RemoteLogSegmentId(partition_of(row), row.segment_id))
        target.execute(insert(table), [row._asdict() for row in batch])
        copied += len(batch)
    return copied


def _merge_partitions(source: Connection, target: Connection) -> None:
    """Keep the longest span of both, and number later copies after all of both."""
    known = {partition_of(row): row for row in target.execute(select(partitions))}
    merged = []
    for row in source.execute(select(partitions)):
        other = known.get(partition_of(row))
        span, copies = (0, 0) if other is None else (other.longest_span, other.finished_copies)
        values = {"longest_span": max(span, row.longest_span), "finished_copies": copies + row.finished_copies}
        merged.append({**row._asdict(), **values})
    if merged:
        insert_or_replace(target, partitions, merged)


def _forget_topic(connection: Connection) -> None:
    connection.execute(delete(topic_segments))
    write_metadata_topic(connection, None)
