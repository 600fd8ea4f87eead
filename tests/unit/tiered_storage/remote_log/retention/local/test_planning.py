"""Which partitions are planned, and how they share the limit of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.command_line import mentions
from support.remote_logs import ENABLED, NOW, a_copied_remote_log
from tiered_storage.remote_log.retention.local.planning import Occasion
from tiered_storage.remote_log.selection import EVERYTHING, Selection
from unit.tiered_storage.remote_log.retention.local.local_plans import keeping, retain


@pytest.mark.parametrize(
    "topics",
    [
        {},
        {"orders": {"remote.storage.enable": True, "local.retention.bytes": 0}},
        {"orders": {"local.deletion.allowed": True, "remote.deletion.allowed": True, "local.retention.bytes": 0}},
        {"clicks": {**ENABLED, "local.retention.bytes": 0}},
    ],
    ids=["nothing is set", "deletion is not allowed", "not tiered", "another topic"],
)
def test_nothing_is_deleted_that_was_not_switched_on(tmp_path: Path, topics: dict[str, Any]) -> None:
    files = a_copied_remote_log(tmp_path, topics=topics)

    with files.open() as remote_log:
        assert remote_log.deletions.plan_local_retention(EVERYTHING, NOW * 2) == ([], [])

    assert files.local_starts() == [0, 10, 20, 30]


def test_a_paused_topic_is_still_retained(tmp_path: Path) -> None:
    topics = {"orders": {**ENABLED, "local.retention.bytes": 0, "remote.log.copy.disable": True}}
    files = a_copied_remote_log(tmp_path, topics=topics)

    with files.open() as remote_log:
        assert retain(remote_log) == []

    assert files.local_starts() == [30]


def test_only_requested_topics_and_partitions_are_trimmed(tmp_path: Path) -> None:
    partitions = {("orders", 0): 1, ("orders", 1): 1}
    files = a_copied_remote_log(tmp_path, partitions, topics=keeping(0))

    with files.open() as remote_log:
        assert remote_log.deletions.plan_local_retention(Selection("clicks"), NOW) == ([], [])
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW, frozenset({"orders-1"}))
        assert [str(plan.topic_id_partition) for plan in plans] == ["orders-1"]


def test_unreadable_partitions_are_reported_where_somebody_asked_for_them(tmp_path: Path) -> None:
    partitions = {("clicks", 0): 1, ("orders", 0): 1, ("orders", 1): 1}
    files = a_copied_remote_log(tmp_path, partitions, topics=keeping(0))
    for topic in ("clicks", "orders"):
        (files.partition_directory(topic) / "leader-epoch-checkpoint").write_text("0\nmany\n")

    with files.open() as remote_log:
        plans, unreadable = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
        assert [finding.partition for finding in unreadable] == ["orders-0"]
        assert [str(plan.topic_id_partition) for plan in plans] == ["orders-1"]
        assert remote_log.deletions.plan_local_retention(EVERYTHING, NOW, {"orders-1"})[1] == []
        assert remote_log.deletions.plan_local_retention(Selection("clicks"), NOW)[1] == []


def test_a_partition_that_fails_in_every_run_keeps_no_other_from_its_share(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, {("orders", 0): 3, ("orders", 1): 3}, topics=keeping(0))
    files.objects(".log")[0].unlink()

    with files.open() as remote_log:
        for _ in range(3):
            plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW, max_segments=2)
            assert [len(plan.segments) for plan in plans] == [1, 1]
            report = remote_log.deletions.enforce_local_retention(plans)
            assert [finding.partition for finding in report.failures] == ["orders-0"]

    assert (files.local_starts(number=0), files.local_starts(number=1)) == ([0, 10, 20, 30], [30])


def test_a_plan_notes_what_the_limit_of_a_run_leaves_of_each_partition(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, {("orders", 0): 3, ("orders", 1): 1, ("orders", 2): 2}, topics=keeping(0))

    with files.open() as remote_log:
        whole, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
        cut, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW, max_segments=3)
        scarce, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW, max_segments=1)

    assert [len(plan.segments) for plan in whole] == [3, 1, 2]
    assert [plan.notes for plan in whole] == [(), (), ()]
    assert [len(plan.segments) for plan in cut] == [1, 1, 1]
    assert sorted(len(plan.segments) for plan in scarce) == [0, 0, 1]
    [of_first], of_second, [of_third] = (plan.notes for plan in cut)
    assert of_second == ()
    assert mentions(of_first, "deletes 1 of the 3 segments", "local.retention.max.segments.per.run", "--max-segments")
    assert mentions(of_third, "deletes 1 of the 2 segments")
    notes = {note for plan in scarce for note in plan.notes}
    assert sum("deletes 0 of the" in note for note in notes) >= 1
    assert any("of the 2 or more segments" in note for note in notes)


def test_partitions_that_fail_in_every_run_starve_no_other_though_they_are_more_than_the_room(tmp_path: Path) -> None:
    logs = {("orders", number): 1 for number in range(4)}
    files = a_copied_remote_log(tmp_path, logs, topics=keeping(0))
    for data in files.objects(".log")[:3]:
        data.unlink()

    with files.open() as remote_log:
        for run in range(30):
            files.clock.now += run
            plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW, max_segments=1)
            remote_log.deletions.enforce_local_retention(plans)

    assert sorted(files.local_starts(number=number) for number in range(4)) == [[0, 10], [0, 10], [0, 10], [10]]


def test_all_occasions_of_a_run_share_one_limit_and_the_latest_counts(tmp_path: Path) -> None:
    topics = {"orders": {**ENABLED, "local.retention.ms": 10}}
    files = a_copied_remote_log(tmp_path, {("orders", 0): 3, ("orders", 1): 3}, topics=topics)
    first, second = frozenset({"orders-0"}), frozenset({"orders-1"})
    occasions = [Occasion(0, second), Occasion(NOW * 2, first), Occasion(NOW * 2, second), Occasion(0, first)]

    with files.open() as remote_log:
        deletions = remote_log.deletions
        together, _ = deletions.plan_local_retention_for(EVERYTHING, occasions, 4)
        early, _ = deletions.plan_local_retention_for(EVERYTHING, occasions[:1], 4)
        of_all, _ = deletions.plan_local_retention_for(EVERYTHING, [*occasions[:1], Occasion(NOW * 2)], 4)

    assert [len(plan.segments) for plan in together] == [2, 2]
    assert [(str(plan.topic_id_partition), len(plan.segments)) for plan in early] == [("orders-1", 0)]
    assert [len(plan.segments) for plan in of_all] == [2, 2]
