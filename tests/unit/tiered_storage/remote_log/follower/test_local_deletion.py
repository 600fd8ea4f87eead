from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.remote_logs import (
    ENABLED,
    NOW,
    ORDERS_0,
    SEGMENT_BYTES,
    a_copied_remote_log,
    assert_clean,
    copy,
    local_log,
)
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage.remote_log.follower.follower import follow
from tiered_storage.remote_log.metadata.safety import AuditResult
from unit.tiered_storage.remote_log.follower.led_partition import LedPartition

NOTHING_KEPT = {"local.retention.ms": 1}


@pytest.fixture
def led(tmp_path: Path) -> LedPartition:
    """A leader of 55 records, of which 30 are remote, with local retention over for all of them."""
    led = LedPartition(a_copied_remote_log(tmp_path, topics={"orders": ENABLED | NOTHING_KEPT}))
    led.append(4)
    return led


def _set(led: LedPartition, **properties: Any) -> None:
    named = {name.replace("_", "."): value for name, value in properties.items()}
    led.files.properties["topics"]["orders"] = ENABLED | named


def _starts(led: LedPartition) -> list[int]:
    return [segment.base_offset for segment in list_segments(led.directory / "orders-0")]


def test_only_segments_that_the_remote_tier_holds_go(led: LedPartition) -> None:
    report = led.follow()

    assert report.deleted == 3
    assert (report.log_start_offset, report.local_start_offset) == (0, 30)
    assert _starts(led) == [30, 40, 50]
    with led.as_local_log().open() as remote_log:
        assert_clean(remote_log)
        assert copy(remote_log).is_whole
        assert_clean(remote_log)
    assert led.follow().local_start_offset == 50


def test_what_is_within_local_retention_stays(led: LedPartition) -> None:
    _set(led, local_retention_bytes=3 * SEGMENT_BYTES)

    led.follow()

    assert _starts(led) == [20, 30, 40, 50]


def test_after_total_retention_what_was_never_copied_goes_too(led: LedPartition) -> None:
    _set(led, retention_ms=led.files.clock() - NOW - 45_000, local_retention_ms=-2)

    led.follow()

    assert _starts(led) == [40, 50]


def test_a_log_of_which_all_went_is_continued_and_not_fetched_again(led: LedPartition) -> None:
    _set(led, retention_ms=1, local_retention_ms=-2)
    report = led.follow()
    assert (report.local_start_offset, report.log_end_offset) == (55, 55)

    again = led.follow()
    assert (again.starts, again.fetched_bytes) == ((), 0)
    led.append(2)
    led.fetched.clear()
    led.follow()

    assert led.fetched[0] == 55
    with led.as_local_log().open() as remote_log:
        assert local_log(remote_log).tiered_by_kafka is None


def test_nothing_goes_before_somebody_allowed_it(led: LedPartition) -> None:
    _set(led, local_retention_ms=1, local_deletion_allowed=False)

    assert led.follow().deleted == 0


def test_nothing_goes_while_deletions_are_stopped(led: LedPartition) -> None:
    with led.files.open() as remote_log:
        remote_log.context.safety.stop("a test", "test")

    assert led.follow().deleted == 0


def test_the_leader_epochs_of_what_went_stay(led: LedPartition) -> None:
    led.epoch = 1
    led.append(2)
    led.trim(before=10)
    led.follow()

    epochs = (led.directory / "orders-0" / "leader-epoch-checkpoint").read_text().split()
    assert epochs[2:] == ["0", "0", "1", "55"]


def test_what_may_be_the_last_copy_stays_unless_remote_deletion_is_allowed_too(led: LedPartition) -> None:
    _set(led, retention_ms=led.files.clock() - NOW - 45_000, local_retention_ms=-2, remote_deletion_allowed=False)

    led.follow()

    assert _starts(led) == [30, 40, 50]


def _revoke_the_right(led: LedPartition) -> None:
    with led.files.open() as remote_log:
        topic = remote_log.context.decided_topic(ORDERS_0)
        remote_log.context.topics.put(replace(topic, local_deletion_allowed=False))


def _find_fault_in_an_audit(led: LedPartition) -> None:
    with led.files.open() as remote_log:
        found = AuditResult(ORDERS_0.cluster_id, ORDERS_0.topic_id, False, led.files.clock(), 1, "a lost segment")
        remote_log.context.safety.put_audit_result(found)


def _lose_an_object(led: LedPartition) -> None:
    led.files.objects(".log")[0].unlink()


def _delete_the_topic(led: LedPartition) -> None:
    shutil.rmtree(led.files.partition_directory())
    with led.files.open() as remote_log:
        plan = remote_log.deletions.plan_topic_deletion("orders")
        assert remote_log.deletions.mark_topic_deleted(plan, "delete-topic")[1] == ()


def _set_the_clock_ahead(led: LedPartition) -> None:
    led.files.clock.step(365 * 86_400_000)


@pytest.mark.parametrize(
    ("forbid", "why"),
    [
        (_revoke_the_right, None),
        (_find_fault_in_an_audit, "a lost segment"),
        (_lose_an_object, ".log"),
        (_delete_the_topic, None),
        (_set_the_clock_ahead, "NTP"),
    ],
)
def test_what_keeps_retain_from_deleting_keeps_one_that_stays(
    led: LedPartition, forbid: Callable[[LedPartition], None], why: str | None
) -> None:
    with led.follower() as follower:
        while not follower.has_caught_up:
            follower.step()
        forbid(led)
        follower.maintain()
        report = follower.report()

    assert (report.deleted, _starts(led)) == (0, [0, 10, 20, 30, 40, 50])
    assert [why in finding.message for finding in report.findings] == ([] if why is None else [True])  # type: ignore[operator]


def test_once_nothing_keeps_them_they_go(led: LedPartition) -> None:
    [lost, content] = (led.files.objects(".log")[0], led.files.objects(".log")[0].read_bytes())
    with led.follower() as follower:
        lost.unlink()
        assert follow(follower).deleted == 0
        lost.write_bytes(content)
        follower.maintain()
        report = follower.report()

    assert (report.deleted, report.findings) == (3, ())
