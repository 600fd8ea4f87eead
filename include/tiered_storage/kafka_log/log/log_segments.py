"""The segments of one log that is open for appending: closed ones, and the active one at the end.

This module combines them as files: append and roll, find and read, truncate and replace. LocalLog knows what offsets,
producers and leader epochs mean.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter

from tiered_storage.clock import Clock
from tiered_storage.kafka_log.files.log_segment import LogSegment, Report, SegmentDeletion
from tiered_storage.kafka_log.files.small_files import sync_directory
from tiered_storage.kafka_log.indexes.transaction_index import AbortedTxn, TransactionIndex, collect_aborted
from tiered_storage.kafka_log.log.active_segment import ActiveSegment
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.recovery.segment_recovery import RecoveredSegment, recover_segment, truncate_log_file
from tiered_storage.kafka_log.log.segment_indexes import SegmentIndexes
from tiered_storage.kafka_log.producers.producer_state import ProducerState
from tiered_storage.kafka_log.records.batch_header import BatchHeader
from tiered_storage.kafka_log.records.batch_read import BatchRange, batch_position, read_batch_range
from tiered_storage.kafka_log.records.segment_scan import iterate_segment

_BASE_OFFSET = attrgetter("base_offset")


class LogSegments:
    """The segments in one partition's directory. Not thread-safe."""

    def __init__(
        self,
        segments: Sequence[LogSegment],
        active: RecoveredSegment,
        deletion: SegmentDeletion,
        config: LogConfig,
        clock: Clock,
        report: Report,
    ) -> None:
        """Continue `segments`, by rising base offset; the last is the active one, already recovered.

        `report` gets each index that is found missing or corrupt later, and is rebuilt.
        """
        self.directory = segments[-1].directory
        self._segments = list(segments)
        self._config = config
        self._clock = clock
        self._active = ActiveSegment(segments[-1], active, config, clock())
        self._deletion = deletion
        self._indexes = SegmentIndexes(config.index_interval_bytes, report)

    @property
    def all(self) -> tuple[LogSegment, ...]:
        """The segments by rising base offset; the last one is the active one."""
        return tuple(self._segments)

    @property
    def active(self) -> ActiveSegment:
        """The segment that is appended to."""
        return self._active

    @property
    def next_offset(self) -> int:
        """The first offset after the last batch, or the base offset of an empty active segment."""
        return self._active.next_offset

    def size_of(self, segment: LogSegment) -> int:
        """Return the size of a segment's batches in bytes."""
        return self._active.size if segment == self._active.segment else segment.size()

    def latest_timestamp(self, segment: LogSegment, *, confirmed: bool = False) -> int:
        """Return the largest timestamp (ms) of a segment's records; if they have none, that of its `.log` file.

        It comes from the time index, or, if `confirmed`, from the batches. Raises CorruptRecordError if the index is
        missing or corrupt, and so is the log from which to rebuild it.
        """
        latest = self._latest_record_timestamp(segment, confirmed=confirmed)
        return latest if latest >= 0 else segment.log_path.stat().st_mtime_ns // 1_000_000

    def append(self, batch: bytes | bytearray | memoryview, header: BatchHeader, aborted: AbortedTxn | None) -> None:
        """Append `batch` to the active segment, which has room for it, with the transaction that it aborts."""
        self._active.append(batch, header)
        if aborted is not None:
            self._active.add_aborted(aborted)

    def has_room_for(self, header: BatchHeader) -> bool:
        """Return whether the active segment has room for such a batch; if not, it must be rolled first."""
        return self._active.has_room_for(header, self._clock())

    def roll(self, base_offset: int) -> None:
        """Begin a new active segment at `base_offset`, after one that `finish` closed."""
        segment = LogSegment(base_offset, self.directory)
        segment.log_path.touch()
        sync_directory(self.directory)
        active = ActiveSegment(segment, self._empty(segment), self._config, self._clock())
        self._active.close()
        self._active = active
        self._segments.append(segment)

    def read(self, offset: int, max_bytes: int, end_offset: int | None = None) -> BatchRange | None:
        """Return whole batches, up to `max_bytes` but at least one, beginning with the one that contains `offset`.

        They end with their segment, and below `end_offset` (exclusive), at the latest. None if there is no batch.
        Raises CorruptRecordError if a batch cannot be read, or reaches into the next segment.
        """
        self._active.write_out()
        segments = self._from(offset)
        for i, segment in enumerate(segments):
            segment_end = segments[i + 1].base_offset if i + 1 < len(segments) else None
            position = self._position(segment, offset)
            if found := read_batch_range(
                segment.log_path, position, offset, max_bytes, end_offset, segment_end=segment_end
            ):
                return found
            if end_offset is not None and segment.base_offset >= end_offset:
                break
        return None

    def aborted(self, start_offset: int, end_offset: int) -> tuple[AbortedTxn, ...]:
        """Return the aborted transactions with records in [`start_offset`, `end_offset`)."""
        return collect_aborted(self._transaction_indexes(start_offset), start_offset, end_offset).transactions

    def delete(self, segments: Sequence[LogSegment]) -> None:
        """Remove closed `segments` from the log; their files are deleted some time later."""
        self._deletion.delete(segments, self._clock())
        gone = set(segments)
        self._segments = [segment for segment in self._segments if segment not in gone]
        self._indexes.forget()

    def truncate(self, end_offset: int) -> None:
        """Truncate the log before the batch that reaches `end_offset`; it must be recovered before the next append.

        The last remaining segment begins at `end_offset` or before it. Raises CorruptRecordError if a remaining batch
        of it is damaged; then nothing is truncated.
        """
        last = self._from(end_offset)[0]
        position = batch_position(last.log_path, self._position(last, end_offset), end_offset)
        for _ in iterate_segment(last.log_path, last.base_offset, end_position=position):
            pass
        self._active.finish()
        self._active.close()
        # From the end on, so that a crash in between leaves a log without a gap.
        self.delete([segment for segment in self._segments if segment > last][::-1])
        if position is not None:
            truncate_log_file(last, position)

    def truncate_active(self, left: RecoveredSegment) -> None:
        """Truncate the active segment to `left`."""
        segment = self._active.segment
        self._active.close()
        truncate_log_file(segment, left.size)
        self._active = ActiveSegment(segment, left, self._config, self._clock())

    def empty(self) -> None:
        """Remove all batches; one empty segment is left, which must `restart_at` an offset before the next append.

        A crash leaves a prefix of the log, or that segment.
        """
        self._active.close()
        first, *later = self._segments
        self.delete(later[::-1])
        truncate_log_file(first, 0)

    def restart_at(self, base_offset: int) -> None:
        """Begin the one segment that `empty` left at `base_offset`."""
        [emptied] = self._segments
        for path in emptied.index_paths:
            path.unlink(missing_ok=True)
        segment = LogSegment(base_offset, self.directory)
        emptied.log_path.replace(segment.log_path)
        sync_directory(self.directory)
        self._segments = [segment]
        self._active = ActiveSegment(segment, self._empty(segment), self._config, self._clock())

    def ensure_open(self) -> None:
        """Raise InvalidLogDirectoryError after `close`, and after a truncation that failed halfway."""
        self._active.ensure_open()

    def flush(self) -> None:
        """Write everything to disk, durably."""
        self._active.flush()

    def finish(self) -> None:
        """Write everything to disk, durably, with the active segment as a closed one."""
        self._active.finish()

    def close(self) -> None:
        """Close the active segment's file; repeated calls are harmless."""
        self._active.close()

    def _empty(self, segment: LogSegment) -> RecoveredSegment:
        return recover_segment(segment, self._config.index_interval_bytes, ProducerState(segment.base_offset))

    def _from(self, offset: int) -> list[LogSegment]:
        first = bisect_right(self._segments, offset, key=_BASE_OFFSET) - 1
        return self._segments[max(first, 0) :]

    def _transaction_indexes(self, offset: int) -> Iterator[TransactionIndex]:
        for segment in self._from(offset):
            if segment == self._active.segment:
                yield self._active.transaction_index()
            else:
                yield self._indexes.transaction_index(segment)

    def _latest_record_timestamp(self, segment: LogSegment, *, confirmed: bool) -> int:
        if segment == self._active.segment:
            return self._active.latest_timestamp
        if confirmed:
            return self._indexes.confirmed_latest_timestamp(segment)
        return self._indexes.latest_timestamp(segment)

    def _position(self, segment: LogSegment, offset: int) -> int:
        if segment == self._active.segment:
            return self._active.offset_index().lookup(offset).position
        return self._indexes.position(segment, offset)
