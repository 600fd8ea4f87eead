"""Retention for the demo, by size, so chosen that some of each log is trimmed, some expires and some stays remote."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from tiered_storage.kafka_log.log_directory import read_log_directory
from tiered_storage.kafka_log.log_segment import list_segments

_LOCAL_SHARE = 0.3
_TOTAL_SHARE = 0.65


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """local.retention.bytes and retention.bytes of a topic; both hold for each partition."""

    topic: str
    local_retention_bytes: int
    retention_bytes: int


def choose_limits(log_directory: Path, topics: Collection[str]) -> list[TopicLimits]:
    """Return limits for `topics` in `log_directory`, from the size of each one's largest partition."""
    largest: dict[str, int] = {}
    for partition in read_log_directory(log_directory).partitions:
        if partition.topic not in topics:
            continue
        size = sum(segment.size() for segment in list_segments(partition.path))
        largest[partition.topic] = max(size, largest.get(partition.topic, 0))
    return [
        TopicLimits(topic, max(1, int(size * _LOCAL_SHARE)), max(1, int(size * _TOTAL_SHARE)))
        for topic, size in sorted(largest.items())
    ]
