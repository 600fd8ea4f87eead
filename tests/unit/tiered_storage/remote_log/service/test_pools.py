from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

import pytest

from support.waiting import wait_for
from tiered_storage.errors import RemoteStorageError
from tiered_storage.remote_log.model import Finding, TopicIdPartition
from tiered_storage.remote_log.service.pools import Ended, TaskPool, TroubleLog, Work, by_partition
from tiered_storage.remote_log.service.schedule import Outcome, PartitionSchedule, Role, TaskKind
from unit.tiered_storage.remote_log.service.simulated_time import PACE, PARTITIONS, Time, a_schedule

FIRST, SECOND = PARTITIONS[:2]


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def schedule(time: Time) -> PartitionSchedule:
    schedule = a_schedule(time)
    for each in (FIRST, SECOND):
        schedule.assign(each, Role.LEADER)
    return schedule


def a_pool(schedule: PartitionSchedule, work: Work, threads: int = 1) -> TaskPool:
    return TaskPool(schedule, TaskKind.COPY, threads, work, TroubleLog())


def test_what_the_work_has_not_ended_is_done_when_it_returns(schedule: PartitionSchedule, time: Time) -> None:
    def work(partitions: Sequence[TopicIdPartition], ended: Ended) -> None:
        assert partitions == [FIRST, SECOND]
        ended(FIRST, Outcome.FAILED)

    pool = a_pool(schedule, work)

    assert pool.run_due()
    assert not pool.run_due()
    assert pool.ended == {Outcome.DONE: 1, Outcome.MORE: 0, Outcome.FAILED: 1, Outcome.BROKEN: 0}
    assert schedule.counts().failing[TaskKind.COPY] == 1
    time.move_by(PACE.interval)
    assert schedule.take(TaskKind.EXPIRATION, 10) == [FIRST, SECOND]


@pytest.mark.parametrize("error", [RemoteStorageError("the store is away"), OSError("a disk"), KeyError("a bug")])
def test_when_the_work_raises_what_it_has_not_ended_has_failed(
    schedule: PartitionSchedule, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def work(_: Sequence[TopicIdPartition], ended: Ended) -> None:
        ended(SECOND, Outcome.DONE)
        raise error

    pool = a_pool(schedule, work)

    assert pool.run_due()
    assert pool.ended == {Outcome.DONE: 1, Outcome.MORE: 0, Outcome.FAILED: 1, Outcome.BROKEN: 0}
    assert pool.idle_share == 1
    assert "orders-0" in caplog.text
    assert schedule.wait_until_idle(0)


def test_threads_run_tasks_until_the_schedule_is_stopped(schedule: PartitionSchedule) -> None:
    going_on, seen = threading.Event(), list[TopicIdPartition]()

    def work(partitions: Sequence[TopicIdPartition], _: Ended) -> None:
        seen.extend(partitions)
        going_on.wait()

    pool = a_pool(schedule, work, threads=4)
    pool.start()
    wait_for(lambda: len(seen) == 2)
    assert pool.idle_share == 0.5

    schedule.stop()
    going_on.set()

    assert schedule.wait_until_idle(60)
    assert sorted(seen) == [FIRST, SECOND]


def test_a_trouble_is_logged_once_until_it_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    troubles = TroubleLog()

    troubles.report(TaskKind.COPY, {FIRST: ["away"], SECOND: ["away"]})
    troubles.report(TaskKind.COPY, {FIRST: ["away"], SECOND: ["away", "broken"]})
    assert [record.getMessage() for record in caplog.records] == [
        "copier: orders-0 (and 1 more partitions): away",
        "copier: orders-1: broken",
    ]
    caplog.clear()

    troubles.report(TaskKind.EXPIRATION, {FIRST: ["away"]})
    troubles.report(TaskKind.COPY, {FIRST: []})
    troubles.report(TaskKind.COPY, {FIRST: ["orders-0: away"], SECOND: ["away"]})
    assert [record.getMessage() for record in caplog.records] == [
        "expiration: orders-0: away",
        "copier: orders-0: away",
    ]


def test_a_trouble_that_only_counts_on_is_the_same(caplog: pytest.LogCaptureFixture) -> None:
    troubles = TroubleLog()

    troubles.report(TaskKind.COPY, {FIRST: ["away for 10 s"]})
    troubles.report(TaskKind.COPY, {FIRST: ["away for 12 s", "full"]})
    troubles.report(TaskKind.COPY, {FIRST: ["away for 20 s", "full"]})

    assert [record.getMessage() for record in caplog.records] == [
        "copier: orders-0: away for 10 s",
        "copier: orders-0: full",
    ]


def test_a_finding_of_a_topic_or_of_the_whole_is_one_of_each_partition() -> None:
    findings = [Finding("orders", "compacted"), Finding("orders-1", "broken"), Finding("", "a topic is away")]

    found = by_partition([FIRST, SECOND], findings)

    assert found == {FIRST: ["compacted", "a topic is away"], SECOND: ["broken", "compacted", "a topic is away"]}
