"""Tiering is enabled late, paused, and asked for where it must not be (scenarios 5, 6, 7)."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command_line import run_on
from support.remote_logs import (
    ENABLED,
    NOW,
    ORDERS_0,
    a_remote_log,
    assert_clean,
    copy,
    offsets_read,
    ranges,
    segments_of,
)
from tiered_storage.remote_log.selection import EVERYTHING


def test_a_topic_that_is_enabled_later_is_copied_whole_by_the_next_run(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 5}, topics={})
    with files.open() as remote_log:
        assert remote_log.plan_copy().is_empty

    assert run_on(files, "topics", "enable", "orders").exit_code == 0
    assert run_on(files, "copy").exit_code == 0

    with files.open() as remote_log:
        assert ranges(segments_of(remote_log)) == [(start, start + 9) for start in range(0, 50, 10)]
        assert_clean(remote_log)


def test_a_backfill_copies_just_what_its_interval_and_earlier_ones_cover(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 5})
    with files.open() as remote_log:
        # Record n is of second n: the third segment's successor begins in second 30.
        assert ranges(copy(remote_log, window_end=NOW + 30_000).committed) == [(0, 9), (10, 19), (20, 29)]
        assert copy(remote_log, window_end=NOW + 30_000).committed == ()
        assert copy(remote_log, window_end=NOW + 15_000).committed == ()
        assert_clean(remote_log)
        assert ranges(copy(remote_log).committed) == [(30, 39), (40, 49)]
        assert_clean(remote_log)


def test_remote_records_stay_readable_while_copying_is_paused(tmp_path: Path) -> None:
    paused = {**ENABLED, "remote.log.copy.disable": True, "local.retention.bytes": 1}
    files = a_remote_log(tmp_path, {("orders", 0): 2})
    with files.open() as remote_log:
        copy(remote_log)
    files.append(4)
    files.properties["topics"] = {"orders": paused}

    with files.open() as remote_log:
        assert remote_log.plan_copy().is_empty
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
        assert len(remote_log.deletions.enforce_local_retention(plans).trimmed) == 1
        # What is not remote stays, however far past local retention.
        assert files.local_starts() == [20, 30, 40]
        assert offsets_read(remote_log, 0) == list(range(45))

    files.properties["topics"] = {"orders": ENABLED}
    with files.open() as remote_log:
        assert ranges(copy(remote_log).committed) == [(20, 29), (30, 39)]
        assert_clean(remote_log)


def test_a_paused_topic_is_left_even_by_a_plan_from_before(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        assert len(remote_log.plan_copy().segments) == 3
    assert run_on(files, "topics", "disable", "orders").exit_code == 0
    with files.open() as remote_log:
        assert remote_log.plan_copy().is_empty
        assert segments_of(remote_log) == []
        assert_clean(remote_log)


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete,compact"])
def test_a_compacted_topic_is_refused_and_its_neighbours_are_copied(tmp_path: Path, policy: str) -> None:
    topics = {"orders": {**ENABLED, "cleanup.policy": policy}, "clicks": ENABLED}
    files = a_remote_log(tmp_path, {("orders", 0): 2, ("clicks", 0): 2}, topics=topics)

    ended = run_on(files, "copy")

    assert ended.exit_code == 1
    assert "orders" in ended.err
    assert "cleanup.policy=compact" in ended.err
    assert "cleanup.policy=delete" in ended.err
    with files.open() as remote_log:
        assert segments_of(remote_log, ORDERS_0) == []
        assert [str(each) for each in remote_log.context.segments.list_partitions()] == ["clicks-0"]
        assert_clean(remote_log)
