from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered_storage.kafka_log.files.leader_epoch_checkpoint import (
    EpochEntry,
    LeaderEpochCache,
    read_leader_epochs,
    write_leader_epochs,
)


@pytest.fixture
def cache(tmp_path: Path) -> LeaderEpochCache:
    path = tmp_path / "leader-epoch-checkpoint"
    write_leader_epochs(path, [EpochEntry(2, 10), EpochEntry(4, 20), EpochEntry(5, 35)])
    return LeaderEpochCache.read(path)


def starts(cache: LeaderEpochCache) -> list[tuple[int, int]]:
    return [(entry.epoch, entry.start_offset) for entry in cache.entries]


def test_a_missing_checkpoint_is_made_without_entries(tmp_path: Path) -> None:
    path = tmp_path / "leader-epoch-checkpoint"

    assert LeaderEpochCache.read(path).entries == ()
    assert path.read_bytes() == b"0\n0\n"


@pytest.mark.parametrize(
    ("epoch", "start", "expected"),
    [
        (5, 35, [(2, 10), (4, 20), (5, 35)]),
        (5, 50, [(2, 10), (4, 20), (5, 35)]),
        (7, 50, [(2, 10), (4, 20), (5, 35), (7, 50)]),
        (7, 35, [(2, 10), (4, 20), (7, 35)]),
        (5, 30, [(2, 10), (4, 20), (5, 30)]),
        (3, 25, [(2, 10), (3, 25)]),
        (9, 5, [(9, 5)]),
    ],
)
def test_a_new_epoch_removes_contradicting_entries(
    cache: LeaderEpochCache, tmp_path: Path, epoch: int, start: int, expected: list[tuple[int, int]]
) -> None:
    cache.assign(epoch, start)

    assert starts(cache) == expected
    assert read_leader_epochs(tmp_path / "leader-epoch-checkpoint") == cache.entries


def test_only_later_epochs_are_taken_from_batches(cache: LeaderEpochCache) -> None:
    cache.add_later([EpochEntry(-1, 40), EpochEntry(4, 41), EpochEntry(6, 42), EpochEntry(6, 43), EpochEntry(8, 44)])

    assert starts(cache) == [(2, 10), (4, 20), (5, 35), (6, 42), (8, 44)]
    assert cache.latest == 8


@pytest.mark.parametrize(("offset", "epoch"), [(9, None), (10, 2), (19, 2), (20, 4), (34, 4), (35, 5), (1000, 5)])
def test_each_offset_has_its_epoch(cache: LeaderEpochCache, offset: int, epoch: int | None) -> None:
    assert cache.epoch_for(offset) == epoch


@pytest.mark.parametrize(
    ("epoch", "end"), [(-1, None), (0, (0, 10)), (2, (2, 20)), (3, (2, 20)), (4, (4, 35)), (5, (5, 60)), (6, None)]
)
def test_an_epoch_ends_where_a_later_one_begins(
    cache: LeaderEpochCache, epoch: int, end: tuple[int, int] | None
) -> None:
    assert cache.end_offset_for(epoch, 60) == end


def test_an_empty_epoch_cache_has_no_end_offset(tmp_path: Path) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_bytes(b"")
    cache = LeaderEpochCache.read(path)

    assert (cache.latest, cache.end_offset_for(0, 10), cache.epoch_for(0)) == (None, None, None)


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (36, [(2, 10), (4, 20), (5, 35)]),
        (35, [(2, 10), (4, 20)]),
        (21, [(2, 10), (4, 20)]),
        (11, [(2, 10)]),
        (10, []),
    ],
)
def test_epochs_after_the_end_are_forgotten(
    cache: LeaderEpochCache, tmp_path: Path, end: int, expected: list[tuple[int, int]]
) -> None:
    cache.truncate_from_end(end)

    assert starts(cache) == expected
    assert read_leader_epochs(tmp_path / "leader-epoch-checkpoint") == cache.entries


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (5, [(2, 10), (4, 20), (5, 35)]),
        (10, [(2, 10), (4, 20), (5, 35)]),
        (11, [(2, 11), (4, 20), (5, 35)]),
        (20, [(4, 20), (5, 35)]),
        (36, [(5, 36)]),
    ],
)
def test_epochs_before_the_start_are_forgotten(
    cache: LeaderEpochCache, tmp_path: Path, start: int, expected: list[tuple[int, int]]
) -> None:
    cache.truncate_from_start(start)

    assert starts(cache) == expected
    assert read_leader_epochs(tmp_path / "leader-epoch-checkpoint") == cache.entries


def test_all_epochs_can_be_forgotten(cache: LeaderEpochCache, tmp_path: Path) -> None:
    cache.clear()

    assert cache.entries == read_leader_epochs(tmp_path / "leader-epoch-checkpoint") == ()


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 30)), max_size=12), st.integers(0, 35))
def test_after_any_course_epochs_and_their_starts_rise(
    tmp_path_factory: pytest.TempPathFactory, assigned: list[tuple[int, int]], offset: int
) -> None:
    path = tmp_path_factory.mktemp("epochs") / "leader-epoch-checkpoint"
    path.write_bytes(b"")
    cache = LeaderEpochCache.read(path)
    for epoch, start in assigned:
        cache.assign(epoch, start)
        assert cache.latest == epoch

    assert LeaderEpochCache.read(path).entries == cache.entries
    known = [entry.epoch for entry in cache.entries if entry.start_offset <= offset]
    assert cache.epoch_for(offset) == (known[-1] if known else None)
