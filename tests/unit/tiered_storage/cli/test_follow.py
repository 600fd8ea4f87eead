from __future__ import annotations

from pathlib import Path

import pytest

from support.command_line import run, run_on
from support.remote_logs import RemoteLogFiles, a_copied_remote_log
from tiered_storage.kafka_log.files.directory_lock import DirectoryLock


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    return a_copied_remote_log(tmp_path)


def test_following_needs_a_running_cluster(files: RemoteLogFiles, tmp_path: Path) -> None:
    result = run_on(files, "follow", "orders", 0, "--directory", tmp_path / "follower")

    assert result.exit_code == 1
    assert "bootstrap.servers" in result.err
    assert not (tmp_path / "follower").exists()


@pytest.mark.parametrize("partition", [("nothing", 0), ("orders", 7)])
def test_an_unknown_partition_is_refused(files: RemoteLogFiles, tmp_path: Path, partition: tuple[str, int]) -> None:
    result = run_on(files, "follow", *partition, "--directory", tmp_path / "follower")

    assert result.exit_code == 1
    assert "{}-{}".format(*partition) in result.err


def test_a_partition_is_moved(files: RemoteLogFiles, tmp_path: Path) -> None:
    before = {path.name for path in files.partition_directory().iterdir()}

    result = run("move-partition", "orders", 0, "--from", files.log_directory, "--to", tmp_path / "moved", "--json")

    assert result.exit_code == 0, result.err
    [row] = result.rows
    assert (row["partition"], row["files"], row["was_there"]) == ("orders-0", len(before), False)
    assert {path.name for path in (tmp_path / "moved" / "orders-0").iterdir()} == before
    assert not files.partition_directory().exists()


def test_a_partition_is_not_moved_from_under_a_broker(files: RemoteLogFiles, tmp_path: Path) -> None:
    with DirectoryLock.acquire(files.log_directory):
        result = run("move-partition", "orders", 0, "--from", files.log_directory, "--to", tmp_path / "moved")

    assert result.exit_code == 1
    assert str(files.log_directory) in result.err
    assert files.partition_directory().is_dir()
