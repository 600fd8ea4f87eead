"""Tables of batches that no file stands behind, for what looks at headers only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

from tiered_storage.kafka_log.records.batch_table import BatchTable


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch: how many offsets it covers, how many it leaves out before itself, its bytes and its timestamp (ms)."""

    records: int
    size: int
    max_timestamp: int
    gap: int = 0


def batch_lists(min_size: int = 0, max_size: int = 30) -> st.SearchStrategy[list[Batch]]:
    """Batches that are small against their number, so that equal timestamps and full intervals are common."""
    batch = st.builds(
        Batch, st.integers(1, 4), st.integers(61, 400), st.integers(-1, 12), st.sampled_from([0, 0, 0, 1, 5])
    )
    return st.lists(batch, min_size=min_size, max_size=max_size)


def batch_table(base_offset: int, batches: Sequence[Batch]) -> BatchTable:
    """Return the table of a segment that begins at `base_offset` and holds `batches`."""
    table = BatchTable.allocate(len(batches))
    for column in table.columns():
        column[:] = 0
    records = np.array([batch.records for batch in batches], np.int64)
    gaps = np.array([batch.gap for batch in batches], np.int64)
    table.size[:] = [batch.size for batch in batches]
    table.max_timestamp[:] = [batch.max_timestamp for batch in batches]
    table.record_count[:] = records
    table.last_offset[:] = base_offset + np.cumsum(records + gaps) - 1
    table.base_offset[:] = table.last_offset - records + 1
    table.position[:] = np.cumsum(table.size) - table.size
    table.producer_id[:] = -1
    return table


def windows(table: BatchTable, cuts: Sequence[int]) -> list[BatchTable]:
    """Return `table` in pieces, cut before each of the rows `cuts`."""
    bounds = [0, *sorted(min(cut, len(table)) for cut in cuts), len(table)]
    return [table.rows(first, end) for first, end in pairwise(bounds)]
