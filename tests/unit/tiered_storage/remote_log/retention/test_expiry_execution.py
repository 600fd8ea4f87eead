"""How expired segments are marked and deleted: log start first, once, by whoever has the lease and the right."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.clocks import stamped
from support.command_line import mentions
from support.metadata_files import database_of, remove_metadata
from support.remote_logs import (
    ENABLED,
    NOW,
    ORDERS_0,
    SEGMENT_BYTES,
    a_copied_remote_log,
    a_remote_log,
    begin,
    carry_out,
    copy,
    end_below,
    held_by,
    offsets_read,
    partition_of,
    states_of,
    with_context,
)
from tiered_storage.errors import (
    DeletionRefusedError,
    OffsetOutOfRangeError,
    OutdatedMetadataError,
    RemoteStorageError,
    StoreMismatchError,
)
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, SegmentState
from tiered_storage.remote_log.retention.object_deletion import DeletionReport
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager
from unit.tiered_storage.remote_log.retention.expiries import TOTAL, expire, going, keeping

_, FINISHED, DELETING, _ = (state.name for state in SegmentState)


class FailingStore(ObjectRemoteStorageManager):
    """A store that deletes nothing of the segments that begin at these offsets."""

    def __init__(self, root: Path, offsets: Sequence[int]) -> None:
        super().__init__(LocalDirectory(root))
        self.offsets = offsets

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        if metadata.start_offset in self.offsets:
            raise RemoteStorageError("the store is away")
        super().delete_log_segment_data(metadata)


# ----------------------------------------------------------------------------------------------- marking and deleting


def test_expired_segments_are_deleted_from_metadata_and_store(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(TOTAL - 2 * SEGMENT_BYTES))

    with files.open() as remote_log:
        report = expire(remote_log)

        assert [segment.start_offset for segment in report.deleted] == [0, 10]
        assert {segment.state for segment in report.deleted} == {SegmentState.DELETE_SEGMENT_FINISHED}
        assert report.failures == report.left == ()
        assert states_of(remote_log) == [(20, FINISHED)]
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == 20
        assert len(files.objects()) == 3
        assert offsets_read(remote_log, 20) == list(range(20, 35))
        with pytest.raises(OffsetOutOfRangeError, match=r"offset 19\b.*offsets 20 to 34\b"):
            offsets_read(remote_log, 19)
        held_by(remote_log, "anybody")
        assert expire(remote_log).deleted == ()


def test_the_global_log_start_moves_before_anything_is_marked_and_that_before_anything_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(TOTAL - SEGMENT_BYTES))
    with files.open() as remote_log:
        kind = type(remote_log.context.segments)
        update = kind.update_remote_log_segments
        seen: list[tuple[str, int | None, int]] = []

        def watched(self: Any, steps: Any) -> Any:
            for step, _ in steps:
                seen.append((step.state.name, self.log_start_offset(ORDERS_0), len(files.objects(".log"))))
            return update(self, steps)

        monkeypatch.setattr(kind, "update_remote_log_segments", watched)
        expire(remote_log)

    assert seen == [(DELETING, 10, 3), ("DELETE_SEGMENT_FINISHED", 10, 2)]


def test_a_crash_after_the_global_log_start_moved_is_made_good_by_the_next_run(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        end_below(remote_log, 20)
        assert states_of(remote_log) == [(0, FINISHED), (10, FINISHED), (20, FINISHED)]

        assert [segment.start_offset for segment in expire(remote_log).deleted] == [0, 10]


def test_retain_removes_local_segments_below_the_global_log_start(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(TOTAL - 2 * SEGMENT_BYTES))
    with files.open() as remote_log:
        expire(remote_log)
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
        assert remote_log.deletions.enforce_local_retention(plans).failures == ()

    assert files.local_starts() == [20, 30]


def test_a_deletion_that_fails_stays_marked_and_is_tried_again(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(TOTAL - 2 * SEGMENT_BYTES))
    with files.open() as opened:
        report = expire(stamped(with_context(opened, storage=FailingStore(files.store, [0]))))

        assert [segment.start_offset for segment in report.deleted] == [10]
        [failure] = report.failures
        assert failure.partition == "orders-0"
        assert "the store is away" in failure.message
        assert states_of(opened) == [(0, DELETING), (20, FINISHED)]

        assert [segment.start_offset for segment in expire(opened, owner="next run").deleted] == [0]
        assert states_of(opened) == [(20, FINISHED)]


def test_a_partition_that_somebody_holds_is_left_and_reported(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, {("clicks", 0): 1, ("orders", 0): 1})
    files.properties["topics"] = {topic: {**ENABLED, "retention.bytes": 1} for topic in ("clicks", "orders")}
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, NOW)
        lease = held_by(remote_log, "a copy run")
        done, left = remote_log.deletions.mark_expired(plans, "expire")

        assert [str(partition) for partition in done] == ["clicks-0"]
        assert [finding.partition for finding in left] == ["orders-0"]
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == 0
        assert states_of(remote_log) == [(0, FINISHED)]

        remote_log.context.leases.release(lease)
        remote_log.deletions.mark_expired(plans, "expire")
        held_by(remote_log, "a copy run")
        report = remote_log.deletions.delete_marked("expire")
        assert [str(segment.topic_id_partition) for segment in report.deleted] == ["clicks-0"]
        assert [finding.partition for finding in report.left] == ["orders-0"]


def test_two_runs_at_once_do_the_work_once(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(TOTAL - 2 * SEGMENT_BYTES))
    with files.open() as remote_log:
        both = [remote_log.deletions.plan_expiry(EVERYTHING, NOW)[0] for _ in range(2)]
        remote_log.deletions.mark_expired(both[0], "first run")
        first = remote_log.deletions.delete_marked("first run")

        done, left = remote_log.deletions.mark_expired(both[1], "second run")
        second = remote_log.deletions.delete_marked("second run")

        assert len(first.deleted) == 2
        assert (done, left) == ((ORDERS_0,), ())
        assert second == DeletionReport((), (), ())
        held_by(remote_log, "anybody")


def test_a_lease_that_is_lost_in_the_middle_stops_this_attempt_and_no_other_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = a_copied_remote_log(tmp_path, {("clicks", 0): 1, ("orders", 0): 1})
    files.properties["topics"] = {topic: {**ENABLED, "retention.bytes": 1} for topic in ("clicks", "orders")}
    with files.open() as remote_log:
        plans = sorted(
            remote_log.deletions.plan_expiry(EVERYTHING, NOW)[0], key=lambda plan: str(plan.topic_id_partition)
        )
        kind = type(remote_log.context.segments)
        advance = kind.advance_log_start_offsets

        def overtaken(self: Any, moves: Sequence[Any], moved_at: int) -> Any:
            remote_log.context.leases.acquire(partition_of("clicks"), "expire", 1000)
            return advance(self, moves, moved_at)

        monkeypatch.setattr(kind, "advance_log_start_offsets", overtaken)
        done, left = remote_log.deletions.mark_expired(plans, "expire")

        assert [str(partition) for partition in done] == ["orders-0"]
        assert [finding.partition for finding in left] == ["clicks-0"]
        assert states_of(remote_log, partition_of("clicks")) == [(0, FINISHED)]


def test_under_a_limit_the_partitions_take_turns(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, {("orders", 0): 3, ("orders", 1): 1, ("orders", 2): 3}, topics=keeping(1))
    with files.open() as remote_log:
        plans, left = remote_log.deletions.plan_expiry(EVERYTHING, NOW, 5)
        scarce, _ = remote_log.deletions.plan_expiry(EVERYTHING, NOW, 1)

    assert left == []
    assert [plan.count for plan in plans] == [2, 1, 2]
    assert [plan.new_log_start for plan in plans] == [20, 10, 20]
    assert [(plan.topic_id_partition.partition, plan.count) for plan in scarce] == [(0, 1)]


def test_deletion_that_was_forbidden_since_the_plan_marks_nothing(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(1))
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, NOW)
        remote_log.context.topics.put(
            Topic(ORDERS_0.cluster_id, ORDERS_0.topic_id, "orders", remote_storage_enable=True)
        )

        done, [left] = remote_log.deletions.mark_expired(plans, "expire")
        assert done == ()
        assert mentions(left.message, "orders-0", "topics allow-deletion")
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == 0


def test_nothing_is_marked_or_deleted_while_deletions_are_stopped(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(1))
    objects = len(files.objects())
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, NOW)
        remote_log.context.safety.stop("a wrong mount", "ada")
        with pytest.raises(DeletionRefusedError, match=r"ada .*20.*\(a wrong mount\)"):
            remote_log.deletions.mark_expired(plans, "expire")
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == 0

        remote_log.context.safety.lift("ada")
        assert remote_log.deletions.mark_expired(plans, "expire")[0] == (ORDERS_0,)
        remote_log.context.safety.stop("", "ada")
        with pytest.raises(DeletionRefusedError, match="no reason given"):
            remote_log.deletions.delete_marked("expire")

    assert len(files.objects()) == objects


def test_deletion_that_was_forbidden_since_the_mark_deletes_nothing(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(1))
    with files.open() as remote_log:
        remote_log.deletions.mark_expired(remote_log.deletions.plan_expiry(EVERYTHING, NOW)[0], "expire")
        forbidden = Topic(ORDERS_0.cluster_id, ORDERS_0.topic_id, "orders", remote_storage_enable=True)
        remote_log.context.topics.put(forbidden)

        assert remote_log.deletions.delete_marked("expire").deleted == ()
        assert len(files.objects()) == 9

        remote_log.context.topics.put(replace(forbidden, remote_deletion_allowed=True))
        assert len(remote_log.deletions.delete_marked("expire").deleted) == 3
        assert files.objects() == []


def test_nothing_is_deleted_where_store_and_metadata_do_not_belong_together(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(1))
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, NOW)
        remote_log.deletions.mark_expired(plans, "expire")
    identity = files.store / "store.json"
    identity.write_text(json.dumps({**json.loads(identity.read_text()), "metadata_uuid": "another"}))
    before = files.objects()

    with files.open() as remote_log:
        with pytest.raises(StoreMismatchError):
            remote_log.deletions.mark_expired(plans, "expire")
        with pytest.raises(StoreMismatchError):
            remote_log.deletions.delete_marked("expire")

    identity.unlink()
    with files.open() as remote_log, pytest.raises(StoreMismatchError):
        remote_log.deletions.delete_marked("expire")
    assert files.objects() == before


def test_nothing_is_deleted_any_more_once_the_disk_of_the_store_is_unmounted(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(1))
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, NOW)
        remote_log.deletions.mark_expired(plans, "expire")
        files.store.rename(tmp_path / "elsewhere")
        with pytest.raises(OutdatedMetadataError, match="store is older"):
            remote_log.deletions.delete_marked("expire")


# -------------------------------------------------------------------------------------------------- unfinished copies


def test_objects_of_a_dead_copy_are_deleted_after_a_grace_time(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, topics={"orders": {"remote.storage.enable": True}})
    with files.open() as remote_log:
        carry_out(remote_log, begin(remote_log, "dead run"))
        assert len(files.objects()) == 9
        files.clock.now += remote_log.context.settings.lease_duration_ms + 1

        assert remote_log.deletions.delete_marked("expire").deleted == ()
        assert states_of(remote_log) == [(0, DELETING), (10, DELETING), (20, DELETING)]
        files.clock.now += remote_log.context.settings.remote_log_orphan_grace_ms - 1
        assert remote_log.deletions.delete_marked("expire").deleted == ()
        files.clock.now += 1
        report = remote_log.deletions.delete_marked("expire")

        assert len(report.deleted) == 3, "which nobody ever saw: no right to delete is asked for"
        assert files.objects() == []
        assert states_of(remote_log) == []


def test_copies_under_way_are_left_alone_and_that_is_no_trouble(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        outcomes = carry_out(remote_log, begin(remote_log))

        assert remote_log.deletions.delete_marked("expire") == DeletionReport((), (), ())
        assert remote_log.commit_copy(outcomes).is_whole


def test_marked_copies_of_a_partition_that_is_held_are_reported_as_left(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        begin(remote_log, "run")
        begin(remote_log, "run")

        assert [finding.partition for finding in remote_log.deletions.delete_marked("expire").left] == ["orders-0"]


def test_a_partition_with_nothing_to_delete_is_not_even_leased(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        lease = held_by(remote_log, "somebody")
        assert remote_log.deletions.delete_marked("expire") == DeletionReport((), (), ())
        remote_log.context.leases.check(lease)


def test_copying_continues_after_what_expired(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(SEGMENT_BYTES))
    with files.open() as remote_log:
        expire(remote_log)
        assert states_of(remote_log) == [(20, FINISHED)]
        assert remote_log.plan_copy().segments == ()
    files.append(3)

    with files.open() as remote_log:
        assert [segment.start_offset for segment in copy(remote_log).committed] == [30]
        assert offsets_read(remote_log, 20) == list(range(20, 50))


def test_an_old_plan_takes_nothing_that_settings_would_keep_by_now(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(TOTAL - 2 * SEGMENT_BYTES))
    with files.open() as remote_log:
        [plan], _ = remote_log.deletions.plan_expiry(EVERYTHING, NOW)
    assert len(plan.segments) == 2

    files.properties["topics"] = keeping(TOTAL - SEGMENT_BYTES)
    with files.open() as remote_log:
        remote_log.deletions.mark_expired([plan], "expire")
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == 10

    files.properties["topics"] = keeping(-1)
    with files.open() as remote_log:
        remote_log.deletions.mark_expired([plan], "expire")
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == 10


# ----------------------------------------------------------------------------------------- metadata of another day


def test_nothing_expires_under_metadata_that_are_older_than_the_store(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(TOTAL - SEGMENT_BYTES))
    database = database_of(files)
    last_week = database.read_bytes()
    files.append(4)
    with files.open() as remote_log:
        assert len(copy(remote_log).committed) == 2

    remove_metadata(files)
    database.write_bytes(last_week)
    with files.open(outdated=True) as remote_log:
        plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, NOW)
        with pytest.raises(OutdatedMetadataError):
            remote_log.deletions.mark_expired(plans, "expire")
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == 0


def test_a_plan_made_by_a_fast_clock_expires_only_what_our_clock_says_is_due(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": {**ENABLED, "retention.ms": 365 * 86_400_000}})
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, NOW * 2)
        assert going(plans[0]) == [0, 10, 20]

        assert remote_log.deletions.mark_expired(plans, "expire") == ((), ())
        assert states_of(remote_log) == [(start, FINISHED) for start in (0, 10, 20)]
