"""The state of all producers of a log, and so its last stable offset: updated batch by batch, saved in snapshots.

A producer's first transactional batch opens its transaction; its end marker closes it. An open transaction holds back
the last stable offset at its first offset; a closed one does so until its marker is below the high watermark.

The state is that at one offset, `end_offset`. A leader checks each batch against it; batches that are already in the
log, or replicated, are accepted as they are: `feed` takes whole windows of them, `add_batch` single batches.

Source: KIP-98; ProducerStateManager of released Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush, merge, nlargest
from operator import attrgetter, itemgetter
from pathlib import Path

import numpy as np

from tiered_storage.kafka_log.indexes.transaction_index import AbortedTxn
from tiered_storage.kafka_log.kernels.constants import CONTROL_BIT
from tiered_storage.kafka_log.producers.producer_entry import BATCHES_KEPT, NO_OFFSET, AppendedBatch, ProducerEntry
from tiered_storage.kafka_log.producers.producer_runs import ProducerRun, producer_runs
from tiered_storage.kafka_log.producers.producer_snapshot import ProducerSnapshotEntry, in_broker_order
from tiered_storage.kafka_log.records.batch_header import NO_PRODUCER_ID, BatchHeader
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.kafka_log.records.control_record import EndTransactionMarker, marker_at, marker_rows

_BEGUN_SPARE = 64


class ProducerState:
    """The producers of one log as of `end_offset` (exclusive). Not thread-safe."""

    def __init__(
        self,
        end_offset: int,
        producers: Iterable[ProducerSnapshotEntry] = (),
        *,
        batches_kept: int = BATCHES_KEPT,
        seen_from: int | None = None,
    ) -> None:
        """Begin at `end_offset` with a snapshot at that offset, or with no producers.

        `batches_kept` is how many batches are kept of each producer: a leader needs the last five, a snapshot only the
        last one. Batches are known from the offset `seen_from` (inclusive) on; None: all batches are known.
        """
        self.end_offset = end_offset
        self.seen_from = seen_from
        self.begins_after_damage = False
        """Whether `restart_at` was called: a snapshot would then look complete, but is not."""
        self._batches_kept = batches_kept
        self._producers: dict[int, ProducerEntry] = {}
        self._open: dict[int, int] = {}
        """The producer of each open transaction, by its first offset."""
        self._begun: list[int] = []
        """The keys of `_open` as a heap; ended transactions are removed at its top, or when they are the majority."""
        self._closed: dict[int, int] = {}
        """The last offset of each closed transaction whose marker the high watermark has not passed, by its first."""
        self.adopt(producers)

    @property
    def producers(self) -> dict[int, ProducerEntry]:
        """The producers by id, in the order of their first batch."""
        return self._producers

    @property
    def open_transactions(self) -> dict[int, int]:
        """The first offset of each open transaction, by its producer's id."""
        return {producer_id: first_offset for first_offset, producer_id in self._open.items()}

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of the earliest transaction that is open, or closed above the high watermark."""
        undecided = self.first_undecided_offset
        return min(self._closed if undecided is None else [undecided, *self._closed], default=None)

    @property
    def first_undecided_offset(self) -> int | None:
        """The first offset of the earliest transaction that is open."""
        while self._begun and self._begun[0] not in self._open:
            heappop(self._begun)
        return self._begun[0] if self._begun else None

    def adopt(self, producers: Iterable[ProducerSnapshotEntry]) -> None:
        """Add the producers that are not known here, from a snapshot at the end offset.

        If a transaction is open both here and in the snapshot, and the snapshot's first offset for it is before
        `seen_from`, take that first offset.
        """
        for snapshot in producers:
            if known := self._producers.get(snapshot.producer_id):
                self._take_beginning(known, snapshot.current_transaction_first_offset)
                continue
            entry = ProducerEntry.from_snapshot(snapshot)
            self._producers[entry.producer_id] = entry
            if entry.transaction_first_offset is not None:
                self._open_transaction(entry.transaction_first_offset, entry.producer_id)

    def restart_at(self, offset: int) -> None:
        """Continue at `offset`, after unreadable batches, and forget everything except the open transactions.

        Their end markers may have been lost, but they stay open until other markers come.
        """
        self._producers = {
            producer_id: ProducerEntry(producer_id, transaction_first_offset=first_offset)
            for producer_id, first_offset in self.open_transactions.items()
        }
        self._closed = {}
        self.end_offset = self.seen_from = offset
        self.begins_after_damage = True

    def snapshot(self) -> tuple[ProducerSnapshotEntry, ...]:
        """Return a snapshot at `end_offset`."""
        return in_broker_order([entry.to_snapshot() for entry in self._producers.values()])

    def find_duplicate(self, batch: BatchHeader) -> AppendedBatch | None:
        """Return the batch that `batch` repeats, if it is one of its producer's last five."""
        entry = self._producers.get(batch.producer_id)
        return entry.find_duplicate(batch) if entry else None

    def check_batch(self, batch: BatchHeader, partition: str) -> None:
        """Raise a subclass of AppendRefusedError if a producer may not append the data batch `batch` next."""
        self._known_or_new(batch.producer_id).check_batch(batch, partition)

    def check_marker(
        self, marker: EndTransactionMarker, producer_id: int, epoch: int, partition: str, *, transaction_version: int
    ) -> None:
        """Raise a subclass of AppendRefusedError if a coordinator may not append `marker` next."""
        entry = self._known_or_new(producer_id)
        entry.check_marker(marker, epoch, partition, transaction_version=transaction_version)

    def add_batch(self, batch: BatchHeader, marker: EndTransactionMarker | None = None) -> AbortedTxn | None:
        """Add the next batch of the log, with the end marker that it holds; return the transaction that it aborts."""
        aborted = None
        if batch.has_producer:
            if marker is not None:
                aborted = self._end(batch.producer_id, batch.producer_epoch, batch.base_offset, marker)
            elif not batch.is_control:
                self._entry(batch.producer_id).add_batches(batch.producer_epoch, [_appended(batch)], self._batches_kept)
                if batch.is_transactional:
                    self._begin(batch.producer_id, batch.base_offset)
        self.end_offset = batch.next_offset
        return aborted

    def feed(self, path: Path | str, window: memoryview, batches: BatchTable) -> list[AbortedTxn]:
        """Take the next batches of the log `path`, whose bytes are `window`; those below `end_offset` are known.

        Returns the transactions that they abort. Raises CorruptRecordError if an end marker cannot be read.
        """
        if not len(batches):
            return []
        is_new = batches.base_offset >= self.end_offset
        is_data = (batches.producer_id > NO_PRODUCER_ID) & ((batches.attributes & CONTROL_BIT) == 0)
        markers = marker_rows(batches)
        markers = markers[is_new[markers]]
        runs = producer_runs(batches, np.flatnonzero(is_new & is_data), markers)
        aborted = []
        for row, run in merge(((row, None) for row in markers.tolist()), _by_row(runs), key=itemgetter(0)):
            if run is not None:
                self._take_run(run)
            elif transaction := self._feed_control(path, window, batches, row):
                aborted.append(transaction)
        self.end_offset = max(self.end_offset, int(batches.last_offset[-1]) + 1)
        return aborted

    def on_high_watermark(self, high_watermark: int) -> None:
        """Forget the closed transactions whose markers are below `high_watermark`."""
        self._closed = {first: last for first, last in self._closed.items() if last >= high_watermark}

    def remember_closed(self, before: ProducerState) -> None:
        """Add the closed transactions of `before`, the state of the same log when it was longer.

        A snapshot lacks those whose markers may not be on all replicas yet.
        """
        self._closed |= {first: last for first, last in before._closed.items() if last < self.end_offset}

    def expire(self, now: int, expiration_ms: int) -> None:
        """Forget the producers without an open transaction that were silent for `expiration_ms` before `now` (ms)."""
        self._producers = {
            producer_id: entry
            for producer_id, entry in self._producers.items()
            if not entry.is_expired(now, expiration_ms)
        }

    def forget_silent(self, kept: int) -> None:
        """If more than 2 * `kept` producers have no open transaction, forget all but `kept` of them.

        It forgets the producers whose last batch or marker is the oldest, as expiry does.
        """
        if len(self._producers) - len(self._open) <= 2 * kept:
            return
        silent = [entry for entry in self._producers.values() if entry.transaction_first_offset is None]
        heard_of = {entry.producer_id for entry in nlargest(kept, silent, key=attrgetter("last_timestamp"))}
        self._producers = {
            producer_id: entry
            for producer_id, entry in self._producers.items()
            if entry.transaction_first_offset is not None or producer_id in heard_of
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
            self._open_transaction(first_offset, producer_id)

    def _take_beginning(self, entry: ProducerEntry, first_offset: int) -> None:
        """Move the start of the open transaction of `entry` to `first_offset`, if that is before `seen_from`."""
        if entry.transaction_first_offset is None or not 0 <= first_offset < (self.seen_from or 0):
            return
        del self._open[entry.transaction_first_offset]
        entry.transaction_first_offset = first_offset
        self._open_transaction(first_offset, entry.producer_id)

    def _open_transaction(self, first_offset: int, producer_id: int) -> None:
        self._open[first_offset] = producer_id
        heappush(self._begun, first_offset)
        if len(self._begun) > 2 * len(self._open) + _BEGUN_SPARE:
            self._begun = sorted(self._open)

    def _end(self, producer_id: int, epoch: int, offset: int, marker: EndTransactionMarker) -> AbortedTxn | None:
        first_offset = self._entry(producer_id).add_marker(marker, epoch)
        if first_offset is None:
            return None
        self._open.pop(first_offset, None)
        self._closed[first_offset] = offset
        if not marker.is_abort:
            return None
        undecided = self.first_undecided_offset
        return AbortedTxn(producer_id, first_offset, offset, offset + 1 if undecided is None else undecided)

    def _feed_control(self, path: Path | str, window: memoryview, batches: BatchTable, row: int) -> AbortedTxn | None:
        marker = marker_at(path, window, batches, row)
        if marker is None:
            return None
        producer_id, epoch = int(batches.producer_id[row]), int(batches.producer_epoch[row])
        return self._end(producer_id, epoch, int(batches.base_offset[row]), marker)

    def _take_run(self, run: ProducerRun) -> None:
        entry = self._entry(run.producer_id)
        if run.earlier_epoch is not None:
            entry.add_batches(run.earlier_epoch, ())
        entry.add_batches(run.epoch, run.batches, self._batches_kept)
        if run.transaction_first_offset != NO_OFFSET:
            self._begin(run.producer_id, run.transaction_first_offset)


def _appended(batch: BatchHeader) -> AppendedBatch:
    return AppendedBatch(batch.last_sequence, batch.last_offset, batch.last_offset_delta, batch.max_timestamp)


def _by_row(runs: Iterable[ProducerRun]) -> Iterator[tuple[int, ProducerRun | None]]:
    return ((run.first_row, run) for run in runs)
