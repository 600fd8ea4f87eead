"""What cannot be read of log directories is named, and holds up nothing else."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from support.command_line import mentions, run_on
from support.remote_logs import BATCH_BYTES, ORDERS_0, a_copied_remote_log, a_remote_log, flip_bit, partition_of
from tiered_storage.errors import (
    ConfigurationError,
    CorruptIndexError,
    InvalidLogDirectoryError,
    LogDirectoryLockedError,
)
from tiered_storage.kafka_log.files.directory_lock import DirectoryLock
from tiered_storage.kafka_log.files.offset_checkpoint import LOG_START_OFFSET_CHECKPOINT
from tiered_storage.remote_log.source.log_directory_source import LogDirectorySource
from tiered_storage.remote_log.source.partition_log import PartitionLog, UnreadablePartition
from unit.tiered_storage.remote_log.source.looks import source_of, why_unreadable


def test_a_partition_in_two_directories_is_used_from_neither(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 0, ("orders", 1): 0})
    again = shutil.copytree(files.log_directory, tmp_path / "again")
    shutil.rmtree(again / "orders-1")
    source = LogDirectorySource((files.log_directory, again))
    why = f"{files.partition_directory()} and {again / 'orders-0'} are the same partition: name only one of them"

    first, sound, second = source.partitions()

    for unreadable in (first, second):
        assert isinstance(unreadable, UnreadablePartition)
        assert unreadable.partition == "orders-0"
        assert why in unreadable.reason
    assert isinstance(sound, PartitionLog)
    with pytest.raises(InvalidLogDirectoryError, match="same partition"):
        source.partition(ORDERS_0)
    assert source.partition(partition_of("orders", 1)) == sound
    (again / "orders-0").rename(again / f"orders-0.{'0' * 32}-future")
    assert why_unreadable(source) == {}
    assert source.partition(ORDERS_0) is not None


def test_a_broken_partition_holds_up_no_other(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("clicks", 0): 1, ("orders", 0): 1, ("views", 0): 1})
    (files.partition_directory("clicks") / "leader-epoch-checkpoint").write_text("0\nmany\n")
    flip_bit(files.local_segments("orders")[-1].log_path, BATCH_BYTES - 1)
    source = source_of(files)

    found = {str(one.topic_id_partition) for one in source.partitions() if isinstance(one, PartitionLog)}

    assert found == {"views-0"}
    reasons = why_unreadable(source)
    assert "leader-epoch-checkpoint" in reasons["clicks-0"]
    assert "00000000000000000010.log" in reasons["orders-0"]
    assert "CRC" in reasons["orders-0"]


def test_a_partition_whose_id_cannot_be_read_is_damaged_and_not_gone(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 1})
    (files.partition_directory() / "partition.metadata").write_text("version: 0\ntopic_id: nonsense\n")

    assert "partition.metadata" in why_unreadable(source_of(files))["orders-0"]
    with pytest.raises(CorruptIndexError, match=r"partition\.metadata"):
        source_of(files).partition(ORDERS_0)


def test_a_directory_that_somebody_holds_is_not_looked_at(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    with DirectoryLock.acquire(files.log_directory):
        with pytest.raises(LogDirectoryLockedError):
            list(source_of(files).partitions())
        with pytest.raises(LogDirectoryLockedError):
            source_of(files).partition(ORDERS_0)


def test_a_directory_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = a_remote_log(tmp_path)

    def refuse(path: object, *_: object) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", refuse)

    with pytest.raises(InvalidLogDirectoryError, match=f"{files.log_directory}"):
        list(source_of(files).partitions())


def test_no_directory_and_one_that_is_not_kafkas_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"log\.dirs"):
        list(LogDirectorySource(()).partitions())
    with pytest.raises(InvalidLogDirectoryError, match="not a Kafka"):
        list(LogDirectorySource((tmp_path,)).partitions())
    with pytest.raises(InvalidLogDirectoryError, match="not a directory"):
        list(LogDirectorySource((tmp_path / "missing",)).partitions())
    assert LogDirectorySource(()).partition(ORDERS_0) is None


def test_missing_checkpoints_and_folders_left_out_are_reported(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 0})
    (files.log_directory / LOG_START_OFFSET_CHECKPOINT).unlink()
    (files.log_directory / "orders-1.0123456789abcdef0123456789abcdef-delete").mkdir()
    (files.log_directory / "__cluster_metadata-0").mkdir()

    notices = "\n".join(source_of(files).notices)

    assert f"{files.log_directory / LOG_START_OFFSET_CHECKPOINT} is missing" in notices
    assert "-delete is left out: " in notices
    assert "__cluster_metadata-0 is left out" in notices


def refuse(monkeypatch: pytest.MonkeyPatch, refused: Path, error: int) -> None:
    """Let nobody list `refused`, as after a wrong mode, or of a disk that fails."""
    scandir, listdir = os.scandir, os.listdir

    def checked(listing: Any) -> Any:
        def listed(path: Any = ".") -> Any:
            # A store in a folder is listed by descriptors.
            if not isinstance(path, int) and Path(path) == refused:
                raise OSError(error, os.strerror(error), str(path))
            return listing(path)

        return listed

    monkeypatch.setattr(os, "scandir", checked(scandir))
    monkeypatch.setattr(os, "listdir", checked(listdir))


@pytest.mark.parametrize("command", ["plan", "copy", "retain", "audit"])
@pytest.mark.parametrize("error", [errno.EACCES, errno.EIO])
def test_a_log_directory_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, error: int
) -> None:
    files = a_copied_remote_log(tmp_path)
    refuse(monkeypatch, files.log_directory, error)

    ended = run_on(files, command)

    said = " ".join((ended.out + ended.err).split())
    assert ended.exit_code == 1
    assert mentions(said, files.log_directory, f"[Errno {error}]", "right")


@pytest.mark.parametrize("error", [errno.EACCES, errno.EIO])
def test_a_partition_that_cannot_be_read_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 1, ("orders", 1): 1})
    refuse(monkeypatch, files.partition_directory(), error)

    for command, objects in (("plan", 0), ("copy", 1)):
        ended = run_on(files, command)

        assert ended.exit_code == 1
        assert f"{files.partition_directory()} cannot be read" in " ".join((ended.out + ended.err).split())
        assert len(files.objects(".log")) == objects


@pytest.mark.parametrize("command", ["plan", "copy"])
def test_a_file_in_place_of_a_log_directory_is_named(tmp_path: Path, command: str) -> None:
    files = a_remote_log(tmp_path)
    (tmp_path / "file").touch()
    for name in ("file", "file/below"):
        files.properties["log.dirs"] = [str(tmp_path / name)]

        ended = run_on(files, command)

        assert ended.exit_code == 1
        assert f"{tmp_path / name} is not a directory; " in ended.err
