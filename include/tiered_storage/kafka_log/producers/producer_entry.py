"""A log's state of one producer: epoch, last batches, open transaction; and the check of its next batch.

A producer numbers its records: the next batch's base sequence is the last one's last sequence + 1, 0 follows 2**31 - 1,
and a new producer epoch begins at 0. The last five batches are kept, to recognise one that is sent again.

Source: KIP-98, KIP-360 (producers whose state was forgotten), KIP-890 (epochs of markers); released Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from tiered_storage.errors import (
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from tiered_storage.kafka_log.kernels.constants import INT32_MAX
from tiered_storage.kafka_log.producers.producer_snapshot import ProducerSnapshotEntry
from tiered_storage.kafka_log.records.batch_header import (
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    sequence_after,
)
from tiered_storage.kafka_log.records.control_record import EndTransactionMarker

BATCHES_KEPT = 5
NO_OFFSET = -1
NO_COORDINATOR_EPOCH = -1
FIRST_STRICT_TRANSACTION_VERSION = 2
"""From this transaction version on, a coordinator raises the producer epoch with every end marker."""


@dataclass(frozen=True, slots=True)
class AppendedBatch:
    """A batch that a producer has appended; `last_sequence` and `last_offset` are inclusive, `timestamp` is in ms."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        """The offset of its first record."""
        return self.last_offset - self.offset_delta

    @property
    def first_sequence(self) -> int:
        """The sequence number of its first record; -1: none."""
        return sequence_after(self.last_sequence, -self.offset_delta)


@dataclass(slots=True)
class ProducerEntry:
    """One producer, as of the last batch or marker that was added; `last_timestamp` is ms since the epoch."""

    producer_id: int
    epoch: int = NO_PRODUCER_EPOCH
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    last_timestamp: int = NO_TIMESTAMP
    transaction_first_offset: int | None = None
    batches: list[AppendedBatch] = field(default_factory=list)

    @classmethod
    def from_snapshot(cls, snapshot: ProducerSnapshotEntry) -> Self:
        """Return a producer from a snapshot, which has only its last batch."""
        first_offset = snapshot.current_transaction_first_offset
        entry = cls(
            snapshot.producer_id,
            snapshot.producer_epoch,
            snapshot.coordinator_epoch,
            snapshot.last_timestamp,
            first_offset if first_offset >= 0 else None,
        )
        if snapshot.last_offset >= 0:
            entry.batches.append(
                AppendedBatch(
                    snapshot.last_sequence, snapshot.last_offset, snapshot.offset_delta, snapshot.last_timestamp
                )
            )
        return entry

    def to_snapshot(self) -> ProducerSnapshotEntry:
        """Return the producer's snapshot entry."""
        last = self.batches[-1] if self.batches else AppendedBatch(NO_SEQUENCE, NO_OFFSET, 0, NO_TIMESTAMP)
        return ProducerSnapshotEntry(
            self.producer_id,
            self.epoch,
            last.last_sequence,
            last.last_offset,
            last.offset_delta,
            self.last_timestamp,
            self.coordinator_epoch,
            NO_OFFSET if self.transaction_first_offset is None else self.transaction_first_offset,
        )

    @property
    def last_sequence(self) -> int:
        """The last sequence number of this epoch; -1: none."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def is_expired(self, now: int, expiration_ms: int) -> bool:
        """Return whether the producer has no open transaction and was silent for `expiration_ms` before `now` (ms)."""
        return self.transaction_first_offset is None and now - self.last_timestamp >= expiration_ms

    def find_duplicate(self, batch: BatchHeader) -> AppendedBatch | None:
        """Return the batch with the epoch and the sequence numbers of `batch` if it is one of the last five."""
        if batch.producer_epoch != self.epoch or batch.base_sequence == NO_SEQUENCE:
            return None
        wanted = batch.base_sequence, batch.last_sequence
        return next((known for known in self.batches if (known.first_sequence, known.last_sequence) == wanted), None)

    def check_batch(self, batch: BatchHeader, partition: str) -> None:
        """Raise a subclass of AppendRefusedError, naming `partition`, if a leader may not append `batch` next."""
        who = f"{partition}: producer {self.producer_id}"
        if batch.producer_epoch < self.epoch:
            raise InvalidProducerEpochError(f"{who} has epoch {self.epoch}: a batch of epoch {batch.producer_epoch}")
        self._check_sequence(batch, who)
        if self.transaction_first_offset is not None and not batch.is_transactional:
            raise InvalidTransactionStateError(
                f"{who} has a transaction open since offset {self.transaction_first_offset}: its batch with sequence "
                f"{batch.base_sequence} is not part of it"
            )

    def check_marker(
        self, marker: EndTransactionMarker, epoch: int, partition: str, *, transaction_version: int = 0
    ) -> None:
        """Raise a subclass of AppendRefusedError, naming `partition`, if `marker` of producer epoch `epoch` is
        outdated.

        From transaction version 2 on its epoch must be new, unless no transaction is open: then it is a repetition.
        """
        who = f"{partition}: producer {self.producer_id}"
        strict = transaction_version >= FIRST_STRICT_TRANSACTION_VERSION and self.transaction_first_offset is not None
        if epoch < self.epoch or (strict and epoch == self.epoch):
            raise InvalidProducerEpochError(f"{who} has epoch {self.epoch}: an end marker of epoch {epoch}")
        if marker.coordinator_epoch < self.coordinator_epoch:
            raise TransactionCoordinatorFencedError(
                f"{who} has coordinator epoch {self.coordinator_epoch}: an end marker of {marker.coordinator_epoch}"
            )

    def add_batches(self, epoch: int, batches: Iterable[AppendedBatch], kept: int = BATCHES_KEPT) -> None:
        """Add the producer's next batches, all of one epoch; keep the last `kept`."""
        self._begin_epoch(epoch)
        self.batches = [*self.batches, *batches][-kept:]
        if self.batches:
            self.last_timestamp = self.batches[-1].timestamp

    def add_marker(self, marker: EndTransactionMarker, epoch: int) -> int | None:
        """Add an end marker of the producer; return the first offset of the transaction that it ends, if any."""
        first_offset, self.transaction_first_offset = self.transaction_first_offset, None
        self._begin_epoch(epoch)
        self.coordinator_epoch = marker.coordinator_epoch
        self.last_timestamp = marker.timestamp
        return first_offset

    def _begin_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.batches = []
            self.epoch = epoch

    def _check_sequence(self, batch: BatchHeader, who: str) -> None:
        """Accept any first sequence number from an unknown producer."""
        if self.epoch == NO_PRODUCER_EPOCH:
            return
        is_new_epoch = batch.producer_epoch != self.epoch
        expected = 0 if is_new_epoch else (self.last_sequence + 1) & INT32_MAX
        if batch.base_sequence != expected:
            raise OutOfOrderSequenceError(
                f"{who}, epoch {batch.producer_epoch}: a batch has base sequence {batch.base_sequence}, "
                f"{expected} comes next"
            )
