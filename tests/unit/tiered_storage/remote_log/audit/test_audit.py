"""An audit names what is wrong with the objects of a store, once, and changes nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from support.command_line import mentions
from support.metadata_stores import a_step
from support.remote_logs import (
    ENABLED,
    NOW,
    ORDERS_0,
    SEGMENT_BYTES,
    RemoteLogFiles,
    a_copied_remote_log,
    a_remote_log,
    begin,
    carry_out,
    flip_bit,
    held_by,
    move_log_start,
    segments_of,
)
from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.audit.report import AnomalyKind, AuditReport
from tiered_storage.remote_log.model import SegmentState
from tiered_storage.remote_log.selection import EVERYTHING, Selection
from unit.tiered_storage.remote_log.audit.audited_logs import DAYS, kinds, later, step, the_anomaly


def test_a_whole_remote_log_has_no_anomaly(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        quick, deep = remote_log.checks.audit(), remote_log.checks.audit(deep=True)

    assert quick == deep == AuditReport(3, 9, 3 * SEGMENT_BYTES, (), ())


def test_an_empty_remote_log_has_no_anomaly(tmp_path: Path) -> None:
    with a_remote_log(tmp_path).open() as remote_log:
        assert remote_log.checks.audit(deep=True) == AuditReport(0, 0, 0, (), ())


def test_an_audit_changes_nothing(files: RemoteLogFiles) -> None:
    files.objects(".log")[1].unlink()
    with files.open() as remote_log:
        before = (segments_of(remote_log), files.objects())
        assert remote_log.checks.audit(deep=True) == remote_log.checks.audit(deep=True)
        assert (segments_of(remote_log), files.objects()) == before


@pytest.mark.parametrize("suffix", [".log", ".indexes", ".commit"])
@pytest.mark.parametrize("deep", [False, True])
def test_a_missing_object_is_named(files: RemoteLogFiles, suffix: str, deep: bool) -> None:
    missing = files.objects(suffix)[1]
    missing.unlink()
    with files.open() as remote_log:
        anomaly = the_anomaly(remote_log.checks.audit(deep=deep))

    assert anomaly.kind is AnomalyKind.MISSING_OBJECT
    assert missing.name in anomaly.what


@pytest.mark.parametrize("deep", [False, True])
def test_each_object_of_a_segment_that_is_wrong_is_named(files: RemoteLogFiles, deep: bool) -> None:
    data, indexes, marker = files.objects(".log")[1], files.objects(".indexes")[1], files.objects(".commit")[1]
    data.unlink()
    os.truncate(indexes, 10)
    marker.unlink()
    with files.open() as remote_log:
        report = remote_log.checks.audit(deep=deep)

    assert [(anomaly.kind, anomaly.what.rpartition("/")[2]) for anomaly in report.anomalies] == [
        (AnomalyKind.MISSING_OBJECT, data.name),
        (AnomalyKind.WRONG_SIZE, indexes.name),
        (AnomalyKind.MISSING_OBJECT, marker.name),
    ]


def test_metadata_that_do_not_tell_of_objects_hide_no_other_segment(files: RemoteLogFiles) -> None:
    files.append(2)
    lost = files.objects(".log")[0]
    lost.unlink()
    with files.open() as remote_log:
        [task] = begin(remote_log).tasks
        finishing = a_step(task.metadata, SegmentState.COPY_SEGMENT_FINISHED, custom_metadata=b"of another manager")
        remote_log.context.segments.update_remote_log_segment_metadata(finishing, task.lease)
        report = remote_log.checks.audit()

    assert {anomaly.kind: anomaly.what for anomaly in report.anomalies} == {
        AnomalyKind.MISSING_OBJECT: report.anomalies[0].what,
        AnomalyKind.WRONG_CHECKSUM: str(task.metadata.segment_id),
    }
    assert lost.name in report.anomalies[0].what


@pytest.mark.parametrize("suffix", [".log", ".indexes", ".commit"])
def test_an_object_of_another_size_is_named(files: RemoteLogFiles, suffix: str) -> None:
    path = files.objects(suffix)[1]
    size = path.stat().st_size
    os.truncate(path, size - 1)
    with files.open() as remote_log:
        anomaly = the_anomaly(remote_log.checks.audit())

    assert anomaly.kind is AnomalyKind.WRONG_SIZE
    assert path.name in anomaly.what
    assert anomaly.message == f"has {size - 1} bytes, {size} were sent"


@pytest.mark.parametrize("suffix", [".log", ".indexes", ".commit"])
def test_a_flipped_bit_is_found_by_a_deep_audit(files: RemoteLogFiles, suffix: str) -> None:
    path = files.objects(suffix)[1]
    flip_bit(path, path.stat().st_size // 2)
    with files.open() as remote_log:
        [_, second, _] = segments_of(remote_log)
        quick, deep = remote_log.checks.audit(), remote_log.checks.audit(deep=True)

    assert quick.anomalies == ()
    assert the_anomaly(deep).kind is AnomalyKind.WRONG_CHECKSUM
    assert the_anomaly(deep).what == str(second.segment_id)


def test_objects_that_nothing_refers_to_are_named(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        [first, _, last] = segments_of(remote_log)
        move_log_start(remote_log, 10, held_by(remote_log, "test"))
        for segment in (first, last):
            step(remote_log, segment, SegmentState.DELETE_SEGMENT_STARTED)
            step(remote_log, segment, SegmentState.DELETE_SEGMENT_FINISHED)
        report = remote_log.checks.audit()

    assert set(kinds(report)) == {AnomalyKind.UNREFERENCED_OBJECT}
    assert len(report.anomalies) == 6
    assert {anomaly.what.rpartition("/")[2] for anomaly in report.anomalies} == {
        path.name for path in files.objects() if "00000000000000000010-" not in path.name
    }


def test_a_foreign_file_is_unreferenced(files: RemoteLogFiles) -> None:
    (files.store / "holiday.jpg").write_bytes(b"jpg")
    with files.open() as remote_log:
        anomaly = the_anomaly(remote_log.checks.audit())

    assert (anomaly.kind, anomaly.what) == (AnomalyKind.UNREFERENCED_OBJECT, "holiday.jpg")


def test_an_audit_names_what_a_killed_writer_left(files: RemoteLogFiles) -> None:
    left = files.objects(".log")[0]
    left.with_name(left.name + ".0123456789abcdef.tmp").write_bytes(b"half")
    with files.open() as remote_log:
        anomaly = the_anomaly(remote_log.checks.audit())

    assert anomaly.kind is AnomalyKind.UNREFERENCED_OBJECT
    assert anomaly.is_leftover
    assert "killed" in anomaly.message


def test_an_object_written_after_its_segment_was_deleted_is_a_leftover(files: RemoteLogFiles) -> None:
    zombie = files.objects(".log")[0]
    content = zombie.read_bytes()
    files.properties["topics"] = {"orders": {**ENABLED, "retention.bytes": 1}}
    with files.open() as remote_log:
        [first, *_] = segments_of(remote_log)
        remote_log.deletions.mark_expired(remote_log.deletions.plan_expiry(EVERYTHING, NOW)[0], "expire")
        remote_log.deletions.delete_marked("expire")
        zombie.write_bytes(content)
        anomaly = the_anomaly(remote_log.checks.audit())

    assert (anomaly.is_leftover, anomaly.segment_id, anomaly.partition) == (True, first.segment_id.id, ORDERS_0)


def test_an_object_of_a_segment_that_nobody_ever_knew_is_no_leftover(files: RemoteLogFiles) -> None:
    known = files.objects(".log")[0]
    shutil.copy(known, known.with_name(f"{7:020}-{'A' * 22}.log"))
    with files.open() as remote_log:
        report = remote_log.checks.audit()
        anomaly = the_anomaly(report)

    assert (anomaly.is_leftover, anomaly.segment_id) == (False, "A" * 22)
    assert "older than the store" in anomaly.message
    assert [(topic.topic, topic.anomalies) for topic in report.topics] == [("orders", 1)]


def test_young_objects_that_nothing_refers_to_are_only_mentioned(files: RemoteLogFiles) -> None:
    (files.store / "holiday.jpg").write_bytes(b"jpg")
    files.clock.now -= DAYS
    with files.open() as remote_log:
        report = remote_log.checks.audit()

    assert report.anomalies == ()
    [notice] = report.notices
    assert notice.startswith("1 unreferenced objects")
    assert "remote.log.orphan.grace.ms" in notice


def test_local_logs_that_cannot_be_looked_at_are_reported_and_the_store_is_audited(files: RemoteLogFiles) -> None:
    files.objects(".log")[0].unlink()
    shutil.rmtree(files.log_directory)
    with files.open() as remote_log:
        report = remote_log.checks.audit()

    assert kinds(report) == [AnomalyKind.MISSING_OBJECT]
    assert mentions(report.notices[0], "local logs", files.log_directory)


def test_copies_and_deletions_under_way_are_no_anomaly(files: RemoteLogFiles) -> None:
    files.append(4)
    with files.open() as remote_log:
        lease = held_by(remote_log, "test")
        move_log_start(remote_log, 10, lease)
        remote_log.context.leases.release(lease)
        step(remote_log, segments_of(remote_log)[0], SegmentState.DELETE_SEGMENT_STARTED)
        files.objects(".commit")[0].unlink()
        carry_out(remote_log, begin(remote_log))

        assert remote_log.checks.audit(deep=True) == AuditReport(2, 14, 2 * SEGMENT_BYTES, (), ())


def test_only_requested_topics_are_audited(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, {("clicks", 0): 1, ("orders", 0): 1})
    files.clock = later()
    files.objects(".log")[0].unlink()
    with files.open() as remote_log:
        assert kinds(remote_log.checks.audit(Selection("clicks"))) == [AnomalyKind.MISSING_OBJECT]
        assert remote_log.checks.audit(Selection("orders")) == AuditReport(1, 3, SEGMENT_BYTES, (), ())
        with pytest.raises(ConfigurationError, match="regular expression"):
            remote_log.checks.audit(Selection("("))
