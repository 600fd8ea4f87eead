"""An audit names gaps between copied segments, and offsets that are copied twice."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.command_line import mentions
from support.metadata_stores import a_step
from support.remote_logs import (
    ORDERS_0,
    RemoteLogFiles,
    a_remote_log,
    copy,
    held_by,
    local_log,
    move_log_start,
    segments_of,
)
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.audit.report import Anomaly, AnomalyKind
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, SegmentState
from tiered_storage.remote_log.source.log_directory_trim import LogDirectoryTrim
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager
from unit.tiered_storage.remote_log.audit.audited_logs import kinds, step, the_anomaly


def a_gap(first: int, last: int) -> Anomaly:
    message = f"offsets {first} to {last} are in no segment"
    return Anomaly(AnomalyKind.GAP, "orders-0", message, ORDERS_0, offsets=(first, last))


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
