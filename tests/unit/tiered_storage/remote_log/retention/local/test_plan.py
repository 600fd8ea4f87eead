"""Which local segments a plan takes: past their limits, oldest first, and only if no data are lost."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from support.command_line import mentions
from support.metadata_stores import a_step
from support.remote_logs import (
    ENABLED,
    NOW,
    ORDERS_0,
    SEGMENT_BYTES,
    a_copied_remote_log,
    a_remote_log,
    copy,
    held_by,
    local_log,
    record,
    segments_of,
)
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry, write_leader_epochs
from tiered_storage.kafka_log.files.offset_checkpoint import LOG_START_OFFSET_CHECKPOINT, write_offset_checkpoint
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import SegmentState
from tiered_storage.remote_log.retention.local.plan import plan_local_retention
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage.settings.topics import TopicSettings
from unit.tiered_storage.remote_log.retention.local.local_plans import TOTAL, bases, plan_with, retain

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


def test_a_segment_expires_by_its_largest_timestamp_not_by_its_files_time(tmp_path: Path) -> None:
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


# -------------------------------------------------------------------------------------------------------- step by step


@pytest.mark.parametrize(
    ("step_bytes", "steps"), [(1, [[0], [10], [20]]), (2 * SEGMENT_BYTES, [[0, 10], [20]]), (1 << 40, [[0, 10, 20]])]
)
def test_steps_fill_the_limit_and_name_the_covering_remote_segments(
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
