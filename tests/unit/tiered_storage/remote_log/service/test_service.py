from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from support.remote_logs import (
    ORDERS_0,
    RemoteLogFiles,
    a_remote_log,
    assert_clean,
    copy,
    partition_of,
    ranges,
    segments_of,
    unsynced,
)
from support.waiting import wait_for
from tiered_storage.errors import LineageContradictedError, RemoteStorageError
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Leases
from tiered_storage.remote_log.model import SegmentState, TopicIdPartition
from tiered_storage.remote_log.service.schedule import Outcome, Role, TaskKind
from tiered_storage.remote_log.service.service import RemoteLogService
from unit.tiered_storage.remote_log.service.simulated_time import Time

SEGMENTS = 5
PARTITIONS = {("orders", number): SEGMENTS for number in range(6)}
LED = [partition_of("orders", number) for number in range(6)]
ALL = [(10 * number, 10 * number + 9) for number in range(SEGMENTS)]
OFTEN: dict[str, Any] = {"remote_log_manager_task_interval_ms": 20, "remote_log_manager_task_retry_backoff_ms": 5}


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    return a_remote_log(tmp_path, PARTITIONS, **OFTEN)


@pytest.fixture
def remote_log(files: RemoteLogFiles) -> Iterator[RemoteLogManager]:
    with unsynced(), files.open() as opened:
        yield opened


def is_copied(remote_log: RemoteLogManager, partition: TopicIdPartition) -> bool:
    segments = segments_of(remote_log, partition)
    return ranges(segments) == ALL and {each.state for each in segments} == {SegmentState.COPY_SEGMENT_FINISHED}


def test_it_copies_what_it_leads_and_follows_what_it_follows_until_it_is_stopped(remote_log: RemoteLogManager) -> None:
    followed: list[TopicIdPartition] = []
    service = RemoteLogService(remote_log, "service", follow=followed.append)
    service.assign(ORDERS_0, Role.LEADER)
    service.assign(LED[1], Role.FOLLOWER)
    service.start()
    wait_for(lambda: is_copied(remote_log, ORDERS_0) and len(followed) > 2)
    service.assign(LED[2], Role.LEADER)
    wait_for(lambda: is_copied(remote_log, LED[2]))

    assert service.stop(60)

    assert set(followed) == {LED[1]}
    assert segments_of(remote_log, LED[1]) == segments_of(remote_log, LED[3]) == []
    assert remote_log.context.leases.held() == []
    assert_clean(remote_log)


def test_a_follower_that_has_more_to_fetch_is_due_at_once(remote_log: RemoteLogManager) -> None:
    left = [True, False]
    service = RemoteLogService(remote_log, "service", follow=lambda _: left.pop(0))
    service.assign(ORDERS_0, Role.FOLLOWER)
    pool = service.pools[TaskKind.FOLLOW]

    assert [pool.run_due() for _ in range(3)] == [True, True, False]

    assert (pool.ended[Outcome.MORE], pool.ended[Outcome.DONE]) == (1, 1)


def test_a_follower_whose_turn_hangs_holds_up_no_other(remote_log: RemoteLogManager) -> None:
    followed: list[TopicIdPartition] = []

    def follow(partition: TopicIdPartition) -> None:
        followed.append(partition)
        if partition == LED[0]:
            # What the pool's other thread does meanwhile.
            while pool.run_due():
                pass

    service = RemoteLogService(remote_log, "service", follow=follow)
    pool = service.pools[TaskKind.FOLLOW]
    for each in LED:
        service.assign(each, Role.FOLLOWER)

    assert pool.run_due()

    assert followed == LED


@pytest.mark.parametrize("error", [KeyError("a bug"), RemoteStorageError("away"), OSError("a disk")])
def test_an_error_of_one_follower_is_reported_and_retried_after_a_back_off_and_the_others_go_on(
    remote_log: RemoteLogManager, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    time, followed = Time(), list[TopicIdPartition]()

    def follow(partition: TopicIdPartition) -> None:
        followed.append(partition)
        if partition == LED[0]:
            raise error

    service = RemoteLogService(remote_log, "service", follow=follow, now=time, random=Random(7))  # noqa: S311
    pool = service.pools[TaskKind.FOLLOW]
    for each in LED:
        service.assign(each, Role.FOLLOWER)
    while pool.run_due():
        pass

    assert followed == LED
    assert (pool.ended[Outcome.FAILED], pool.ended[Outcome.DONE]) == (1, len(LED) - 1)
    assert str(LED[0]) in caplog.text
    time.move_by(0.007)
    assert pool.run_due()
    assert followed[len(LED) :] == LED[:1]
    time.move_by(0.007)
    assert not pool.run_due()


@pytest.mark.parametrize("change", ["leader", "removed"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_partition_that_is_followed_no_more_is_let_go_once_after_its_turn(
    remote_log: RemoteLogManager, change: str, fails: bool
) -> None:
    done: list[str] = []

    def follow(partition: TopicIdPartition) -> None:
        if change == "leader":
            service.assign(partition, Role.LEADER)
        else:
            service.remove(partition)
        assert not pool.run_due()
        done.append("turn")
        if fails:
            raise RemoteStorageError("away")

    def unfollow(partition: TopicIdPartition) -> None:
        done.append("let go")
        if fails:
            raise OSError("a disk")

    service = RemoteLogService(remote_log, "service", follow=follow, unfollow=unfollow)
    pool = service.pools[TaskKind.FOLLOW]
    service.assign(ORDERS_0, Role.FOLLOWER)
    while pool.run_due():
        pass

    assert done == ["turn", "let go"]
    assert service.schedule.partitions() == ([ORDERS_0] if change == "leader" else [])


def test_a_service_that_ends_lets_no_follower_go(remote_log: RemoteLogManager) -> None:
    let_go: list[TopicIdPartition] = []

    def follow(_: TopicIdPartition) -> None:
        service.schedule.stop()

    service = RemoteLogService(remote_log, "service", follow=follow, unfollow=let_go.append)
    service.assign(ORDERS_0, Role.FOLLOWER)
    assert service.pools[TaskKind.FOLLOW].run_due()
    service.remove(ORDERS_0)

    assert not service.pools[TaskKind.FOLLOW].run_due()
    assert service.stop(0)
    assert let_go == []


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (OSError("a disk"), Outcome.FAILED),
        (RemoteStorageError("away"), Outcome.FAILED),
        (LineageContradictedError("forked"), Outcome.BROKEN),
    ],
)
def test_a_follower_that_needs_a_person_is_tried_less_often(
    remote_log: RemoteLogManager, error: Exception, outcome: Outcome
) -> None:
    def follow(_: TopicIdPartition) -> bool:
        raise error

    service = RemoteLogService(remote_log, "service", follow=follow)
    service.assign(ORDERS_0, Role.FOLLOWER)
    pool = service.pools[TaskKind.FOLLOW]

    assert pool.run_due()

    assert pool.ended[outcome] == 1


def test_a_service_that_copies_nothing_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = a_remote_log(tmp_path, remote_log_storage_system_enable=False, **OFTEN)
    with files.open() as remote_log:
        service = RemoteLogService(remote_log, "service")
        service.start()
        assert service.stop(60)

    assert "remote.log.storage.system.enable" in caplog.text


def test_beside_runs_of_a_dag_nothing_is_copied_twice(files: RemoteLogFiles, remote_log: RemoteLogManager) -> None:
    service = RemoteLogService(remote_log, "service")
    for each in LED:
        service.assign(each, Role.LEADER)
    service.start()
    with files.open() as of_dag:
        for _ in range(3):
            copy(of_dag, "a DAG", max_segments=4)
        wait_for(lambda: all(is_copied(of_dag, each) for each in LED))
    assert service.stop(60)

    assert len(files.objects(".log")) == len(LED) * SEGMENTS
    assert_clean(remote_log)


def test_a_leader_that_becomes_a_follower_ends_its_copy_and_lets_go_of_its_lease(
    remote_log: RemoteLogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    copying, going_on, followed = threading.Event(), threading.Event(), threading.Event()
    acquire_many = type(remote_log.context.leases).acquire_many

    def acquired(leases: Leases, *arguments: object) -> object:
        granted = acquire_many(leases, *arguments)  # type: ignore[arg-type]
        copying.set()
        assert going_on.wait(60)
        return granted

    monkeypatch.setattr(type(remote_log.context.leases), "acquire_many", acquired)
    service = RemoteLogService(remote_log, "service", follow=lambda _: followed.set())
    service.assign(ORDERS_0, Role.LEADER)
    service.start()
    assert copying.wait(60)
    service.assign(ORDERS_0, Role.FOLLOWER)
    assert not followed.is_set()
    assert [str(each.topic_id_partition.partition) for each in remote_log.context.leases.held()] == ["0"]

    going_on.set()

    assert followed.wait(60)
    assert is_copied(remote_log, ORDERS_0)
    assert remote_log.context.leases.held() == []
    assert service.stop(60)


def test_a_stop_that_waits_in_vain_gives_the_leases_back(
    remote_log: RemoteLogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    copying, going_on = threading.Event(), threading.Event()
    commit = RemoteLogManager.commit_copy

    def committed(self: RemoteLogManager, outcomes: object) -> object:
        copying.set()
        assert going_on.wait(60)
        return commit(self, outcomes)  # type: ignore[arg-type]

    monkeypatch.setattr(RemoteLogManager, "commit_copy", committed)
    service = RemoteLogService(remote_log, "service")
    service.assign(ORDERS_0, Role.LEADER)
    service.start()
    assert copying.wait(60)
    assert len(remote_log.context.leases.held()) == 1

    assert not service.stop(0)

    assert remote_log.context.leases.held() == []
    remote_log.context.leases.acquire(ORDERS_0, "another run", 600_000)
    going_on.set()
    assert service.stop(60)
    assert {each.state for each in segments_of(remote_log)} == {SegmentState.COPY_SEGMENT_STARTED}


def test_a_store_that_is_away_for_a_while_is_caught_up_with(
    remote_log: RemoteLogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_away = threading.Event()
    is_away.set()
    copy_data = type(remote_log.context.storage).copy_log_segment_data

    def copied(storage: object, *arguments: object, **options: object) -> object:
        if is_away.is_set():
            raise RemoteStorageError("the store is away")
        return copy_data(storage, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(type(remote_log.context.storage), "copy_log_segment_data", copied)
    service = RemoteLogService(remote_log, "service")
    for each in LED[:2]:
        service.assign(each, Role.LEADER)
    service.start()
    wait_for(lambda: service.counts().failing[TaskKind.COPY] == 2)
    is_away.clear()

    wait_for(lambda: all(is_finished(remote_log, each) for each in LED[:2]))
    wait_for(lambda: service.counts().failing[TaskKind.COPY] == 0)
    assert service.stop(60)


def is_finished(remote_log: RemoteLogManager, partition: TopicIdPartition) -> bool:
    finished = [each for each in segments_of(remote_log, partition) if each.state is SegmentState.COPY_SEGMENT_FINISHED]
    return ranges(finished) == ALL
