"""Followers of one directory that take turns, as a service has them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from support.remote_logs import ENABLED, ORDERS_0, a_copied_remote_log, topic_id, unsynced
from tiered_storage.errors import (
    ClusterUnreachableError,
    ConfigurationError,
    InvalidLogDirectoryError,
    RemoteStorageError,
    UnknownPartitionError,
)
from tiered_storage.kafka_log.files.directory_lock import DirectoryLock
from tiered_storage.kafka_log.log.recovery.clean_shutdown import CLEAN_SHUTDOWN
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.fetch import FetchBuffer, FetchLimits
from tiered_storage.remote_log.follower import followers as followers_module
from tiered_storage.remote_log.follower.followed_directory import FollowedDirectory
from tiered_storage.remote_log.follower.followers import TURN_SECONDS, Followers
from tiered_storage.remote_log.follower.index_files import RemoteIndexFiles
from unit.tiered_storage.remote_log.follower.led_partition import LedPartition


@pytest.fixture
def led(tmp_path: Path) -> LedPartition:
    """A leader of 35 records, of which 30 are remote."""
    return LedPartition(a_copied_remote_log(tmp_path))


@contextmanager
def following(
    led: LedPartition, now: Callable[[], float] = lambda: 0.0, is_wanted: Callable[[], bool] = lambda: True
) -> Iterator[Followers]:
    """Open followers of the leader, and close them at the end."""
    with unsynced(), led.files.open() as remote_log:
        context = led.beside(remote_log).context
        directory = FollowedDirectory.open(led.directory, ORDERS_0.cluster_id, context.clock, 1)
        followers = Followers(context, directory, led, is_wanted, now)
        try:
            yield followers
        finally:
            followers.close()


def test_each_turn_follows_until_it_has_caught_up(led: LedPartition) -> None:
    with following(led) as followers:
        assert not followers(ORDERS_0)
        led.append(3)
        assert not followers(ORDERS_0)

    assert led.follower_content() == led.content()
    assert (led.directory / CLEAN_SHUTDOWN).is_file()
    assert led.follow().starts == ()


@pytest.mark.parametrize("ends", ["time", "unwanted"])
def test_a_turn_ends_early_and_the_next_one_goes_on(led: LedPartition, ends: str) -> None:
    is_wanted = ends == "time"
    with following(led, count(0.0, TURN_SECONDS if is_wanted else 0.0).__next__, lambda: is_wanted) as followers:
        for turns in range(1, 4):
            assert followers(ORDERS_0)
            assert len(led.fetched) == turns
            assert followers._open[ORDERS_0].report().indexed == 0
    with following(led) as followers:
        assert not followers(ORDERS_0)
        assert followers._open[ORDERS_0].report().indexed == 3

    assert led.follower_content() == led.content()


def test_after_an_error_that_no_retry_helps_with_the_log_is_recovered(led: LedPartition) -> None:
    def fail() -> None:
        raise OSError("no space left on the device")

    with following(led) as followers:
        followers(ORDERS_0)
        led.append(2)
        led.before_fetch = fail
        with pytest.raises(OSError, match="no space"):
            followers(ORDERS_0)
        led.append(2)
        followers(ORDERS_0)
    assert led.follower_content() == led.content()
    assert (led.directory / CLEAN_SHUTDOWN).is_file()

    with following(led) as followers:
        led.before_fetch = fail
        with pytest.raises(OSError, match="no space"):
            followers(ORDERS_0)
    assert not (led.directory / CLEAN_SHUTDOWN).exists()


def test_while_the_cluster_is_away_the_log_stays_open(led: LedPartition) -> None:
    def fail() -> None:
        raise ClusterUnreachableError("no broker answers")

    with following(led) as followers:
        followers(ORDERS_0)
        follower = followers._open[ORDERS_0]
        led.append(2)
        led.before_fetch = fail
        with pytest.raises(ClusterUnreachableError):
            followers(ORDERS_0)

        assert not followers(ORDERS_0)
        assert followers._open[ORDERS_0] is follower
    assert led.follower_content() == led.content()


@pytest.mark.parametrize(("is_scheduled", "deleted"), [(True, 3), (False, 0)])
def test_local_segments_go_only_if_runs_of_a_schedule_delete(tmp_path: Path, is_scheduled: bool, deleted: int) -> None:
    topics = {"orders": ENABLED | {"local.retention.ms": 1}}
    led = LedPartition(a_copied_remote_log(tmp_path, topics=topics, scheduled_deletion_enable=is_scheduled))
    with following(led) as followers:
        followers(ORDERS_0)

        assert followers._open[ORDERS_0].report().deleted == deleted


def test_what_a_follower_reports_is_logged_once(
    led: LedPartition, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RemoteStorageError("the index is away")

    monkeypatch.setattr(RemoteIndexFiles, "sync", fail)
    with following(led) as followers:
        for _ in range(2):
            followers(ORDERS_0)

    assert [record.getMessage() for record in caplog.records] == ["orders-0: the index is away"]


def test_the_log_of_a_topic_that_was_created_again_is_closed_and_kept(led: LedPartition) -> None:
    again = replace(ORDERS_0, topic_id=topic_id("orders-again"))
    with following(led) as followers:
        followers(ORDERS_0)
        before = led.follower_content()

        with pytest.raises(UnknownPartitionError):
            followers(again)

        assert followers._open == {}
        assert followers._directory._logs == {}
    assert led.follower_content() == before


def test_a_directory_that_somebody_uses_is_refused(led: LedPartition) -> None:
    led.files.properties["cluster.id"] = ORDERS_0.cluster_id
    led.directory.mkdir()
    with (
        unsynced(),
        led.files.open() as remote_log,
        DirectoryLock.acquire(led.directory),
        pytest.raises(InvalidLogDirectoryError),
    ):
        Followers.open(led.beside(remote_log).context, led.directory, 1)


def test_without_a_running_cluster_nothing_is_followed(led: LedPartition) -> None:
    with led.files.open() as remote_log, pytest.raises(ConfigurationError, match=r"bootstrap\.servers"):
        Followers.open(remote_log.context, led.directory, 1)


def test_each_thread_has_one_client_and_one_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, FetchBuffer, float]] = []

    class Client:
        def fetch(self, _: Any, buffer: FetchBuffer, limits: FetchLimits) -> None:
            asked.append((id(self), buffer, limits.max_wait_seconds))

        def close(self) -> None:
            closed.append(id(self))

    closed: list[int] = []
    monkeypatch.setattr(ClusterClient, "by_properties", lambda *_: Client())
    clients = followers_module._ThreadsClients({}, "cluster")

    def fetch_twice() -> None:
        for most in (10, 20):
            clients.fetch([], FetchBuffer(most), FetchLimits())

    other = threading.Thread(target=fetch_twice)
    other.start()
    fetch_twice()
    other.join()
    clients.close()

    assert len({client for client, _, _ in asked}) == len({id(buffer) for _, buffer, _ in asked}) == 2
    assert {(buffer.most, seconds) for _, buffer, seconds in asked} == {(20, 0.0)}
    assert sorted(closed) == sorted({client for client, _, _ in asked})
