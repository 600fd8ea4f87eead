"""Batches whose records are at hand, uncompressed, by their addresses in memory, as decode_batches takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tiered_storage.kafka_log.columnar.placed_batches import ENDS, HEADERS, STARTS, PlacedBatches


@dataclass(frozen=True, slots=True)
class OpenBatches:
    """Some batches, those from number `first` on of `placed`."""

    placed: PlacedBatches
    first: int
    places: Sequence[NDArray[np.int64]]
    """The addresses of their headers, of their records, and of the ends of these."""
    viewed: Sequence[pa.Buffer | memoryview]
    """What views of values look into: all of one window, or the records of each batch."""
    view_base: int
    """Where the window begins; 0 where each batch has its own."""
    data_end: int
    """Up to where may be read ahead."""

    @classmethod
    def in_window(cls, placed: PlacedBatches) -> OpenBatches:
        """Return uncompressed batches as they lie in their window."""
        window = placed.data_end - placed.data.size
        return cls(placed, 0, tuple(placed.places), (placed.data.data,), window, placed.data_end)

    @classmethod
    def decompressed(cls, placed: PlacedBatches, first: int, contents: Sequence[pa.Buffer]) -> OpenBatches:
        """Return as many batches as there are `contents`: what their records have become."""
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
