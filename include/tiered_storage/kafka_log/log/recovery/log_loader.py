"""Finds out what a log holds when it is opened, and repairs what a crash left.

The segments from the one with the recovery point on, or the last one alone where no such point is known, are read
whole: checksums are verified, indexes and transaction indexes built, and the producers followed from the latest sound
snapshot before them. Closed segments before that are only looked at for indexes that are missing or cannot be read. One
of them that has to be read and is broken stays as it is, without that index: a broker would cut it off there. Of
what producers did up to its end only the transactions are known then that were open where it breaks.

The first batch that is cut or whose checksum is wrong ends its segment: what follows in the file is cut off, unless it
was on the disk before: below the recovery point, or in a log that was closed in order, or that is only truncated now.
That is no crash's work: a broker would cut it off where it recovers, and serve it where it trusts a stop in order; here
the log is refused, and nothing of it is lost.

A broker deletes all segments behind one that was cut. Here they stay where the next one goes on exactly at the offset
at which this one now ends: then nothing of the log was lost with what was cut, as with the zeros of a preallocated
file. Otherwise there is a hole, and they are deleted here too: a log whose end is missing can be filled up by its
leader or its producers, one with a hole in the middle by nobody.

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
from tiered_storage.kafka_log.files.log_segment import LogSegment, SegmentDeletion, list_segments
from tiered_storage.kafka_log.files.recovery_event import BUILT_ANEW, CUT_OFF, MISSING, REMOVED, RecoveryEvent, Report
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
    """A log whose every batch that was looked at is whole.

    `active` is the last of `segments`, `producers` the state at its end. `truncated_bytes` were cut off the log's end.
    `epochs` are the leader epochs that begin in the segments that were read.
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

    Up to `recovery_point` (exclusive) the log is on the disk for sure; None: all but the last segment. `on_disk` is
    what must not be cut off. The caller forgets silent producers.

    Raises UnsupportedMagicError for batches of an older format in the segments that are read, CorruptRecordError for a
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
    """Return the state of producers where the last of `segments` is going to end at `end_position` (bytes).

    They are followed from the latest sound snapshot before that segment on; checksums are verified in that one only. A
    closed segment that is broken is told to `report`. Raises CorruptRecordError if a batch of the last one is.
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
    """Take in what a snapshot at the log's end knows, which may be of batches below its start."""
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
            # Last of all: as long as the end is torn, whoever recovers the log finds out what had to go behind it.
            truncated_bytes += recovered.torn_bytes
            truncate_log_file(segment, recovered.size)
            report(
                RecoveryEvent(segment.log_path, f"{recovered.torn_bytes} bytes behind its last whole batch", CUT_OFF)
            )
        if len(segments) == i + 1:
            break
        _write_indexes(segment, recovered)
    return LoadedLog(tuple(segments), recovered, producers, truncated_bytes, tuple(epochs))


def _mend_indexes(segments: Sequence[LogSegment], index_interval_bytes: int, report: Report) -> None:
    """Build the indexes again that are missing or cannot be read; no segment is read twice for its producers.

    A segment that is broken stays as it is: whoever reads it is told.
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
                report(replace(event, remedy=f"not built anew, since the log is broken: {error}"))
                producers.begin_anew(producers.end_offset)


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
            return RecoveryEvent(path, MISSING, BUILT_ANEW)
        size = path.stat().st_size
        if size % entry.itemsize:
            return RecoveryEvent(path, f"{size} bytes are no whole number of entries", BUILT_ANEW)
    try:
        TransactionIndex.read(segment.transaction_index_path, segment.base_offset)
    except CorruptIndexError as error:
        return RecoveryEvent(segment.transaction_index_path, error.reason, BUILT_ANEW)
    return None
