"""Kafka's offset index: from an offset to the position in a segment where the search for it begins.

`{base offset, 20 digits}.index` is a run of 8-byte entries, big-endian, both fields rising:

    relative offset   int32   offset - base offset; the last offset of a batch
    position          int32   bytes from the start of the `.log` file, where a batch begins

An entry (O, P) promises that offset O and all later ones are at P or after it. P is the start of the batch that ends
with O; an older broker that appended several batches at once wrote the start of the first of them. The index of an
active segment is preallocated: zeros follow its last entry.

Source: released Kafka (the layout has not changed since 0.8).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tiered_storage.errors import CorruptIndexError
from tiered_storage.kafka_log.indexes.index_file import parse_entries, read_entries

ENTRY = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])


@dataclass(frozen=True, slots=True)
class OffsetPosition:
    """An absolute `offset` and its `position` in the segment, in bytes from the start of the `.log` file."""

    offset: int
    position: int


@dataclass(frozen=True, slots=True)
class OffsetIndex:
    """The offset index of one segment in memory: 8 bytes per entry, at most a few MiB."""

    base_offset: int
    offsets: NDArray[np.int64]
    positions: NDArray[np.int64]

    @classmethod
    def read(cls, path: Path, base_offset: int) -> Self:
        """Read the entries of `path`, without the zeros of a preallocated file.

        Raises CorruptIndexError if an entry is torn, negative, or does not rise above the one before it.
        """
        return cls._of(read_entries(path, ENTRY), path, base_offset)

    @classmethod
    def parse(cls, raw: bytes, source: Path | str, base_offset: int) -> Self:
        """Return the index in `raw`, the content of a file; raises as `read`, naming `source`."""
        return cls._of(parse_entries(raw, source, ENTRY), source, base_offset)

    @classmethod
    def _of(cls, entries: NDArray[Any], source: Path | str, base_offset: int) -> Self:
        offsets = entries["relative_offset"].astype(np.int64) + base_offset
        positions = entries["position"].astype(np.int64)
        negative = np.flatnonzero((offsets < base_offset) | (positions < 0))
        if negative.size:
            raise CorruptIndexError(source, int(negative[0]) * ENTRY.itemsize, "the entry has a negative field")
        falling = np.flatnonzero((np.diff(offsets) <= 0) | (np.diff(positions) <= 0))
        if falling.size:
            position = (int(falling[0]) + 1) * ENTRY.itemsize
            raise CorruptIndexError(source, position, "the entry does not rise above the one before it")
        return cls(base_offset, offsets, positions)

    def lookup(self, offset: int) -> OffsetPosition:
        """Return the last entry at or before `offset`, or (base offset, 0) if there is none."""
        i = int(np.searchsorted(self.offsets, offset, side="right")) - 1
        if i < 0:
            return OffsetPosition(self.base_offset, 0)
        return OffsetPosition(int(self.offsets[i]), int(self.positions[i]))

    def to_bytes(self) -> bytes:
        """Return the file's content: its entries and no padding."""
        entries = np.empty(self.offsets.size, ENTRY)
        entries["relative_offset"] = self.offsets - self.base_offset
        entries["position"] = self.positions
        return entries.tobytes()
