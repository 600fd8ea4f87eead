"""Reads through both tiers: look-ups, edges, deletions meanwhile, a store that is down, many at once (22-27)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tenacity.wait import wait_exponential

from support.clocks import FakeTime
from support.metadata_stores import a_step
from support.remote_logs import (
    ENABLED,
    NOW,
    ORDERS_0,
    RemoteLogFiles,
    a_copied_remote_log,
    assert_clean,
    copy,
    held_by,
    local_log,
    move_log_start,
    partition_of,
    record,
    records,
    segments_of,
    with_context,
)
from support.storages import StagedStorage
from tiered_storage.errors import (
    OffsetOutOfRangeError,
    ReaderBusyError,
    ReadQuotaExceededError,
    ReadTimedOutError,
    RecordsDeletedError,
    RemoteObjectNotFoundError,
    RemoteStorageError,
)
from tiered_storage.kafka_log.records.compression import Compression
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import SegmentState, TopicIdPartition
from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader
from tiered_storage.remote_log.read.chunks.fetch_deadline import ReadTiming
from tiered_storage.remote_log.read.log_reader import RemoteLogReader
from tiered_storage.remote_log.read.read_values import FoundOffset, Isolation, OffsetSpec, Tier
from tiered_storage.remote_log.source.log_directory_trim import LogDirectoryTrim
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind
from tiered_storage.settings.settings import Settings

REMOTE, LOCAL, BOTH = "remote", "local", "both tiers"
SECOND = 1000


@contextmanager
def a_site(root: Path, local_start: int = 20, **properties: Any) -> Iterator[tuple[RemoteLogManager, StagedStorage]]:
    """Open orders-0 with offsets 0 to 34: 0 to 29 remote, `local_start` and above local; it ends with a clean audit."""
    files = a_copied_remote_log(root, **properties)
    with files.open() as remote_log:
        trim(remote_log, local_start)
        staged = StagedStorage(remote_log.context.storage)
        yield remote_log, staged
        staged.close()
        staged.fail_with = None
        assert_clean(remote_log)


@dataclass(frozen=True)
class Site:
    """An open remote log, its store, and a reader of both."""

    remote_log: RemoteLogManager
    staged: StagedStorage
    reader: BlockingLogReader


@contextmanager
def reading(root: Path, local_start: int = 20, time: FakeTime | None = None, **properties: Any) -> Iterator[Site]:
    """Open the same with a reader."""
    with (
        a_site(root, local_start, **properties) as (remote_log, staged),
        BlockingLogReader(a_reader(remote_log, staged, time)) as reader,
    ):
        yield Site(remote_log, staged, reader)


def trim(remote_log: RemoteLogManager, local_start: int, partition: TopicIdPartition = ORDERS_0) -> None:
    going = [each for each in local_log(remote_log, partition).segments if each.base_offset < local_start]
    LogDirectoryTrim().trim(partition, going, local_start)


def a_reader(remote_log: RemoteLogManager, staged: StagedStorage, time: FakeTime | None = None) -> RemoteLogReader:
    """Open a reader of what is staged; pauses are 0.1 s, 0.2 s, 0.4 s … of a time that may be a test's own."""
    pause = wait_exponential(multiplier=0.1, max=5)
    timing = ReadTiming(pause=pause) if time is None else ReadTiming(time.now, time.sleep, pause)
    return RemoteLogReader(replace(remote_log.context, storage=staged), timing)


def delete_remote(remote_log: RemoteLogManager, log_start: int) -> None:
    """End all offsets below `log_start`, objects too."""
    move_log_start(remote_log, log_start, held_by(remote_log, "expire"))
    for segment in segments_of(remote_log):
        if segment.end_offset < log_start:
            step = a_step(segment, SegmentState.DELETE_SEGMENT_STARTED)
            remote_log.context.segments.update_remote_log_segment_metadata(step, held_by(remote_log, "expire"))
    remote_log.deletions.delete_marked("expire")


# ------------------------------------------------------------------------------------------------- 22: offset look-ups


@pytest.mark.parametrize(("tiers", "local_start"), [(LOCAL, 0), (BOTH, 20), (REMOTE, 30)])
def test_offset_look_ups_by_name_with_their_epochs(tmp_path: Path, tiers: str, local_start: int) -> None:
    with reading(tmp_path, local_start) as site:
        for isolation in (Isolation.READ_UNCOMMITTED, Isolation.READ_COMMITTED):
            assert site.reader.offsets(ORDERS_0, OffsetSpec.EARLIEST, isolation) == FoundOffset(0, -1, 0)
            assert site.reader.offsets(ORDERS_0, OffsetSpec.LATEST, isolation) == FoundOffset(35, -1, 0)
            assert site.reader.offsets(ORDERS_0, OffsetSpec.EARLIEST_LOCAL, isolation) == FoundOffset(
                local_start, -1, 0
            )
            assert site.reader.offsets(ORDERS_0, OffsetSpec.LATEST_TIERED, isolation) == FoundOffset(29, -1, 0)
            assert site.reader.offsets(ORDERS_0, OffsetSpec.MAX_TIMESTAMP, isolation) == found(34)


@pytest.mark.parametrize(("tiers", "local_start"), [(LOCAL, 0), (BOTH, 20), (REMOTE, 30)])
def test_offset_look_ups_by_timestamps_below_between_equal_and_above(
    tmp_path: Path, tiers: str, local_start: int
) -> None:
    with reading(tmp_path, local_start) as site:
        assert site.reader.offsets(ORDERS_0, 0) == site.reader.offsets(ORDERS_0, NOW - SECOND) == found(0)
        for offset in range(35):
            assert site.reader.offsets(ORDERS_0, NOW + offset * SECOND) == found(offset)
            assert site.reader.offsets(ORDERS_0, NOW + offset * SECOND - 1) == found(offset)
        assert site.reader.offsets(ORDERS_0, NOW + 34 * SECOND + 1) is None


def test_a_look_up_by_timestamp_asks_the_store_for_one_chunk_and_for_none_of_what_is_local(tmp_path: Path) -> None:
    with reading(tmp_path) as site:
        assert site.reader.offsets(ORDERS_0, NOW + 27 * SECOND) == found(27)
        assert site.staged.fetched.total() == 0
        assert site.reader.offsets(ORDERS_0, NOW + 17 * SECOND) == found(17)
        assert site.staged.fetched.total() == 1


def found(offset: int) -> FoundOffset:
    return FoundOffset(offset, record(offset).timestamp, 0)


# ----------------------------------------------------------------------------------------------------- 23: range edges


@pytest.mark.parametrize("compression", list(Compression))
def test_range_edges(tmp_path: Path, compression: Compression) -> None:
    files = a_copied_remote_log(tmp_path, {("orders", 0): 1})
    files.append(4, compression=compression)
    with files.open() as remote_log:
        copy(remote_log)
        starts = [segment.start_offset for segment in segments_of(remote_log)]
        trim(remote_log, starts[-1])
        end = local_log(remote_log).last_stable_offset
        with BlockingLogReader(remote_log.open_log_reader()) as reader:
            # first and last offset of each segment, inside of batches, over two segments, over the border of the tiers
            for start in range(end):
                for stop in (start + 1, start + 3, start + 8, end):
                    assert list(reader.records(ORDERS_0, start, end_offset=stop)) == records(start, min(stop, end))
            assert list(reader.records(ORDERS_0, end)) == []
            move_log_start(remote_log, 7, held_by(remote_log, "test"))
            with pytest.raises(OffsetOutOfRangeError, match=rf"offset {end + 1}.*offsets 7\b"):
                list(reader.records(ORDERS_0, end + 1))
        with BlockingLogReader(remote_log.open_log_reader()) as reader:
            with pytest.raises(OffsetOutOfRangeError, match=rf"offset 6\b.*offsets 7 to {end - 1}"):
                list(reader.records(ORDERS_0, 6))
            assert list(reader.records(ORDERS_0, 7)) == records(7, end)
        assert_clean(remote_log)


def test_over_the_border_of_the_tiers_each_offset_comes_once(tmp_path: Path) -> None:
    with reading(tmp_path) as site:
        steps = list(site.reader.batches(ORDERS_0, 17, end_offset=23))
        assert [(each.tier, each.start_offset, each.end_offset) for each in steps] == [
            (Tier.REMOTE, 17, 20), (Tier.LOCAL, 20, 23),
        ]  # fmt: skip


# ---------------------------------------------------------------------------------------- 24: deleted while being read


def test_deleted_while_being_read(tmp_path: Path) -> None:
    with reading(tmp_path, topics={"orders": {**ENABLED}}, remote_log_reader_metadata_max_age_ms=0) as site:
        steps = site.reader.records(ORDERS_0, 0)
        assert [next(steps) for _ in range(5)] == records(0, 5)

        delete_remote(site.remote_log, 10)
        with pytest.raises(RecordsDeletedError, match=r"\b10\b") as raised:
            list(steps)

        assert (raised.value.start, raised.value.end) == (10, 35)
        assert list(site.reader.records(ORDERS_0, raised.value.start)) == records(10, 35)


def test_deleted_between_the_look_and_the_fetch(tmp_path: Path) -> None:
    """A segment in the snapshot is deleted before its fetch: another snapshot shows why."""
    with reading(tmp_path, topics={"orders": {**ENABLED}}) as site:
        assert site.reader.offsets(ORDERS_0, OffsetSpec.EARLIEST) == FoundOffset(0, -1, 0)
        delete_remote(site.remote_log, 10)
        with pytest.raises(RecordsDeletedError, match=r"begins at offset 10"):
            list(site.reader.records(ORDERS_0, 3))
        assert site.reader.offsets(ORDERS_0, OffsetSpec.EARLIEST) == FoundOffset(10, -1, 0)


def test_a_lost_object_is_an_error_and_never_passed_over(tmp_path: Path) -> None:
    with a_site(tmp_path) as (remote_log, staged):
        files = RemoteLogFiles(tmp_path)
        lost = files.objects(".log")[1]
        content = lost.read_bytes()
        lost.unlink()
        with BlockingLogReader(a_reader(remote_log, staged)) as reader:
            reading = reader.records(ORDERS_0, 5)
            assert [next(reading) for _ in range(5)] == records(5, 10)
            with pytest.raises(RemoteObjectNotFoundError, match=lost.name):
                next(reading)
        lost.write_bytes(content)


# ---------------------------------------------------------------------------------------------- 25: store slow or down


def test_while_the_store_hangs_local_reads_continue_and_remote_ones_time_out(tmp_path: Path) -> None:
    with reading(tmp_path, remote_log_reader_threads=1) as site:
        site.staged.stand_still()
        with pytest.raises(ReadTimedOutError, match="within 20 ms"):
            list(site.reader.records(ORDERS_0, 0, deadline_ms=20))
        assert list(site.reader.records(ORDERS_0, 20)) == records(20, 35)
        site.staged.proceed()
        assert list(site.reader.records(ORDERS_0, 0)) == records(0, 35)


def test_remote_reads_are_tried_again_with_growing_pauses_until_their_time_is_up(tmp_path: Path) -> None:
    time = FakeTime()
    with reading(tmp_path, remote_fetch_max_wait_ms=4000, time=time) as site:
        site.staged.fail_with = RemoteStorageError("the store is out of reach")
        with pytest.raises(RemoteStorageError, match="out of reach") as raised:
            list(site.reader.records(ORDERS_0, 0))
        assert raised.value.retriable
        assert time.slept[1:] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6])
        assert sum(time.slept) < 4

        time.slept.clear()
        time.on_sleep = lambda: setattr(
            site.staged, "fail_with", None if len(time.slept) == 3 else site.staged.fail_with
        )
        assert list(site.reader.records(ORDERS_0, 0)) == records(0, 35)


def test_a_chunk_that_broke_in_transit_is_fetched_once_more(tmp_path: Path) -> None:
    with reading(tmp_path) as site:
        site.staged.break_next = True
        assert list(site.reader.records(ORDERS_0, 0)) == records(0, 35)
        assert sorted(site.staged.fetched.values()) == [1, 1, 1, 2]


@pytest.mark.parametrize(("room", "again"), [(1 << 20, False), (1, True)])
def test_indexes_of_segments_are_fetched_again_only_if_the_cache_has_no_room_for_them(
    tmp_path: Path, room: int, *, again: bool
) -> None:
    with reading(tmp_path, local_start=30, remote_log_index_file_cache_total_size_bytes=room) as site:
        assert list(site.reader.records(ORDERS_0, 0)) == records(0, 35)
        assert site.staged.fetched_indexes[IndexKind.REMOTE_LOG_INDEX] >= 3
        site.staged.fetched_indexes.clear()
        assert list(site.reader.records(ORDERS_0, 0)) == records(0, 35)
        assert bool(site.staged.fetched_indexes) is again


def test_a_failed_read_ahead_does_not_delay_fetched_batches(tmp_path: Path) -> None:
    time = FakeTime()
    with reading(tmp_path, time=time) as site:
        site.staged.fail_with = RemoteStorageError("only the second segment")
        site.staged.fails_for = segments_of(site.remote_log)[1].segment_id.id
        batches = site.reader.batches(ORDERS_0, 0)
        assert [next(batches).end_offset for _ in range(2)] == [5, 10]
        assert time.slept == []
        with pytest.raises(RemoteStorageError, match="only the second segment"):
            next(batches)


def test_a_full_queue_says_so(tmp_path: Path) -> None:
    with a_site(tmp_path, remote_log_reader_threads=1, remote_log_reader_max_pending_tasks=1) as (remote_log, staged):

        async def ask() -> None:
            with a_reader(remote_log, staged, FakeTime()) as reader:
                segments = segments_of(remote_log)
                staged.stand_still()
                first = asyncio.create_task(first_batch(reader, segments[0].start_offset))
                await until(reader, running=1, pending=0)
                second = asyncio.create_task(first_batch(reader, segments[1].start_offset))
                await until(reader, running=1, pending=1)
                third = asyncio.create_task(first_batch(reader, segments[2].start_offset))
                with pytest.raises(ReaderBusyError, match="full: 1 "):
                    await third
                staged.proceed()
                await asyncio.gather(first, second, return_exceptions=True)
                assert await first_batch(reader, 10) == records(10, 15)

        trim(remote_log, 30)
        asyncio.run(ask())


def test_after_hours_of_outage_all_catches_up_by_itself(tmp_path: Path) -> None:
    time = FakeTime()
    with reading(tmp_path, time=time) as site:
        site.staged.fail_with = RemoteStorageError("down for hours")
        for _ in range(5):
            with pytest.raises(RemoteStorageError):
                list(site.reader.records(ORDERS_0, 0))
            time.seconds += 3600
        site.staged.fail_with = None
        assert list(site.reader.records(ORDERS_0, 0)) == records(0, 35)


async def first_batch(reader: RemoteLogReader, offset: int, partition: TopicIdPartition = ORDERS_0) -> list[Any]:
    async with aclosing(reader.batches(partition, offset)) as batches:
        return list((await anext(batches)).records())


async def until(reader: RemoteLogReader, *, running: int, pending: int) -> None:
    """Wait until so many remote reads are being carried out, and so many wait."""
    while (reader.remote_running, reader.remote_pending) != (running, pending):
        await asyncio.sleep(0)


# ------------------------------------------------------------------------------------------ the limit of remote reads


def limited(remote_log: RemoteLogManager, bytes_per_second: int) -> Settings:
    """Return the settings with a limit that they do not allow, so small that this remote log shows it."""
    rate = {"remote_log_manager_fetch_max_bytes_per_second": bytes_per_second}
    return remote_log.context.settings.model_copy(update={**rate, "remote_log_manager_fetch_quota_window_num": 1})


def test_all_who_read_by_one_reader_keep_one_limit_together(tmp_path: Path) -> None:
    """Each chunk counts once, whoever asks for it; what may pass at once is a second's bytes and a chunk a thread."""
    partitions = {("orders", number): 3 for number in range(4)}
    with a_copied_remote_log(tmp_path, partitions, remote_log_reader_threads=2).open() as remote_log:
        every = [partition_of("orders", number) for number in range(4)]
        time = FakeTime()
        sizes = [segment.size for partition in every for segment in segments_of(remote_log, partition)]
        rate, largest = sum(sizes) // 12, max(sizes)
        timing = ReadTiming(time.now, time.sleep)

        async def read_all() -> None:
            settings = limited(remote_log, rate)
            with RemoteLogReader(
                replace(remote_log.context, settings=settings),
                timing,
                remote_only=True,
            ) as reader:
                alls = await asyncio.gather(*(every_record(reader, each) for each in [*every, *every]))
                assert alls == [records(0, 30)] * 8

        began = time.seconds
        asyncio.run(read_all())

    assert time.seconds - began >= (sum(sizes) - rate - 2 * largest) / rate
    assert sum(time.slept) <= 12


def test_a_read_that_the_limit_makes_wait_too_long_is_refused(tmp_path: Path) -> None:
    time = FakeTime()
    with a_site(tmp_path, 30) as (remote_log, staged):
        slow = with_context(remote_log, storage=staged, settings=limited(remote_log, 10))
        reader = RemoteLogReader(slow.context, ReadTiming(time.now, time.sleep))
        with BlockingLogReader(reader) as reading:
            next(reading.batches(ORDERS_0, 0))
            with pytest.raises(ReadQuotaExceededError, match=r"fetch\.max\.bytes\.per\.second"):
                next(reading.batches(ORDERS_0, 20))
            assert list(reading.records(ORDERS_0, 30)) == records(30, 35), "what is local has no limit"
            time.seconds += 3600
            assert next(reading.batches(ORDERS_0, 20)).start_offset == 20


# --------------------------------------------------------------------------------------------- 26: client gone mid-read


def test_a_client_that_leaves_frees_its_place_and_its_chunk_still_fills_the_cache(tmp_path: Path) -> None:
    with a_site(tmp_path, remote_log_reader_threads=1, remote_log_reader_read_ahead_bytes=0) as (remote_log, staged):

        async def leave() -> None:
            with a_reader(remote_log, staged) as reader:
                assert await first_batch(reader, 0) == records(0, 5)
                staged.stand_still()
                await until(reader, running=0, pending=0)
                gone = asyncio.create_task(first_batch(reader, 5))
                while staged.fetched.total() < 2:
                    await asyncio.sleep(0)
                waiting = asyncio.create_task(first_batch(reader, 10))
                await until(reader, running=1, pending=1)
                gone.cancel()
                waiting.cancel()
                await asyncio.gather(gone, waiting, return_exceptions=True)
                assert (reader.remote_running, reader.remote_pending) == (1, 0)
                staged.proceed()
                assert await first_batch(reader, 5) == records(5, 10)

        asyncio.run(leave())
        fetched_at = {at: count for (_, at), count in staged.fetched.items() if at}
        assert set(fetched_at.values()) == {1}


def test_nothing_is_on_its_way_any_more_after_a_reader_left_early(tmp_path: Path) -> None:
    with a_site(tmp_path, 30) as (remote_log, staged):
        before = set(threading.enumerate())
        with BlockingLogReader(a_reader(remote_log, staged)) as reader:
            for start in range(30):
                reading = reader.batches(ORDERS_0, start)
                next(reading)
                reading.close()
        for thread in threading.enumerate():
            if thread.name in {"remote reads", "local reads", "look-ups of partitions"}:
                thread.join(10)
        assert set(threading.enumerate()) <= before


# -------------------------------------------------------------------------------- 27: two hundred partitions at once


def test_two_hundred_partitions_read_from_the_start_at_once(tmp_path: Path) -> None:
    partitions = {("orders", number): 1 for number in range(200)}
    files = a_copied_remote_log(tmp_path, partitions)
    with files.open() as remote_log:
        every = [partition_of("orders", number) for number in range(200)]
        for partition in every:
            trim(remote_log, 10, partition)

        async def read_all() -> None:
            with remote_log.open_log_reader() as reader:
                firsts = await asyncio.gather(*(first_batch(reader, 0, each) for each in every))
                assert firsts == [records(0, 5)] * 200
                alls = await asyncio.gather(*(every_record(reader, each) for each in every))
                assert alls == [records(0, 15)] * 200

        asyncio.run(read_all())
        assert_clean(remote_log)


async def every_record(reader: RemoteLogReader, partition: TopicIdPartition) -> list[Any]:
    return [each async for fetched in reader.batches(partition, 0) for each in fetched.records()]
