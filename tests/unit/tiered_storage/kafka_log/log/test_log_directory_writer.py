from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest

from support.files import files_in
from support.local_logs import NOW, TOPIC_ID, read_all, records
from tiered_storage.errors import (
    CorruptIndexError,
    CorruptRecordError,
    InvalidLogDirectoryError,
    LogDirectoryLockedError,
)
from tiered_storage.kafka_log.files.directory_lock import ensure_unlocked
from tiered_storage.kafka_log.files.log_directory import read_log_directory
from tiered_storage.kafka_log.files.meta_properties import MetaProperties
from tiered_storage.kafka_log.files.offset_checkpoint import (
    HIGH_WATERMARK_CHECKPOINT,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from tiered_storage.kafka_log.log import active_segment
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.log.recovery.clean_shutdown import CLEAN_SHUTDOWN
from unit.tiered_storage.kafka_log.log.crash_states import crash_states

DIRECTORY_ID = "J8AJkMIyTFyv6dWLTSGUwA"


def write(root: Path) -> None:
    with LogDirectoryWriter.create(
        root, "cluster", node_id=4, directory_id=DIRECTORY_ID, clock=lambda: NOW
    ) as directory:
        for partition in (0, 1):
            log = directory.create_log("orders", partition, TOPIC_ID)
            for _ in range(partition + 1):
                log.append(records(3))


def test_a_written_directory_is_read_as_a_brokers(tmp_path: Path) -> None:
    write(tmp_path / "logs")

    found = read_log_directory(tmp_path / "logs")

    assert (found.cluster_id, found.node_id) == ("cluster", 4)
    assert [(it.topic, it.partition, it.topic_id) for it in found.partitions] == [
        ("orders", 0, TOPIC_ID),
        ("orders", 1, TOPIC_ID),
    ]
    assert found.high_watermarks == {("orders", 0): 3, ("orders", 1): 6}
    assert found.log_start_offsets == {("orders", 0): 0, ("orders", 1): 0}
    assert (found.skipped, found.damaged, found.warnings) == ({}, {}, ())


def test_identity_recovery_points_and_clean_shutdown_are_recorded_as_by_kafka(tmp_path: Path) -> None:
    write(tmp_path)

    assert MetaProperties.read(tmp_path / "meta.properties") == MetaProperties(1, "cluster", 4, DIRECTORY_ID)
    recovery_points = read_offset_checkpoint(tmp_path / "recovery-point-offset-checkpoint")
    assert recovery_points == {("orders", 0): 3, ("orders", 1): 6}
    assert json.loads((tmp_path / ".kafka_cleanshutdown").read_bytes()) == {"version": 0, "brokerEpoch": -1}


def test_a_directory_id_is_made_up_where_none_is_given(tmp_path: Path) -> None:
    ids = set()
    for name in ("a", "b"):
        LogDirectoryWriter.create(tmp_path / name, "cluster").close()
        ids.add(MetaProperties.read(tmp_path / name / "meta.properties").directory_id)

    assert len(ids) == 2


def test_the_directory_is_locked_for_as_long_as_it_is_written(tmp_path: Path) -> None:
    with LogDirectoryWriter.create(tmp_path, "cluster"):
        with pytest.raises(LogDirectoryLockedError):
            LogDirectoryWriter.open(tmp_path)
        with pytest.raises(LogDirectoryLockedError):
            LogDirectoryWriter.create(tmp_path, "another")

    ensure_unlocked(tmp_path)


def test_a_reopened_directory_continues_and_is_not_clean_while_open(tmp_path: Path) -> None:
    write(tmp_path)

    with LogDirectoryWriter.open(tmp_path, clock=lambda: NOW) as directory:
        assert not (tmp_path / ".kafka_cleanshutdown").exists()
        log = directory.log("orders", 1)
        assert log.append(records(2)) == 6
        directory.create_log("payments", 0, DIRECTORY_ID).append(records(1))
        assert len(read_all(log)) == 8

    assert (tmp_path / ".kafka_cleanshutdown").exists()
    assert read_log_directory(tmp_path).high_watermarks == {("orders", 0): 3, ("orders", 1): 8, ("payments", 0): 1}


def test_after_an_error_the_directory_is_unlocked_and_left_to_be_recovered(tmp_path: Path) -> None:
    write(tmp_path)

    with pytest.raises(RuntimeError), LogDirectoryWriter.open(tmp_path) as directory:
        directory.log("orders", 0).append(records(1))
        raise RuntimeError

    ensure_unlocked(tmp_path)
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    assert read_log_directory(tmp_path).high_watermarks == {("orders", 0): 3, ("orders", 1): 6}
    with LogDirectoryWriter.open(tmp_path) as directory:
        assert directory.log("orders", 0).log_end_offset == 4


def test_a_log_directory_is_not_created_over(tmp_path: Path) -> None:
    write(tmp_path)

    with pytest.raises(InvalidLogDirectoryError, match="already"):
        LogDirectoryWriter.create(tmp_path, "another")

    ensure_unlocked(tmp_path)
    assert read_log_directory(tmp_path).cluster_id == "cluster"


def test_a_directory_that_cannot_be_opened_whole_is_left_unlocked(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "orders-1" / "partition.metadata").write_bytes(b"")

    with pytest.raises(CorruptIndexError):
        LogDirectoryWriter.open(tmp_path)

    ensure_unlocked(tmp_path)


def test_a_partition_of_which_only_a_swap_is_left_is_opened_with_what_its_checkpoints_say(tmp_path: Path) -> None:
    write(tmp_path)
    write_offset_checkpoint(tmp_path / "log-start-offset-checkpoint", {("orders", 0): 0, ("orders", 1): 2})
    for path in (tmp_path / "orders-1").glob("0*"):
        path.rename(path.with_name(path.name + ".swap"))
    (tmp_path / "__cluster_metadata-0").mkdir()
    quorums = tmp_path / "__cluster_metadata-0" / "00000000000000000000.log.swap"
    quorums.touch()

    with LogDirectoryWriter.open(tmp_path, clock=lambda: NOW) as directory:
        log = directory.log("orders", 1)
        assert (log.log_start_offset, log.log_end_offset) == (2, 6)
    assert read_offset_checkpoint(tmp_path / "log-start-offset-checkpoint") == {("orders", 0): 0, ("orders", 1): 2}
    assert quorums.exists()


def test_checkpoint_entries_of_partitions_without_a_log_are_kept(tmp_path: Path) -> None:
    write(tmp_path)
    names = ("recovery-point-offset-checkpoint", "replication-offset-checkpoint", "log-start-offset-checkpoint")
    (tmp_path / "empty-0").mkdir()
    for name in names:
        said = {("orders", 0): 1, ("orders", 1): 2, ("empty", 0): 7, ("gone", 0): 9}
        write_offset_checkpoint(tmp_path / name, said)

    LogDirectoryWriter.open(tmp_path, clock=lambda: NOW).close()

    for name in names:
        said = dict(read_offset_checkpoint(tmp_path / name))
        assert set(said) == {("orders", 0), ("orders", 1), ("empty", 0)}
        assert said["empty", 0] == 7


def test_opening_a_directory_removes_temporary_files(tmp_path: Path) -> None:
    write(tmp_path)
    before = {path.name for path in tmp_path.iterdir()}
    for name in before:
        if (tmp_path / name).is_file() and name != ".lock":
            (tmp_path / f"{name}.tmp").write_bytes(b"half of it")

    LogDirectoryWriter.open(tmp_path, clock=lambda: NOW).close()

    assert {path.name for path in tmp_path.iterdir()} == before


def test_a_partition_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with (
        LogDirectoryWriter.create(tmp_path, "cluster") as directory,
        pytest.raises(InvalidLogDirectoryError, match="has no orders-7"),
    ):
        directory.log("orders", 7)


def test_checkpoints_written_on_the_way_say_what_a_crash_leaves(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), LogDirectoryWriter.create(tmp_path, "cluster", clock=lambda: NOW) as directory:
        log = directory.create_log("orders", 0, TOPIC_ID)
        log.append(records(3))
        log.flush()
        log.append(records(2))
        log.update_high_watermark(4)
        log.delete_records(2)
        directory.write_checkpoints()
        raise RuntimeError

    found = read_log_directory(tmp_path)
    assert (found.high_watermarks, found.log_start_offsets) == ({("orders", 0): 4}, {("orders", 0): 2})
    assert read_offset_checkpoint(tmp_path / "recovery-point-offset-checkpoint") == {("orders", 0): 3}
    with LogDirectoryWriter.open(tmp_path, clock=lambda: NOW) as directory:
        log = directory.log("orders", 0)
        assert (log.log_start_offset, log.log_end_offset, log.recovery_point) == (2, 5, 3)


@pytest.mark.parametrize("was_clean", [True, False])
def test_without_the_mark_of_a_clean_shutdown_all_after_the_recovery_points_is_verified(
    tmp_path: Path, was_clean: bool
) -> None:
    config = LogConfig(segment_bytes=300)
    with LogDirectoryWriter.create(tmp_path, "cluster", clock=lambda: NOW) as directory:
        log = directory.create_log("orders", 0, TOPIC_ID, config)
        for _ in range(9):
            log.append(records(1))
    first = log.segments[0].log_path
    content = first.read_bytes()
    first.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n0\n")
    if not was_clean:
        (tmp_path / ".kafka_cleanshutdown").unlink()

    with LogDirectoryWriter.open(tmp_path, config, clock=lambda: NOW) as directory:
        assert directory.log("orders", 0).log_end_offset == (9 if was_clean else 1)


def test_opening_and_closing_does_not_raise_the_high_watermark(tmp_path: Path) -> None:
    with LogDirectoryWriter.create(tmp_path, "cluster") as writer:
        writer.create_log("orders", 0, TOPIC_ID).append(records(3))
    checkpoint = tmp_path / HIGH_WATERMARK_CHECKPOINT
    write_offset_checkpoint(checkpoint, {("orders", 0): 1})

    with LogDirectoryWriter.open(tmp_path):
        pass
    assert read_offset_checkpoint(checkpoint) == {("orders", 0): 1}

    with LogDirectoryWriter.open(tmp_path) as writer:
        writer.log("orders", 0).append(records(1))
    assert read_offset_checkpoint(checkpoint) == {("orders", 0): 4}


def test_a_failed_create_releases_the_directory(tmp_path: Path) -> None:
    (tmp_path / "meta.properties.tmp").mkdir()
    for _ in range(2):
        with pytest.raises(IsADirectoryError):
            LogDirectoryWriter.create(tmp_path, "cluster")


def test_a_log_that_is_opened_alone_takes_the_mark_of_a_clean_shutdown_away(tmp_path: Path) -> None:
    with LogDirectoryWriter.create(tmp_path, "cluster") as writer:
        writer.create_log("orders", 0, TOPIC_ID).append(records(3))
    assert (tmp_path / CLEAN_SHUTDOWN).is_file()

    with LocalLog.open(tmp_path / "orders-0"):
        assert not (tmp_path / CLEAN_SHUTDOWN).exists()


def _damaged_in_the_middle(root: Path) -> tuple[Path, bytes]:
    """Write a log of ten batches, flip a bit of the fourth, and return the log's file and its content."""
    with LogDirectoryWriter.create(root, "cluster", clock=lambda: NOW) as directory:
        log = directory.create_log("orders", 0, TOPIC_ID)
        for _ in range(10):
            log.append(records(1))
        path = log.segments[0].log_path
    content = bytearray(path.read_bytes())
    content[3 * (len(content) // 10) + 80] ^= 1
    path.write_bytes(content)
    return path, bytes(content)


@pytest.mark.parametrize("was_clean", [True, False])
def test_a_damaged_batch_that_was_on_the_disk_is_not_cut_off(tmp_path: Path, was_clean: bool) -> None:
    path, content = _damaged_in_the_middle(tmp_path)
    if not was_clean:
        (tmp_path / ".kafka_cleanshutdown").unlink()

    with pytest.raises(CorruptRecordError, match=r"offset 10\b") as caught:
        LogDirectoryWriter.open(tmp_path, clock=lambda: NOW)

    assert (caught.value.path, caught.value.position) == (str(path), 3 * (len(content) // 10))
    assert path.read_bytes() == content


def test_a_person_may_have_what_follows_a_damaged_batch_cut_off(tmp_path: Path) -> None:
    _damaged_in_the_middle(tmp_path)
    (tmp_path / ".kafka_cleanshutdown").unlink()
    write_offset_checkpoint(tmp_path / "recovery-point-offset-checkpoint", {("orders", 0): 3})

    with LogDirectoryWriter.open(tmp_path, clock=lambda: NOW) as directory:
        assert directory.log("orders", 0).log_end_offset == 3


def test_a_torn_end_below_a_recovery_point_of_before_a_truncation_is_cut_off(tmp_path: Path) -> None:
    path, content = _damaged_in_the_middle(tmp_path)
    (tmp_path / ".kafka_cleanshutdown").unlink()
    path.write_bytes(content[: 4 * (len(content) // 10)])

    with LogDirectoryWriter.open(tmp_path, clock=lambda: NOW) as directory:
        assert directory.log("orders", 0).log_end_offset == 3


def test_the_start_of_a_log_whose_beginning_is_in_a_remote_tier_stays_as_it_is(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=300, retention_bytes=1)
    with LogDirectoryWriter.create(tmp_path, "cluster", clock=lambda: NOW) as directory:
        log = directory.create_log("orders", 0, TOPIC_ID, config)
        for epoch in range(3):
            for _ in range(3):
                log.append(records(1), leader_epoch=epoch)
        epochs = log.leader_epochs
    gone = log.segments[:2]
    for segment in gone:
        for path in segment.directory.glob(f"{segment.base_offset:020d}.*"):
            path.unlink()

    with LogDirectoryWriter.open(tmp_path, config, clock=lambda: NOW) as directory:
        log = directory.log("orders", 0)
        assert log.log_start_offset == log.segments[0].base_offset > 0
        assert log.delete_old_segments()
        assert log.leader_epochs == epochs
        directory.write_checkpoints()
        assert read_offset_checkpoint(tmp_path / "log-start-offset-checkpoint") == {("orders", 0): 0}


def test_an_open_that_fails_leaves_the_mark_of_a_clean_shutdown(tmp_path: Path) -> None:
    write(tmp_path)
    mark = tmp_path / CLEAN_SHUTDOWN
    before = mark.read_bytes()
    metadata = tmp_path / "orders-1" / "partition.metadata"
    sound = metadata.read_text()
    metadata.write_text("junk")

    for open_it in (lambda: LogDirectoryWriter.open(tmp_path), lambda: LocalLog.open(tmp_path / "orders-1")):
        with pytest.raises(CorruptIndexError):
            open_it()
        assert mark.read_bytes() == before

    metadata.write_text(sound)
    with LogDirectoryWriter.open(tmp_path, clock=lambda: NOW):
        assert not mark.exists()


def test_a_log_refused_for_a_damaged_last_batch_is_refused_again(tmp_path: Path) -> None:
    """Without the mark it would pass for what a crash has torn."""
    path, _ = _damaged_in_the_middle(tmp_path)
    content = path.read_bytes()[: 4 * (path.stat().st_size // 10)]
    path.write_bytes(content)

    for _ in range(2):
        with pytest.raises(CorruptRecordError, match="cut off"):
            LogDirectoryWriter.open(tmp_path, clock=lambda: NOW)
        assert path.read_bytes() == content


def test_a_process_killed_while_opening_leaves_no_false_mark_of_a_clean_shutdown(tmp_path: Path) -> None:
    """Where the mark is, no file of a log says anything that the batches do not, and none says less than it did."""
    config = LogConfig(index_interval_bytes=0)
    with LogDirectoryWriter.create(tmp_path / "logs", "cluster", clock=lambda: NOW) as directory:
        log = directory.create_log("orders", 0, TOPIC_ID, config)
        for i in range(3):
            log.append(records(1, NOW + 5 - i), leader_epoch=i)
        log.append(records(1, NOW + 9))
    before = files_in(tmp_path / "logs")

    with crash_states(tmp_path / "logs") as states:
        LogDirectoryWriter.open(tmp_path / "logs", config, clock=lambda: NOW).close()

    assert states[-1] == before
    assert any(CLEAN_SHUTDOWN not in state for state in states)
    for state in states:
        if CLEAN_SHUTDOWN in state:
            assert {name: content for name, content in state.items() if not name.endswith(".tmp")} == before


@pytest.mark.parametrize("is_emptied", [False, True])
def test_a_process_killed_while_opening_cuts_a_log_leaves_no_mark(tmp_path: Path, is_emptied: bool) -> None:
    root = tmp_path / "logs"
    write(root)
    if is_emptied:
        write_offset_checkpoint(root / "log-start-offset-checkpoint", {("orders", 1): 10})
    else:
        with (root / "orders-1" / f"{0:020d}.log").open("ab") as file:
            file.write(b"torn")
    logs = {name: content for name, content in files_in(root).items() if name.endswith(".log")}

    with crash_states(root) as states:
        LogDirectoryWriter.open(root, clock=lambda: NOW).close()

    assert CLEAN_SHUTDOWN in states[0]
    *opening, _ = [state for state in states if CLEAN_SHUTDOWN in state]
    for state in opening:
        assert {name: content for name, content in state.items() if name.endswith(".log")} == logs


def test_repairs_of_all_logs_are_reported(tmp_path: Path) -> None:
    write(tmp_path)
    lost = [tmp_path / f"orders-{partition}" / "leader-epoch-checkpoint" for partition in (0, 1)]
    for path in lost:
        path.unlink()

    with LogDirectoryWriter.open(tmp_path, clock=lambda: NOW) as directory:
        assert [event.path for event in directory.mended] == lost


def test_a_second_close_changes_nothing_of_a_later_writer(tmp_path: Path) -> None:
    first = LogDirectoryWriter.create(tmp_path, "cluster", clock=lambda: NOW)
    first.create_log("orders", 0, TOPIC_ID).append(records(1))
    first.close()

    with LogDirectoryWriter.open(tmp_path, clock=lambda: NOW) as second:
        first.close()
        assert not (tmp_path / CLEAN_SHUTDOWN).exists()
        second.log("orders", 0).append(records(1))
    assert read_log_directory(tmp_path).high_watermarks == {("orders", 0): 2}


def test_a_log_that_cannot_be_closed_in_order_leaves_no_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = LogDirectoryWriter.create(tmp_path, "cluster", clock=lambda: NOW)
    writer.create_log("orders", 0, TOPIC_ID).append(records(1))
    writer.create_log("orders", 1, TOPIC_ID).append(records(1))
    with monkeypatch.context() as patched:
        patched.setattr(active_segment, "_write_all", no_space)
        with pytest.raises(OSError, match="no space"):
            writer.close()

    writer.close()

    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {"meta.properties", ".lock"}
    ensure_unlocked(tmp_path)


def test_a_log_that_was_abandoned_leaves_no_mark(tmp_path: Path) -> None:
    writer = LogDirectoryWriter.create(tmp_path, "cluster", clock=lambda: NOW)
    writer.create_log("orders", 0, TOPIC_ID).append(records(1))
    writer.create_log("orders", 1, TOPIC_ID).append(records(1))
    writer.log("orders", 0).abandon()

    with pytest.raises(InvalidLogDirectoryError, match=r"open.*again"):
        writer.close()

    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {"meta.properties", ".lock"}
    ensure_unlocked(tmp_path)
    with LogDirectoryWriter.open(tmp_path, clock=lambda: NOW) as reopened:
        assert [reopened.log("orders", partition).log_end_offset for partition in (0, 1)] == [0, 1]


def no_space(*_: object) -> None:
    raise OSError("no space left on the disk")


@pytest.mark.parametrize("ends", ["closed", "after an error"])
def test_a_closed_directory_takes_no_new_log(tmp_path: Path, ends: str) -> None:
    writer = LogDirectoryWriter.create(tmp_path, "cluster", clock=lambda: NOW)
    with suppress(ZeroDivisionError), writer:
        if ends != "closed":
            raise ZeroDivisionError
    before = sorted(path.name for path in tmp_path.iterdir())

    with pytest.raises(InvalidLogDirectoryError, match="orders-0"):
        writer.create_log("orders", 0, TOPIC_ID)

    assert sorted(path.name for path in tmp_path.iterdir()) == before
    LogDirectoryWriter.open(tmp_path, clock=lambda: NOW).close()
