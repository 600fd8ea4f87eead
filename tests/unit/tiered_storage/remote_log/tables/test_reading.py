from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.records import USUAL_EXAMPLES
from support.remote_logs import (
    BATCH_BYTES,
    LOG_CONFIG,
    NOW,
    RemoteLogFiles,
    a_remote_log,
    copy,
    unsynced,
)
from tiered_storage.errors import (
    CorruptIndexError,
    RemoteObjectCorruptError,
    RemoteObjectNotFoundError,
)
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import encode_batch, restamp_batch
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.read.chunks.chunk_sequence import CHUNKS_AHEAD
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind
from tiered_storage.remote_log.tables.columns import SCHEMA, TableColumns
from tiered_storage.remote_log.tables.planning import TableSplit, plan_splits, plan_table
from tiered_storage.remote_log.tables.query import RowFilter, TableQuery
from tiered_storage.remote_log.tables.reading import read_split
from unit.tiered_storage.remote_log.modelled_logs import Row, Step, a_copied_topic, steps

FIRST = 5
"""Every log begins with five records of another kind, see remote_logs.py."""


def splits_of(remote_log: RemoteLogManager, query: TableQuery, split_bytes: int) -> list[TableSplit]:
    plan = plan_table(remote_log.context.segments, remote_log.context.storage, query)
    return list(plan_splits(plan.ranges(), query.rows, split_bytes))


def rows_of(
    remote_log: RemoteLogManager, splits: Iterable[TableSplit], columns: Sequence[str] | None = None
) -> pa.Table:
    taken = TableColumns(columns)
    batches = [batch for split in splits for batch in read_split(split, remote_log.context.storage, taken)]
    return pa.Table.from_batches(batches, taken.schema)


def expected(rows: Iterable[Row], query: TableQuery) -> list[int]:
    """The offsets that a query has to give."""
    wanted = query.rows
    first, end = wanted.first_timestamp, wanted.end_timestamp
    return [
        row.offset
        for row in rows
        if (query.first_offset is None or row.offset >= query.first_offset)
        and (query.end_offset is None or row.offset < query.end_offset)
        and (first is None or row.record.timestamp >= first)
        and (end is None or row.record.timestamp < end)
        and (wanted.latest_begin is None or row.batch_begins < wanted.latest_begin)
        and (row.committed or not wanted.committed_only)
    ]


optional_offsets = st.none() | st.integers(0, 60)
optional_times = st.none() | st.integers(NOW - 110, NOW + 110)
filters = st.builds(RowFilter, optional_times, optional_times, st.booleans(), st.none() | st.integers(0, 50))
queries = st.builds(TableQuery, st.just("orders"), st.none(), st.none(), optional_offsets, optional_offsets, filters)


@settings(max_examples=USUAL_EXAMPLES // 2, deadline=None)
@given(
    written=steps(st.integers(-100, 100), min_size=5),
    asked=st.lists(queries, min_size=5, max_size=10),
    split_bytes=st.sampled_from([1, 100, 1000, 1 << 30]),
)
def test_the_splits_of_a_query_give_exactly_its_rows(
    tmp_path_factory: pytest.TempPathFactory, written: list[Step], asked: list[TableQuery], split_bytes: int
) -> None:
    files, rows = a_copied_topic(tmp_path_factory.mktemp("log"), written)
    with files.open() as remote_log:
        for query in [TableQuery("orders"), TableQuery("orders", rows=RowFilter(committed_only=True)), *asked]:
            splits = splits_of(remote_log, query, split_bytes)
            assert all(split.size <= split_bytes or len(split.ranges) == 1 for split in splits)
            found = rows_of(remote_log, splits)
            assert [each for each in found.column("offset").to_pylist() if each >= FIRST] == expected(rows, query)
            assert_written(found, rows)


def assert_written(found: pa.Table, rows: Iterable[Row]) -> None:
    """Assert that every row is the record that was written at its offset."""
    assert found.schema == SCHEMA
    written = {row.offset: row.record for row in rows}
    for row in found.to_pylist():
        if row["offset"] < FIRST:
            continue
        record = written[row["offset"]]
        assert (row["key"], row["value"]) == (record.key, record.value)
        assert (row["topic"], row["partition"], row["timestampType"]) == ("orders", 0, 0)
        assert round(row["timestamp"].timestamp() * 1000) == record.timestamp
        assert [(each["key"], each["value"]) for each in row["headers"]] == list(record.headers)


@pytest.mark.parametrize(("position", "bit"), [(-10, 1), (BATCH_BYTES + 22, 0x20)], ids=["record", "marker's bit"])
def test_a_broken_batch_ends_the_reading_and_is_named(files: RemoteLogFiles, position: int, bit: int) -> None:
    data = files.objects(".log")[1]
    raw = bytearray(data.read_bytes())
    raw[position] ^= bit
    data.write_bytes(raw)
    with files.open() as remote_log:
        splits = splits_of(remote_log, TableQuery("orders"), 1 << 30)
        with pytest.raises(RemoteObjectCorruptError, match=f"{data.name}: at byte {BATCH_BYTES}: .*CRC"):
            rows_of(remote_log, splits)


def test_an_object_that_is_too_short_or_gone_is_an_error(files: RemoteLogFiles) -> None:
    data = files.objects(".log")[1]
    whole = data.read_bytes()
    with files.open() as remote_log:
        splits = splits_of(remote_log, TableQuery("orders"), 1 << 30)
        data.write_bytes(whole[:-1])
        with pytest.raises(RemoteObjectCorruptError, match=data.name):
            rows_of(remote_log, splits)
        data.unlink()
        with pytest.raises(RemoteObjectNotFoundError, match=data.name):
            rows_of(remote_log, splits)


@pytest.mark.parametrize("position", [0, 20, -30])
def test_an_index_that_is_broken_is_an_error(files: RemoteLogFiles, position: int) -> None:
    """In the bundle it has a checksum of its own; here it is wrong in itself, as a store of somebody's may hand it."""
    with files.open() as remote_log:
        splits = splits_of(remote_log, TableQuery("orders"), 1 << 30)
        storage = Mock(wraps=remote_log.context.storage)

        def fetch_index(metadata: RemoteLogSegmentMetadata, kind: IndexKind) -> bytes:
            raw = bytearray(remote_log.context.storage.fetch_index(metadata, kind))
            raw[position] ^= 64
            return bytes(raw)

        storage.fetch_index = fetch_index
        with pytest.raises(CorruptIndexError, match="remoteLogIndex"):
            list(read_split(splits[0], storage, TableColumns()))


def test_little_is_fetched_ahead_and_nothing_after_the_reader_is_gone(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        [split] = splits_of(remote_log, TableQuery("orders"), 1 << 30)
        storage = Mock(wraps=remote_log.context.storage)
        reading = read_split(split, storage, TableColumns())
        next(reading)
        reading.close()  # type: ignore[attr-defined]  # a generator
        fetched = storage.fetch_log_segment.call_count
        assert fetched <= 1 + CHUNKS_AHEAD
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("chunk-sequence")]
    assert storage.fetch_log_segment.call_count == fetched


def test_with_log_append_time_the_producers_clock_leaves_nothing_out(tmp_path: Path) -> None:
    """A producer whose clock is a day fast: what counts is when the broker took its records."""
    files = a_remote_log(tmp_path, {("orders", 0): 0})
    with unsynced(), LogDirectoryWriter.open(files.log_directory, LOG_CONFIG, clock=lambda: NOW) as writer:
        log = writer.log("orders", 0)
        batch = bytearray(encode_batch([Record(log.log_end_offset, NOW + 86_400_000, b"key", b"value")]))
        restamp_batch(batch, NOW + 50)
        log.append_as_follower(bytes(batch))
        log.roll()
    with unsynced(), files.open() as remote_log:
        assert copy(remote_log).is_whole
        rows = RowFilter(NOW + 50, NOW + 51, disorder_ms=0)
        found = rows_of(remote_log, splits_of(remote_log, TableQuery("orders", rows=rows), 1 << 30))
    assert [(row["offset"], row["timestampType"]) for row in found.to_pylist()] == [(FIRST, 1)]
