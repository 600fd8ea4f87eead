"""Takes segments out of a log as a broker does: renamed first, removed a while later.

    {base offset}.log.deleted, .index.deleted, .timeindex.deleted, .txnindex.deleted, .snapshot.deleted

From the rename on the segment is no part of the log, while those who have its files open read on. What a crash leaves
of them goes when the log is opened the next time.

Source: file.delete.delay.ms of released Kafka.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tiered_storage.kafka_log.files.log_segment import LogSegment, producer_snapshot_path
from tiered_storage.kafka_log.files.small_files import sync_directory

DELETED_SUFFIX = ".deleted"


class SegmentDeletion:
    """Renames the files of segments of one log, and removes them `delay_ms` later. Not for two threads at once."""

    def __init__(self, directory: Path, delay_ms: int) -> None:
        self._directory = directory
        self._delay_ms = delay_ms
        self._waiting: list[tuple[int, Path]] = []

    def delete(self, segments: Sequence[LogSegment], now: int) -> None:
        """Take `segments` out of the log, with the producer snapshots that are named by their base offsets.

        They go in this order, each durably before the next one, so that a crash takes none without those before it; and
        each with its `.log` file first.
        """
        for segment in segments:
            snapshot = producer_snapshot_path(segment.directory, segment.base_offset)
            paths = [segment.log_path, *segment.index_paths, snapshot]
            self._waiting += [(now, _mark(path)) for path in paths if path.exists()]
            sync_directory(self._directory)

    def remove(self, now: int) -> None:
        """Remove the files whose time is over at `now` (ms)."""
        over = [path for since, path in self._waiting if now - since >= self._delay_ms]
        for path in over:
            path.unlink(missing_ok=True)
        self._waiting = [(since, path) for since, path in self._waiting if now - since < self._delay_ms]


def _mark(path: Path) -> Path:
    return path.replace(path.with_name(path.name + DELETED_SUFFIX))
