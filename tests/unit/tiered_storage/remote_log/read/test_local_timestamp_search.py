from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.remote_logs import NOW, ORDERS_0, a_copied_remote_log, held_by, location_of, move_log_start, records
from tiered_storage.kafka_log.files.log_segment import LogSegment
from tiered_storage.kafka_log.indexes.offset_index import OffsetIndex
from tiered_storage.kafka_log.indexes.time_index import TimeIndex
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import encode_batch
from tiered_storage.kafka_log.records.segment_scan import iterate_segment
from tiered_storage.remote_log.read import local_timestamp_search
from tiered_storage.remote_log.read.local_timestamp_search import ScannedBatches
from tiered_storage.remote_log.read.log_reader import RemoteLogReader
from tiered_storage.remote_log.read.read_values import FoundOffset, OffsetSpec
from tiered_storage.remote_log.source import log_directory_segment
from tiered_storage.remote_log.source.opening import open_segment
from tiered_storage.remote_log.source.segment_source import OpenSegment

BASE = 100
BATCHES = st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=4), min_size=1, max_size=30)
"""The timestamps of a segment's records, batch by batch."""


def a_segment(folder: Path, batches: list[list[int]], entries: set[int], beyond: int = 0) -> OpenSegment:
    """Write an active segment whose time index has true entries for some of its offsets, and `beyond` more past its
    end; its offset index has one for each second batch."""
    files = LogSegment(BASE, folder)
    content, offset = bytearray(), BASE
    offsets, positions = [], []
    for number, timestamps in enumerate(batches):
        if number % 2:
            offsets.append(offset)
            positions.append(len(content))
        batch = [Record(offset + at, timestamp, None, b"") for at, timestamp in enumerate(timestamps)]
        content += encode_batch(batch)
        offset += len(batch)
    files.log_path.write_bytes(content)
    files.offset_index_path.write_bytes(OffsetIndex(BASE, np.array(offsets), np.array(positions)).to_bytes())
    known = [timestamp for batch in batches for timestamp in batch]
    indexed = [(max(known[: at + 1]), BASE + at) for at in sorted(entries) if at < len(known)]
    indexed += [(50 + at, offset + at) for at in range(beyond)]
    times, at = (np.array([entry[column] for entry in indexed], np.int64) for column in (0, 1))
    files.time_index_path.write_bytes(TimeIndex(BASE, times, at).to_bytes())
    return open_segment(location_of(files.log_path))


@given(
    batches=BATCHES,
    entries=st.sets(st.integers(0, 120)),
    beyond=st.integers(0, 2),
    index=st.sampled_from(["as it is", "missing", "torn", "preallocated"]),
    data=st.data(),
)
def test_the_largest_timestamp_of_a_range_is_that_of_its_records_whatever_index_there_is(
    batches: list[list[int]], entries: set[int], beyond: int, index: str, data: st.DataObject
) -> None:
    known = [timestamp for batch in batches for timestamp in batch]
    first = data.draw(st.integers(0, len(known) - 1), label="first")
    end = data.draw(st.integers(first + 1, len(known)), label="end")
    with TemporaryDirectory() as folder:
        segment = a_segment(Path(folder), batches, entries, beyond)
        path = Path(segment.name).with_suffix(".timeindex")
        content = path.read_bytes()
        if index == "missing":
            path.unlink()
        else:
            path.write_bytes(content + {"torn": b"\1", "preallocated": bytes(240)}.get(index, b""))
        found = local_timestamp_search.largest(segment, BASE + first, BASE + end)
        assert found == max(known[first:end])
        again = local_timestamp_search.first_at_or_after(segment, found, BASE + first, BASE + end)
        assert again is not None
        assert again.offset == BASE + known.index(found, first, end)


@pytest.mark.parametrize("first", [0, 7])
@pytest.mark.parametrize("end", [1999, 2000])
def test_only_the_part_of_an_active_segment_after_its_time_index_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int, end: int
) -> None:
    scanned: list[int] = []

    def counted(*given: Any, **options: Any) -> Iterator[tuple[bytes | memoryview, BatchTable]]:
        for window, table in iterate_segment(*given, **options):
            scanned.append(len(table))
            yield window, table

    monkeypatch.setattr(log_directory_segment, "iterate_segment", counted)
    segment = a_segment(tmp_path, [[at] for at in range(2000)], set(range(0, 2000, 5)))
    assert local_timestamp_search.largest(segment, BASE + first, BASE + end) == end - 1
    assert sum(scanned) < 20


def test_the_largest_timestamp_of_a_local_segment_is_looked_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    find = local_timestamp_search.largest

    def counted(segment: OpenSegment, first_offset: int, end_offset: int) -> int:
        asked.append(segment.base_offset)
        return find(segment, first_offset, end_offset)

    monkeypatch.setattr(local_timestamp_search, "largest", counted)
    with a_copied_remote_log(tmp_path).open() as log, log.open_log_reader() as reader:
        found = asyncio.run(reader.offsets(ORDERS_0, OffsetSpec.MAX_TIMESTAMP))
    assert found == FoundOffset(34, NOW + 34_000, 0)
    assert sorted(asked) == [0, 10, 20, 30]


def test_results_are_cached_until_the_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_timestamp_search, "MOST_KEPT", 2)
    asked: list[int] = []
    find = local_timestamp_search.largest

    def counted(segment: OpenSegment, first_offset: int, end_offset: int) -> int:
        asked.append(end_offset)
        return find(segment, first_offset, end_offset)

    monkeypatch.setattr(local_timestamp_search, "largest", counted)
    segment, kept = a_segment(tmp_path, [[9], [3], [5]], {0}), local_timestamp_search.LargestTimestamps()
    for first, end, expected in ((0, 3, 9), (1, 2, 3), (0, 3, 9), (1, 3, 5), (0, 3, 9), (1, 2, 3)):
        assert kept.find(segment, BASE + first, BASE + end) == expected
    assert asked == [BASE + 3, BASE + 2, BASE + 3, BASE + 3, BASE + 2]
    with Path(segment.name).open("ab") as log:
        log.write(encode_batch([Record(BASE + 3, 12, None, b"")]))
    assert kept.find(segment, BASE + 1, BASE + 4) == 12
    assert kept.find(segment, BASE + 1, BASE + 2) == 3
    assert len(asked) == 7
    Path(segment.name).unlink()
    with pytest.raises(FileNotFoundError):
        kept.find(segment, BASE + 1, BASE + 2)


async def first_records(reader: RemoteLogReader, offset: int) -> list[Record]:
    async for fetched in reader.batches(ORDERS_0, offset):
        return list(fetched.records())
    return []


def test_a_search_by_time_that_takes_long_holds_up_no_local_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, proceed = threading.Event(), threading.Event()

    def waits(*_: object) -> int:
        begun.set()
        assert proceed.wait(10)
        return NOW + 34_000

    monkeypatch.setattr(local_timestamp_search, "largest", waits)

    async def ask(reader: RemoteLogReader) -> None:
        searching = asyncio.create_task(reader.offsets(ORDERS_0, OffsetSpec.MAX_TIMESTAMP))
        await asyncio.to_thread(begun.wait, 10)
        try:
            assert await asyncio.wait_for(first_records(reader, 30), 3) == records(30, 35)
        finally:
            proceed.set()
            await searching

    files = a_copied_remote_log(tmp_path, local_log_reader_threads=1)
    with files.open() as log, log.open_log_reader() as reader:
        asyncio.run(ask(reader))


def test_a_timestamp_search_decodes_on_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    find = ScannedBatches.largest

    def named(self: ScannedBatches, first_offset: int, end_offset: int) -> int:
        threads.append(threading.current_thread().name)
        return find(self, first_offset, end_offset)

    monkeypatch.setattr(ScannedBatches, "largest", named)
    files = a_copied_remote_log(tmp_path, log_dirs=[])
    with files.open() as log:
        move_log_start(log, 26, held_by(log, "test"))
        with log.open_log_reader() as reader:
            found = asyncio.run(reader.offsets(ORDERS_0, OffsetSpec.MAX_TIMESTAMP))
    assert found == FoundOffset(29, NOW + 29_000, 0)
    assert set(threads) == {"searches by time"}
