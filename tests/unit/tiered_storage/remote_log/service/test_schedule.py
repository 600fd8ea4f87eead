from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tiered_storage.remote_log.service.schedule import Outcome, Pace, PartitionSchedule, Role, TaskKind
from unit.tiered_storage.remote_log.service.simulated_time import PACE, PARTITIONS, Time, a_schedule

FIRST, SECOND, THIRD, FOURTH = PARTITIONS
COPY, EXPIRATION, FOLLOW = TaskKind.COPY, TaskKind.EXPIRATION, TaskKind.FOLLOW


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def schedule(time: Time) -> PartitionSchedule:
    return a_schedule(time)


def test_a_new_partition_is_due_at_once_and_again_an_interval_after_its_task_ended(
    schedule: PartitionSchedule, time: Time
) -> None:
    schedule.assign(FIRST, Role.FOLLOWER)

    assert schedule.take(COPY, 10) == []
    assert schedule.take(FOLLOW, 10) == [FIRST]
    time.move_by(100)
    schedule.ended(FIRST, FOLLOW, Outcome.DONE)

    time.move_by(PACE.interval - 0.001)
    assert schedule.take(FOLLOW, 10) == []
    time.move_by(0.001)
    assert schedule.take(FOLLOW, 10) == [FIRST]


def test_one_task_of_a_partition_runs_at_a_time_and_the_one_that_waited_longest_comes_next(
    schedule: PartitionSchedule, time: Time
) -> None:
    schedule.assign(FIRST, Role.LEADER)
    assert schedule.take(COPY, 10) == [FIRST]
    time.move_by(1)

    assert schedule.take(EXPIRATION, 10) == []
    schedule.ended(FIRST, COPY, Outcome.MORE)

    assert schedule.take(COPY, 10) == []
    assert schedule.take(EXPIRATION, 10) == [FIRST]
    schedule.ended(FIRST, EXPIRATION, Outcome.DONE)
    assert schedule.take(COPY, 10) == [FIRST]


def test_a_task_that_finds_no_thread_is_overtaken_once_an_interval(schedule: PartitionSchedule, time: Time) -> None:
    schedule.assign(FIRST, Role.LEADER)
    assert schedule.take(COPY, 1) == [FIRST]
    time.move_by(1)
    schedule.ended(FIRST, COPY, Outcome.MORE)

    for waited in (PACE.interval - 1, PACE.interval):
        time.move_by(waited - 0.001)
        assert schedule.take(COPY, 1) == []
        time.move_by(0.001)
        assert schedule.take(COPY, 1) == [FIRST]
        schedule.ended(FIRST, COPY, Outcome.MORE)

    assert schedule.take(COPY, 1) == []
    assert schedule.take(EXPIRATION, 1) == [FIRST]


def test_a_partition_with_more_to_copy_is_due_at_once_after_those_that_waited_longer(
    schedule: PartitionSchedule, time: Time
) -> None:
    schedule = PartitionSchedule(PACE, [COPY], time)
    schedule.assign(FIRST, Role.LEADER)
    assert schedule.take(COPY, 10) == [FIRST]
    schedule.assign(SECOND, Role.LEADER)
    time.move_by(1)

    schedule.ended(FIRST, COPY, Outcome.MORE)

    assert schedule.take(COPY, 1) == [SECOND]
    assert schedule.take(COPY, 1) == [FIRST]


def test_after_failures_a_task_waits_longer_each_time_up_to_the_limit_and_a_success_ends_that(time: Time) -> None:
    schedule = a_schedule(time, replace(PACE, jitter=0.0))
    schedule.assign(FIRST, Role.FOLLOWER)
    waits = []
    for outcome in [*[Outcome.FAILED] * 8, Outcome.DONE, Outcome.FAILED]:
        began = time.seconds
        while schedule.take(FOLLOW, 1) == []:
            time.move_by(0.25)
        waits.append(time.seconds - began)
        schedule.ended(FIRST, FOLLOW, outcome)
    while schedule.take(FOLLOW, 1) == []:
        time.move_by(0.25)

    assert waits == [0, 0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert time.seconds == 1000 + sum(waits) + 0.5


def test_what_needs_a_person_is_tried_again_as_seldom_as_by_a_dag_in_the_end(time: Time) -> None:
    schedule = a_schedule(time, replace(PACE, jitter=0.0))
    schedule.assign(FIRST, Role.FOLLOWER)
    waits = []
    for _ in range(13):
        began = time.seconds
        while schedule.take(FOLLOW, 1) == []:
            time.move_by(0.5)
        waits.append(time.seconds - began)
        schedule.ended(FIRST, FOLLOW, Outcome.BROKEN)

    assert waits == [0, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    assert schedule.counts().failing[FOLLOW] == 1


@pytest.mark.parametrize("failures", [1, 2, 5, 100, 10_000])
def test_the_back_off_has_jitter_and_a_limit(failures: int) -> None:
    waits = {PACE.backoff(failures, Random(seed)) for seed in range(100)}  # noqa: S311 - nothing secret

    plain = min(30.0, 0.5 * 2 ** min(failures - 1, 62))
    assert 0.8 * plain <= min(waits) < 0.85 * plain
    assert 1.15 * plain < max(waits) <= 1.2 * plain


def test_a_retry_interval_above_the_limit_stays() -> None:
    assert Pace(30, 60, 30, 0).backoff(3, Random(1)) == 60  # noqa: S311 - nothing secret


def test_a_partition_that_is_removed_in_process_is_forgotten_once_its_task_ended(schedule: PartitionSchedule) -> None:
    schedule.assign(FIRST, Role.LEADER)
    assert schedule.take(COPY, 1) == [FIRST]

    schedule.remove(FIRST)

    assert schedule.partitions() == []
    assert not schedule.is_wanted(FIRST, COPY)
    assert not schedule.wait_until_idle(0)
    schedule.ended(FIRST, COPY, Outcome.MORE)
    assert schedule.wait_until_idle(0)
    assert schedule.take(COPY, 1) == schedule.take(EXPIRATION, 1) == []
    assert schedule._assigned == {}


def test_a_partition_that_comes_back_in_process_begins_no_second_task(schedule: PartitionSchedule) -> None:
    schedule.assign(FIRST, Role.LEADER)
    assert schedule.take(COPY, 1) == [FIRST]
    schedule.remove(FIRST)

    schedule.assign(FIRST, Role.LEADER)

    assert schedule.take(COPY, 1) == schedule.take(EXPIRATION, 1) == []
    assert schedule.is_wanted(FIRST, COPY)
    schedule.ended(FIRST, COPY, Outcome.DONE)
    assert schedule.take(EXPIRATION, 1) == [FIRST]


def test_a_leader_that_becomes_a_follower_ends_its_copy_before_it_follows(schedule: PartitionSchedule) -> None:
    schedule.assign(FIRST, Role.LEADER)
    assert schedule.take(COPY, 1) == [FIRST]

    schedule.assign(FIRST, Role.FOLLOWER)

    assert not schedule.is_wanted(FIRST, COPY)
    assert schedule.take(FOLLOW, 1) == []
    schedule.ended(FIRST, COPY, Outcome.MORE)
    assert schedule.take(COPY, 1) == schedule.take(EXPIRATION, 1) == []
    assert schedule.take(FOLLOW, 1) == [FIRST]


@pytest.mark.parametrize("role", [Role.LEADER, None])
def test_what_was_followed_is_due_once_more_for_its_pool_to_let_it_go(
    schedule: PartitionSchedule, role: Role | None
) -> None:
    schedule.assign(FIRST, Role.FOLLOWER)
    assert schedule.take(FOLLOW, 1) == [FIRST]
    change(schedule, role)
    assert schedule.take(FOLLOW, 1) == []

    schedule.ended(FIRST, FOLLOW, Outcome.DONE)
    assert not schedule.is_wanted(FIRST, FOLLOW)
    assert schedule.take(FOLLOW, 1) == [FIRST]
    schedule.ended(FIRST, FOLLOW, Outcome.FAILED)

    assert schedule.take(FOLLOW, 1) == []
    assert schedule.take(COPY, 1) == ([] if role is None else [FIRST])
    assert schedule.partitions(role) == ([] if role is None else [FIRST])
    assert schedule.counts().failing[FOLLOW] == 0


def change(schedule: PartitionSchedule, role: Role | None) -> None:
    if role is None:
        schedule.remove(FIRST)
        schedule.remove(FIRST)
    else:
        schedule.assign(FIRST, role)
        schedule.assign(FIRST, role)


def test_a_partition_that_is_followed_again_before_it_was_let_go_goes_on(schedule: PartitionSchedule) -> None:
    schedule.assign(FIRST, Role.FOLLOWER)
    schedule.assign(FIRST, Role.LEADER)

    schedule.assign(FIRST, Role.FOLLOWER)

    assert schedule.take(FOLLOW, 1) == [FIRST]
    assert schedule.is_wanted(FIRST, FOLLOW)
    schedule.ended(FIRST, FOLLOW, Outcome.DONE)
    assert schedule.take(FOLLOW, 1) == schedule.take(COPY, 1) == []


def test_threads_share_what_is_due(schedule: PartitionSchedule) -> None:
    for each in PARTITIONS:
        schedule.assign(each, Role.LEADER)

    assert [schedule.take(COPY, 50, 3) for _ in range(3)] == [[FIRST, SECOND], [THIRD], [FOURTH]]


def test_nothing_begins_after_a_stop_and_what_runs_may_end(schedule: PartitionSchedule) -> None:
    schedule.assign(FIRST, Role.LEADER)
    schedule.assign(SECOND, Role.LEADER)
    assert schedule.take(COPY, 1) == [FIRST]

    schedule.stop()

    assert schedule.take(COPY, 1) == schedule.take(EXPIRATION, 1) == []
    assert not schedule.is_wanted(FIRST, COPY)
    assert not schedule.wait_until_idle(0)
    schedule.ended(FIRST, COPY, Outcome.DONE)
    assert schedule.wait_until_idle(0)


def test_a_task_ends_once(schedule: PartitionSchedule) -> None:
    schedule.assign(FIRST, Role.LEADER)

    with pytest.raises(ValueError, match="orders-0"):
        schedule.ended(FIRST, COPY, Outcome.DONE)


def test_the_counts_name_roles_failures_and_how_late_tasks_are(schedule: PartitionSchedule, time: Time) -> None:
    schedule.assign(FIRST, Role.LEADER)
    schedule.assign(SECOND, Role.FOLLOWER)
    schedule.take(FOLLOW, 1)
    schedule.ended(SECOND, FOLLOW, Outcome.FAILED)
    time.move_by(5)

    counts = schedule.counts()

    assert counts.partitions == {Role.LEADER: 1, Role.FOLLOWER: 1}
    assert counts.failing == {COPY: 0, EXPIRATION: 0, FOLLOW: 1}
    assert (counts.late[COPY], counts.late[EXPIRATION]) == (5, 5)
    assert 4.4 <= counts.late[FOLLOW] <= 4.6
