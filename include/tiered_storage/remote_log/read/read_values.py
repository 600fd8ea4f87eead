"""The parameters and results of reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from tiered_storage.kafka_log.indexes.transaction_index import AbortedBatches, AbortedTxn
from tiered_storage.kafka_log.kernels.constants import CONTROL_BIT
from tiered_storage.kafka_log.producers.transaction_state import Isolation
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import iterate_records
from tiered_storage.kafka_wire.connections.apis import OffsetSpec
from tiered_storage.remote_log.model import LEADER_EPOCH_UNKNOWN

__all__ = ["NO_EPOCHS", "FetchEpochs", "FetchedBatches", "FoundOffset", "Isolation", "OffsetSpec", "Tier"]

NO_TIMESTAMP = -1


class Tier(StrEnum):
    """Where bytes were read from."""

    LOCAL = "local"
    REMOTE = "remote"


@dataclass(frozen=True, slots=True)
class FetchEpochs:
    """The leader epochs that a Fetch gives with its offset (KIP-320); None: not given.

    `current_leader` is the epoch of the leader that the reader considers current, `last_fetched` that of the last
    record before the offset.
    """

    current_leader: int | None = None
    last_fetched: int | None = None


NO_EPOCHS = FetchEpochs()


@dataclass(frozen=True, slots=True)
class FoundOffset:
    """An offset, the timestamp (ms) of the record found there (-1: none), and its leader's epoch (-1: unknown)."""

    offset: int
    timestamp: int = NO_TIMESTAMP
    leader_epoch: int = LEADER_EPOCH_UNKNOWN


@dataclass(frozen=True, slots=True, eq=False)
class FetchedBatches:
    """Whole batches as Kafka wrote them, their checksums verified; `table` has their headers.

    The valid offsets are `start_offset` (inclusive) to `end_offset` (exclusive), where the next read begins: the first
    batch may begin before them, and the last one end after them. `aborted` are the transactions whose records a
    read_committed consumer skips; empty at the other level. `source_position` (bytes) is the start of the first batch
    in `source`, a file or an object; positions in `table` count from the same origin.
    """

    content: bytes
    start_offset: int
    end_offset: int
    tier: Tier
    source: str
    source_position: int
    table: BatchTable = field(repr=False)
    aborted: tuple[AbortedTxn, ...] = ()

    def records(self, *, with_control: bool = False) -> Iterator[Record]:
        """Yield the valid records, without those of aborted transactions; markers only `with_control`."""
        is_given = ~self.aborted_rows()
        if not with_control:
            is_given &= (self.table.attributes & CONTROL_BIT) == 0
        origin = self.source_position
        for row in np.flatnonzero(is_given).tolist():
            position = int(self.table.position[row])
            batch = self.content[position - origin : position - origin + int(self.table.size[row])]
            for record in iterate_records(batch, source=self.source, source_position=position, verify_crc=False):
                if self.start_offset <= record.offset < self.end_offset:
                    yield record

    def aborted_rows(self) -> NDArray[np.bool_]:
        """Return which batches of `table` hold records of aborted transactions; markers do not."""
        return AbortedBatches(self.aborted).holds(self.table)
