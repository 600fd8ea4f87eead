"""A commit makes copies visible in their order, and only while leader, local log and lease still hold."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.command_line import mentions
from support.metadata_stores import a_step
from support.remote_logs import (
    BATCH_BYTES,
    NOW,
    ORDERS_0,
    RemoteLogFiles,
    a_copied_remote_log,
    a_remote_log,
    begin,
    carry_out,
    copy,
    flip_bit,
    held_by,
    offsets_read,
    partition_of,
    ranges,
    segments_of,
    states_of,
)
from tiered_storage.errors import MetadataUnavailableError
from tiered_storage.kafka_log.files.directory_lock import DirectoryLock
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry, write_leader_epochs
from tiered_storage.kafka_log.files.log_segment import LogSegment
from tiered_storage.kafka_log.files.offset_checkpoint import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    write_offset_checkpoint,
)
from tiered_storage.remote_log.copy.tasks import CopyOutcome
from tiered_storage.remote_log.jobs.groups import JobFailure
from tiered_storage.remote_log.metadata.manifest_sync import manifests_of
from tiered_storage.remote_log.model import PartitionState, SegmentState
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage.remote_log.storage.documents.partition_manifest import PartitionManifest
from unit.tiered_storage.remote_log.copy.copy_outcomes import DELETING, FINISHED, STARTED, done, failed, start_offsets


@contextmanager
def changed(files: RemoteLogFiles, how: str) -> Iterator[None]:
    """Change the local log for the time of a block."""
    if how == "locked":
        with DirectoryLock.acquire(files.log_directory):
            yield
        return
    kept = shutil.copytree(files.log_directory, files.root / "kept")
    _change(files.log_directory, files.partition_directory(), how)
    yield
    shutil.rmtree(files.log_directory)
    kept.rename(files.log_directory)


def _change(log_directory: Path, partition: Path, how: str) -> None:
    if how == "unmounted":
        shutil.rmtree(log_directory)
        log_directory.mkdir()
    elif how == "gone":
        shutil.rmtree(partition)
    elif how == "leader changed":
        write_leader_epochs(partition / "leader-epoch-checkpoint", [EpochEntry(0, 0), EpochEntry(1, 15)])
    else:
        for base in (20, 30):
            LogSegment(base, partition).log_path.unlink()
        os.truncate(LogSegment(10, partition).log_path, BATCH_BYTES)
        write_offset_checkpoint(log_directory / HIGH_WATERMARK_CHECKPOINT, {("orders", 0): 15})


def test_a_whole_run_makes_everything_visible_and_gives_the_lease_back(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    with files.open() as remote_log:
        report = copy(remote_log)

        assert report.is_whole
        assert ranges(report.committed) == [(0, 9), (10, 19), (20, 29)]
        assert report.committed == tuple(segments_of(remote_log))
        assert {segment.state.name for segment in report.committed} == {FINISHED}
        held_by(remote_log, "anybody")
        assert remote_log.plan_copy().segments == ()
        assert offsets_read(remote_log, 0) == list(range(35))


def test_outcomes_are_committed_in_order_however_they_come(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    with files.open() as remote_log:
        report = remote_log.commit_copy(done(begin(remote_log).tasks)[::-1])

    assert start_offsets(report.committed) == [0, 10, 20]


def test_copies_after_a_failed_one_are_deleted_and_planned_again(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    with files.open() as remote_log:
        first, second, third = done(begin(remote_log).tasks)
        report = remote_log.commit_copy([first, failed(second), third])

        assert start_offsets(report.committed) == [0]
        [failure] = report.failures
        assert (failure.partition, failure.message.partition(": ")[0]) == ("orders-0", "RemoteStorageError")
        assert report.retriable
        assert not report.is_whole
        assert states_of(remote_log) == [(0, FINISHED), (10, DELETING), (20, DELETING)]
        assert [one.base_offset for one in remote_log.plan_copy().segments] == [10, 20]
        held_by(remote_log, "anybody")


def test_neighbours_commit_though_a_partition_fails(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("clicks", 0): 2, ("orders", 0): 2})
    flip_bit(files.local_segments("clicks")[0].log_path, BATCH_BYTES - 1)

    with files.open() as remote_log:
        report = copy(remote_log)

        assert ranges(report.committed) == [(0, 9), (10, 19)]
        assert {str(one.topic_id_partition) for one in report.committed} == {"orders-0"}
        [failure] = report.failures
        assert failure.partition == "clicks-0"
        assert "CRC-32C" in failure.message
        assert not report.retriable
        assert states_of(remote_log, partition_of("clicks")) == [(0, DELETING), (10, DELETING)]


def test_a_copy_whose_worker_died_is_a_failure_that_another_try_may_mend(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    with files.open() as remote_log:
        tasks = begin(remote_log).tasks
        report = remote_log.commit_copy([*done(tasks[:1]), CopyOutcome(tasks[1], None), *done(tasks[2:])])

    assert start_offsets(report.committed) == [0]
    assert "its worker died" in report.failures[0].message
    assert report.retriable


def test_a_run_is_retriable_only_where_every_failure_is(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("clicks", 0): 1, ("orders", 0): 1})

    with files.open() as remote_log:
        away, corrupt = done(begin(remote_log).tasks)
        report = remote_log.commit_copy(
            [failed(away), failed(corrupt, JobFailure("CorruptRecordError", "broken", retriable=False))]
        )

    assert len(report.failures) == 2
    assert not report.retriable


def test_segments_with_damaged_side_files_are_committed_but_fail_the_run(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    path = files.local_segments()[0].offset_index_path
    flip_bit(path, 7)
    files.local_segments()[1].time_index_path.unlink()

    with files.open() as remote_log:
        report = copy(remote_log)

    assert len(report.committed) == 3
    assert report.failures == ()
    [damage] = report.damages
    assert str(path) in damage.message
    [notice] = report.notices
    assert "timeindex is missing" in notice.message
    assert not report.is_whole


def test_a_second_commit_changes_nothing_and_has_the_same_result(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("clicks", 0): 2, ("orders", 0): 3})

    with files.open() as remote_log:
        outcomes = done(begin(remote_log).tasks)
        outcomes[3] = failed(outcomes[3])
        first = remote_log.commit_copy(outcomes)
        known = [segments_of(remote_log, one) for one in (ORDERS_0, partition_of("clicks"))]
        files.clock.now += 1000

        assert remote_log.commit_copy(outcomes) == first
        assert [segments_of(remote_log, one) for one in (ORDERS_0, partition_of("clicks"))] == known


def test_a_second_commit_is_no_failure_though_another_run_has_the_lease_by_then(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    with files.open() as remote_log:
        outcomes = done(begin(remote_log, max_segments=2).tasks)
        first = remote_log.commit_copy(outcomes)
        begin(remote_log, "another run")

        again = remote_log.commit_copy(outcomes)

        assert again == first
        assert again.is_whole
        assert states_of(remote_log) == [(0, FINISHED), (10, FINISHED), (20, STARTED)]


@pytest.mark.parametrize("meanwhile", ["locked", "unmounted", "gone", "leader changed", "truncated"])
def test_a_second_commit_changes_nothing_whatever_became_of_the_local_log(tmp_path: Path, meanwhile: str) -> None:
    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        outcomes = done(begin(remote_log).tasks)
        first = remote_log.commit_copy(outcomes)

        with changed(files, meanwhile):
            again = remote_log.commit_copy(outcomes)

        assert again == first
        assert states_of(remote_log) == [(0, FINISHED), (10, FINISHED), (20, FINISHED)]


def test_a_second_commit_leaves_what_has_expired_since_to_its_end(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        outcomes = done(begin(remote_log).tasks)
        remote_log.commit_copy(outcomes)
        lease = held_by(remote_log, "expire")
        remote_log.context.segments.update_remote_log_segment_metadata(
            a_step(outcomes[0].task.metadata, SegmentState.DELETE_SEGMENT_STARTED), lease
        )

        again = remote_log.commit_copy(outcomes)

        assert start_offsets(again.committed) == [10, 20]
        assert again.is_whole
        assert states_of(remote_log) == [(0, DELETING), (10, FINISHED), (20, FINISHED)]


def test_a_commit_that_stopped_in_its_middle_is_finished_by_the_next(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        outcomes = done(begin(remote_log).tasks)
        update = remote_log.context.segments.update_remote_log_segment_metadata
        assert outcomes[0].finished is not None
        update(outcomes[0].finished, outcomes[0].task.lease)

        report = remote_log.commit_copy(outcomes)

        assert start_offsets(report.committed) == [0, 10, 20]
        assert report.is_whole


def test_a_metadata_store_that_is_away_ends_the_commit_which_may_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        outcomes = done(begin(remote_log).tasks)
        kind = type(remote_log.context.segments)

        def away(self: object, steps: object) -> None:
            raise MetadataUnavailableError("locked")

        with monkeypatch.context() as patched:
            patched.setattr(kind, "update_remote_log_segments", away)
            with pytest.raises(MetadataUnavailableError):
                remote_log.commit_copy(outcomes)

        assert states_of(remote_log) == [(0, STARTED), (10, STARTED), (20, STARTED)]
        assert start_offsets(remote_log.commit_copy(outcomes).committed) == [0, 10, 20]


@pytest.mark.parametrize("meanwhile", ["locked", "unmounted", "gone"])
def test_while_the_local_log_cannot_be_looked_at_nothing_is_decided(tmp_path: Path, meanwhile: str) -> None:
    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        outcomes = done(begin(remote_log).tasks)

        with changed(files, meanwhile):
            report = remote_log.commit_copy(outcomes)
        assert report.committed == ()
        assert [finding.partition for finding in report.failures] == ["orders-0"]
        assert report.retriable
        assert states_of(remote_log) == [(0, STARTED), (10, STARTED), (20, STARTED)]

        assert start_offsets(remote_log.commit_copy(outcomes).committed) == [0, 10, 20]


def test_copies_of_a_leader_that_was_deposed_meanwhile_are_not_committed(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        outcomes = done(begin(remote_log).tasks)

        with changed(files, "leader changed"):
            report = remote_log.commit_copy(outcomes)

        assert start_offsets(report.committed) == [0]
        assert mentions(report.failures[0].message, "offsets 10 to 19", "leader epochs")
        assert report.retriable
        assert states_of(remote_log) == [(0, FINISHED), (10, DELETING), (20, DELETING)]


def test_copies_of_what_was_truncated_meanwhile_are_not_committed(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        outcomes = done(begin(remote_log).tasks)

        with changed(files, "truncated"):
            report = remote_log.commit_copy(outcomes)

        assert start_offsets(report.committed) == [0]
        assert mentions(report.failures[0].message, "offsets 10 to 19", "stable up to 15")
        assert states_of(remote_log) == [(0, FINISHED), (10, DELETING), (20, DELETING)]


def test_a_copy_is_committed_though_the_broker_deleted_its_source_meanwhile(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        outcomes = carry_out(remote_log, begin(remote_log))
        files.local_segments()[0].log_path.unlink()
        write_offset_checkpoint(files.log_directory / LOG_START_OFFSET_CHECKPOINT, {("orders", 0): 15})
        write_leader_epochs(files.partition_directory() / "leader-epoch-checkpoint", [EpochEntry(0, 15)])

        report = remote_log.commit_copy(outcomes)

        assert start_offsets(report.committed) == [0, 10, 20]
        assert report.is_whole
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == 0
        assert remote_log.deletions.plan_expiry(EVERYTHING, NOW) == ([], [])
        assert offsets_read(remote_log, 0) == list(range(35))


@pytest.mark.parametrize(("local_start", "global_log_start"), [(0, 0), (7, 7), (9, 9), (10, 0)])
def test_the_first_commit_says_where_our_log_begins_and_no_later_one(
    tmp_path: Path, local_start: int, global_log_start: int
) -> None:
    """Where the local log begins, but never after the start of a copied segment."""
    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        outcomes = done(begin(remote_log, max_segments=1).tasks)
        write_offset_checkpoint(files.log_directory / LOG_START_OFFSET_CHECKPOINT, {("orders", 0): local_start})
        assert start_offsets(remote_log.commit_copy(outcomes).committed) == [0]
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == global_log_start

        write_offset_checkpoint(files.log_directory / LOG_START_OFFSET_CHECKPOINT, {("orders", 0): 20})
        assert copy(remote_log).is_whole
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == global_log_start


def test_a_zombies_late_commit_is_refused_even_where_its_copies_are_long_deleted(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        zombie = carry_out(remote_log, begin(remote_log, "zombie"), "runs/zombie/1")
        files.clock.now += remote_log.context.settings.lease_duration_ms + 1
        heir = carry_out(remote_log, begin(remote_log, "heir"), "runs/heir/1")
        assert remote_log.commit_copy(heir).is_whole
        files.clock.now += remote_log.context.settings.remote_log_orphan_grace_ms + 1
        assert len(remote_log.deletions.delete_marked("expire").deleted) == 3

        report = remote_log.commit_copy(zombie)

        assert report.committed == ()
        assert "taken over" in report.failures[0].message
        assert states_of(remote_log) == [(0, FINISHED), (10, FINISHED), (20, FINISHED)]
        assert offsets_read(remote_log, 0) == list(range(35))


def test_a_zombies_late_commit_is_refused_where_nothing_was_ever_committed(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        zombie = carry_out(remote_log, begin(remote_log, "zombie"))
        for _ in range(2):
            files.clock.now += remote_log.context.settings.remote_log_orphan_grace_ms + 1
            deleted = remote_log.deletions.delete_marked("expire").deleted
        assert len(deleted) == 3

        report = remote_log.commit_copy(zombie)

        assert report.committed == ()
        assert "taken over by expire" in report.failures[0].message
        assert remote_log.context.segments.log_start_offset(ORDERS_0) is None


def test_a_commit_by_metadata_older_than_the_store_writes_nothing(tmp_path: Path) -> None:
    with a_remote_log(tmp_path).open() as remote_log:
        outcomes = carry_out(remote_log, begin(remote_log))
        manifests = manifests_of(remote_log.context.storage)
        assert manifests is not None
        manifests.write(PartitionManifest(ORDERS_0, 9, PartitionState(20), 7))

        report = remote_log.commit_copy(outcomes)

        assert (report.committed, report.retriable) == ((), False)
        assert mentions(report.failures[0].message, "orders-0", "lease 9")
        assert remote_log.context.segments.log_start_offset(ORDERS_0) is None


def test_a_commit_that_the_life_cycle_refuses_gives_its_lease_back(tmp_path: Path) -> None:
    with a_remote_log(tmp_path).open() as remote_log:
        begun = begin(remote_log)
        outcomes = carry_out(remote_log, begun)
        marking = a_step(begun.tasks[0].metadata, SegmentState.DELETE_SEGMENT_STARTED)
        remote_log.context.segments.update_remote_log_segment_metadata(marking, begun.tasks[0].lease)

        report = remote_log.commit_copy(outcomes)

        assert not report.retriable
        assert "cannot become COPY_SEGMENT_FINISHED" in report.failures[0].message
        assert held_by(remote_log, "the next run").fencing_number == 2


def test_an_expired_lease_that_was_not_taken_over_is_still_valid(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        outcomes = done(begin(remote_log).tasks)
        files.clock.now += 10 * remote_log.context.settings.lease_duration_ms

        assert remote_log.commit_copy(outcomes).is_whole


def test_a_copied_partition_continues_where_it_ended(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    files.append(3)

    with files.open() as remote_log:
        report = copy(remote_log)

        assert ranges(report.committed) == [(30, 39)]
        assert offsets_read(remote_log, 0) == list(range(50))


def test_nothing_to_commit_is_a_whole_run(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    with files.open() as remote_log:
        assert remote_log.commit_copy([]).is_whole
