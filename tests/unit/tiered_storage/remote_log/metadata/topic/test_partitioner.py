from __future__ import annotations

from collections.abc import Callable

import pytest

from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.metadata.topic.partitioner import draft_metadata_partition, metadata_partition
from tiered_storage.remote_log.model import TopicIdPartition

ORDERS = "FJnn9-uuQPqPqgHd9QSW9w"
HIGH_BITS = "gAAAAAAAAAD_________fw"
ALL_ONES = "_____________________w"
LOW = "AAAAAAAAAAAAAAAAAAAAAg"
LARGEST_INT = 2**31 - 1


def partition_of(topic: str, number: int, topic_id: str = ORDERS) -> TopicIdPartition:
    return TopicIdPartition("cluster", topic_id, number, topic)


@pytest.mark.parametrize(
    ("topic_id", "number", "of_50", "of_7919"),
    [
        (ORDERS, 0, 49, 7120),
        (ORDERS, 7, 1, 2423),
        (ORDERS, 1000, 41, 430),
        (ORDERS, LARGEST_INT, 22, 5512),
        (HIGH_BITS, 0, 8, 6558),
        (HIGH_BITS, LARGEST_INT, 41, 3633),
        (ALL_ONES, 1, 30, 33),
        (LOW, 0, 47, 1326),
        (LOW, 7, 16, 1134),
    ],
)
def test_the_partitioner_of_kafka_4_3_1_finds_the_same(topic_id: str, number: int, of_50: int, of_7919: int) -> None:
    partition = partition_of("orders", number, topic_id)

    assert (metadata_partition(partition, 50), metadata_partition(partition, 7919)) == (of_50, of_7919)


@pytest.mark.parametrize(
    ("topic", "number", "of_50", "of_7919"),
    [
        ("orders", 0, 48, 3556),
        ("orders", 7, 5, 3563),
        ("a", 0, 10, 7551),
        ("payments.eu_west-1", 49, 35, 4941),
        ("polygenelubricants", 3, 46, 1446),
    ],
)
def test_java_hashes_the_name_of_a_partition_to_the_same(topic: str, number: int, of_50: int, of_7919: int) -> None:
    partition = partition_of(topic, number)

    assert (draft_metadata_partition(partition, 50), draft_metadata_partition(partition, 7919)) == (of_50, of_7919)


@pytest.mark.parametrize("find", [metadata_partition, draft_metadata_partition])
def test_a_topic_without_partitions_is_refused(find: Callable[[TopicIdPartition, int], int]) -> None:
    with pytest.raises(ConfigurationError, match="0 partitions"):
        find(partition_of("orders", 0), 0)
