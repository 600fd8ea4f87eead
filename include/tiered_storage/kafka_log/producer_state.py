"""What a log knows of all its producers, and so up to where it is stable: kept batch by batch, saved in snapshots.

A producer's first transactional batch opens its transaction, its end marker closes it. An open transaction holds the
last stable offset back at its first offset; one that is closed does so until its marker is below the high watermark.

State is true at one offset, `end_offset`. A leader checks each batch against it; whatever is in the log already, or
comes by replication, is taken as it is: `feed` goes through whole windows of it, `add_batch` through single batches.

Source: KIP-98; ProducerStateManager of released Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tiered_storage.kafka_log.batch_header import (
    CONTROL_BIT,
    NO_PRODUCER_ID,
    TRANSACTIONAL_BIT,
    RecordBatch,
    sequence_after,
)
from tiered_storage.kafka_log.batch_table import BatchTable
from tiered_storage.kafka_log.control_record import EndTransactionMarker, read_end_marker
from tiered_storage.kafka_log.producer_entry import BATCHES_KEPT, AppendedBatch, ProducerEntry
from tiered_storage.kafka_log.producer_snapshot import ProducerSnapshotEntry, in_broker_order
from tiered_storage.kafka_log.transaction_index import AbortedTransaction


class ProducerState:
    """The producers of one log as of `end_offset` (exclusive). Not for two threads at once."""

    def __init__(self, end_offset: int, producers: Iterable[ProducerSnapshotEntry] = ()) -> None:
        """Begin at `end_offset` with what a snapshot at that offset tells, or with no producers."""
        self.end_offset = end_offset
        self._producers: dict[int, ProducerEntry] = {}
        self._open: dict[int, int] = {}
        """The producer of each open transaction, by its first offset."""
        self._closed: dict[int, int] = {}
        """The last offset of each closed transaction whose marker the high watermark has not passed, by its first."""
        self.adopt(producers)

    @property
    def producers(self) -> dict[int, ProducerEntry]:
        """The producers by id, in the order in which they came."""
        return self._producers

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of the earliest transaction that is open, or closed above the high watermark."""
        return min([*self._open, *self._closed], default=None)

    @property
    def first_undecided_offset(self) -> int | None:
        """The first offset of the earliest transaction that is open."""
        return min(self._open, default=None)

    def adopt(self, producers: Iterable[ProducerSnapshotEntry]) -> None:
        """Take the producers of a snapshot that are not known here."""
        for snapshot in producers:
            if snapshot.producer_id in self._producers:
                continue
            entry = ProducerEntry.from_snapshot(snapshot)
            self._producers[entry.producer_id] = entry
            if entry.transaction_first_offset is not None:
                self._open[entry.transaction_first_offset] = entry.producer_id

    def snapshot(self) -> tuple[ProducerSnapshotEntry, ...]:
        """Return what a snapshot at `end_offset` tells."""
        return in_broker_order([entry.to_snapshot() for entry in self._producers.values()])

    def find_duplicate(self, batch: RecordBatch) -> AppendedBatch | None:
        """Return the batch that `batch` repeats, if it is one of its producer's last five."""
        entry = self._producers.get(batch.producer_id)
        return entry.find_duplicate(batch) if entry else None

    def check_batch(self, batch: RecordBatch, partition: str) -> None:
        """Raise one of AppendRefusedError's kinds where a producer may not append the data batch `batch` next."""
        self._known_or_new(batch.producer_id).check_batch(batch, partition)

    def check_marker(
        self, marker: EndTransactionMarker, producer_id: int, epoch: int, partition: str, *, transaction_version: int
    ) -> None:
        """Raise one of AppendRefusedError's kinds where a coordinator may not append `marker` next."""
        entry = self._known_or_new(producer_id)
        entry.check_marker(marker, epoch, partition, transaction_version=transaction_version)

    def add_batch(self, batch: RecordBatch, marker: EndTransactionMarker | None = None) -> AbortedTransaction | None:
        """Take the next batch of the log, with the end marker that it holds; return the transaction that it aborts."""
        aborted = None
        if batch.has_producer:
            if marker is not None:
                aborted = self._end(batch.producer_id, batch.producer_epoch, batch.base_offset, marker)
            elif not batch.is_control:
                self._entry(batch.producer_id).add_batches(batch.producer_epoch, [_appended(batch)])
                if batch.is_transactional:
                    self._begin(batch.producer_id, batch.base_offset)
        self.end_offset = batch.next_offset
        return aborted

    def feed(self, path: Path, window: memoryview, batches: BatchTable) -> list[AbortedTransaction]:
        """Take the next batches of the log `path`, whose bytes are `window`; those below `end_offset` are known.

        Returns the transactions that they abort. Raises CorruptRecordError where an end marker cannot be read.
        """
        if not len(batches):
            return []
        has_producer = (batches.producer_id > NO_PRODUCER_ID) & (batches.base_offset >= self.end_offset)
        is_control = (batches.attributes & CONTROL_BIT) != 0
        data = has_producer & ~is_control
        # Compaction leaves a control batch without its record where nothing is left of the transaction either.
        markers = np.flatnonzero(has_producer & is_control & (batches.record_count > 0)).tolist()
        aborted = []
        for begin, end in pairwise([-1, *markers, len(batches)]):
            if begin >= 0 and (transaction := self._feed_control(path, window, batches, begin)):
                aborted.append(transaction)
            self._feed_data(batches, begin + 1 + np.flatnonzero(data[begin + 1 : end]))
        self.end_offset = max(self.end_offset, int(batches.last_offset[-1]) + 1)
        return aborted

    def on_high_watermark(self, high_watermark: int) -> None:
        """Let go of the closed transactions whose markers are below `high_watermark`."""
        self._closed = {first: last for first, last in self._closed.items() if last >= high_watermark}

    def expire(self, now: int, expiration_ms: int) -> None:
        """Forget the producers without an open transaction that were silent for `expiration_ms` before `now` (ms)."""
        self._producers = {
            producer_id: entry
            for producer_id, entry in self._producers.items()
            if not entry.is_expired(now, expiration_ms)
        }

    def _known_or_new(self, producer_id: int) -> ProducerEntry:
        return self._producers.get(producer_id) or ProducerEntry(producer_id)

    def _entry(self, producer_id: int) -> ProducerEntry:
        if producer_id not in self._producers:
            self._producers[producer_id] = ProducerEntry(producer_id)
        return self._producers[producer_id]

    def _begin(self, producer_id: int, first_offset: int) -> None:
        entry = self._entry(producer_id)
        if entry.transaction_first_offset is None:
            entry.transaction_first_offset = first_offset
            self._open[first_offset] = producer_id

    def _end(
        self, producer_id: int, epoch: int, offset: int, marker: EndTransactionMarker
    ) -> AbortedTransaction | None:
        first_offset = self._entry(producer_id).add_marker(marker, epoch)
        if first_offset is None:
            return None
        self._open.pop(first_offset, None)
        self._closed[first_offset] = offset
        if not marker.is_abort:
            return None
        return AbortedTransaction(producer_id, first_offset, offset, min(self._open, default=offset + 1))

    def _feed_control(self, path: Path, window: memoryview, batches: BatchTable, row: int) -> AbortedTransaction | None:
        position = int(batches.position[row])
        start = position - int(batches.position[0])
        batch = window[start : start + int(batches.size[row])]
        marker = read_end_marker(batch, source=str(path), source_position=position)
        if marker is None:
            return None
        producer_id, epoch = int(batches.producer_id[row]), int(batches.producer_epoch[row])
        return self._end(producer_id, epoch, int(batches.base_offset[row]), marker)

    def _feed_data(self, batches: BatchTable, rows: NDArray[np.int64]) -> None:
        """Take the data batches `rows`, between which no transaction ends."""
        if not rows.size:
            return
        producer_ids = batches.producer_id[rows]
        _, first, group = np.unique(producer_ids, return_index=True, return_inverse=True)
        for k in np.argsort(first).tolist():
            self._feed_producer(batches, int(producer_ids[first[k]]), rows[group == k])

    def _feed_producer(self, batches: BatchTable, producer_id: int, rows: NDArray[np.int64]) -> None:
        epochs = batches.producer_epoch[rows]
        other = np.flatnonzero(epochs != epochs[-1])
        same_epoch = rows[int(other[-1]) + 1 if other.size else 0 :]
        entry = self._entry(producer_id)
        if other.size:
            entry.add_batches(int(epochs[other[-1]]), ())
        entry.add_batches(int(epochs[-1]), (_appended_row(batches, row) for row in same_epoch[-BATCHES_KEPT:].tolist()))
        transactional = rows[(batches.attributes[rows] & TRANSACTIONAL_BIT) != 0]
        if transactional.size:
            self._begin(producer_id, int(batches.base_offset[transactional[0]]))


def _appended(batch: RecordBatch) -> AppendedBatch:
    return AppendedBatch(batch.last_sequence, batch.last_offset, batch.last_offset_delta, batch.max_timestamp)


def _appended_row(batches: BatchTable, row: int) -> AppendedBatch:
    last_offset = int(batches.last_offset[row])
    delta = last_offset - int(batches.base_offset[row])
    base_sequence = int(batches.base_sequence[row])
    return AppendedBatch(sequence_after(base_sequence, delta), last_offset, delta, int(batches.max_timestamp[row]))
