from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from support.clocks import stamped
from support.command_line import mentions
from support.metadata_stores import a_segment, a_step
from support.plain_reader import PlainReader
from support.remote_logs import (
    BATCH_BYTES,
    ENABLED,
    NOW,
    ORDERS_0,
    SEGMENT_BYTES,
    RemoteLogFiles,
    a_copied_remote_log,
    a_remote_log,
    begin,
    carry_out,
    copy,
    end_below,
    flip_bit,
    held_by,
    local_log,
    location_of,
    offsets_read,
    partition_of,
    record,
    segments_of,
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
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry, write_leader_epochs
from tiered_storage.kafka_log.files.log_segment import LogSegment
from tiered_storage.kafka_log.files.offset_checkpoint import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    write_offset_checkpoint,
)
from tiered_storage.remote_log.coverage import Coverage
from tiered_storage.remote_log.jobs import throttle
from tiered_storage.remote_log.jobs.throttle import Quota, RateLimit, ReportingLimit
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import RemoteLogMetadataManager, Topic
from tiered_storage.remote_log.model import (
    Lease,
    PartitionState,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    SegmentState,
)
from tiered_storage.remote_log.retention.expiry import ExpiryPlan, Reason, plan_expiry
from tiered_storage.remote_log.retention.object_deletion import DeletionReport
from tiered_storage.remote_log.selection import EVERYTHING, Selection
from tiered_storage.remote_log.source.partition_log import LocalSegment, PartitionLog
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager
from tiered_storage.settings.topics import TopicSettings

STARTED, FINISHED, DELETING, _ = (state.name for state in SegmentState)
TOTAL = 3 * SEGMENT_BYTES + BATCH_BYTES
"""The bytes of three remote segments and of the local batch that is not remote yet."""


def plan_with(
    remote_log: RemoteLogManager, now: int = NOW, *, with_local: bool = True, most: int | None = None, **limits: int
) -> ExpiryPlan | None:
    """Plan with `limits` (retention_ms, retention_bytes), where the other is unlimited."""
    given = {name.replace("_", "."): value for name, value in {"retention_ms": -1, **limits}.items()}
    settings = TopicSettings.parse("orders", given).over(TopicSettings.parse("defaults", {}), "orders")
    local = local_log(remote_log) if with_local else None
    return plan_expiry(ORDERS_0, remote_log.context.segments, settings, now, local, max_segments=most)


def going(plan: ExpiryPlan | None) -> list[int]:
    return [] if plan is None else [segment.start_offset for segment in plan.segments]


def expire(remote_log: RemoteLogManager, now: int = NOW, owner: str = "expire") -> DeletionReport:
    """Plan, mark and delete everything."""
    remote_log.deletions.mark_expired(remote_log.deletions.plan_expiry(EVERYTHING, now)[0], owner)
    return remote_log.deletions.delete_marked(owner)


def keeping(size: int) -> dict[str, Any]:
    """Return the settings of a topic that keeps so many bytes in both tiers."""
    return {"orders": {**ENABLED, "retention.bytes": size}}


def advance(remote_log: RemoteLogManager, offset: int) -> None:
    end_below(remote_log, offset)


class FailingStore(ObjectRemoteStorageManager):
    """A store that deletes nothing of the segments that begin at these offsets."""

    def __init__(self, root: Path, offsets: Sequence[int]) -> None:
        super().__init__(LocalDirectory(root))
        self.offsets = offsets

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        if metadata.start_offset in self.offsets:
            raise RemoteStorageError("the store is away")
        super().delete_log_segment_data(metadata)


# ---------------------------------------------------------------------------------------------------------- planning


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
        advance(remote_log, 15)
        plan = plan_with(remote_log)

        assert plan is not None
        assert going(plan) == [0]
        assert plan.new_log_start == 15, "it never falls"


def test_there_is_no_plan_if_nothing_is_past_its_retention(tmp_path: Path) -> None:
    with a_copied_remote_log(tmp_path).open() as remote_log:
        assert plan_with(remote_log) is None
        advance(remote_log, 5)
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
        assert states_of(remote_log, partition_of("clicks")) == [(0, DELETING)]


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
        advance(remote_log, 20)
        assert states_of(remote_log) == [(0, FINISHED), (10, FINISHED), (20, FINISHED)]

        assert [segment.start_offset for segment in expire(remote_log).deleted] == [0, 10]


def test_local_segments_below_the_global_log_start_are_read_no_more_and_go(tmp_path: Path) -> None:
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


def test_objects_of_a_dead_copy_are_deleted_after_a_grace_time(
    tmp_path: Path,
) -> None:
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


# ------------------------------------------------------------------------------------------- what was never copied


def the_store_is_away(root: Path, **limits: Any) -> RemoteLogFiles:
    """Lay out three segments that were never copied, of a topic with these limits."""
    topic = {**ENABLED, **{name.replace("_", "."): value for name, value in limits.items()}}
    return a_remote_log(root, topics={"orders": topic})


@pytest.mark.parametrize(
    ("limits", "now", "log_start"),
    [
        ({"retention_ms": 60_000}, record(9).timestamp + 60_000, None),
        ({"retention_ms": 60_000}, record(9).timestamp + 60_001, 10),
        ({"retention_ms": 60_000}, record(29).timestamp + 10**9, 30),
        ({"retention_bytes": TOTAL}, NOW, None),
        ({"retention_bytes": TOTAL - SEGMENT_BYTES + 1}, NOW, None),
        ({"retention_bytes": TOTAL - SEGMENT_BYTES}, NOW, 10),
        ({"retention_bytes": 1}, NOW, 30),
        ({"retention_bytes": TOTAL - SEGMENT_BYTES, "retention_ms": 60_000}, record(19).timestamp + 60_001, 20),
        ({}, NOW * 2, None),
    ],
)
def test_total_retention_ends_also_what_was_never_copied_but_never_the_active_segment(
    tmp_path: Path, limits: dict[str, int], now: int, log_start: int | None
) -> None:
    files = the_store_is_away(tmp_path, **limits)
    with files.open() as remote_log:
        plans, left = remote_log.deletions.plan_expiry(EVERYTHING, now)
        assert left == []
        assert [plan.new_log_start for plan in plans] == ([] if log_start is None else [log_start])
        never_copied = [segment for segment in files.local_segments() if segment.base_offset < (log_start or 0)]
        assert [(plan.never_copied_segments, plan.never_copied_bytes) for plan in plans] == (
            []
            if log_start is None
            else [(len(never_copied), sum(segment.log_path.stat().st_size for segment in never_copied))]
        )

        remote_log.deletions.mark_expired(plans, "expire")
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == log_start
        assert [planned.base_offset for planned in remote_log.plan_copy().segments] == [
            base for base in (0, 10, 20) if base >= (log_start or 0)
        ]


def test_only_local_segments_past_total_retention_are_trimmed_before_their_copy(tmp_path: Path) -> None:
    files = the_store_is_away(tmp_path, retention_bytes=TOTAL - 2 * SEGMENT_BYTES)
    with files.open() as remote_log:
        expire(remote_log)
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
        assert remote_log.deletions.enforce_local_retention(plans).failures == ()

        assert files.local_starts() == [20, 30]
        assert offsets_read(remote_log, 20) == list(range(20, 35))
        assert [segment.start_offset for segment in copy(remote_log).committed] == [20]


def test_records_above_the_stable_offset_never_expire(tmp_path: Path) -> None:
    files = the_store_is_away(tmp_path, retention_bytes=1)
    write_offset_checkpoint(files.log_directory / HIGH_WATERMARK_CHECKPOINT, {("orders", 0): 20})

    with files.open() as remote_log:
        [plan], _ = remote_log.deletions.plan_expiry(EVERYTHING, NOW)
        assert plan.new_log_start == 20


def test_local_segments_of_a_topic_that_is_not_tiered_do_not_expire(tmp_path: Path) -> None:
    files = the_store_is_away(tmp_path, retention_bytes=1, remote_storage_enable=False)
    with files.open() as remote_log:
        assert remote_log.deletions.plan_expiry(EVERYTHING, NOW) == ([], [])


def test_a_local_segment_that_is_broken_stays_and_is_reported(tmp_path: Path) -> None:
    files = the_store_is_away(tmp_path, retention_ms=1)
    flip_bit(files.local_segments()[0].log_path, 100)

    with files.open() as remote_log:
        plans, [left] = remote_log.deletions.plan_expiry(EVERYTHING, NOW * 2)
        assert plans == []
        assert "00000000000000000000.log" in left.message


def test_local_segments_in_a_hole_of_the_remote_log_keep_their_turn(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": {**ENABLED, "retention.ms": 1}})
    with files.open() as remote_log:
        [_, hole, _] = segments_of(remote_log)
        lease = held_by(remote_log, "test")
        marking = a_step(hole, SegmentState.DELETE_SEGMENT_STARTED)
        remote_log.context.segments.update_remote_log_segment_metadata(marking, lease)
        remote_log.context.leases.release(lease)
        flip_bit(files.local_segments()[1].log_path, 100)

        _, [left] = remote_log.deletions.plan_expiry(EVERYTHING, NOW * 2)
        assert "00000000000000000010.log" in left.message


BYTE_A_RECORD = TopicSettings.parse("defaults", {"retention.ms": -1, "remote.storage.enable": True})


def of_a_byte_each(start: int, end: int, segment_id: str) -> RemoteLogSegmentMetadata:
    found = replace(a_segment(Lease(ORDERS_0, "test", 1, 0), start, end), state=SegmentState.COPY_SEGMENT_FINISHED)
    return replace(found, segment_id=RemoteLogSegmentId(ORDERS_0, segment_id), size=end - start + 1)


@pytest.mark.parametrize(
    ("remote", "local", "held"),
    [
        ([(10, 999)], [(0, 999)], 1000),
        ([(0, 999), (1000, 1999)], [(0, 899), (900, 2099)], 2100),
        ([(0, 99), (200, 299)], [(50, 349)], 350),
        ([(0, 99), (50, 149), (100, 199), (150, 249)], [], 250),
    ],
)
@pytest.mark.parametrize("excess", [0, 10, 100, 200])
def test_never_more_than_the_excess_ends_where_boundaries_differ(
    tmp_path: Path, remote: list[tuple[int, int]], local: list[tuple[int, int]], held: int, excess: int
) -> None:
    """Every record is a byte, so the global log start counts what ended."""
    metadata = mock.Mock(spec=RemoteLogMetadataManager)
    metadata.list_remote_log_segments.return_value = [of_a_byte_each(*one, f"s{one[0]}") for one in remote]
    metadata.partition_state.return_value = PartitionState(0, (EpochEntry(0, 0),))
    active = LocalSegment(held, None, 10, location_of(LogSegment(held, tmp_path).log_path))
    closed = [
        LocalSegment(start, end, end - start + 1, location_of(LogSegment(start, tmp_path).log_path))
        for start, end in local
    ]
    log = PartitionLog(ORDERS_0, str(tmp_path), (*closed, active), 0, held + 10, (EpochEntry(0, 0),))
    limit = held + 10 - excess
    settings = TopicSettings.parse("orders", {"retention.bytes": limit}).over(BYTE_A_RECORD, "orders")

    plan = plan_expiry(ORDERS_0, metadata, settings, NOW, log)

    assert (0 if plan is None else plan.new_log_start) <= excess
    if excess >= 100 and remote[0][0] == 0:
        assert (plan is not None) == (remote[0][1] < excess)


# -------------------------------------------------------------------------------------------------- second copies


def copy_twice(remote_log: RemoteLogManager, offset: int) -> RemoteLogSegmentMetadata:
    """Let two runs copy the segment at `offset`, as one that lost sight of the other would; return the later copy."""
    with mock.patch.object(Coverage, "lacks", lambda _, start, *__: start == offset):
        [committed] = copy(remote_log, "another run").committed
    return committed


def test_the_unread_one_of_two_copies_is_deleted_after_the_grace_time(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        copy_twice(remote_log, 10)
        assert len(segments_of(remote_log)) == 4
        assert remote_log.deletions.plan_expiry(EVERYTHING, files.clock.now)[0] == []

        files.clock.now += remote_log.context.settings.remote_log_orphan_grace_ms + 1
        [plan], _ = remote_log.deletions.plan_expiry(EVERYTHING, files.clock.now)
        assert plan.segments == ()
        assert [segment.start_offset for segment in plan.superseded] == [10]
        assert [len(expire(remote_log, files.clock.now).deleted), len(files.objects())] == [1, 9]
        assert remote_log.checks.audit(deep=True).anomalies == ()
        assert offsets_read(remote_log, 0) == list(range(35))


def test_a_second_copy_stays_where_the_first_is_broken(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        copy_twice(remote_log, 10)
        files.clock.now += remote_log.context.settings.remote_log_orphan_grace_ms + 1
        [plan], _ = remote_log.deletions.plan_expiry(EVERYTHING, files.clock.now)
        [kept] = plan.held_by
        [path] = [path for path in files.objects(".log") if kept.segment_id.id in path.name]
        flip_bit(path, 100)

        done, [left] = remote_log.deletions.mark_expired([plan], "expire")
        assert done == ()
        assert "CRC-32C" in left.message
        assert len(segments_of(remote_log)) == 4


def test_an_expiry_reads_the_copy_that_stays_within_the_limit_of_remote_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quotas: list[Quota] = []
    spent: list[int] = []

    def counted(quota: Quota, *_: object) -> RateLimit:
        quotas.append(quota)
        return ReportingLimit(RateLimit(), spent.append)

    files = a_copied_remote_log(tmp_path, remote_log_manager_fetch_max_bytes_per_second=8 << 20)
    with files.open() as remote_log:
        copy_twice(remote_log, 10)
        files.clock.now += remote_log.context.settings.remote_log_orphan_grace_ms + 1
        [plan], _ = remote_log.deletions.plan_expiry(EVERYTHING, files.clock.now)
        [kept] = plan.held_by
        monkeypatch.setattr(throttle, "QuotaLimit", counted)

        assert remote_log.deletions.mark_expired([plan], "expire")[1] == ()

    assert [each.bytes_per_second for each in quotas] == [8 << 20]
    assert sum(spent) == kept.size


def mark_a_second_copy(files: RemoteLogFiles, remote_log: RemoteLogManager) -> ExpiryPlan:
    """Copy the segment at offset 10 twice, and mark the second copy; return the plan that was carried out."""
    copy_twice(remote_log, 10)
    files.clock.now += remote_log.context.settings.remote_log_orphan_grace_ms + 1
    [plan], _ = remote_log.deletions.plan_expiry(EVERYTHING, files.clock.now)
    assert remote_log.deletions.mark_expired([plan], "expire")[1] == ()
    return plan


def test_a_marked_second_copy_is_deleted_though_a_later_leader_contradicted_both(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, remote_log_deletion_grace_ms=3_600_000)
    with files.open() as remote_log:
        plan = mark_a_second_copy(files, remote_log)
        lease = held_by(remote_log, "copy")
        remote_log.context.segments.put_lineage(ORDERS_0, (EpochEntry(1_000, 0),), lease)
        remote_log.context.leases.release(lease)
        files.clock.now += 3_600_000

        report = remote_log.deletions.delete_marked("expire")

    assert report.failures == ()
    assert [one.segment_id for one in report.deleted] == [one.segment_id for one in plan.superseded]


def test_a_second_copy_stays_where_the_first_was_lost_after_it_was_marked(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, remote_log_deletion_grace_ms=3_600_000)
    with files.open() as remote_log:
        plan = mark_a_second_copy(files, remote_log)
        [kept], [second] = plan.held_by, plan.superseded
        [lost] = [path for path in files.objects(".log") if kept.segment_id.id in path.name]
        content = lost.read_bytes()
        lost.unlink()
        files.clock.now += 3_600_000

        report = remote_log.deletions.delete_marked("expire")
        assert report.deleted == ()
        assert mentions(report.failures[0].message, "offsets 10 to 19", "the store")
        assert [path for path in files.objects(".log") if second.segment_id.id in path.name]

        lost.write_bytes(content)
        assert [one.segment_id for one in remote_log.deletions.delete_marked("expire").deleted] == [second.segment_id]


# ----------------------------------------------------------------------------------------------------------- limited


@pytest.mark.parametrize(("most", "bases", "start"), [(1, [0], 10), (2, [0, 10], 20), (9, [0, 10, 20], 30)])
def test_no_more_ends_than_was_asked_for(tmp_path: Path, most: int, bases: list[int], start: int) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(1))
    with files.open() as remote_log:
        [plan], _ = remote_log.deletions.plan_expiry(EVERYTHING, NOW, most)
        assert (going(plan), plan.new_log_start, plan.count) == (bases, start, len(bases))
        remote_log.deletions.mark_expired([plan], "expire")
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == start
        assert offsets_read(remote_log, start) == list(range(start, 35))


def test_segments_that_were_never_copied_count_against_the_limit(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, topics=keeping(1))
    with files.open() as remote_log:
        [plan], _ = remote_log.deletions.plan_expiry(EVERYTHING, NOW, 2)
        assert (plan.new_log_start, plan.never_copied_segments, plan.count) == (20, 2, 2)


def test_copies_of_another_leader_go_within_the_limit_beside_what_was_never_copied(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    write_leader_epochs(files.partition_directory() / "leader-epoch-checkpoint", [EpochEntry(0, 0), EpochEntry(1, 10)])

    with files.open() as remote_log:
        limits: dict[str, Any] = {"retention_bytes": 1, "remote_storage_enable": True}
        plans = [plan_with(remote_log, most=most, **limits) for most in (1, 2, 3, 4, None)]
        found = [(going(plan), plan.never_copied_segments, plan.new_log_start) for plan in plans if plan is not None]
        advance(remote_log, 30)
        following = plan_with(remote_log, most=2, **limits)

    assert found == [([0], 0, 10), ([0], 1, 20), ([0], 2, 30), ([0, 10], 2, 30), ([0, 10, 20], 2, 30)]
    assert going(following) == [0, 10], "what has no room in one plan has it in the next"


def test_second_copies_count_against_the_limit(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(TOTAL - SEGMENT_BYTES))
    with files.open() as remote_log:
        copy_twice(remote_log, 20)
        later = files.clock.now + remote_log.context.settings.remote_log_orphan_grace_ms + 1
        plans = [remote_log.deletions.plan_expiry(EVERYTHING, later, most)[0] for most in (1, 2)]
        assert [[(len(plan.segments), len(plan.superseded)) for plan in each] for each in plans] == [[(1, 0)], [(1, 1)]]


# ------------------------------------------------------------------------------------------------ disabled topics


def test_only_the_requested_deletion_is_done_for_a_disabled_topic(tmp_path: Path) -> None:
    asked = {**ENABLED, "remote.storage.enable": False, "remote.log.delete.on.disable": True}
    files = a_copied_remote_log(tmp_path)
    files.properties["topics"] = {"orders": asked}
    with files.open() as remote_log:
        [plan], _ = remote_log.deletions.plan_expiry(EVERYTHING, NOW, 2)
        assert (going(plan), plan.new_log_start) == ([0, 10], 0)
        remote_log.deletions.mark_expired([plan], "expire")
        assert len(remote_log.deletions.delete_marked("expire").deleted) == 2
        [rest], _ = remote_log.deletions.plan_expiry(EVERYTHING, NOW, 2)
        assert going(rest) == [20]


def test_everything_that_is_remote_of_a_disabled_topic_is_deleted_where_that_is_asked_for(tmp_path: Path) -> None:
    asked = {**ENABLED, "remote.storage.enable": False, "remote.log.delete.on.disable": True}
    files = a_copied_remote_log(tmp_path, topics={"orders": asked})
    with files.open() as remote_log:
        [plan], _ = remote_log.deletions.plan_expiry(EVERYTHING, NOW)
        assert (plan.reason, plan.new_log_start, len(plan.segments)) == (Reason.DISABLED, 0, 3)
        assert len(expire(remote_log).deleted) == 3

        assert files.objects() == []
        assert offsets_read(remote_log, 0) == list(range(35)), "what is local stays"
        assert remote_log.deletions.plan_expiry(EVERYTHING, NOW) == ([], [])


@pytest.mark.parametrize(
    "changed",
    [
        {"remote.storage.enable": True},
        {"remote.log.delete.on.disable": False},
        {"remote.deletion.allowed": False},
        {"remote.storage.enable": True, "remote.log.copy.disable": True},
    ],
    ids=["enabled", "not asked for", "not allowed", "paused"],
)
def test_remote_segments_stay_unless_the_topic_is_disabled_and_deletion_asked_for_and_allowed(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    asked = {**ENABLED, "remote.storage.enable": False, "remote.log.delete.on.disable": True, **changed}
    with a_copied_remote_log(tmp_path, topics={"orders": asked}).open() as remote_log:
        assert remote_log.deletions.plan_expiry(EVERYTHING, NOW) == ([], [])


def test_a_topic_that_was_enabled_again_since_the_plan_keeps_what_is_remote(tmp_path: Path) -> None:
    asked = {**ENABLED, "remote.storage.enable": False, "remote.log.delete.on.disable": True}
    files = a_copied_remote_log(tmp_path, topics={"orders": asked})
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, NOW)
        remote_log.context.topics.put(replace(remote_log.context.decided_topic(ORDERS_0), remote_storage_enable=True))

        assert remote_log.deletions.mark_expired(plans, "expire") == ((), ())
        assert len(segments_of(remote_log)) == 3


# ----------------------------------------------------------------------------------------- metadata of another day


def test_nothing_expires_under_metadata_that_are_older_than_the_store(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(TOTAL - SEGMENT_BYTES))
    database = files.root / "state" / "remote_log_metadata.db"
    last_week = database.read_bytes()
    files.append(4)
    with files.open() as remote_log:
        assert len(copy(remote_log).committed) == 2

    for path in database.parent.glob(f"{database.name}*"):
        path.unlink()
    database.write_bytes(last_week)
    with files.open(outdated=True) as remote_log:
        plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, NOW)
        with pytest.raises(OutdatedMetadataError):
            remote_log.deletions.mark_expired(plans, "expire")
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == 0


def test_a_plan_from_the_future_ends_only_what_is_due_by_our_clock(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": {**ENABLED, "retention.ms": 365 * 86_400_000}})
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, NOW * 2)
        assert going(plans[0]) == [0, 10, 20]

        assert remote_log.deletions.mark_expired(plans, "expire") == ((), ())
        assert states_of(remote_log) == [(start, FINISHED) for start in (0, 10, 20)]


@pytest.mark.parametrize("unseen", ["no log.dirs", "not in log.dirs"])
def test_a_topic_disabled_out_of_sight_of_its_local_log_keeps_its_log_start(tmp_path: Path, unseen: str) -> None:
    gone = {"orders": {**ENABLED, "remote.storage.enable": False, "remote.log.delete.on.disable": True}}
    files = a_copied_remote_log(tmp_path, {("orders", 0): 3, ("other", 0): 1}, topics=gone)
    if unseen == "no log.dirs":
        files.properties["log.dirs"] = []
    else:
        files.partition_directory().rename(tmp_path / "elsewhere")
    with files.open() as remote_log:
        assert len(expire(remote_log).deleted) == 3
    if unseen == "no log.dirs":
        del files.properties["log.dirs"]
    else:
        (tmp_path / "elsewhere").rename(files.partition_directory())
    files.properties["topics"] = {"orders": {**ENABLED, "local.retention.bytes": 0}}

    with files.open() as remote_log:
        assert PlainReader(remote_log).log_start_offset(ORDERS_0) == 0
        assert [segment.base_offset for segment in remote_log.plan_copy().segments] == [0, 10, 20]
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, files.clock.now)
        assert remote_log.deletions.enforce_local_retention(plans).trimmed == ()
        assert offsets_read(remote_log, 0) == list(range(35))


@pytest.mark.parametrize("changed", ["derived id", "no local log", "known id"])
def test_second_copies_stay_where_nobody_knows_that_both_are_of_one_incarnation(tmp_path: Path, changed: str) -> None:
    def of_offsets(start: int, end: int, letter: str) -> RemoteLogSegmentMetadata:
        segment = segments[0]
        epochs = (EpochEntry(0, start),)
        segment_id = replace(segment.segment_id, id=letter * 22)
        return replace(segment, segment_id=segment_id, start_offset=start, end_offset=end, leader_epochs=epochs)

    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        segments = segments_of(remote_log)
        local: PartitionLog | None = replace(local_log(remote_log), topic_id_is_derived=changed == "derived id")
        if changed == "no local log":
            local = None
        both = mock.Mock()
        both.partition_state.return_value = remote_log.context.segments.partition_state(ORDERS_0)
        both.list_remote_log_segments.side_effect = lambda _: iter([of_offsets(0, 29, "a"), of_offsets(5, 14, "b")])
        settings = TopicSettings.parse("orders", {"retention.ms": -1}).over(
            TopicSettings.parse("defaults", {}), "orders"
        )

        plan = plan_expiry(ORDERS_0, both, settings, NOW * 2, local)

        superseded = [] if plan is None else [segment.start_offset for segment in plan.superseded]
        assert superseded == ([5] if changed == "known id" else [])
