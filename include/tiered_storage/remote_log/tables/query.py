"""The query for a topic as a table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from tiered_storage.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Which rows of a range are returned: by timestamp (ms, the end exclusive), and only committed ones or all.

    `disorder_ms` is how much earlier a record may be than the first one of its batch: a batch that begins that much
    after the end, or later, is not read. None: any disorder; then only its largest timestamp can exclude a batch.
    """

    first_timestamp: int | None = None
    end_timestamp: int | None = None
    committed_only: bool = False
    disorder_ms: int | None = None

    @property
    def latest_begin(self) -> int | None:
        """The timestamp (ms): a batch that begins at it or later is left out; None: no limit."""
        if self.end_timestamp is None or self.disorder_ms is None:
            return None
        return self.end_timestamp + self.disorder_ms

    @property
    def over_at(self) -> int | None:
        """The timestamp (ms) of a record after which no row of the filter can follow; None: there is none.

        The limit on disorder also holds between batches.
        """
        return None if self.end_timestamp is None else self.end_timestamp + (self.disorder_ms or 0)


EVERY_ROW = RowFilter()


@dataclass(frozen=True, slots=True)
class TableQuery:
    """Rows of one topic, limited to an incarnation, to partitions, to a range of offsets; None: no limit.

    `first_offset` is inclusive, `end_offset` exclusive. An empty range is not an error: its table is empty.
    """

    topic: str
    topic_id: str | None = None
    partitions: frozenset[int] | None = None
    first_offset: int | None = None
    end_offset: int | None = None
    rows: RowFilter = EVERY_ROW

    @property
    def is_empty(self) -> bool:
        """Whether no row can match."""
        rows = self.rows
        pairs = ((self.first_offset, self.end_offset), (rows.first_timestamp, rows.end_timestamp))
        return self.partitions == frozenset() or any(
            first is not None and end is not None and first >= end for first, end in pairs
        )


def ensure_some_rows(query: TableQuery) -> None:
    """Raise ConfigurationError for an empty range or no partition, which must be a mistake."""
    rows = query.rows
    for what, first, end in (
        ("offsets", query.first_offset, query.end_offset),
        ("times", rows.first_timestamp, rows.end_timestamp),
    ):
        if first is not None and end is not None and first >= end:
            raise ConfigurationError(
                f"{query.topic}: the {what} from {first} to {end} (exclusive) are an empty range: give a later end"
            )
    if query.partitions == frozenset():
        raise ConfigurationError(f"{query.topic}: the list of partitions is empty: name some, or omit it to mean all")


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
    """`column` `operator` `value`: an int, a string, an aware datetime, or for `IN` a tuple of those."""

    column: str
    operator: Operator
    value: Any


def narrowed(query: TableQuery, comparison: Comparison) -> TableQuery | None:
    """Return `query` narrowed by the comparison; None if the caller must apply it.

    A contradiction gives an empty query.
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
    """Return the first number (inclusive) and the end (exclusive) that, times `unit`, satisfy the comparison."""
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
