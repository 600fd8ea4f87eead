"""Holds the leader epochs in batches against a lineage, which decides which copy of an offset readers follow."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tiered_storage.errors import RemoteObjectCorruptError
from tiered_storage.kafka_log.batch_table import BatchTable
from tiered_storage.kafka_log.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata


@dataclass(frozen=True, slots=True)
class WrongEpoch:
    """A batch, by its position (bytes) and base offset, of another leader epoch than it should have."""

    position: int
    base_offset: int
    found: int
    expected: int

    def __str__(self) -> str:
        what = f"the batch at offset {self.base_offset} is of leader epoch {self.found}"
        return f"{what}, the segment's there is {self.expected}"

    def error(self, segment: RemoteLogSegmentMetadata, source: str) -> RemoteObjectCorruptError:
        """Return the error for such a batch of `segment`, read from the object `source`."""
        return RemoteObjectCorruptError(
            f"{segment.topic_id_partition}: {source}: at byte {self.position}: {self}: 'tiered-storage repair --deep' "
            "copies the segment again where the local log still has it"
        )


def wrong_epoch(table: BatchTable, lineage: Sequence[EpochEntry]) -> WrongEpoch | None:
    """Return the first batch that was not written under the epoch which `lineage` gives its offset.

    Offsets below the lineage have none to be held against, nor have batches of brokers too old to stamp theirs (-1).
    The batches of `table` rise by offset.
    """
    if not lineage or not len(table):
        return None
    starts = [entry.start_offset for entry in lineage]
    first, last = (bisect_right(starts, int(table.base_offset[row])) - 1 for row in (0, -1))
    expected: NDArray[np.int32] | int
    if first == last:
        # Nearly always: the batches of one window are of one leader.
        if first < 0:
            return None
        expected = lineage[first].epoch
        is_wrong = table.partition_leader_epoch != expected
    else:
        entry_of = np.searchsorted(np.array(starts, np.int64), table.base_offset, side="right") - 1
        expected = np.array([entry.epoch for entry in lineage], np.int32)[np.maximum(entry_of, 0)]
        is_wrong = (entry_of >= 0) & (table.partition_leader_epoch != expected)
    wrong = np.flatnonzero(is_wrong & (table.partition_leader_epoch >= 0))
    if not wrong.size:
        return None
    row = int(wrong[0])
    return WrongEpoch(
        int(table.position[row]),
        int(table.base_offset[row]),
        int(table.partition_leader_epoch[row]),
        expected if isinstance(expected, int) else int(expected[row]),
    )
