from __future__ import annotations

from pathlib import Path

import pytest

from support.tiered_site import TIERED, TieredSite
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage_airflow.demo.expectation import DemoError, ExpectedPartition
from tiered_storage_airflow.demo.limits import (
    ensure_enough_remains,
    readable_segments,
    segment_sizes,
    start_after_expiry,
)

BEFORE = {"a": 9, "b": 19, "c": 29}


def test_the_start_stays_if_nothing_was_deleted() -> None:
    assert start_after_expiry(3, BEFORE, BEFORE) == 3
    assert start_after_expiry(3, {}, {}) == 3


def test_the_log_begins_after_the_last_segment_that_went() -> None:
    assert start_after_expiry(0, BEFORE, {"b": 19, "c": 29}) == 10
    assert start_after_expiry(0, BEFORE, {"a": 9, "c": 29}) == 20
    assert start_after_expiry(0, BEFORE, {}) == 30


def test_segments_that_came_later_do_not_count() -> None:
    assert start_after_expiry(0, BEFORE, BEFORE | {"d": 39}) == 0


def test_only_what_readers_see_is_remembered(tmp_path: Path) -> None:
    site = TieredSite(tmp_path)
    site.write_logs({"orders-0": 3})
    site.configure(
        {
            "orders": {
                **TIERED,
                "local.deletion.allowed": True,
                "remote.deletion.allowed": True,
                "retention.bytes": 2000,
                "retention.ms": -1,
            }
        }
    )
    site.copy()
    expected = ExpectedPartition("orders", 0, 0, lambda: iter(()))

    with site.open() as remote_log:
        before = readable_segments(remote_log, expected)
        plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, remote_log.context.clock())
        remote_log.deletions.mark_expired(plans, "test")
        after = readable_segments(remote_log, expected)

    assert sorted(before.values()) == [9, 19, 29]
    assert set(before.values()) - set(after.values()) == {9, 19}
    assert start_after_expiry(0, before, after) == 20


def test_expiry_that_leaves_less_than_retention_asks_for_fails(tmp_path: Path) -> None:
    site = TieredSite(tmp_path)
    site.write_logs({"orders-0": 3})
    sizes = segment_sizes(site.logs)["orders-0"]
    assert sorted(sizes) == [0, 10, 20, 30]

    ensure_enough_remains("orders-0", 20, sizes, sizes[20] + sizes[30])
    with pytest.raises(DemoError, match=r"orders-0: .*offset 20 "):
        ensure_enough_remains("orders-0", 20, sizes, sizes[20] + sizes[30] + 1)
