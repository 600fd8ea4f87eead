"""Batches of a window by their addresses in memory, as decode_batches takes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
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
    """The total size of their records in bytes."""
    largest: int
    """The size of the largest batch's records."""
    records: int
    """The number of records by their headers."""
    compressed: int
    """How many batches with records are compressed."""

    def part(self, begin: int, end: int) -> PlacedBatches:
        """Return the batches from number `begin` to `end` (exclusive)."""
        if end - begin == self.rows.size:
            return self
        rows, places = self.rows[begin:end], self.places[:, begin:end]
        part = replace(self, rows=rows, places=places, total=int((places[ENDS] - places[STARTS]).sum()))
        return replace(part, records=int(part.record_counts().sum()))

    def record_counts(self) -> NDArray[np.int64]:
        """Return the record count in each batch's header."""
        return np.maximum(self.table.record_count[self.rows], 0).astype(np.int64)

    def chunks(self, chunk_bytes: int) -> Iterator[PlacedBatches]:
        """Yield the batches in runs of at most `chunk_bytes` of records; a larger batch is a run of its own."""
        if self.total <= chunk_bytes:
            yield self
            return
        ends = np.cumsum(self.places[ENDS] - self.places[STARTS])
        begin, before = 0, 0
        while begin < ends.size:
            end = max(int(np.searchsorted(ends, before + chunk_bytes, "right")), begin + 1)
            yield self.part(begin, end)
            begin, before = end, int(ends[end - 1])


@dataclass(frozen=True, slots=True)
class OpenBatches:
    """The batches from number `first` on of `placed`, uncompressed."""

    placed: PlacedBatches
    first: int
    places: Sequence[NDArray[np.int64]]
    """The addresses of their headers, of their records, and of the ends of these."""
    viewed: Sequence[pa.Buffer | memoryview]
    """The memory that value views refer to: one window, or the records of each batch."""
    view_base: int
    """The address of the window; 0 if each batch has its own memory."""
    data_end: int
    """The address up to which the kernel may prefetch."""

    @classmethod
    def in_window(cls, placed: PlacedBatches) -> OpenBatches:
        """Return uncompressed batches as they lie in their window."""
        window = placed.data_end - placed.data.size
        return cls(placed, 0, tuple(placed.places), (placed.data.data,), window, placed.data_end)

    @classmethod
    def decompressed(cls, placed: PlacedBatches, first: int, contents: Sequence[pa.Buffer]) -> OpenBatches:
        """Return as many batches as there are `contents`, their decompressed records."""
        starts = np.array([content.address for content in contents], np.int64)
        sizes = np.array([content.size for content in contents], np.int64)
        headers = placed.places[HEADERS][first : first + starts.size]
        return cls(placed, first, (headers, starts, starts + sizes), contents, 0, 0)

    @property
    def count(self) -> int:
        """How many batches there are."""
        return self.places[STARTS].size

    @property
    def size(self) -> int:
        """How many bytes their records take."""
        return int((self.places[ENDS] - self.places[STARTS]).sum())
