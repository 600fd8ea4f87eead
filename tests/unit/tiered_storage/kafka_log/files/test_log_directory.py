from __future__ import annotations

from pathlib import Path

import pytest

from tiered_storage.errors import CorruptIndexError, InvalidLogDirectoryError
from tiered_storage.kafka_log.files.log_directory import PartitionDirectory, read_log_directory
from tiered_storage.kafka_log.files.meta_properties import MetaProperties
from tiered_storage.kafka_log.files.offset_checkpoint import write_offset_checkpoint
from tiered_storage.kafka_log.files.partition_metadata import write_topic_id

TOPIC_ID = "cxfmXdFdRF2-6WITmvYjdA"


def make_partition(root: Path, name: str, topic_id: str | None = TOPIC_ID) -> Path:
    directory = root / name
    directory.mkdir()
    (directory / "00000000000000000000.log").touch()
    if topic_id is not None:
        write_topic_id(directory / "partition.metadata", topic_id)
    return directory


def test_a_whole_directory_is_read_in_order(tmp_path: Path) -> None:
    for name in ("orders-10", "orders-2", "__consumer_offsets-0", "a.b-c_1-0"):
        make_partition(tmp_path, name)
    MetaProperties(1, "cluster", 4, None).write(tmp_path / "meta.properties")
    write_offset_checkpoint(tmp_path / "replication-offset-checkpoint", {("orders", 2): 17})
    write_offset_checkpoint(tmp_path / "log-start-offset-checkpoint", {("orders", 2): 3})
    (tmp_path / ".lock").touch()
    before = sorted(tmp_path.rglob("*"))

    directory = read_log_directory(tmp_path)

    assert (directory.root, directory.cluster_id, directory.node_id) == (tmp_path, "cluster", 4)
    assert [(found.topic, found.partition, found.is_internal) for found in directory.partitions] == [
        ("__consumer_offsets", 0, True),
        ("a.b-c_1", 0, False),
        ("orders", 2, False),
        ("orders", 10, False),
    ]
    assert directory.partitions[2] == PartitionDirectory("orders", 2, tmp_path / "orders-2", TOPIC_ID)
    assert directory.high_watermarks == {("orders", 2): 17}
    assert directory.log_start_offsets == {("orders", 2): 3}
    assert (directory.skipped, directory.damaged, directory.warnings) == ({}, {}, ())
    assert sorted(tmp_path.rglob("*")) == before


def test_a_missing_file_gives_none_and_a_warning_of_the_consequence(tmp_path: Path) -> None:
    make_partition(tmp_path, "orders-0", topic_id=None)

    directory = read_log_directory(tmp_path)

    assert directory.partitions == (PartitionDirectory("orders", 0, tmp_path / "orders-0", None),)
    assert (directory.cluster_id, directory.node_id) == (None, None)
    assert (directory.high_watermarks, directory.log_start_offsets) == (None, None)
    named = {
        "meta.properties": "cluster's id",
        "replication-offset-checkpoint": "high watermarks",
        "log-start-offset-checkpoint": "first segment",
    }
    for warning, (name, unknown) in zip(directory.warnings, named.items(), strict=True):
        assert warning.startswith(f"{tmp_path / name} is missing: ")
        assert unknown in warning


def test_directories_that_are_no_partitions_to_tier_are_left_out_with_the_reason(tmp_path: Path) -> None:
    for name in (
        "orders-0",
        "__cluster_metadata-0",
        "gone-0.0123abcd-delete",
        "lost-0.0123abcd-stray",
        "moved-0.0123abcd-future",
        "remote-log-index-cache",
        "lost+found",
    ):
        make_partition(tmp_path, name)
    (tmp_path / "empty-0").mkdir()
    (tmp_path / "swap-0").mkdir()
    (tmp_path / "swap-0" / "00000000000000000000.log.swap").touch()
    (tmp_path / "file-0").touch()

    directory = read_log_directory(tmp_path)

    assert [partition.path.name for partition in directory.partitions] == ["orders-0"]
    named = {
        "__cluster_metadata-0": "KRaft",
        "empty-0": ".log",
        "gone-0.0123abcd-delete": "deleted",
        "lost+found": "topic-partition",
        "lost-0.0123abcd-stray": "not know",
        "moved-0.0123abcd-future": "moved",
        "remote-log-index-cache": "cache",
        "swap-0": "LogDirectoryWriter",
    }
    assert directory.skipped.keys() == named.keys()
    assert [name for name, reason in directory.skipped.items() if named[name] not in reason] == []


def test_a_damaged_partition_costs_no_other_one(tmp_path: Path) -> None:
    make_partition(tmp_path, "orders-0")
    damaged = make_partition(tmp_path, "orders-1") / "partition.metadata"
    damaged.write_bytes(b"version: 0\n")

    directory = read_log_directory(tmp_path)

    assert [partition.path.name for partition in directory.partitions] == ["orders-0"]
    assert [(name, str(damaged) in str(error)) for name, error in directory.damaged.items()] == [("orders-1", True)]


@pytest.mark.parametrize("name", ["meta.properties", "replication-offset-checkpoint", "log-start-offset-checkpoint"])
def test_a_broken_file_of_the_directory_itself_is_refused(tmp_path: Path, name: str) -> None:
    make_partition(tmp_path, "orders-0")
    (tmp_path / name).write_text("version=7\n")

    with pytest.raises(CorruptIndexError) as raised:
        read_log_directory(tmp_path)

    assert raised.value.path == str(tmp_path / name)


def test_a_fresh_directory_with_meta_properties_alone_is_kafkas(tmp_path: Path) -> None:
    MetaProperties(1, "cluster", 4, None).write(tmp_path / "meta.properties")

    assert read_log_directory(tmp_path).partitions == ()


def test_a_directory_that_is_not_kafkas_is_refused_with_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "photos-2026").mkdir()

    with pytest.raises(InvalidLogDirectoryError) as raised:
        read_log_directory(tmp_path)

    message = str(raised.value)
    assert str(tmp_path) in message
    assert "meta.properties" in message
    assert "topic-partition with .log files" in message


def test_a_file_in_place_of_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidLogDirectoryError, match="is not a directory"):
        read_log_directory(tmp_path / "missing")
