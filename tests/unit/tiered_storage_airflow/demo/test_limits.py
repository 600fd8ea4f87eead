from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.tiered_site import TieredSite
from tiered_storage_airflow.demo.limits import choose_limits, limits_of


def going(sizes: Sequence[int], limit: int) -> int:
    """Return how many closed segments a limit in bytes ends, as Kafka counts: none that leaves less than the limit."""
    excess, count = sum(sizes) - limit, 0
    for size in sizes[:-1]:
        if excess < size:
            break
        excess, count = excess - size, count + 1
    return count


@given(st.lists(st.integers(1, 10_000), min_size=3, max_size=40))
def test_two_or_more_closed_segments_are_split_among_the_tiers(sizes: list[int]) -> None:
    limits = limits_of("orders", sizes)

    expired, trimmed = going(sizes, limits.retention_bytes), going(sizes, limits.local_retention_bytes)
    assert 0 < expired < trimmed < len(sizes)


def test_a_third_of_many_segments_expires_and_a_third_stays_local() -> None:
    sizes = [100] * 100

    limits = limits_of("orders", sizes)

    assert (going(sizes, limits.retention_bytes), going(sizes, limits.local_retention_bytes)) == (35, 70)


@pytest.mark.parametrize(("sizes", "trimmed"), [([5000, 10], 1), ([10, 5000], 1), ([10], 0), ([0], 0)])
def test_a_single_closed_segment_is_trimmed_and_stays_remote(sizes: list[int], trimmed: int) -> None:
    limits = limits_of("orders", sizes)

    assert going(sizes, limits.retention_bytes) == 0
    assert going(sizes, limits.local_retention_bytes) == trimmed
    assert min(limits.retention_bytes, limits.local_retention_bytes) > 0


def test_the_largest_partition_decides_and_other_topics_are_left_out(tmp_path: Path) -> None:
    site = TieredSite(tmp_path)
    site.write_logs({"orders-0": 1, "orders-1": 5, "payments-0": 2, "clicks-0": 3})

    limits = choose_limits(site.logs, {"orders", "payments"})

    assert [each.topic for each in limits] == ["orders", "payments"]
    sizes = [path.stat().st_size for path in sorted((site.logs / "orders-1").glob("*.log"))]
    assert limits[0] == limits_of("orders", sizes)
