from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from support.clocks import ManualClock
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
    copy,
    flip_bit,
    held_by,
    local_log,
    move_log_start,
    segments_of,
    with_context,
)
from tiered_storage.errors import ConfigurationError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.audit import report as audit_report
from tiered_storage.remote_log.audit.report import Anomaly, AnomalyKind, AuditReport
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, SegmentState
from tiered_storage.remote_log.selection import EVERYTHING, Selection
from tiered_storage.remote_log.source.log_directory_trim import LogDirectoryTrim
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager

DAYS = 10**10
"""By so many ms the clock goes ahead of the objects' file times where they are to look old."""


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    """Three copied segments; by the clock their objects are long past the grace time."""
    files = a_copied_remote_log(tmp_path)
    files.clock = _later()
    return files


def _later() -> ManualClock:

    return ManualClock(time.time_ns() // 1_000_000 + DAYS)


def kinds(report: AuditReport) -> list[AnomalyKind]:
    return [anomaly.kind for anomaly in report.anomalies]


def a_gap(first: int, last: int) -> Anomaly:
    message = f"offsets {first} to {last} are in no segment"
    return Anomaly(AnomalyKind.GAP, "orders-0", message, ORDERS_0, offsets=(first, last))


def the_anomaly(report: AuditReport) -> Anomaly:
    [anomaly] = report.anomalies
    return anomaly


def step(remote_log: RemoteLogManager, segment: RemoteLogSegmentMetadata, state: SegmentState) -> None:
    lease = held_by(remote_log, "test")
    remote_log.context.segments.update_remote_log_segment_metadata(a_step(segment, state), lease)
    remote_log.context.leases.release(lease)


def add_finished(remote_log: RemoteLogManager, like: RemoteLogSegmentMetadata, **changed: Any) -> None:
    """Add a finished segment to the metadata, with the objects of a copy of `like`."""
    lease = held_by(remote_log, "test")
    added = replace(
        like,
        segment_id=replace(like.segment_id, id=like.segment_id.id[::-1]),
        state=SegmentState.COPY_SEGMENT_STARTED,
        fencing_number=lease.fencing_number,
        **changed,
    )
    remote_log.context.segments.add_remote_log_segment_metadata(replace(added, custom_metadata=None), lease)
    assert isinstance(remote_log.context.storage, ObjectRemoteStorageManager)
    for name in remote_log.context.storage.expected_objects(like):
        path = Path(remote_log.context.settings.rsm_config_url.removeprefix("file://")) / name
        copied = path.with_name(
            path.name.replace(like.segment_id.id, added.segment_id.id).replace(
                f"{like.start_offset:020}", f"{added.start_offset:020}"
            )
        )
        shutil.copy(path, copied)
    finishing = a_step(added, SegmentState.COPY_SEGMENT_FINISHED, custom_metadata=like.custom_metadata)
    remote_log.context.segments.update_remote_log_segment_metadata(finishing, lease)
    remote_log.context.leases.release(lease)


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


def test_a_file_of_somebody_elses_is_unreferenced(files: RemoteLogFiles) -> None:
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


def test_a_gap_is_named_by_its_offsets(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        [_, second, _] = segments_of(remote_log)
        step(remote_log, second, SegmentState.DELETE_SEGMENT_STARTED)
        anomaly = the_anomaly(remote_log.checks.audit())
        assert anomaly == a_gap(10, 19)

        lease = held_by(remote_log, "test")
        move_log_start(remote_log, 15, lease)
        missing = the_anomaly(remote_log.checks.audit())
        assert (missing.kind, missing.offsets) == (AnomalyKind.GAP, (15, 19))
        move_log_start(remote_log, 20, lease)
        assert remote_log.checks.audit().anomalies == ()


def test_a_gap_right_after_the_global_log_start_is_named(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        [first, second, _] = segments_of(remote_log)
        lease = held_by(remote_log, "test")
        move_log_start(remote_log, 15, lease)
        for segment in (first, second):
            step(remote_log, segment, SegmentState.DELETE_SEGMENT_STARTED)

        missing = the_anomaly(remote_log.checks.audit())
        assert (missing.kind, missing.offsets) == (AnomalyKind.GAP, (15, 19))


def test_a_log_that_began_above_zero_lacks_nothing_but_what_was_lost_since_its_first_commit(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        LogDirectoryTrim().trim(ORDERS_0, local_log(remote_log).segments[:1], 10)
        assert copy(remote_log).failures == ()
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == 10
        assert remote_log.checks.audit().anomalies == ()

        step(remote_log, segments_of(remote_log)[0], SegmentState.DELETE_SEGMENT_STARTED)
        missing = the_anomaly(remote_log.checks.audit())
        assert (missing.kind, missing.offsets) == (AnomalyKind.GAP, (10, 19))


def test_local_deletion_before_a_copy_is_a_gap(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        assert copy(remote_log, max_segments=1).is_whole
        assert remote_log.checks.audit().anomalies == ()
        LogDirectoryTrim().trim(ORDERS_0, local_log(remote_log).segments[:2], 20)
        anomaly = the_anomaly(remote_log.checks.audit())

    assert anomaly == a_gap(10, 19)


def test_local_deletions_of_a_topic_that_is_not_copied_are_no_anomaly(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        assert copy(remote_log, max_segments=1).is_whole
        LogDirectoryTrim().trim(ORDERS_0, local_log(remote_log).segments[:2], 20)
    files.properties["topics"] = {"orders": {"remote.storage.enable": False}}
    with files.open() as remote_log:
        assert remote_log.checks.audit().anomalies == ()


def test_local_logs_that_cannot_be_looked_at_are_reported_and_the_store_is_audited(files: RemoteLogFiles) -> None:
    files.objects(".log")[0].unlink()
    shutil.rmtree(files.log_directory)
    with files.open() as remote_log:
        report = remote_log.checks.audit()

    assert kinds(report) == [AnomalyKind.MISSING_OBJECT]
    assert mentions(report.notices[0], "local logs", files.log_directory)


def test_a_remote_log_that_reaches_further_than_the_local_one_is_mentioned(files: RemoteLogFiles) -> None:
    checkpoint = files.log_directory / "replication-offset-checkpoint"
    checkpoint.write_text("0\n1\norders 0 25\n")
    with files.open() as remote_log:
        report = remote_log.checks.audit()

    assert report.anomalies == ()
    [notice] = report.notices
    assert mentions(notice, "29", "24", "stable")


def test_the_same_offsets_twice_are_named(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        second = segments_of(remote_log)[1]
        add_finished(remote_log, second)
        anomaly = the_anomaly(remote_log.checks.audit())

    assert anomaly.kind is AnomalyKind.OVERLAP
    assert anomaly.what == "orders-0"
    assert "offsets 10 to 19" in anomaly.message
    assert second.segment_id.id in anomaly.message
    assert second.segment_id.id[::-1] in anomaly.message


def test_the_same_offsets_of_different_leaders_are_no_anomaly(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        add_finished(remote_log, segments_of(remote_log)[1], leader_epochs=(EpochEntry(1, 10),))

        assert remote_log.checks.audit().anomalies == ()


def test_two_copies_of_what_a_later_leader_cut_off_are_no_anomaly(files: RemoteLogFiles) -> None:
    """No reader is given any of them, and both wait for their offsets to end."""
    with files.open() as remote_log:
        lease = held_by(remote_log, "test")
        remote_log.context.segments.put_lineage(ORDERS_0, [EpochEntry(0, 0), EpochEntry(1, 15)], lease)
        remote_log.context.leases.release(lease)
        for cut in segments_of(remote_log)[1:]:
            add_finished(remote_log, cut)

        assert remote_log.checks.audit().anomalies == ()

        add_finished(remote_log, segments_of(remote_log)[0])
        assert the_anomaly(remote_log.checks.audit()).offsets == (0, 9)


def test_an_overlap_that_a_later_segment_makes_with_an_earlier_one_is_found(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        [first, *_] = segments_of(remote_log)
        add_finished(remote_log, first, end_offset=24)
        report = remote_log.checks.audit()

    assert kinds(report) == [AnomalyKind.OVERLAP] * 2
    assert [anomaly.offsets for anomaly in report.anomalies] == [(0, 9), (10, 19)]
    # The third continues after the long one: both are needed.
    assert mentions(report.notices[0], "1 segments", "overlap")


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
    files.clock = _later()
    files.objects(".log")[0].unlink()
    with files.open() as remote_log:
        assert kinds(remote_log.checks.audit(Selection("clicks"))) == [AnomalyKind.MISSING_OBJECT]
        assert remote_log.checks.audit(Selection("orders")) == AuditReport(1, 3, SEGMENT_BYTES, (), ())
        with pytest.raises(ConfigurationError, match="regular expression"):
            remote_log.checks.audit(Selection("("))


# -------------------------------------------------------------------- what happens while the audit looks at the store


class Meanwhile(ObjectRemoteStorageManager):
    """A store in which something happens once, as soon as anything of it was listed."""

    def __init__(self, like: RemoteLogManager, happening: Callable[[], None]) -> None:
        assert isinstance(like.context.storage, ObjectRemoteStorageManager)
        super().__init__(like.context.storage._client)
        self._happenings = [happening]

    def list_objects(self, folder: str = "", after: str = "") -> Any:
        found = list(super().list_objects(folder, after))
        self.happen()
        return iter(found)

    def happen(self) -> None:
        if self._happenings:
            self._happenings.pop()()


def test_a_copy_that_ends_after_the_listing_is_no_anomaly(files: RemoteLogFiles) -> None:
    files.append(2)
    with files.open() as remote_log:

        def copy_more() -> None:
            assert copy(remote_log).is_whole

        report = with_context(remote_log, storage=Meanwhile(remote_log, copy_more)).checks.audit(deep=True)

    assert (report.segments, report.anomalies) == (4, ())


def test_a_deletion_that_ends_after_the_listing_is_no_anomaly(files: RemoteLogFiles) -> None:
    files.properties["topics"] = {"orders": {**ENABLED, "retention.bytes": 1}}
    with files.open() as remote_log:

        def expire() -> None:
            remote_log.deletions.mark_expired(remote_log.deletions.plan_expiry(EVERYTHING, NOW)[0], "expire")
            assert len(remote_log.deletions.delete_marked("expire").deleted) == 3

        report = with_context(remote_log, storage=Meanwhile(remote_log, expire)).checks.audit()

    assert (report.segments, report.anomalies) == (0, ())


@pytest.mark.parametrize("deep", [False, True])
def test_a_deletion_that_ends_while_a_segment_is_looked_at_is_no_anomaly(files: RemoteLogFiles, deep: bool) -> None:
    files.properties["topics"] = {"orders": {**ENABLED, "retention.bytes": 1}}
    with files.open() as remote_log:

        class Late(Meanwhile):
            def list_objects(self, folder: str = "", after: str = "") -> Any:
                # Nothing was there yet when it was listed, so that every object is looked for once more.
                return super().list_objects(folder, after) if folder else iter(())

        def expire() -> None:
            remote_log.deletions.mark_expired(remote_log.deletions.plan_expiry(EVERYTHING, NOW)[0], "expire")
            remote_log.deletions.delete_marked("expire")

        report = with_context(remote_log, storage=Late(remote_log, expire)).checks.audit(deep=deep)

    assert report.anomalies == ()


def test_a_store_of_somebody_elses_making_cannot_be_audited(tmp_path: Path) -> None:
    with a_remote_log(tmp_path).open() as opened:
        remote_log = with_context(opened, storage=object())

        with pytest.raises(ConfigurationError, match="audited"):
            remote_log.checks.audit()


# ----------------------------------------------------------------------------------------------------- what it costs


def test_the_store_is_listed_once_and_no_object_asked_for_singly_while_all_is_well(files: RemoteLogFiles) -> None:
    class Counting(Meanwhile):
        asked: ClassVar[list[str]] = []

        def list_objects(self, folder: str = "", after: str = "") -> Any:
            self.asked.append(f"list {folder}")
            return super().list_objects(folder, after)

        def object_size(self, name: str) -> int:
            self.asked.append(name)
            return super().object_size(name)

    with files.open() as remote_log:
        counted = with_context(remote_log, storage=Counting(remote_log, lambda: None))
        assert counted.checks.audit().anomalies == ()

    assert Counting.asked == ["list "]


def test_the_first_of_many_anomalies_are_named_and_the_others_counted(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_report, "MOST_ANOMALIES", 2)
    for path in files.objects():
        path.unlink()
    with files.open() as remote_log:
        report = remote_log.checks.audit()

    assert (len(report.anomalies), report.omitted, report.anomaly_count) == (2, 7, 9)
    assert [topic.anomalies for topic in report.topics] == [9]
    assert "7 more anomalies" in report.notices[0]


def test_a_report_survives_being_written_down(files: RemoteLogFiles) -> None:
    files.objects(".log")[0].unlink()
    with files.open() as remote_log:
        report = remote_log.checks.audit()
        remote_log.context.work.write_report("audit.jsonl", [report], AuditReport)
        [again] = remote_log.context.work.read_report("audit.jsonl", AuditReport)

    assert again == report
    assert again.topics == report.topics
