"""Chooses retention by size for the demo: some of each log is trimmed, some expires and some stays remote."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from tiered_storage.kafka_log.files.log_directory import read_log_directory
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import SegmentState
from tiered_storage_airflow.demo.expectation import DemoError, ExpectedPartition

_LOCAL_SHARE = 0.3
_TOTAL_SHARE = 0.65


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """local.retention.bytes and retention.bytes of a topic; both hold for each partition."""

    topic: str
    local_retention_bytes: int
    retention_bytes: int


def choose_limits(log_directory: Path, topics: Collection[str]) -> list[TopicLimits]:
    """Return limits for `topics` in `log_directory`, from the segments of each one's largest partition."""
    largest: dict[str, list[int]] = {}
    for partition in read_log_directory(log_directory).partitions:
        if partition.topic not in topics:
            continue
        sizes = [segment.size() for segment in list_segments(partition.path)]
        if sum(sizes) >= sum(largest.get(partition.topic, [])):
            largest[partition.topic] = sizes
    return [limits_of(topic, sizes) for topic, sizes in sorted(largest.items())]


def limits_of(topic: str, sizes: Sequence[int]) -> TopicLimits:
    """Return limits for a partition of segments of those `sizes` (bytes), the last one being the active one.

    Of two closed segments the first expires and the second is trimmed; of more, about the shares above. A single one
    is trimmed only.
    """
    closed, total = len(sizes) - 1, sum(sizes)
    ends = list(accumulate(sizes[:-1]))
    expired = min(max(1, _within(ends, total * (1 - _TOTAL_SHARE))), max(0, closed - 1))
    trimmed = min(max(expired + 1, _within(ends, total * (1 - _LOCAL_SHARE))), closed)
    return TopicLimits(topic, _limit(sizes, trimmed, _LOCAL_SHARE), _limit(sizes, expired, _TOTAL_SHARE))


def _within(ends: Sequence[int], size: float) -> int:
    """Return how many segments, which end at `ends`, fit in `size` bytes."""
    return sum(end <= size for end in ends)


def _limit(sizes: Sequence[int], count: int, share: float) -> int:
    """Return the limit nearest to `share` of all bytes that removes the first `count` segments, but not the next."""
    most = sum(sizes[count:])
    least = most - sizes[count] + 1
    return max(1, least, min(most, int(sum(sizes) * share)))


def readable_segments(remote_log: RemoteLogManager, expected: ExpectedPartition) -> dict[str, int]:
    """Return the end offsets (inclusive) of the remote segments that readers may see now, by segment id."""
    partition = remote_log.find_partition(expected.topic, expected.partition)
    return {
        segment.segment_id.id: segment.end_offset
        for segment in remote_log.context.segments.list_remote_log_segments(partition)
        if segment.state is SegmentState.COPY_SEGMENT_FINISHED
    }


def start_after_expiry(start_before: int, before: Mapping[str, int], after: Mapping[str, int]) -> int:
    """Return the offset after the last segment of `before` that is not in `after`; `start_before` if none expired."""
    ends = [end_offset for segment_id, end_offset in before.items() if segment_id not in after]
    return max([start_before, *(end_offset + 1 for end_offset in ends)])


def segment_sizes(log_directory: Path) -> dict[str, dict[int, int]]:
    """Return the bytes of each partition's local segments, by its name and their base offsets."""
    return {
        partition.path.name: {segment.base_offset: segment.size() for segment in list_segments(partition.path)}
        for partition in read_log_directory(log_directory).partitions
    }


def ensure_enough_remains(name: str, start_offset: int, sizes: Mapping[int, int], retention_bytes: int) -> None:
    """Raise DemoError if expiry up to `start_offset` left fewer bytes than retention allows.

    `sizes` are those of all segments before anything was tiered, by base offset.
    """
    remaining = sum(size for base_offset, size in sizes.items() if base_offset >= start_offset)
    if remaining < retention_bytes:
        raise DemoError(
            f"{name}: expiry left {remaining} bytes, from offset {start_offset} on, where retention.bytes is "
            f"{retention_bytes}: it went too far"
        )
