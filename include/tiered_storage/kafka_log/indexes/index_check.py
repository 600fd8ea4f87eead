"""Check a segment's indexes against its batches: every entry must be true, however dense or sparse the entries are.

An offset index entry (O, P) is true if a batch begins at P, that batch or a later one ends with O, and the next entry's
position is larger. A time index entry (T, O) is true if T is the largest timestamp of the records up to O. Which
batches have entries depends on settings and on how a broker appended them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tiered_storage.errors import CorruptIndexError
from tiered_storage.kafka_log.indexes.offset_index import ENTRY as OFFSET_ENTRY
from tiered_storage.kafka_log.indexes.offset_index import OffsetIndex
from tiered_storage.kafka_log.indexes.time_index import ENTRY as TIME_ENTRY
from tiered_storage.kafka_log.indexes.time_index import TimeIndex
from tiered_storage.kafka_log.records.segment_scan import BatchTable

NO_TIMESTAMP = -1


class OffsetIndexCheck:
    """Checks one offset index; feed it the batches of its segment in order and without a gap."""

    def __init__(self, path: Path | str, index: OffsetIndex) -> None:
        self._path = path
        self._offsets = index.offsets
        self._positions = index.positions
        self._limits = np.append(index.positions[1:], np.iinfo(np.int64).max)
        self._begun = 0
        self._ended = 0

    def feed(self, batches: BatchTable) -> None:
        """Take the next batches of the segment.

        Raises CorruptIndexError at the first entry that they contradict.
        """
        if not batches.position.size:
            return
        begun = int(np.searchsorted(self._positions, batches.position[-1], side="right"))
        positions = self._positions[self._begun : begun]
        at = np.maximum(np.searchsorted(batches.position, positions, side="right") - 1, 0)
        self._refuse(self._begun, batches.position[at] != positions, "no batch begins at the entry's position")
        is_earlier = batches.last_offset[at] > self._offsets[self._begun : begun]
        self._refuse(self._begun, is_earlier, "the entry's offset lies before the entry's position")
        self._begun = begun

        ended = int(np.searchsorted(self._offsets, batches.last_offset[-1], side="right"))
        offsets = self._offsets[self._ended : ended]
        of = np.searchsorted(batches.last_offset, offsets)
        self._refuse(self._ended, batches.last_offset[of] != offsets, "no batch ends with the entry's offset")
        beyond = batches.position[of] >= self._limits[self._ended : ended]
        self._refuse(self._ended, beyond, "the entry's offset lies at the next entry's position or after it")
        self._ended = ended

    def finish(self) -> None:
        """End the check. Raises CorruptIndexError if entries point past the batches."""
        known = min(self._begun, self._ended)
        self._refuse(known, np.ones(self._offsets.size - known, bool), "the entry points past the end of the log")

    def _refuse(self, first: int, false: NDArray[np.bool_], reason: str) -> None:
        _refuse_first(self._path, first, false, OFFSET_ENTRY.itemsize, reason)


class TimeIndexCheck:
    """Checks one time index; feed it the batches of its segment in order and without a gap."""

    def __init__(self, path: Path | str, index: TimeIndex) -> None:
        self._path = path
        self._timestamps = index.timestamps
        self._offsets = index.offsets
        self._checked = 0
        self._latest = NO_TIMESTAMP

    def feed(self, batches: BatchTable) -> None:
        """Take the next batches of the segment.

        Raises CorruptIndexError at the first entry that they contradict.
        """
        if not batches.position.size:
            return
        end = int(np.searchsorted(self._offsets, batches.last_offset[-1], side="right"))
        offsets, timestamps = self._offsets[self._checked : end], self._timestamps[self._checked : end]
        latest = np.maximum.accumulate(np.concatenate(([self._latest], batches.max_timestamp)))
        # An entry's offset may lie within a batch: then later records of that batch do not count.
        whole = latest[np.searchsorted(batches.last_offset, offsets, side="right")]
        begun = latest[np.searchsorted(batches.base_offset, offsets, side="right")]
        self._refuse(timestamps < whole, "a record up to the entry's offset is later than the entry's timestamp")
        self._refuse(timestamps > begun, "no record up to the entry's offset is as late as the entry's timestamp")
        self._checked = end
        self._latest = int(latest[-1])

    def finish(self) -> None:
        """End the check. Raises CorruptIndexError if entries point past the batches."""
        self._refuse(np.ones(self._offsets.size - self._checked, bool), "the entry points past the end of the log")

    def _refuse(self, false: NDArray[np.bool_], reason: str) -> None:
        _refuse_first(self._path, self._checked, false, TIME_ENTRY.itemsize, reason)


def _refuse_first(path: Path | str, first: int, false: NDArray[np.bool_], entry_bytes: int, reason: str) -> None:
    entries = np.flatnonzero(false)
    if entries.size:
        position = (first + int(entries[0])) * entry_bytes
        raise CorruptIndexError(path, position, f"the index disagrees with its log: {reason}")
