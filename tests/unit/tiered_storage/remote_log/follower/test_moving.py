from __future__ import annotations

import shutil
from pathlib import Path
from unittest import mock

import pytest

from support.remote_logs import a_copied_remote_log, assert_clean
from support.simulated_crashes import Died, die
from tiered_storage.errors import ConfigurationError, InvalidLogDirectoryError, LogDirectoryLockedError
from tiered_storage.kafka_log.files.directory_lock import DirectoryLock
from tiered_storage.kafka_log.files.meta_properties import META_PROPERTIES, MetaProperties
from tiered_storage.kafka_log.files.offset_checkpoint import read_offset_checkpoint
from tiered_storage.remote_log.follower import moving
from tiered_storage.remote_log.follower.moving import move_partition
from unit.tiered_storage.remote_log.follower.led_partition import LedPartition


@pytest.fixture
def led(tmp_path: Path) -> LedPartition:
    """A follower that has caught up and stopped."""
    led = LedPartition(a_copied_remote_log(tmp_path))
    led.trim(before=10)
    led.follow()
    return led


@pytest.fixture
def target(led: LedPartition) -> Path:
    return led.files.root / "elsewhere"


def _contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (directory / "orders-0").iterdir()}


def test_every_file_goes_along(led: LedPartition, target: Path) -> None:
    before = _contents(led.directory)
    assert {name.partition(".")[2] for name in before} >= {"remoteLogIndex", "remoteOffsetIndex", "remoteTimeIndex"}

    moved = move_partition("orders", 0, led.directory, target)

    assert _contents(target) == before
    assert (moved.files, moved.was_there) == (len(before), False)
    assert not (led.directory / "orders-0").exists()
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint", "log-start-offset-checkpoint"):
        assert ("orders", 0) in read_offset_checkpoint(target / name)
        assert ("orders", 0) not in read_offset_checkpoint(led.directory / name)


def test_the_moved_log_is_followed_and_read_on(led: LedPartition, target: Path) -> None:
    move_partition("orders", 0, led.directory, target)
    shutil.rmtree(led.directory)
    target.rename(led.directory)
    led.append(2)

    report = led.follow()

    assert report.starts == ()
    assert led.follower_content() == led.content(10)
    with led.as_local_log().open() as remote_log:
        assert_clean(remote_log)


@pytest.mark.parametrize("step", ["_copy", "_take_checkpoints", "_remove"])
def test_a_killed_move_is_finished_by_the_next_one(led: LedPartition, target: Path, step: str) -> None:
    before = _contents(led.directory)
    with mock.patch.object(moving, step, die), pytest.raises(Died):
        move_partition("orders", 0, led.directory, target)

    moved = move_partition("orders", 0, led.directory, target)

    assert moved.was_there is (step == "_remove")
    assert _contents(target) == before
    assert not (led.directory / "orders-0").exists()


def test_a_move_that_was_killed_while_it_removed_is_finished_too(led: LedPartition, target: Path) -> None:
    before = _contents(led.directory)

    def die_there(path: Path) -> None:
        if path == led.directory:
            die()

    with mock.patch.object(moving, "sync_directory", die_there), pytest.raises(Died):
        move_partition("orders", 0, led.directory, target)

    moved = move_partition("orders", 0, led.directory, target)

    assert (moved.files, moved.was_there) == (len(before), True)
    assert _contents(target) == before
    assert not [path for path in led.directory.iterdir() if path.is_dir()]
    assert ("orders", 0) not in read_offset_checkpoint(led.directory / "log-start-offset-checkpoint")
    with pytest.raises(InvalidLogDirectoryError, match="orders-0"):
        move_partition("orders", 0, led.directory, target)


def test_a_partition_that_is_not_there_is_refused(led: LedPartition, target: Path) -> None:
    with pytest.raises(InvalidLogDirectoryError, match="orders-7"):
        move_partition("orders", 7, led.directory, target)

    assert not target.exists()


def test_one_directory_is_refused(led: LedPartition) -> None:
    with pytest.raises(ConfigurationError):
        move_partition("orders", 0, led.directory, led.directory / ".." / led.directory.name)


@pytest.mark.parametrize("held", ["source", "target"])
def test_a_directory_that_somebody_runs_in_is_refused(led: LedPartition, target: Path, held: str) -> None:
    target.mkdir()
    with (
        DirectoryLock.acquire(led.directory if held == "source" else target),
        pytest.raises(LogDirectoryLockedError),
    ):
        move_partition("orders", 0, led.directory, target)


def test_another_log_of_that_name_is_refused(led: LedPartition, target: Path) -> None:
    shutil.copytree(led.directory, target)
    led.append(2)
    led.follow()

    with pytest.raises(InvalidLogDirectoryError, match="nothing was"):
        move_partition("orders", 0, led.directory, target)

    assert (led.directory / "orders-0").is_dir()


@pytest.mark.parametrize(("cluster_id", "node_id"), [("another", 1), ("test-cluster", 2)])
def test_a_directory_of_another_broker_is_refused(
    led: LedPartition, target: Path, cluster_id: str, node_id: int
) -> None:
    target.mkdir()
    MetaProperties(1, cluster_id, node_id, None).write(target / META_PROPERTIES)

    with pytest.raises(ConfigurationError, match="broker"):
        move_partition("orders", 0, led.directory, target)


def test_an_unclean_log_makes_its_new_directory_unclean(led: LedPartition, target: Path) -> None:
    shutil.copytree(led.directory, target)
    shutil.rmtree(target / "orders-0")
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint", "log-start-offset-checkpoint"):
        (target / name).write_text("0\n0\n")
    (led.directory / ".kafka_cleanshutdown").unlink()

    move_partition("orders", 0, led.directory, target)

    assert not (target / ".kafka_cleanshutdown").exists()
