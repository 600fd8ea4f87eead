"""Batches of a window by their addresses in memory, as decode_batches takes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tiered_storage.kafka_log.records.batch_table import BatchTable

HEADERS, STARTS, ENDS = range(3)
"""The rows of `places`."""


@dataclass(frozen=True, slots=True)
class PlacedBatches:
    """Batches in `data`, which begins at `origin` of the segment; `rows` are theirs in `table`."""

    data: NDArray[np.uint8]
    origin: int
    table: BatchTable
    rows: NDArray[np.int64]
    places: NDArray[np.int64]
    """The addresses of their headers, of their uncompressed records, and of the ends of these."""
    data_end: int
    total: int
    """How many bytes their records take."""
    largest: int
    """How many those of the largest one take."""
    records: int
    """How many records they say that they have."""
    compressed: int
    """How many of those that have records are compressed."""

    def part(self, begin: int, end: int) -> PlacedBatches:
        """Return those from number `begin` to `end`, which is not included."""
        if end - begin == self.rows.size:
            return self
        rows, places = self.rows[begin:end], self.places[:, begin:end]
        part = replace(self, rows=rows, places=places, total=int((places[ENDS] - places[STARTS]).sum()))
        return replace(part, records=int(part.record_counts().sum()))

    def record_counts(self) -> NDArray[np.int64]:
        """Return how many records each batch says that it has."""
        return np.maximum(self.table.record_count[self.rows], 0).astype(np.int64)

    def chunks(self, chunk_bytes: int) -> Iterator[PlacedBatches]:
        """Yield them in runs of at most `chunk_bytes` of records; a batch that is larger is a run of its own."""
        if self.total <= chunk_bytes:
            yield self
            return
        behind = np.cumsum(self.places[ENDS] - self.places[STARTS])
        begin, before = 0, 0
        while begin < behind.size:
            end = max(int(np.searchsorted(behind, before + chunk_bytes, "right")), begin + 1)
            yield self.part(begin, end)
            begin, before = end, int(behind[end - 1])
