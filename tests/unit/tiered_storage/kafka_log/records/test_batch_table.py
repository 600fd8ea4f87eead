from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from support.records import Batch, batch_table
from tiered_storage.kafka_log.records.batch_table import BatchTable

TABLE = batch_table(100, [Batch(records, 100 * records, records) for records in range(1, 6)])


def lists(table: BatchTable) -> list[list[int]]:
    return [column.tolist() for column in table.columns()]


@pytest.mark.parametrize("first", range(6))
@pytest.mark.parametrize("end", range(6))
def test_rows_share_the_memory_of_their_table(first: int, end: int) -> None:
    taken = TABLE.rows(first, end)

    assert lists(taken) == [column[first:end] for column in lists(TABLE)]
    assert len(taken) == max(end - first, 0)
    assert np.shares_memory(taken.position, TABLE.position) == (end > first)


@pytest.mark.parametrize(("count", "is_copied"), [(0, True), (1, True), (2, True), (3, False), (4, False), (5, False)])
def test_a_small_head_does_not_keep_the_whole_table(count: int, is_copied: bool) -> None:
    head = TABLE.head(count)

    assert lists(head) == [column[:count] for column in lists(TABLE)]
    for kept, column in zip(head.columns(), TABLE.columns(), strict=True):
        assert np.shares_memory(kept, column) != is_copied


@pytest.mark.parametrize("numbers", [[], [4], [0, 2, 3]])
def test_rows_are_taken_by_their_numbers(numbers: list[int]) -> None:
    taken = TABLE.take(np.array(numbers, np.intp))

    assert lists(taken) == [[column[number] for number in numbers] for column in lists(TABLE)]


@pytest.mark.parametrize(
    "all_of", [lambda table: table.rows(0, 5), lambda table: table.head(5), lambda table: table.take(np.arange(5))]
)
def test_all_rows_are_the_table_itself(all_of: Callable[[BatchTable], BatchTable]) -> None:
    assert all_of(TABLE) is TABLE
