"""Comparisons with columns of a table, as far as a query takes them in: on topic, partition, offset and timestamp.

A query that took a comparison in gives the rows for which it is true, and no others. What it cannot take in is left to
whoever asked, who then compares rows himself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from tiered_storage.remote_log.tables.query import TableQuery

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Operator(StrEnum):
    """How a column is compared with a value; with `IN` there are several."""

    EQUAL = "="
    GREATER = ">"
    GREATER_OR_EQUAL = ">="
    LESS = "<"
    LESS_OR_EQUAL = "<="
    IN = "in"


@dataclass(frozen=True, slots=True)
class Comparison:
    """`column` `operator` `value`: an int, a text, an aware datetime, or for `IN` a tuple of those."""

    column: str
    operator: Operator
    value: Any


def narrowed(query: TableQuery, comparison: Comparison) -> TableQuery | None:
    """Return `query` with the comparison taken in; None where it has to be left to whoever asked.

    What contradicts makes a query that is empty.
    """
    values = comparison.value if comparison.operator is Operator.IN else (comparison.value,)
    if any(value is None for value in values):
        return None
    if comparison.column == "topic":
        return _with_topic(query, comparison, values)
    if comparison.column == "partition":
        return _with_partitions(query, comparison, values)
    if comparison.column in {"offset", "timestamp"} and comparison.operator is not Operator.IN:
        return _with_range(query, comparison)
    return None


def _with_topic(query: TableQuery, comparison: Comparison, values: tuple[Any, ...]) -> TableQuery | None:
    if comparison.operator not in {Operator.EQUAL, Operator.IN} or not all(isinstance(each, str) for each in values):
        return None
    if query.topic:
        return query if query.topic in values else replace(query, partitions=frozenset())
    return replace(query, topic=values[0]) if len(set(values)) == 1 else None


def _with_partitions(query: TableQuery, comparison: Comparison, values: tuple[Any, ...]) -> TableQuery | None:
    if comparison.operator not in {Operator.EQUAL, Operator.IN} or not all(isinstance(each, int) for each in values):
        return None
    named = frozenset(values)
    return replace(query, partitions=named if query.partitions is None else query.partitions & named)


def _with_range(query: TableQuery, comparison: Comparison) -> TableQuery | None:
    value = comparison.value
    if comparison.column == "offset":
        if not isinstance(value, int):
            return None
        first, end = _bounds(comparison.operator, value, 1)
        return replace(
            query, first_offset=_later(query.first_offset, first), end_offset=_earlier(query.end_offset, end)
        )
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    first, end = _bounds(comparison.operator, (value - _EPOCH) // _MICROSECOND, 1000)
    rows = replace(
        query.rows,
        first_timestamp=_later(query.rows.first_timestamp, first),
        end_timestamp=_earlier(query.rows.end_timestamp, end),
    )
    return replace(query, rows=rows)


def _bounds(operator: Operator, value: int, unit: int) -> tuple[int | None, int | None]:
    """Return the first number (inclusive) and the end (exclusive) that, times `unit`, compare so with `value`."""
    at_or_above, above = -(-value // unit), value // unit + 1
    match operator:
        case Operator.GREATER:
            return above, None
        case Operator.GREATER_OR_EQUAL:
            return at_or_above, None
        case Operator.LESS:
            return None, at_or_above
        case Operator.LESS_OR_EQUAL:
            return None, above
        case _:
            return at_or_above, above


def _later(known: int | None, other: int | None) -> int | None:
    return other if known is None else known if other is None else max(known, other)


def _earlier(known: int | None, other: int | None) -> int | None:
    return other if known is None else known if other is None else min(known, other)
