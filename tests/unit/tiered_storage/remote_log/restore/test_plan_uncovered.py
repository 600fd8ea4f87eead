"""What the store holds after the end that the metadata know is a gap of a restore, never left out in silence."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.clocks import ManualClock
from support.command_line import mentions, run_on
from support.metadata_files import remove_metadata
from support.metadata_stores import a_segment, a_step
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
from support.remote_segments import segment_data
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.model import (
    PartitionDeleteState,
    PartitionState,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    SegmentState,
)
from tiered_storage.remote_log.restore.directory import DirectoryTarget, restore_to_directory
from tiered_storage.remote_log.restore.plan import plan_restore
from tiered_storage.remote_log.restore.request import RestorePlan, RestoreRequest
from tiered_storage.remote_log.storage.documents.object_names import partition_folder
from tiered_storage.remote_log.storage.documents.partition_manifest import PartitionManifest
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind, LogSegmentData, RemoteStorageManager

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
    remove_metadata(files)
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
    assert mentions(gap["message"], "2 segments", "offset 30", "'tiered-storage repair'")
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


def lose_segments(files: RemoteLogFiles, *numbers: int) -> None:
    """Of these partitions only the documents are left, and new metadata."""
    for number in numbers:
        for path in objects_of(files, number, ""):
            if path.is_file():
                path.unlink()
    assert rebuild(files) == 0


@pytest.mark.parametrize("lost", [(1,), (0, 1)])
def test_a_partition_of_which_only_the_document_is_left_is_a_gap(files: RemoteLogFiles, lost: tuple[int, ...]) -> None:
    lose_segments(files, *lost)

    gaps = plan_of(files).gaps

    assert [gap.partition for gap in gaps] == [f"orders-{number}" for number in lost]
    assert all("lost or unknown" in gap.message for gap in gaps)
    assert len(plan_of(files, partitions=frozenset({0})).gaps) == len(lost) - 1


def test_a_partition_that_may_have_expired_as_a_whole_comes_back_empty_at_its_log_start(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        plan = remote_log.deletions.plan_record_deletion(ORDERS_0, 50)
        assert plan is not None
        assert remote_log.deletions.mark_expired([plan], "test") == ((ORDERS_0,), ())
        files.clock.now += remote_log.context.settings.remote_log_deletion_grace_ms + 1
        remote_log.deletions.delete_marked("test")
    assert rebuild(files) == 0
    target = files.root / "restored"

    [gap] = plan_of(files).gaps
    assert not plan_of(files, to_offset=50).gaps
    assert mentions(gap.message, "offset 50", "expired")
    assert run_on(files, "restore", "orders", "--to-directory", target).exit_code == 1
    assert run_on(files, "restore", "orders", "--to-directory", target, "--allow-gaps").exit_code == 0
    assert [path.name for path in (target / "orders-0").glob("*.log")] == [f"{50:020}.log"]


@dataclass(frozen=True)
class Reach:
    """An unfinished segment from `start` to `end` (inclusive), and how many offsets of it `orders-0` lacks."""

    start: int
    end: int
    gaps: int


@pytest.mark.parametrize("is_rebuilt", [False, True])
@pytest.mark.parametrize("reach", [Reach(45, 59, 1), Reach(45, 49, 0), Reach(40, 50, 1)])
def test_an_unfinished_segment_that_reaches_past_the_end_is_a_gap_wherever_it_begins(
    files: RemoteLogFiles, reach: Reach, *, is_rebuilt: bool
) -> None:
    leave_unfinished(files, reach.start, reach.end)
    if is_rebuilt:
        assert rebuild(files) == 0

    gaps = plan_of(files).gaps

    assert len(gaps) == reach.gaps
    assert all(mentions(gap.message, "1 segment", "offset 50") for gap in gaps)
    assert not plan_of(files, to_offset=50).gaps


def leave_unfinished(files: RemoteLogFiles, start: int, end: int) -> None:
    """Copy a segment of orders-0 up to its commit marker, and die."""
    content = b"x" * 1000
    with files.open() as remote_log:
        lease = held_by(remote_log, "a copy that died")
        segment = a_segment(
            lease, start, end, size=len(content), segment_id=RemoteLogSegmentId(ORDERS_0, random_uuid())
        )
        remote_log.context.segments.add_remote_log_segment_metadata(segment, lease)
        remote_log.context.storage.copy_log_segment_data(segment, segment_data(content))
        remote_log.context.leases.release(lease)
    for path in objects_of(files, 0, f"{segment.segment_id.id}.commit"):
        path.unlink()


def test_a_store_that_cannot_be_listed_is_restored_from_without_a_look_at_what_the_metadata_lack(
    files: RemoteLogFiles,
) -> None:
    leave_unfinished(files, 50, 59)
    with files.open() as remote_log:
        assert len(remote_log.restores.plan(RestoreRequest("orders")).gaps) == 1
        unlisted = Unlisted(remote_log.context.storage)

        plan = plan_restore(remote_log.context.segments, remote_log.context.leases, unlisted, RestoreRequest("orders"))
        restored, _ = restore_to_directory(plan, unlisted, DirectoryTarget(files.root / "restored"))

    assert (plan.gaps, plan.notices) == ((), ())
    assert restored.log_end_offset == 50


class Unlisted(RemoteStorageManager):
    """A user's own class that has no more than KIP-405 asks for."""

    def __init__(self, storage: RemoteStorageManager) -> None:
        self._storage = storage

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes:
        return self._storage.copy_log_segment_data(metadata, data)

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int = 0, end_position: int | None = None
    ) -> Iterator[bytes]:
        return self._storage.fetch_log_segment(metadata, start_position, end_position)

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, kind: IndexKind) -> bytes:
        return self._storage.fetch_index(metadata, kind)

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        self._storage.delete_log_segment_data(metadata)

    def close(self) -> None:
        self._storage.close()


def test_a_partition_that_was_deleted_is_no_gap(files: RemoteLogFiles) -> None:
    state = PartitionState(delete_state=PartitionDeleteState.FINISHED)
    with files.open() as remote_log:
        remote_log.context.storage.partition_manifests.write(PartitionManifest(partition_of(number=2), 7, state, 1))  # type: ignore[attr-defined]
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
        assert mentions(notice.message, "2 segments", "offset 50", "being copied")
        files.clock.now += remote_log.context.settings.lease_duration_ms + 1
        [gap] = remote_log.restores.plan(RestoreRequest("orders")).gaps
        assert mentions(gap.message, "2 segments", "offset 50")
        assert copy(remote_log).is_whole
        assert not remote_log.restores.plan(RestoreRequest("orders")).gaps


@pytest.mark.parametrize("state", [SegmentState.DELETE_SEGMENT_STARTED, SegmentState.DELETE_SEGMENT_FINISHED])
def test_a_segment_under_deletion_after_the_end_is_no_gap(files: RemoteLogFiles, state: SegmentState) -> None:
    with files.open() as remote_log:
        lease = held_by(remote_log, "test")
        last = segments_of(remote_log)[-1]
        for step in (SegmentState.DELETE_SEGMENT_STARTED, state):
            update: RemoteLogSegmentMetadataUpdate = a_step(last, step)
            remote_log.context.segments.update_remote_log_segment_metadata(update, lease)

    plan = plan_of(files)

    assert plan.partitions[0].log_end_offset == 40
    assert (plan.gaps, plan.notices) == ((), ())


def test_offsets_that_a_later_leader_truncated_are_no_gap(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        lineage = (EpochEntry(0, 0), EpochEntry(1, 40))
        remote_log.context.segments.put_lineage(ORDERS_0, lineage, held_by(remote_log, "test"))

    plan = plan_of(files)

    assert plan.partitions[0].log_end_offset == 40
    assert (plan.gaps, plan.notices) == ((), ())
