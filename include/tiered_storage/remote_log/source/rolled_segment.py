"""One closed segment out of fetched batches: its files and indexes, and when a broker would roll it.

Source: LogSegment.shouldRoll of released Kafka.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tiered_storage.clock import Clock
from tiered_storage.kafka_log.files.log_segment import LogSegment
from tiered_storage.kafka_log.indexes.index_builder import IndexBuilder
from tiered_storage.kafka_log.indexes.offset_index import ENTRY as OFFSET_ENTRY
from tiered_storage.kafka_log.indexes.time_index import ENTRY as TIME_ENTRY
from tiered_storage.kafka_log.indexes.transaction_index import AbortedTxn, encode_aborted_transactions
from tiered_storage.kafka_log.kernels.constants import INT32_MAX
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.remote_log.source.partition_log import RollRules

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
