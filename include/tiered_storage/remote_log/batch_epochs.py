"""Holds the leader epochs in batches against a lineage, which decides which copy of an offset readers follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tiered_storage.kafka_log.batch_table import BatchTable
from tiered_storage.kafka_log.leader_epoch_checkpoint import EpochEntry


@dataclass(frozen=True, slots=True)
class WrongEpoch:
    """A batch, by its position (bytes) and base offset, of another leader epoch than it should have."""

    position: int
    base_offset: int
    found: int
    expected: int


def wrong_epoch(table: BatchTable, lineage: Sequence[EpochEntry]) -> WrongEpoch | None:
    """Return the first batch that was not written under the epoch which `lineage` gives its offset.

    Offsets below the lineage have none to be held against, nor have batches of brokers too old to stamp theirs (-1).
    """
    if not lineage:
        return None
    starts = np.array([entry.start_offset for entry in lineage], np.int64)
    epochs = np.array([entry.epoch for entry in lineage], np.int32)
    entry_of = np.searchsorted(starts, table.base_offset, side="right") - 1
    expected = epochs[np.maximum(entry_of, 0)]
    known = (entry_of >= 0) & (table.partition_leader_epoch >= 0)
    wrong = np.flatnonzero(known & (table.partition_leader_epoch != expected))
    if not wrong.size:
        return None
    row = int(wrong[0])
    return WrongEpoch(
        int(table.position[row]),
        int(table.base_offset[row]),
        int(table.partition_leader_epoch[row]),
        int(expected[row]),
    )
