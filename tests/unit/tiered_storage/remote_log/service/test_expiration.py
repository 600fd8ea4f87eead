from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from support.remote_logs import ENABLED, ORDERS_0, a_copied_remote_log, begin, partition_of, states_of, unsynced
from tiered_storage.kafka_log.files.meta_properties import META_PROPERTIES, MetaProperties
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import Finding, PartitionDeleteState, TopicIdPartition
from tiered_storage.remote_log.retention.deletions import RemoteLogDeletions
from tiered_storage.remote_log.retention.object_deletion import DeletionReport
from tiered_storage.remote_log.service.expiration import DELETION_SECONDS, ExpirationTasks
from tiered_storage.remote_log.service.pools import TroubleLog
from tiered_storage.remote_log.service.schedule import Outcome, Role
from unit.tiered_storage.remote_log.follower.led_partition import LedPartition
from unit.tiered_storage.remote_log.service.simulated_time import Time, a_schedule

ORDERS_1 = partition_of("orders", 1)
PARTITIONS = {("orders", 0): 3, ("orders", 1): 3}
SHORT = {"orders": {**ENABLED, "retention.ms": 1000}}
LEFT = [(0, "COPY_SEGMENT_FINISHED"), (10, "COPY_SEGMENT_FINISHED"), (20, "COPY_SEGMENT_FINISHED")]


class Site:
    """The tasks of a service over `remote_log`, in this thread."""

    def __init__(
        self, remote_log: RemoteLogManager, *partitions: TopicIdPartition, now: Callable[[], float] | None = None
    ) -> None:
        self.schedule = a_schedule(Time())
        for each in partitions:
            self.schedule.assign(each, Role.LEADER)
        self.tasks = ExpirationTasks(remote_log, self.schedule, "service", TroubleLog(), now or Time())

    def run(self, *partitions: TopicIdPartition) -> dict[TopicIdPartition, Outcome]:
        found: dict[TopicIdPartition, Outcome] = {}
        self.tasks(partitions, found.__setitem__)
        return found


def a_log(root: Path, topics: dict[str, Any], **settings: Any) -> RemoteLogManager:
    files = a_copied_remote_log(root, PARTITIONS, topics=topics, **{"scheduled_deletion_enable": True, **settings})
    return files.open()


def test_a_task_expires_its_partitions_and_no_other(tmp_path: Path) -> None:
    with unsynced(), a_log(tmp_path, SHORT) as remote_log:
        assert Site(remote_log, ORDERS_0, ORDERS_1).run(ORDERS_0) == {ORDERS_0: Outcome.DONE}

        assert states_of(remote_log, ORDERS_0) == []
        assert states_of(remote_log, ORDERS_1) == LEFT
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == 30


@pytest.mark.parametrize(
    ("topic", "settings", "message"),
    [
        ({**SHORT["orders"], "remote.deletion.allowed": False}, {}, ""),
        (SHORT["orders"], {"scheduled_deletion_enable": False}, "scheduled.deletion.enable"),
    ],
)
def test_nothing_expires_that_the_rules_keep(
    tmp_path: Path, topic: dict[str, Any], settings: dict[str, Any], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with unsynced(), a_log(tmp_path, {"orders": topic}, **settings) as remote_log:
        assert Site(remote_log, ORDERS_0).run(ORDERS_0) == {ORDERS_0: Outcome.DONE}

        assert states_of(remote_log, ORDERS_0) == LEFT
        assert message in caplog.text


def test_a_stop_of_deletions_holds_and_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with unsynced(), a_log(tmp_path, SHORT) as remote_log:
        remote_log.context.safety.stop("for a test", "a person")
        assert Site(remote_log, ORDERS_0).run(ORDERS_0) == {ORDERS_0: Outcome.DONE}

        assert states_of(remote_log, ORDERS_0) == LEFT
        assert "for a test" in caplog.text


def test_a_partition_that_was_removed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    with unsynced(), a_log(tmp_path, SHORT) as remote_log:
        assert Site(remote_log, ORDERS_1).run(ORDERS_0, ORDERS_1) == dict.fromkeys((ORDERS_0, ORDERS_1), Outcome.DONE)

        assert states_of(remote_log, ORDERS_0) == LEFT
        assert states_of(remote_log, ORDERS_1) == []


def test_a_partition_that_another_run_holds_is_left_to_the_next_task(tmp_path: Path) -> None:
    with unsynced(), a_log(tmp_path, SHORT) as remote_log:
        remote_log.context.leases.acquire(ORDERS_0, "a DAG", 600_000)
        assert Site(remote_log, ORDERS_0).run(ORDERS_0) == {ORDERS_0: Outcome.DONE}

        assert states_of(remote_log, ORDERS_0) == LEFT


def test_marked_segments_wait_for_their_grace_time(tmp_path: Path) -> None:
    files = a_copied_remote_log(
        tmp_path, PARTITIONS, topics=SHORT, scheduled_deletion_enable=True, remote_log_deletion_grace_ms=60_000
    )
    with unsynced(), files.open() as remote_log:
        site = Site(remote_log, ORDERS_0)
        site.run(ORDERS_0)
        assert {state for _, state in states_of(remote_log, ORDERS_0)} == {"DELETE_SEGMENT_STARTED"}

        files.clock.now += 60_001
        assert site.run(ORDERS_0) == {ORDERS_0: Outcome.DONE}
        assert states_of(remote_log, ORDERS_0) == []


def test_an_unfinished_copy_of_a_dead_run_is_deleted_after_its_grace_time(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, PARTITIONS, scheduled_deletion_enable=True)
    files.append(2)
    with unsynced(), files.open() as remote_log:
        site = Site(remote_log, ORDERS_0)
        begin(remote_log, "a run that dies")
        site.run(ORDERS_0)
        assert (30, "COPY_SEGMENT_STARTED") in states_of(remote_log, ORDERS_0)

        for _ in range(2):
            files.clock.now += 3_600_001
            assert site.run(ORDERS_0) == {ORDERS_0: Outcome.DONE}
        assert states_of(remote_log, ORDERS_0) == LEFT


def test_a_deletion_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with unsynced(), a_log(tmp_path, SHORT) as remote_log:
        Site(remote_log, ORDERS_0).run(ORDERS_0)

    assert "deleted 3 segments" in caplog.text


def passing() -> Callable[[], float]:
    """Return a clock on which the time of a task is over at its next look."""
    return count(1000.0, DELETION_SECONDS).__next__


def test_a_task_deletes_for_a_while_and_goes_on_after_the_copies(tmp_path: Path) -> None:
    with unsynced(), a_log(tmp_path, SHORT, deletion_batch_segments=1) as remote_log:
        site = Site(remote_log, ORDERS_0, ORDERS_1, now=passing())

        assert site.run(ORDERS_0, ORDERS_1) == dict.fromkeys((ORDERS_0, ORDERS_1), Outcome.MORE)
        assert [start for start, _ in states_of(remote_log, ORDERS_0)] == [10, 20]
        assert [start for start, _ in states_of(remote_log, ORDERS_1)] == [0, 10, 20]

        assert site.run(ORDERS_1, ORDERS_0) == dict.fromkeys((ORDERS_0, ORDERS_1), Outcome.MORE)
        assert [start for start, _ in states_of(remote_log, ORDERS_1)] == [10, 20]
        while Outcome.MORE in site.run(ORDERS_0, ORDERS_1).values():
            pass
        assert states_of(remote_log, ORDERS_0) == states_of(remote_log, ORDERS_1) == []


def test_partitions_with_little_to_delete_do_not_wait_for_a_large_deletion(tmp_path: Path) -> None:
    partitions = {("orders", 0): 3, ("orders", 1): 1, ("orders", 2): 0}
    files = a_copied_remote_log(
        tmp_path, partitions, topics=SHORT, scheduled_deletion_enable=True, deletion_batch_segments=1
    )
    every = [partition_of("orders", number) for number in range(3)]
    with unsynced(), files.open() as remote_log:
        found = Site(remote_log, *every, now=passing()).run(*every)

        assert list(found.items()) == [
            (every[2], Outcome.DONE), (every[1], Outcome.DONE), (every[0], Outcome.MORE)
        ]  # fmt: skip
        assert states_of(remote_log, every[1]) == []


def test_a_topic_that_is_deleted_is_deleted_in_parts(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, {("orders", 0): 3}, scheduled_deletion_enable=True, deletion_batch_segments=1)
    shutil.rmtree(files.partition_directory())
    with unsynced(), files.open() as remote_log:
        deletions = remote_log.deletions
        assert deletions.mark_topic_deleted(deletions.plan_topic_deletion("orders"), "delete-topic")[1] == ()
        site = Site(remote_log, ORDERS_0, now=passing())
        assert site.run(ORDERS_0) == {ORDERS_0: Outcome.MORE}
        assert len(states_of(remote_log, ORDERS_0)) == 2
        state = remote_log.context.segments.partition_state(ORDERS_0)
        assert state.delete_state is PartitionDeleteState.STARTED

        while site.run(ORDERS_0) == {ORDERS_0: Outcome.MORE}:
            pass

        state = remote_log.context.segments.partition_state(ORDERS_0)
        assert state.delete_state is PartitionDeleteState.FINISHED


def test_a_service_that_ends_begins_no_further_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with unsynced(), a_log(tmp_path, SHORT, deletion_batch_segments=1) as remote_log:
        site = Site(remote_log, ORDERS_0)
        delete_marked = RemoteLogDeletions.delete_marked

        def stopping(self: RemoteLogDeletions, *arguments: Any, **options: Any) -> DeletionReport:
            site.schedule.stop()
            return delete_marked(self, *arguments, **options)

        monkeypatch.setattr(RemoteLogDeletions, "delete_marked", stopping)
        site.run(ORDERS_0)

        assert len(states_of(remote_log, ORDERS_0)) == 2
        assert remote_log.context.leases.held() == []


def test_what_fails_for_no_partition_fails_those_that_were_deleted_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with unsynced(), a_log(tmp_path, SHORT) as remote_log:
        report = DeletionReport((), (Finding("", "the topic of failed deletions is away"),), ())
        monkeypatch.setattr(RemoteLogDeletions, "delete_marked", lambda *_, **__: report)

        assert Site(remote_log, ORDERS_0).run(ORDERS_0) == {ORDERS_0: Outcome.FAILED}

    assert "the topic of failed deletions is away" in caplog.text


def test_nothing_expires_beside_a_cluster_that_no_copy_is_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = a_copied_remote_log(tmp_path, PARTITIONS, topics=SHORT, scheduled_deletion_enable=True)
    MetaProperties(1, "another", 1, None).write(files.log_directory / META_PROPERTIES)
    with unsynced(), files.open() as remote_log:
        beside = LedPartition(files).beside(remote_log)

        assert Site(beside, ORDERS_0).run(ORDERS_0) == {ORDERS_0: Outcome.DONE}

        assert states_of(remote_log, ORDERS_0) == LEFT
    assert "bootstrap.servers" in caplog.text
