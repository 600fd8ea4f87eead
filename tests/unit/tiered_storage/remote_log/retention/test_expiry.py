"""Which segments expire: past their limits, oldest first, never more than was asked for, and only where allowed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.metadata_stores import a_step
from support.remote_logs import (
    BATCH_BYTES,
    ENABLED,
    NOW,
    ORDERS_0,
    SEGMENT_BYTES,
    a_copied_remote_log,
    a_remote_log,
    begin,
    carry_out,
    end_below,
    held_by,
    offsets_read,
    partition_of,
    record,
    segments_of,
    states_of,
)
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry, write_leader_epochs
from tiered_storage.kafka_log.files.offset_checkpoint import LOG_START_OFFSET_CHECKPOINT, write_offset_checkpoint
from tiered_storage.remote_log.model import SegmentState
from tiered_storage.remote_log.selection import EVERYTHING, Selection
from unit.tiered_storage.remote_log.retention.expiries import TOTAL, going, keeping, plan_with


@pytest.mark.parametrize(
    ("limit", "bases"),
    [
        (TOTAL, []),
        (TOTAL - SEGMENT_BYTES + 1, []),
        (TOTAL - SEGMENT_BYTES, [0]),
        (TOTAL - 2 * SEGMENT_BYTES + 1, [0]),
        (TOTAL - 2 * SEGMENT_BYTES, [0, 10]),
        (1, [0, 10, 20]),
        (-1, []),
    ],
)
def test_segments_end_oldest_first_while_the_excess_is_at_least_their_size(
    tmp_path: Path, limit: int, bases: list[int]
) -> None:
    with a_copied_remote_log(tmp_path).open() as remote_log:
        plan = plan_with(remote_log, retention_bytes=limit)

    assert going(plan) == bases
    if plan is not None:
        assert plan.topic_id_partition == ORDERS_0
        assert plan.new_log_start == 10 * len(bases)
        assert plan.size == len(bases) * SEGMENT_BYTES


@pytest.mark.parametrize(
    ("limit", "age_of_first", "bases"),
    [
        (60_000, 60_000, []),
        (60_000, 60_001, [0]),
        (60_000, 70_001, [0, 10]),
        (60_000, 10**9, [0, 10, 20]),
        (-1, 10**9, []),
    ],
)
def test_segments_end_once_their_latest_record_is_older_than_the_limit(
    tmp_path: Path, limit: int, age_of_first: int, bases: list[int]
) -> None:
    with a_copied_remote_log(tmp_path).open() as remote_log:
        assert going(plan_with(remote_log, record(9).timestamp + age_of_first, retention_ms=limit)) == bases


def test_retention_bytes_counts_local_records_and_those_of_both_tiers_once(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        assert going(plan_with(remote_log, retention_bytes=TOTAL - SEGMENT_BYTES)) == [0]
        assert going(plan_with(remote_log, with_local=False, retention_bytes=TOTAL - SEGMENT_BYTES)) == []

    files.append(6)
    with files.open() as remote_log:
        assert going(plan_with(remote_log, retention_bytes=TOTAL)) == [0, 10, 20]


def test_copies_that_never_finished_do_not_count(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    files.append(4)
    with files.open() as remote_log:
        begin(remote_log)
        total = TOTAL + 4 * BATCH_BYTES
        assert going(plan_with(remote_log, retention_bytes=total)) == []
        assert going(plan_with(remote_log, retention_bytes=total - SEGMENT_BYTES)) == [0]
        assert going(plan_with(remote_log, NOW * 2, retention_ms=1)) == [0, 10, 20]


def test_a_copy_of_another_leader_does_not_count_but_is_deleted_with_its_offsets(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    lineage = [EpochEntry(0, 0), EpochEntry(1, 15)]
    write_leader_epochs(files.partition_directory() / "leader-epoch-checkpoint", lineage)

    with files.open() as remote_log:
        lease = held_by(remote_log, "test")
        [_, second, _] = segments_of(remote_log)
        heir = replace(
            second,
            segment_id=replace(second.segment_id, id=second.segment_id.id[::-1]),
            state=SegmentState.COPY_SEGMENT_STARTED,
            leader_epochs=(EpochEntry(0, 10), EpochEntry(1, 15)),
            custom_metadata=None,
            fencing_number=lease.fencing_number,
        )
        remote_log.context.segments.add_remote_log_segment_metadata(heir, lease)
        finishing = a_step(heir, SegmentState.COPY_SEGMENT_FINISHED, custom_metadata=b"where it is")
        remote_log.context.segments.update_remote_log_segment_metadata(finishing, lease)
        remote_log.context.leases.release(lease)

        # Remote on the lineage: 0 to 19; only local: the segments from 20 on.
        assert going(plan_with(remote_log, retention_bytes=TOTAL)) == []
        assert going(plan_with(remote_log, retention_bytes=TOTAL - 2 * SEGMENT_BYTES)) == [0, 10, 10]


def test_a_segment_without_timestamps_does_not_grow_old(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        outcomes = [
            replace(one, finished=replace(one.finished, max_timestamp=-1)) if one.finished else one
            for one in carry_out(remote_log, begin(remote_log))
        ]
        remote_log.commit_copy(outcomes)

        assert plan_with(remote_log, NOW * 2, retention_ms=1) is None
        assert going(plan_with(remote_log, retention_bytes=1)) == [0, 10, 20]


def test_a_log_start_that_the_broker_moved_ends_nothing_remote(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    write_offset_checkpoint(files.log_directory / LOG_START_OFFSET_CHECKPOINT, {("orders", 0): 30})

    with files.open() as remote_log:
        assert plan_with(remote_log) is None
        assert remote_log.deletions.plan_expiry(EVERYTHING, NOW) == ([], [])
        assert offsets_read(remote_log, 0) == list(range(35))


def test_segments_below_the_global_log_start_are_still_deleted(tmp_path: Path) -> None:
    with a_copied_remote_log(tmp_path).open() as remote_log:
        end_below(remote_log, 15)
        plan = plan_with(remote_log)

        assert plan is not None
        assert going(plan) == [0]
        assert plan.new_log_start == 15, "it never falls"


def test_there_is_no_plan_if_nothing_is_past_its_retention(tmp_path: Path) -> None:
    with a_copied_remote_log(tmp_path).open() as remote_log:
        assert plan_with(remote_log) is None
        end_below(remote_log, 5)
        assert plan_with(remote_log) is None


@pytest.mark.parametrize(
    "topics",
    [{}, {"orders": {"remote.storage.enable": True, "retention.ms": 1}}, {"clicks": {**ENABLED, "retention.ms": 1}}],
    ids=["nothing is set", "deletion is not allowed", "another topic"],
)
def test_nothing_expires_that_was_not_switched_on(tmp_path: Path, topics: dict[str, Any]) -> None:
    with a_copied_remote_log(tmp_path, topics=topics).open() as remote_log:
        assert remote_log.deletions.plan_expiry(EVERYTHING, NOW * 2) == ([], [])


def test_only_requested_topics_expire(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, {("clicks", 0): 1, ("orders", 0): 1})
    with files.open() as remote_log:
        for topic in ("clicks", "orders"):
            end_below(remote_log, 10, partition_of(topic))

        assert [
            str(plan.topic_id_partition) for plan in remote_log.deletions.plan_expiry(Selection("orders"), NOW)[0]
        ] == ["orders-0"]
        remote_log.deletions.mark_expired(remote_log.deletions.plan_expiry(EVERYTHING, NOW)[0], "expire")
        deleted = remote_log.deletions.delete_marked("expire", Selection("orders")).deleted

        assert [str(segment.topic_id_partition) for segment in deleted] == ["orders-0"]
        assert states_of(remote_log, partition_of("clicks")) == [(0, SegmentState.DELETE_SEGMENT_STARTED.name)]


def test_a_topic_whose_local_log_cannot_be_read_expires_later_and_others_now(tmp_path: Path) -> None:
    limits = {"retention.bytes": 1}
    topics = {topic: {**ENABLED, **limits} for topic in ("clicks", "orders")}
    files = a_copied_remote_log(tmp_path, {("clicks", 0): 1, ("orders", 0): 1}, topics=topics)
    (files.partition_directory("clicks") / "leader-epoch-checkpoint").write_text("0\nmany\n")

    with files.open() as remote_log:
        [plan], [unreadable] = remote_log.deletions.plan_expiry(EVERYTHING, NOW)

    assert str(plan.topic_id_partition) == "orders-0"
    assert unreadable.partition == "clicks-0"
    assert "leader-epoch-checkpoint" in unreadable.message


@pytest.mark.parametrize(("most", "bases", "start"), [(1, [0], 10), (2, [0, 10], 20), (9, [0, 10, 20], 30)])
def test_no_more_ends_than_was_asked_for(tmp_path: Path, most: int, bases: list[int], start: int) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(1))
    with files.open() as remote_log:
        [plan], _ = remote_log.deletions.plan_expiry(EVERYTHING, NOW, most)
        assert (going(plan), plan.new_log_start, plan.count) == (bases, start, len(bases))
        remote_log.deletions.mark_expired([plan], "expire")
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == start
        assert offsets_read(remote_log, start) == list(range(start, 35))


def test_the_limit_counts_another_leaders_copies_and_never_copied_segments_together(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    write_leader_epochs(files.partition_directory() / "leader-epoch-checkpoint", [EpochEntry(0, 0), EpochEntry(1, 10)])

    with files.open() as remote_log:
        limits: dict[str, Any] = {"retention_bytes": 1, "remote_storage_enable": True}
        plans = [plan_with(remote_log, most=most, **limits) for most in (1, 2, 3, 4, None)]
        found = [(going(plan), plan.never_copied_segments, plan.new_log_start) for plan in plans if plan is not None]
        end_below(remote_log, 30)
        following = plan_with(remote_log, most=2, **limits)

    assert found == [([0], 0, 10), ([0], 1, 20), ([0], 2, 30), ([0, 10], 2, 30), ([0, 10, 20], 2, 30)]
    assert going(following) == [0, 10], "what has no room in one plan has it in the next"
