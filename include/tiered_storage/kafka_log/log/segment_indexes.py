"""The indexes of the closed segments of an open log, read on demand and cached.

An index that is missing, unreadable, or points past its segment is rebuilt from the log and replaced on disk: it stops
neither readers nor retention. The log's opener gets a `RecoveryEvent`.

An index is checked wherever an error in it could cost records. An offset index entry (O, P) must lead to a batch that
begins at or before O: then no batch before P holds an offset from O on. An index that ends long before its segment, or
is empty, costs no records, but makes reads after its last entry slow.

The last entry of a time index must have its timestamp from the batch at its offset; before a segment expires by it, all
batches are checked. A transaction index has no such check.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tiered_storage.errors import CorruptIndexError, CorruptRecordError
from tiered_storage.kafka_log.files.log_segment import MISSING, REBUILT, LogSegment, RecoveryEvent, Report
from tiered_storage.kafka_log.files.small_files import replace_file
from tiered_storage.kafka_log.indexes.index_builder import IndexBuilder
from tiered_storage.kafka_log.indexes.offset_index import OffsetIndex, OffsetPosition
from tiered_storage.kafka_log.indexes.time_index import TimeIndex
from tiered_storage.kafka_log.indexes.transaction_index import TransactionIndex
from tiered_storage.kafka_log.kernels.constants import BATCH_OVERHEAD
from tiered_storage.kafka_log.log.recovery.index_rebuild import rebuild_indexes, write_transaction_index
from tiered_storage.kafka_log.records.batch_header import NO_TIMESTAMP, read_batch_header
from tiered_storage.kafka_log.records.batch_read import read_batches
from tiered_storage.kafka_log.records.segment_scan import iterate_segment
from tiered_storage.regular_files import open_regular, open_unbuffered

_OFFSET_INDEXES_KEPT = 4
_INTERVALS_BEHIND = 16
"""Scanning this many intervals after an index's last entry is faster than rebuilding the index."""


class SegmentIndexes:
    """Reads the indexes of closed segments, and repairs them. Not thread-safe."""

    def __init__(self, index_interval_bytes: int, report: Report) -> None:
        """Rebuild missing or corrupt indexes with that interval, and `report` each one."""
        self._interval = index_interval_bytes
        self._report = report
        self._offset_indexes: dict[LogSegment, OffsetIndex] = {}
        self._latest: dict[LogSegment, int] = {}
        """The largest timestamps of segments whose batches were read for them."""
        self._built: _Built | None = None
        """The last rebuilt indexes: a reader of a corrupt segment needs them again and again."""

    def position(self, segment: LogSegment, offset: int) -> int:
        """Return where in the `.log` file the search for `offset` begins, in bytes from its start.

        Raises CorruptRecordError if the index does not show it, and the log is corrupt before `offset`.
        """
        try:
            entry = self._offset_index(segment).lookup(offset)
            if _leads_to_a_batch(segment, entry):
                return entry.position
            fault = "an entry does not lead to a batch that contains its offset"
        except CorruptIndexError as error:
            fault = error.reason
        except FileNotFoundError:
            fault = MISSING
        built = self._mend_offset_index(segment, fault)
        if built.error is not None and offset >= built.end_offset:
            raise built.error.with_traceback(None)
        return built.indexes.offset_index().lookup(offset).position

    def transaction_index(self, segment: LogSegment) -> TransactionIndex:
        """Return the transaction index; without a file it is empty.

        Raises CorruptRecordError if it is corrupt, and so is the log from which to rebuild it.
        """
        path = segment.transaction_index_path
        try:
            return TransactionIndex.read(path, segment.base_offset)
        except CorruptIndexError as error:
            rebuilt = rebuild_indexes(segment, index_interval_bytes=self._interval)
            write_transaction_index(segment, rebuilt.transaction_index)
            self._report(RecoveryEvent(path, error.reason, REBUILT))
            return TransactionIndex.read(path, segment.base_offset)

    def latest_timestamp(self, segment: LogSegment) -> int:
        """Return the largest timestamp (ms) of the records by the time index, -1 if none has one.

        Raises as `transaction_index` does.
        """
        if segment in self._latest:
            return self._latest[segment]
        path = segment.time_index_path
        try:
            index = TimeIndex.read(path, segment.base_offset)
        except CorruptIndexError as error:
            return self._mend_time_index(segment, error.reason)
        except FileNotFoundError:
            return self._mend_time_index(segment, MISSING)
        if index.timestamps.size:
            return self._witnessed(segment, int(index.timestamps[-1]), int(index.offsets[-1]))
        if self._whole(segment).latest.timestamp >= 0:
            return self._mend_time_index(segment, "it is empty")
        self._latest[segment] = NO_TIMESTAMP
        return NO_TIMESTAMP

    def confirmed_latest_timestamp(self, segment: LogSegment) -> int:
        """Return the largest timestamp (ms), from the batches when it is first requested.

        An index that ends too early is rebuilt. For a corrupt segment, its sound part and the time index both count.
        Raises as `transaction_index` does.
        """
        latest = self.latest_timestamp(segment)
        if segment in self._latest:
            return self._latest[segment]
        built = self._build(segment)
        found = built.indexes.latest.timestamp
        if found > latest and built.error is None:
            return self._mend_time_index(segment, f"a record is later than timestamp {latest}, its last entry")
        self._latest[segment] = max(latest, found)
        return self._latest[segment]

    def forget(self) -> None:
        """Drop all cached indexes: the segments have changed."""
        self._offset_indexes.clear()
        self._latest.clear()
        self._built = None

    def _offset_index(self, segment: LogSegment) -> OffsetIndex:
        if segment not in self._offset_indexes:
            index = OffsetIndex.read(segment.offset_index_path, segment.base_offset)
            self._keep(segment, index)
            if _ends_too_early(segment, index, self._interval):
                self._mend_offset_index(segment, "it ends too early")
        return self._offset_indexes[segment]

    def _mend_offset_index(self, segment: LogSegment, fault: str) -> _Built:
        """Rebuild the index; if the log is corrupt, keep the index, on disk and in the cache."""
        built = self._build(segment)
        if built.error is None:
            index = built.indexes.offset_index()
            replace_file(segment.offset_index_path, index.to_bytes())
            self._report(RecoveryEvent(segment.offset_index_path, fault, REBUILT))
            self._keep(segment, index)
        return built

    def _mend_time_index(self, segment: LogSegment, reason: str) -> int:
        indexes = self._whole(segment)
        replace_file(segment.time_index_path, indexes.time_index().to_bytes())
        self._report(RecoveryEvent(segment.time_index_path, reason, REBUILT))
        self._latest[segment] = indexes.latest.timestamp
        return self._latest[segment]

    def _witnessed(self, segment: LogSegment, timestamp: int, offset: int) -> int:
        """Return `timestamp` if the batch with `offset` has it, otherwise the largest one that the log shows."""
        try:
            batch = read_batches(segment.log_path, self.position(segment, offset), offset, max_bytes=1)
            if batch and read_batch_header(batch).max_timestamp == timestamp:
                return timestamp
        except CorruptRecordError:
            return timestamp
        if self._build(segment).error is not None:
            return timestamp
        return self._mend_time_index(segment, f"its last entry has timestamp {timestamp}, but no batch at {offset} has")

    def _whole(self, segment: LogSegment) -> IndexBuilder:
        """Return the indexes of a whole segment, which must not be corrupt."""
        built = self._build(segment)
        if built.error is not None:
            raise built.error.with_traceback(None)
        return built.indexes

    def _build(self, segment: LogSegment) -> _Built:
        if self._built is not None and self._built.segment == segment:
            return self._built
        indexes = IndexBuilder(segment.base_offset, self._interval)
        end_offset = segment.base_offset
        error: CorruptRecordError | None = None
        try:
            for _, batches in iterate_segment(segment.log_path, segment.base_offset):
                indexes.append(batches)
                end_offset = int(batches.last_offset[-1]) + 1
        except CorruptRecordError as broken:
            error = broken
        indexes.close()
        self._built = _Built(segment, indexes, end_offset, error)
        return self._built

    def _keep(self, segment: LogSegment, index: OffsetIndex) -> None:
        while len(self._offset_indexes) >= _OFFSET_INDEXES_KEPT:
            del self._offset_indexes[next(iter(self._offset_indexes))]
        self._offset_indexes[segment] = index


@dataclass(frozen=True, slots=True)
class _Built:
    """Indexes of the batches of `segment` up to `end_offset` (exclusive), before the batch that `error` names."""

    segment: LogSegment
    indexes: IndexBuilder
    end_offset: int
    error: CorruptRecordError | None


def _ends_too_early(segment: LogSegment, index: OffsetIndex, index_interval_bytes: int) -> bool:
    """Return whether a batch begins too many intervals after the last entry."""
    positions = np.concatenate(([0], index.positions))
    interval = int(np.diff(positions).max(initial=index_interval_bytes))
    position = int(positions[-1])
    size, end = segment.size(), position + _INTERVALS_BEHIND * interval
    if size <= end:
        return False
    with open_regular(segment.log_path) as file:
        while position <= end:
            file.seek(position)
            try:
                position += read_batch_header(file.read(BATCH_OVERHEAD)).size
            except CorruptRecordError:
                return False
    return position < size


def _leads_to_a_batch(segment: LogSegment, entry: OffsetPosition) -> bool:
    """Return whether the batch at the entry's position begins at or before the entry's offset."""
    if not entry.position:
        return True
    with open_unbuffered(segment.log_path) as file:
        file.seek(entry.position)
        header = file.read(BATCH_OVERHEAD)
    try:
        return read_batch_header(header).base_offset <= entry.offset
    except CorruptRecordError:
        return False
