"""Followers of one directory that take turns, as a service has them."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest

from support.remote_logs import ENABLED, ORDERS_0, a_copied_remote_log, topic_id, unsynced
from tiered_storage.errors import (
    ClusterUnreachableError,
    ConfigurationError,
    CorruptIndexError,
    InvalidLogDirectoryError,
    RemoteStorageError,
    SourceClusterError,
    UnknownPartitionError,
)
from tiered_storage.kafka_log.files.directory_lock import DirectoryLock
from tiered_storage.kafka_log.files.offset_checkpoint import LOG_START_OFFSET_CHECKPOINT
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.recovery.clean_shutdown import CLEAN_SHUTDOWN
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.connections.error_codes import FENCED_LEADER_EPOCH
from tiered_storage.kafka_wire.fetch import FetchBuffer, FetchLimits
from tiered_storage.remote_log.follower import followers as followers_module
from tiered_storage.remote_log.follower.followed_directory import FollowedDirectory
from tiered_storage.remote_log.follower.followers import CALL_SECONDS, TURN_SECONDS, Followers
from tiered_storage.remote_log.follower.index_files import RemoteIndexFiles
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.source.partition_log import PartitionLog
from tiered_storage.remote_log.source.segment_source import SegmentSource
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
            assert len(led.fetched) == (turns if is_wanted else 0)
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


def test_a_leader_epoch_that_stays_fenced_fails_the_turn_and_the_next_one_compares_epochs_again(
    led: LedPartition,
) -> None:
    """The client has tried until its call's deadline by then: without a back-off, such turns would keep a thread."""
    with following(led) as followers:
        followers(ORDERS_0)
        led.append(2)
        led.fetch_errors = [FENCED_LEADER_EPOCH]
        led.asked_epochs.clear()
        with pytest.raises(SourceClusterError, match="FENCED") as raised:
            followers(ORDERS_0)
        assert raised.value.retriable

        assert not followers(ORDERS_0)
        assert led.asked_epochs == [led.epoch]
    assert led.follower_content() == led.content()


@pytest.mark.parametrize(("is_scheduled", "deleted"), [(True, 3), (False, 0)])
def test_local_segments_go_only_if_runs_of_a_schedule_delete(tmp_path: Path, is_scheduled: bool, deleted: int) -> None:
    topics = {"orders": ENABLED | {"local.retention.ms": 1}}
    led = LedPartition(a_copied_remote_log(tmp_path, topics=topics, scheduled_deletion_enable=is_scheduled))
    with following(led) as followers:
        followers(ORDERS_0)

        assert followers._open[ORDERS_0].report().deleted == deleted


class NotedSource:
    """A source that notes in `looked` who looked at a partition."""

    def __init__(self, source: SegmentSource, looked: list[str], name: str) -> None:
        self._source, self._looked, self._name = source, looked, name

    def partition(self, partition: TopicIdPartition) -> PartitionLog | None:
        self._looked.append(self._name)
        return self._source.partition(partition)


def test_a_turn_looks_at_its_leader_with_the_source_of_its_thread(led: LedPartition) -> None:
    """Copies and other followers wait for whoever asks with the shared one."""
    looked: list[str] = []

    def noted(name: str) -> SegmentSource:
        return cast("SegmentSource", NotedSource(context.source, looked, name))

    with unsynced(), led.files.open() as remote_log:
        context = led.beside(remote_log).context
        directory = FollowedDirectory.open(led.directory, ORDERS_0.cluster_id, context.clock, 1)
        turns = map(noted, ["first", "second"])
        shared = replace(context, source=noted("shared"))
        followers = Followers(shared, directory, led, source=lambda: next(turns))
        try:
            for name in ("first", "second"):
                looked.clear()
                followers(ORDERS_0)
                assert set(looked) == {name}
        finally:
            followers.close()


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


def open_files(led: LedPartition) -> list[str]:
    """The files of the follower's partition that this process has open."""
    opened = (each.readlink() for each in Path("/proc/self/fd").iterdir() if each.is_symlink())
    return sorted(each.name for each in opened if each.parent == led.directory / "orders-0")


@pytest.mark.parametrize("fails", [False, True])
def test_a_partition_that_is_let_go_is_closed_once_and_may_be_followed_again(
    led: LedPartition, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ClusterUnreachableError("no broker answers")

    closed: list[LocalLog] = []
    close = LocalLog.close

    def counted(log: LocalLog) -> None:
        closed.append(log)
        close(log)

    monkeypatch.setattr(LocalLog, "close", counted)
    with following(led) as followers:
        followers(ORDERS_0)
        log = followers._open[ORDERS_0].followed.log
        assert open_files(led)
        led.append(2)
        if fails:
            led.before_fetch = fail
            with pytest.raises(ClusterUnreachableError):
                followers(ORDERS_0)

        for _ in range(2):
            followers.release(ORDERS_0)

        assert [each for each in closed if each.directory.parent == led.directory] == [log]
        assert open_files(led) == []
        assert (followers._open, followers._directory._logs, followers._found) == ({}, {}, {})
        followers(ORDERS_0)
        assert followers._open[ORDERS_0].followed.log.truncated_bytes == 0
    assert open_files(led) == []
    assert led.follower_content() == led.content()
    assert (led.directory / CLEAN_SHUTDOWN).is_file()


def test_a_partition_whose_log_cannot_be_closed_in_order_is_let_go_and_recovered(
    led: LedPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: LocalLog) -> None:
        raise OSError("no space left on the device")

    with following(led) as followers:
        followers(ORDERS_0)
        with monkeypatch.context() as patched:
            patched.setattr(LocalLog, "close", fail)
            with pytest.raises(OSError, match="no space"):
                followers.release(ORDERS_0)
        assert open_files(led) == []
        followers.release(ORDERS_0)

        led.append(2)
        followers(ORDERS_0)
    assert led.follower_content() == led.content()


def test_a_topic_that_was_created_again_ends_no_turn_of_the_earlier_one(led: LedPartition) -> None:
    again = replace(ORDERS_0, topic_id=topic_id("orders-again"))

    def in_another_thread() -> None:
        with pytest.raises(UnknownPartitionError):
            followers(again)

    with following(led) as followers:
        followers(ORDERS_0)
        led.append(2)
        led.before_fetch = in_another_thread

        assert not followers(ORDERS_0)
    assert led.follower_content() == led.content()


def test_files_that_were_opened_are_closed_if_a_checkpoint_cannot_be_read(led: LedPartition) -> None:
    with following(led) as followers:
        followers(ORDERS_0)
        followers.release(ORDERS_0)
        checkpoint = led.directory / LOG_START_OFFSET_CHECKPOINT
        sound = checkpoint.read_bytes()
        checkpoint.write_bytes(b"torn")

        for _ in range(2):
            with pytest.raises(CorruptIndexError):
                followers(ORDERS_0)
        assert open_files(led) == []

        checkpoint.write_bytes(sound)
        followers(ORDERS_0)
    assert led.follower_content() == led.content()


def test_once_a_service_ends_a_turn_looks_at_nothing_more(led: LedPartition) -> None:
    stop, looks = threading.Event(), list[int]()
    with following(led, is_wanted=lambda: not stop.is_set()) as followers:
        followers(ORDERS_0)
        led.append(20)
        follower = followers._open[ORDERS_0]
        look = follower.look
        follower.look = lambda: looks.append(len(led.fetched)) or look()  # type: ignore[method-assign, func-returns-value]
        begun = len(led.fetched)
        led.before_fetch = stop.set

        assert followers(ORDERS_0)
        assert looks == [begun]
        assert len(led.fetched) == begun + 1
    assert (led.directory / CLEAN_SHUTDOWN).is_file()

    with following(led) as followers:
        followers(ORDERS_0)
        assert followers._open[ORDERS_0].followed.log.truncated_bytes == 0
    assert led.follower_content() == led.content()


def test_a_process_that_ends_within_a_turn_leaves_files_to_go_on_with(led: LedPartition, tmp_path: Path) -> None:
    def end() -> None:
        shutil.copytree(led.directory, tmp_path / "as it was left")

    with following(led) as followers:
        followers(ORDERS_0)
        led.append(5)
        led.bytes_at_once = 1
        followers._open[ORDERS_0].step()
        led.before_fetch = end
        followers(ORDERS_0)
    shutil.rmtree(led.directory)
    (tmp_path / "as it was left").rename(led.directory)
    assert not (led.directory / CLEAN_SHUTDOWN).exists()

    with following(led) as followers:
        assert not followers(ORDERS_0)
    assert led.follower_content() == led.content()


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


def test_each_thread_has_one_client_one_source_and_one_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, FetchBuffer, float]] = []
    limits_of_calls, sources = list[float](), list[int]()

    class Client:
        def fetch(self, _: Any, buffer: FetchBuffer, limits: FetchLimits, *, seconds: float) -> None:
            asked.append((id(self), buffer, limits.max_wait_seconds))
            limits_of_calls.append(seconds)

        def offsets_for_leader_epochs(self, _: Any, *, seconds: float) -> None:
            limits_of_calls.append(seconds)

        def close(self) -> None:
            closed.append(id(self))

    closed: list[int] = []
    monkeypatch.setattr(ClusterClient, "by_properties", lambda *_: Client())
    clients = followers_module._ThreadsClients({}, "cluster", lambda: cast("SegmentSource", Client()))

    def fetch_twice() -> None:
        for most in (10, 20):
            clients.fetch([], FetchBuffer(most), FetchLimits())
        clients.offsets_for_leader_epochs({})
        sources.append(id(clients.source()))
        assert clients.source() is clients.source()

    other = threading.Thread(target=fetch_twice)
    other.start()
    fetch_twice()
    other.join()
    clients.close()

    assert len({client for client, _, _ in asked}) == len({id(buffer) for _, buffer, _ in asked}) == 2
    assert {(buffer.most, seconds) for _, buffer, seconds in asked} == {(20, 0.0)}
    assert set(limits_of_calls) == {CALL_SECONDS}
    assert len(set(sources)) == 2
    assert sorted(closed) == sorted({*(client for client, _, _ in asked), *sources})
