"""The six kinds of anomaly, with and without the local segment: what a repair does, and what it leaves."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.clocks import ManualClock
from support.command_line import mentions
from support.metadata_stores import a_step
from support.remote_logs import (
    ENABLED,
    ORDERS_0,
    SEGMENT_BYTES,
    RemoteLogFiles,
    a_copied_remote_log,
    carry_out,
    end_below,
    flip_bit,
    held_by,
    local_log,
    offsets_read,
    ranges,
    segments_of,
    states_of,
)
from tiered_storage.errors import OutdatedMetadataError
from tiered_storage.remote_log.audit.report import AnomalyKind
from tiered_storage.remote_log.copy.tasks import CommitReport, CopyPlan, PlannedSegment
from tiered_storage.remote_log.coverage import finished
from tiered_storage.remote_log.jobs import throttle
from tiered_storage.remote_log.jobs.throttle import Quota, QuotaLimit, RateLimit
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.metadata.manifest_sync import manifests_of
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, SegmentState
from tiered_storage.remote_log.repair.plan import RepairPlan
from tiered_storage.remote_log.repair.repairs import RepairReport
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage.remote_log.source.log_directory_trim import LogDirectoryTrim
from tiered_storage.remote_log.storage.documents.store_generation import StoredGeneration
from tiered_storage.remote_log.storage.listable_storage import ListedObject
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager

DAYS = 10**10


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    """Three copied segments; by the clock their objects are long past the grace time."""
    files = a_copied_remote_log(tmp_path)
    files.clock = ManualClock(time.time_ns() // 1_000_000 + DAYS)
    return files


def planned(remote_log: RemoteLogManager) -> RepairPlan:
    return remote_log.repairs.plan(remote_log.checks.audit(deep=True), EVERYTHING)


def repaired(remote_log: RemoteLogManager, plan: RepairPlan | None = None) -> RepairReport:
    def copy(copies: CopyPlan) -> CommitReport:
        begun = remote_log.begin_copy(copies, "repair")
        return remote_log.commit_copy(carry_out(remote_log, begun, "runs/repair/1"))

    return remote_log.repairs.carry_out(plan or planned(remote_log), "repair", copy)


def kinds(remote_log: RemoteLogManager) -> list[AnomalyKind]:
    return [anomaly.kind for anomaly in remote_log.checks.audit(deep=True).anomalies]


def lose_locally(remote_log: RemoteLogManager, count: int) -> None:
    segments = local_log(remote_log).segments[:count]
    LogDirectoryTrim().trim(ORDERS_0, segments, 10 * count)


def delete_object(files: RemoteLogFiles) -> None:
    files.objects(".log")[1].unlink()


def delete_marker(files: RemoteLogFiles) -> None:
    files.objects(".commit")[1].unlink()


def cut_object(files: RemoteLogFiles) -> None:
    os.truncate(files.objects(".indexes")[1], 10)


def flip_object(files: RemoteLogFiles) -> None:
    flip_bit(files.objects(".log")[1], 100)


DAMAGES = pytest.mark.parametrize("damage", [delete_object, delete_marker, cut_object, flip_object])


@DAMAGES
def test_a_damaged_segment_is_copied_again_where_the_local_log_has_it(
    files: RemoteLogFiles, damage: Callable[[RemoteLogFiles], None]
) -> None:
    damage(files)
    with files.open() as remote_log:
        damaged = segments_of(remote_log)[1]
        report = repaired(remote_log)

        assert ranges(report.copied) == [(10, 19)]
        assert [segment.segment_id for segment in report.retired] == [damaged.segment_id]
        manifests = manifests_of(remote_log.context.storage)
        known = None if manifests is None else manifests.read(ORDERS_0)
        assert known is not None
        assert known.marked == (damaged.segment_id.id,), "so that no rebuild takes it for alive"
        assert (report.removed, report.failures) == ((), ())
        assert kinds(remote_log) == []
        assert ranges(finished(segments_of(remote_log))) == [(0, 9), (10, 19), (20, 29)]
        lose_locally(remote_log, 3)
        assert offsets_read(remote_log, 0) == list(range(35))
        assert planned(remote_log).is_empty


@pytest.mark.parametrize("damage", [delete_object, flip_object])
def test_a_damaged_segment_without_another_copy_needs_a_person(
    files: RemoteLogFiles, damage: Callable[[RemoteLogFiles], None]
) -> None:
    with files.open() as remote_log:
        lose_locally(remote_log, 2)
        damage(files)
        before = (states_of(remote_log), files.objects())
        plan = planned(remote_log)

        assert plan.is_empty
        assert mentions(plan.advice[0].message, "offsets 10 to 19", "damaged")
        assert "restore the objects" in plan.advice[0].message
        report = repaired(remote_log, plan)
        assert (report.copied, report.retired, report.removed) == ((), (), ())
        assert (states_of(remote_log), files.objects()) == before


def test_a_gap_is_filled_where_the_local_log_has_it(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        _mark(remote_log, segments_of(remote_log)[1])
        assert kinds(remote_log) == [AnomalyKind.GAP]
        report = repaired(remote_log)

        assert ranges(report.copied) == [(10, 19)]
        assert kinds(remote_log) == []


def test_a_gap_without_a_local_copy_needs_a_person(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        lose_locally(remote_log, 2)
        _mark(remote_log, segments_of(remote_log)[1])
        plan = planned(remote_log)

    assert plan.is_empty
    [advice] = plan.advice
    assert mentions(advice.message, "offsets 10 to 19", "no segment")


def test_nothing_is_copied_that_an_ordinary_run_will_copy(files: RemoteLogFiles) -> None:
    files.append(4)
    delete_object(files)
    with files.open() as remote_log:
        assert [segment.base_offset for segment in planned(remote_log).copies.segments] == [10]
        assert [segment.base_offset for segment in remote_log.plan_copy().segments] == [30, 40]


def test_the_damaged_one_of_two_copies_is_retired_without_a_third(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        twin = _add_twin(remote_log, segments_of(remote_log)[1])
        assert kinds(remote_log) == [AnomalyKind.OVERLAP]
        assert "'tiered-storage expire'" in planned(remote_log).advice[0].message
        next(path for path in files.objects(".log") if twin.segment_id.id in path.name).unlink()
        plan = planned(remote_log)
        report = repaired(remote_log, plan)

        assert plan.advice == (), "what it does itself is nobody else's to do"
        assert report.copied == ()
        assert [segment.segment_id for segment in report.retired] == [twin.segment_id]
        assert kinds(remote_log) == []


def test_repair_removes_only_leftovers(files: RemoteLogFiles) -> None:
    data = files.objects(".log")[0]
    content = data.read_bytes()
    temporary = files.objects(".log")[2].with_name(files.objects(".log")[2].name + ".0123456789abcdef.tmp")
    foreign = files.store / "holiday.jpg"
    with files.open() as remote_log:
        [first, *_] = segments_of(remote_log)
        end_below(remote_log, 10)
        _mark(remote_log, first)
        files.properties["topics"] = {"orders": ENABLED}
        assert len(remote_log.deletions.delete_marked("expire").deleted) == 1
        for path in (data, temporary, foreign):
            path.write_bytes(content)
        plan = planned(remote_log)
        report = repaired(remote_log, plan)

        assert {name.rpartition("/")[2] for name in report.removed} == {data.name, temporary.name}
        assert [path.exists() for path in (data, temporary, foreign)] == [False, False, True]
        assert len(plan.advice) == 1
        assert kinds(remote_log) == [AnomalyKind.UNREFERENCED_OBJECT]


def test_leftovers_stay_while_a_person_stopped_all_deletions(files: RemoteLogFiles) -> None:
    temporary = files.objects(".log")[0].with_name(files.objects(".log")[0].name + ".0123456789abcdef.tmp")
    temporary.write_bytes(b"half")
    with files.open() as remote_log:
        plan = planned(remote_log)
        remote_log.context.safety.stop("looks wrong", "somebody")
        report = repaired(remote_log, plan)

    assert temporary.exists()
    assert "looks wrong" in report.failures[0].message


def test_while_deletions_are_stopped_damaged_segments_are_copied_again_and_none_ends(files: RemoteLogFiles) -> None:
    flip_object(files)
    with files.open() as remote_log:
        damaged = segments_of(remote_log)[1]
        remote_log.context.safety.stop("looks wrong", "somebody")
        report = repaired(remote_log)

        assert (ranges(report.copied), report.retired, report.notices) == ([(10, 19)], (), ())
        [failure] = report.failures
        assert mentions(failure.message, damaged.segment_id.id, "somebody", "looks wrong", "stop-deletions --lift")
        assert "looks wrong" in failure.message
        states = {segment.segment_id: segment.state for segment in segments_of(remote_log)}
        assert states[damaged.segment_id] is SegmentState.COPY_SEGMENT_FINISHED

        remote_log.context.safety.lift("somebody")
        assert [segment.segment_id for segment in repaired(remote_log).retired] == [damaged.segment_id]
        assert kinds(remote_log) == []


def test_no_more_segments_end_than_the_document_of_a_partition_names(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiered_storage.remote_log.metadata.manifest_sync.MAX_MARKED", 1)
    for path in files.objects(".log")[:2]:
        flip_bit(path, 100)
    with files.open() as remote_log:
        damaged = [segment.segment_id.id for segment in segments_of(remote_log)[:2]]
        report = repaired(remote_log)

        [ended] = report.retired
        [left] = {*damaged} - {ended.segment_id.id}
        [failure] = report.failures
        assert failure.message.startswith(f"{left} stays as it is: ")
        assert "marked" in failure.message


def test_a_stop_while_the_redundancy_of_damaged_segments_is_checked_marks_none(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip_object(files)
    with files.open() as remote_log:
        read = ObjectRemoteStorageManager.verify

        def stop_meanwhile(*asked: Any) -> None:
            remote_log.context.safety.stop("looks wrong", "somebody")
            read(*asked)

        monkeypatch.setattr(ObjectRemoteStorageManager, "verify", stop_meanwhile)
        report = repaired(remote_log)

    assert (ranges(report.copied), report.retired) == ([(10, 19)], ())
    assert "looks wrong" in report.failures[0].message


def test_objects_of_replaced_segments_stay_without_the_right_to_delete(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": {**ENABLED, "remote.deletion.allowed": False}})
    flip_object(files)
    with files.open() as remote_log:
        [notice] = repaired(remote_log).notices

    assert notice.partition == "orders-0"
    assert mentions(notice.message, "1 damaged segments", "allow-deletion")


def test_whole_reads_of_a_repair_keep_within_the_rate_of_an_audit(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(throttle, "RateLimit", lambda rate: RateLimit(rate, lambda: sum(slept), slept.append))
    flip_object(files)
    files.properties["audit.worker.bytes.per.second"] = SEGMENT_BYTES * 4
    with files.open() as remote_log:
        repaired(remote_log)
    assert sum(slept) >= 1 / 4


def test_whole_reads_of_a_repair_keep_within_the_limit_of_remote_reads(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    def quota_limit(quota: Quota, *_: object) -> QuotaLimit:
        smaller = Quota(quota.bytes_per_second * SEGMENT_BYTES / (1 << 20), quota.window_seconds)
        return QuotaLimit(smaller, lambda: sum(slept), slept.append)

    monkeypatch.setattr(throttle, "QuotaLimit", quota_limit)
    delete_object(files)
    files.properties["remote.log.manager.fetch.max.bytes.per.second"] = 1 << 20
    files.properties["remote.log.manager.fetch.quota.window.num"] = 1
    with files.open() as remote_log:
        repaired(remote_log)
    assert slept


def test_an_old_plan_removes_nothing_that_came_to_life(files: RemoteLogFiles) -> None:
    temporary = files.objects(".log")[0].with_name(files.objects(".log")[0].name + ".0123456789abcdef.tmp")
    temporary.write_bytes(b"half")
    with files.open() as remote_log:
        plan = planned(remote_log)
        live = replace(plan.leftovers[0], names=tuple(found.name for found in _objects(remote_log)))
        report = repaired(remote_log, replace(plan, leftovers=(live,)))

        assert [name.rpartition("/")[2] for name in report.removed] == [temporary.name]
        assert kinds(remote_log) == []


def test_a_damaged_segment_stays_where_its_copy_failed(files: RemoteLogFiles) -> None:
    delete_object(files)
    with files.open() as remote_log:
        plan = planned(remote_log)
        report = remote_log.repairs.carry_out(plan, "repair", lambda _: CommitReport((), (), (), (), retriable=True))

        assert report.retired == ()
        assert mentions(report.failures[0].message, plan.replaced[0].segment_id.id, "all of its offsets")
        assert states_of(remote_log) == [(start, "COPY_SEGMENT_FINISHED") for start in (0, 10, 20)]


def test_a_copy_that_only_looks_sound_ends_no_other(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        first = segments_of(remote_log)[1]
        twin = _add_twin(remote_log, first)
        _flip_data_of(files, twin)
        next(path for path in files.objects(".commit") if first.segment_id.id in path.name).unlink()
        plan = remote_log.repairs.plan(remote_log.checks.audit(), EVERYTHING)
        assert [segment.segment_id for segment in plan.replaced] == [first.segment_id]
        report = repaired(remote_log, plan)

        assert report.retired == ()
        assert mentions(report.failures[0].message, f"{first.segment_id.id} ", f"{twin.segment_id.id}, ")
        assert len(finished(segments_of(remote_log))) == 4


def test_a_segment_that_the_audit_named_stands_in_for_no_other(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        first = segments_of(remote_log)[1]
        twin = _add_twin(remote_log, first)
        delete_object(files)
        plan = replace(planned(remote_log), damaged=frozenset({first.segment_id.id, twin.segment_id.id}))
        report = repaired(remote_log, plan)

    assert report.retired == ()
    assert mentions(report.failures[0].message, plan.replaced[0].segment_id.id, "all of its offsets")


def test_no_segment_is_replaced_if_the_audit_could_not_name_all_anomalies(files: RemoteLogFiles) -> None:
    delete_object(files)
    with files.open() as remote_log:
        found = remote_log.checks.audit(deep=True)
        plan = remote_log.repairs.plan(replace(found, omitted=1), EVERYTHING)

    assert plan.replaced == ()
    assert "fewer topics" in plan.advice[-1].message
    assert [planned.base_offset for planned in plan.copies.segments] == [10]


def test_metadata_that_are_older_than_the_store_end_nothing(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        _add_twin(remote_log, segments_of(remote_log)[1])
        files.objects(".log")[1].unlink()
        plan = planned(remote_log)
        storage = remote_log.context.storage
        assert isinstance(storage, ObjectRemoteStorageManager)
        number = storage.generations.newest_number() + 1
        storage.generations.publish(StoredGeneration(number, "another's token", "an expiry", 5))
        with pytest.raises(OutdatedMetadataError):
            repaired(remote_log, plan)
        assert SegmentState.DELETE_SEGMENT_STARTED not in {each.state for each in segments_of(remote_log)}


def test_a_partition_that_somebody_works_on_is_left_to_them(files: RemoteLogFiles) -> None:
    _, second, _ = files.objects(".log")
    with files.open() as remote_log:
        _add_twin(remote_log, segments_of(remote_log)[1])
        second.unlink()
        plan = planned(remote_log)
        held_by(remote_log, "another run")
        report = repaired(remote_log, plan)

    assert report.retired == ()
    assert mentions(report.failures[0].message, "another run", "leases end")


def _objects(remote_log: RemoteLogManager) -> list[ListedObject]:
    assert isinstance(remote_log.context.storage, ObjectRemoteStorageManager)
    return list(remote_log.context.storage.list_objects())


def _mark(remote_log: RemoteLogManager, segment: RemoteLogSegmentMetadata) -> None:
    lease = held_by(remote_log, "test")
    remote_log.context.segments.update_remote_log_segment_metadata(
        a_step(segment, SegmentState.DELETE_SEGMENT_STARTED), lease
    )
    remote_log.context.leases.release(lease)


def _add_twin(remote_log: RemoteLogManager, like: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
    """Make a second copy of the same local segment, as by two unfenced attempts."""
    [path] = [each.location for each in local_log(remote_log).segments if each.base_offset == like.start_offset]
    due = PlannedSegment(
        ORDERS_0, path, like.start_offset, like.end_offset, like.size, local_log(remote_log).leader_epochs
    )
    begun = remote_log.begin_copy(CopyPlan((due,), replacing=frozenset({like.segment_id.id})), "twin")
    [twin] = remote_log.commit_copy(carry_out(remote_log, begun, "runs/twin/1")).committed
    return twin


def _flip_data_of(files: RemoteLogFiles, segment: RemoteLogSegmentMetadata) -> None:
    flip_bit(next(path for path in files.objects(".log") if segment.segment_id.id in path.name), 100)
