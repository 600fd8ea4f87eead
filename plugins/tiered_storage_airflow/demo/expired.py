"""Where a log must begin after expiry, told from the segments that were there before it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tiered_storage.kafka_log.files.log_directory import read_log_directory
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import SegmentState
from tiered_storage_airflow.demo.errors import DemoError
from tiered_storage_airflow.demo.expectation import ExpectedPartition


def readable_segments(remote_log: RemoteLogManager, expected: ExpectedPartition) -> dict[str, int]:
    """Return the end offsets (inclusive) of the remote segments that readers may see now, by segment id."""
    partition = remote_log.find_partition(expected.topic, expected.partition)
    return {
        segment.segment_id.id: segment.end_offset
        for segment in remote_log.segments.list_remote_log_segments(partition)
        if segment.state is SegmentState.COPY_SEGMENT_FINISHED
    }


def start_after_expiry(start_before: int, before: Mapping[str, int], after: Mapping[str, int]) -> int:
    """Return the offset behind the last segment of `before` that is not in `after`; `start_before` where none went."""
    ends = [end_offset for segment_id, end_offset in before.items() if segment_id not in after]
    return max([start_before, *(end_offset + 1 for end_offset in ends)])


def segment_sizes(log_directory: Path) -> dict[str, dict[int, int]]:
    """Return the bytes of each partition's local segments, by its name and their base offsets."""
    return {
        partition.path.name: {segment.base_offset: segment.size() for segment in list_segments(partition.path)}
        for partition in read_log_directory(log_directory).partitions
    }


def ensure_enough_remains(name: str, start_offset: int, sizes: Mapping[int, int], retention_bytes: int) -> None:
    """Raise DemoError where expiry up to `start_offset` left fewer bytes than it had to.

    `sizes` are those of all segments before anything was tiered, by base offset.
    """
    remaining = sum(size for base_offset, size in sizes.items() if base_offset >= start_offset)
    if remaining < retention_bytes:
        raise DemoError(
            f"{name}: expiry left {remaining} bytes, from offset {start_offset} on, where retention.bytes is "
            f"{retention_bytes}: it went too far"
        )
