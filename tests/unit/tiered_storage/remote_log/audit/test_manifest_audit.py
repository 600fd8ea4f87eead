"""Partition manifests in the store are audited against the metadata, and written again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from support.metadata_files import remove_metadata
from support.remote_logs import (
    ORDERS_0,
    RemoteLogFiles,
    a_copied_remote_log,
    a_remote_log,
    begin,
    carry_out,
    copy,
    flip_bit,
    held_by,
    move_log_start,
    offsets_read,
    ranges,
)
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.audit.report import Anomaly, AnomalyKind
from tiered_storage.remote_log.context import store_options
from tiered_storage.remote_log.copy.tasks import CommitReport, CopyPlan
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import PartitionDeleteState, PartitionState
from tiered_storage.remote_log.rebuild.metadata_rebuild import rebuild_metadata
from tiered_storage.remote_log.repair.repairs import RepairReport
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage.remote_log.storage.documents.partition_manifest import PartitionManifest
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager
from unit.tiered_storage.remote_log.audit.audited_logs import later

DEPTHS = pytest.mark.parametrize("deep", [False, True])


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    """Three copied segments, the first of them ended; by the clock their objects are long past the grace time."""
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        lease = held_by(remote_log, "test")
        move_log_start(remote_log, 10, lease)
        remote_log.context.leases.release(lease)
    files.clock = later()
    return files


def document_of(files: RemoteLogFiles) -> Path:
    [path] = files.store.rglob("orders-*/0/state/*.json")
    return path


def stored(remote_log: RemoteLogManager) -> PartitionManifest:
    assert isinstance(remote_log.context.storage, ObjectRemoteStorageManager)
    document = remote_log.context.storage.partition_manifests.read(ORDERS_0)
    assert document is not None
    return document


def rewritten(files: RemoteLogFiles, change: Callable[[PartitionState], PartitionState], written_at: int = 1) -> None:
    path = document_of(files)
    document = PartitionManifest.parse(path.read_bytes(), str(path))
    changed = replace(document, state=change(document.state), written_at=written_at)
    path.write_bytes(changed.to_bytes())


def remove(files: RemoteLogFiles) -> None:
    shutil.rmtree(document_of(files).parent)


def flip(files: RemoteLogFiles) -> None:
    flip_bit(document_of(files), 0)


def empty(files: RemoteLogFiles) -> None:
    document_of(files).write_bytes(b"")


def go_back(files: RemoteLogFiles) -> None:
    rewritten(files, lambda state: replace(state, log_start_offset=0))


def forget_log_start(files: RemoteLogFiles) -> None:
    rewritten(files, lambda state: replace(state, log_start_offset=None))


def run_ahead(files: RemoteLogFiles) -> None:
    rewritten(files, lambda state: replace(state, log_start_offset=25))


def delete_topic(files: RemoteLogFiles) -> None:
    rewritten(files, lambda state: replace(state, delete_state=PartitionDeleteState.STARTED))


def move_leader(files: RemoteLogFiles) -> None:
    def moved(state: PartitionState) -> PartitionState:
        [first, *others] = state.lineage
        return replace(state, lineage=(EpochEntry(first.epoch, first.start_offset + 3), *others))

    rewritten(files, moved)


BREAKAGES: dict[Callable[[RemoteLogFiles], None], AnomalyKind] = {
    remove: AnomalyKind.MISSING_OBJECT,
    flip: AnomalyKind.WRONG_CHECKSUM,
    empty: AnomalyKind.WRONG_CHECKSUM,
    go_back: AnomalyKind.WRONG_CHECKSUM,
    forget_log_start: AnomalyKind.WRONG_CHECKSUM,
    run_ahead: AnomalyKind.WRONG_CHECKSUM,
    delete_topic: AnomalyKind.WRONG_CHECKSUM,
    move_leader: AnomalyKind.WRONG_CHECKSUM,
}
BREAKS = pytest.mark.parametrize("breaks", BREAKAGES)


def anomalies(remote_log: RemoteLogManager, *, deep: bool = False) -> tuple[Anomaly, ...]:
    return remote_log.checks.audit(deep=deep).anomalies


def repaired(remote_log: RemoteLogManager) -> RepairReport:
    def copied(copies: CopyPlan) -> CommitReport:
        return remote_log.commit_copy(carry_out(remote_log, remote_log.begin_copy(copies, "repair"), "runs/repair/1"))

    plan = remote_log.repairs.plan(remote_log.checks.audit(deep=True), EVERYTHING)
    return remote_log.repairs.carry_out(plan, "repair", copied)


@DEPTHS
@BREAKS
def test_an_audit_names_a_wrong_manifest_and_a_repair_writes_it_again(
    files: RemoteLogFiles, breaks: Callable[[RemoteLogFiles], None], deep: bool
) -> None:
    with files.open() as remote_log:
        assert anomalies(remote_log, deep=deep) == ()
        before = stored(remote_log)
        breaks(files)
        [anomaly] = anomalies(remote_log, deep=deep)
        assert (anomaly.kind, anomaly.partition, anomaly.is_leftover) == (BREAKAGES[breaks], ORDERS_0, False)
        assert "/state" in anomaly.what
        assert "'tiered-storage repair'" in anomaly.message

        report = repaired(remote_log)
        assert (report.documents, report.failures, report.copied) == ((ORDERS_0,), (), ())
        assert anomalies(remote_log, deep=deep) == ()
        assert stored(remote_log).state == before.state
        assert repaired(remote_log).documents == ()


@BREAKS
def test_a_wrong_manifest_does_not_stop_trimming(
    files: RemoteLogFiles, breaks: Callable[[RemoteLogFiles], None]
) -> None:
    breaks(files)
    with files.open() as remote_log:
        [topic] = remote_log.checks.audit().topics
        assert topic.anomalies == 0


@BREAKS
def test_deleted_segments_stay_deleted_if_metadata_are_lost_after_a_repair(
    files: RemoteLogFiles, breaks: Callable[[RemoteLogFiles], None]
) -> None:
    breaks(files)
    with files.open() as remote_log:
        repaired(remote_log)
    remove_metadata(files)
    settings = files.settings()
    assert rebuild_metadata(settings, store_options(settings, {}), files.clock).unreadable == ()

    with files.open() as remote_log:
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == 10
        assert offsets_read(remote_log, 10)[0] == 10


def test_a_manifest_just_ahead_of_the_metadata_is_no_anomaly(files: RemoteLogFiles) -> None:
    rewritten(files, lambda state: replace(state, log_start_offset=25), written_at=files.clock.now)
    with files.open() as remote_log:
        assert anomalies(remote_log) == ()


def test_a_broken_document_keeps_nobody_from_copying_and_is_written_again(files: RemoteLogFiles) -> None:
    flip(files)
    files.append(2)
    with files.open() as remote_log:
        assert ranges(copy(remote_log).committed) == [(30, 39)]
        assert anomalies(remote_log) == ()
        assert stored(remote_log).state.log_start_offset == 10


def test_a_manifest_of_an_unknown_lease_is_reported_and_left_alone(files: RemoteLogFiles) -> None:
    document = document_of(files)
    later = document.with_name(document.name.replace(document.stem, f"{10**6:0{len(document.stem)}}"))
    content = PartitionManifest.parse(document.read_bytes(), "")
    later.write_bytes(replace(content, fencing_number=10**6).to_bytes())
    with files.open() as remote_log:
        [anomaly] = anomalies(remote_log)
        assert (anomaly.kind, anomaly.is_of_a_document) == (AnomalyKind.OUTDATED_METADATA, False)
        assert repaired(remote_log).documents == ()
        assert later.exists()


def test_a_partition_without_finished_segments_needs_no_manifest(tmp_path: Path) -> None:
    with a_remote_log(tmp_path).open() as remote_log:
        begin(remote_log)
        assert remote_log.context.segments.partition_state(ORDERS_0).lineage
        assert anomalies(remote_log) == ()
