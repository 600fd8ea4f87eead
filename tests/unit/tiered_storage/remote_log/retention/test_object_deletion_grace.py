"""What was marked waits a grace time before its objects are deleted, whatever marked it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.command_line import mentions
from support.remote_logs import (
    ENABLED,
    ORDERS_0,
    SEGMENT_BYTES,
    RemoteLogFiles,
    a_copied_remote_log,
    a_remote_log,
    offsets_read,
    partition_of,
    segments_of,
    states_of,
)
from tiered_storage.errors import OffsetOutOfRangeError
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import EarlierLogStart, PartitionDeleteState
from tiered_storage.remote_log.retention.due_segments import PendingDeletion
from tiered_storage.remote_log.retention.object_deletion import DeletionReport
from tiered_storage.remote_log.selection import EVERYTHING

GRACE = 3_600_000
DELETING, FINISHED = "DELETE_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED"
ALL_BUT_THE_LAST = {**ENABLED, "retention.bytes": SEGMENT_BYTES + 1}


def a_site(root: Path, **topic: Any) -> RemoteLogFiles:
    topics = {"orders": {**ALL_BUT_THE_LAST, **topic}}
    return a_copied_remote_log(root, topics=topics, remote_log_deletion_grace_ms=GRACE)


def expire(remote_log: RemoteLogManager) -> DeletionReport:
    plans, left = remote_log.deletions.plan_expiry(EVERYTHING, remote_log.context.clock())
    assert left == []
    _, left_by_marking = remote_log.deletions.mark_expired(plans, "expire")
    assert left_by_marking == ()
    return remote_log.deletions.delete_marked("expire")


def delete_records(remote_log: RemoteLogManager) -> None:
    plan = remote_log.deletions.plan_record_deletion(ORDERS_0, 20)
    assert plan is not None
    assert remote_log.deletions.mark_expired([plan], "delete-records")[1] == ()


def delete_topic(remote_log: RemoteLogManager) -> None:
    plan = remote_log.deletions.plan_topic_deletion("orders")
    assert remote_log.deletions.mark_topic_deleted(plan, "delete-topic")[1] == ()


WAYS: dict[str, tuple[dict[str, Any], Callable[[RemoteLogManager], object], int]] = {
    "expiry": ({}, lambda _: None, 2),
    "delete-records": ({"retention.bytes": -1}, delete_records, 2),
    "delete-topic": ({"remote.storage.enable": False}, delete_topic, 3),
    "disable --delete-remote": (
        {"remote.storage.enable": False, "remote.log.delete.on.disable": True},
        lambda _: None,
        3,
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_objects_stay_until_the_grace_time_is_over(tmp_path: Path, way: str) -> None:
    topic, mark, count = WAYS[way]
    files = a_site(tmp_path, **topic)
    with files.open() as remote_log:
        mark(remote_log)
        assert expire(remote_log) == DeletionReport((), (), ())
        assert len(files.objects()) == 9
        assert [state for _, state in states_of(remote_log)].count(DELETING) == count
        [due] = remote_log.deletions.pending_deletions()
        assert (due.segments, due.waiting, due.all_due_at) == (0, count, files.clock.now + GRACE)

        files.clock.now += GRACE - 1
        assert expire(remote_log) == DeletionReport((), (), ())
        files.clock.now += 1
        assert len(expire(remote_log).deleted) == count
        assert len(files.objects()) == 9 - 3 * count
        assert remote_log.deletions.pending_deletions() == []


def test_readers_see_no_segment_that_waits_for_deletion(tmp_path: Path) -> None:
    with a_site(tmp_path).open() as remote_log:
        expire(remote_log)
        with pytest.raises(OffsetOutOfRangeError):
            offsets_read(remote_log, 19)
        assert offsets_read(remote_log, 20) == list(range(20, 35))


def test_a_deleted_topic_is_finished_only_after_the_grace_time(tmp_path: Path) -> None:
    files = a_site(tmp_path, **{"remote.storage.enable": False})
    with files.open() as remote_log:
        delete_topic(remote_log)
        expire(remote_log)
        assert remote_log.context.segments.partition_state(ORDERS_0).delete_state is PartitionDeleteState.STARTED
        files.clock.now += GRACE
        expire(remote_log)
        assert remote_log.context.segments.partition_state(ORDERS_0).delete_state is PartitionDeleteState.FINISHED


def test_segments_of_a_deleted_topic_that_are_not_marked_yet_count_as_pending(tmp_path: Path) -> None:
    files = a_site(tmp_path, **{"remote.storage.enable": False})
    with files.open() as remote_log:
        delete_topic(remote_log)
        size = sum(segment.size for segment in segments_of(remote_log))
        expected = PendingDeletion(ORDERS_0, 0, 0, 0, True, 3, size, files.clock.now + GRACE)
        assert remote_log.deletions.pending_deletions() == [expected]


def test_a_partition_with_waiting_marks_does_not_keep_others_waiting(tmp_path: Path) -> None:
    files = a_copied_remote_log(
        tmp_path,
        {("clicks", 0): 2, ("orders", 0): 3},
        topics={"clicks": ALL_BUT_THE_LAST, "orders": ALL_BUT_THE_LAST},
        remote_log_deletion_grace_ms=GRACE,
    )
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, files.clock.now)
        remote_log.deletions.mark_expired([one for one in plans if one.topic_id_partition == ORDERS_0], "expire")
        files.clock.now += GRACE
        remote_log.deletions.mark_expired([one for one in plans if one.topic_id_partition != ORDERS_0], "expire")
        deleted = remote_log.deletions.delete_marked("expire").deleted
        assert {segment.topic_id_partition for segment in deleted} == {ORDERS_0}
        assert states_of(remote_log, partition_of("clicks"))[0] == (0, DELETING)


def test_the_only_local_copy_of_what_expired_stays_as_long(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, topics={"orders": ALL_BUT_THE_LAST}, remote_log_deletion_grace_ms=GRACE)
    with files.open() as remote_log:
        expire(remote_log)
        log_start = remote_log.context.segments.log_start_offset(ORDERS_0)
        assert log_start == 20

        def trim() -> list[int]:
            plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, files.clock.now)
            remote_log.deletions.enforce_local_retention(plans)
            return files.local_starts()

        [plan], _ = remote_log.deletions.plan_local_retention(EVERYTHING, files.clock.now)
        assert (plan.segments, plan.waits) == ((), True)
        assert mentions(plan.held_back, "offsets 0 to 9", "2023-11-15 02:00:00 UTC", "remote.log.deletion.grace.ms")
        assert trim() == [0, 10, 20, 30]
        files.clock.now += GRACE
        assert trim() == [20, 30]


def test_the_second_look_of_a_trim_waits_for_the_grace_time_too(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, topics={"orders": ALL_BUT_THE_LAST}, remote_log_deletion_grace_ms=GRACE)
    with files.open() as remote_log:
        expire(remote_log)
        files.clock.now += GRACE
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, files.clock.now)
        assert [segment.base_offset for segment in plans[0].segments] == [0, 10]
        # The clock of whoever planned was ahead.
        files.clock.now -= 1
        remote_log.deletions.enforce_local_retention(plans)
        assert files.local_starts() == [0, 10, 20, 30]
        files.clock.now += 1
        remote_log.deletions.enforce_local_retention(plans)
        assert files.local_starts() == [20, 30]


def test_the_log_start_before_each_move_is_kept(tmp_path: Path) -> None:
    files = a_site(tmp_path)
    with files.open() as remote_log:
        began = files.clock.now
        expire(remote_log)
        files.clock.now += 1
        plan = remote_log.deletions.plan_record_deletion(ORDERS_0, 25)
        assert plan is not None
        remote_log.deletions.mark_expired([plan], "delete-records")
        kept = (EarlierLogStart(0, began), EarlierLogStart(20, began + 1))
        assert remote_log.context.segments.partition_state(ORDERS_0).earlier_log_starts == kept


def test_a_mark_of_later_than_now_is_named_and_nothing_of_the_partition_is_deleted(tmp_path: Path) -> None:
    files = a_site(tmp_path)
    year = 365 * 24 * 3_600_000
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, files.clock.now)
        files.clock.now += year
        assert len(remote_log.deletions.mark_expired(plans, "expire")[0]) == 1
        files.clock.now -= year
        [failure] = remote_log.deletions.delete_marked("expire").failures
        assert mentions(
            failure.message, "2024-11-14 01:00:00 UTC", "2023-11-15 01:00:00 UTC", "'tiered-storage undelete orders'"
        )
        assert len(files.objects()) == 9


def test_a_zero_grace_deletes_in_the_same_run(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": ALL_BUT_THE_LAST}, remote_log_deletion_grace_ms=0)
    with files.open() as remote_log:
        assert len(expire(remote_log).deleted) == 2


def test_the_right_clock_does_not_delete_segments_that_a_clock_ahead_marked(tmp_path: Path) -> None:
    """A person trusted it while it was ahead, and the store is a directory with the same clock."""
    files = a_copied_remote_log(
        tmp_path, topics={"orders": {**ENABLED, "retention.ms": 604_800_000}}, remote_log_deletion_grace_ms=GRACE
    )
    with files.open() as remote_log:
        years = 20 * 365 * 24 * 3_600_000
        files.clock.step(years)
        remote_log.deletions.clocks.trust()
        assert len(expire(remote_log).deleted) == 0
        assert len(files.objects()) == 9

        files.clock.step(-years)
        remote_log.deletions.clocks.trust()
        report = remote_log.deletions.delete_marked("expire")
        assert (report.deleted, len(report.failures)) == ((), 1)
        remote_log.deletions.undelete("orders", "ada")
        assert offsets_read(remote_log, 0) == list(range(35))
        assert expire(remote_log) == DeletionReport((), (), ())
