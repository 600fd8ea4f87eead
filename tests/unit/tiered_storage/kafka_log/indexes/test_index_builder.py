from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from support.records import Batch, batch_table
from tiered_storage.kafka_log.indexes.index_builder import IndexBuilder
from tiered_storage.kafka_log.indexes.time_index import TimestampOffset
from tiered_storage.kafka_log.records.batch_table import BatchTable
from unit.tiered_storage.drawn_records import batch_lists, windows
from unit.tiered_storage.kafka_log.counted_calls import python_calls

BASE = 1000


def as_a_broker_appends(table: BatchTable, interval: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Kafka's rules, batch by batch: the entries of a closed segment's offset and time index."""
    offset_entries: list[tuple[int, int]] = []
    time_entries: list[tuple[int, int]] = []
    latest, latest_offset, bytes_since_entry = -1, BASE, 0

    def maybe_append_time() -> None:
        if latest > (time_entries[-1][0] if time_entries else -1):
            time_entries.append((latest, latest_offset))

    for row in range(len(table)):
        if table.max_timestamp[row] > latest:
            latest, latest_offset = int(table.max_timestamp[row]), int(table.last_offset[row])
        if bytes_since_entry > interval:
            offset_entries.append((int(table.last_offset[row]), int(table.position[row])))
            maybe_append_time()
            bytes_since_entry = 0
        bytes_since_entry += int(table.size[row])
    maybe_append_time()
    return offset_entries, time_entries


@given(batch_lists(), st.integers(0, 1500), st.lists(st.integers(0, 30), max_size=4))
def test_entries_are_those_of_a_broker_however_the_batches_come(
    batches: list[Batch], interval: int, cuts: list[int]
) -> None:
    table = batch_table(BASE, batches)
    builder = IndexBuilder(BASE, interval)

    for window in windows(table, cuts):
        builder.append(window)
    builder.close()

    offset_index, time_index = builder.offset_index(), builder.time_index()
    offset_entries, time_entries = as_a_broker_appends(table, interval)
    assert list(zip(offset_index.offsets.tolist(), offset_index.positions.tolist(), strict=True)) == offset_entries
    assert list(zip(time_index.timestamps.tolist(), time_index.offsets.tolist(), strict=True)) == time_entries
    assert (builder.offset_entry_count, builder.time_entry_count) == (len(offset_entries), len(time_entries))


@given(batch_lists(), st.integers(0, 1500), st.integers(0, 30), st.lists(st.integers(0, 30), max_size=2))
def test_a_truncated_index_builder_continues_like_one_that_ended_there(
    batches: list[Batch], interval: int, kept: int, cuts: list[int]
) -> None:
    table = batch_table(BASE, batches)
    builder, expected = IndexBuilder(BASE, interval), IndexBuilder(BASE, interval)
    builder.append(table)
    kept = min(kept, len(table))
    expected.append(table.rows(0, kept))

    earlier, begin = builder.until(int(table.size[:kept].sum()))
    assert begin in (0, *expected.offset_index().positions.tolist())
    for window in windows(table.rows(int(np.searchsorted(table.position, begin)), kept), cuts):
        earlier.append(window)

    for each in (earlier, expected):
        each.append(table.rows(kept, len(table)))
    assert contents(earlier) == contents(expected) == contents(builder)


def contents(builder: IndexBuilder) -> tuple[object, ...]:
    indexes = builder.offset_index().to_bytes(), builder.time_index().to_bytes(), builder.closed_time_index().to_bytes()
    return *indexes, builder.latest, builder.offset_entry_count, builder.time_entry_count


def test_the_latest_timestamp_is_that_of_the_first_batch_that_had_it() -> None:
    builder = IndexBuilder(BASE)
    assert builder.latest == TimestampOffset(-1, BASE)

    builder.append(batch_table(BASE, [Batch(2, 100, 5), Batch(2, 100, 7), Batch(2, 100, 7), Batch(2, 100, 6)]))

    assert builder.latest == TimestampOffset(7, BASE + 3)


def test_closing_twice_changes_nothing() -> None:
    builder = IndexBuilder(BASE)
    builder.append(batch_table(BASE, [Batch(2, 100, 5)]))

    builder.close()
    builder.close()

    assert builder.time_index().timestamps.tolist() == [5]


def test_records_without_timestamps_make_no_time_index() -> None:
    builder = IndexBuilder(BASE, index_interval_bytes=0)
    builder.append(batch_table(BASE, [Batch(1, 100, -1)] * 3))
    builder.close()

    assert builder.offset_index().offsets.tolist() == [BASE + 1, BASE + 2]
    assert builder.time_index().timestamps.size == 0


def test_no_python_function_is_called_for_each_batch() -> None:
    def build(count: int) -> int:
        table = batch_table(0, [Batch(1, 1100, 0)] * count)
        table.max_timestamp[:] = np.arange(count)
        builder = IndexBuilder(0)
        calls = python_calls(lambda: builder.append(table))
        builder.close()
        assert builder.offset_entry_count == (count - 1) // 4
        return calls

    assert build(100_000) == build(100)
