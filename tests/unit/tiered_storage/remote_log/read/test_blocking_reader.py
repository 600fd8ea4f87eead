from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest

from support.remote_logs import (
    NOW,
    ORDERS_0,
    SEGMENT_BYTES,
    RemoteLogFiles,
    a_copied_remote_log,
    a_remote_log,
    flip_bit,
    local_log,
    record,
    records,
    segments_of,
)
from tiered_storage.errors import (
    ConfigurationError,
    CorruptRecordError,
    OffsetOutOfRangeError,
    RemoteObjectCorruptError,
    RemoteObjectNotFoundError,
)
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader
from tiered_storage.remote_log.read.read_values import FoundOffset, Isolation, OffsetSpec, Tier
from tiered_storage.remote_log.source.log_directory_trim import LogDirectoryTrim
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind


@contextmanager
def a_reader(files: RemoteLogFiles, local_start: int = 0) -> Iterator[tuple[RemoteLogManager, BlockingLogReader]]:
    """Open a reader of a log that is local from `local_start` on."""
    with files.open() as remote_log:
        going = [each for each in local_log(remote_log).segments if each.base_offset < local_start]
        LogDirectoryTrim().trim(ORDERS_0, going, local_start)
        with BlockingLogReader(remote_log.open_log_reader()) as reader:
            yield remote_log, reader


@pytest.mark.parametrize("local_start", [0, 10, 20, 30])
def test_from_any_offset_every_record_is_read_once_wherever_it_is(tmp_path: Path, local_start: int) -> None:
    with a_reader(a_copied_remote_log(tmp_path), local_start) as (_, reader):
        for start in range(36):
            assert list(reader.records(ORDERS_0, start)) == records(start, 35)


def test_a_range_ends_where_it_is_to(tmp_path: Path) -> None:
    with a_reader(a_copied_remote_log(tmp_path), 20) as (_, reader):
        for start in range(0, 35, 3):
            for end in range(start, 38):
                assert list(reader.records(ORDERS_0, start, end_offset=end)) == records(start, min(end, 35))


def test_each_step_gives_its_offsets_whole_batches_and_their_source(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    with a_reader(files, 20) as (remote_log, reader):
        fetched = list(reader.batches(ORDERS_0, 3, end_offset=33))
        first = segments_of(remote_log)[0]

    assert [(each.start_offset, each.end_offset) for each in fetched] == [
        (3, 5), (5, 10), (10, 15), (15, 20), (20, 30), (30, 33),
    ]  # fmt: skip
    assert [each.tier for each in fetched] == [Tier.REMOTE] * 4 + [Tier.LOCAL] * 2
    assert fetched[0].source.endswith(f"{first.segment_id.id}.log")
    assert fetched[-1].source == str(files.local_segments()[-1].log_path)
    assert all(each.source_position == each.table.position[0] for each in fetched)
    assert all(len(each.content) == each.table.size.sum() for each in fetched)


def test_a_table_has_the_requested_columns(tmp_path: Path) -> None:
    with a_reader(a_copied_remote_log(tmp_path), 20) as (_, reader):
        tables = list(reader.tables(ORDERS_0, 3, end_offset=33, columns=["value", "offset"]))
        with pytest.raises(ConfigurationError, match="no_such_column"):
            reader.tables(ORDERS_0, 3, columns=["no_such_column"])

    found = [row for table in tables for row in table.to_pylist()]
    assert found == [{"value": record(offset).value, "offset": offset} for offset in range(3, 33)]


def test_offsets_are_found_by_their_names(tmp_path: Path) -> None:
    with a_reader(a_copied_remote_log(tmp_path), 20) as (_, reader):
        found = {
            name: reader.offsets(ORDERS_0, spec, Isolation.READ_COMMITTED)
            for name, spec in OffsetSpec.__members__.items()
        }

    assert found == {
        "EARLIEST": FoundOffset(0, -1, 0),
        "LATEST": FoundOffset(35, -1, 0),
        "MAX_TIMESTAMP": FoundOffset(34, NOW + 34_000, 0),
        "EARLIEST_LOCAL": FoundOffset(20, -1, 0),
        "NEXT_LOCAL": FoundOffset(20, -1, 0),
        "LATEST_TIERED": FoundOffset(29, -1, 0),
        "EARLIEST_PENDING_UPLOAD": FoundOffset(30, -1, 0),
    }


def test_of_a_topic_without_remote_records_all_are_still_to_be_copied(tmp_path: Path) -> None:
    with a_reader(a_remote_log(tmp_path), 0) as (_, reader):
        assert reader.offsets(ORDERS_0, OffsetSpec.EARLIEST_PENDING_UPLOAD) == FoundOffset(0, -1, 0)
        assert reader.offsets(ORDERS_0, OffsetSpec.LATEST_TIERED) is None


def test_offsets_are_found_by_time(tmp_path: Path) -> None:
    with a_reader(a_copied_remote_log(tmp_path), 20) as (_, reader):
        for local_start in range(35):
            moment = NOW + 1000 * local_start
            assert reader.offsets(ORDERS_0, moment) == FoundOffset(local_start, moment, 0)
            assert reader.offsets(ORDERS_0, moment - 999) == FoundOffset(local_start, moment, 0)
        assert reader.offsets(ORDERS_0, NOW + 34_001) is None
        with pytest.raises(ConfigurationError, match="-7"):
            reader.offsets(ORDERS_0, -7)


@pytest.mark.parametrize("local_start", [0, 20])
def test_numbers_beyond_64_bits_are_handled_as_very_large_ones(tmp_path: Path, local_start: int) -> None:
    with a_reader(a_copied_remote_log(tmp_path), local_start) as (_, reader):
        for huge in (2**63 - 1, 2**63, 10**30):
            assert reader.offsets(ORDERS_0, huge) is None
            assert list(reader.records(ORDERS_0, 3, end_offset=huge)) == records(3, 35)
            with pytest.raises(OffsetOutOfRangeError):
                list(reader.records(ORDERS_0, huge))
        assert list(reader.records(ORDERS_0, 3, end_offset=-huge)) == []


def test_outside_of_the_log_the_error_names_what_there_is(tmp_path: Path) -> None:
    with a_reader(a_copied_remote_log(tmp_path)) as (_, reader):
        assert list(reader.records(ORDERS_0, 35)) == []
        for outside in (-1, 36, 10**18):
            with pytest.raises(OffsetOutOfRangeError, match=rf"offset {outside}.*offsets 0 to 34\b"):
                list(reader.records(ORDERS_0, outside))


def test_bytes_and_indexes_of_a_segment_are_those_of_the_store(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    with a_reader(files) as (remote_log, reader):
        segment = segments_of(remote_log)[1]
        content, key = files.objects(".log")[1].read_bytes(), segment.segment_id.id

        assert b"".join(reader.segment_bytes(ORDERS_0, key)) == content
        for start, end in ((0, 0), (1, 700), (segment.size - 1, segment.size - 1)):
            assert b"".join(reader.segment_bytes(ORDERS_0, key, start, end)) == content[start : end + 1]
        for start, end in ((-1, 3), (5, 4), (0, segment.size)):
            with pytest.raises(ValueError, match="not in it"):
                list(reader.segment_bytes(ORDERS_0, key, start, end))
        for kind in (IndexKind.MANIFEST, IndexKind.REMOTE_LOG_INDEX, IndexKind.TIMESTAMP):
            assert reader.index(ORDERS_0, key, kind) == remote_log.context.storage.fetch_index(segment, kind)
        with pytest.raises(RemoteObjectNotFoundError, match="no such segment"):
            list(reader.segment_bytes(ORDERS_0, "no such segment"))


def test_a_closed_reader_raises_an_error(tmp_path: Path) -> None:
    with a_reader(a_copied_remote_log(tmp_path)) as (remote_log, reader):
        inner = remote_log.open_log_reader()
        with BlockingLogReader(inner) as other:
            inner.close()
            with pytest.raises(ConfigurationError, match="closed"):
                list(other.records(ORDERS_0, 0))
        assert next(reader.records(ORDERS_0, 0)) == record(0)


def test_a_torn_batch_after_the_high_watermark_does_not_stop_a_read(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    active = files.local_segments()[-1].log_path
    active.write_bytes(active.read_bytes() + active.read_bytes()[:40] + bytes(3000))
    with a_reader(files) as (_, reader):
        assert list(reader.records(ORDERS_0, 28)) == records(28, 35)


def test_a_batch_below_the_high_watermark_that_is_broken_is_named_when_it_is_its_turn(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    broken = files.local_segments()[1].log_path
    flip_bit(broken, SEGMENT_BYTES - 1)
    with a_reader(files) as (_, reader):
        reading = reader.records(ORDERS_0, 10)
        assert [next(reading) for _ in range(5)] == records(10, 15)
        with pytest.raises(CorruptRecordError, match=f"{broken.name}: at byte {SEGMENT_BYTES // 2}"):
            next(reading)


def test_a_flipped_bit_in_the_store_is_found_before_anybody_is_given_it(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    broken = files.objects(".log")[1]
    flip_bit(broken, SEGMENT_BYTES - 1)
    with a_reader(files, 20) as (_, reader):
        reading = reader.records(ORDERS_0, 10)
        assert [next(reading) for _ in range(5)] == records(10, 15)
        with pytest.raises(RemoteObjectCorruptError, match=broken.name):
            next(reading)


def test_an_iterator_that_is_forgotten_in_the_thread_of_the_loop_holds_nothing_up(tmp_path: Path) -> None:
    with a_reader(a_copied_remote_log(tmp_path), 20) as (_, reader):
        forgotten = [reader.batches(ORDERS_0, 0)]
        next(forgotten[0])
        reader._loop.call_soon_threadsafe(forgotten.clear)
        assert list(reader.records(ORDERS_0, 0)) == records(0, 35)


def test_read_ahead_is_released_however_a_read_ends(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    files.properties |= {"remote.log.reader.read.ahead.bytes": 1000, "remote.log.reader.cache.memory.bytes": 700}
    with files.open() as remote_log:
        inner = remote_log.open_log_reader()
        with BlockingLogReader(inner) as reader:
            segment = segments_of(remote_log)[0].segment_id.id
            for start in range(30):
                for steps in (1, 2, 10):
                    reading, content = reader.batches(ORDERS_0, start), reader.segment_bytes(ORDERS_0, segment)
                    assert len(list(islice(reading, steps))) <= steps
                    assert len(list(islice(content, steps))) <= steps
                    reading.close()
                    content.close()
            assert inner._chunks._ahead_left == 1000


def test_prefetched_bytes_that_no_read_uses_are_counted(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    files.properties |= {"remote.log.reader.cache.memory.bytes": 0}
    with a_reader(files, 20) as (_, reader):
        counts = reader._reader.chunk_counts
        assert list(reader.records(ORDERS_0, 0)) == records(0, 35)
        assert (counts.wasted_bytes, counts.hits + counts.misses > 0) == (0, True)
        # A fetch that no thread has begun is withdrawn, and costs nothing.
        for _ in range(1000):
            reading = reader.batches(ORDERS_0, 0)
            assert len(list(islice(reading, 2))) == 2
            reading.close()
            if counts.wasted_bytes:
                break
        assert counts.wasted_bytes > 0
