from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from support.remote_logs import ORDERS_0, location_of
from tiered_storage.kafka_log.producers.transaction_state import Isolation
from tiered_storage.remote_log.coverage import Coverage, CoveredRange
from tiered_storage.remote_log.model import RemoteLogSegmentId, RemoteLogSegmentMetadata
from tiered_storage.remote_log.read.partition_snapshot import PartitionSnapshot
from tiered_storage.remote_log.source.partition_log import LocalSegment, PartitionLog
from tiered_storage_airflow.page.regions import Place, regions_of


def segment(start: int, end: int) -> CoveredRange:
    """A remote segment of the offsets `start` to `end`, both inclusive."""
    metadata = RemoteLogSegmentMetadata(RemoteLogSegmentId(ORDERS_0, f"{start}"), start, end, 1, 1, 1, ())
    return CoveredRange(metadata, end)


def local(bases: list[int], end: int) -> PartitionLog:
    """A local log of segments with those base offsets, the last one active."""
    ends = [base - 1 for base in bases[1:]]
    segments = tuple(
        LocalSegment(base, last, 1, location_of(Path("x"))) for base, last in zip(bases, [*ends, None], strict=True)
    )
    return PartitionLog(ORDERS_0, "x", segments, bases[0], end, ())


def snapshot(remote: list[tuple[int, int]], log: PartitionLog | None, log_start: int = 0) -> PartitionSnapshot:
    return PartitionSnapshot(ORDERS_0, log, Coverage(tuple(segment(*each) for each in remote)), log_start, ())


def spans(of: PartitionSnapshot) -> list[tuple[str, int, int]]:
    return [(region.place.value, region.start, region.end) for region in regions_of(of)]


def test_both_tiers_overlap_and_neighbours_are_one_region() -> None:
    found = spans(snapshot([(0, 9), (10, 19), (20, 29)], local([20, 30, 40], 45)))
    assert found == [("remote", 0, 20), ("both", 20, 30), ("local", 30, 40), ("active", 40, 45)]


def test_offsets_that_no_tier_has_are_missing() -> None:
    assert spans(snapshot([(0, 9), (20, 29)], None)) == [("remote", 0, 10), ("missing", 10, 20), ("remote", 20, 30)]
    assert spans(snapshot([(0, 9)], local([15], 20))) == [("remote", 0, 10), ("missing", 10, 15), ("active", 15, 20)]


def test_offsets_below_the_global_log_start_are_not_shown() -> None:
    assert spans(snapshot([(0, 9), (10, 19)], None, log_start=5)) == [("remote", 5, 20)]


def test_nothing_has_no_regions() -> None:
    assert spans(snapshot([], None)) == []


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=5),
    st.lists(st.integers(0, 80), min_size=1, max_size=4, unique=True).map(sorted) | st.none(),
    st.integers(1, 30),
    st.integers(0, 40),
)
def test_regions_have_every_offset_once_where_it_lies(
    remote: list[tuple[int, int]], bases: list[int] | None, active: int, log_start: int
) -> None:
    ranges, reached = [], 0
    for start, length in sorted(remote):
        first = max(start, reached)
        ranges.append((first, first + length - 1))
        reached = first + length
    log = None if bases is None else local(bases, bases[-1] + active)
    seen = snapshot(ranges, log, log_start)
    regions = regions_of(seen)
    offsets = range(seen.log_start_offset, seen.end_offset(Isolation.READ_UNCOMMITTED))
    assert [offset for region in regions for offset in range(region.start, region.end)] == list(offsets)
    assert all(one.place is not other.place for one, other in pairwise(regions))
    for region in regions:
        is_remote = region.place in {Place.REMOTE, Place.BOTH}
        is_local = region.place in {Place.BOTH, Place.LOCAL, Place.ACTIVE}
        for offset in range(region.start, region.end):
            assert is_remote == any(first <= offset <= last for first, last in ranges)
            assert is_local == (log is not None and log.log_start_offset <= offset < log.readable_end)
