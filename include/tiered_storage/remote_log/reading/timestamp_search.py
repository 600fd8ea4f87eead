"""Looks for timestamps within scanned batches: exact, also inside of compressed ones.

A header's largest timestamp says which batch has the record; which record it is, only the batch itself can say. So a
batch is decoded where its header promises something, or where a range begins or ends inside of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tiered_storage.kafka_log.batch_table import BatchTable
from tiered_storage.kafka_log.record import Record
from tiered_storage.kafka_log.record_batch import read_records
from tiered_storage.remote_log.reading.read_values import NO_TIMESTAMP, FoundOffset


@dataclass(frozen=True, slots=True, eq=False)
class ScannedBatches:
    """Batches and their headers; the first of `content` begins at `position` (bytes) of `source`."""

    content: bytes | memoryview
    table: BatchTable
    source: str
    position: int

    def records_of(self, row: int) -> list[Record]:
        """Return the records of a batch. Raises CorruptRecordError."""
        position = int(self.table.position[row])
        begin = position - self.position
        batch = self.content[begin : begin + int(self.table.size[row])]
        return read_records(batch, source=self.source, source_position=position)

    def first_at_or_after(self, timestamp: int, first_offset: int, end_offset: int) -> FoundOffset | None:
        """Return the first record of [`first_offset`, `end_offset`) whose timestamp (ms) is at least `timestamp`."""
        table = self.table
        may_have = (table.max_timestamp >= timestamp) & (table.last_offset >= first_offset)
        may_have &= table.base_offset < end_offset
        for row in np.flatnonzero(may_have).tolist():
            for record in self.records_of(row):
                if record.timestamp >= timestamp and first_offset <= record.offset < end_offset:
                    return FoundOffset(record.offset, record.timestamp, int(table.partition_leader_epoch[row]))
        return None

    def largest(self, first_offset: int, end_offset: int) -> int:
        """Return the largest timestamp (ms) in [`first_offset`, `end_offset`); -1: there is none."""
        table = self.table
        is_inside = (table.base_offset >= first_offset) & (table.last_offset < end_offset) & (table.record_count > 0)
        largest = int(table.max_timestamp[is_inside].max()) if is_inside.any() else NO_TIMESTAMP
        return max([largest, *self._at_the_edges(largest, first_offset, end_offset)])

    def _at_the_edges(self, beyond: int, first_offset: int, end_offset: int) -> Iterator[int]:
        """Yield the timestamps above `beyond` of batches that a range cuts."""
        table = self.table
        overlaps = (table.last_offset >= first_offset) & (table.base_offset < end_offset)
        is_cut = (table.base_offset < first_offset) | (table.last_offset >= end_offset)
        for row in np.flatnonzero(overlaps & is_cut & (table.max_timestamp > beyond)).tolist():
            for record in self.records_of(row):
                if first_offset <= record.offset < end_offset:
                    yield record.timestamp
