"""A partition as the key of SQL rows, and how many rows one statement takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Row, Table, bindparam

from tiered_storage.remote_log.model import TopicIdPartition

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

    So a statement is built once, when its module loads: to build it costs more than to run it. For many partitions it
    is run many times: SQLite looks through the whole table for `(a, b) IN (VALUES ...)`.
    """
    return (
        (table.c.cluster_id == bindparam("key_cluster_id"))
        & (table.c.topic_id == bindparam("key_topic_id"))
        & (table.c.partition == bindparam("key_partition"))
    )


def bound_key(partition: TopicIdPartition) -> dict[str, Any]:
    """Return the values for `has_bound_key`."""
    return {f"key_{name}": value for name, value in key_values(partition).items()}


def partition_of(row: Row[Any]) -> TopicIdPartition:
    """Return the partition of a row that has the key columns and `topic`."""
    return TopicIdPartition(row.cluster_id, row.topic_id, row.partition, row.topic)
