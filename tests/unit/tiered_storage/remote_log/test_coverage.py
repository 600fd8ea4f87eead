from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.metadata_stores import ORDERS_0, a_segment
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.coverage import Coverage, CoveredRange, finished
from tiered_storage.remote_log.lineage import on_lineage, whole_lineage
from tiered_storage.remote_log.model import Lease, RemoteLogSegmentMetadata, SegmentState
from tiered_storage.remote_log.source.partition_log import epochs_within

LEASE = Lease(ORDERS_0, "test", 1, 0)
ONE_LEADER = (EpochEntry(0, 0),)


def segment(
    start: int, end: int, *epochs: tuple[int, int], state: SegmentState = SegmentState.COPY_SEGMENT_FINISHED
) -> RemoteLogSegmentMetadata:
    return replace(a_segment(LEASE, start, end, epochs=epochs or None), state=state)


def ranges(covered: Iterable[CoveredRange] | None) -> list[tuple[int, int]] | None:
    return None if covered is None else [(each.start_offset, each.end_offset) for each in covered]


def test_only_finished_segments_cover_anything() -> None:
    others = [segment(0, 9, state=state) for state in SegmentState if state is not SegmentState.COPY_SEGMENT_FINISHED]

    assert finished(others) == []
    assert Coverage.of(others, ONE_LEADER).holding(0, 0) is None


def test_coverage_names_held_segments_and_missing_offsets() -> None:
    coverage = Coverage.of([segment(20, 29), segment(0, 9), segment(10, 19), segment(40, 49)], ONE_LEADER)

    assert ranges(coverage.holding(0, 29)) == [(0, 9), (10, 19), (20, 29)]
    assert ranges(coverage.holding(9, 10)) == [(0, 9), (10, 19)]
    assert ranges(coverage.holding(45, 45)) == [(40, 49)]
    assert coverage.holding(29, 30) is None
    assert coverage.holding(30, 39) is None
    assert coverage.holding(49, 50) is None
    assert coverage.missing(5, 29) == []
    assert coverage.missing(5, 35) == [(30, 35)]
    assert coverage.missing(25, 54) == [(30, 39), (50, 54)]
    assert coverage.missing(32, 34) == [(32, 34)]
    assert coverage.gaps() == [(30, 39)]
    assert coverage.end_offset == 49


def test_a_segment_that_a_later_leader_truncated_is_named_with_the_whole_one_before_it() -> None:
    unclean = (EpochEntry(0, 0), EpochEntry(1, 15))
    first, second = segment(0, 9, (0, 0)), segment(10, 19, (0, 10))

    assert Coverage.of([first, second], unclean).truncated_at(15) == (first, second)
    assert Coverage.of([first, second], unclean).truncated_at(20) == ()
    assert Coverage.of([first, second], ONE_LEADER).truncated_at(15) == ()
    assert Coverage.of([second], unclean).truncated_at(15) == ()
    assert Coverage.of([first], (EpochEntry(0, 0), EpochEntry(1, 5))).truncated_at(5) == (first,)
    assert Coverage.of([], unclean).truncated_at(15) == ()


def test_nothing_at_all_covers_nothing() -> None:
    coverage = Coverage.of([], ())

    assert coverage.holding(0, 0) is None
    assert coverage.gaps() == []
    assert coverage.end_offset is None


def test_only_the_longest_copy_of_the_same_offsets_counts() -> None:
    coverage = Coverage.of([segment(0, 4), segment(0, 9), segment(2, 7), segment(5, 14), segment(8, 14)], ONE_LEADER)

    assert ranges(coverage.ranges) == [(0, 9), (5, 14)]
    assert ranges(coverage.holding(9, 14)) == [(0, 9), (5, 14)]
    assert ranges(coverage.holding(10, 14)) == [(5, 14)]


def test_offsets_below_the_global_log_start_are_not_lacking() -> None:
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
        # It was copied from a log that began inside of it.
        (((0, 15),), ((0, 0),), True),
        (((1, 15),), ((0, 0), (1, 12)), True),
        (((0, 15),), ((0, 0), (1, 12)), False),
        # A leader that wrote nothing.
        (((0, 10), (2, 15)), ((0, 0), (1, 15), (2, 15)), True),
        (((0, 10), (1, 15), (2, 15)), ((0, 0), (2, 15)), True),
    ],
)
def test_a_segment_is_on_the_lineage_where_the_same_leaders_wrote_the_same_offsets(
    epochs: tuple[tuple[int, int], ...], lineage: tuple[tuple[int, int], ...], is_on_it: bool
) -> None:
    entries = [EpochEntry(*entry) for entry in lineage]

    assert on_lineage(segment(10, 19, *epochs), entries) is is_on_it


def test_the_copy_of_a_deposed_leader_covers_nothing_from_its_heirs_first_offset_on() -> None:
    lineage = (EpochEntry(0, 0), EpochEntry(2, 15))
    deposed, heir = segment(10, 29, (0, 10), (1, 15)), segment(10, 19, (0, 10), (2, 15))

    coverage = Coverage.of([deposed, heir], lineage)

    assert ranges(coverage.ranges) == [(10, 19)]
    assert coverage.holding(10, 29) is None


@pytest.mark.parametrize("local", [((0, 0), (1, 15)), ((1, 15),), ((1, 17),)])
def test_offsets_before_the_new_leaders_first_stay_covered(local: tuple[tuple[int, int], ...]) -> None:
    """The heir's own copy is not there yet, or holds only what it wrote itself."""
    lineage = [EpochEntry(*entry) for entry in local]
    longer, heir = segment(10, 29, (0, 10)), segment(15, 34, (1, 15))

    assert ranges(Coverage.of([segment(0, 9), longer], lineage).ranges) == [(0, 9), (10, local[-1][1] - 1)]
    assert ranges(Coverage.of([longer, heir], lineage).ranges) == [(10, 14), (15, 34)]
    assert Coverage.of([longer], lineage).lacks(10, 29, 0)


def test_the_share_of_a_cut_segment_counts() -> None:
    coverage = Coverage.of([segment(10, 29, (0, 10)), segment(15, 34, (1, 15))], [])

    assert ranges(coverage.ranges) == [(10, 14), (15, 34)]
    assert [covered.size for covered in coverage.ranges] == [4096 * 5 // 20, 4096]


def test_a_segment_with_a_contradicted_first_epoch_covers_nothing() -> None:
    began_inside = segment(10, 29, (0, 15))

    assert Coverage.of([segment(0, 9), began_inside], [EpochEntry(0, 0), EpochEntry(1, 12)]).end_offset == 9
    assert Coverage.of([segment(0, 9), began_inside], [EpochEntry(0, 0), EpochEntry(1, 20)]).end_offset == 19


@dataclass
class Life:
    """A partition over time: its lineage and length at the end, and the copies that were made meanwhile."""

    lineage: tuple[EpochEntry, ...] = ()
    length: int = 0
    copies: list[RemoteLogSegmentMetadata] = field(default_factory=list)


@st.composite
def lives(draw: st.DrawFn) -> Life:
    """Each leader cuts the log where it likes, appends something or nothing, and copies some of what there is."""
    life = Life()
    for epoch in range(draw(st.integers(1, 5))):
        begun = draw(st.integers(0, life.length))
        # A leader that wrote nothing may stay in the lineage, with the same first offset as its heir.
        last = begun if draw(st.booleans()) else begun - 1
        before = (entry for entry in life.lineage if entry.start_offset <= last)
        life.lineage = (*before, EpochEntry(epoch, begun))
        life.length = begun + draw(st.integers(0, 12))
        for _ in range(draw(st.integers(0, 3)) if life.length else 0):
            start = draw(st.integers(0, life.length - 1))
            end = draw(st.integers(start, life.length - 1))
            epochs = epochs_within(life.lineage, start, end)
            life.copies.append(segment(start, end, *((entry.epoch, entry.start_offset) for entry in epochs)))
    return life


@given(lives())
def test_after_any_leaders_just_what_was_copied_of_the_present_log_is_covered(life: Life) -> None:
    def writer(epochs: Iterable[EpochEntry], offset: int) -> int:
        return [entry.epoch for entry in epochs if entry.start_offset <= offset][-1]

    coverage = Coverage.of(life.copies, life.lineage)

    assert coverage.end_offset is None or coverage.end_offset < life.length
    for offset in range(life.length):
        true = [
            copy
            for copy in life.copies
            if copy.start_offset <= offset <= copy.end_offset
            and writer(copy.leader_epochs, offset) == writer(life.lineage, offset)
        ]
        held = coverage.holding(offset, offset)
        assert (held is not None) == bool(true)
        assert held is None or held[0].segment in true


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


@pytest.mark.parametrize(
    "local",
    [(), ((1, 30),), ((1, 20), (2, 25)), ((0, 12), (1, 15))],
    ids=["out of reach", "trimmed", "trimmed in another epoch", "trimmed a little"],
)
def test_remote_segments_supply_epochs_that_the_local_log_forgot(
    local: tuple[tuple[int, int], ...],
) -> None:
    deposed, heir = segment(10, 19, (0, 10)), segment(10, 19, (0, 10), (1, 15))
    longer = segment(10, 24, (0, 10))
    after = segment(20, 29, (1, 20)) if (2, 25) not in local else segment(20, 29, (1, 20), (2, 25))

    for others in ([deposed], [longer], [longer, deposed]):
        for segments in ([segment(0, 9), heir, after, *others], [*others, after, heir, segment(0, 9)]):
            coverage = Coverage.of(segments, [EpochEntry(*entry) for entry in local])
            assert [covered.segment for covered in coverage.ranges][-2:] == [heir, after]
            assert ranges(coverage.ranges) == [(0, 9), (10, 19), (20, 29)]


@pytest.mark.parametrize(
    ("segments", "local", "expected"),
    [
        ([(0, 9, (0, 0))], (), [(0, 0)]),
        ([(0, 9, (0, 0)), (10, 19, (0, 10), (1, 15)), (20, 29, (1, 20))], (), [(0, 0), (1, 15)]),
        # Epoch 2 began before all that epoch 1 wrote: none of it is left.
        ([(0, 19, (0, 0), (1, 12)), (0, 19, (0, 0), (2, 11))], (), [(0, 0), (2, 11)]),
        ([(0, 19, (0, 0), (1, 12)), (0, 19, (0, 0), (2, 12))], (), [(0, 0), (2, 12)]),
        # The local log decides from where its own lineage begins, and an epoch never follows a later one.
        ([(0, 9, (0, 0)), (10, 19, (3, 10))], ((1, 15),), [(0, 0), (1, 15)]),
        ([(0, 9, (0, 0)), (10, 19, (1, 10))], ((1, 15), (2, 17)), [(0, 0), (1, 10), (2, 17)]),
        ([(0, 9, (5, 0))], ((0, 0),), [(0, 0)]),
        ([], ((1, 15),), [(1, 15)]),
        ([], (), []),
    ],
)
def test_the_lineage_goes_back_as_far_as_anybody_knows(
    segments: list[tuple[int, int, tuple[int, int]]],
    local: tuple[tuple[int, int], ...],
    expected: list[tuple[int, int]],
) -> None:
    known = [segment(start, end, *epochs) for start, end, *epochs in segments]

    found = whole_lineage(known, [EpochEntry(*entry) for entry in local])

    assert found == tuple(EpochEntry(*entry) for entry in expected)
