"""Looks for timestamps within scanned batches: exact, also inside of compressed ones.

A header's largest timestamp says which batch has the record; which record it is, only the batch itself can say. So a
batch is decoded where its header promises something, or where a range begins or ends inside of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tiered_storage.kafka_log.columnar.decoder import ColumnDecoder, RecordRange
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.remote_log.read.read_values import NO_TIMESTAMP, FoundOffset


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
        # Of batches that the range cuts no header tells which records have it.
        is_cut = ~is_inside & (table.last_offset >= first_offset) & (table.base_offset < end_offset)
        within = RecordRange(first_offset, end_offset, first_timestamp=largest + 1)
        for _, found in self._decoded(is_cut & (table.max_timestamp > largest), ["timestamp"], within):
            largest = max(largest, pc.max(found.column(0).cast(pa.int64())).as_py())
        return largest

    def _decoded(
        self, wanted: NDArray[np.bool_], columns: list[str], within: RecordRange
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield what of each of the `wanted` batches lies `within` a range, with its row: columns, as there may be many
        more records than bytes would let expect."""
        decoder = ColumnDecoder(self.source, columns, within)
        for row in np.flatnonzero(wanted).tolist():
            alone = self.table.rows(row, row + 1)
            begin = int(alone.position[0]) - self.position
            for found in decoder.decode(memoryview(self.content)[begin : begin + int(alone.size[0])], alone):
                if found.num_rows:
                    yield row, found
