from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from support.command_line import mentions
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
    offsets_read,
    partition_of,
    states_of,
    with_context,
)
from tiered_storage.errors import ConfigurationError, DeletionRefusedError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.metadata.manifest_sync import manifests_of
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.metadata.sql.leases import SqlLeases
from tiered_storage.remote_log.model import Lease, LeaseHeldFinding, PartitionDeleteState, TopicIdPartition
from tiered_storage.remote_log.retention.object_deletion import DeletionReport, ObjectDeletion
from unit.tiered_storage.remote_log.retention.replaced_topics import show_created_again

MARKED, STARTED, FINISHED = PartitionDeleteState
DISABLED = {"orders": {**ENABLED, "remote.storage.enable": False}}


def mark(remote_log: RemoteLogManager) -> None:
    plan = remote_log.deletions.plan_topic_deletion("orders")
    marked, left = remote_log.deletions.mark_topic_deleted(plan, "delete-topic")
    assert (marked, left) == (tuple(one.topic_id_partition for one in plan.partitions), ())


def delete(remote_log: RemoteLogManager) -> DeletionReport:
    return remote_log.deletions.delete_marked("expire")


def state_of(remote_log: RemoteLogManager, partition: TopicIdPartition = ORDERS_0) -> PartitionDeleteState | None:
    return remote_log.context.segments.partition_state(partition).delete_state


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    return a_copied_remote_log(tmp_path, topics=DISABLED)


def test_a_marked_topic_is_deleted_in_the_background_and_what_is_local_stays(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        mark(remote_log)
        assert state_of(remote_log) is MARKED
        assert len(files.objects()) == 9

        assert len(delete(remote_log).deleted) == 3
        assert state_of(remote_log) is FINISHED
        assert files.objects() == []
        assert states_of(remote_log) == []
        assert offsets_read(remote_log, 0) == list(range(35))
        assert remote_log.checks.audit(deep=True).anomalies == ()
        assert delete(remote_log) == DeletionReport((), (), ())


def test_a_deletion_that_another_run_ended_meanwhile_stays_ended(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquired = SqlLeases.acquire
    with files.open() as remote_log:
        mark(remote_log)

        def acquire(self: SqlLeases, partition: TopicIdPartition, owner: str, duration_ms: int) -> Lease:
            monkeypatch.setattr(SqlLeases, "acquire", acquired)
            assert len(remote_log.deletions.delete_marked("another run").deleted) == 3
            return self.acquire(partition, owner, duration_ms)

        monkeypatch.setattr(SqlLeases, "acquire", acquire)
        assert delete(remote_log) == DeletionReport((), (), ())
        assert state_of(remote_log) is FINISHED
        manifests = manifests_of(remote_log.context.storage)
        assert manifests is not None
        document = manifests.read(ORDERS_0)
        assert document is not None
        assert document.state.delete_state is FINISHED


def test_a_topic_of_several_clusters_is_refused_by_their_names(files: RemoteLogFiles) -> None:
    elsewhere = replace(ORDERS_0, cluster_id="another-cluster")
    with files.open() as remote_log:
        lease = held_by(remote_log, "test", elsewhere)
        remote_log.context.segments.put_lineage(elsewhere, (EpochEntry(0, 0),), lease)
        for topic_id in (None, ORDERS_0.topic_id):
            with pytest.raises(ConfigurationError, match="several clusters, another-cluster, test-cluster"):
                remote_log.deletions.plan_topic_deletion("orders", topic_id)


def test_another_life_of_the_same_name_is_not_touched(files: RemoteLogFiles) -> None:
    former = replace(ORDERS_0, topic_id=partition_of("another").topic_id)
    with files.open() as remote_log:
        lease = held_by(remote_log, "test", former)
        remote_log.context.segments.advance_log_start_offset(former, 5, lease)
        remote_log.context.segments.put_lineage(former, (), lease)
        remote_log.context.leases.release(lease)
        with pytest.raises(ConfigurationError, match="had several "):
            remote_log.deletions.plan_topic_deletion("orders")

        plan = remote_log.deletions.plan_topic_deletion("orders", former.topic_id)
        remote_log.deletions.mark_topic_deleted(plan, "delete-topic")
        assert delete(remote_log).deleted == ()
        assert (state_of(remote_log, former), state_of(remote_log)) == (FINISHED, None)
        assert len(files.objects()) == 9


def test_a_marked_topic_is_not_copied_any_more(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, topics=DISABLED)
    with files.open() as remote_log:
        mark(remote_log)
        enabled = replace(remote_log.context.decided_topic(ORDERS_0), remote_storage_enable=True)
        remote_log.context.topics.put(enabled)

        assert states_of(remote_log) == []
        with pytest.raises(ConfigurationError, match=r"log\.dirs"):
            remote_log.deletions.plan_topic_deletion("orders")
        settings = remote_log.context.settings.model_copy(update={"bootstrap_servers": "kafka-1:9092"})
        with pytest.raises(ConfigurationError, match=r"kafka-1:9092 \(bootstrap"):
            with_context(remote_log, settings=settings).deletions.plan_topic_deletion("orders")
        assert remote_log.plan_copy().segments == ()


def test_a_tiered_topic_whose_local_partition_cannot_be_read_is_in_sight_too(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    (files.partition_directory() / "partition.metadata").write_text("garbage")
    with files.open() as remote_log, pytest.raises(ConfigurationError, match=r"log\.dirs"):
        remote_log.deletions.plan_topic_deletion("orders")


def test_a_copy_that_never_finished_waits_for_the_grace_time_and_so_does_the_end(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        carry_out(remote_log, begin(remote_log, "dead run"))
        files.clock.now += remote_log.context.settings.lease_duration_ms + 1
        remote_log.context.topics.put(replace(remote_log.context.decided_topic(ORDERS_0), remote_storage_enable=False))
        mark(remote_log)

        assert delete(remote_log).deleted == ()
        assert state_of(remote_log) is STARTED
        files.clock.now += remote_log.context.settings.remote_log_orphan_grace_ms
        assert len(delete(remote_log).deleted) == 3
        assert state_of(remote_log) is FINISHED
        assert files.objects() == []


def test_objects_that_a_zombie_writes_after_the_deletion_are_deleted_after_the_grace_time(
    files: RemoteLogFiles,
) -> None:
    with files.open() as remote_log:
        mark(remote_log)
        zombie = files.objects(".log")[0]
        content = zombie.read_bytes()
        finish = remote_log.context.settings.remote_log_orphan_grace_ms

        # The first look finds what was written again; files carry this machine's time, so the clock goes by that.
        zombie.with_suffix(".commit").unlink()
        delete(remote_log)
        zombie.write_bytes(content)
        assert state_of(remote_log) is FINISHED, "it had ended before"

    with files.open() as remote_log:
        files.clock.now = zombie.stat().st_mtime_ns // 1_000_000 + finish + 1
        assert [anomaly.is_leftover for anomaly in remote_log.checks.audit().anomalies] == [True]


def test_objects_that_a_zombie_writes_during_the_deletion_delay_its_end_by_the_grace_time(
    files: RemoteLogFiles,
) -> None:
    zombie = files.objects(".log")[0]
    content = zombie.read_bytes()
    real = ObjectDeletion._delete_under

    def delete_then_write(self: ObjectDeletion, lease: Lease, *rest: Any) -> bool:
        is_held = real(self, lease, *rest)
        zombie.write_bytes(content)
        return is_held

    with files.open() as remote_log:
        mark(remote_log)
        with mock.patch.object(ObjectDeletion, "_delete_under", delete_then_write):
            assert len(delete(remote_log).deleted) == 3
        assert state_of(remote_log) is STARTED

        over_at = files.clock.now - remote_log.context.settings.remote_log_orphan_grace_ms
        for written_at, state, objects in ((over_at + 1, STARTED, [zombie]), (over_at, FINISHED, [])):
            os.utime(zombie, ns=(0, written_at * 1_000_000))
            assert delete(remote_log).failures == ()
            assert (state_of(remote_log), files.objects()) == (state, objects)


def test_a_folder_with_something_foreign_in_it_is_reported_and_ends_later(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        mark(remote_log)
        foreign = files.objects()[0].with_name("notes.txt")
        foreign.write_text("mine")

        [failure] = delete(remote_log).failures
        assert "notes.txt" in failure.message
        assert state_of(remote_log) is STARTED
        foreign.unlink()
        assert delete(remote_log).failures == ()
        assert state_of(remote_log) is FINISHED


def test_a_partition_that_is_held_is_reported_and_deleted_by_the_next_run(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        lease = held_by(remote_log, "a copy")
        plan = remote_log.deletions.plan_topic_deletion("orders")
        marked, [left] = remote_log.deletions.mark_topic_deleted(plan, "delete-topic")
        assert marked == ()
        assert isinstance(left, LeaseHeldFinding)
        assert "a copy" in left.message

        remote_log.context.leases.release(lease)
        mark(remote_log)
        held_by(remote_log, "a copy")
        assert [finding.partition for finding in delete(remote_log).left] == ["orders-0"]


def test_without_the_right_nothing_is_marked_and_nothing_that_is_marked_is_deleted(files: RemoteLogFiles) -> None:
    forbidden = Topic(ORDERS_0.cluster_id, ORDERS_0.topic_id, "orders")
    with files.open() as remote_log:
        mark(remote_log)
        remote_log.context.topics.put(forbidden)

        report = delete(remote_log)
        assert report.deleted == ()
        [failure] = report.failures
        assert failure.partition == "orders-0"
        assert mentions(failure.message, "0 segments", "topics allow-deletion")
        assert len(files.objects()) == 9
        with pytest.raises(DeletionRefusedError, match="not allowed"):
            remote_log.deletions.plan_topic_deletion("orders")


def test_a_stop_holds_for_marks_too(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        plan = remote_log.deletions.plan_topic_deletion("orders")
        remote_log.context.safety.stop("", "ada")
        with pytest.raises(DeletionRefusedError, match="ada"):
            remote_log.deletions.mark_topic_deleted(plan, "delete-topic")
        assert state_of(remote_log) is None


def test_a_new_incarnation_is_copied_while_the_former_one_is_deleted(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    former = replace(ORDERS_0, topic_id=partition_of("another").topic_id)
    with files.open() as remote_log:
        lease = held_by(remote_log, "test", former)
        remote_log.context.segments.put_lineage(former, (), lease)
        remote_log.context.leases.release(lease)
        plan = remote_log.deletions.plan_topic_deletion("orders", former.topic_id)
        remote_log.deletions.mark_topic_deleted(plan, "delete-topic")
    files.append(4)

    with files.open() as remote_log:
        assert len(copy(remote_log).committed) == 2
        assert remote_log.find_partition("orders", 0) == ORDERS_0


def test_a_stop_before_the_end_keeps_the_deletion_and_its_documents(files: RemoteLogFiles) -> None:
    real = ObjectDeletion._delete_under

    def delete_then_stop(self: ObjectDeletion, lease: Lease, *rest: Any) -> bool:
        is_held = real(self, lease, *rest)
        self.context.safety.stop("enough", "ada")
        return is_held

    with files.open() as remote_log:
        mark(remote_log)
        with mock.patch.object(ObjectDeletion, "_delete_under", delete_then_stop):
            report = delete(remote_log)

        assert "ada stopped all deletions" in str(report.stopped)
        assert state_of(remote_log) is STARTED
        assert list(files.store.rglob("state/*.json")) != []
        remote_log.context.safety.lift("ada")
        delete(remote_log)
        assert state_of(remote_log) is FINISHED


def test_planning_binds_no_store(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, topics=DISABLED)
    with files.open() as remote_log:
        assert remote_log.deletions.plan_topic_deletion("orders").partitions

    assert files.objects() == []


@pytest.mark.parametrize(
    ("again", "unchanged", "marked"),
    [("a", "", "a"), ("ab", "cde", "ab"), ("ab", "cd", ""), ("ab", "c", ""), ("abcde", "", "")],
)
def test_of_a_cluster_that_looks_rebuilt_nothing_is_marked_without_a_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: str, unchanged: str, marked: str
) -> None:
    disabled = dict.fromkeys("abcde", DISABLED["orders"])
    files = a_copied_remote_log(tmp_path, {(name, 0): 1 for name in "abcde"}, topics=disabled)
    files.properties["remote.log.replaced.topic.grace.ms"] = 0
    with files.open() as remote_log:
        named = ([partition_of(name) for name in names] for names in (again, unchanged))
        show_created_again(monkeypatch, remote_log, *named)

        report = delete(remote_log)

        states = {name: state_of(remote_log, partition_of(name)) for name in "abcde"}
        assert "".join(name for name, state in states.items() if state is not None) == marked
        findings = [finding.message for finding in report.left]
        if marked:
            assert findings == []
        else:
            [why] = findings
            assert mentions(why, f"{len(again)} of {len(again + unchanged)} topics", "delete-topic NAME --topic-id ID")
