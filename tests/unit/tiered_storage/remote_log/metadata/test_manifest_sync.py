"""The store keeps the partitions' state of the metadata."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.command_line import mentions, run_on
from support.remote_logs import (
    ENABLED,
    ORDERS_0,
    RemoteLogFiles,
    a_copied_remote_log,
    a_remote_log,
    begin,
    carry_out,
    copy,
    held_by,
    partition_of,
    segments_of,
    states_of,
)
from tiered_storage.errors import LeaseLostError, OutdatedMetadataError, RemoteStorageError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry, write_leader_epochs
from tiered_storage.remote_log.copy.plan import CopySelection, plan_copy
from tiered_storage.remote_log.copy.tasks import CopyPlan
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.metadata.manifest_sync import (
    StoredState,
    listed_partition,
    manifests_of,
    write_partition_state,
    write_partition_states,
)
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import GrantedLeases
from tiered_storage.remote_log.metadata.sql.leases import SqlLeases
from tiered_storage.remote_log.model import Lease, PartitionState, TopicIdPartition
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage.remote_log.storage.documents.partition_manifest import PartitionManifest, PartitionManifests

ONE_LEADER = (EpochEntry(0, 0),)
OTHERS = ("orders", 1), ("clicks", 0)


def document(remote_log: RemoteLogManager) -> PartitionManifest | None:
    manifests = manifests_of(remote_log.context.storage)
    assert manifests is not None
    return manifests.read(ORDERS_0)


def check(remote_log: RemoteLogManager) -> int:
    """Return how many objects the partition has."""
    return len(listed_partition(ORDERS_0, remote_log.context.storage))


def test_the_first_commit_writes_the_manifest_and_later_ones_only_changes(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        begun = begin(remote_log, max_segments=1)
        assert document(remote_log) is None
        remote_log.commit_copy(carry_out(remote_log, begun))
        first = document(remote_log)
        assert first == PartitionManifest(ORDERS_0, 1, PartitionState(0, ONE_LEADER), files.clock.now)
        assert first.state == remote_log.context.segments.partition_state(ORDERS_0)

        copy(remote_log, max_segments=1)
        assert document(remote_log) == first

        lineage = (EpochEntry(0, 0), EpochEntry(2, 25))
        write_leader_epochs(files.partition_directory() / "leader-epoch-checkpoint", lineage)
        begin(remote_log)
        assert document(remote_log) == replace(first, fencing_number=3, state=PartitionState(0, lineage))
        assert remote_log.checks.audit(deep=True).anomalies == ()


def test_a_partition_without_any_segment_is_not_reported(tmp_path: Path) -> None:
    with a_remote_log(tmp_path, {("orders", 0): 0}).open() as remote_log:
        begin(remote_log)
        assert remote_log.context.segments.partition_state(ORDERS_0).lineage == ONE_LEADER
        assert document(remote_log) is None


def test_nothing_is_committed_while_the_manifest_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 2, ("clicks", 0): 1})

    def away(self: PartitionManifests, document: PartitionManifest) -> None:
        if document.topic_id_partition == ORDERS_0:
            raise RemoteStorageError("the store is away")
        written(self, document)

    written = PartitionManifests.write
    with files.open() as remote_log:
        outcomes = carry_out(remote_log, begin(remote_log))
        with monkeypatch.context() as patched:
            patched.setattr(PartitionManifests, "write", away)
            report = remote_log.commit_copy(outcomes)

        assert [(each.partition, each.message) for each in report.failures] == [("orders-0", "the store is away")]
        assert report.retriable
        assert [str(each.topic_id_partition) for each in report.committed] == ["clicks-0"]
        assert remote_log.context.segments.partition_state(ORDERS_0).log_start_offset is None
        assert {state for _, state in states_of(remote_log)} == {"COPY_SEGMENT_STARTED"}

        report = remote_log.commit_copy(outcomes)
        assert report.is_whole
        assert {state for _, state in states_of(remote_log)} == {"COPY_SEGMENT_FINISHED"}


def test_a_state_is_written_once_and_never_over_a_later_holders(tmp_path: Path) -> None:
    with a_copied_remote_log(tmp_path).open() as remote_log:
        early, late = held_by(remote_log, "run"), held_by(remote_log, "run")
        moved = PartitionState(10, ONE_LEADER)
        write_partition_state(remote_log.context.storage, remote_log.context.leases, late, StoredState(moved), 7)
        write_partition_state(remote_log.context.storage, remote_log.context.leases, late, StoredState(moved), 8)
        assert document(remote_log) == PartitionManifest(ORDERS_0, late.fencing_number, moved, 7)

        with pytest.raises(LeaseLostError, match="was taken over"):
            write_partition_state(
                remote_log.context.storage, remote_log.context.leases, early, StoredState(PartitionState(20)), 9
            )
        early_state = [(early, StoredState(PartitionState(20)))]
        [(partition, error)] = write_partition_states(
            remote_log.context.storage, remote_log.context.leases, early_state, 9
        ).items()
        assert (partition, type(error)) == (ORDERS_0, LeaseLostError)
        assert write_partition_states(remote_log.context.storage, remote_log.context.leases, [], 9) == {}


def test_a_document_of_a_lease_that_was_never_given_is_not_written_over(tmp_path: Path) -> None:
    with a_copied_remote_log(tmp_path).open() as remote_log:
        lease = held_by(remote_log, "run")
        number = lease.fencing_number + 2
        manifests = manifests_of(remote_log.context.storage)
        assert manifests is not None
        manifests.write(PartitionManifest(ORDERS_0, number, PartitionState(10), 7))
        with pytest.raises(OutdatedMetadataError, match=f"orders-0: lease {number} has written"):
            write_partition_state(
                remote_log.context.storage, remote_log.context.leases, lease, StoredState(PartitionState(20)), 9
            )


def meanwhile(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> None:
    """Let `work` be done by somebody else just before the next lease is given."""
    acquired = SqlLeases.acquire

    def acquire(self: SqlLeases, partition: TopicIdPartition, owner: str, duration_ms: int) -> Lease:
        monkeypatch.setattr(SqlLeases, "acquire", acquired)
        work()
        return self.acquire(partition, owner, duration_ms)

    monkeypatch.setattr(SqlLeases, "acquire", acquire)


def test_a_trim_keeps_manifest_changes_made_before_its_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": {**ENABLED, "local.retention.bytes": 1}})
    lineage = (EpochEntry(0, 0), EpochEntry(2, 32))
    write_leader_epochs(files.partition_directory() / "leader-epoch-checkpoint", lineage)
    with files.open() as remote_log:
        deletions = remote_log.deletions

        def delete_records() -> None:
            plan = deletions.plan_record_deletion(ORDERS_0, 20)
            assert plan is not None
            assert deletions.mark_expired([plan], "delete-records") == ((ORDERS_0,), ())

        plans, _ = deletions.plan_local_retention(EVERYTHING, files.clock.now)
        meanwhile(monkeypatch, delete_records)
        deletions.enforce_local_retention(plans)

        known = document(remote_log)
        assert known is not None
        assert known.state == remote_log.context.segments.partition_state(ORDERS_0) == PartitionState(20, lineage)


def plan_without_asking_the_store(remote_log: RemoteLogManager) -> CopyPlan:
    return plan_copy(remote_log.context, CopySelection(EVERYTHING))


def test_foreign_files_and_deleted_segments_do_not_make_metadata_outdated(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": {"remote.storage.enable": True}})
    with files.open() as remote_log:
        (files.objects(".log")[0].parent / "notes.txt").write_text("mine")
        assert check(remote_log) == 11
        begun = begin(remote_log)
        assert begun.tasks == ()
        files.append(2)
        dead = carry_out(remote_log, begin(remote_log))
        assert len(dead) == 1
        for _ in range(2):
            files.clock.now += 10**9
            deleted = remote_log.deletions.delete_marked("cleaner").deleted
        assert len(deleted) == 1
        assert check(remote_log) == 11


def test_a_custom_storage_manager_keeps_no_partition_manifests(tmp_path: Path) -> None:
    class Own:
        """No ObjectRemoteStorageManager."""

    own = Own()
    with a_copied_remote_log(tmp_path).open() as remote_log:
        lease = held_by(remote_log, "run")
        leases = remote_log.context.leases
        write_partition_state(own, leases, lease, StoredState(PartitionState(10)), 7)  # type: ignore[arg-type]
        assert write_partition_states(own, leases, [(lease, StoredState(PartitionState(10)))], 7) == {}  # type: ignore[arg-type]
        assert listed_partition(ORDERS_0, own) == []  # type: ignore[arg-type]
        known = document(remote_log)
        assert known is not None
        assert known.state.log_start_offset == 0


CLICKS_0 = partition_of("clicks")
TWO_LEADERS = (EpochEntry(0, 0), EpochEntry(1, 22))


@pytest.fixture
def two_due(tmp_path: Path) -> RemoteLogFiles:
    """clicks-0 and orders-0 have a copied segment each, one more that is due, and a new leader to tell the store of."""
    files = a_copied_remote_log(tmp_path, {("clicks", 0): 1, ("orders", 0): 1})
    for topic in ("clicks", "orders"):
        files.append(2, topic)
        write_leader_epochs(files.partition_directory(topic) / "leader-epoch-checkpoint", TWO_LEADERS)
    return files


def write_state(remote_log: RemoteLogManager, number: int, partition: TopicIdPartition = ORDERS_0) -> None:
    manifests = manifests_of(remote_log.context.storage)
    assert manifests is not None
    manifests.write(PartitionManifest(partition, number, PartitionState(0), 7))


def test_a_partition_of_which_the_store_knows_more_is_left_out_alone_and_named(two_due: RemoteLogFiles) -> None:
    with two_due.open() as remote_log:
        write_state(remote_log, 7)

        begun = remote_log.begin_copy(plan_without_asking_the_store(remote_log), "copy")

        assert [task.metadata.topic_id_partition for task in begun.tasks] == [CLICKS_0]
        assert begun.left == ()
        [failed] = begun.failed
        assert failed.partition == "orders-0"
        assert mentions(failed.message, "OutdatedMetadataError: orders-0", "lease 7")
        assert [segment.state.name for segment in segments_of(remote_log)] == ["COPY_SEGMENT_FINISHED"]
        assert remote_log.commit_copy(carry_out(remote_log, begun)).is_whole


def test_a_run_of_nothing_but_such_partitions_ends_at_once(two_due: RemoteLogFiles) -> None:
    with two_due.open() as remote_log:
        write_state(remote_log, 7)
        write_state(remote_log, 7, CLICKS_0)
        with pytest.raises(OutdatedMetadataError, match="lease 7 has written"):
            remote_log.begin_copy(plan_without_asking_the_store(remote_log), "copy")


def test_a_lease_lost_before_the_store_is_written_leaves_that_partition_alone(
    two_due: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    with two_due.open() as remote_log:
        acquire_many = SqlLeases.acquire_many

        def acquired_and_stood_still(self: SqlLeases, *asked: Any) -> GrantedLeases:
            granted = acquire_many(self, *asked)
            two_due.clock.now += remote_log.context.settings.lease_duration_ms + 1
            monkeypatch.undo()
            write_state(remote_log, held_by(remote_log, "another run").fencing_number)
            return granted

        monkeypatch.setattr(SqlLeases, "acquire_many", acquired_and_stood_still)
        begun = begin(remote_log)

        assert [task.metadata.topic_id_partition for task in begun.tasks] == [CLICKS_0]
        assert begun.failed == ()
        [left] = begun.left
        assert left.partition == "orders-0"
        assert "another run" in left.message
        assert [segment.state.name for segment in segments_of(remote_log)] == ["COPY_SEGMENT_FINISHED"]
        assert remote_log.commit_copy(carry_out(remote_log, begun)).is_whole
        known = document(remote_log)
        assert known is not None
        assert known.fencing_number == 3


def test_a_lease_that_is_lost_before_anything_is_written_leaves_that_partition_alone(
    two_due: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    with two_due.open() as remote_log:
        segments = type(remote_log.context.segments)
        put_lineages = segments.put_lineages

        def stood_still(self: Any, observed: Any) -> Any:
            two_due.clock.now += remote_log.context.settings.lease_duration_ms + 1
            monkeypatch.undo()
            held_by(remote_log, "another run")
            return put_lineages(self, observed)

        monkeypatch.setattr(segments, "put_lineages", stood_still)
        begun = begin(remote_log)

        assert [task.metadata.topic_id_partition for task in begun.tasks] == [CLICKS_0]
        assert begun.failed == ()
        assert {(each.partition, "another run" in each.message) for each in begun.left} == {("orders-0", True)}
        assert [segment.state.name for segment in segments_of(remote_log)] == ["COPY_SEGMENT_FINISHED"]
        assert remote_log.commit_copy(carry_out(remote_log, begun)).is_whole


@pytest.mark.parametrize("when", ["read", "written"])
def test_a_store_that_fails_for_one_partition_fails_that_one_and_for_all_the_run(
    two_due: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    away: list[TopicIdPartition] = [ORDERS_0]
    read, written = PartitionManifests.newest_number, PartitionManifests.write

    def newest_number(self: PartitionManifests, partition: TopicIdPartition) -> int | None:
        if when == "read" and partition in away:
            raise RemoteStorageError("the store is away")
        return read(self, partition)

    def write(self: PartitionManifests, changed: PartitionManifest) -> None:
        if when == "written" and changed.topic_id_partition in away:
            raise RemoteStorageError("the store is away")
        written(self, changed)

    with two_due.open() as remote_log:
        monkeypatch.setattr(PartitionManifests, "newest_number", newest_number)
        monkeypatch.setattr(PartitionManifests, "write", write)
        begun = begin(remote_log)
        assert [task.metadata.topic_id_partition for task in begun.tasks] == [CLICKS_0]
        [failed] = begun.failed
        assert (failed.partition, failed.message.partition(": ")[0]) == ("orders-0", "RemoteStorageError")
        held_by(remote_log, "anybody")  # it was given back, or never taken

        away.append(CLICKS_0)
        for topic in ("clicks", "orders"):
            checkpoint = two_due.partition_directory(topic) / "leader-epoch-checkpoint"
            write_leader_epochs(checkpoint, [*TWO_LEADERS, EpochEntry(2, 24)])
        remote_log.context.leases.release_many(begun.leases)
        two_due.clock.now += remote_log.context.settings.lease_duration_ms + 1
        with pytest.raises(RemoteStorageError, match="away"):
            begin(remote_log, "next")
        held_by(remote_log, "somebody", CLICKS_0)


def test_the_command_line_copies_all_others_and_ends_with_1(two_due: RemoteLogFiles) -> None:
    with two_due.open() as remote_log:
        write_state(remote_log, 7)

    done = run_on(two_due, "copy")

    assert done.exit_code == 1
    assert mentions(done.err, "orders-0", "lease 7")
    with two_due.open() as remote_log:
        assert states_of(remote_log, CLICKS_0) == [(0, "COPY_SEGMENT_FINISHED"), (10, "COPY_SEGMENT_FINISHED")]
        assert states_of(remote_log) == [(0, "COPY_SEGMENT_FINISHED")]
