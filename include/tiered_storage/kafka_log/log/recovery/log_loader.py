"""Recover a log when it is opened, and repair what a crash left.

The segments from the recovery point on, or only the last one if no such point is known, are read whole: checksums are
verified, indexes and transaction indexes built, and the producers followed from the latest sound snapshot before them.
In earlier, closed segments only missing or unreadable indexes are rebuilt. If one of those is corrupt, it stays as it
is, without that index (a broker would truncate the log there); of its producers, only the transactions that were open
at the corruption are known.

The first batch that is incomplete or has a wrong checksum ends its segment: the rest of the file is truncated, unless
it was on disk before: below the recovery point, in a log that was closed cleanly, or in one that is only truncated now.
Such damage comes from no crash. A broker would truncate it during recovery, and serve it after a clean shutdown; here
the log is refused, and nothing is lost.

A broker deletes all segments after a truncated one. Here they stay if the next one begins exactly where this one now
ends: then nothing of the log was lost, as with the zeros of a preallocated file. Otherwise there is a hole, and they
are deleted here too. A leader can refill a log that lacks its end, but not a hole in it.
Source: LogLoader of released Kafka.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path

from tiered_storage.errors import CorruptIndexError, CorruptRecordError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.files.log_segment import (
    CUT_OFF,
    MISSING,
    REBUILT,
    REMOVED,
    LogSegment,
    RecoveryEvent,
    Report,
    SegmentDeletion,
    list_segments,
)
from tiered_storage.kafka_log.files.small_files import replace_file
from tiered_storage.kafka_log.indexes.offset_index import ENTRY as OFFSET_ENTRY
from tiered_storage.kafka_log.indexes.time_index import ENTRY as TIME_ENTRY
from tiered_storage.kafka_log.indexes.transaction_index import TransactionIndex, encode_aborted_transactions
from tiered_storage.kafka_log.log.recovery.clean_shutdown import remove_clean_shutdown
from tiered_storage.kafka_log.log.recovery.index_rebuild import (
    feed_segments,
    rebuild_next_indexes,
    write_transaction_index,
)
from tiered_storage.kafka_log.log.recovery.segment_recovery import (
    OnDisk,
    RecoveredSegment,
    recover_segment,
    truncate_log_file,
)
from tiered_storage.kafka_log.producers.producer_snapshot_files import (
    latest_state,
    list_snapshots,
    remove_broken_snapshots,
    remove_snapshots,
    remove_stray_snapshots,
    take_snapshot,
)
from tiered_storage.kafka_log.producers.producer_state import ProducerState
from tiered_storage.kafka_log.records.segment_scan import iterate_segment


@dataclass(frozen=True, slots=True)
class LoadedLog:
    """A log in which every batch that was read is sound.

    `active` is the last of `segments`, `producers` the state at its end. `truncated_bytes` were removed from the log's
    end. `epochs` are the leader epochs that begin in the segments that were read.
    """

    segments: tuple[LogSegment, ...]
    active: RecoveredSegment
    producers: ProducerState
    truncated_bytes: int
    epochs: tuple[EpochEntry, ...]


def load_log(
    partition_directory: Path,
    index_interval_bytes: int,
    *,
    log_start_offset: int,
    recovery_point: int | None,
    on_disk: OnDisk,
    report: Report,
) -> LoadedLog:
    """Recover the log in `partition_directory`, in which there is a segment; `report` each file that was repaired.

    Up to `recovery_point` (exclusive) the log is durable; None: all but the last segment. `on_disk` must not be
    truncated. The caller forgets silent producers.

    Raises UnsupportedMagicError for batches of an unknown magic in the segments that are read, CorruptRecordError for a
    broken batch that was on the disk.
    """
    segments = list_segments(partition_directory)
    start_offset = segments[_place_of(segments, log_start_offset)].base_offset
    first = _first_to_read(segments, recovery_point)
    _mend_indexes(segments[:first], index_interval_bytes, report)
    producers = latest_state(partition_directory, start_offset, segments[first].base_offset)
    remove_broken_snapshots(partition_directory, producers.end_offset, report)
    feed_segments(producers, segments[:first], segments[first].base_offset, report)
    log = _read(segments, first, producers, index_interval_bytes, on_disk, report)
    remove_snapshots(partition_directory, start_offset, log.active.next_offset)
    remove_stray_snapshots(partition_directory, {segment.base_offset for segment in log.segments})
    _adopt_snapshot(producers, partition_directory)
    return log


def recover_producers(
    segments: Sequence[LogSegment],
    end_position: int,
    *,
    log_start_offset: int,
    report: Report,
) -> ProducerState:
    """Return the state of producers if the last of `segments` ends at `end_position` (bytes).

    They are followed from the latest sound snapshot before that segment on; checksums are verified in that one only.
    `report` gets a corrupt closed segment. Raises CorruptRecordError if a batch of the last one is corrupt.
    """
    directory, active = segments[-1].directory, segments[-1]
    start_offset = segments[_place_of(segments, log_start_offset)].base_offset
    producers = latest_state(directory, start_offset, active.base_offset)
    feed_segments(producers, segments[:-1], active.base_offset, report)
    producers.end_offset = active.base_offset
    left = iterate_segment(active.log_path, active.base_offset, end_position=end_position)
    for window, batches in left:
        producers.feed(active.log_path, window, batches)
    _adopt_snapshot(producers, directory)
    return producers


def _adopt_snapshot(producers: ProducerState, directory: Path) -> None:
    """Add the producers of a snapshot at the log's end, which may be from batches below its start."""
    end_offset = producers.end_offset
    if end_offset in list_snapshots(directory):
        producers.adopt(latest_state(directory, end_offset, end_offset).snapshot())


def _first_to_read(segments: list[LogSegment], recovery_point: int | None) -> int:
    if recovery_point is None:
        return len(segments) - 1
    return _place_of(segments, recovery_point)


def _place_of(segments: Sequence[LogSegment], offset: int) -> int:
    return max(0, bisect_right(segments, offset, key=attrgetter("base_offset")) - 1)


def _read(
    segments: list[LogSegment],
    first: int,
    producers: ProducerState,
    index_interval_bytes: int,
    on_disk: OnDisk,
    report: Report,
) -> LoadedLog:
    """Recover the segments from the one at `first` on, as far as they follow one another."""
    directory = segments[0].directory
    snapshots = set(list_snapshots(directory))
    truncated_bytes = 0
    epochs: list[EpochEntry] = []
    for i in range(first, len(segments)):
        segment, later = segments[i], segments[i + 1 :]
        producers.end_offset = segment.base_offset
        if i > 0 and segment.base_offset not in snapshots and producers.seen_from is None:
            take_snapshot(directory, producers)
        segment_end = later[0].base_offset if later else None
        recovered = recover_segment(segment, index_interval_bytes, producers, segment_end=segment_end, on_disk=on_disk)
        epochs += recovered.epochs
        if recovered.torn_bytes:
            remove_clean_shutdown(directory.parent)
        if recovered.torn_bytes and later and later[0].base_offset != recovered.next_offset:
            truncated_bytes += sum(gone.size() for gone in later)
            for gone in later:
                report(RecoveryEvent(gone.log_path, f"the log ends at offset {recovered.next_offset}", REMOVED))
            _delete(later)
            segments = segments[: i + 1]
        if recovered.torn_bytes:
            # Last of all: while the end is torn, another recovery finds the same segments to delete.
            truncated_bytes += recovered.torn_bytes
            truncate_log_file(segment, recovered.size)
            report(RecoveryEvent(segment.log_path, f"{recovered.torn_bytes} bytes after its last whole batch", CUT_OFF))
        if len(segments) == i + 1:
            break
        _write_indexes(segment, recovered)
    return LoadedLog(tuple(segments), recovered, producers, truncated_bytes, tuple(epochs))


def _mend_indexes(segments: Sequence[LogSegment], index_interval_bytes: int, report: Report) -> None:
    """Rebuild missing or unreadable indexes, reading no segment twice for its producers.

    A corrupt segment stays as it is: readers get an error.
    """
    producers: ProducerState | None = None
    for i, segment in enumerate(segments):
        if event := _broken_index(segment):
            known = latest_state(segment.directory, segments[0].base_offset, segment.base_offset)
            if producers is None or (known.seen_from is None and known.end_offset >= producers.end_offset):
                producers = known
            feed_segments(producers, segments[:i], segment.base_offset, report)
            try:
                rebuild_next_indexes(segment, producers, index_interval_bytes).write_indexes(segment)
                report(event)
            except CorruptRecordError as error:
                report(replace(event, remedy=f"not rebuilt, since the log is corrupt: {error}"))
                producers.restart_at(producers.end_offset)


def _delete(segments: list[LogSegment]) -> None:
    deletion = SegmentDeletion(segments[0].directory, delay_ms=0)
    # From the end on, so that a crash in between leaves a log without a gap.
    deletion.delete(segments[::-1], now=0)
    deletion.remove(now=0)


def _write_indexes(segment: LogSegment, recovered: RecoveredSegment) -> None:
    recovered.indexes.close()
    replace_file(segment.offset_index_path, recovered.indexes.offset_index().to_bytes())
    replace_file(segment.time_index_path, recovered.indexes.time_index().to_bytes())
    write_transaction_index(segment, encode_aborted_transactions(recovered.aborted))


def _broken_index(segment: LogSegment) -> RecoveryEvent | None:
    """Return what is wrong with the indexes of a closed segment, from all that is seen at once."""
    for path, entry in ((segment.offset_index_path, OFFSET_ENTRY), (segment.time_index_path, TIME_ENTRY)):
        if not path.is_file():
            return RecoveryEvent(path, MISSING, REBUILT)
        size = path.stat().st_size
        if size % entry.itemsize:
            return RecoveryEvent(path, f"{size} bytes are not a whole number of entries", REBUILT)
    try:
        TransactionIndex.read(segment.transaction_index_path, segment.base_offset)
    except CorruptIndexError as error:
        return RecoveryEvent(segment.transaction_index_path, error.reason, REBUILT)
    return None
