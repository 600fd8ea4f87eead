"""Check the leader epochs in batches against a lineage, which decides which copy of an offset readers get."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.records.batch_header import NO_LEADER_EPOCH
from tiered_storage.kafka_log.records.batch_table import BatchTable


@dataclass(frozen=True, slots=True)
class WrongEpoch:
    """A batch, by its position (bytes) and base offset, of another leader epoch than it should have (-1: unknown)."""

    position: int
    base_offset: int
    found: int
    expected: int

    def __str__(self) -> str:
        what = f"the batch at offset {self.base_offset} is of leader epoch {self.found}"
        if self.expected == NO_LEADER_EPOCH:
            return f"{what}, which no broker writes"
        return f"{what}, but the segment has epoch {self.expected} there"


def wrong_epoch(table: BatchTable, lineage: Sequence[EpochEntry]) -> WrongEpoch | None:
    """Return the first batch with another leader epoch than `lineage` has for its offset.

    Offsets below the lineage are not checked: a broker that keeps epochs stamps every batch, so batches without one
    (-1) occur only there. Values below -1 are always wrong: no broker writes them. The batches of `table` rise by
    offset.
    """
    if not len(table):
        return None
    starts = [entry.start_offset for entry in lineage]
    epochs = [NO_LEADER_EPOCH, *(entry.epoch for entry in lineage)]
    found = table.partition_leader_epoch
    first, last = (bisect_right(starts, int(table.base_offset[row])) for row in (0, -1))
    expected: NDArray[np.int32] | int
    if first == last:
        # The usual case: the batches of one window are of one leader.
        expected = epochs[first]
    else:
        entry_of = np.searchsorted(np.array(starts, np.int64), table.base_offset, side="right")
        expected = np.array(epochs, np.int32)[entry_of]
    differs = (found != expected) & np.not_equal(expected, NO_LEADER_EPOCH)
    wrong = np.flatnonzero((found < NO_LEADER_EPOCH) | differs)
    if not wrong.size:
        return None
    row = int(wrong[0])
    return WrongEpoch(
        int(table.position[row]),
        int(table.base_offset[row]),
        int(found[row]),
        expected if isinstance(expected, int) else int(expected[row]),
    )
