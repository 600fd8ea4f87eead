from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from support.remote_logs import NOW, ORDERS_0, SEGMENT_OFFSETS, a_copied_remote_log, end_below, flip_bit
from support.storages import StagedStorage
from tiered_storage.errors import RemoteStorageError
from tiered_storage.remote_log.coverage import Coverage, CoveredRange
from tiered_storage.remote_log.follower.index_files import IndexChanges, IndexRotation, RemoteIndexFiles
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind, RemoteStorageManager
from unit.tiered_storage.remote_log.follower.led_partition import LedPartition

ONE_FILE = IndexRotation(1 << 20, 1 << 40)
SUFFIXES = ("remoteLogIndex", "remoteOffsetIndex", "remoteTimeIndex")
KINDS = (IndexKind.REMOTE_LOG_INDEX, IndexKind.REMOTE_OFFSET_INDEX, IndexKind.REMOTE_TIME_INDEX)


@pytest.fixture
def led(tmp_path: Path) -> LedPartition:
    return LedPartition(a_copied_remote_log(tmp_path))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (found := tmp_path / "orders-0").mkdir()
    return found


def _ranges(remote_log: RemoteLogManager) -> tuple[CoveredRange, ...]:
    return Coverage.of(remote_log.context.segments.list_remote_log_segments(ORDERS_0), ()).ranges


def _bases(directory: Path) -> list[int]:
    return sorted(int(path.name[:20]) for path in directory.glob("*.remoteLogIndex"))


def _contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_trio_of_one_segment_is_that_of_the_store(led: LedPartition, directory: Path) -> None:
    with led.files.open() as remote_log:
        ranges, storage = _ranges(remote_log), remote_log.context.storage
        RemoteIndexFiles(directory, IndexRotation(1, 1 << 40)).sync(ranges, storage, 0)

        assert _bases(directory) == [0, 10, 20]
        for covered in ranges:
            for suffix, kind in zip(SUFFIXES, KINDS, strict=True):
                path = directory / f"{covered.start_offset:020d}.{suffix}"
                assert path.read_bytes() == storage.fetch_index(covered.segment, kind)


def test_a_call_may_end_early_and_the_next_one_adds_the_rest(led: LedPartition, directory: Path) -> None:
    with led.files.open() as remote_log:
        ranges, storage = _ranges(remote_log), remote_log.context.storage
        files = RemoteIndexFiles(directory, ONE_FILE)

        assert files.sync(ranges, storage, 0, iter([True, False]).__next__) == IndexChanges(added=1, left=2)
        assert [each.start_offset for each in files.segments] == [0]
        assert files.sync(ranges, storage, 0) == IndexChanges(added=2)
        assert [each.start_offset for each in files.segments] == [0, 10, 20]


def test_one_trio_takes_several_segments_and_finds_all_of_them(led: LedPartition, directory: Path) -> None:
    with led.files.open() as remote_log:
        ranges, storage = _ranges(remote_log), remote_log.context.storage
        files = RemoteIndexFiles(directory, ONE_FILE)
        changes = files.sync(ranges, storage, 0)

        assert (changes.added, _bases(directory)) == (3, [0])
        for offset in range(3 * SEGMENT_OFFSETS):
            chunk = files.chunk_for_offset(offset)
            found = files.chunk_for_timestamp(NOW + 1000 * offset)
            assert chunk is not None and chunk == found
            assert chunk.first_offset <= offset <= chunk.last_offset
            covered = next(each for each in ranges if each.segment.segment_id.id in chunk.object_name)
            assert covered.start_offset <= offset <= covered.end_offset
            batches = b"".join(
                storage.fetch_log_segment(covered.segment, chunk.position, chunk.position + chunk.length - 1)
            )
            assert int.from_bytes(batches[:8], "big") == chunk.first_offset
        assert files.chunk_for_offset(30) is None
        assert files.chunk_for_timestamp(NOW + 30_000) is None


def test_a_trio_is_rotated_some_time_after_its_first_segment(led: LedPartition, directory: Path) -> None:
    with led.files.open() as remote_log:
        ranges = tuple(
            replace(each, segment=replace(each.segment, event_timestamp=NOW + at * 1000))
            for at, each in enumerate(_ranges(remote_log))
        )
        rotation = IndexRotation(1 << 20, 2000)
        files = RemoteIndexFiles(directory, rotation)
        files.sync(ranges[:1], remote_log.context.storage, 0)
        RemoteIndexFiles(directory, rotation).sync(ranges, remote_log.context.storage, 0)

    assert _bases(directory) == [0, 20]


def test_nothing_is_fetched_twice_and_a_new_process_continues(led: LedPartition, directory: Path) -> None:
    with led.files.open() as remote_log:
        storage = StagedStorage(remote_log.context.storage)
        RemoteIndexFiles(directory, ONE_FILE).sync(_ranges(remote_log)[:2], storage, 0)
        changes = RemoteIndexFiles(directory, ONE_FILE).sync(_ranges(remote_log), storage, 0)

    assert (changes.added, changes.removed) == (1, 0)
    assert storage.fetched_indexes[IndexKind.REMOTE_LOG_INDEX] == 3


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("damage", ["torn", "flipped", "gone"])
def test_what_a_crash_left_is_mended(led: LedPartition, directory: Path, suffix: str, damage: str) -> None:
    with led.files.open() as remote_log:
        ranges, storage = _ranges(remote_log), remote_log.context.storage
        RemoteIndexFiles(directory, ONE_FILE).sync(ranges, storage, 0)
        before = _contents(directory)
        path = directory / f"{0:020d}.{suffix}"
        if damage == "gone":
            path.unlink()
        elif damage == "torn":
            path.write_bytes(path.read_bytes()[:-5])
        else:
            flip_bit(path, len(path.read_bytes()) - 2)
        (directory / f"{0:020d}.{suffix}.tmp").write_bytes(b"half")

        RemoteIndexFiles(directory, ONE_FILE).sync(ranges, storage, 0)

    assert {name: content for name, content in _contents(directory).items() if not name.endswith(".tmp")} == before


def test_another_copy_of_a_segment_replaces_its_entries_and_all_after_them(led: LedPartition, directory: Path) -> None:
    with led.files.open() as remote_log:
        storage = remote_log.context.storage
        first, second, third = _ranges(remote_log)
        files = RemoteIndexFiles(directory, ONE_FILE)
        files.sync([first, third], storage, 0)
        changes = files.sync([first, second, third], storage, 0)

    assert (changes.added, changes.removed) == (2, 1)
    assert [(each.start_offset, each.end_offset) for each in files.segments] == [(0, 9), (10, 19), (20, 29)]


def test_a_segment_that_a_later_leader_truncated_is_indexed_up_to_there(led: LedPartition, directory: Path) -> None:
    with led.files.open() as remote_log:
        first, second, _ = _ranges(remote_log)
        files = RemoteIndexFiles(directory, ONE_FILE)
        files.sync([first, CoveredRange(second.segment, 12)], remote_log.context.storage, 0)

    assert [each.end_offset for each in files.segments] == [9, 12]
    assert files.chunk_for_offset(13) is None


def test_where_segments_overlap_each_offset_is_indexed_once(led: LedPartition, directory: Path) -> None:
    with led.files.open() as remote_log:
        first, second, third = _ranges(remote_log)
        storage = remote_log.context.storage
        files = RemoteIndexFiles(directory, ONE_FILE)
        files.sync([first, CoveredRange(second.segment, 17), third], storage, 0)
        files.sync([CoveredRange(first.segment, 9), second, third], storage, 0)

    assert [(each.start_offset, each.end_offset) for each in files.segments] == [(0, 9), (10, 19), (20, 29)]


def test_trios_below_the_log_start_are_deleted_as_a_whole(led: LedPartition, directory: Path) -> None:
    with led.files.open() as remote_log:
        ranges, storage = _ranges(remote_log), remote_log.context.storage
        rotation = IndexRotation(1, 1 << 40)
        files = RemoteIndexFiles(directory, rotation)
        files.sync(ranges, storage, 0)
        inside = files.sync(ranges, storage, 15)
        passed = files.sync(ranges[2:], storage, 20)

    assert (inside.expired, passed.expired) == (1, 1)
    assert _bases(directory) == [20]


def test_a_trio_that_the_log_start_is_within_stays_whole(led: LedPartition, directory: Path) -> None:
    with led.files.open() as remote_log:
        ranges, storage = _ranges(remote_log), remote_log.context.storage
        files = RemoteIndexFiles(directory, ONE_FILE)
        files.sync(ranges, storage, 0)
        changes = files.sync(ranges[2:], storage, 20)

    assert (changes.added, changes.removed, changes.expired) == (0, 0, 0)
    assert files.base_offsets == (0,)
    assert files.chunk_for_offset(25) is not None


def test_a_failing_store_leaves_what_was_read_before(led: LedPartition, directory: Path) -> None:
    with led.files.open() as remote_log:
        ranges = _ranges(remote_log)
        storage = _fails_at(remote_log.context.storage, ranges[2].segment.segment_id.id)
        files = RemoteIndexFiles(directory, ONE_FILE)
        with pytest.raises(RemoteStorageError):
            files.sync(ranges, storage, 0)

    assert [each.end_offset for each in RemoteIndexFiles(directory, ONE_FILE).segments] == [9, 19]


def _fails_at(storage: RemoteStorageManager, segment_id: str) -> StagedStorage:
    staged = StagedStorage(storage)
    staged.fail_with, staged.fails_for = RemoteStorageError("the store is down"), segment_id
    return staged


def test_a_follower_keeps_them_beside_its_log(led: LedPartition) -> None:
    report = led.follow(remote_log_index_rotation_bytes=1)

    assert report.indexed == 3
    assert _bases(led.directory / "orders-0") == [0, 10, 20]
    with led.files.open() as remote_log:
        end_below(remote_log, 20)
    led.follow()
    assert _bases(led.directory / "orders-0") == [20]
