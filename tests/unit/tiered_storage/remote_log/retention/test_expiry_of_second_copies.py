"""Of two copies of the same records, the copy that no reader uses expires if the other is whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from support.command_line import mentions
from support.remote_logs import (
    NOW,
    ORDERS_0,
    SEGMENT_BYTES,
    RemoteLogFiles,
    a_copied_remote_log,
    flip_bit,
    held_by,
    local_log,
    offsets_read,
    segments_of,
)
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.jobs import throttle
from tiered_storage.remote_log.jobs.throttle import Quota, RateLimit, ReportingLimit
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.retention.expiry import ExpiryPlan, plan_expiry
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage.remote_log.source.partition_log import PartitionLog
from tiered_storage.settings.topics import TopicSettings
from unit.tiered_storage.remote_log.retention.expiries import TOTAL, copy_twice, expire, keeping


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


def test_second_copies_count_against_the_limit(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(TOTAL - SEGMENT_BYTES))
    with files.open() as remote_log:
        copy_twice(remote_log, 20)
        later = files.clock.now + remote_log.context.settings.remote_log_orphan_grace_ms + 1
        plans = [remote_log.deletions.plan_expiry(EVERYTHING, later, most)[0] for most in (1, 2)]
        assert [[(len(plan.segments), len(plan.superseded)) for plan in each] for each in plans] == [[(1, 0)], [(1, 1)]]


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
