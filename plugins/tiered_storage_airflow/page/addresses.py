"""Addresses of pages. Those of a partition name its topic's id: a name may have had several lives."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote, urlencode

from tiered_storage.remote_log.model import TopicIdPartition


def of_topic(root: str, topic: str) -> str:
    """Return the address of a topic's page, below the `root` of all pages."""
    return f"{root}/topics/{quote(topic, safe='')}"


def of_partition(root: str, partition: TopicIdPartition, below: str = "", **query: object) -> str:
    """Return the address of a partition's page, or of what is `below` it; the same below the root of the routes."""
    asked = urlencode({**query, "topic_id": partition.topic_id})
    return f"{of_topic(root, partition.topic)}/partitions/{partition.partition}{below}?{asked}"


def trail_to(partition: TopicIdPartition) -> Sequence[tuple[str, str]]:
    """Return the names and addresses (below the root) of the pages of a partition and of its topic."""
    return (partition.topic, of_topic("", partition.topic)), (str(partition), of_partition("", partition))
