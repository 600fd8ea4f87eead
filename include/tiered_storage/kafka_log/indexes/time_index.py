"""Kafka's time index: from a timestamp to the offset in a segment where the search for it begins.

`{base offset, 20 digits}.timeindex` is a run of 12-byte entries, big-endian, both fields rising:

    timestamp         int64   ms since the epoch, the largest one of the records up to `offset`
    relative offset   int32   offset - base offset

An entry (T, O) promises that every record later than T comes after O. The index of an active segment is
preallocated: zeros follow its last entry.

Source: KIP-33; released Kafka (the layout has not changed since 0.10.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tiered_storage.errors import CorruptIndexError
from tiered_storage.kafka_log.indexes.index_file import parse_entries, read_entries

ENTRY = np.dtype([("timestamp", ">i8"), ("relative_offset", ">i4")])


@dataclass(frozen=True, slots=True)
class TimestampOffset:
    """A point in a log: `timestamp` in ms since the epoch (-1: before any record) and an absolute `offset`."""

    timestamp: int
    offset: int


@dataclass(frozen=True, slots=True)
class TimeIndex:
    """The time index of one segment in memory: 12 bytes per entry, at most a few MiB."""

    base_offset: int
    timestamps: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @classmethod
    def read(cls, path: Path, base_offset: int) -> Self:
        """Read the entries of `path`, without the zeros of a preallocated file.

        Raises CorruptIndexError if an entry is torn, negative, or lower than the one before it.
        """
        return cls._of(read_entries(path, ENTRY), path, base_offset)

    @classmethod
    def parse(cls, raw: bytes, source: Path | str, base_offset: int) -> Self:
        """Return the index in `raw`, the content of a file; raises as `read`, naming `source`."""
        return cls._of(parse_entries(raw, source, ENTRY), source, base_offset)

    @classmethod
    def _of(cls, entries: NDArray[Any], source: Path | str, base_offset: int) -> Self:
        timestamps = entries["timestamp"].astype(np.int64)
        offsets = entries["relative_offset"].astype(np.int64) + base_offset
        negative = np.flatnonzero((timestamps < 0) | (offsets < base_offset))
        if negative.size:
            raise CorruptIndexError(source, int(negative[0]) * ENTRY.itemsize, "the entry has a negative field")
        falling = np.flatnonzero((timestamps[1:] < timestamps[:-1]) | (offsets[1:] < offsets[:-1]))
        if falling.size:
            position = (int(falling[0]) + 1) * ENTRY.itemsize
            raise CorruptIndexError(source, position, "the entry is lower than the one before it")
        return cls(base_offset, timestamps, offsets)

    def lookup(self, timestamp: int) -> TimestampOffset:
        """Return the last entry at or before `timestamp` (ms), or (-1, base offset) if there is none."""
        i = int(np.searchsorted(self.timestamps, timestamp, side="right")) - 1
        if i < 0:
            return TimestampOffset(-1, self.base_offset)
        return TimestampOffset(int(self.timestamps[i]), int(self.offsets[i]))

    def to_bytes(self) -> bytes:
        """Return the file's content: its entries and no padding."""
        entries = np.empty(self.timestamps.size, ENTRY)
        entries["timestamp"] = self.timestamps
        entries["relative_offset"] = self.offsets - self.base_offset
        return entries.tobytes()
