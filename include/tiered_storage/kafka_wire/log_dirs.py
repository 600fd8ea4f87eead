"""DescribeLogDirs: how many bytes of a partition a broker has on its disks.

A broker tells it who may describe the cluster (Describe on Cluster); to others it lists nothing, from version 3 on with
an error code.

Source: KIP-113; released Kafka's DescribeLogDirsResponse.json.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from tiered_storage.kafka_wire.apis import DESCRIBE_LOG_DIRS
from tiered_storage.kafka_wire.frames import elements, entity, request, request_module
from tiered_storage.kafka_wire.metadata import TopicPartition


def log_dirs_request(version: int, partitions: Iterable[TopicPartition]) -> Any:
    """Return kio's request about `partitions`."""
    kind = request_module(DESCRIBE_LOG_DIRS, version).DescribableLogDirTopic
    topics = tuple(
        entity(kind, topic=topic, partitions=tuple(each.partition for each in some))
        for topic, some in groupby(sorted(partitions), lambda each: each.topic)
    )
    return request(DESCRIBE_LOG_DIRS, version, topics=topics)


def read_log_sizes(answer: Any) -> dict[TopicPartition, int]:
    """Return the bytes of each log in kio's `answer`; a replica on its way into another directory does not count."""
    return {
        TopicPartition(topic.name, each.partition_index): int(each.partition_size)
        for directory in elements(answer.results)
        for topic in elements(directory.topics)
        for each in elements(topic.partitions)
        if not each.is_future_key
    }
