"""From an offset or a timestamp to a chunk: remoteOffsetIndex and remoteTimeIndex, which point into the remoteLogIndex.

Both are runs of fixed entries as in Kafka's `.index` and `.timeindex`, big-endian, all fields rising:

    remoteOffsetIndex   relative offset   int32   offset - base offset, the first offset of a chunk
                        position          int32   where its entry begins in the remoteLogIndex, bytes

    remoteTimeIndex     timestamp         int64   ms; the last timestamp of a chunk that has a later one than all before
                        position          int32   where its entry begins in the remoteLogIndex, bytes

Every chunk has an entry in the first. In the second only a chunk with a later timestamp than all before has one, so the
first chunk with a record at or after a timestamp is that of the first entry at or after it.

Source: KIP-405, drafts 27 to 85, section Remote Log Indexes.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tiered_storage.errors import CorruptIndexError
from tiered_storage.remote_log.indexes.remote_log_index import RemoteLogIndexEntry, read_entry

OFFSET_ENTRY = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])
TIME_ENTRY = np.dtype([("timestamp", ">i8"), ("position", ">i4")])


@dataclass(frozen=True, slots=True, eq=False)
class RemoteIndexes:
    """The remote index trio of one segment, for look-ups; entries of the remoteLogIndex are parsed on demand."""

    source: str
    base_offset: int
    log_index: bytes
    first_offsets: NDArray[np.int64]
    offset_positions: NDArray[np.int64]
    timestamps: NDArray[np.int64]
    time_positions: NDArray[np.int64]

    @classmethod
    def parse(cls, source: str, base_offset: int, log_index: bytes, offset_index: bytes, time_index: bytes) -> Self:
        """Read the three indexes of the segment that begins at `base_offset`; errors name `source`.

        Raises CorruptIndexError if an entry is torn, negative, does not rise, or points past the remoteLogIndex.
        """
        by_offset = _entries(
            offset_index, OFFSET_ENTRY, "relative_offset", len(log_index), f"{source}: remoteOffsetIndex"
        )
        by_time = _entries(time_index, TIME_ENTRY, "timestamp", len(log_index), f"{source}: remoteTimeIndex")
        if log_index and not len(by_offset):
            raise CorruptIndexError(f"{source}: remoteOffsetIndex", 0, "it is empty, and the remoteLogIndex is not")
        return cls(
            source,
            base_offset,
            log_index,
            by_offset["relative_offset"].astype(np.int64) + base_offset,
            by_offset["position"].astype(np.int64),
            by_time["timestamp"].astype(np.int64),
            by_time["position"].astype(np.int64),
        )

    def chunk_for_offset(self, offset: int) -> RemoteLogIndexEntry | None:
        """Return the chunk that holds `offset`, or else the first one after it; None past the last.

        Raises CorruptIndexError if the indexes do not agree.
        """
        # NumPy's search would let go of the GIL, and wait for it, at each chunk of a read.
        i = max(0, bisect_right(self.first_offsets, offset) - 1)
        while i < self.first_offsets.size:
            entry = self._entry(int(self.offset_positions[i]))
            if entry.first_offset != self.first_offsets[i]:
                raise self._disagreement(
                    "remoteOffsetIndex",
                    i * OFFSET_ENTRY.itemsize,
                    f"offset {self.first_offsets[i]} points to the chunk from {entry.first_offset}",
                )
            if entry.last_offset >= offset:
                return entry
            i += 1
        return None

    def chunk_for_timestamp(self, timestamp: int) -> RemoteLogIndexEntry | None:
        """Return the first chunk with a record at or after `timestamp` (ms), or None.

        Raises CorruptIndexError if the indexes do not agree.
        """
        i = int(np.searchsorted(self.timestamps, timestamp, side="left"))
        if i == self.timestamps.size:
            return None
        entry = self._entry(int(self.time_positions[i]))
        if entry.last_timestamp != self.timestamps[i]:
            raise self._disagreement(
                "remoteTimeIndex",
                i * TIME_ENTRY.itemsize,
                f"timestamp {self.timestamps[i]} points to a chunk whose last one is {entry.last_timestamp}",
            )
        return entry

    def _entry(self, position: int) -> RemoteLogIndexEntry:
        return read_entry(self.log_index, position, f"{self.source}: remoteLogIndex")[0]

    def _disagreement(self, index: str, position: int, reason: str) -> CorruptIndexError:
        return CorruptIndexError(f"{self.source}: {index}", position, reason)


def _entries(raw: bytes, entry: np.dtype[np.void], key: str, log_index_size: int, source: str) -> NDArray[Any]:
    """Return the entries of an index, where `key` and positions rise and lie in range."""
    if len(raw) % entry.itemsize:
        raise CorruptIndexError(source, len(raw), f"{len(raw)} bytes are not a whole number of entries")
    entries = np.frombuffer(raw, entry)
    keys = entries[key].astype(np.int64)
    positions = entries["position"].astype(np.int64)
    outside = np.flatnonzero((keys < 0) | (positions < 0) | (positions >= log_index_size))
    if outside.size:
        raise CorruptIndexError(
            source,
            int(outside[0]) * entry.itemsize,
            f"the entry lies outside a remoteLogIndex of {log_index_size} bytes",
        )
    falling = np.flatnonzero((np.diff(keys) <= 0) | (np.diff(positions) <= 0))
    if falling.size:
        raise CorruptIndexError(
            source, (int(falling[0]) + 1) * entry.itemsize, "the entry does not rise above the one before it"
        )
    return entries
