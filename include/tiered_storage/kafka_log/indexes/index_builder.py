"""Build a segment's offset index and time index from its batches, with the entries that a broker writes on append.

If more than `index_interval_bytes` (index.interval.bytes, 4096 unless set) lie between the batch with the last entry
and the next batch, the offset index gets (last offset, position) of that next batch. The time index gets the largest
timestamp so far, including that batch's, with the last offset of the first batch that had it, unless its last entry is
as late. When a segment is closed, the time index gets the largest timestamp in the same way.

Source: LogSegment of released Kafka 4.x, on append and on recovery alike. Earlier brokers treated a whole append as
one unit, so their followers' indexes are sparser.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tiered_storage.kafka_log.indexes.offset_index import OffsetIndex
from tiered_storage.kafka_log.indexes.time_index import TimeIndex, TimestampOffset
from tiered_storage.kafka_log.records.segment_scan import BatchTable

INDEX_INTERVAL_BYTES = 4096


class IndexBuilder:
    """Collects the entries of one segment's indexes; feed it the batches in order and without a gap."""

    def __init__(self, base_offset: int, index_interval_bytes: int = INDEX_INTERVAL_BYTES) -> None:
        self._base_offset = base_offset
        self._interval = index_interval_bytes
        self._indexed_position = 0
        self._latest = TimestampOffset(-1, base_offset)
        self._indexed_timestamp = -1
        self._offset_entries: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._time_entries: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self.offset_entry_count = 0
        self.time_entry_count = 0

    @property
    def latest(self) -> TimestampOffset:
        """The largest timestamp so far (ms; -1: none) and the last offset of the first batch that has it."""
        return self._latest

    def append(self, batches: BatchTable) -> None:
        """Add the next batches of the segment; `position` counts from the start of its `.log` file."""
        if not batches.position.size:
            return
        indexed = self._choose(batches.position)
        timestamps, offsets = self._running_maximum(batches)
        self._latest = TimestampOffset(int(timestamps[-1]), int(offsets[-1]))
        if indexed.size:
            self._offset_entries.append((batches.last_offset[indexed], batches.position[indexed]))
            self.offset_entry_count += indexed.size
            self._append_times(timestamps[indexed], offsets[indexed])

    def close(self) -> None:
        """Add the largest timestamp to the time index, as when the segment is rolled; repeated calls are harmless."""
        self._append_times(np.array([self._latest.timestamp]), np.array([self._latest.offset]))

    def offset_index(self) -> OffsetIndex:
        """Return the offset index of the batches so far."""
        return OffsetIndex(self._base_offset, *_joined(self._offset_entries))

    def time_index(self) -> TimeIndex:
        """Return the time index of the batches so far; for a closed segment, call `close` first."""
        return TimeIndex(self._base_offset, *_joined(self._time_entries))

    def closed_time_index(self) -> TimeIndex:
        """Return the time index as it would be after `close`, without closing."""
        index = self.time_index()
        if self._latest.timestamp <= self._indexed_timestamp:
            return index
        timestamps = np.append(index.timestamps, self._latest.timestamp)
        return TimeIndex(self._base_offset, timestamps, np.append(index.offsets, self._latest.offset))

    def until(self, position: int) -> tuple[IndexBuilder, int]:
        """Return a builder in the state of this one at its last entry before `position` (bytes), and that entry's
        position.

        Continue with the batches from there on, including the one with the entry. Without such an entry, start at 0.
        """
        earlier = IndexBuilder(self._base_offset, self._interval)
        offsets, positions = _joined(self._offset_entries)
        count = int(np.searchsorted(positions, position))
        if not count:
            return earlier, 0
        earlier._offset_entries = [(offsets[:count], positions[:count])]
        earlier.offset_entry_count = count
        earlier._indexed_position = int(positions[count - 1])
        timestamps, latest_offsets = _joined(self._time_entries)
        # At each entry of the offset index, the time index got the latest timestamp unless it already had it.
        count = int(np.searchsorted(latest_offsets, offsets[count - 1], side="right"))
        if count:
            earlier._time_entries = [(timestamps[:count], latest_offsets[:count])]
            earlier.time_entry_count = count
            earlier._latest = TimestampOffset(int(timestamps[count - 1]), int(latest_offsets[count - 1]))
            earlier._indexed_timestamp = earlier._latest.timestamp
        return earlier, earlier._indexed_position

    def _choose(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which batches get an entry: from each of them, the next is the first one beyond the interval."""
        following = np.searchsorted(positions, positions + self._interval, side="right").tolist()
        first = int(np.searchsorted(positions, self._indexed_position + self._interval, side="right"))
        chosen = []
        while first < len(following):
            chosen.append(first)
            first = following[first]
        if chosen:
            self._indexed_position = int(positions[chosen[-1]])
        return np.array(chosen, np.int64)

    def _running_maximum(self, batches: BatchTable) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return, after each batch, the largest timestamp so far and the last offset of the first batch that had it."""
        timestamps = np.maximum.accumulate(np.maximum(batches.max_timestamp, self._latest.timestamp))
        before = np.concatenate(([self._latest.timestamp], timestamps[:-1]))
        latest = np.maximum.accumulate(np.where(timestamps > before, np.arange(timestamps.size), -1))
        return timestamps, np.where(latest < 0, self._latest.offset, batches.last_offset[latest])

    def _append_times(self, timestamps: NDArray[np.int64], offsets: NDArray[np.int64]) -> None:
        """Append the entries, in order of time, that are later than the entry before them."""
        later = timestamps > np.concatenate(([self._indexed_timestamp], timestamps[:-1]))
        if later.any():
            self._time_entries.append((timestamps[later], offsets[later]))
            self.time_entry_count += int(later.sum())
            self._indexed_timestamp = int(timestamps[-1])


def _joined(parts: list[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Concatenate two columns that were collected in parts."""
    if not parts:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return np.concatenate([first for first, _ in parts]), np.concatenate([second for _, second in parts])
