"""Search local segments by timestamp.

A time index only shows where to begin: this reads everything after its last valid entry, so that a missing, broken or
truncated index hides no record.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tiered_storage.errors import CorruptIndexError, CorruptRecordError
from tiered_storage.kafka_log.columnar.decoder import ColumnDecoder, RecordRange
from tiered_storage.kafka_log.indexes.time_index import TimeIndex
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.remote_log.read.read_values import NO_TIMESTAMP, FoundOffset
from tiered_storage.remote_log.source.segment_source import OpenSegment


@dataclass(frozen=True, slots=True, eq=False)
class ScannedBatches:
    """Batches and their headers; the first of `content` begins at `position` (bytes) of `source`."""

    content: bytes | memoryview
    table: BatchTable
    source: str
    position: int

    def first_at_or_after(self, timestamp: int, first_offset: int, end_offset: int) -> FoundOffset | None:
        """Return the first record of [`first_offset`, `end_offset`) whose timestamp (ms) is at least `timestamp`.

        Raises CorruptRecordError.
        """
        table = self.table
        may_have = (table.max_timestamp >= timestamp) & (table.last_offset >= first_offset)
        may_have &= table.base_offset < end_offset
        within = RecordRange(first_offset, end_offset, first_timestamp=timestamp)
        for row, found in self._decoded(may_have, ["offset", "timestamp"], within):
            offset, time = (column[0].cast(pa.int64()).as_py() for column in found.columns)
            return FoundOffset(offset, time, int(table.partition_leader_epoch[row]))
        return None

    def largest(self, first_offset: int, end_offset: int) -> int:
        """Return the largest timestamp (ms) in [`first_offset`, `end_offset`); -1: there is none.

        Raises CorruptRecordError.
        """
        table = self.table
        is_inside = (table.base_offset >= first_offset) & (table.last_offset < end_offset)
        inside = table.max_timestamp[is_inside & (table.record_count > 0)]
        largest = int(inside.max()) if inside.size else NO_TIMESTAMP
        # If the range cuts a batch, its header does not show which side has its largest timestamp.
        is_cut = ~is_inside & (table.last_offset >= first_offset) & (table.base_offset < end_offset)
        within = RecordRange(first_offset, end_offset, first_timestamp=largest + 1)
        for _, found in self._decoded(is_cut & (table.max_timestamp > largest), ["timestamp"], within):
            largest = max(largest, pc.max(found.column(0).cast(pa.int64())).as_py())
        return largest

    def _decoded(
        self, wanted: NDArray[np.bool_], columns: list[str], within: RecordRange
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield each of the `wanted` batches' rows in `table`, and its records `within` the range as columns: a small
        batch may decompress to very many records."""
        decoder = ColumnDecoder(self.source, columns, within)
        for row in np.flatnonzero(wanted).tolist():
            alone = self.table.rows(row, row + 1)
            begin = int(alone.position[0]) - self.position
            for found in decoder.decode(memoryview(self.content)[begin : begin + int(alone.size[0])], alone):
                if found.num_rows:
                    yield row, found


MOST_KEPT = 1000
_WINDOW_BYTES = 1 << 20


def first_at_or_after(segment: OpenSegment, timestamp: int, first_offset: int, end_offset: int) -> FoundOffset | None:
    """Return the first record of [`first_offset`, `end_offset`) in `segment` whose timestamp is at least `timestamp`.

    Raises FileNotFoundError if the segment is gone, CorruptRecordError.
    """
    known = segment.position_before(_last_offset_before(segment, timestamp))
    begin = max(known, segment.position_before(first_offset))
    for batches in _batches(segment, begin, end_offset):
        found = batches.first_at_or_after(timestamp, first_offset, end_offset)
        if found is not None:
            return found
    return None


def largest(segment: OpenSegment, first_offset: int, end_offset: int) -> int:
    """Return the largest timestamp (ms) of `segment` in [`first_offset`, `end_offset`); -1: there is none.

    Raises as first_at_or_after.
    """
    # No timestamp up to an entry's offset is larger than the entry's. So if a later record has at least that one, the
    # largest of the later ones is the largest of all. If not, search after an earlier entry.
    for known, offset in _entries_before(segment, end_offset):
        found = _largest_from(segment, max(offset, first_offset), first_offset, end_offset)
        if found >= known or offset <= first_offset:
            return found
    return _largest_from(segment, first_offset, first_offset, end_offset)


class LargestTimestamps:
    """Finds the largest timestamps of local segments, and caches them until the files change. Thread-safe.

    If timestamps do not rise, the time index ends long before its segment, and the search reads much.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, int, int], tuple[Hashable, int]] = OrderedDict()

    def find(self, segment: OpenSegment, first_offset: int, end_offset: int) -> int:
        """Return the result of `largest`, and raise what it raises."""
        state = segment.state()
        asked = (segment.name, first_offset, end_offset)
        with self._lock:
            kept = self._kept.get(asked)
        if kept is not None and kept[0] == state:
            return kept[1]
        found = largest(segment, first_offset, end_offset)
        with self._lock:
            self._kept[asked] = (state, found)
            self._kept.move_to_end(asked)
            if len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return found


def _largest_from(segment: OpenSegment, begin_offset: int, first_offset: int, end_offset: int) -> int:
    """Return the largest timestamp (ms) in [`first_offset`, `end_offset`), of the batches from `begin_offset` on."""
    scanned = _batches(segment, segment.position_before(begin_offset), end_offset)
    return max((batches.largest(first_offset, end_offset) for batches in scanned), default=NO_TIMESTAMP)


def _batches(segment: OpenSegment, begin: int, end_offset: int) -> Iterator[ScannedBatches]:
    """Yield the batches from `begin` (bytes) on that begin below `end_offset`; if no batch begins at `begin`, from the
    start of the segment."""
    try:
        yield from _scanned(segment, begin, end_offset)
    except CorruptRecordError as error:
        if not begin or error.position != begin:
            raise
        yield from _scanned(segment, 0, end_offset)


def _scanned(segment: OpenSegment, begin: int, end_offset: int) -> Iterator[ScannedBatches]:
    for window, table in segment.windows(begin, window_bytes=_WINDOW_BYTES, verify_crc=False):
        if int(table.base_offset[0]) >= end_offset:
            return
        yield ScannedBatches(window, table, segment.name, int(table.position[0]))
        if int(table.last_offset[-1]) + 1 >= end_offset:
            return


def _last_offset_before(segment: OpenSegment, timestamp: int) -> int:
    """Return an offset up to which, inclusive, every record is earlier than `timestamp`, by the time index."""
    index = _time_index(segment)
    return segment.base_offset if index is None else index.lookup(timestamp - 1).offset


def _entries_before(segment: OpenSegment, end_offset: int) -> Iterator[tuple[int, int]]:
    """Yield timestamps and offsets of time index entries below `end_offset`, backwards in growing steps."""
    index = _time_index(segment)
    if index is None:
        return
    count = at = int(np.searchsorted(index.offsets, end_offset, side="left"))
    step = 1
    while (at := at - step) >= 0:
        yield int(index.timestamps[at]), int(index.offsets[at])
        step = count - at


def _time_index(segment: OpenSegment) -> TimeIndex | None:
    try:
        return segment.time_index.read()
    except CorruptIndexError:
        return None
