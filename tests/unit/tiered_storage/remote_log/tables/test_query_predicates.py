from __future__ import annotations

import operator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered_storage.remote_log.tables.query import Comparison, Operator, TableQuery, narrowed

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HOLDS = {
    Operator.EQUAL: operator.eq,
    Operator.GREATER: operator.gt,
    Operator.GREATER_OR_EQUAL: operator.ge,
    Operator.LESS: operator.lt,
    Operator.LESS_OR_EQUAL: operator.le,
}
ordered = st.sampled_from(sorted(HOLDS))
offsets = st.builds(Comparison, st.just("offset"), ordered, st.integers(-3, 12))
moments = st.builds(lambda micros: EPOCH + timedelta(microseconds=micros), st.integers(-3000, 12_000))
times = st.builds(Comparison, st.just("timestamp"), ordered, moments)
partitions = st.builds(Comparison, st.just("partition"), st.just(Operator.EQUAL), st.integers(0, 2)) | st.builds(
    Comparison, st.just("partition"), st.just(Operator.IN), st.lists(st.integers(0, 2), max_size=2).map(tuple)
)
topics = st.builds(Comparison, st.just("topic"), st.just(Operator.EQUAL), st.sampled_from(["orders", "payments"]))


def is_true(comparison: Comparison, value: Any) -> bool:
    if comparison.operator is Operator.IN:
        return value in comparison.value
    return bool(HOLDS[comparison.operator](value, comparison.value))


def gives(query: TableQuery, topic: str, partition: int, offset: int, millis: int) -> bool:
    """Whether the query has the row; see planning.py and reading.py."""
    rows = query.rows
    return (
        not query.is_empty
        and query.topic == topic
        and (query.partitions is None or partition in query.partitions)
        and (query.first_offset is None or offset >= query.first_offset)
        and (query.end_offset is None or offset < query.end_offset)
        and (rows.first_timestamp is None or millis >= rows.first_timestamp)
        and (rows.end_timestamp is None or millis < rows.end_timestamp)
    )


@given(st.lists(offsets | times | partitions | topics, max_size=6), st.integers(0, 2))
def test_a_query_gives_the_rows_for_which_all_that_it_took_in_is_true(
    comparisons: list[Comparison], partition: int
) -> None:
    query = TableQuery("orders")
    for comparison in comparisons:
        taken = narrowed(query, comparison)
        assert taken is not None, comparison
        query = taken
    for offset in range(-1, 11):
        for millis in (-1, 0, 3, 11):
            row = {
                "topic": "orders", "partition": partition, "offset": offset,
                "timestamp": EPOCH + timedelta(milliseconds=millis),
            }  # fmt: skip
            expected = all(is_true(each, row[each.column]) for each in comparisons)
            assert gives(query, "orders", partition, offset, millis) == expected


@pytest.mark.parametrize(
    "comparison",
    [
        Comparison("offset", Operator.EQUAL, None),
        Comparison("offset", Operator.IN, (1, 2)),
        Comparison("offset", Operator.EQUAL, "7"),
        Comparison("partition", Operator.LESS, 3),
        Comparison("partition", Operator.IN, (1, None)),
        Comparison("timestamp", Operator.LESS, datetime(2026, 1, 1)),  # noqa: DTZ001 - which instant is not said
        Comparison("key", Operator.EQUAL, b"key"),
        Comparison("topic", Operator.LESS, "orders"),
    ],
    ids=str,
)
def test_unsupported_comparisons_are_left_to_spark(comparison: Comparison) -> None:
    assert narrowed(TableQuery("orders"), comparison) is None


def test_a_filter_may_name_the_topic() -> None:
    named = narrowed(TableQuery(""), Comparison("topic", Operator.IN, ("orders", "orders")))
    assert named == TableQuery("orders")
    assert narrowed(TableQuery(""), Comparison("topic", Operator.IN, ("orders", "payments"))) is None
