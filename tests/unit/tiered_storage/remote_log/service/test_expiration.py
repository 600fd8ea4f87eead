from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from support.remote_logs import ENABLED, ORDERS_0, a_copied_remote_log, begin, partition_of, states_of, unsynced
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.service.expiration import ExpirationTasks
from tiered_storage.remote_log.service.pools import TroubleLog
from tiered_storage.remote_log.service.schedule import Outcome, Role
from unit.tiered_storage.remote_log.service.simulated_time import Time, a_schedule

ORDERS_1 = partition_of("orders", 1)
PARTITIONS = {("orders", 0): 3, ("orders", 1): 3}
SHORT = {"orders": {**ENABLED, "retention.ms": 1000}}
LEFT = [(0, "COPY_SEGMENT_FINISHED"), (10, "COPY_SEGMENT_FINISHED"), (20, "COPY_SEGMENT_FINISHED")]


class Site:
    """The tasks of a service over `remote_log`, in this thread."""

    def __init__(self, remote_log: RemoteLogManager, *partitions: TopicIdPartition) -> None:
        self.schedule = a_schedule(Time())
        for each in partitions:
            self.schedule.assign(each, Role.LEADER)
        self.tasks = ExpirationTasks(remote_log, self.schedule, "service", TroubleLog(), Time())

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
