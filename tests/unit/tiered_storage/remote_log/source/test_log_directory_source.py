"""A source of log directories shows each partition: its segments, its lineage, how far it is stable, and its ids."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from support.command_line import run_on
from support.remote_logs import (
    BATCH_BYTES,
    CLUSTER_ID,
    NOW,
    ORDERS_0,
    SEGMENT_BYTES,
    a_remote_log,
    batches_in,
    partition_of,
    record,
    rewrite_segment,
    topic_id,
)
from tiered_storage.errors import ConfigurationError, InvalidLogDirectoryError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.files.meta_properties import META_PROPERTIES, MetaProperties
from tiered_storage.kafka_log.files.offset_checkpoint import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    write_offset_checkpoint,
)
from tiered_storage.kafka_log.files.partition_metadata import write_topic_id
from tiered_storage.kafka_log.records.legacy_message import encode_messages
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import TimestampType, encode_batch
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.source.log_directory_source import CLEANER_CHECKPOINT, LogDirectorySource
from tiered_storage.remote_log.source.opening import open_segment
from tiered_storage.remote_log.source.partition_log import PartitionLog
from tiered_storage.remote_log.source.segment_source import first_timestamp
from unit.tiered_storage.remote_log.source.looks import look, source_of, why_unreadable


def test_a_partition_shows_its_segments_its_lineage_and_how_far_it_is_stable(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 2})

    log = look(files)

    assert log.topic_id_partition == ORDERS_0
    assert log.topic_id_partition.topic == "orders"
    assert log.place == str(files.partition_directory())
    begun = {one.base_offset: first_timestamp(open_segment(one.location)) for one in log.segments}
    assert [(one.base_offset, one.end_offset, one.size, begun[one.base_offset]) for one in log.segments] == [
        (0, 9, SEGMENT_BYTES, NOW),
        (10, 19, SEGMENT_BYTES, NOW + 10_000),
        (20, None, BATCH_BYTES, NOW + 20_000),
    ]
    assert [one.is_active for one in log.segments] == [False, False, True]
    assert (log.log_start_offset, log.last_stable_offset) == (0, 25)
    assert log.leader_epochs == (EpochEntry(0, 0),)
    assert not log.is_internal
    assert not log.is_compacted


def test_partitions_come_in_order_and_several_directories_make_one_source(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = a_remote_log(tmp_path / "a", {("orders", 2): 0, ("orders", 10): 0, ("clicks", 0): 0})
    second = a_remote_log(tmp_path / "b", {("orders", 1): 0})

    source = LogDirectorySource((first.log_directory, second.log_directory))

    assert [str(found.topic_id_partition) for found in source.partitions() if isinstance(found, PartitionLog)] == [
        "clicks-0", "orders-2", "orders-10", "orders-1",
    ]  # fmt: skip
    assert source.partition(partition_of("orders", 1)) is not None
    assert source.partition(partition_of("orders", 3)) is None


NOBODY_KNOWS = ["meta.properties", "orders-0/partition.metadata"]


@pytest.mark.parametrize(
    ("lost_here", "lost_there"),
    [
        (["meta.properties"], ["meta.properties"]),
        ([], ["orders-0/partition.metadata"]),
        (["orders-0/partition.metadata"], ["meta.properties"]),
        (NOBODY_KNOWS, NOBODY_KNOWS),
        (NOBODY_KNOWS, []),
    ],
)
def test_a_partition_whose_ids_nobody_knows_is_the_same_as_another_of_its_name(
    tmp_path: Path, lost_here: list[str], lost_there: list[str]
) -> None:
    files = a_remote_log(tmp_path)
    again = shutil.copytree(files.log_directory, tmp_path / "again")
    for root, lost in ((files.log_directory, lost_here), (again, lost_there)):
        for name in lost:
            (root / name).unlink()
    files.properties["log.dirs"] = [str(files.log_directory), str(again)]

    ended = run_on(files, "copy")

    assert ended.exit_code == 1
    same = f"{files.log_directory}/orders-0 and {again}/orders-0 are the same partition"
    assert same in " ".join((ended.out + ended.err).split())
    assert files.objects() == []
    with files.open() as remote_log:
        assert len(why_unreadable(remote_log.context.source)) == 1
        for root in (files.log_directory, again):
            [alone] = LogDirectorySource((root,)).partitions()
            assert isinstance(alone, PartitionLog)
            with pytest.raises(InvalidLogDirectoryError, match="same partition"):
                remote_log.context.source.partition(alone.topic_id_partition)


@pytest.mark.parametrize("differing", ["cluster", "topic"])
def test_another_cluster_or_incarnation_has_another_partition(tmp_path: Path, differing: str) -> None:
    files = a_remote_log(tmp_path)
    again = shutil.copytree(files.log_directory, tmp_path / "again")
    if differing == "cluster":
        MetaProperties(1, "another-cluster", 4, None).write(again / META_PROPERTIES)
    else:
        write_topic_id(again / "orders-0" / "partition.metadata", topic_id("created again"))

    found = list(LogDirectorySource((files.log_directory, again)).partitions())

    assert all(isinstance(one, PartitionLog) for one in found)


def test_to_look_at_one_partition_reads_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = a_remote_log(tmp_path, {("orders", number): 1 for number in range(3)})
    whole = {log.topic_id_partition: log for log in source_of(files).partitions() if isinstance(log, PartitionLog)}
    scandir, looked_at = os.scandir, set()

    def recorded(path: Path) -> Any:
        looked_at.add(Path(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", recorded)
    assert source_of(files).partition(ORDERS_0) == whole[ORDERS_0]
    assert looked_at == {files.partition_directory()}


def test_to_look_for_a_partition_in_another_directory_reads_none_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = a_remote_log(tmp_path, {("orders", number): 1 for number in range(3)})
    other = shutil.copytree(files.log_directory, tmp_path / "other")
    shutil.rmtree(other / "orders-0")
    listdir, scandir, looked_at = os.listdir, os.scandir, set()

    def recorded(path: Path) -> Any:
        looked_at.add(Path(path))
        return scandir(path)

    def listed(path: Path) -> Any:
        looked_at.add(Path(path))
        return listdir(path)

    monkeypatch.setattr(os, "scandir", recorded)
    monkeypatch.setattr(os, "listdir", listed)
    assert LogDirectorySource((other, files.log_directory)).partition(ORDERS_0) is not None
    assert looked_at == {files.partition_directory()}


def test_the_log_start_is_the_checkpoints_where_that_is_higher(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 2})

    write_offset_checkpoint(files.log_directory / LOG_START_OFFSET_CHECKPOINT, {("orders", 0): 12})
    assert look(files).log_start_offset == 12

    for segment in files.local_segments()[:1]:
        segment.log_path.unlink()
    write_offset_checkpoint(files.log_directory / LOG_START_OFFSET_CHECKPOINT, {("orders", 0): 3})
    assert look(files).log_start_offset == 10

    (files.log_directory / LOG_START_OFFSET_CHECKPOINT).unlink()
    assert look(files).log_start_offset == 10


def test_a_log_is_stable_up_to_its_high_watermark(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 2})

    write_offset_checkpoint(files.log_directory / HIGH_WATERMARK_CHECKPOINT, {("orders", 0): 13})

    assert look(files).last_stable_offset == 13


def test_an_open_transaction_ends_what_is_stable(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 1})
    active = files.local_segments()[-1].log_path
    opened = encode_batch([record(15)], producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    rewrite_segment(active, [*batches_in(active), opened, encode_batch([record(16)])])
    write_offset_checkpoint(files.log_directory / HIGH_WATERMARK_CHECKPOINT, {("orders", 0): 17})

    assert look(files).last_stable_offset == 15


@pytest.mark.parametrize("checkpoint", ["missing", "silent about it"])
def test_without_a_high_watermark_a_person_has_to_vouch_for_the_end(tmp_path: Path, checkpoint: str) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 2})
    path = files.log_directory / HIGH_WATERMARK_CHECKPOINT
    if checkpoint == "missing":
        path.unlink()
    else:
        write_offset_checkpoint(path, {("clicks", 0): 3})

    reason = why_unreadable(source_of(files))["orders-0"]
    assert str(files.partition_directory()) in reason
    assert "log.end.is.stable" in reason
    with pytest.raises(InvalidLogDirectoryError, match=r"log\.end\.is\.stable"):
        source_of(files).partition(ORDERS_0)

    assert look(files, end_is_stable=True).last_stable_offset == 25


def test_a_known_high_watermark_counts_though_a_person_vouches_for_the_end(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 2})
    write_offset_checkpoint(files.log_directory / HIGH_WATERMARK_CHECKPOINT, {("orders", 0): 13})

    assert look(files, end_is_stable=True).last_stable_offset == 13


def test_the_end_that_a_person_vouches_for_is_after_the_last_whole_batch(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 1})
    (files.log_directory / HIGH_WATERMARK_CHECKPOINT).unlink()
    active = files.local_segments()[-1].log_path
    torn = [*batches_in(active), encode_batch([record(15)])[:-9]]
    rewrite_segment(active, torn)
    assert look(files, end_is_stable=True).last_stable_offset == 15

    os.truncate(active, 0)
    assert look(files, end_is_stable=True).last_stable_offset == 10


def test_internal_and_compacted_topics_are_marked_as_such(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("__consumer_offsets", 0): 0, ("orders", 0): 0, ("orders", 1): 0})
    write_offset_checkpoint(files.log_directory / CLEANER_CHECKPOINT, {("orders", 1): 3})

    marks = {
        str(log.topic_id_partition): (log.is_internal, log.is_compacted)
        for log in source_of(files).partitions()
        if isinstance(log, PartitionLog)
    }

    assert marks == {
        "__consumer_offsets-0": (True, False),
        "orders-0": (False, True),
        "orders-1": (False, True),
    }


def test_ids_that_kafka_did_not_keep_are_derived_and_stay_the_same(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 0, ("orders", 1): 0})
    for number in (0, 1):
        (files.partition_directory(number=number) / "partition.metadata").unlink()

    def identities(cluster_id: str | None = None) -> list[TopicIdPartition]:
        source = LogDirectorySource((files.log_directory,), cluster_id)
        return [found.topic_id_partition for found in source.partitions() if isinstance(found, PartitionLog)]

    first, second = identities()
    assert first.cluster_id == CLUSTER_ID
    assert first.topic_id == second.topic_id != ORDERS_0.topic_id
    assert identities() == [first, second]
    assert source_of(files).partition(first) is not None

    (files.log_directory / META_PROPERTIES).unlink()
    assert {found.cluster_id for found in identities("from-settings")} == {"from-settings"}
    assert identities("from-settings")[0].topic_id != first.topic_id
    [by_path] = {found.cluster_id for found in identities()}
    assert len(by_path) == 22
    moved = shutil.move(files.log_directory, tmp_path / "moved")
    [elsewhere, _] = LogDirectorySource((Path(moved),)).partitions()
    assert isinstance(elsewhere, PartitionLog)
    assert elsewhere.topic_id_partition.cluster_id != by_path


def test_a_cluster_of_the_settings_that_contradicts_meta_properties_is_refused(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 0})
    [found] = LogDirectorySource((files.log_directory,), CLUSTER_ID).partitions()
    assert isinstance(found, PartitionLog)

    source = LogDirectorySource((files.log_directory,), "another")
    with pytest.raises(ConfigurationError, match=rf"{CLUSTER_ID}.*cluster\.id"):
        list(source.partitions())
    with pytest.raises(ConfigurationError, match=r"cluster\.id is another"):
        source.partition(found.topic_id_partition)


@pytest.mark.parametrize("checkpoint", ["missing", "empty"])
def test_a_lineage_that_is_not_kept_is_read_from_the_batches(tmp_path: Path, checkpoint: str) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 2})
    path = files.partition_directory() / "leader-epoch-checkpoint"
    segment = files.local_segments()[1].log_path
    first, second = batches_in(segment)
    rewrite_segment(segment, [first, second[:12] + struct.pack(">i", 4) + second[16:]])
    active = files.local_segments()[2].log_path
    [last] = batches_in(active)
    rewrite_segment(active, [last[:12] + struct.pack(">i", 5) + last[16:]])
    if checkpoint == "missing":
        path.unlink()
    else:
        path.write_bytes(b"")

    assert look(files).leader_epochs == (EpochEntry(0, 0), EpochEntry(4, 15), EpochEntry(5, 20))


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (encode_batch([Record(20, NOW + 5, None, b""), Record(21, NOW + 9, None, b"")]), NOW + 5),
        # The broker's time counts for every record, whatever the producer's clock said.
        (
            encode_batch(
                [Record(20, 5, None, b""), Record(21, NOW + 9, None, b"")],
                timestamp_type=TimestampType.LOG_APPEND_TIME,
            ),
            NOW + 9,
        ),
        (encode_batch([Record(20, -1, None, b"")]), None),
        (b"", None),
        (bytes(100), None),
        (encode_batch([record(20)])[:40], None),
        (b"\0" * 8 + struct.pack(">iiB", 60, 0, 3) + bytes(60), None),
        (encode_messages([Record(20, NOW + 5, None, b"")], 1), NOW + 5),
        (encode_messages([Record(20, NOW + 5, None, b"")], 0), None),
    ],
    ids=["create time", "log append time", "no timestamp", "empty", "preallocated", "torn", "magic 3", "v1", "v0"],
)
def test_a_segment_begins_with_its_first_records_timestamp(tmp_path: Path, batch: bytes, expected: int | None) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 2})
    write_offset_checkpoint(files.log_directory / HIGH_WATERMARK_CHECKPOINT, {("orders", 0): 20})
    rewrite_segment(files.local_segments()[-1].log_path, [batch])

    assert first_timestamp(open_segment(look(files).segments[-1].location)) == expected
