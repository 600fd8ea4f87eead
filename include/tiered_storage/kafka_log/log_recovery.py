"""Finds out what a log holds when it is opened, and mends what a crash left.

The segments from the one with the recovery point on, or the last one alone where no such point is known, are read
whole: checksums are verified, indexes and transaction indexes built, and the producers followed from the latest sound
snapshot before them. The first batch that is broken or cut ends the log, unless the next segment goes on right behind
what comes before it, as behind the zeros of a preallocated file. Closed segments before that are only looked at for
indexes that are missing or cannot be read.

Source: LogLoader of released Kafka.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from tiered_storage.errors import CorruptIndexError
from tiered_storage.kafka_log.index_rebuild import feed_segments, rebuild_indexes, write_transaction_index
from tiered_storage.kafka_log.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.log_config import LogConfig
from tiered_storage.kafka_log.log_segment import LogSegment, list_segments
from tiered_storage.kafka_log.offset_index import ENTRY as OFFSET_ENTRY
from tiered_storage.kafka_log.producer_snapshot_files import (
    latest_state,
    list_snapshots,
    remove_broken_snapshots,
    remove_snapshots,
    remove_stray_snapshots,
    take_snapshot,
)
from tiered_storage.kafka_log.producer_state import ProducerState
from tiered_storage.kafka_log.segment_deletion import SegmentDeletion
from tiered_storage.kafka_log.segment_recovery import RecoveredSegment, recover_segment
from tiered_storage.kafka_log.small_files import replace_file
from tiered_storage.kafka_log.time_index import ENTRY as TIME_ENTRY
from tiered_storage.kafka_log.transaction_index import TransactionIndex, encode_aborted_transactions


@dataclass(frozen=True, slots=True)
class RecoveredLog:
    """A log whose every batch that was looked at is whole.

    `active` is the last of `segments`, `producers` the state at its end. `truncated_bytes` were cut off the log's end.
    `epochs` are the leader epochs that begin in the segments that were read.
    """

    segments: tuple[LogSegment, ...]
    active: RecoveredSegment
    producers: ProducerState
    truncated_bytes: int
    epochs: tuple[EpochEntry, ...]


def recover_log(
    partition_directory: Path,
    config: LogConfig,
    now: int,
    *,
    log_start_offset: int = 0,
    recovery_point: int | None = None,
) -> RecoveredLog:
    """Recover the log in `partition_directory`, in which there is a segment.

    Up to `recovery_point` (exclusive) the log is on the disk for sure. Producers that are silent at `now` (ms) for too
    long are forgotten. Raises UnsupportedMagicError for batches of an older format where batches must be read,
    CorruptRecordError for a broken batch in a closed segment whose indexes are missing.
    """
    segments = list_segments(partition_directory)
    start_offset = segments[_place_of(segments, log_start_offset)].base_offset
    first = _first_to_read(segments, recovery_point)
    for segment in segments[:first]:
        if not _has_sound_indexes(segment):
            rebuild_indexes(segment, index_interval_bytes=config.index_interval_bytes).write_indexes(segment)
    producers = latest_state(partition_directory, start_offset, segments[first].base_offset)
    remove_broken_snapshots(partition_directory, above=producers.end_offset)
    feed_segments(producers, segments[:first], segments[first].base_offset, skip_older_formats=True)
    log = _read(segments, first, producers, config, now)
    end_offset = log.active.next_offset
    remove_snapshots(partition_directory, start_offset, end_offset)
    remove_stray_snapshots(partition_directory, {segment.base_offset for segment in log.segments})
    if end_offset in list_snapshots(partition_directory):
        # It may know producers whose batches are below the log's start.
        producers.adopt(latest_state(partition_directory, end_offset, end_offset).snapshot())
    producers.expire(now, config.producer_id_expiration_ms)
    return log


def _first_to_read(segments: list[LogSegment], recovery_point: int | None) -> int:
    if recovery_point is None:
        return len(segments) - 1
    return _place_of(segments, recovery_point)


def _place_of(segments: list[LogSegment], offset: int) -> int:
    return max(0, bisect_right(segments, offset, key=attrgetter("base_offset")) - 1)


def _read(
    segments: list[LogSegment], first: int, producers: ProducerState, config: LogConfig, now: int
) -> RecoveredLog:
    """Recover the segments from the one at `first` on, as far as they follow one another."""
    directory = segments[0].directory
    truncated_bytes = 0
    epochs: list[EpochEntry] = []
    for i in range(first, len(segments)):
        segment, later = segments[i], segments[i + 1 :]
        producers.end_offset = segment.base_offset
        if i > 0 and segment.base_offset not in list_snapshots(directory):
            take_snapshot(directory, producers)
        recovered = recover_segment(segment, config.index_interval_bytes, producers)
        truncated_bytes += recovered.truncated_bytes
        epochs += recovered.epochs
        if not later:
            break
        if recovered.truncated_bytes and later[0].base_offset != recovered.next_offset:
            truncated_bytes += sum(gone.size() for gone in later)
            _delete(later, now)
            segments = segments[: i + 1]
            break
        _write_indexes(segment, recovered)
    return RecoveredLog(tuple(segments), recovered, producers, truncated_bytes, tuple(epochs))


def _delete(segments: list[LogSegment], now: int) -> None:
    deletion = SegmentDeletion(segments[0].directory, delay_ms=0)
    # From the end on, so that a crash in between leaves a log without a gap.
    deletion.delete(segments[::-1], now)
    deletion.remove(now)


def _write_indexes(segment: LogSegment, recovered: RecoveredSegment) -> None:
    recovered.indexes.close()
    replace_file(segment.offset_index_path, recovered.indexes.offset_index().to_bytes())
    replace_file(segment.time_index_path, recovered.indexes.time_index().to_bytes())
    write_transaction_index(segment, encode_aborted_transactions(recovered.aborted))


def _has_sound_indexes(segment: LogSegment) -> bool:
    """Say whether the indexes of a closed segment are there and, from all that is seen at once, can be read."""
    if not segment.has_indexes():
        return False
    try:
        TransactionIndex.read(segment.transaction_index_path, segment.base_offset)
    except CorruptIndexError:
        return False
    return (
        segment.offset_index_path.stat().st_size % OFFSET_ENTRY.itemsize == 0
        and segment.time_index_path.stat().st_size % TIME_ENTRY.itemsize == 0
    )
