"""Scenario 20: a topic is deleted and created again; the remote data of the old topic id are deleted."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.command_line import CommandResult, run_on
from support.remote_logs import (
    ENABLED,
    LOG_CONFIG,
    NOW,
    ORDERS_0,
    RemoteLogFiles,
    a_copied_remote_log,
    append_batches,
    assert_clean,
    begin,
    carry_out,
    copy,
    offsets_read,
    topic_id,
    unsynced,
)
from tiered_storage.kafka_log.files.offset_checkpoint import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.remote_log.model import LeaseHeldFinding, PartitionDeleteState, TopicIdPartition

NEW_LIFE = topic_id("orders, created again")
NEW_ORDERS_0 = replace(ORDERS_0, topic_id=NEW_LIFE)


def delete_at_the_broker(files: RemoteLogFiles, topic: str = "orders") -> None:
    """Delete the topic as a broker does: its directory and its lines in the checkpoints."""
    shutil.rmtree(files.partition_directory(topic))
    for name in (HIGH_WATERMARK_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT, RECOVERY_POINT_CHECKPOINT):
        path = files.log_directory / name
        if path.is_file():
            known = read_offset_checkpoint(path)
            write_offset_checkpoint(path, {key: offset for key, offset in known.items() if key != (topic, 0)})


def create_again(files: RemoteLogFiles, batches: int = 5) -> None:
    with unsynced(), LogDirectoryWriter.open(files.log_directory, LOG_CONFIG, clock=lambda: NOW) as writer:
        append_batches(writer.create_log("orders", 0, NEW_LIFE, LOG_CONFIG), batches)


def delete_topic(files: RemoteLogFiles, *arguments: object) -> CommandResult:
    return run_on(files, "delete-topic", "orders", *arguments, "--json")


def state_of(files: RemoteLogFiles, partition: TopicIdPartition = ORDERS_0) -> PartitionDeleteState | None:
    with files.open() as remote_log:
        return remote_log.context.segments.partition_state(partition).delete_state


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    """A topic that was copied, deleted at the broker, created again under its name, and copied again."""
    made = a_copied_remote_log(tmp_path)
    delete_at_the_broker(made)
    create_again(made)
    with unsynced(), made.open() as remote_log:
        assert [segment.topic_id_partition for segment in copy(remote_log).committed] == [NEW_ORDERS_0] * 2
    return made


def test_a_topic_that_cannot_be_seen_is_not_a_deleted_topic(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    delete_at_the_broker(files)

    for command in ("copy", "retain", "expire"):
        assert run_on(files, command).exit_code == 0
    with files.open() as remote_log:
        assert offsets_read(remote_log, 0) == list(range(30))
        assert_clean(remote_log)


def test_the_old_incarnation_is_deleted_in_the_background_and_the_new_one_is_untouched(files: RemoteLogFiles) -> None:
    several = delete_topic(files)
    assert several.exit_code == 1
    assert "had several " in several.document["message"]
    assert all(each in several.document["message"] for each in (NEW_LIFE, ORDERS_0.topic_id))

    dry = delete_topic(files, "--topic-id", ORDERS_0.topic_id, "--dry-run")
    assert [(row["segments"], row["state"]) for row in dry.rows] == [(3, None)]
    assert state_of(files) is None
    assert delete_topic(files, "--topic-id", ORDERS_0.topic_id).exit_code == 0
    assert state_of(files) is PartitionDeleteState.MARKED
    assert len(files.objects(".log")) == 5, "in the background"

    assert run_on(files, "expire", "--json").document["deleted"] == 3
    assert (state_of(files), state_of(files, NEW_ORDERS_0)) == (PartitionDeleteState.FINISHED, None)
    assert all(NEW_LIFE in str(path) for path in files.objects())
    files.append(4)
    with files.open() as remote_log:
        assert len(copy(remote_log).committed) == 2
        assert remote_log.find_partition("orders", 0) == NEW_ORDERS_0
        assert offsets_read(remote_log, 0, NEW_ORDERS_0) == list(range(45))
        assert_clean(remote_log)


def test_a_topic_that_is_tiered_here_is_disabled_first(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    assert delete_topic(files).exit_code == 1
    run_on(files, "topics", "disable", "orders")

    assert delete_topic(files).exit_code == 0
    assert run_on(files, "expire", "--json").document["deleted"] == 3
    assert run_on(files, "topics", "enable", "orders", "--json").exit_code == 1
    with files.open() as remote_log:
        assert offsets_read(remote_log, 0) == list(range(35)), "what is local stays"
        assert_clean(remote_log)


def test_a_copy_that_is_under_way_when_its_topic_is_marked(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    files.append(4)
    with files.open() as remote_log:
        begun = begin(remote_log, "a copy")
        remote_log.context.topics.put(replace(remote_log.context.decided_topic(ORDERS_0), remote_storage_enable=False))
        plan = remote_log.deletions.plan_topic_deletion("orders")
        marked, [left] = remote_log.deletions.mark_topic_deleted(plan, "delete-topic")
        assert marked == ()
        assert isinstance(left, LeaseHeldFinding)
        assert "a copy" in left.message

        files.clock.now += remote_log.context.settings.lease_duration_ms + 1
        assert remote_log.deletions.mark_topic_deleted(plan, "delete-topic") == ((ORDERS_0,), ())
        late = remote_log.commit_copy(carry_out(remote_log, begun))
        assert late.committed == (), "the copy's lease is gone"
        assert len(remote_log.deletions.delete_marked("expire").deleted) == 3
        assert remote_log.context.segments.partition_state(ORDERS_0).delete_state is PartitionDeleteState.STARTED

        files.clock.now += remote_log.context.settings.remote_log_orphan_grace_ms
        assert len(remote_log.deletions.delete_marked("expire").deleted) == 2
        assert remote_log.context.segments.partition_state(ORDERS_0).delete_state is PartitionDeleteState.FINISHED
        assert files.objects() == []
        assert_clean(remote_log)


@pytest.mark.parametrize("interrupted", ["by a stop", "by a lost right"])
def test_a_deletion_that_is_interrupted_continues_later(files: RemoteLogFiles, interrupted: str) -> None:
    delete_topic(files, "--topic-id", ORDERS_0.topic_id)
    with files.open() as remote_log:
        decided = remote_log.context.decided_topic(ORDERS_0)
        if interrupted == "by a stop":
            remote_log.context.safety.stop("wait", "ada")
        else:
            remote_log.context.topics.put(replace(decided, remote_deletion_allowed=False))
    run_on(files, "expire")
    assert len(files.objects(".log")) == 5
    with files.open() as remote_log:
        remote_log.context.safety.lift("ada")
        remote_log.context.topics.put(replace(decided, remote_deletion_allowed=True))

    assert run_on(files, "expire", "--json").document["deleted"] == 3
    assert state_of(files) is PartitionDeleteState.FINISHED
    with files.open() as remote_log:
        assert_clean(remote_log)


def test_deleting_a_topic_twice_is_no_error(files: RemoteLogFiles) -> None:
    results: list[Any] = []
    for _ in range(2):
        assert delete_topic(files, "--topic-id", ORDERS_0.topic_id).exit_code == 0
        results.append(run_on(files, "expire", "--json").document["deleted"])

    assert results == [3, 0]
    assert state_of(files) is PartitionDeleteState.FINISHED
    with files.open() as remote_log:
        assert_clean(remote_log)


def test_a_topic_without_a_local_log_can_be_deleted_without_disabling_it(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": ENABLED})
    delete_at_the_broker(files)

    assert run_on(files, "read", "orders", 0, "--max-records", 1).exit_code == 0
    assert delete_topic(files).exit_code == 0
    said = run_on(files, "read", "orders", 0, "--json")
    assert (said.exit_code, "'tiered-storage delete-topic'" in said.document["message"]) == (1, True)
    assert run_on(files, "expire", "--json").document["deleted"] == 3
    assert files.objects() == []
    assert run_on(files, "read", "orders", 0).exit_code == 1
    with files.open() as remote_log:
        assert_clean(remote_log)
