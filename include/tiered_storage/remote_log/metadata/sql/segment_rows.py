"""Convert segment metadata and leader epochs to SQL rows and back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, TypeVar

from pydantic_core import from_json
from sqlalchemy import ColumnElement, Connection, Row, Select, Table, bindparam, func, select

from tiered_storage.errors import MetadataCorruptError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import SegmentTotals
from tiered_storage.remote_log.metadata.sql.database.engine import is_among
from tiered_storage.remote_log.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)

ROWS_A_STATEMENT = 1000
"""SQLite and PostgreSQL bind at most about 32,000 values in one statement."""

T = TypeVar("T")


def in_batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield `items` in order, ROWS_A_STATEMENT at a time."""
    for first in range(0, len(items), ROWS_A_STATEMENT):
        yield items[first : first + ROWS_A_STATEMENT]


def key_values(partition: TopicIdPartition) -> dict[str, Any]:
    """Return the values of the key columns."""
    return {
        "cluster_id": partition.cluster_id,
        "topic_id": partition.topic_id,
        "partition": partition.partition,
    }


def has_bound_key(table: Table) -> ColumnElement[bool]:
    """Return the condition for the rows of the partition that `bound_key` gives.

    So a statement is built once, when its module loads: building it costs more than running it. See rows_by_partition
    for many partitions.
    """
    return _has_bound_topic(table) & (table.c.partition == bindparam("key_partition"))


def _has_bound_topic(table: Table) -> ColumnElement[bool]:
    return (table.c.cluster_id == bindparam("key_cluster_id")) & (table.c.topic_id == bindparam("key_topic_id"))


def bound_key(partition: TopicIdPartition) -> dict[str, Any]:
    """Return the values for `has_bound_key`."""
    return {f"key_{name}": value for name, value in key_values(partition).items()}


def rows_by_partition(
    connection: Connection, table: Table, wanted: Iterable[TopicIdPartition]
) -> dict[TopicIdPartition, Row[Any]]:
    """Return the rows of the partitions, in their order, that have one in `table`, whose key is the partition's.

    A query for each topic: SQLite scans the whole table for `(a, b) IN (VALUES ...)`.
    """
    topics: dict[tuple[str, str], dict[int, TopicIdPartition]] = {}
    in_order = sorted(set(wanted))
    for each in in_order:
        topics.setdefault((each.cluster_id, each.topic_id), {})[each.partition] = each
    statement = _of_a_topic(connection.dialect.name, table)
    found: dict[TopicIdPartition, Row[Any]] = {}
    for (cluster_id, topic_id), numbered in topics.items():
        for numbers in in_batches(list(numbered)):
            values = {"key_cluster_id": cluster_id, "key_topic_id": topic_id, "partitions": numbers}
            found.update({numbered[row.partition]: row for row in connection.execute(statement, values)})
    return {each: found[each] for each in in_order if each in found}


@cache
def _of_a_topic(dialect: str, table: Table) -> Select[Any]:
    return select(table).where(_has_bound_topic(table), is_among(dialect, table.c.partition, "partitions"))


def partition_of(row: Row[Any]) -> TopicIdPartition:
    """Return the partition of a row that has the key columns and `topic`."""
    return TopicIdPartition(row.cluster_id, row.topic_id, row.partition, row.topic)


def row_of(segment: RemoteLogSegmentMetadata) -> dict[str, Any]:
    """Return the values of a row of `segments`, without `finish_sequence`."""
    return {
        **key_values(segment.topic_id_partition),
        **rolled_values(segment),
        "segment_id": segment.segment_id.id,
        "topic": segment.topic_id_partition.topic,
        "max_timestamp": segment.max_timestamp,
        "event_timestamp": segment.event_timestamp,
        "state": int(segment.state),
        "broker_id": segment.broker_id,
        "custom_metadata": segment.custom_metadata,
        "fencing_number": segment.fencing_number,
    }


ROLLED_COLUMNS = ("start_offset", "end_offset", "size", "leader_epochs", "first_epoch", "last_epoch")
"""The columns that the end of a copy sets if the copy rolled its segment itself."""


def rolled_values(segment: RemoteLogSegmentMetadata) -> dict[str, Any]:
    """Return the values of ROLLED_COLUMNS."""
    epochs = [entry.epoch for entry in segment.leader_epochs]
    text = epochs_text(segment.leader_epochs)
    ends = (min(epochs, default=None), max(epochs, default=None))
    return dict(zip(ROLLED_COLUMNS, (segment.start_offset, segment.end_offset, segment.size, text, *ends), strict=True))


def segment_of(row: Row[Any], where: str, partition: TopicIdPartition | None = None) -> RemoteLogSegmentMetadata:
    """Return the metadata in a row of `segments` or `deleted_segments` of the database `where`.

    `partition` is that of the row, if the caller has it already. Raises MetadataCorruptError if the row is invalid.
    """
    try:
        return RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(partition or partition_of(row), row.segment_id),
            start_offset=row.start_offset,
            end_offset=row.end_offset,
            max_timestamp=row.max_timestamp,
            event_timestamp=row.event_timestamp,
            size=row.size,
            leader_epochs=epochs_of(row.leader_epochs),
            state=SegmentState(row.state),
            broker_id=row.broker_id,
            custom_metadata=row.custom_metadata,
            fencing_number=row.fencing_number,
        )
    except (ValueError, TypeError) as error:
        raise MetadataCorruptError(
            f"{where}: the row of segment {row.segment_id} is damaged ({error}): restore the metadata store from its "
            "backup"
        ) from error


def state_of_row(number: int, where: str) -> SegmentState:
    """Return the state in a row. Raises MetadataCorruptError if the number is invalid."""
    try:
        return SegmentState(number)
    except ValueError as error:
        raise MetadataCorruptError(
            f"{where}: a segment has the invalid state {number}: restore the metadata store from its backup"
        ) from error


def totals_of(table: Table) -> Select[Any]:
    """Return the query for the totals of the segments in `table`, by partition, state, and whether they were finished.

    The conversion of a row is `totals_in`.
    """
    columns = table.c
    was_finished = columns.finish_sequence.is_not(None)
    keys = columns.cluster_id, columns.topic_id, columns.partition, columns.state, was_finished
    return select(
        *keys[:-1],
        was_finished.label("was_finished"),
        func.max(columns.topic).label("topic"),
        func.count().label("segments"),
        func.sum(columns.size).label("size"),
        func.min(columns.start_offset).label("start_offset"),
        func.max(columns.end_offset).label("end_offset"),
        func.sum(columns.end_offset - columns.start_offset + 1).label("offsets"),
        func.max(columns.max_timestamp).label("max_timestamp"),
        func.min(columns.event_timestamp).label("oldest_event_timestamp"),
        func.max(columns.last_epoch).label("last_epoch"),
    ).group_by(*keys)


def totals_in(row: Row[Any], where: str) -> SegmentTotals:
    """Return the totals in a row of `totals_of`. Raises MetadataCorruptError for an invalid state."""
    return SegmentTotals(
        topic_id_partition=partition_of(row),
        state=state_of_row(row.state, where),
        was_finished=bool(row.was_finished),
        count=row.segments,
        # PostgreSQL adds whole numbers up to decimal ones.
        size=int(row.size),
        start_offset=row.start_offset,
        end_offset=row.end_offset,
        offsets=int(row.offsets),
        max_timestamp=row.max_timestamp,
        oldest_event_timestamp=row.oldest_event_timestamp,
        last_epoch=row.last_epoch,
    )


def epochs_text(leader_epochs: Sequence[EpochEntry]) -> str:
    """Return leader epochs as one column's text."""
    return json.dumps([(entry.epoch, entry.start_offset) for entry in leader_epochs])


def epochs_of(text: str) -> tuple[EpochEntry, ...]:
    """Return the leader epochs in a column's text. Raises ValueError or TypeError if it is invalid."""
    return tuple(EpochEntry(epoch, start) for epoch, start in from_json(text))
