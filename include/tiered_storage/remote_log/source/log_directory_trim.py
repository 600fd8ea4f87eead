"""Removes the oldest segments of a log in a directory that stands alone, while holding Kafka's own lock on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tiered_storage.disk_space import NO_ROOM, disk_of
from tiered_storage.errors import InvalidLogDirectoryError
from tiered_storage.kafka_log.files.directory_lock import DirectoryLock, ensure_not_linked
from tiered_storage.kafka_log.files.log_segment import LogSegment, list_segments, producer_snapshot_path
from tiered_storage.kafka_log.files.offset_checkpoint import (
    LOG_START_OFFSET_CHECKPOINT,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from tiered_storage.kafka_log.files.small_files import sync_directory
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.source.partition_log import LocalSegment


class LogDirectoryTrim:
    """The LocalTrim of a LogDirectorySource.

    It writes the log start to log-start-offset-checkpoint first. A broker that starts here after a crash between two
    files then finds the right log start and removes the rest itself. If the disk has no room for the checkpoint, it
    first removes index files of the doomed segments, which a broker can rebuild, and then the oldest segments.
    """

    def ensure_removable(self, segments: Sequence[LocalSegment]) -> None:
        """Raise InvalidLogDirectoryError if the partition's folder, or one of its logs, is a link or a mount."""
        paths = [Path(segment.location) for segment in segments]
        if paths:
            ensure_not_linked(paths[0].parent, paths)

    def trim(
        self,
        partition: TopicIdPartition,
        segments: Sequence[LocalSegment],
        new_local_start: int,
        still_due: Callable[[], int] | None = None,
    ) -> int:
        """Remove `segments` and everything that belongs to them; the active segment is never touched."""
        if not segments:
            return new_local_start
        self.ensure_removable(segments)
        directory = Path(segments[0].location).parent
        root = directory.parent
        with DirectoryLock.acquire(root):
            limit = new_local_start if still_due is None else still_due()
            if limit < new_local_start:
                segments = [one for one in segments if one.base_offset < limit]
                new_local_start = limit
            if not segments:
                return new_local_start
            trimmed = _still_there(directory, segments, new_local_start)
            has_moved = _advance_log_start(root, partition, new_local_start)
            for remove in (_remove_indexes, _remove) if not has_moved else (_remove,):
                for segment in trimmed:
                    remove(segment)
                    has_moved = has_moved or _advance_log_start(root, partition, new_local_start)
            sync_directory(directory)
            if not has_moved:
                raise InvalidLogDirectoryError(
                    f"{root / LOG_START_OFFSET_CHECKPOINT}: no room to write there that {partition} begins at offset "
                    f"{new_local_start} by now, though its older segments are removed: {disk_of(root)}; make room, "
                    "then write it there"
                )
        return new_local_start


def _still_there(directory: Path, segments: Sequence[LocalSegment], new_local_start: int) -> list[LogSegment]:
    """Return those of `segments` that exist, once it is sure that they are the oldest and none is the active one."""
    wanted = {segment.base_offset for segment in segments}
    present = list_segments(directory)
    trimmed = [segment for segment in present if segment.base_offset in wanted]
    staying = [segment for segment in present if segment.base_offset not in wanted]
    planned = {segment.base_offset: segment.size for segment in segments}
    rewritten = any(segment.size() != planned[segment.base_offset] for segment in trimmed)
    if rewritten or not staying or staying[0].base_offset != new_local_start or trimmed != present[: len(trimmed)]:
        raise InvalidLogDirectoryError(
            f"{directory} changed since the trim was planned: it was to begin at offset {new_local_start}; nothing was "
            "removed, the next run plans it again"
        )
    return trimmed


def _advance_log_start(root: Path, partition: TopicIdPartition, new_local_start: int) -> bool:
    """Write the checkpoint where it is lower; return False if the disk has no room for it."""
    path = root / LOG_START_OFFSET_CHECKPOINT
    starts = read_offset_checkpoint(path) if path.is_file() else {}
    key = (partition.topic, partition.partition)
    if starts.get(key, 0) < new_local_start:
        try:
            write_offset_checkpoint(path, {**starts, key: new_local_start})
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            return False
    return True


def _remove(segment: LogSegment) -> None:
    """Unlink the log last: while it is there, the segment is whole or will be found and removed again."""
    _remove_indexes(segment)
    segment.log_path.unlink(missing_ok=True)


def _remove_indexes(segment: LogSegment) -> None:
    snapshot = producer_snapshot_path(segment.directory, segment.base_offset)
    for path in (segment.offset_index_path, segment.time_index_path, segment.transaction_index_path, snapshot):
        path.unlink(missing_ok=True)
