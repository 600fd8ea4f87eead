from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.command_line import mentions, run_on
from support.remote_logs import ENABLED, ORDERS_0, RemoteLogFiles, a_copied_remote_log, a_remote_log, local_log
from support.small_disks import bind_mount, fill, small_disk
from tiered_storage.errors import InvalidLogDirectoryError, LogDirectoryLockedError
from tiered_storage.kafka_log.files.directory_lock import DirectoryLock
from tiered_storage.kafka_log.files.log_segment import LogSegment
from tiered_storage.kafka_log.files.offset_checkpoint import (
    LOG_START_OFFSET_CHECKPOINT,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.remote_log.source import log_directory_trim
from tiered_storage.remote_log.source.log_directory_source import LogDirectorySource
from tiered_storage.remote_log.source.log_directory_trim import LogDirectoryTrim
from tiered_storage.remote_log.source.partition_log import LocalSegment, PartitionLog, UnreadablePartition

AS_A_BROKER = """
import fcntl, sys
file = open(sys.argv[1], "a+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("locked", flush=True)
sys.stdin.read()
"""


def seen(files: RemoteLogFiles) -> tuple[LocalSegment, ...]:
    [log] = LogDirectorySource((files.log_directory,)).partitions()
    assert isinstance(log, PartitionLog)
    return log.segments


def log_starts(files: RemoteLogFiles) -> dict[tuple[str, int], int]:
    return dict(read_offset_checkpoint(files.log_directory / LOG_START_OFFSET_CHECKPOINT))


def test_the_oldest_segments_are_deleted_with_all_that_belongs_to_them(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    (files.partition_directory() / "00000000000000000000.txnindex").write_bytes(b"")

    LogDirectoryTrim().trim(ORDERS_0, seen(files)[:2], 20)

    kept = {path.name for path in files.partition_directory().iterdir()}
    assert kept == {
        "00000000000000000020.log", "00000000000000000020.index", "00000000000000000020.timeindex",
        "00000000000000000020.snapshot",
        "00000000000000000030.log", "00000000000000000030.index", "00000000000000000030.timeindex",
        "00000000000000000030.snapshot", "00000000000000000035.snapshot",
        "leader-epoch-checkpoint", "partition.metadata",
    }  # fmt: skip
    assert log_starts(files) == {("orders", 0): 20}


def test_a_trimmed_log_opens_and_continues(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    LogDirectoryTrim().trim(ORDERS_0, seen(files)[:2], 20)
    files.append(3)

    with LocalLog.open(files.partition_directory()) as log:
        assert (log.log_start_offset, log.log_end_offset) == (20, 50)


def test_trimming_twice_changes_nothing_more(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    going = seen(files)[:2]

    LogDirectoryTrim().trim(ORDERS_0, going, 20)
    LogDirectoryTrim().trim(ORDERS_0, going, 20)
    LogDirectoryTrim().trim(ORDERS_0, (), 20)

    assert files.local_starts() == [20, 30]


def test_a_trim_changes_no_other_log_start_and_lowers_none(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    checkpoint = files.log_directory / LOG_START_OFFSET_CHECKPOINT
    write_offset_checkpoint(checkpoint, {("clicks", 0): 7, ("orders", 0): 25})

    LogDirectoryTrim().trim(ORDERS_0, seen(files)[:2], 20)

    assert log_starts(files) == {("clicks", 0): 7, ("orders", 0): 25}


def test_without_a_checkpoint_one_is_made(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    (files.log_directory / LOG_START_OFFSET_CHECKPOINT).unlink()

    LogDirectoryTrim().trim(ORDERS_0, seen(files)[:1], 10)

    assert log_starts(files) == {("orders", 0): 10}


def test_nothing_is_deleted_while_a_broker_has_the_directory(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    going = seen(files)[:2]
    command = [sys.executable, "-c", AS_A_BROKER, str(files.log_directory / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None
        assert broker.stdout.readline() == "locked\n"
        try:
            with pytest.raises(LogDirectoryLockedError, match=f"process {broker.pid}"):
                LogDirectoryTrim().trim(ORDERS_0, going, 20)
        finally:
            broker.communicate()

    assert files.local_starts() == [0, 10, 20, 30]
    assert log_starts(files) == {("orders", 0): 0}


def test_the_lock_is_held_during_removal_and_released_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = a_remote_log(tmp_path)
    going = seen(files)[:1]
    remove = log_directory_trim._remove

    def remove_under_lock(segment: object) -> None:
        with pytest.raises(LogDirectoryLockedError):
            DirectoryLock.acquire(files.log_directory)
        remove(segment)  # type: ignore[arg-type]  # the very one that it was called with

    monkeypatch.setattr(log_directory_trim, "_remove", remove_under_lock)
    LogDirectoryTrim().trim(ORDERS_0, going, 10)

    assert files.local_starts() == [10, 20, 30]
    DirectoryLock.acquire(files.log_directory).release()


@pytest.mark.parametrize(
    ("going", "new_start"),
    [
        ([1], 20),
        ([0, 2], 30),
        ([0, 1], 10),
        ([0, 1], 30),
        ([0, 1, 2, 3], 40),
        ([3], 40),
    ],
    ids=["not the oldest", "a gap", "start too low", "start too high", "the active one too", "the active one"],
)
def test_a_trim_refuses_all_but_the_oldest_closed_segments(tmp_path: Path, going: list[int], new_start: int) -> None:
    files = a_remote_log(tmp_path)
    segments = seen(files)

    with pytest.raises(InvalidLogDirectoryError, match=f"offset {new_start}"):
        LogDirectoryTrim().trim(ORDERS_0, [segments[number] for number in going], new_start)

    assert files.local_starts() == [0, 10, 20, 30]
    assert log_starts(files) == {("orders", 0): 0}


def test_a_log_that_grew_at_its_start_since_the_plan_is_left_alone(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    going = seen(files)[1:3]
    oldest = files.local_segments()[0]
    kept = oldest.log_path.read_bytes()
    oldest.log_path.unlink()
    oldest.log_path.write_bytes(kept)

    with pytest.raises(InvalidLogDirectoryError, match="nothing was removed"):
        LogDirectoryTrim().trim(ORDERS_0, going, 30)


@pytest.mark.parametrize("survived", [1, 2, 4, 5, 7])
def test_a_crash_between_two_files_is_mended_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survived: int
) -> None:
    files = a_remote_log(tmp_path)
    going = seen(files)[:2]
    unlink = Path.unlink
    calls = 0

    def unlink_until_the_crash(path: Path, missing_ok: bool = False) -> None:
        nonlocal calls
        calls += 1
        if calls > survived:
            raise InterruptedError
        unlink(path, missing_ok)

    with monkeypatch.context() as crashing:
        crashing.setattr(Path, "unlink", unlink_until_the_crash)
        with pytest.raises(InterruptedError):
            LogDirectoryTrim().trim(ORDERS_0, going, 20)

    assert log_starts(files) == {("orders", 0): 20}
    with files.open() as remote_log:
        assert local_log(remote_log).log_start_offset == 20
    LogDirectoryTrim().trim(ORDERS_0, going, 20)
    assert files.local_starts() == [20, 30]
    assert not list(files.partition_directory().glob("0000000000000000000*"))
    assert not list(files.partition_directory().glob("00000000000000000010*"))


# ------------------------------------------------------------------------------------------------------ symbolic links


def linked(files: RemoteLogFiles) -> Path:
    """Move the partition's folder into another log directory and leave a link; return that directory."""
    other = files.root / "disk-2"
    other.mkdir()
    files.partition_directory().rename(other / "orders-0")
    files.partition_directory().symlink_to(other / "orders-0")
    return other


def test_a_partition_that_lies_elsewhere_is_not_trimmed_through_a_link(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    other = linked(files)

    with pytest.raises(InvalidLogDirectoryError, match=f"orders-0.*{other}/orders-0.*log.dirs"):
        LogDirectoryTrim().trim(ORDERS_0, seen(files)[:2], 20)

    assert files.local_starts() == [0, 10, 20, 30]
    assert log_starts(files) == {("orders", 0): 0}


def test_a_partition_that_is_mounted_from_elsewhere_is_not_trimmed(tmp_path: Path) -> None:
    """The lock beside the mount point is free, whatever a broker does with the real folder."""
    files = a_copied_remote_log(tmp_path, topics={"orders": {**ENABLED, "local.retention.bytes": 0}})
    other = files.root / "disk-2"
    other.mkdir()
    files.partition_directory().rename(other / "orders-0")
    with DirectoryLock.acquire(other), bind_mount(other / "orders-0", files.partition_directory()):
        with pytest.raises(InvalidLogDirectoryError, match=r"orders-0.*log\.dirs"):
            LogDirectoryTrim().trim(ORDERS_0, seen(files)[:2], 20)
        with pytest.raises(InvalidLogDirectoryError, match="orders-0"):
            LocalLog.open(files.partition_directory())
        for arguments in (["retain", "--dry-run"], ["retain"]):
            ended = run_on(files, *arguments)
            assert (ended.exit_code, "orders-0 is a mount point" in " ".join(ended.err.split())) == (1, True)
        assert files.local_starts() == [0, 10, 20, 30]
    assert log_starts(files) == {("orders", 0): 0}


def test_a_mounted_log_directory_is_trimmed_under_its_own_lock(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    going = seen(files)[:2]
    real = files.log_directory.rename(tmp_path / "disk-2")
    with bind_mount(real, files.log_directory):
        with DirectoryLock.acquire(real), pytest.raises(LogDirectoryLockedError):
            LogDirectoryTrim().trim(ORDERS_0, going, 20)
        LogDirectoryTrim().trim(ORDERS_0, going, 20)
        assert files.local_starts() == [20, 30]


def test_a_segment_whose_log_is_a_link_is_not_trimmed(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": {**ENABLED, "local.retention.bytes": 0}})
    log = Path(seen(files)[1].location)
    real = log.rename(tmp_path / "elsewhere.log")
    log.symlink_to(real)

    with pytest.raises(InvalidLogDirectoryError, match=f"10.log.*{real}"):
        LogDirectoryTrim().trim(ORDERS_0, seen(files)[:2], 20)
    for arguments in (["retain", "--dry-run"], ["retain"]):
        ended = run_on(files, *arguments)
        assert ended.exit_code == 1 and mentions(" ".join(ended.err.split()), "10.log", "symbolic link", real)

    assert (log.is_symlink(), real.stat().st_size > 0) == (True, True)
    assert files.local_starts() == [0, 10, 20, 30]


def test_retain_names_a_linked_partition_also_when_it_only_plans(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": {**ENABLED, "local.retention.bytes": 0}})
    linked(files)
    for arguments in (["retain", "--dry-run"], ["retain"]):
        ended = run_on(files, *arguments)

        assert ended.exit_code == 1
        assert mentions(" ".join((ended.out + ended.err).split()), files.partition_directory(), "symbolic link")
    assert files.local_starts() == [0, 10, 20, 30]


def test_a_linked_partition_is_not_read_while_a_broker_has_the_directory_that_it_lies_in(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    other = linked(files)
    source = LogDirectorySource((files.log_directory,))
    with DirectoryLock.acquire(other):
        [found] = source.partitions()
        assert isinstance(found, UnreadablePartition)
        assert f"{other} is in use" in found.reason
    [log] = source.partitions()
    assert isinstance(log, PartitionLog)


def test_a_linked_partition_is_not_opened_for_writing(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    linked(files)

    with pytest.raises(InvalidLogDirectoryError, match="symbolic link"):
        files.append()
    with pytest.raises(InvalidLogDirectoryError, match="symbolic link"):
        LocalLog.open(files.partition_directory())


def test_a_link_to_a_whole_log_directory_has_its_lock(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    link = tmp_path / "link"
    link.symlink_to(files.log_directory)
    [log] = LogDirectorySource((link,)).partitions()
    assert isinstance(log, PartitionLog)

    with DirectoryLock.acquire(files.log_directory), pytest.raises(LogDirectoryLockedError):
        LogDirectoryTrim().trim(ORDERS_0, log.segments[:2], 20)
    LogDirectoryTrim().trim(ORDERS_0, log.segments[:2], 20)
    assert files.local_starts() == [20, 30]


def test_on_a_full_disk_indexes_make_the_room_for_the_checkpoint_before_any_log_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen_before_the_first_log: list[int] = []
    real_remove = log_directory_trim._remove

    def remove(segment: LogSegment) -> None:
        seen_before_the_first_log.append(log_starts(files).get(("orders", 0), 0))
        real_remove(segment)

    with small_disk(tmp_path / "disk") as disk:
        files = a_remote_log(disk)
        segments = seen(files)[:2]
        fill(disk)
        monkeypatch.setattr(log_directory_trim, "_remove", remove)

        LogDirectoryTrim().trim(ORDERS_0, segments, 20)

        assert seen_before_the_first_log == [20, 20]
        assert files.local_starts() == [20, 30]
