from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.metadata_stores import ORDERS_0, a_segment
from tiered_storage.kafka_log.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.coverage import Coverage, finished, on_lineage
from tiered_storage.remote_log.model import Lease, RemoteLogSegmentMetadata, SegmentState

LEASE = Lease(ORDERS_0, "test", 1, 0)
ONE_LEADER = (EpochEntry(0, 0),)


def segment(
    start: int, end: int, *epochs: tuple[int, int], state: SegmentState = SegmentState.COPY_SEGMENT_FINISHED
) -> RemoteLogSegmentMetadata:
    return replace(a_segment(LEASE, start, end, epochs=epochs or None), state=state)


def ranges(segments: list[RemoteLogSegmentMetadata] | None) -> list[tuple[int, int]] | None:
    return None if segments is None else [(each.start_offset, each.end_offset) for each in segments]


def test_only_finished_segments_cover_anything() -> None:
    others = [segment(0, 9, state=state) for state in SegmentState if state is not SegmentState.COPY_SEGMENT_FINISHED]

    assert finished(others) == []
    assert Coverage.of(others, ONE_LEADER).holding(0, 0) is None


def test_what_is_held_is_named_segment_by_segment_and_a_missing_offset_is_noticed() -> None:
    coverage = Coverage.of([segment(20, 29), segment(0, 9), segment(10, 19), segment(40, 49)], ONE_LEADER)

    assert ranges(coverage.holding(0, 29)) == [(0, 9), (10, 19), (20, 29)]
    assert ranges(coverage.holding(9, 10)) == [(0, 9), (10, 19)]
    assert ranges(coverage.holding(45, 45)) == [(40, 49)]
    assert coverage.holding(29, 30) is None
    assert coverage.holding(30, 39) is None
    assert coverage.holding(49, 50) is None
    assert coverage.gaps() == [(30, 39)]
    assert coverage.end_offset == 49


def test_nothing_at_all_covers_nothing() -> None:
    coverage = Coverage.of([], ())

    assert coverage.holding(0, 0) is None
    assert coverage.gaps() == []
    assert coverage.end_offset is None


def test_of_copies_of_the_same_offsets_one_counts_and_the_longest_wins() -> None:
    coverage = Coverage.of([segment(0, 4), segment(0, 9), segment(2, 7), segment(5, 14), segment(8, 14)], ONE_LEADER)

    assert ranges(list(coverage.segments)) == [(0, 9), (5, 14)]
    assert ranges(coverage.holding(9, 14)) == [(0, 9), (5, 14)]
    assert ranges(coverage.holding(10, 14)) == [(5, 14)]


def test_offsets_below_our_log_start_are_not_lacking() -> None:
    coverage = Coverage.of([segment(10, 19)], ONE_LEADER)

    assert coverage.lacks(0, 19, 0)
    assert coverage.lacks(0, 19, 9)
    assert not coverage.lacks(0, 19, 10)
    assert coverage.lacks(20, 29, 10)
    assert coverage.lacks(20, 29, 29)
    assert not coverage.lacks(20, 29, 30)


@pytest.mark.parametrize(
    ("epochs", "lineage", "is_on_it"),
    [
        (((0, 10),), ((0, 0),), True),
        (((1, 10),), ((0, 0),), False),
        # The leader of epoch 1 took over at 15 and wrote its own bytes from there.
        (((0, 10),), ((0, 0), (1, 15)), False),
        (((0, 10), (1, 15)), ((0, 0), (1, 15)), True),
        (((0, 10), (1, 15)), ((0, 0), (1, 16)), False),
        (((0, 10), (1, 15)), ((0, 0), (2, 15)), False),
        # A later leader contradicts nothing that came before it.
        (((0, 10),), ((0, 0), (1, 20)), True),
        # The broker forgot what was below its log start: it contradicts nothing there, and all from there on.
        (((0, 10),), ((1, 20),), True),
        (((0, 10), (1, 15)), ((1, 17),), True),
        (((0, 10),), ((1, 17),), False),
        (((0, 10),), (), True),
    ],
)
def test_a_segment_is_on_the_lineage_where_the_same_leaders_wrote_the_same_offsets(
    epochs: tuple[tuple[int, int], ...], lineage: tuple[tuple[int, int], ...], is_on_it: bool
) -> None:
    entries = [EpochEntry(*entry) for entry in lineage]

    assert on_lineage(segment(10, 19, *epochs), entries) is is_on_it


def test_the_copy_of_a_deposed_leader_covers_nothing() -> None:
    lineage = (EpochEntry(0, 0), EpochEntry(2, 15))
    deposed, heir = segment(10, 29, (0, 10), (1, 15)), segment(10, 19, (0, 10), (2, 15))

    coverage = Coverage.of([deposed, heir], lineage)

    assert ranges(list(coverage.segments)) == [(10, 19)]
    assert coverage.holding(10, 29) is None


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 8)), max_size=12), st.integers(0, 50), st.integers(0, 10))
def test_any_segments_hold_exactly_their_union(drawn: list[tuple[int, int]], start: int, length: int) -> None:
    segments = [segment(first, first + more) for first, more in drawn]
    union = {offset for each in segments for offset in range(each.start_offset, each.end_offset + 1)}
    coverage = Coverage.of(segments, ONE_LEADER)

    held = coverage.holding(start, start + length)

    assert (held is not None) == union.issuperset(range(start, start + length + 1))
    if held is not None:
        reached = start
        for each in held:
            assert each.start_offset <= reached <= each.end_offset
            reached = each.end_offset + 1
        assert reached > start + length
    missing = {offset for first, last in coverage.gaps() for offset in range(first, last + 1)}
    assert missing == set(range(min(union, default=0), max(union, default=-1) + 1)) - union
