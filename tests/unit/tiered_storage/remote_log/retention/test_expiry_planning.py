"""Which topics expire refuses, also by a plan from before, and what a person may still delete of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.remote_logs import (
    ENABLED,
    ORDERS_0,
    SEGMENT_BYTES,
    RemoteLogFiles,
    a_copied_remote_log,
    assert_clean,
    segments_of,
    states_of,
)
from tiered_storage.errors import OffsetOutOfRangeError, RemoteObjectNotFoundError
from tiered_storage.kafka_log.files.offset_checkpoint import LOG_START_OFFSET_CHECKPOINT, write_offset_checkpoint
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader
from tiered_storage.remote_log.retention.expiry import Reason
from tiered_storage.remote_log.selection import EVERYTHING

DELETABLE = {**ENABLED, "retention.bytes": SEGMENT_BYTES + 1}


def a_log(root: Path, **changed: object) -> RemoteLogFiles:
    settings = {name.replace("_", "."): value for name, value in changed.items()}
    return a_copied_remote_log(root, topics={"orders": {**DELETABLE, **settings}})


def read(remote_log: RemoteLogManager, offset: int) -> list[int]:
    """Return the offsets of the records from `offset` to the end."""
    with BlockingLogReader(remote_log.open_log_reader()) as reader:
        return [found.offset for found in reader.records(ORDERS_0, offset)]


def compact(files: RemoteLogFiles) -> None:
    """Let Kafka's cleaner have compacted the topic."""
    write_offset_checkpoint(files.log_directory / "cleaner-offset-checkpoint", {("orders", 0): 20})


def test_a_plan_from_before_ends_nothing_of_a_topic_that_was_compacted_since(tmp_path: Path) -> None:
    files = a_log(tmp_path)
    with files.open() as remote_log:
        plans, left = remote_log.deletions.plan_expiry(EVERYTHING, remote_log.context.clock())
        assert len(plans) == 1
        assert left == []
        before = states_of(remote_log)
        compact(files)

        done, [refused] = remote_log.deletions.mark_expired(plans, "expire")

        assert done == ()
        assert "brokers compact orders-0" in refused.message
        assert states_of(remote_log) == before


@pytest.mark.parametrize("given", [{}, {"remote_storage_enable": False, "remote_log_delete_on_disable": True}])
def test_deletions_by_hand_work_on_a_compacted_topic(tmp_path: Path, given: dict[str, object]) -> None:
    files = a_log(tmp_path, **given)
    compact(files)
    with files.open() as remote_log:
        if given:
            plans, left = remote_log.deletions.plan_expiry(EVERYTHING, remote_log.context.clock())
            assert left == []
            assert [plan.reason for plan in plans] == [Reason.DISABLED]
        else:
            plan = remote_log.deletions.plan_record_deletion(ORDERS_0, 30)
            assert plan is not None
            plans = [plan]

        assert remote_log.deletions.mark_expired(plans, "ada") == ((ORDERS_0,), ())
        remote_log.deletions.delete_marked("ada")

        assert segments_of(remote_log) == []


@pytest.mark.parametrize(("brokers", "ours"), [(15, 15), (33, 30)])
def test_a_brokers_log_start_moves_ours_only_over_what_a_disabled_topic_loses(
    tmp_path: Path, brokers: int, ours: int
) -> None:
    """The person who asks for the deletion moves it; where the broker's log begins only limits that."""
    files = a_copied_remote_log(tmp_path)
    write_offset_checkpoint(files.log_directory / LOG_START_OFFSET_CHECKPOINT, {("orders", 0): brokers})
    with files.open() as remote_log:
        assert remote_log.deletions.plan_expiry(EVERYTHING, remote_log.context.clock()) == ([], [])

    files.properties["topics"] = {
        "orders": {**ENABLED, "remote.storage.enable": False, "remote.log.delete.on.disable": True}
    }
    with files.open() as remote_log:
        [plan], _ = remote_log.deletions.plan_expiry(EVERYTHING, remote_log.context.clock())
        assert (plan.reason, plan.new_log_start, len(plan.segments)) == (Reason.DISABLED, ours, 3)
        remote_log.deletions.mark_expired([plan], "expire")
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == ours

        remote_log.deletions.undelete("orders", "ada")
        assert (remote_log.context.segments.log_start_offset(ORDERS_0), len(segments_of(remote_log))) == (0, 3)


@pytest.mark.parametrize("is_asked", [True, False], ids=["remote data deleted on request", "remote data expired"])
def test_log_start_follows_the_broker_after_a_disabled_topic_has_nothing_remote(tmp_path: Path, is_asked: bool) -> None:
    disabled = {**ENABLED, "remote.storage.enable": False, "remote.log.delete.on.disable": is_asked}
    files = a_copied_remote_log(tmp_path, topics={"orders": {**disabled, "retention.bytes": 1}})
    checkpoint = files.log_directory / LOG_START_OFFSET_CHECKPOINT
    write_offset_checkpoint(checkpoint, {("orders", 0): 15})
    with files.open() as remote_log:
        remote_log.deletions.mark_expired(
            remote_log.deletions.plan_expiry(EVERYTHING, remote_log.context.clock())[0], "expire"
        )
        assert remote_log.deletions.delete_marked("expire").deleted
        assert segments_of(remote_log) == []

    write_offset_checkpoint(checkpoint, {("orders", 0): 33})
    with files.open() as remote_log:
        plans, left = remote_log.deletions.plan_expiry(EVERYTHING, remote_log.context.clock())
        assert remote_log.deletions.mark_expired(plans, "expire") == ((ORDERS_0,), ())
        assert left == []
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == 33
        with pytest.raises(OffsetOutOfRangeError):
            read(remote_log, 31)
        assert read(remote_log, 33) == [33, 34]
        assert_clean(remote_log)
        assert remote_log.deletions.plan_expiry(EVERYTHING, remote_log.context.clock()) == ([], [])


def test_log_start_of_an_enabled_topic_never_follows_the_broker(tmp_path: Path) -> None:
    files = a_log(tmp_path, retention_bytes=1)
    with files.open() as remote_log:
        remote_log.deletions.mark_expired(
            remote_log.deletions.plan_expiry(EVERYTHING, remote_log.context.clock())[0], "expire"
        )
        remote_log.deletions.delete_marked("expire")
        assert segments_of(remote_log) == []
    write_offset_checkpoint(files.log_directory / LOG_START_OFFSET_CHECKPOINT, {("orders", 0): 33})

    with files.open() as remote_log:
        assert remote_log.deletions.plan_expiry(EVERYTHING, remote_log.context.clock()) == ([], [])
        with pytest.raises(RemoteObjectNotFoundError):
            read(remote_log, 31)
