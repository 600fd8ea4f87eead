"""Complete uncommitted copies whose offsets no other segment holds: a repair checks and commits them."""

from __future__ import annotations

import shutil
import sqlite3
import weakref
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from support.clocks import ManualClock
from support.command_line import mentions, run_on
from support.metadata_files import database_of, remove_metadata
from support.remote_logs import (
    ENABLED,
    ORDERS_0,
    RemoteLogFiles,
    a_copied_remote_log,
    a_remote_log,
    be_the_original,
    begin,
    carry_out,
    flip_bit,
    held_by,
    offsets_read,
    ranges,
    segments_of,
    states_of,
    unsynced,
)
from support.simulated_crashes import dies_at
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry, write_leader_epochs
from tiered_storage.kafka_log.files.log_segment import LogSegment
from tiered_storage.remote_log.audit.report import AnomalyKind
from tiered_storage.remote_log.context import store_options
from tiered_storage.remote_log.copy.tasks import CommitReport, CopyPlan
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.metadata.manifest_sync import manifests_of
from tiered_storage.remote_log.model import (
    PartitionDeleteState,
    PartitionState,
    RemoteLogSegmentMetadata,
    RemotePartitionDeleteMetadata,
)
from tiered_storage.remote_log.rebuild.metadata_rebuild import rebuild_metadata
from tiered_storage.remote_log.repair.plan import RepairPlan
from tiered_storage.remote_log.repair.repairs import RepairReport
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage.remote_log.storage.commit_marker import StoredCopy
from tiered_storage.remote_log.storage.documents.partition_manifest import PartitionManifest
from tiered_storage.remote_log.storage.index_bundle import build_bundle, parse_bundle
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager

STARTED, FINISHED, DELETING = "COPY_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED", "DELETE_SEGMENT_STARTED"
TOPICS = {"orders": {**ENABLED, "remote.deletion.allowed": False}}
LATER = 4_000_000


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    """All three segments were copied whole, the run was killed before its commit, and the local log is gone."""
    files = a_remote_log(tmp_path, topics=TOPICS)
    with files.open() as remote_log:
        remote_log.context.bind_store()
        carry_out(remote_log, begin(remote_log))
    shutil.rmtree(files.partition_directory())
    files.clock.now = 2_000_000_000_000
    return files


def planned(remote_log: RemoteLogManager) -> RepairPlan:
    return remote_log.repairs.plan(remote_log.checks.audit(), EVERYTHING)


def repaired(remote_log: RemoteLogManager) -> RepairReport:
    def nothing(_: CopyPlan) -> CommitReport:
        raise AssertionError("nothing local is there to be copied")

    return remote_log.repairs.carry_out(planned(remote_log), "repair", nothing)


def remove_markers(files: RemoteLogFiles) -> None:
    for marker in files.objects(".commit"):
        marker.unlink()


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("with_markers", [True, False])
def test_uncommitted_segments_are_finished_and_their_former_objects_deleted(
    files: RemoteLogFiles, with_markers: bool, marked: bool
) -> None:
    if not with_markers:
        remove_markers(files)
    if marked:
        with files.open() as remote_log:
            assert remote_log.deletions.delete_marked("expire").failures == ()
        files.clock.now += LATER
        with files.open() as remote_log:
            messages = [each.message for each in remote_log.deletions.delete_marked("expire").failures]
        assert ["'tiered-storage repair' commits it" in message for message in messages] == [True] * 3
    with files.open() as remote_log:
        before = {segment.segment_id for segment in segments_of(remote_log)}
        assert ranges(planned(remote_log).unfinished) == [(0, 9), (10, 19), (20, 29)]

        report = repaired(remote_log)

        assert report.failures == ()
        assert ranges(report.finished) == [(0, 9), (10, 19), (20, 29)]
        assert not before & {segment.segment_id for segment in report.finished}
        assert sorted(states_of(remote_log)) == sorted(
            [(start, state) for start in (0, 10, 20) for state in (FINISHED, DELETING if marked else STARTED)]
        )
        assert offsets_read(remote_log, 0) == list(range(30))
        assert remote_log.checks.audit(deep=True).anomalies == ()
        assert planned(remote_log).is_empty
    for _ in range(2):
        files.clock.now += LATER
        with files.open() as remote_log:
            assert remote_log.deletions.delete_marked("expire").failures == ()
    with files.open() as remote_log:
        assert states_of(remote_log) == [(start, FINISHED) for start in (0, 10, 20)]
        assert offsets_read(remote_log, 0) == list(range(30))
    assert len(files.objects()) == 9


def test_an_audit_reports_uncommitted_segments_until_they_are_finished(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        [notice] = remote_log.checks.audit().notices
        assert mentions(notice, "orders-0", "3 uncommitted copies", "complete in the store")
        assert "'tiered-storage repair --dry-run'" in notice
        repaired(remote_log)
        remote_log.deletions.delete_marked("expire")
    files.clock.now += LATER
    with files.open() as remote_log:
        remote_log.deletions.delete_marked("expire")
        assert remote_log.checks.audit().notices == ()


def test_a_segment_finished_below_others_stays_if_no_log_start_is_known(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=TOPICS)
    files.objects(".commit")[1].unlink()
    for path in (*files.store.rglob("state/*.json"), *files.root.glob("state/remote_log_metadata.db*")):
        path.unlink()
    shutil.rmtree(files.partition_directory())
    settings = files.settings()
    rebuild_metadata(settings, store_options(settings, {}), files.clock)
    files.clock.now += LATER

    with files.open() as remote_log:
        remote_log.deletions.clocks.trust()
        assert remote_log.context.segments.log_start_offset(ORDERS_0) is None
        assert ranges(repaired(remote_log).finished) == [(10, 19)]
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == 0
        assert offsets_read(remote_log, 0) == list(range(30))


def test_a_segment_that_lost_its_marker_before_a_rebuild_is_finished_too(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=TOPICS)
    shutil.rmtree(files.partition_directory())
    files.objects(".commit")[1].unlink()
    remove_metadata(files)
    assert run_on(files, "rebuild-metadata", "--yes").exit_code == 0
    files.clock.now = 2_000_000_000_000
    with files.open() as remote_log:
        remote_log.deletions.clocks.trust()
        found = remote_log.checks.audit()
        assert [(anomaly.kind, anomaly.offsets) for anomaly in found.anomalies] == [(AnomalyKind.GAP, (10, 19))]
        plan = remote_log.repairs.plan(found, EVERYTHING)
        assert (ranges(plan.unfinished), plan.advice) == ([(10, 19)], ())

        assert ranges(repaired(remote_log).finished) == [(10, 19)]

        assert offsets_read(remote_log, 0) == list(range(30))
        assert remote_log.checks.audit(deep=True).anomalies == ()


def test_an_unknown_log_start_hides_no_readable_segment(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=TOPICS)
    shutil.rmtree(files.partition_directory())
    files.objects(".commit")[1].unlink()
    database = database_of(files)
    remove_metadata(files)
    assert run_on(files, "rebuild-metadata", "--yes").exit_code == 0
    for document in files.store.rglob("state/*.json"):
        document.unlink()
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("DELETE FROM log_starts")
    files.clock.now = 2_000_000_000_000
    with files.open() as remote_log:
        remote_log.deletions.clocks.trust()
        assert ranges(repaired(remote_log).finished) == [(10, 19)]
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == 0
        assert offsets_read(remote_log, 0) == list(range(30))


def test_a_copy_of_which_only_the_marker_is_whole_waits_for_a_backup(files: RemoteLogFiles) -> None:
    data = files.objects(".log")[0]
    data.rename(files.root / "away")
    with files.open() as remote_log:
        plan = planned(remote_log)
        assert ranges(plan.unfinished) == [(10, 19), (20, 29)]
        [left] = plan.advice
        assert mentions(left.message, "commit marker", "offsets 0 to 9")
        remote_log.deletions.delete_marked("expire")
    files.clock.now += LATER
    with files.open() as remote_log:
        [failure, *_] = remote_log.deletions.delete_marked("expire").failures
    assert mentions(failure.message, "commit marker", "offsets 0 to 9")
    objects = f"{data.relative_to(files.store).with_suffix('')}.*"
    assert mentions(failure.message, objects, "missing or corrupt", "backup")


def test_the_command_says_what_it_would_finish_and_finishes_it(files: RemoteLogFiles) -> None:
    shown = run_on(files, "repair", "--dry-run", "--json")
    assert [row["action"] for row in shown.rows] == ["finish"] * 3
    assert shown.exit_code == 0
    with files.open() as remote_log:
        assert {state for _, state in states_of(remote_log)} == {STARTED}

    done = run_on(files, "repair", "--json")

    assert done.exit_code == 0, done.err
    assert [row["action"] for row in done.rows] == ["finished"] * 3
    with files.open() as remote_log:
        assert offsets_read(remote_log, 0) == list(range(30))


def rewrite_manifest(bundle: Path) -> None:
    """Let indexes and data disagree though every checksum is right."""
    contents = parse_bundle(bundle.read_bytes(), "bundle")
    other = {kind: content for kind, content in contents.items() if not kind.name.startswith("OFFSET")}
    bundle.write_bytes(build_bundle(other))


@pytest.mark.parametrize("what", ["a flipped bit", "an index that is missing"])
def test_a_copy_not_proved_whole_stays_and_no_later_one_is_finished(files: RemoteLogFiles, what: str) -> None:
    remove_markers(files)
    if what == "a flipped bit":
        flip_bit(files.objects(".log")[1], 100)
    else:
        rewrite_manifest(files.objects(".indexes")[1])
    with files.open() as remote_log:
        report = repaired(remote_log)

        assert ranges(report.finished) == [(0, 9)]
        [failure] = report.failures
        assert "so do later copies" in failure.message
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == 0
        assert offsets_read(remote_log, 0) == list(range(10))
        # Nothing that was tried became whole, or visible.
        assert [state for start, state in states_of(remote_log) if start > 0] == [STARTED] * 3
        assert len(files.objects(".commit")) == 1
    files.clock.now += LATER
    with files.open() as remote_log:
        remote_log.deletions.delete_marked("expire")
    files.clock.now += LATER
    with files.open() as remote_log:
        remote_log.deletions.delete_marked("expire")
    assert {path.name[:20] for path in files.objects(".log")} == {f"{start:020}" for start in (0, 10, 20)}


def test_a_second_whole_copy_of_the_same_offsets_takes_the_place_of_a_broken_one(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, topics=TOPICS)
    with files.open() as remote_log:
        remote_log.context.bind_store()
        carry_out(remote_log, begin(remote_log))
        carry_out(remote_log, begin(remote_log), "runs/test/2")
    shutil.rmtree(files.partition_directory())
    files.clock.now = 2_000_000_000_000
    remove_markers(files)
    flip_bit(files.objects(".log")[0], 100)
    flip_bit(files.objects(".log")[3], 100)
    with files.open() as remote_log:
        report = repaired(remote_log)
        assert ranges(report.finished) == [(0, 9), (10, 19), (20, 29)]
        assert offsets_read(remote_log, 0) == list(range(30))


def test_segments_that_a_later_leader_contradicts_are_not_finished(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        lease = held_by(remote_log, "a later run")
        remote_log.context.segments.put_lineage(ORDERS_0, [EpochEntry(0, 0), EpochEntry(3, 15)], lease)
        remote_log.context.leases.release(lease)

        report = repaired(remote_log)

        assert ranges(report.finished) == [(0, 9)]
        assert mentions(report.failures[0].message, "offsets 10 to 19", "leader epochs")


def test_later_leaders_in_the_local_log_count(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, topics=TOPICS)
    with files.open() as remote_log:
        remote_log.context.bind_store()
        carry_out(remote_log, begin(remote_log))
    files.clock.now = 2_000_000_000_000
    for base in (0, 10, 20):
        LogSegment(base, files.partition_directory()).log_path.unlink()
    write_leader_epochs(files.partition_directory() / "leader-epoch-checkpoint", [EpochEntry(0, 0), EpochEntry(2, 25)])
    with files.open() as remote_log:
        report = repaired(remote_log)

        assert ranges(report.finished) == [(0, 9), (10, 19)]
        assert mentions(report.failures[0].message, "offsets 20 to 29", "leader epochs")
        assert remote_log.context.segments.partition_state(ORDERS_0).lineage == (EpochEntry(0, 0), EpochEntry(2, 25))


@pytest.mark.parametrize("known", ["the metadata", "the store"])
def test_the_global_log_start_is_not_moved_back_and_what_lies_below_it_is_not_finished(
    files: RemoteLogFiles, known: str
) -> None:
    with files.open() as remote_log:
        lease = held_by(remote_log, "expire")
        if known == "the metadata":
            remote_log.context.segments.advance_log_start_offset(ORDERS_0, 15, lease)
        else:
            manifests = manifests_of(remote_log.context.storage)
            assert manifests is not None
            state = PartitionState(15, (EpochEntry(0, 0),))
            manifests.write(PartitionManifest(ORDERS_0, lease.fencing_number, state, files.clock.now))
        remote_log.context.leases.release(lease)

        assert ranges(repaired(remote_log).finished) == [(10, 19), (20, 29)]
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == 15


def test_the_global_log_start_moves_by_no_repair(tmp_path: Path) -> None:
    """An expiry was killed when only the store knew of it; then deletion was forbidden."""
    files = a_copied_remote_log(tmp_path, topics=TOPICS)
    files.append(4)
    with files.open() as remote_log:
        carry_out(remote_log, begin(remote_log))
    shutil.rmtree(files.partition_directory())
    files.clock.now = 2_000_000_000_000
    with files.open() as remote_log:
        lease = held_by(remote_log, "expire")
        manifests = manifests_of(remote_log.context.storage)
        assert manifests is not None
        state = replace(remote_log.context.segments.partition_state(ORDERS_0), log_start_offset=20)
        manifests.write(PartitionManifest(ORDERS_0, lease.fencing_number, state, files.clock.now))
        remote_log.context.leases.release(lease)

        assert ranges(repaired(remote_log).finished) == [(30, 39), (40, 49)]
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == 0
        assert offsets_read(remote_log, 0) == list(range(50))


def test_the_indexes_of_one_copy_at_a_time_are_held(files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[weakref.ref[IndexesOfACopy]] = []
    most = 0
    real = ObjectRemoteStorageManager.find_copy

    def find_copy(self: ObjectRemoteStorageManager, metadata: RemoteLogSegmentMetadata) -> StoredCopy | None:
        nonlocal most
        found = real(self, metadata)
        if found is None:
            return None
        contents = IndexesOfACopy(found.contents)
        seen.append(weakref.ref(contents))
        most = max(most, sum(each() is not None for each in seen))
        return replace(found, contents=contents)

    monkeypatch.setattr(ObjectRemoteStorageManager, "find_copy", find_copy)
    with files.open() as remote_log:
        assert len(repaired(remote_log).finished) == 3
    assert most <= 2, "the one before may still be on its way out"


class IndexesOfACopy(dict[IndexKind, bytes]):
    """A dictionary that can be referred to weakly."""


def test_a_partition_that_is_held_young_or_being_deleted_is_left_alone(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        plan = planned(remote_log)
        lease = held_by(remote_log, "another run")
        report = remote_log.repairs.carry_out(plan, "repair", lambda _: CommitReport((), (), (), (), retriable=True))
        assert report.finished == ()
        assert mentions(report.failures[0].message, "another run", "leases end")
        deletion = RemotePartitionDeleteMetadata(ORDERS_0, PartitionDeleteState.MARKED, files.clock.now)
        remote_log.context.segments.put_remote_partition_delete_metadata(deletion, lease)
        assert planned(remote_log).unfinished == ()


def test_repair_leaves_recent_copies_and_copies_of_local_segments(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, topics=TOPICS)
    with files.open() as remote_log:
        remote_log.context.bind_store()
        carry_out(remote_log, begin(remote_log))
        files.clock.now = 2_000_000_000_000
        assert planned(remote_log).unfinished == ()
        shutil.rmtree(files.partition_directory())
        files.clock.now = min(segment.event_timestamp for segment in segments_of(remote_log))
        assert planned(remote_log).unfinished == ()


def test_a_repair_that_dies_anywhere_is_finished_by_the_next(tmp_path: Path) -> None:
    before = a_remote_log(tmp_path / "before", topics=TOPICS)
    with before.open() as remote_log:
        remote_log.context.bind_store()
        carry_out(remote_log, begin(remote_log, max_segments=1))
    shutil.rmtree(before.partition_directory())
    lived = False
    for step in range(30):
        root = tmp_path / str(step)
        shutil.copytree(before.root, root)
        be_the_original(root / "state" / "remote_log_metadata.db")
        files = replace(before, root=root, clock=ManualClock(2_000_000_000_000))
        with unsynced():
            with files.open() as remote_log, dies_at(step, after_it=step % 2 == 1):
                lived = not repaired(remote_log).failures
            files.clock.now += LATER
            with files.open() as remote_log:
                assert repaired(remote_log).failures == ()
                assert offsets_read(remote_log, 0) == list(range(10)), step
                assert remote_log.checks.audit(deep=True).anomalies == ()
        shutil.rmtree(root)
        if lived:
            break
    assert lived
    assert step > 8
