"""Partitions in message formats v0 and v1, as brokers of 2.8 and before wrote them, go through the whole remote log."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from golden.older_formats import OLDER_LOGS, TOPICS
from golden.topics import FIRST_TIMESTAMP
from support.command_line import run_on
from support.local_logs import read_all
from support.plain_reader import PlainReader
from support.remote_logs import ENABLED, RemoteLogFiles, a_remote_log, copy, local_log, segments_of
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import LEADER_EPOCH_CHECKPOINT, EpochEntry
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader
from tiered_storage.remote_log.read.log_reader import RemoteLogReader
from tiered_storage.remote_log.storage.batch_stream import fetch_whole
from tiered_storage.remote_log.tables.columns import TableColumns
from tiered_storage.remote_log.tables.planning import plan_splits, plan_table
from tiered_storage.remote_log.tables.query import TableQuery
from tiered_storage.remote_log.tables.reading import read_split

COPIED = tuple(topic for topic in TOPICS if not topic.endswith("compacted"))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> RemoteLogFiles:
    """All topics, copied once: tests only read them."""
    return copied(tmp_path_factory.mktemp("older"), COPIED)


def copied(root: Path, topics: Sequence[str]) -> RemoteLogFiles:
    """Copy `topics` of the log directory that a broker of 2.8 left: all but the active segments."""
    files = a_remote_log(root, {}, topics=dict.fromkeys(topics, ENABLED))
    shutil.rmtree(files.log_directory)
    shutil.copytree(OLDER_LOGS.log_dir, files.log_directory)
    with files.open() as remote_log:
        report = copy(remote_log)
        assert (report.is_whole, report.failures, report.damages) == (True, (), ()), report
    return files


def partition_in(remote_log: RemoteLogManager, topic: str) -> TopicIdPartition:
    return remote_log.find_partition(topic, 0)


def remote_reader(remote_log: RemoteLogManager) -> BlockingLogReader:
    return BlockingLogReader(RemoteLogReader(remote_log.context, remote_only=True))


def consumed(topic: str, end_offset: int) -> list[Record]:
    return [record for record in OLDER_LOGS.consumed()[f"{topic}-0"].records if record.offset <= end_offset]


@pytest.mark.parametrize("topic", COPIED)
def test_closed_segments_are_copied_byte_for_byte_and_read_as_consumers_get_them(
    files: RemoteLogFiles, topic: str
) -> None:
    with files.open() as remote_log:
        partition = partition_in(remote_log, topic)
        segments = segments_of(remote_log, partition)
        local = list_segments(OLDER_LOGS.partition(topic))[:-1]
        assert [segment.start_offset for segment in segments] == [segment.base_offset for segment in local]
        for segment, file in zip(segments, local, strict=True):
            assert b"".join(fetch_whole(segment, remote_log.context.storage)) == file.log_path.read_bytes()
            inside = [r for r in consumed(topic, segment.end_offset) if r.offset >= segment.start_offset]
            assert segment.max_timestamp == max(record.timestamp for record in inside)
        expected = consumed(topic, segments[-1].end_offset)
        with remote_reader(remote_log) as reader:
            assert list(reader.records(partition, 0)) == expected
            middle = len(expected) // 2
            assert list(reader.records(partition, expected[middle].offset)) == expected[middle:]
        assert list(PlainReader(remote_log).records(partition, 0)) == OLDER_LOGS.consumed()[f"{topic}-0"].records


@pytest.mark.parametrize("topic", COPIED)
def test_offsets_are_found_by_time_in_both_tiers(files: RemoteLogFiles, topic: str) -> None:
    with files.open() as remote_log:
        partition = partition_in(remote_log, topic)
        remote_end = segments_of(remote_log, partition)[-1].end_offset
        every = OLDER_LOGS.consumed()[f"{topic}-0"].records
        with remote_reader(remote_log) as remote, BlockingLogReader(remote_log.open_log_reader()) as both:
            for reader, records in ((remote, consumed(topic, remote_end)), (both, every)):
                times = {record.timestamp for record in records if record.timestamp >= 0}
                for timestamp in sorted({time + step for time in times for step in (-1, 0, 1)} | {0}):
                    first = next((record for record in records if record.timestamp >= timestamp), None)
                    found = reader.offsets(partition, timestamp)
                    assert (found and (found.offset, found.timestamp)) == (first and (first.offset, first.timestamp))


@pytest.mark.parametrize("topic", COPIED)
def test_tables_have_every_remote_record(files: RemoteLogFiles, topic: str) -> None:
    with files.open() as remote_log:
        partition = partition_in(remote_log, topic)
        plan = plan_table(remote_log.context.segments, remote_log.context.storage, TableQuery(topic))
        taken = TableColumns(None)
        batches = [
            batch
            for split in plan_splits(plan.ranges(), TableQuery(topic).rows, 1 << 20)
            for batch in read_split(split, remote_log.context.storage, taken)
        ]
        rows = pa.Table.from_batches(batches, taken.schema).to_pylist()
        expected = consumed(topic, segments_of(remote_log, partition)[-1].end_offset)
    found = [(row["offset"], row["timestamp"].timestamp() * 1000, row["key"], row["value"]) for row in rows]
    assert found == [(one.offset, one.timestamp, one.key, one.value) for one in expected]


def test_a_deep_audit_finds_nothing_and_a_second_run_copies_nothing(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        assert remote_log.checks.audit(deep=True).anomalies == ()
        assert remote_log.plan_copy().segments == ()


@pytest.mark.parametrize("topic", ["v0-lz4", "v1-append-time-gzip", "mixed"])
def test_a_lost_topic_is_restored_byte_for_byte(topic: str, tmp_path: Path) -> None:
    files, target = copied(tmp_path / "site", [topic]), tmp_path / "target"
    shutil.rmtree(files.log_directory)
    files.properties["log.dirs"] = []
    restored = run_on(files, "restore", topic, "--to-directory", target, "--json", "--validation", "records")
    assert restored.exit_code == 0, restored.err
    theirs = list_segments(OLDER_LOGS.partition(topic))[:-1]
    ours = list_segments(target / f"{topic}-0")
    assert [segment.log_path.read_bytes() for segment in ours][: len(theirs)] == [
        segment.log_path.read_bytes() for segment in theirs
    ]


def test_a_topic_that_was_created_again_takes_the_messages_as_they_are(tmp_path: Path) -> None:
    files, target = copied(tmp_path / "site", ["mixed"]), tmp_path / "target"
    with LogDirectoryWriter.create(target, "another-cluster", clock=lambda: FIRST_TIMESTAMP) as writer:
        writer.create_log("mixed", 0, random_uuid())
    restored = run_on(files, "restore", "mixed", "--to-directory", target, "--json", "--validation", "records")
    assert restored.exit_code == 0, restored.err

    # Messages have no leader epoch: the new lineage does not cover them.
    again = a_remote_log(tmp_path / "again", {}, topics={"mixed": ENABLED})
    shutil.rmtree(again.log_directory)
    shutil.copytree(target, again.log_directory)
    with again.open() as remote_log:
        report = copy(remote_log)
        assert report.is_whole, report
        assert [segment.leader_epochs for segment in segments_of(remote_log, partition_in(remote_log, "mixed"))] == [()]
    with LocalLog.open(target / "mixed-0", clock=lambda: FIRST_TIMESTAMP) as log:
        assert read_all(log) == consumed("mixed", 89)


def test_without_a_checkpoint_the_lineage_begins_after_the_last_message_of_an_older_format(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {}, topics={"mixed": ENABLED})
    shutil.rmtree(files.log_directory)
    shutil.copytree(OLDER_LOGS.log_dir, files.log_directory)
    (files.log_directory / "mixed-0" / LEADER_EPOCH_CHECKPOINT).unlink()
    with files.open() as remote_log:
        assert copy(remote_log).is_whole
        partition = partition_in(remote_log, "mixed")
        assert local_log(remote_log, partition).leader_epochs == (EpochEntry(0, 120),)
