"""Segments out of fetched batches: their files and indexes, and when a broker would roll them.

Source: LogSegment.shouldRoll of released Kafka.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tiered_storage.clock import Clock
from tiered_storage.kafka_log.files.log_segment import LogSegment, producer_snapshot_path
from tiered_storage.kafka_log.indexes.index_builder import IndexBuilder
from tiered_storage.kafka_log.indexes.offset_index import ENTRY as OFFSET_ENTRY
from tiered_storage.kafka_log.indexes.time_index import ENTRY as TIME_ENTRY
from tiered_storage.kafka_log.indexes.transaction_index import AbortedTxn, encode_aborted_transactions
from tiered_storage.kafka_log.kernels.constants import INT32_MAX
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.remote_log.source.log_directory_segment import seen_producers_path
from tiered_storage.remote_log.source.partition_log import RollRules

_SPARE = ".spare"
_WRITE_BYTES = 1 << 20
"""The size of one write: from 2 MiB on, Linux uses huge pages for the page cache, which is much slower."""


class SegmentBeingRolled:
    """One segment out of fetched batches: it takes them, in order, until a broker would roll. For one thread.

    Headers come as columns, straight out of the buffer that the answer was received into. To write over the pages of a
    file that is no longer needed costs a third of what new pages do.
    """

    def __init__(self, files: LogSegment, rules: RollRules, clock: Clock, spare: Path | None = None) -> None:
        """Create the `.log` file of `files`, out of the file `spare` if there is one. Raises OSError."""
        self.files = files
        self.size = 0
        self._rules = rules
        self._clock = clock
        self._opened_at = clock()
        self._first_timestamp: int | None = None
        self._indexes = IndexBuilder(files.base_offset, rules.index_interval_bytes)
        self._aborted: list[AbortedTxn] = []
        if spare is not None:
            spare.rename(files.log_path)
        self._descriptor = os.open(files.log_path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def room_for(self, batches: BatchTable) -> int:
        """Return how many of `batches`, from their first on, still belong here; 0: a broker would roll before them.

        More may belong here than that: ask again after `append`. A first batch larger than a segment belongs here.
        """
        rolls = self.size + np.cumsum(batches.size) > self._rules.segment_bytes
        rolls |= batches.last_offset - self.files.base_offset > INT32_MAX
        rolls |= self._ages(batches) > self._rules.segment_ms
        room = self._free_entries()
        if not self.size:
            rolls[0], room = False, max(room, 1)
        return min(int(rolls.argmax()) if rolls.any() else len(batches), room)

    def append(self, records: memoryview, batches: BatchTable, aborted: Sequence[AbortedTxn]) -> None:
        """Append `batches`, whose bytes are `records`, and the transactions that they abort. Raises OSError."""
        if self._first_timestamp is None:
            self._first_timestamp = int(batches.max_timestamp[0])
        self._indexes.append(replace(batches, position=batches.position - batches.position[0] + self.size))
        self._aborted += aborted
        self.size += len(records)
        while records:
            records = records[os.write(self._descriptor, records[:_WRITE_BYTES]) :]

    def finish(self) -> None:
        """Write the indexes of a closed segment beside it, and close it. Raises OSError."""
        os.ftruncate(self._descriptor, self.size)
        self.close()
        self._indexes.close()
        self.files.offset_index_path.write_bytes(self._indexes.offset_index().to_bytes())
        self.files.time_index_path.write_bytes(self._indexes.time_index().to_bytes())
        if self._aborted:
            self.files.transaction_index_path.write_bytes(encode_aborted_transactions(self._aborted))

    def close(self) -> None:
        """Close the file; repeated calls are harmless."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _ages(self, batches: BatchTable) -> NDArray[np.int64]:
        """Return the ms between the first batch and each of `batches`; since the segment began if they have no time."""
        first = int(batches.max_timestamp[0]) if self._first_timestamp is None else self._first_timestamp
        if first >= 0:
            ages: NDArray[np.int64] = batches.max_timestamp - first
            return ages
        return np.full(len(batches), self._clock() - self._opened_at)

    def _free_entries(self) -> int:
        """Return for how many batches both indexes have room, if each gets an entry, as the time index does last."""
        most_offsets = self._rules.segment_index_bytes // OFFSET_ENTRY.itemsize
        most_times = self._rules.segment_index_bytes // TIME_ENTRY.itemsize - 1
        return max(0, min(most_offsets - self._indexes.offset_entry_count, most_times - self._indexes.time_entry_count))


class RolledFiles:
    """The files in the `directory` of one log: of its closed segments, and one that the next is written over.

    For one thread at a time, `drop_spare` and `take_spare` for any.
    """

    def __init__(self, directory: Path) -> None:
        """Create nothing yet."""
        self.directory = directory
        self.have_ended = False
        """Whether no further segment is rolled."""
        self._kept: deque[LogSegment] = deque()
        """Closed segments of which any file is there."""
        self._released: set[int] = set()
        """The base offsets of segments that were released."""
        self._spares: list[Path] = []
        """The file that the next segment is written over, if there is one."""

    def hand_out(self, segment: LogSegment) -> None:
        """Keep the files of a closed segment until it is released."""
        self._kept.append(segment)

    def release(self, base_offset: int, *, is_reused: bool) -> None:
        """Remove the files of a segment that was handed out, but keep the producers at its start while an earlier
        segment is copied.

        With `is_reused`, the next segment overwrites its `.log` file, unless an earlier segment is still being copied.
        Clear it if a thread of a failed copy may still read the file, or if no other segment follows.
        """
        files, is_oldest = LogSegment(base_offset, self.directory), False
        self._released.add(base_offset)
        while self._kept and self._kept[0].base_offset in self._released:
            first = self._kept.popleft()
            is_oldest = is_oldest or first == files
            _remove(producer_snapshot_path(first.directory, first.base_offset), seen_producers_path(first))
        _remove(*files.index_paths)
        if is_reused and is_oldest and not self._spares and not self.have_ended:
            # Each under its own name: another thread may be removing the one before.
            self._spares.append(files.log_path.rename(files.log_path.with_suffix(_SPARE)))
        else:
            _remove(files.log_path)

    def drop_spare(self) -> None:
        """Remove the file that the next segment would be written over."""
        if (spare := self.take_spare()) is not None:
            _remove(spare)

    def take_spare(self) -> Path | None:
        """Return the file to write the next segment over, once; None if there is none."""
        with suppress(IndexError):
            return self._spares.pop()
        return None

    def end(self) -> None:
        """Keep no file for a next segment from now on."""
        self.have_ended = True
        self.drop_spare()


def _remove(*paths: Path) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
