"""What a running broker leaves in its log directories at any moment is found, or named and left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tiered_storage.errors import InvalidLogDirectoryError, SourceClusterError
from tiered_storage.kafka_log.files.log_segment import LogSegment, segment_sizes
from tiered_storage.kafka_log.files.meta_properties import META_PROPERTIES, MetaProperties
from tiered_storage.kafka_log.files.partition_metadata import PARTITION_METADATA, write_topic_id
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.source import leader_files
from tiered_storage.remote_log.source.leader_files import (
    BrokerDirectories,
    closed_sizes,
    find_directory,
    list_leader_segments,
    why_unseen,
)
from tiered_storage.remote_log.source.partition_log import LeaderFiles

CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
ORDERS_0 = TopicIdPartition(CLUSTER, "cxfmXdFdRF2-6WITmvYjdA", 0, "orders")
OTHER_ID = "xsMTrxMGRlSGrhb3Dmq0Yg"


@dataclass(frozen=True, slots=True)
class Disks:
    """Two log directories of broker 1."""

    first: Path
    second: Path

    @property
    def files(self) -> LeaderFiles:
        return BrokerDirectories({1: (self.first, self.second)}).files_of(1)

    def partition(self, root: Path, name: str = "orders-0", *offsets: int, topic_id: str = ORDERS_0.topic_id) -> Path:
        directory = root / name
        directory.mkdir()
        write_topic_id(directory / PARTITION_METADATA, topic_id)
        for offset in offsets:
            LogSegment(offset, directory).log_path.write_bytes(b"x" * 10)
        return directory


@pytest.fixture
def disks(tmp_path: Path) -> Disks:
    found = Disks(tmp_path / "a", tmp_path / "b")
    for root in (found.first, found.second):
        root.mkdir()
        MetaProperties(1, CLUSTER, 1, None).write(root / META_PROPERTIES)
    return found


def test_the_partition_is_found_in_whichever_directory_it_is(disks: Disks) -> None:
    disks.partition(disks.first, "orders-1", 0)
    directory = disks.partition(disks.second, "orders-0", 0)

    assert find_directory(disks.files, ORDERS_0) == directory


@pytest.mark.parametrize("name", ["orders-0.0123-delete", "orders-0.0123-stray", "orders-0.0123-future"])
def test_a_directory_that_is_renamed_is_not_the_partition(disks: Disks, name: str) -> None:
    disks.partition(disks.first, name, 0)

    with pytest.raises(SourceClusterError, match=r"broker 1 .*broker\.log\.dirs.*orders-0"):
        find_directory(disks.files, ORDERS_0)


def test_a_partition_that_its_broker_moves_is_left(disks: Disks) -> None:
    places = [disks.partition(root, "orders-0", 0) for root in (disks.first, disks.second)]

    with pytest.raises(SourceClusterError, match=f"{places[0]}.*{places[1]}"):
        find_directory(disks.files, ORDERS_0)


def test_files_of_another_incarnation_are_left(disks: Disks) -> None:
    disks.partition(disks.first, "orders-0", 0, topic_id=OTHER_ID)

    with pytest.raises(SourceClusterError, match=f"{OTHER_ID}"):
        find_directory(disks.files, ORDERS_0)
    assert find_directory(disks.files, ORDERS_0, has_topic_id=False) == disks.first / "orders-0"


def _nothing(root: Path) -> None:
    (root / META_PROPERTIES).unlink()


def _of_another_broker(root: Path) -> None:
    MetaProperties(1, CLUSTER, 7, None).write(root / META_PROPERTIES)


def _of_another_cluster(root: Path) -> None:
    MetaProperties(1, OTHER_ID, 1, None).write(root / META_PROPERTIES)


def _garbled(root: Path) -> None:
    (root / META_PROPERTIES).write_text("version=9\n")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_nothing, "has no meta.properties"),
        (_of_another_broker, "is of broker 7"),
        (_of_another_cluster, f"is of the cluster {OTHER_ID}"),
        (_garbled, "version 9 is unknown"),
    ],
)
def test_directories_that_are_not_the_brokers_are_named(
    disks: Disks, change: Callable[[Path], None], reason: str
) -> None:
    disks.partition(disks.first, "orders-0", 0)
    for root in (disks.first, disks.second):
        change(root)

    with pytest.raises(InvalidLogDirectoryError) as refused:
        find_directory(disks.files, ORDERS_0)

    for named in ("broker 1", str(disks.first), str(disks.second), "broker.log.dirs", reason, "run the copy on a host"):
        assert named in str(refused.value)


def test_a_directory_that_is_out_of_sight_is_named_if_the_partition_is_missing(disks: Disks) -> None:
    _nothing(disks.second)

    assert why_unseen(disks.files, CLUSTER) is None
    with pytest.raises(SourceClusterError, match=f"{disks.second} has no meta.properties"):
        find_directory(disks.files, ORDERS_0)


def test_a_host_leaves_other_brokers_partitions_only_if_it_sees_its_own(disks: Disks, tmp_path: Path) -> None:
    # The same path on every host: the broker's id tells them apart.
    brokers = BrokerDirectories({1: (disks.first,), 2: (disks.first,)})
    assert {broker: each.is_left for broker, each in brokers.elsewhere([1, 2, 3], CLUSTER).items()} == {
        2: True,
        3: False,
    }

    blind = BrokerDirectories({1: (tmp_path / "no",), 2: (tmp_path / "no",)})
    assert [each.is_left for each in blind.elsewhere([1, 2], CLUSTER).values()] == [False, False]


def test_only_whole_closed_segments_count(disks: Disks) -> None:
    directory = disks.partition(disks.first, "orders-0", 0, 100, 200, 300)
    (directory / f"{50:020d}.log.deleted").write_bytes(b"gone")

    segments = list_leader_segments(directory)

    assert [(one.base_offset, one.end_offset) for one in segments] == [(0, 99), (100, 199), (200, 299), (300, None)]
    assert closed_sizes(disks.files, ORDERS_0, 100, 299) == [10, 10]
    assert closed_sizes(disks.files, ORDERS_0, 150, 298) == [10]
    assert closed_sizes(disks.files, ORDERS_0, 300, 400) == []


def test_a_listing_that_misses_a_segment_is_not_believed(disks: Disks, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = disks.partition(disks.first, "orders-0", 0, 100, 200)
    seen: list[int] = []

    def late(partition_directory: Path) -> list[tuple[LogSegment, int]]:
        found = segment_sizes(partition_directory)
        seen.append(len(found))
        if len(seen) > 1:
            return found
        # The broker deletes both while they are listed: the first was seen before, the second was not.
        for offset in (0, 100):
            LogSegment(offset, directory).log_path.unlink()
        return [found[0], found[2]]

    monkeypatch.setattr(leader_files, "segment_sizes", late)
    assert [one.base_offset for one in list_leader_segments(directory)] == [200]


def test_a_directory_that_is_gone_is_left(disks: Disks) -> None:
    with pytest.raises(SourceClusterError, match="is gone"):
        list_leader_segments(disks.first / "orders-0")
