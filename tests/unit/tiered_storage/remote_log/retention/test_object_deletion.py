from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.clocks import stamped
from support.command_line import mentions
from support.remote_logs import (
    ENABLED,
    ORDERS_0,
    RemoteLogFiles,
    a_copied_remote_log,
    held_by,
    partition_of,
    segments_of,
    states_of,
    with_context,
)
from tiered_storage.errors import DeletionRefusedError, RemoteStorageError, TieredStorageError
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import LeaseHeldFinding, RemoteLogSegmentMetadata
from tiered_storage.remote_log.retention.object_deletion import DeletionReport
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager

DELETING = "DELETE_SEGMENT_STARTED"


def a_marked_remote_log(tmp_path: Path, segments: int = 5, batch: int = 2, partitions: int = 1) -> RemoteLogFiles:
    """Lay one out where every remote segment is marked for deletion."""
    all_partitions = {("orders", number): segments for number in range(partitions)}
    topics = {"orders": {**ENABLED, "retention.bytes": 1}}
    files = a_copied_remote_log(tmp_path, all_partitions, topics=topics, deletion_batch_segments=batch)
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, remote_log.context.clock())
        remote_log.deletions.mark_expired(plans, "expire")
    return files


class WatchedStore(ObjectRemoteStorageManager):
    """A store that says what it is to delete before it does, and fails for some offsets."""

    def __init__(self, root: Path, before: Callable[[Sequence[int]], None], stuck: Collection[int] = ()) -> None:
        super().__init__(LocalDirectory(root))
        self.before = before
        self.stuck = set(stuck)

    def delete_segments(self, segments: Sequence[RemoteLogSegmentMetadata]) -> Mapping[str, TieredStorageError]:
        self.before([segment.start_offset for segment in segments])
        stuck = [segment for segment in segments if segment.start_offset in self.stuck]
        failed = {segment.segment_id.id: RemoteStorageError("the store is away") for segment in stuck}
        return {**failed, **super().delete_segments([one for one in segments if one not in stuck])}


def delete_with(
    remote_log: RemoteLogManager, files: RemoteLogFiles, *args: Any, owner: str = "delete"
) -> DeletionReport:
    return stamped(with_context(remote_log, storage=WatchedStore(files.store, *args))).deletions.delete_marked(owner)


def test_marked_segments_are_deleted_in_batches(tmp_path: Path) -> None:
    files = a_marked_remote_log(tmp_path)
    asked: list[Sequence[int]] = []

    with files.open() as remote_log:
        report = delete_with(remote_log, files, asked.append)
        assert states_of(remote_log) == []

    assert asked == [[0, 10], [20, 30], [40]]
    assert [segment.start_offset for segment in report.deleted] == [0, 10, 20, 30, 40]
    assert files.objects() == []


def test_a_stop_holds_from_the_next_batch_on_and_the_report_keeps_what_was_done(tmp_path: Path) -> None:
    files = a_marked_remote_log(tmp_path, partitions=2)

    with files.open() as remote_log:
        report = delete_with(remote_log, files, lambda _: remote_log.context.safety.stop("enough", "ada"))

        assert [segment.start_offset for segment in report.deleted] == [0, 10]
        assert report.stopped is not None
        assert "ada stopped all deletions" in report.stopped
        assert report.failures == ()
        remote_log.context.leases.release(held_by(remote_log, "another"))
        with pytest.raises(DeletionRefusedError, match="enough"):
            remote_log.deletions.delete_marked("delete")

        remote_log.context.safety.lift("ada")
        assert len(remote_log.deletions.delete_marked("delete").deleted) == 8


def test_a_right_that_is_taken_away_holds_from_the_next_batch_on(tmp_path: Path) -> None:
    files = a_marked_remote_log(tmp_path)

    with files.open() as remote_log:
        topic = replace(remote_log.context.decided_topic(ORDERS_0), remote_deletion_allowed=False)
        report = delete_with(remote_log, files, lambda _: remote_log.context.topics.put(topic))

        assert len(report.deleted) == 2
        assert "topics allow-deletion" in report.failures[0].message
        assert report.stopped is None
        remote_log.context.leases.release(held_by(remote_log, "another"))


def test_a_lease_that_was_taken_over_holds_from_the_next_batch_on(tmp_path: Path) -> None:
    files = a_marked_remote_log(tmp_path)

    with files.open() as remote_log:
        report = delete_with(remote_log, files, lambda _: held_by(remote_log, "delete"))

        assert report.deleted == ()
        assert [finding.partition for finding in report.left] == ["orders-0"]
        assert states_of(remote_log) == [(start, DELETING) for start in (0, 10, 20, 30, 40)]


def test_a_long_deletion_keeps_its_lease(tmp_path: Path) -> None:
    files = a_marked_remote_log(tmp_path, segments=9)

    def time_passes(_: Sequence[int]) -> None:
        files.clock.now += 400_000

    with files.open() as remote_log:
        assert remote_log.context.settings.lease_duration_ms == 600_000
        assert len(delete_with(remote_log, files, time_passes).deleted) == 9


def test_failed_deletions_are_listed_with_their_attempts_until_they_succeed(tmp_path: Path) -> None:
    files = a_marked_remote_log(tmp_path)

    with files.open() as remote_log:
        first = files.clock.now
        report = delete_with(remote_log, files, lambda _: None, [0, 30])
        assert [segment.start_offset for segment in report.deleted] == [10, 20, 40]
        assert ["the store is away" in failure.message for failure in report.failures] == [True, True]
        files.clock.now += 1_000
        delete_with(remote_log, files, lambda _: None, [30])

        [failure] = remote_log.context.safety.failures()
        assert (failure.attempts, failure.first_failed_at, failure.last_failed_at) == (2, first, first + 1_000)
        assert failure.error == "the store is away"
        assert states_of(remote_log) == [(30, DELETING)]

        assert len(remote_log.deletions.delete_marked("delete").deleted) == 1
        assert list(remote_log.context.safety.failures()) == []


def test_one_partition_that_fails_holds_up_no_other(tmp_path: Path) -> None:
    files = a_marked_remote_log(tmp_path, partitions=2)
    (tmp_path / "moved").mkdir()

    with files.open() as remote_log:
        held_by(remote_log, "somebody")
        report = remote_log.deletions.delete_marked("delete")

        assert [finding.partition for finding in report.left] == ["orders-0"]
        assert len(report.deleted) == 5
        assert states_of(remote_log, partition_of("orders", 1)) == []


# -------------------------------------------------------------------------------------- partitions that share a batch


def starts_by_partition(report: DeletionReport) -> list[tuple[str, int]]:
    return [(str(segment.topic_id_partition), segment.start_offset) for segment in report.deleted]


def test_partitions_with_few_deletions_share_a_batch(tmp_path: Path) -> None:
    files = a_marked_remote_log(tmp_path, segments=2, batch=4, partitions=5)
    asked: list[Sequence[int]] = []

    with files.open() as remote_log:
        report = delete_with(remote_log, files, asked.append)

    assert asked == [[0, 10, 0, 10], [0, 10, 0, 10], [0, 10]]
    assert starts_by_partition(report) == [(f"orders-{number}", start) for number in range(5) for start in (0, 10)]
    assert files.objects() == []


def test_a_stop_holds_before_the_next_group(tmp_path: Path) -> None:
    files = a_marked_remote_log(tmp_path, segments=1, batch=2, partitions=4)

    with files.open() as remote_log:
        report = delete_with(remote_log, files, lambda _: remote_log.context.safety.stop("enough", "ada"))

        assert starts_by_partition(report) == [("orders-0", 0), ("orders-1", 0)]
        assert "ada stopped all deletions" in str(report.stopped)
        for number in range(4):
            held_by(remote_log, "another", partition_of("orders", number))


def test_a_failure_of_one_partition_stops_no_other_of_its_group(tmp_path: Path) -> None:
    """One is held by somebody else, one cannot be deleted."""
    files = a_marked_remote_log(tmp_path, segments=1, batch=10, partitions=4)

    with files.open() as remote_log:
        held_by(remote_log, "a copy", partition_of("orders", 0))

        class Stuck(ObjectRemoteStorageManager):
            def delete_segments(self, segments: Sequence[RemoteLogSegmentMetadata]) -> Mapping[str, TieredStorageError]:
                stuck = [one for one in segments if one.topic_id_partition.partition == 1]
                failed = {one.segment_id.id: RemoteStorageError("the store is away") for one in stuck}
                return {**failed, **super().delete_segments([one for one in segments if one not in stuck])}

        storage = Stuck(LocalDirectory(files.store))
        report = stamped(with_context(remote_log, storage=storage)).deletions.delete_marked("delete")

        assert starts_by_partition(report) == [("orders-2", 0), ("orders-3", 0)]
        assert [(each.partition, isinstance(each, LeaseHeldFinding)) for each in report.left] == [("orders-0", True)]
        assert [(each.partition, each.message.rpartition(" ")[2]) for each in report.failures] == [("orders-1", "away")]
        assert [str(one.segment_id.topic_id_partition) for one in remote_log.context.safety.failures()] == ["orders-1"]


def test_a_store_that_is_away_in_the_midst_of_a_group_leaves_a_report_of_what_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = a_marked_remote_log(tmp_path, segments=1, batch=2, partitions=4)

    def away(*_: object) -> None:
        raise RemoteStorageError("the store is away")

    with files.open() as remote_log:
        report = delete_with(
            remote_log,
            files,
            lambda _: monkeypatch.setattr(ObjectRemoteStorageManager, "ensure_identity", away),
        )

        assert starts_by_partition(report) == [("orders-0", 0), ("orders-1", 0)]
        assert [each.partition for each in report.failures] == ["orders-2", "orders-3"]
        assert {each.message for each in report.failures} == {"the store is away"}
        monkeypatch.undo()
        for number in range(4):
            held_by(remote_log, "another", partition_of("orders", number))


def test_a_lease_of_a_group_that_was_taken_over_is_left_to_its_new_holder(tmp_path: Path) -> None:
    files = a_marked_remote_log(tmp_path, segments=2, batch=10, partitions=2)

    with files.open() as remote_log:
        report = delete_with(
            remote_log, files, lambda _: held_by(remote_log, "delete", partition_of("orders", 1)), owner="delete"
        )

        assert starts_by_partition(report) == [("orders-0", 0), ("orders-0", 10)]
        assert [(each.partition, "was taken over" in each.message) for each in report.left] == [("orders-1", True)]
        assert states_of(remote_log, partition_of("orders", 1)) == [(0, DELETING), (10, DELETING)]


def test_a_right_that_was_taken_away_of_one_topic_of_a_group_keeps_its_segments(tmp_path: Path) -> None:
    partitions = {("clicks", 0): 1, ("orders", 0): 1}
    topics = {topic: {**ENABLED, "retention.bytes": 1} for topic in ("clicks", "orders")}
    files = a_copied_remote_log(tmp_path, partitions, topics=topics)
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, remote_log.context.clock())
        assert len(remote_log.deletions.mark_expired(plans, "expire")[0]) == 2
        topic = replace(remote_log.context.decided_topic(ORDERS_0), remote_deletion_allowed=False)
        remote_log.context.topics.put(topic)

        report = remote_log.deletions.delete_marked("delete")
        assert starts_by_partition(report) == [("clicks-0", 0)]
        [failure] = report.failures
        assert (failure.partition, report.left) == ("orders-0", ())
        assert mentions(failure.message, "1 segments", "topics allow-deletion")
        assert "topics allow-deletion orders" in failure.message
        assert states_of(remote_log) == [(0, DELETING)]


def test_a_run_whose_lease_an_undelete_took_deletes_nothing_that_came_back(tmp_path: Path) -> None:
    files = a_marked_remote_log(tmp_path, batch=1)
    undeleted: list[int] = []

    def undelete_once(_size: int, _count: int = 1, /) -> None:
        if undeleted:
            return
        files.properties["remote.log.deletion.grace.ms"] = 3_600_000
        with files.open() as another:
            files.clock.now += another.context.settings.lease_duration_ms + 1
            brought_back, _ = another.deletions.undelete("orders", "ada")
            undeleted.extend(len(each.segments) for each in brought_back)

    with files.open() as remote_log:
        report = remote_log.deletions.delete_marked("delete", on_moved=undelete_once)

    assert undeleted == [4]
    assert len(report.deleted) == 1
    assert "orders-0" in str(report.left)
    with files.open() as remote_log:
        assert states_of(remote_log) == [(start, "COPY_SEGMENT_FINISHED") for start in (10, 20, 30, 40)]
        for segment in segments_of(remote_log):
            assert isinstance(remote_log.context.storage, ObjectRemoteStorageManager)
            remote_log.context.storage.verify(segment)
