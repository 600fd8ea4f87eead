"""A run takes leases, gives up what dead tries left, and writes down what it starts to copy."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from support.command_line import mentions
from support.remote_logs import (
    ORDERS_0,
    a_copied_remote_log,
    a_remote_log,
    begin,
    carry_out,
    held_by,
    location_of,
    ranges,
    segments_of,
    states_of,
)
from tiered_storage.errors import LeaseHeldError, MetadataUnavailableError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry, write_leader_epochs
from tiered_storage.kafka_log.files.log_segment import LogSegment
from tiered_storage.kafka_log.files.offset_checkpoint import LOG_START_OFFSET_CHECKPOINT, write_offset_checkpoint
from tiered_storage.remote_log.copy.start import abandon_unfinished
from tiered_storage.remote_log.copy.tasks import CopyPlan, PlannedSegment
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import PartitionDeleteState, RemotePartitionDeleteMetadata
from unit.tiered_storage.remote_log.copy.copy_outcomes import DELETING, STARTED, done, start_offsets


def test_a_run_takes_the_lease_and_writes_down_what_it_starts(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    with files.open() as remote_log:
        begun = begin(remote_log)
        known = segments_of(remote_log)

    assert begun.left == ()
    assert [task.metadata for task in begun.tasks] == known
    assert {segment.state.name for segment in known} == {STARTED}
    assert ranges(known) == [(0, 9), (10, 19), (20, 29)]
    assert len({segment.segment_id for segment in known}) == 3
    assert {task.lease for task in begun.tasks} == {begun.tasks[0].lease}
    assert {segment.fencing_number for segment in known} == {begun.tasks[0].lease.fencing_number}
    assert {segment.event_timestamp for segment in known} == {files.clock.now}
    assert [task.location for task in begun.tasks] == [str(one.log_path) for one in files.local_segments()[:3]]


def test_the_leader_epochs_of_a_started_segment_are_those_within_it(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    write_leader_epochs(files.partition_directory() / "leader-epoch-checkpoint", [EpochEntry(0, 0), EpochEntry(2, 15)])

    with files.open() as remote_log:
        epochs = [task.metadata.leader_epochs for task in begin(remote_log).tasks]

    assert epochs == [(EpochEntry(0, 0),), (EpochEntry(0, 10), EpochEntry(2, 15)), (EpochEntry(2, 20),)]


def test_a_task_says_from_where_on_readers_are_given_the_partition(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    LogSegment(0, files.partition_directory()).log_path.unlink()
    write_offset_checkpoint(files.log_directory / LOG_START_OFFSET_CHECKPOINT, {("orders", 0): 10})

    with files.open() as remote_log:
        begun = remote_log.begin_copy(remote_log.plan_copy(max_segments=1), "copy").tasks
        assert [(task.metadata.start_offset, task.readable_from) for task in begun] == [(10, 10)]
        remote_log.commit_copy(done(begun))

        plan = remote_log.plan_copy()
        for log_start, readable_from in ((10, 10), (15, 15), (20, 20)):
            [task] = remote_log.begin_copy(plan, "copy").tasks
            remote_log.context.segments.advance_log_start_offset(ORDERS_0, log_start, task.lease)
            [task] = remote_log.begin_copy(plan, "copy").tasks
            assert (task.metadata.start_offset, task.readable_from) == (20, readable_from)


def test_earlier_segments_of_the_same_run_count_as_readable(tmp_path: Path) -> None:
    with a_remote_log(tmp_path).open() as remote_log:
        assert [task.readable_from for task in begin(remote_log).tasks] == [0, 0, 0]


def test_a_partition_that_somebody_else_holds_is_left_to_them(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("clicks", 0): 1, ("orders", 0): 1})

    with files.open() as remote_log:
        held_by(remote_log, "another run")
        begun = begin(remote_log)
        assert segments_of(remote_log) == []

    assert [str(task.metadata.topic_id_partition) for task in begun.tasks] == ["clicks-0"]
    [finding] = begun.left
    assert finding.partition == "orders-0"
    assert mentions(finding.message, "another run", "leases end")


def test_the_retry_of_a_run_takes_over_from_its_dead_try(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    with files.open() as remote_log:
        dead = begin(remote_log, "run 7")
        retry = begin(remote_log, "run 7")

        assert [task.lease.fencing_number for task in (dead.tasks[0], retry.tasks[0])] == [1, 2]
        dead_ids = {task.metadata.segment_id for task in dead.tasks}
        states = {segment.segment_id: segment.state.name for segment in segments_of(remote_log)}
        assert {states[task.metadata.segment_id] for task in retry.tasks} == {STARTED}
        assert {states[segment_id] for segment_id in dead_ids} == {DELETING}

        late = remote_log.commit_copy(done(dead.tasks))
        assert late.committed == ()
        assert "run 7 (lease 2)" in late.failures[0].message
        assert not late.retriable
        assert start_offsets(remote_log.commit_copy(done(retry.tasks)).committed) == [0, 10, 20]


def test_copies_of_a_run_whose_lease_expired_are_given_up(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    with files.open() as remote_log:
        begin(remote_log, "dead run")
        assert [finding.partition for finding in begin(remote_log, "next run").left] == ["orders-0"]

        files.clock.now += remote_log.context.settings.lease_duration_ms + 1
        begun = begin(remote_log, "next run")

        assert len(begun.tasks) == 3
        assert sorted(states_of(remote_log)) == sorted(
            [(base, DELETING) for base in (0, 10, 20)] + [(base, STARTED) for base in (0, 10, 20)]
        )


def test_only_copies_of_earlier_leases_are_given_up(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    with files.open() as remote_log:
        begun = begin(remote_log)

        assert abandon_unfinished(ORDERS_0, remote_log.context.segments, begun.tasks[0].lease, files.clock) == 0
        later = held_by(remote_log, "copy")
        assert abandon_unfinished(ORDERS_0, remote_log.context.segments, later, files.clock) == 3
        assert abandon_unfinished(ORDERS_0, remote_log.context.segments, later, files.clock) == 0


def test_segments_that_another_run_copied_since_the_plan_are_not_begun_again(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    with files.open() as remote_log:
        plan = remote_log.plan_copy()
        first = remote_log.begin_copy(remote_log.plan_copy(max_segments=2), "other")
        remote_log.commit_copy(done(first.tasks))

        assert start_offsets(task.metadata for task in remote_log.begin_copy(plan, "copy").tasks) == [20]


def test_copies_that_expired_since_the_plan_are_not_begun(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    with files.open() as remote_log:
        plan = remote_log.plan_copy()
        lease = held_by(remote_log, "expire")
        remote_log.context.segments.advance_log_start_offset(ORDERS_0, 20, lease)
        remote_log.context.leases.release(lease)

        assert start_offsets(task.metadata for task in remote_log.begin_copy(plan, "copy").tasks) == [20]


def test_a_lease_for_which_nothing_is_left_to_do_is_given_back(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    with files.open() as remote_log:
        plan = remote_log.plan_copy()
        remote_log.commit_copy(done(begin(remote_log).tasks))

        assert remote_log.begin_copy(plan, "late").tasks == ()
        held_by(remote_log, "anybody")


def lineage_of(remote_log: RemoteLogManager) -> tuple[EpochEntry, ...]:
    return remote_log.context.segments.partition_state(ORDERS_0).lineage


def test_a_run_keeps_the_lineage_also_where_nothing_is_due(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 0})
    lineage = (EpochEntry(0, 0),)

    with files.open() as remote_log:
        plan = remote_log.plan_copy()
        assert (plan.segments, [each.leader_epochs for each in plan.lineages]) == ((), [lineage])
        assert not plan.is_empty
        assert lineage_of(remote_log) == ()
        assert remote_log.begin_copy(plan, "copy").tasks == ()
        assert lineage_of(remote_log) == lineage
        held_by(remote_log, "anybody")
        assert remote_log.plan_copy().is_empty


def test_each_task_knows_all_leaders_that_the_local_log_forgot(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    files.append(3)
    with files.open() as remote_log:
        remote_log.context.segments.put_lineage(
            ORDERS_0, [EpochEntry(0, 0), EpochEntry(1, 12)], held_by(remote_log, "copy")
        )
        checkpoint = files.partition_directory() / "leader-epoch-checkpoint"
        write_leader_epochs(checkpoint, [EpochEntry(1, 25), EpochEntry(2, 33), EpochEntry(3, 42)])

        tasks = begin(remote_log).tasks

    assert [task.metadata.start_offset for task in tasks] == [10, 20, 30]
    assert tasks[-1].lineage == (EpochEntry(0, 0), EpochEntry(1, 12), EpochEntry(2, 33))
    assert tasks[-1].metadata.leader_epochs == (EpochEntry(1, 30), EpochEntry(2, 33))


def test_a_run_that_cannot_begin_releases_its_leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = a_remote_log(tmp_path)

    def away(*_: object) -> None:
        raise MetadataUnavailableError("locked")

    with files.open() as remote_log:
        plan = remote_log.plan_copy()
        with monkeypatch.context() as patched:
            patched.setattr(type(remote_log.context.segments), "add_remote_log_segments", away)
            with pytest.raises(MetadataUnavailableError):
                remote_log.begin_copy(plan, "copy")

        held_by(remote_log, "anybody")


@pytest.mark.parametrize("state", PartitionDeleteState)
def test_nothing_is_copied_of_a_partition_that_is_being_deleted(tmp_path: Path, state: PartitionDeleteState) -> None:
    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        before = remote_log.plan_copy()
        lease = held_by(remote_log, "delete")
        for step in PartitionDeleteState:
            if step <= state:
                deletion = RemotePartitionDeleteMetadata(ORDERS_0, step, files.clock.now)
                remote_log.context.segments.put_remote_partition_delete_metadata(deletion, lease)
        remote_log.context.leases.release(lease)
        expected = f"its remote log is being deleted ({state.name}): nothing more of it is copied"

        plan = remote_log.plan_copy()
        assert plan.is_empty
        assert [(each.partition, each.message) for each in plan.notices] == [("orders-0", expected)]

        begun = remote_log.begin_copy(before, "late")
        assert (begun.tasks, [each.message for each in begun.left]) == ((), [expected])
        held_by(remote_log, "anybody")


@pytest.mark.parametrize("ends", ["well", "with an error"])
def test_leases_of_a_block_are_released_however_it_ends(tmp_path: Path, ends: str) -> None:
    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        begun = begin(remote_log, "copy")
        with suppress(MetadataUnavailableError), remote_log.held(begun):
            with pytest.raises(LeaseHeldError):
                held_by(remote_log, "another")
            if ends != "well":
                raise MetadataUnavailableError("locked")
        held_by(remote_log, "another")


def test_a_repair_begins_a_copy_of_a_segment_that_is_already_remote(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        _, second, _ = segments_of(remote_log)
        local = files.local_segments()[1]
        planned = PlannedSegment(ORDERS_0, location_of(local.log_path), 10, 19, local.size(), (EpochEntry(0, 0),))
        plan = CopyPlan((planned,), replacing=frozenset({second.segment_id.id}))

        report = remote_log.commit_copy(carry_out(remote_log, remote_log.begin_copy(plan, "repair")))

        assert ranges(report.committed) == [(10, 19)]
        assert start_offsets(segments_of(remote_log)) == [0, 10, 10, 20]
        assert remote_log.begin_copy(replace(plan, replacing=frozenset()), "copy").tasks == ()
