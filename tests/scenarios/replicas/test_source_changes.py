"""The local logs change: files are lost, partitions are added, replicas move (scenarios 13, 14, 15, 16)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from scenarios.replicas.brokers import Brokers
from support.command_line import run_on
from support.plain_reader import PlainReader
from support.remote_logs import (
    CLUSTER_ID,
    ENABLED,
    LOG_CONFIG,
    NOW,
    ORDERS_0,
    RemoteLogFiles,
    a_copied_remote_log,
    a_remote_log,
    append_batches,
    assert_clean,
    copy,
    flip_bit,
    partition_of,
    ranges,
    segments_of,
    topic_id,
)
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import LEADER_EPOCH_CHECKPOINT
from tiered_storage.kafka_log.files.log_segment import LogSegment, producer_snapshot_path
from tiered_storage.kafka_log.files.meta_properties import META_PROPERTIES
from tiered_storage.kafka_log.files.offset_checkpoint import HIGH_WATERMARK_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind


@pytest.mark.parametrize("what", ["offset index", "time index", "snapshot"])
@pytest.mark.parametrize("how", ["missing", "corrupt"])
def test_a_missing_or_corrupt_local_index_or_snapshot_is_rebuilt_from_the_log_and_reported(
    tmp_path: Path, what: str, how: str
) -> None:
    files = a_remote_log(tmp_path)
    first, second, *_ = files.local_segments()
    path, kind = {
        "offset index": (first.offset_index_path, IndexKind.OFFSET),
        "time index": (first.time_index_path, IndexKind.TIMESTAMP),
        "snapshot": (
            producer_snapshot_path(files.partition_directory(), second.base_offset),
            IndexKind.PRODUCER_SNAPSHOT,
        ),
    }[what]
    sound = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        flip_bit(path, len(sound) - 1)

    with files.open() as remote_log:
        report = copy(remote_log)
        findings = report.notices if how == "missing" else report.damages
        assert ranges(report.committed) == [(0, 9), (10, 19), (20, 29)]
        assert [finding.partition for finding in findings] == ["orders-0"]
        assert path.name in findings[0].message
        assert remote_log.context.storage.fetch_index(report.committed[0], kind) == sound
        assert_clean(remote_log)


def test_partitions_that_were_added_are_picked_up_by_the_next_run(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        with LogDirectoryWriter.open(files.log_directory, LOG_CONFIG, clock=lambda: NOW) as writer:
            append_batches(writer.create_log("orders", 1, topic_id("orders"), LOG_CONFIG), 5)

        assert ranges(copy(remote_log).committed) == [(0, 9), (10, 19)]
        assert ranges(segments_of(remote_log, partition_of("orders", 1))) == [(0, 9), (10, 19)]
        assert_clean(remote_log)


def test_copying_continues_from_the_directory_that_the_partition_was_moved_to(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    other = tmp_path / "other-disk"
    with LogDirectoryWriter.create(other, CLUSTER_ID, clock=lambda: NOW) as writer:
        writer.create_log("clicks", 0, topic_id("clicks"), LOG_CONFIG)
    files.properties["log.dirs"] = [str(files.log_directory), str(other)]

    # The broker first copies it under another name, then renames it.
    future = other / f"orders-0.{'0' * 32}-future"
    shutil.copytree(files.partition_directory(), future)
    with files.open() as remote_log:
        assert remote_log.plan_copy().is_empty
    shutil.rmtree(files.partition_directory())
    future.rename(other / "orders-0")
    shutil.copy(files.log_directory / HIGH_WATERMARK_CHECKPOINT, other)
    with LogDirectoryWriter.open(other, LOG_CONFIG, clock=lambda: NOW) as writer:
        append_batches(writer.log("orders", 0), 2)

    with files.open() as remote_log:
        assert ranges(copy(remote_log).committed) == [(30, 39)]
        assert_clean(remote_log)


def test_copying_continues_from_another_replica_with_other_segment_boundaries(tmp_path: Path) -> None:
    brokers = Brokers(tmp_path)
    files = RemoteLogFiles(tmp_path, properties={"topics": {"orders": dict(ENABLED)}})
    brokers.append(5)
    brokers.replicate(1, batches=1)
    with brokers.log(1) as follower:
        follower.roll()
    brokers.replicate(1)

    for number, copied in ((0, [(0, 9), (10, 19)]), (1, [(15, 24), (25, 34)]), (0, [(30, 39)])):
        files.properties["log.dirs"] = [str(brokers.directory(number))]
        with files.open() as remote_log:
            assert ranges(copy(remote_log).committed) == copied
            found: list[Record] = list(PlainReader(remote_log).records(ORDERS_0, 0))
            assert [each.value for each in found] == brokers.values()
            # Segments with different boundaries overlap, and readers still get each offset once.
            assert_clean(remote_log, expected=None)
        brokers.elect(1 - number)
        brokers.append(3 if number == 0 else 2)
        brokers.replicate(number)


def test_a_partition_that_is_in_two_log_dirs_is_copied_from_neither(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 2, ("clicks", 0): 1})
    again = shutil.copytree(files.log_directory, tmp_path / "again")
    shutil.rmtree(again / "clicks-0")
    files.properties["log.dirs"] = [str(files.log_directory), str(again)]

    ended = run_on(files, "copy")

    assert ended.exit_code == 1
    assert str(files.partition_directory()) in ended.err
    assert str(again / "orders-0") in ended.err
    files.properties["log.dirs"] = [str(files.log_directory)]
    with files.open() as remote_log:
        assert segments_of(remote_log) == []
        assert ranges(segments_of(remote_log, partition_of("clicks"))) == [(0, 9)]
        copy(remote_log)
        assert_clean(remote_log)


@pytest.mark.parametrize("lost", [HIGH_WATERMARK_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT, META_PROPERTIES])
def test_a_broker_that_came_back_without_its_checkpoint_files_loses_nothing(tmp_path: Path, lost: str) -> None:
    files = a_remote_log(tmp_path)
    identity = (files.log_directory / META_PROPERTIES).read_text()
    (files.log_directory / lost).unlink()
    if lost == META_PROPERTIES:
        files.properties["cluster.id"] = CLUSTER_ID

    ended = run_on(files, "copy")
    if lost == HIGH_WATERMARK_CHECKPOINT:
        assert ended.exit_code == 1
        assert "log.end.is.stable" in ended.err
        with files.open() as remote_log:
            assert segments_of(remote_log) == []
        files.properties["log.end.is.stable"] = True
        ended = run_on(files, "copy")
    assert ended.exit_code == 0, ended.err

    assert f"cluster.id={CLUSTER_ID}" in identity
    with files.open() as remote_log:
        assert ranges(segments_of(remote_log)) == [(0, 9), (10, 19), (20, 29)]
        assert_clean(remote_log)


def test_a_log_without_its_leader_epochs_is_copied_by_those_of_its_batches(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    (files.partition_directory() / LEADER_EPOCH_CHECKPOINT).unlink()
    with files.open() as remote_log:
        assert len(copy(remote_log).committed) == 3
        assert_clean(remote_log)


def test_the_whole_segments_of_a_torn_log_are_copied(tmp_path: Path) -> None:
    """The last batch before the stable end is torn: its segment is refused, earlier ones are copied."""
    files = a_remote_log(tmp_path)
    third: LogSegment = files.local_segments()[2]
    os.truncate(third.log_path, third.size() - 7)
    with files.open() as remote_log:
        report = copy(remote_log)
        assert ranges(report.committed) == [(0, 9), (10, 19)]
        assert str(third.log_path) in report.failures[0].message
        # Not assert_clean, as no reader gets the torn records; the remote tier is sound.
        assert remote_log.checks.audit(deep=True).anomalies == ()
