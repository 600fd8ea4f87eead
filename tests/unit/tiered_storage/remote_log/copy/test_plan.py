"""Which closed segments a copy plans: those below the stable offset that no finished copy of their lineage holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from support.command_line import mentions
from support.remote_logs import (
    ORDERS_0,
    SEGMENT_BYTES,
    a_copied_remote_log,
    a_remote_log,
    batches_in,
    held_by,
    local_log,
    location_of,
    partition_of,
    record,
    rewrite_segment,
)
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry, write_leader_epochs
from tiered_storage.kafka_log.files.offset_checkpoint import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    write_offset_checkpoint,
)
from tiered_storage.kafka_log.records.record_batch import encode_batch
from tiered_storage.remote_log.copy.tasks import CopyPlan, PlannedSegment
from tiered_storage.remote_log.model import Finding, SegmentState
from tiered_storage.remote_log.source.partition_log import RollRules, UnsegmentedLog
from unit.tiered_storage.remote_log.copy.copy_plans import ENABLED, FINISHED, due, finish


def test_closed_segments_are_due_earliest_first_and_the_active_one_is_not(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    with files.open() as remote_log:
        plan = remote_log.plan_copy()

    assert plan.segments == tuple(
        PlannedSegment(
            ORDERS_0,
            location_of(files.partition_directory() / f"{base:020}.log"),
            base,
            base + 9,
            SEGMENT_BYTES,
            (EpochEntry(0, 0),),
        )
        for base in (0, 10, 20)
    )
    assert plan.size == 3 * SEGMENT_BYTES
    assert plan.partitions == [ORDERS_0]
    assert plan.refused == plan.unreadable == plan.notices == ()


def test_planning_changes_nothing(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    with files.open() as remote_log:
        assert remote_log.plan_copy() == remote_log.plan_copy()
        assert remote_log.context.segments.list_partitions() == []

    assert not files.store.exists()


@pytest.mark.parametrize(
    ("high_watermark", "bases"), [(0, []), (9, []), (10, [0]), (19, [0]), (20, [0, 10]), (35, [0, 10, 20])]
)
def test_a_segment_is_due_once_all_of_it_is_below_the_high_watermark(
    tmp_path: Path, high_watermark: int, bases: list[int]
) -> None:
    files = a_remote_log(tmp_path)
    write_offset_checkpoint(files.log_directory / HIGH_WATERMARK_CHECKPOINT, {("orders", 0): high_watermark})

    with files.open() as remote_log:
        assert [one.base_offset for one in remote_log.plan_copy().segments] == bases


def test_an_open_transaction_holds_back_the_segment_it_began_in(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    segment = files.local_segments()[1].log_path
    first, _ = batches_in(segment)
    opened = encode_batch(
        [record(offset) for offset in range(15, 20)],
        producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True,
    )  # fmt: skip
    rewrite_segment(segment, [first, opened])
    for snapshot in files.partition_directory().glob("*.snapshot"):
        snapshot.unlink()

    with files.open() as remote_log:
        assert due(remote_log.plan_copy()) == [("orders-0", 0, 9)]


def test_remote_segments_are_not_due_again(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)

    with files.open() as remote_log:
        assert remote_log.plan_copy().segments == ()


@pytest.mark.parametrize("state", [state for state in SegmentState if state is not FINISHED])
def test_a_segment_in_any_other_state_covers_nothing(tmp_path: Path, state: SegmentState) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 1})

    with files.open() as remote_log:
        finish(remote_log, 0, 9, state=SegmentState.COPY_SEGMENT_STARTED if state == 0 else state)
        assert due(remote_log.plan_copy()) == [("orders-0", 0, 9)]


def test_copies_of_another_leader_do_not_count(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    write_leader_epochs(files.partition_directory() / "leader-epoch-checkpoint", [EpochEntry(0, 0), EpochEntry(2, 15)])

    with files.open() as remote_log:
        finish(remote_log, 0, 9)
        finish(remote_log, 10, 19, epochs=((0, 10), (1, 12)))
        finish(remote_log, 20, 29, epochs=((2, 20),))
        plan = remote_log.plan_copy()

    assert due(plan) == [("orders-0", 10, 19)]
    assert plan.segments[0].lineage == (EpochEntry(0, 0), EpochEntry(2, 15))


def test_the_lineage_of_a_segment_reaches_up_to_its_end(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    write_leader_epochs(files.partition_directory() / "leader-epoch-checkpoint", [EpochEntry(0, 0), EpochEntry(2, 15)])

    with files.open() as remote_log:
        lineages = [one.lineage for one in remote_log.plan_copy().segments]

    assert lineages == [
        (EpochEntry(0, 0),),
        (EpochEntry(0, 0), EpochEntry(2, 15)),
        (EpochEntry(0, 0), EpochEntry(2, 15)),
    ]


def test_segments_with_other_boundaries_cover_what_they_hold_together(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    with files.open() as remote_log:
        finish(remote_log, 0, 14)
        finish(remote_log, 15, 22)
        assert due(remote_log.plan_copy()) == [("orders-0", 20, 29)]


def test_nothing_below_the_global_log_start_is_due(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    with files.open() as remote_log:
        lease = held_by(remote_log, "test")
        remote_log.context.segments.advance_log_start_offset(ORDERS_0, 10, lease)
        assert due(remote_log.plan_copy()) == [("orders-0", 10, 19), ("orders-0", 20, 29)]
        remote_log.context.segments.advance_log_start_offset(ORDERS_0, 15, lease)
        assert due(remote_log.plan_copy()) == [("orders-0", 10, 19), ("orders-0", 20, 29)]

        finish(remote_log, 15, 19)
        assert due(remote_log.plan_copy()) == [("orders-0", 20, 29)]


def test_segments_below_the_brokers_log_start_are_not_due_though_their_files_exist(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    write_offset_checkpoint(files.log_directory / LOG_START_OFFSET_CHECKPOINT, {("orders", 0): 15})

    with files.open() as remote_log:
        assert due(remote_log.plan_copy()) == [("orders-0", 10, 19), ("orders-0", 20, 29)]


def test_offsets_that_went_locally_before_they_were_copied_are_reported(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        finish(remote_log, 0, 9)
        write_offset_checkpoint(files.log_directory / LOG_START_OFFSET_CHECKPOINT, {("orders", 0): 20})
        plan = remote_log.plan_copy()

    assert due(plan) == [("orders-0", 20, 29)]
    [notice] = plan.notices
    assert notice.partition == "orders-0"
    assert mentions(notice.message, "offsets 10 to 19", "never copied")


def test_without_a_high_watermark_checkpoint_a_person_has_to_vouch_for_the_end(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 1})
    (files.log_directory / HIGH_WATERMARK_CHECKPOINT).unlink()

    with files.open() as remote_log:
        plan = remote_log.plan_copy()
    assert plan.segments == ()
    assert "log.end.is.stable" in plan.unreadable[0].message

    files.properties["log.end.is.stable"] = True
    with files.open() as remote_log:
        plan = remote_log.plan_copy()
    assert due(plan) == [("orders-0", 0, 9)]
    assert plan.unreadable == ()
    assert "replication-offset-checkpoint is missing" in plan.notices[0].message


@pytest.mark.parametrize("of_the_topic", [False, True], ids=["for all topics", "for the topic"])
def test_a_gap_is_an_error_until_somebody_decides_and_copied_over_an_alarm_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_the_topic: bool
) -> None:
    rules = RollRules(SEGMENT_BYTES, 1 << 50, 1 << 20, 4096, 1 << 20)
    unsegmented = UnsegmentedLog(rules, lambda _: 0, lambda _: SEGMENT_BYTES / 10, lambda _: -1, lambda _: {})
    files = a_remote_log(tmp_path)

    def plan_from(log_start: int, *, copied: int | None = None) -> CopyPlan:
        with files.open() as remote_log:
            if copied is not None:
                finish(remote_log, copied, copied + 9)
            log = replace(local_log(remote_log), segments=(), log_start_offset=log_start, unsegmented=unsegmented)
            with monkeypatch.context() as patched:
                patched.setattr(type(remote_log.context.source), "partitions", lambda _: iter([log]))
                return remote_log.plan_copy()

    undecided = plan_from(20, copied=0)
    if of_the_topic:
        files.properties["topics"] = {"orders": {**ENABLED, "copy.over.gaps": True}}
    else:
        files.properties["copy.over.gaps"] = True
    empty = plan_from(35)
    gapped = plan_from(20)
    later = plan_from(20, copied=20)

    lost = "offsets 10 to 19"
    [refused] = undecided.unreadable
    assert mentions(refused.message, lost, "copy.over.gaps=true")
    assert (undecided.segments, undecided.alarms) == ((), ())
    assert set(due(gapped)) == {("orders-0", 20, 34)}
    [alarm] = gapped.alarms
    assert alarm in gapped.troubles
    assert mentions(alarm.message, lost, "lost", "offset 20", "(copy.over.gaps)")
    assert (gapped.unreadable, gapped.notices) == ((), ())
    assert gapped.without([Finding("orders-0", "forked")]).alarms == ()
    # Where nothing is due yet, a person reads of it, and the run that copies on raises the alarm.
    [notice] = empty.notices
    assert mentions(notice.message, "offsets 10 to 34", "they are lost")
    assert (empty.segments, empty.troubles) == ((), ())
    assert (later.troubles, later.notices) == ((), ())


def test_a_run_that_copies_nothing_of_a_partition_raises_no_alarm_of_its_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = RollRules(SEGMENT_BYTES, 1 << 50, 1 << 20, 4096, 1 << 20)
    unsegmented = UnsegmentedLog(rules, lambda _: 0, lambda _: SEGMENT_BYTES / 10, lambda _: -1, lambda _: {})
    files, second = (
        a_remote_log(tmp_path, {("orders", 0): 3, ("orders", 1): 3}, copy_over_gaps=True),
        partition_of("orders", 1),
    )

    with files.open() as remote_log:
        finish(remote_log, 0, 9, of=second)
        logs = [
            replace(local_log(remote_log, partition), segments=(), log_start_offset=log_start, unsegmented=unsegmented)
            for partition, log_start in ((ORDERS_0, 0), (second, 20))
        ]
        monkeypatch.setattr(type(remote_log.context.source), "partitions", lambda _: iter(logs))
        one, two = (remote_log.plan_copy(max_segments=most) for most in (1, 2))

    assert (due(one), one.alarms) == ([("orders-0", 0, 34)], ())
    assert [alarm.partition for alarm in two.alarms] == ["orders-1"]
