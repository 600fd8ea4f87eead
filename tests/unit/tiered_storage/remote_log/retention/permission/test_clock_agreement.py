"""Nothing is deleted by a clock that disagrees with the store's, or with the times in the metadata."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.clocks import ManualClock, stamped
from support.command_line import mentions
from support.remote_logs import ENABLED, ORDERS_0, RemoteLogFiles, a_copied_remote_log, states_of
from tiered_storage.errors import DeletionRefusedError, RemoteStorageFullError
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage.remote_log.storage.clients.object_client import WrittenObject
from unit.tiered_storage.remote_log.retention.permission.clock_runs import delete_records, trim

WEEK = 604_800_000
SKEW = 300_000
KEEPING_A_WEEK = {**ENABLED, "retention.ms": WEEK, "local.retention.ms": 3_600_000}


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    return a_copied_remote_log(tmp_path, topics={"orders": KEEPING_A_WEEK})


def jumped(files: RemoteLogFiles, by: int) -> Iterator[RemoteLogManager]:
    """Open it with a clock that is off by so many ms, the store's being right."""
    right = ManualClock(files.clock.now)
    with files.open() as remote_log:
        stamped(remote_log, right)
        files.clock.now += by
        yield remote_log
        files.clock.now -= by


def expire(remote_log: RemoteLogManager) -> None:
    plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, remote_log.context.clock())
    remote_log.deletions.mark_expired(plans, "expire")


@pytest.mark.parametrize("deletes", [expire, delete_records, trim])
@pytest.mark.parametrize("by", [10 * WEEK, SKEW + 2_000])
def test_a_clock_ahead_of_the_stores_deletes_nothing(
    files: RemoteLogFiles, deletes: Callable[[RemoteLogManager], None], by: int
) -> None:
    files.properties["topics"]["orders"] |= {"retention.ms": 3_600_000, "local.retention.ms": 0}
    for remote_log in jumped(files, by):
        with pytest.raises(DeletionRefusedError, match=r"store's clock showed .*clock\.max\.skew"):
            deletes(remote_log)
        assert [state for _, state in states_of(remote_log)] == ["COPY_SEGMENT_FINISHED"] * 3
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == 0
    assert (len(files.objects()), files.local_starts()) == (9, [0, 10, 20, 30])


def test_a_clock_behind_the_stores_marks_nothing_either(files: RemoteLogFiles) -> None:
    """Its marks would be over before they began."""
    for remote_log in jumped(files, -SKEW - 2_000):
        with pytest.raises(DeletionRefusedError, match="NTP"):
            delete_records(remote_log)


def test_marked_segments_are_not_deleted_after_the_clock_jumped(files: RemoteLogFiles) -> None:
    files.properties["remote.log.deletion.grace.ms"] = WEEK
    with files.open() as remote_log:
        delete_records(remote_log)
    for remote_log in jumped(files, 2 * WEEK):
        with pytest.raises(DeletionRefusedError, match="store's clock"):
            remote_log.deletions.delete_marked("expire")
    assert len(files.objects()) == 9


def test_both_times_are_named(files: RemoteLogFiles) -> None:
    for remote_log in jumped(files, WEEK):
        with pytest.raises(DeletionRefusedError) as refused:
            expire(remote_log)
        assert mentions(str(refused.value), "2023-11-15 01:00:00 UTC", "this machine's showed 2023-11-22 01:00:00 UTC")


@pytest.mark.parametrize("by", [SKEW, -SKEW, 0])
def test_a_small_skew_is_tolerated(files: RemoteLogFiles, by: int) -> None:
    for remote_log in jumped(files, by):
        remote_log.deletions.clocks.ensure_agrees()


def test_the_limit_is_a_setting(files: RemoteLogFiles) -> None:
    files.properties["clock.max.skew.ms"] = 2 * WEEK
    for remote_log in jumped(files, WEEK):
        remote_log.deletions.clocks.ensure_agrees()


def test_one_object_asks_for_the_time_however_often(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        for _ in range(3):
            remote_log.deletions.clocks.ensure_agrees()
    assert len(list(files.store.rglob("store.clock/*"))) == 1


def test_a_store_without_room_cannot_be_asked_and_holds_up_nothing(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    with files.open() as remote_log:

        def full(*_: Any, **__: Any) -> WrittenObject:
            raise RemoteStorageFullError("no room")

        monkeypatch.setattr(type(remote_log.context.storage._client), "put", full)  # type: ignore[attr-defined]
        remote_log.deletions.clocks.ensure_agrees()


def test_a_partition_to_which_something_happened_later_than_now_is_left_and_others_are_not(tmp_path: Path) -> None:
    """A clock that was ahead copied it, or ours is behind."""
    topics = {name: {**ENABLED, "retention.bytes": 1} for name in ("clicks", "orders")}
    files = a_copied_remote_log(tmp_path, {("clicks", 0): 1, ("orders", 0): 1}, topics=topics)
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, remote_log.context.clock())
        [segment] = remote_log.context.segments.list_remote_log_segments(ORDERS_0)
        lease = remote_log.context.leases.acquire(ORDERS_0, "test", 1_000)
        with sqlite3.connect(remote_log.context.store.generation.where) as connection:
            connection.execute(
                "UPDATE segments SET event_timestamp = event_timestamp + ? WHERE segment_id = ?",
                (WEEK, segment.segment_id.id),
            )
        remote_log.context.leases.release(lease)
        done, [left] = remote_log.deletions.mark_expired(plans, "expire")
        assert [str(partition) for partition in done] == ["clicks-0"]
        assert "orders-0: segment" in left.message
        assert "became COPY_SEGMENT_FINISHED at 2023-11-22 01:00:00 UTC" in left.message
        assert "clock shows 2023-11-15 01:00:00 UTC" in left.message

        trims, _ = remote_log.deletions.plan_local_retention(EVERYTHING, remote_log.context.clock())
        failures = remote_log.deletions.enforce_local_retention(trims).failures
        assert [failure.partition for failure in failures] == ["orders-0"]


def test_a_repair_by_a_wrong_clock_removes_nothing(files: RemoteLogFiles) -> None:
    """What a copy has just written would look like a leftover."""
    for remote_log in jumped(files, 10 * WEEK):
        plan = remote_log.repairs.plan(remote_log.checks.audit(), EVERYTHING)
        with pytest.raises(DeletionRefusedError, match="store's clock"):
            remote_log.repairs.carry_out(plan, "repair", lambda _: pytest.fail())
