from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.records import Batch, batch_table
from tiered_storage.errors import CorruptIndexError
from tiered_storage.kafka_log.indexes.index_builder import IndexBuilder
from tiered_storage.kafka_log.indexes.index_check import OffsetIndexCheck, TimeIndexCheck
from tiered_storage.kafka_log.indexes.offset_index import OffsetIndex
from tiered_storage.kafka_log.indexes.time_index import TimeIndex
from tiered_storage.kafka_log.records.batch_table import BatchTable
from unit.tiered_storage.drawn_records import batch_lists, windows

BASE = 1000
PATH = Path("00000000000000001000.index")

some_cuts = st.lists(st.integers(0, 30), max_size=3)


def offset_index(*entries: tuple[int, int]) -> OffsetIndex:
    columns = np.array(sorted(entries), np.int64).reshape(-1, 2)
    return OffsetIndex(BASE, columns[:, 0], columns[:, 1])


def time_index(*entries: tuple[int, int]) -> TimeIndex:
    columns = np.array(sorted(entries), np.int64).reshape(-1, 2)
    return TimeIndex(BASE, columns[:, 0], columns[:, 1])


def check(index: OffsetIndex | TimeIndex, tables: list[BatchTable]) -> None:
    checked = OffsetIndexCheck(PATH, index) if isinstance(index, OffsetIndex) else TimeIndexCheck(PATH, index)
    for table in tables:
        checked.feed(table)
    checked.finish()


def refusal(index: OffsetIndex | TimeIndex, tables: list[BatchTable]) -> CorruptIndexError | None:
    try:
        check(index, tables)
    except CorruptIndexError as error:
        return error
    return None


@given(batch_lists(), st.integers(0, 1500), some_cuts)
def test_the_check_accepts_a_brokers_indexes_at_any_interval(
    batches: list[Batch], interval: int, cuts: list[int]
) -> None:
    table = batch_table(BASE, batches)
    builder = IndexBuilder(BASE, interval)
    builder.append(table)

    for closed in (False, True):
        if closed:
            builder.close()
        check(builder.offset_index(), windows(table, cuts))
        check(builder.time_index(), windows(table, cuts))


@given(batch_lists(min_size=1), st.data(), some_cuts)
def test_the_check_accepts_a_brokers_index_of_appends_with_several_batches(
    batches: list[Batch], data: st.DataObject, cuts: list[int]
) -> None:
    table = batch_table(BASE, batches)
    bounds = sorted(data.draw(st.sets(st.integers(0, len(batches) - 1))))
    appends = pairwise([*bounds, len(batches)])
    entries = [(int(table.last_offset[end - 1]), int(table.position[first])) for first, end in appends]

    check(offset_index(*entries), windows(table, cuts))


@given(batch_lists(min_size=1, max_size=8), st.integers(-2, 40), st.integers(-2, 3300), some_cuts)
def test_an_offset_entry_is_refused_if_and_only_if_it_is_false(
    batches: list[Batch], offset: int, position: int, cuts: list[int]
) -> None:
    table = batch_table(BASE, batches)
    begins, ends = table.position.tolist(), table.last_offset.tolist()
    true = position in begins and BASE + offset in ends and begins.index(position) <= ends.index(BASE + offset)

    error = refusal(offset_index((BASE + offset, position)), windows(table, cuts))

    assert (error is None) == true


@given(batch_lists(min_size=1, max_size=8), st.data(), some_cuts)
def test_an_offset_entry_of_one_batch_and_the_position_of_another_one_is_refused_where_it_would_skip_records(
    batches: list[Batch], data: st.DataObject, cuts: list[int]
) -> None:
    table = batch_table(BASE, batches)
    row = st.integers(0, len(batches) - 1)
    of, at = data.draw(row), data.draw(row)

    error = refusal(offset_index((int(table.last_offset[of]), int(table.position[at]))), windows(table, cuts))

    assert (error is None) == (at <= of)


@given(batch_lists(min_size=1, max_size=8), st.integers(-1, 13), st.data(), some_cuts)
def test_a_time_entry_is_refused_if_and_only_if_it_is_false(
    batches: list[Batch], timestamp: int, data: st.DataObject, cuts: list[int]
) -> None:
    table = batch_table(BASE, batches)
    offset = data.draw(st.integers(BASE, int(table.last_offset[-1]) + 2))
    whole = [-1, *table.max_timestamp[table.last_offset <= offset].tolist()]
    begun = [-1, *table.max_timestamp[table.base_offset <= offset].tolist()]
    true = offset <= table.last_offset[-1] and max(whole) <= timestamp <= max(begun)

    error = refusal(time_index((timestamp, offset)), windows(table, cuts))

    assert (error is None) == true


THREE = batch_table(BASE, [Batch(10, 100, 5), Batch(10, 200, 9), Batch(10, 300, 7)])


@pytest.mark.parametrize(
    ("index", "position", "reason"),
    [
        (offset_index((1009, 0), (1019, 99)), 8, "no batch begins"),
        (offset_index((1009, 0), (1018, 100)), 8, "offset lies before"),
        (offset_index((1009, 0), (1020, 100)), 8, "no batch ends"),
        (offset_index((1019, 0), (1029, 100)), 0, "next entry's position"),
        (offset_index((1009, 0), (1039, 300)), 8, "past the end"),
        (offset_index((1009, 0), (1029, 600)), 8, "past the end"),
        (time_index((5, 1009), (8, 1019)), 12, "is later than"),
        (time_index((5, 1009), (10, 1019)), 12, "as late as"),
        (time_index((5, 1009), (9, 1030)), 12, "past the end"),
    ],
)
def test_a_false_entry_is_named_with_its_place_and_the_reason(
    index: OffsetIndex | TimeIndex, position: int, reason: str
) -> None:
    with pytest.raises(CorruptIndexError, match=f"{reason}") as raised:
        check(index, [THREE])

    assert (raised.value.path, raised.value.position) == (str(PATH), position)
