"""Move the segments between the SQL store and a metadata topic, both ways, and verify a topic.

A move into a topic may be repeated until it ends; until then SQL keeps every segment:

    1. nobody may hold a lease; the topic is created, and recorded in SQL as arriving, so that no process uses either
    2. write what the topic lacks, the copies of each partition in the order in which they finished
    3. compare the topic, as it is read back, with SQL, segment by segment
    4. delete the segments from SQL and record the topic as complete, in one transaction

A move back is one transaction in SQL. The topic stays, and is not used any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from sqlalchemy import Connection, Table, delete, func, insert, select

from tiered_storage.clock import Clock
from tiered_storage.errors import ConfigurationError, RemoteMetadataError
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
        _write_facts(locked, database.where)
    for batch in _batches(store):
        known = _in_topic(store, [each.segment_id for each, _ in batch])
        records = [record for each, was in batch for record in _records_of(each, known.get(each.segment_id), was)]
        _written(store, records)
    _written(store, _missing_deletions(store))
    moved = _ensure_arrived(store)
    with database.writing() as locked:
        database.keep_transaction(locked)
        ensure_free(locked, clock(), database.where)
        for segment, _ in list(_rows_that_fit(locked, database.where)):
            _delete(locked, segment.segment_id)
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
    if topic.is_arriving:
        with database.writing() as locked:
            _forget_topic(locked)
        return MovedSegments(str(topic), database.where, 0)
    store.state.catch_up()
    with database.writing() as locked, store.state.cache.database.reading() as cached:
        database.keep_transaction(locked)
        ensure_free(locked, clock(), database.where)
        moved = sum(_copy_rows(cached, locked, table) for table in _TABLES)
        _merge_partitions(cached, locked)
        _forget_topic(locked)
    return MovedSegments(str(topic), database.where, moved)


def verify_topic(store: TopicMetadataStore) -> VerifiedTopic:
    """Read the whole topic once more, and compare the result with this host's cache, row by row.

    Raises RemoteMetadataError for the first row that differs.
    """
    with TemporaryDirectory(prefix="remote-log-") as folder:
        scratch = store.state.scratch(Path(folder))
        try:
            for _ in range(_TRIES):
                scratch.catch_up()
                store.state.catch_up()
                if scratch.cache.consumed() == store.state.cache.consumed():
                    break
            with scratch.cache.database.reading() as read, store.state.cache.database.reading() as cached:
                ensure_same_rows(read, cached, str(store.state.cache.path))
                counts = [cached.scalar(select(func.count()).select_from(table)) or 0 for table in _TABLES]
        finally:
            scratch.close()
    return VerifiedTopic(store.state.topic, sum(counts), store.state.cache.skipped_count())


def _write_facts(connection: Connection, where: str) -> None:
    for batch in in_batches(list(_rows_that_fit(connection, where))):
        write_beginnings(connection, [segment for segment, _ in batch])


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
        found = list(_rows_that_fit(connection, database.where))
    yield from in_batches(found)


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


def _written(store: TopicMetadataStore, records: Sequence[Written]) -> None:
    for batch in in_batches(records):
        skipped = store.state.write(batch)
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


def _ensure_arrived(store: TopicMetadataStore) -> int:
    """Return how many segments the topic has. Raises RemoteMetadataError for one that differs from SQL."""
    moved = 0
    for batch in _batches(store):
        known = _in_topic(store, [segment.segment_id for segment, _ in batch])
        for segment, _ in batch:
            there = known.get(segment.segment_id)
            if there != segment:
                raise RemoteMetadataError(
                    f"{store.state.topic}: segment {segment.segment_id} is there as {there}, and in SQL as {segment}: "
                    "nothing was deleted in SQL; make sure that nobody else writes to the topic, then move again"
                )
        moved += len(batch)
    return moved


def _delete(connection: Connection, segment_id: RemoteLogSegmentId) -> None:
    for table in _TABLES:
        statement = delete(table).where(has_bound_key(table), table.c.segment_id == segment_id.id)
        connection.execute(statement, bound_key(segment_id.topic_id_partition))


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
