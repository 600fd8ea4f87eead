"""Which batches a read_committed reader skips: those of aborted transactions.

Source: KIP-98; released Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tiered_storage.kafka_log.indexes.transaction_index import AbortedTransaction
from tiered_storage.kafka_log.kernels.constants import CONTROL_BIT, TRANSACTIONAL_BIT
from tiered_storage.kafka_log.records.batch_table import BatchTable


class AbortedBatches:
    """Aborted transactions, for look-ups of many batches at once."""

    def __init__(self, transactions: Iterable[AbortedTransaction]) -> None:
        """Take them in any order; those of one producer may overlap."""
        spans: dict[int, list[tuple[int, int]]] = {}
        for each in sorted(transactions, key=lambda each: each.first_offset):
            spans.setdefault(each.producer_id, []).append((each.first_offset, each.last_offset))
        self._by_producer: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        for producer_id, of_producer in spans.items():
            firsts, lasts = np.array(of_producer, np.int64).T
            self._by_producer[producer_id] = firsts, np.maximum.accumulate(lasts)

    def holds(self, table: BatchTable) -> NDArray[np.bool_]:
        """Return for each batch of `table` whether it has records of one of the transactions; a marker has none."""
        held = np.zeros(len(table), np.bool_)
        if not self._by_producer:
            return held
        is_data = (table.attributes & (TRANSACTIONAL_BIT | CONTROL_BIT)) == TRANSACTIONAL_BIT
        for producer_id in np.unique(table.producer_id[is_data]).tolist():
            if producer_id not in self._by_producer:
                continue
            firsts, lasts = self._by_producer[producer_id]
            rows = np.flatnonzero(is_data & (table.producer_id == producer_id))
            at = np.searchsorted(firsts, table.base_offset[rows], "right") - 1
            held[rows] = (at >= 0) & (table.base_offset[rows] <= lasts[at])
        return held
