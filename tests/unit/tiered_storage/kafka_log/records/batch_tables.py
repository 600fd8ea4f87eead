"""Tables of batches for tests."""

from __future__ import annotations

import numpy as np

from tiered_storage.kafka_log.records.segment_scan import BatchTable

MIB = 1 << 20


def assert_same(table: BatchTable, other: BatchTable) -> None:
    for mine, theirs in zip(table.columns(), other.columns(), strict=True):
        np.testing.assert_array_equal(mine, theirs, strict=True)
