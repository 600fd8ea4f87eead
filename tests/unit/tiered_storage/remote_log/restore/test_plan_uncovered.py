"""What the store holds after the end that the metadata know is a gap of a restore, never left out in silence."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from support.command_line import run_on
from support.metadata_stores import ManualClock, a_step
from support.remote_logs import (
    ORDERS_0,
    RemoteLogFiles,
    a_copied_remote_log,
    begin,
    carry_out,
    copy,
    held_by,
    partition_of,
    segments_of,
    unsynced,
)
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.model import (
    PartitionDeleteState,
    PartitionState,
    RemoteLogSegmentMetadataUpdate,
    SegmentState,
)
from tiered_storage.remote_log.restore.request import RestorePlan, RestoreRequest
from tiered_storage.remote_log.storage.object_names import partition_folder
from tiered_storage.remote_log.storage.partition_manifest import PartitionManifest

DAYS = 10**10
SECOND = 1000


@pytest.fixture(autouse=True)
def _unsynced() -> object:
    with unsynced():
        yield


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    """Segments of ten records each: five of orders-0, one of orders-1; their objects are old."""
    files = a_copied_remote_log(tmp_path, {("orders", 0): 5, ("orders", 1): 1})
    files.clock = ManualClock(time.time_ns() // 1_000_000 + DAYS)
    return files


def objects_of(files: RemoteLogFiles, number: int, suffix: str) -> list[Path]:
    return sorted((files.store / partition_folder(partition_of(number=number))).glob(f"*{suffix}"))


def rebuild(files: RemoteLogFiles) -> int:
    for path in files.root.glob("state/remote_log_metadata.db*"):
        path.unlink()
    return run_on(files, "rebuild-metadata", "--yes").exit_code


def lose_the_end(files: RemoteLogFiles) -> None:
    """Of the last two segments of orders-0 only the logs and one commit marker are left, and new metadata."""
    for path in (*objects_of(files, 0, ".indexes")[-2:], objects_of(files, 0, ".commit")[-2]):
        path.unlink()
    assert rebuild(files) == 1


def plan_of(files: RemoteLogFiles, **request: object) -> RestorePlan:
    with files.open() as remote_log:
        return remote_log.restores.plan(RestoreRequest("orders", **request))  # type: ignore[arg-type]


def test_segments_after_the_end_that_are_unfinished_or_unknown_are_a_gap(files: RemoteLogFiles) -> None:
    lose_the_end(files)
    target = files.root / "restored"

    planned = run_on(files, "restore", "orders", "--dry-run", "--json")

    assert planned.exit_code == 1
    [gap] = planned.document["gaps"]
    assert gap["partition"] == "orders-0"
    assert "2 segments from offset 30 on are in the store, but unfinished or unknown" in gap["message"]
    assert "'tiered-storage repair'" in gap["message"]
    refused = run_on(files, "restore", "orders", "--to-directory", target, "--json")
    assert refused.document["error"] == "RemoteObjectNotFoundError"
    assert not target.exists()
    assert run_on(files, "restore", "orders", "--to-directory", target, "--allow-gaps").exit_code == 0


@pytest.mark.parametrize(
    ("asked", "gaps"),
    [
        ({"to_offset": 30}, 0),
        ({"to_offset": 31}, 1),
        ({"from_offset": 35}, 1),
        ({"partitions": frozenset({1})}, 0),
        ({"to_timestamp": 5 * SECOND}, 0),
        ({"from_timestamp": 10**15}, 1),
    ],
)
def test_only_what_may_be_in_the_range_is_a_gap(files: RemoteLogFiles, asked: dict[str, object], gaps: int) -> None:
    lose_the_end(files)

    assert len(plan_of(files, **asked).gaps) == gaps


def test_a_partition_of_which_only_the_document_is_left_is_a_gap(files: RemoteLogFiles) -> None:
    for path in objects_of(files, 1, ""):
        if path.is_file():
            path.unlink()
    rebuild(files)

    [gap] = plan_of(files).gaps

    assert gap.partition == "orders-1"
    assert "the store has objects of it, but the metadata know no segment" in gap.message
    assert not plan_of(files, partitions=frozenset({0})).gaps


def test_a_partition_that_was_deleted_is_no_gap(files: RemoteLogFiles) -> None:
    state = PartitionState(delete_state=PartitionDeleteState.FINISHED)
    with files.open() as remote_log:
        remote_log.storage.partition_manifests.write(PartitionManifest(partition_of(number=2), 7, state, 1))  # type: ignore[attr-defined]
    rebuild(files)

    plan = plan_of(files)

    assert (plan.gaps, plan.notices) == ((), ())


def test_a_copy_under_way_is_a_notice_and_a_gap_once_its_lease_ended(files: RemoteLogFiles) -> None:
    files.append(4)
    with files.open() as remote_log:
        carry_out(remote_log, begin(remote_log))

        plan = remote_log.restores.plan(RestoreRequest("orders"))

        assert not plan.gaps
        [notice] = plan.notices
        assert "2 segments from offset 50 on are being copied" in notice.message
        files.clock.now += remote_log.settings.lease_duration_ms + 1
        [gap] = remote_log.restores.plan(RestoreRequest("orders")).gaps
        assert "2 segments from offset 50 on are in the store, but unfinished or unknown" in gap.message
        assert copy(remote_log).is_whole
        assert not remote_log.restores.plan(RestoreRequest("orders")).gaps


@pytest.mark.parametrize("state", [SegmentState.DELETE_SEGMENT_STARTED, SegmentState.DELETE_SEGMENT_FINISHED])
def test_what_is_being_deleted_after_the_end_is_no_gap(files: RemoteLogFiles, state: SegmentState) -> None:
    with files.open() as remote_log:
        lease = held_by(remote_log, "test")
        last = segments_of(remote_log)[-1]
        for step in (SegmentState.DELETE_SEGMENT_STARTED, state):
            update: RemoteLogSegmentMetadataUpdate = a_step(last, step)
            remote_log.segments.update_remote_log_segment_metadata(update, lease)

    plan = plan_of(files)

    assert plan.partitions[0].log_end_offset == 40
    assert (plan.gaps, plan.notices) == ((), ())


def test_what_a_later_leader_cut_off_after_the_end_is_no_gap(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        lineage = (EpochEntry(0, 0), EpochEntry(1, 40))
        remote_log.segments.put_lineage(ORDERS_0, lineage, held_by(remote_log, "test"))

    plan = plan_of(files)

    assert plan.partitions[0].log_end_offset == 40
    assert (plan.gaps, plan.notices) == ((), ())
