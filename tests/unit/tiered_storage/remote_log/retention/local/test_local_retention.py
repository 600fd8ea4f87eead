from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from support.command_line import mentions
from support.metadata_stores import a_step
from support.remote_logs import (
    BATCH_BYTES,
    ENABLED,
    NOW,
    ORDERS_0,
    SEGMENT_BYTES,
    a_copied_remote_log,
    a_remote_log,
    batches_in,
    copy,
    end_below,
    flip_bit,
    held_by,
    local_log,
    offsets_read,
    record,
    records,
    rewrite_segment,
    segments_of,
)
from tiered_storage.errors import (
    DeletionRefusedError,
    OutdatedMetadataError,
    RemoteObjectCorruptError,
    RemoteObjectNotFoundError,
    StoreMismatchError,
)
from tiered_storage.kafka_log.files.directory_lock import DirectoryLock
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry, write_leader_epochs
from tiered_storage.kafka_log.files.offset_checkpoint import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from tiered_storage.kafka_log.records.record_batch import encode_batch
from tiered_storage.remote_log.jobs import throttle
from tiered_storage.remote_log.jobs.throttle import Quota, RateLimit, ReportingLimit
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, SegmentState
from tiered_storage.remote_log.retention.local import enforcement
from tiered_storage.remote_log.retention.local.enforcement import LocalRetentionReport
from tiered_storage.remote_log.retention.local.plan import LocalRetentionPlan, plan_local_retention
from tiered_storage.remote_log.retention.local.planning import Occasion
from tiered_storage.remote_log.retention.permission.object_checks import ensure_present
from tiered_storage.remote_log.selection import EVERYTHING, Selection
from tiered_storage.remote_log.source.log_directory_trim import LogDirectoryTrim
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager
from tiered_storage.settings.topics import TopicSettings

TOTAL = 3 * SEGMENT_BYTES + BATCH_BYTES
"""The bytes of a local log of three closed segments and an active one."""


def plan_with(remote_log: RemoteLogManager, now: int = NOW, **limits: Any) -> LocalRetentionPlan:
    """Plan with `limits` (local_retention_ms, local_retention_bytes), where the rest is unlimited."""
    given = {"retention.ms": -1, **{name.replace("_", "."): value for name, value in limits.items()}}
    defaults = TopicSettings.parse("defaults", {})
    settings = TopicSettings.parse("orders", given).over(defaults, "orders")
    return plan_local_retention(local_log(remote_log), remote_log.context.segments, settings, now)


def bases(plan: LocalRetentionPlan) -> list[int]:
    return [segment.base_offset for segment in plan.segments]


def retain(remote_log: RemoteLogManager, now: int = NOW) -> list[str]:
    """Enforce local retention on everything and return what failed."""
    plans, unreadable = remote_log.deletions.plan_local_retention(EVERYTHING, now)
    report = remote_log.deletions.enforce_local_retention(plans)
    return [finding.message for finding in (*unreadable, *report.failures)]


def keeping(size: int) -> dict[str, Any]:
    """Return the settings of a topic that keeps so many bytes locally."""
    return {"orders": {**ENABLED, "local.retention.bytes": size}}


# ----------------------------------------------------------------------------------------------------------- by size


@pytest.mark.parametrize(
    ("limit", "going"),
    [
        (TOTAL, []),
        (TOTAL - SEGMENT_BYTES + 1, []),
        (TOTAL - SEGMENT_BYTES, [0]),
        (TOTAL - 2 * SEGMENT_BYTES + 1, [0]),
        (TOTAL - 2 * SEGMENT_BYTES, [0, 10]),
        (0, [0, 10, 20]),
        (-1, []),
    ],
)
def test_segments_are_deleted_oldest_first_while_the_excess_is_at_least_their_size(
    tmp_path: Path, limit: int, going: list[int]
) -> None:
    with a_copied_remote_log(tmp_path).open() as remote_log:
        plan = plan_with(remote_log, local_retention_bytes=limit)

    assert bases(plan) == going
    assert plan.size == len(going) * SEGMENT_BYTES
    assert plan.new_local_start == 10 * len(going)
    assert [segment.start_offset for segment in plan.held_by] == going
    assert plan.held_back is None


def test_the_active_segment_counts_but_is_never_deleted(tmp_path: Path) -> None:
    with a_copied_remote_log(tmp_path).open() as remote_log:
        remote_log.context.segments.advance_log_start_offset(ORDERS_0, 35, held_by(remote_log, "test"))

        plan = plan_with(remote_log, NOW * 2, local_retention_bytes=0, local_retention_ms=0)

    assert bases(plan) == [0, 10, 20]
    assert plan.new_local_start == 30


# ----------------------------------------------------------------------------------------------------------- by time


@pytest.mark.parametrize(
    ("limit", "age_of_first", "going"),
    [
        (60_000, 60_000, []),
        (60_000, 60_001, [0]),
        (60_000, 70_000, [0]),
        (60_000, 70_001, [0, 10]),
        (0, 0, []),
        (0, 1, [0]),
        (60_000, 10**9, [0, 10, 20]),
        (-1, 10**9, []),
    ],
)
def test_segments_are_deleted_once_their_latest_record_is_older_than_the_limit(
    tmp_path: Path, limit: int, age_of_first: int, going: list[int]
) -> None:
    with a_copied_remote_log(tmp_path).open() as remote_log:
        now = record(9).timestamp + age_of_first
        assert bases(plan_with(remote_log, now, local_retention_ms=limit)) == going


def test_a_segment_goes_by_its_largest_timestamp_whatever_its_file_says(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)

    for segment in files.local_segments():
        os.utime(segment.log_path, (0, 0))

    with files.open() as remote_log:
        assert bases(plan_with(remote_log, record(9).timestamp, local_retention_ms=5)) == []


def test_records_without_timestamps_do_not_grow_old(tmp_path: Path) -> None:
    with a_copied_remote_log(tmp_path).open() as remote_log:
        _without_timestamps(remote_log)

        assert bases(plan_with(remote_log, NOW * 2, local_retention_ms=0)) == []
        assert bases(plan_with(remote_log, NOW * 2, local_retention_bytes=0)) == [0, 10, 20]


def test_size_and_time_take_turns_from_the_oldest_on(tmp_path: Path) -> None:
    with a_copied_remote_log(tmp_path).open() as remote_log:
        by_size = plan_with(remote_log, record(9).timestamp, local_retention_bytes=TOTAL - SEGMENT_BYTES)
        both = plan_with(
            remote_log,
            record(19).timestamp + 2,
            local_retention_bytes=TOTAL - SEGMENT_BYTES,
            local_retention_ms=1,
        )

    assert bases(by_size) == [0]
    assert bases(both) == [0, 10]


# ------------------------------------------------------------------------------------------------------ what is safe


def test_a_segment_that_is_not_remote_holds_back_all_after_it_with_a_reason(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        copy(remote_log, max_segments=1)

        plan = plan_with(remote_log, local_retention_bytes=0)
        assert bases(plan) == [0]
        assert mentions(plan.held_back, "offsets 10 to 19", "not yet remote")

        within = plan_with(remote_log, local_retention_bytes=TOTAL - SEGMENT_BYTES)
        assert bases(within) == [0]
        assert within.held_back is None


@pytest.mark.parametrize("state", [SegmentState.DELETE_SEGMENT_STARTED, SegmentState.DELETE_SEGMENT_FINISHED])
def test_a_remote_segment_under_deletion_covers_nothing(tmp_path: Path, state: SegmentState) -> None:
    with a_copied_remote_log(tmp_path).open() as remote_log:
        lease = held_by(remote_log, "test")
        [_, second, _] = segments_of(remote_log)
        for step in (SegmentState.DELETE_SEGMENT_STARTED, SegmentState.DELETE_SEGMENT_FINISHED):
            if step <= state:
                remote_log.context.segments.update_remote_log_segment_metadata(a_step(second, step), lease)

        assert bases(plan_with(remote_log, local_retention_bytes=0)) == [0]


def test_the_copy_of_another_leader_covers_nothing(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    write_leader_epochs(files.partition_directory() / "leader-epoch-checkpoint", [EpochEntry(0, 0), EpochEntry(1, 15)])

    with files.open() as remote_log:
        assert bases(plan_with(remote_log, local_retention_bytes=0)) == [0]


@pytest.mark.parametrize("limits", [{"retention_bytes": 2 * SEGMENT_BYTES}, {"retention_ms": 1}])
def test_local_segments_below_the_global_log_start_go_without_any_remote_copy_where_both_rights_are_given(
    tmp_path: Path, limits: dict[str, int]
) -> None:
    with a_remote_log(tmp_path).open() as remote_log:
        remote_log.context.segments.advance_log_start_offset(ORDERS_0, 15, held_by(remote_log, "test"))

        plan = plan_with(remote_log, NOW + 10**9, remote_deletion_allowed=True, **limits)

    assert bases(plan) == [0]
    assert plan.held_by == ()
    assert not plan.is_held_whole
    assert plan.new_local_start == 10


@pytest.mark.parametrize("limits", [{}, {"retention_bytes": 3 * SEGMENT_BYTES}, {"retention_ms": 10**10}])
def test_segments_below_the_global_log_start_stay_without_a_proof_that_they_are_of_the_same_log(
    tmp_path: Path, limits: dict[str, int]
) -> None:
    with a_remote_log(tmp_path).open() as remote_log:
        remote_log.context.segments.advance_log_start_offset(ORDERS_0, 15, held_by(remote_log, "test"))

        plan = plan_with(remote_log, NOW + 10**9, remote_deletion_allowed=True, **limits)

    assert bases(plan) == []
    assert "nothing proves" in (plan.held_back or "")


def test_the_last_copy_below_the_global_log_start_stays_where_remote_deletion_is_not_allowed(tmp_path: Path) -> None:
    with a_remote_log(tmp_path).open() as remote_log:
        remote_log.context.segments.advance_log_start_offset(ORDERS_0, 15, held_by(remote_log, "test"))

        plan = plan_with(remote_log, local_deletion_allowed=True)

    assert bases(plan) == []
    assert mentions(plan.held_back, "offsets 0 to 9", "global log start", "remote deletion")


def test_expired_segments_stay_locally_once_remote_deletion_is_forbidden(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": {**ENABLED, "retention.ms": 1}})
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, files.clock())
        remote_log.deletions.mark_expired(plans, "test")
        remote_log.deletions.delete_marked("test")
    files.properties["topics"] = {"orders": {**ENABLED, "remote.deletion.allowed": False}}
    with files.open() as remote_log:
        assert retain(remote_log) == []

    assert files.objects(".log") == []
    assert files.local_starts() == [0, 10, 20, 30]


def test_the_part_of_a_segment_below_the_global_log_start_must_be_held_too(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        lease = held_by(remote_log, "test")
        [first, *_] = segments_of(remote_log)
        for step in (SegmentState.DELETE_SEGMENT_STARTED, SegmentState.DELETE_SEGMENT_FINISHED):
            remote_log.context.segments.update_remote_log_segment_metadata(a_step(first, step), lease)
        remote_log.context.segments.advance_log_start_offset(ORDERS_0, 5, lease)

        plan = plan_with(remote_log, local_retention_bytes=0)

    assert bases(plan) == []
    assert mentions(plan.held_back, "offsets 0 to 4", "global log start")


def test_a_segment_that_the_global_log_start_cuts_must_be_held_from_there_on(tmp_path: Path) -> None:
    with a_copied_remote_log(tmp_path).open() as remote_log:
        lease = held_by(remote_log, "test")
        remote_log.context.segments.advance_log_start_offset(ORDERS_0, 5, lease)
        plan = plan_with(remote_log, local_retention_bytes=TOTAL - SEGMENT_BYTES)
        assert bases(plan) == [0]
        assert len(plan.held_by) == 1


def test_a_moved_log_start_of_the_broker_makes_nothing_safe(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    write_offset_checkpoint(files.log_directory / LOG_START_OFFSET_CHECKPOINT, {("orders", 0): 20})

    with files.open() as remote_log:
        plan = plan_with(remote_log, local_retention_bytes=0)

    assert bases(plan) == []
    assert plan.held_back is not None


# -------------------------------------------------------------------------------------------------------- enforcing


def test_trimmed_records_are_read_from_the_remote_tier(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(SEGMENT_BYTES))

    with files.open() as remote_log:
        assert retain(remote_log) == []
        assert files.local_starts() == [20, 30]
        checkpoint = read_offset_checkpoint(files.log_directory / LOG_START_OFFSET_CHECKPOINT)
        assert checkpoint == {("orders", 0): 20}
        assert offsets_read(remote_log, 0) == list(range(35))
        assert retain(remote_log) == []
        assert files.local_starts() == [20, 30]


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


@pytest.mark.parametrize("suffix", [".log", ".indexes"])
@pytest.mark.parametrize("which", [0, 1])
def test_nothing_local_is_deleted_if_an_object_is_missing(tmp_path: Path, suffix: str, which: int) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(SEGMENT_BYTES))
    missing = files.objects(suffix)[which]
    missing.unlink()

    with files.open() as remote_log:
        [failure] = retain(remote_log)

    assert missing.name in failure
    assert files.local_starts() == [0, 10, 20, 30]
    assert read_offset_checkpoint(files.log_directory / LOG_START_OFFSET_CHECKPOINT) == {("orders", 0): 0}


def test_nothing_local_is_deleted_if_an_object_is_too_short(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(SEGMENT_BYTES))
    os.truncate(files.objects(".log")[1], SEGMENT_BYTES - 1)

    with files.open() as remote_log:
        assert len(retain(remote_log)) == 1

    assert files.local_starts() == [0, 10, 20, 30]


def test_a_broken_manifest_is_no_proof(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        [first, *_] = segments_of(remote_log)
        ensure_present(first, remote_log.context.storage)

        path = files.objects(".indexes")[0]
        flip_bit(path, path.read_bytes().index(b"format_version"))
        with pytest.raises(RemoteObjectCorruptError):
            ensure_present(first, remote_log.context.storage)
        files.objects(".indexes")[0].unlink()
        with pytest.raises(RemoteObjectNotFoundError):
            ensure_present(first, remote_log.context.storage)


def test_one_partitions_failure_stops_no_other(tmp_path: Path) -> None:
    partitions = {("orders", 0): 1, ("orders", 1): 1}
    files = a_copied_remote_log(tmp_path, partitions, topics=keeping(0))
    files.objects(".log")[0].unlink()

    with files.open() as remote_log:
        [failure] = retain(remote_log)

    assert files.objects(".indexes")[0].stem in failure
    assert (files.local_starts(number=0), files.local_starts(number=1)) == ([0, 10], [10])


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


def test_nothing_is_deleted_while_a_broker_has_the_directory(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(0))

    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
        with DirectoryLock.acquire(files.log_directory):
            report = remote_log.deletions.enforce_local_retention(plans)

    assert report.trimmed == ()
    assert "is in use" in report.failures[0].message
    assert files.local_starts() == [0, 10, 20, 30]


def test_nothing_is_deleted_while_deletions_are_stopped(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(0))

    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
        files.clock.now = NOW + 10_000_000
        remote_log.context.safety.stop("a wrong mount", "ada")
        with pytest.raises(DeletionRefusedError, match=r"ada .*2023-11-15 01:00:00 UTC \(a wrong mount\)"):
            remote_log.deletions.enforce_local_retention(plans)
        assert files.local_starts() == [0, 10, 20, 30]

        remote_log.context.safety.lift("ada")
        assert len(remote_log.deletions.enforce_local_retention(plans).trimmed) == 1


def test_a_stop_holds_from_the_next_partition_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = a_copied_remote_log(tmp_path, {("orders", 0): 1, ("orders", 1): 1}, topics=keeping(0))

    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
        trim = LogDirectoryTrim.trim

        def stopped_behind(self: LogDirectoryTrim, *given: Any) -> int:
            start = trim(self, *given)
            remote_log.context.safety.stop("", "ada")
            return start

        monkeypatch.setattr(LogDirectoryTrim, "trim", stopped_behind)
        report = remote_log.deletions.enforce_local_retention(plans)

        assert report.stopped is not None
        assert "no reason given" in report.stopped
        assert len(report.trimmed) == 1
        with pytest.raises(DeletionRefusedError, match="no reason given"):
            remote_log.deletions.enforce_local_retention(plans)

    assert sorted([files.local_starts(number=0), files.local_starts(number=1)]) == [[0, 10], [10]]


@pytest.mark.parametrize(
    "lost", [{"remote_storage_enable": False}, {"local_deletion_allowed": False}], ids=["disabled", "forbidden"]
)
def test_a_right_that_was_taken_away_since_the_plan_is_asked_for_again(tmp_path: Path, lost: dict[str, Any]) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(0))

    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
        decided = remote_log.context.decided_topic(ORDERS_0)
        remote_log.context.topics.put(replace(decided, **lost))
        report = remote_log.deletions.enforce_local_retention(plans)

    assert report.trimmed == ()
    [failure] = report.failures
    assert "local deletion" in failure.message
    assert files.local_starts() == [0, 10, 20, 30]


def test_without_the_remote_right_a_plan_takes_only_what_is_held_whole(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(0))

    with files.open() as remote_log:
        whole, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
        end_below(remote_log, 10)
        partial, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
        remote_log.context.topics.put(
            replace(remote_log.context.decided_topic(ORDERS_0), remote_deletion_allowed=False)
        )

        [failure] = remote_log.deletions.enforce_local_retention(partial).failures
        assert "the last copy" in failure.message
        assert files.local_starts() == [0, 10, 20, 30]
        assert len(remote_log.deletions.enforce_local_retention(whole).trimmed) == 1


def test_nothing_is_deleted_where_store_and_metadata_do_not_belong_together(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(0))
    (files.store / "store.json").unlink()

    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
        assert bases(plans[0]) == [0, 10, 20]
        with pytest.raises(StoreMismatchError):
            remote_log.deletions.enforce_local_retention(plans)

    assert files.local_starts() == [0, 10, 20, 30]


def test_a_log_that_changed_since_the_plan_is_left_alone(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(0))

    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
        changed = [replace(plan, new_local_start=20, segments=plan.segments[1:2]) for plan in plans]
        report = remote_log.deletions.enforce_local_retention(changed)

    assert report.trimmed == ()
    assert files.local_starts() == [0, 10, 20, 30]


def test_covered_segments_are_trimmed_though_the_high_watermark_lags(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(0))
    write_offset_checkpoint(files.log_directory / HIGH_WATERMARK_CHECKPOINT, {("orders", 0): 31})

    with files.open() as remote_log:
        assert retain(remote_log) == []

    assert files.local_starts() == [30]


def _without_timestamps(remote_log: RemoteLogManager) -> None:
    """Put copies in the metadata in the place of those that are there, as of records without timestamps."""
    lease = held_by(remote_log, "test")
    for segment in segments_of(remote_log):
        deleting = a_step(segment, SegmentState.DELETE_SEGMENT_STARTED)
        remote_log.context.segments.update_remote_log_segment_metadata(deleting, lease)
        added = replace(
            segment,
            segment_id=replace(segment.segment_id, id=segment.segment_id.id[::-1]),
            state=SegmentState.COPY_SEGMENT_STARTED,
            max_timestamp=-1,
            custom_metadata=None,
            fencing_number=lease.fencing_number,
        )
        remote_log.context.segments.add_remote_log_segment_metadata(added, lease)
        finishing = a_step(added, SegmentState.COPY_SEGMENT_FINISHED, custom_metadata=b"where it is")
        remote_log.context.segments.update_remote_log_segment_metadata(finishing, lease)


# --------------------------------------------------------------------------------------------- a topic created again


@pytest.mark.parametrize("verifies", [True, False])
def test_a_segment_that_is_not_what_was_copied_stays_with_all_of_its_partition(tmp_path: Path, verifies: bool) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(BATCH_BYTES), remote_log_verify_before_trim=verifies)
    # As if a topic of the same id was created again: the same offsets and sizes, other records.
    path = files.local_segments()[1].log_path
    copied, second = batches_in(path)
    others = encode_batch([replace(each, value=(each.value or b"").swapcase()) for each in records(15, 20)])
    rewrite_segment(path, [copied, others])
    with files.open() as remote_log:
        [failure] = retain(remote_log)

    assert len(others) == len(second)
    assert f"{path.parent} is a fork" in failure
    crcs = [f"offsets 15 to 19 with CRC {batch[17:21].hex()}" for batch in (others, second)]
    assert [crc in failure for crc in crcs] == [True, True]
    assert files.local_starts() == [0, 10, 20, 30]


def test_a_trim_reads_remote_copies_back_within_the_limit_of_remote_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quotas: list[Quota] = []
    spent: list[int] = []

    def counted(quota: Quota) -> RateLimit:
        quotas.append(quota)
        return ReportingLimit(RateLimit(), spent.append)

    monkeypatch.setattr(throttle, "QuotaLimit", counted)
    files = a_copied_remote_log(
        tmp_path, topics=keeping(BATCH_BYTES), remote_log_manager_fetch_max_bytes_per_second=8 << 20
    )
    with files.open() as remote_log:
        assert retain(remote_log) == []

    assert [each.bytes_per_second for each in quotas] == [8 << 20]
    assert sum(spent) == 3 * SEGMENT_BYTES


@pytest.mark.parametrize("verifies", [True, False])
def test_a_local_segment_that_rotted_stays(tmp_path: Path, verifies: bool) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(BATCH_BYTES), remote_log_verify_before_trim=verifies)
    rotten = files.local_segments()[1].log_path
    flip_bit(rotten, SEGMENT_BYTES - 1)
    with files.open() as remote_log:
        [failure] = retain(remote_log)

    assert f"{rotten}: at byte {BATCH_BYTES}" in failure
    assert files.local_starts() == [0, 10, 20, 30]


def test_segments_below_the_global_log_start_stay_if_the_topic_id_is_derived(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        remote_log.context.segments.advance_log_start_offset(ORDERS_0, 20, held_by(remote_log, "expire"))
        log = local_log(remote_log)
        settings = TopicSettings.parse("orders", {"remote.deletion.allowed": True}).over(
            TopicSettings.parse("defaults", {}), "orders"
        )
        known = plan_local_retention(log, remote_log.context.segments, settings, NOW)
        derived = plan_local_retention(
            replace(log, topic_id_is_derived=True), remote_log.context.segments, settings, NOW
        )

    assert bases(known)[:2] == [0, 10]
    assert bases(derived) == []
    assert derived.held_back is not None
    assert "partition.metadata" in derived.held_back


def test_without_a_topic_id_what_is_held_by_segments_with_other_boundaries_stays(tmp_path: Path) -> None:
    """The topic was created again: a part of the old one's first segment seems to hold the new one's."""
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        log = local_log(remote_log)
        first, second, *others = log.segments
        cut = replace(first, end_offset=4), replace(second, base_offset=5), *others
        recreated = replace(log, segments=cut, leader_epochs=(EpochEntry(0, 0), EpochEntry(1, 5)))
        settings = TopicSettings.parse("orders", {"local.retention.bytes": 1}).over(
            TopicSettings.parse("defaults", {}), "orders"
        )
        known = plan_local_retention(recreated, remote_log.context.segments, settings, NOW)
        derived = plan_local_retention(
            replace(recreated, topic_id_is_derived=True), remote_log.context.segments, settings, NOW
        )

    assert bases(known) == [0]
    assert bases(derived) == []
    assert derived.held_back is not None
    assert "other boundaries" in derived.held_back


# ------------------------------------------------------------------------------- what is looked at before, and again


def just_before_the_second_look(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """Let something happen between the look at the store and the moment when the directory is locked."""
    acquire = DirectoryLock.acquire

    def acquired(*given: Any, **named: Any) -> DirectoryLock:
        happens()
        return acquire(*given, **named)

    monkeypatch.setattr(DirectoryLock, "acquire", acquired)


def test_a_setting_that_keeps_more_by_now_is_obeyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(0))
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
        kept = {
            **remote_log.context.decided_topic(ORDERS_0).properties,
            "local.retention.bytes": str(TOTAL - SEGMENT_BYTES),
        }
        topic = replace(remote_log.context.decided_topic(ORDERS_0), properties=kept)
        just_before_the_second_look(monkeypatch, lambda: remote_log.context.topics.put(topic))

        [trimmed] = remote_log.deletions.enforce_local_retention(plans).trimmed
        assert (bases(trimmed), trimmed.new_local_start) == ([0], 10)
        assert files.local_starts() == [10, 20, 30]


def test_a_right_that_goes_between_both_looks_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(0))
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
        topic = replace(remote_log.context.decided_topic(ORDERS_0), local_deletion_allowed=False)
        just_before_the_second_look(monkeypatch, lambda: remote_log.context.topics.put(topic))

        [failure] = remote_log.deletions.enforce_local_retention(plans).failures
        assert "local deletion" in failure.message
        assert files.local_starts() == [0, 10, 20, 30]


def test_a_stop_between_both_looks_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(0))
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
        just_before_the_second_look(monkeypatch, lambda: remote_log.context.safety.stop("now", "ada"))

        [failure] = remote_log.deletions.enforce_local_retention(plans).failures
        assert "ada stopped all deletions" in failure.message
        assert files.local_starts() == [0, 10, 20, 30]


def test_a_segment_that_lost_its_remote_copy_before_the_lock_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(0))
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
        second = segments_of(remote_log)[1]

        def marked() -> None:
            marking = a_step(second, SegmentState.DELETE_SEGMENT_STARTED)
            remote_log.context.segments.update_remote_log_segment_metadata(marking, held_by(remote_log, "test"))

        just_before_the_second_look(monkeypatch, marked)
        [trimmed] = remote_log.deletions.enforce_local_retention(plans).trimmed
        assert bases(trimmed) == [0]
        assert files.local_starts() == [10, 20, 30]


def test_a_long_copy_that_holds_the_lease_does_not_hold_up_the_trim(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(0))
    with files.open() as remote_log:
        held_by(remote_log, "a copy of hours")
        assert retain(remote_log) == []
    assert files.local_starts() == [30]


@pytest.mark.parametrize(("verifies", "starts"), [(True, [0, 10, 20, 30]), (False, [30])])
def test_by_default_a_trim_reads_every_remote_byte_back(tmp_path: Path, verifies: bool, starts: list[int]) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(0), remote_log_verify_before_trim=verifies)
    flip_bit(files.objects(".log")[1], 100)

    with files.open() as remote_log:
        failed = retain(remote_log)

    assert [("CRC-32C" in message) for message in failed] == [True] * verifies
    assert files.local_starts() == starts


@pytest.mark.parametrize("suffix", [".log", ".indexes", ".commit"])
@pytest.mark.parametrize("verifies", [True, False])
def test_a_missing_or_shorter_object_keeps_what_it_must_hold(tmp_path: Path, suffix: str, verifies: bool) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(0), remote_log_verify_before_trim=verifies)
    path = files.objects(suffix)[1]
    os.truncate(path, path.stat().st_size - 1)
    with files.open() as remote_log:
        assert len(retain(remote_log)) == 1
        path.unlink()
        assert len(retain(remote_log)) == 1

    assert files.local_starts() == [0, 10, 20, 30]


def test_nothing_local_is_deleted_under_metadata_that_are_older_than_the_store(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(0))
    database = files.root / "state" / "remote_log_metadata.db"
    last_week = database.read_bytes()
    files.append(4)
    with files.open() as remote_log:
        assert len(copy(remote_log).committed) == 2
    for path in database.parent.glob(f"{database.name}*"):
        path.unlink()
    database.write_bytes(last_week)

    with files.open(outdated=True) as remote_log, pytest.raises(OutdatedMetadataError):
        retain(remote_log)
    assert files.local_starts() == [0, 10, 20, 30, 40, 50]


def test_nothing_is_trimmed_where_all_that_is_remote_is_to_be_deleted(tmp_path: Path) -> None:
    disabled = {"orders": {**ENABLED, "remote.storage.enable": False}}
    files = a_copied_remote_log(tmp_path, topics=disabled)
    with files.open() as remote_log:
        remote_log.deletions.mark_topic_deleted(remote_log.deletions.plan_topic_deletion("orders"), "delete-topic")
    files.properties["topics"] = keeping(0)

    with files.open() as remote_log:
        [plan], _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
        assert bases(plan) == []
        assert mentions(str(plan.held_back), "everything remote", "deleted")
        remote_log.deletions.delete_marked("expire")
        assert retain(remote_log) == []
        assert offsets_read(remote_log, 0) == list(range(35))


def test_a_topic_that_is_marked_after_the_plan_is_not_trimmed(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(0))
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
        assert bases(plans[0]) == [0, 10, 20]
        topic = remote_log.context.decided_topic(ORDERS_0)
        remote_log.context.topics.put(replace(topic, remote_storage_enable=False))
        remote_log.deletions.mark_topic_deleted(remote_log.deletions.plan_topic_deletion("orders"), "delete-topic")
        remote_log.context.topics.put(topic)

        assert remote_log.deletions.enforce_local_retention(plans).trimmed == ()
    assert files.local_starts() == [0, 10, 20, 30]


def test_a_plan_from_the_future_trims_only_what_is_due_by_our_clock(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": {**ENABLED, "local.retention.ms": 10**10}})
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW * 2)
        assert bases(plans[0]) == [0, 10, 20]

        assert remote_log.deletions.enforce_local_retention(plans).trimmed == ()
    assert files.local_starts() == [0, 10, 20, 30]


# -------------------------------------------------------------------------------------------------------- step by step


def in_steps(remote_log: RemoteLogManager, step_bytes: int) -> LocalRetentionReport:
    """Enforce local retention in steps of so many bytes that are read back."""
    plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
    with mock.patch.object(enforcement, "STEP_BYTES", step_bytes):
        return remote_log.deletions.enforce_local_retention(plans)


def test_each_segment_is_trimmed_before_the_next_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int]] = []
    pieces, trim = ObjectRemoteStorageManager.verified, LogDirectoryTrim.trim

    def verified(self: ObjectRemoteStorageManager, segment: RemoteLogSegmentMetadata) -> Iterator[bytes]:
        seen.append(("looked at", segment.start_offset))
        yield from pieces(self, segment)

    def trimmed(self: LogDirectoryTrim, *given: Any) -> int:
        reached = trim(self, *given)
        seen.append(("begins at", reached))
        return reached

    monkeypatch.setattr(ObjectRemoteStorageManager, "verified", verified)
    monkeypatch.setattr(LogDirectoryTrim, "trim", trimmed)
    with a_copied_remote_log(tmp_path, topics=keeping(0)).open() as remote_log:
        report = in_steps(remote_log, SEGMENT_BYTES)

        assert seen == [
            (what, at) for base in (0, 10, 20) for what, at in (("looked at", base), ("begins at", base + 10))
        ]
        [plan] = report.trimmed
        assert (bases(plan), plan.new_local_start, report.failures) == ([0, 10, 20], 30, ())
        assert offsets_read(remote_log, 0) == list(range(35))


def test_if_a_later_step_fails_the_earlier_ones_are_done_and_reported(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(0))
    flip_bit(files.objects(".log")[2], 100)
    with files.open() as remote_log:
        report = in_steps(remote_log, 2 * SEGMENT_BYTES)

        [plan] = report.trimmed
        assert (bases(plan), plan.new_local_start) == ([0, 10], 20)
        assert "CRC-32C" in report.failures[0].message
        assert local_log(remote_log).log_start_offset == 20


@pytest.mark.parametrize(
    ("step_bytes", "steps"), [(1, [[0], [10], [20]]), (2 * SEGMENT_BYTES, [[0, 10], [20]]), (1 << 40, [[0, 10, 20]])]
)
def test_steps_are_as_large_as_may_be_and_name_what_holds_them(
    tmp_path: Path, step_bytes: int, steps: list[list[int]]
) -> None:
    with a_copied_remote_log(tmp_path).open() as remote_log:
        plan = plan_with(remote_log, local_retention_bytes=0)
        parts = list(plan.steps(step_bytes))

        assert [bases(part) for part in parts] == steps
        assert [[one.start_offset for one in part.held_by] for part in parts] == steps
        assert [part.new_local_start for part in parts] == [part[-1] + 10 for part in steps]


def test_a_remote_segment_that_holds_several_local_ones_is_named_in_each_step(tmp_path: Path) -> None:
    with a_copied_remote_log(tmp_path).open() as remote_log:
        plan = plan_with(remote_log, local_retention_bytes=0)
        long = replace(plan.held_by[0], end_offset=24)

        parts = list(replace(plan, held_by=(long, plan.held_by[2])).steps(SEGMENT_BYTES))
        assert [bases(part) for part in parts] == [[0, 10], [20]]
        assert [[one.start_offset for one in part.held_by] for part in parts] == [[0], [0, 20]]
