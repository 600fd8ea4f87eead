"""Check a segment's transaction index and producer snapshot against its batches, while the batches are copied.

The check follows the producers through the batches, beginning with their known state at the segment's base offset. If
that state is complete, both files must agree with the batches. If a file is missing, broken or false, the copy sends
one that is rebuilt from the batches.

If the state is incomplete, a transaction that is aborted in the segment may have begun before the known part. The copy
then trusts the files unless the batches contradict them. If the segment has abort markers, and its transaction index is
missing or contradicted, the store decides:

- If the store has records from before the known part, the segment is not copied: some of them may be aborted, and no
  index would show it.
- If the store has none, readers need only an index from the batches. This case is ordinary: a broker drops its oldest
  snapshot when it starts, and it writes no index entry, perhaps no file, if an aborted transaction has no records.

For the same reason the copy trusts an index that lacks only some of these aborts, but reports it.

The segment that holds an abort's marker records the abort, see transaction_index.py. The file and the batches each give
a last stable offset; the copy sends the lower one. A broker's may be too high. One that is too low is safe: readers
only look further.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tiered_storage.errors import CorruptIndexError, InvalidLogDirectoryError
from tiered_storage.kafka_log.indexes.transaction_index import (
    ENTRY_BYTES,
    AbortedTxn,
    TransactionIndex,
    encode_aborted_transactions,
)
from tiered_storage.kafka_log.producers.producer_entry import NO_COORDINATOR_EPOCH
from tiered_storage.kafka_log.producers.producer_history import KnownProducers, follow
from tiered_storage.kafka_log.producers.producer_snapshot import (
    ProducerSnapshotEntry,
    encode_producer_snapshot,
)
from tiered_storage.kafka_log.producers.transaction_state import OpenTransactions
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.kafka_log.records.control_record import abort_markers
from tiered_storage.remote_log.source.segment_source import OpenSegment
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind

_BOTH = 2
_REBUILT = "the remote segment has one rebuilt from the log"


def instead_of_index(segment: OpenSegment) -> str:
    """Return a message: what the copy does about a broken index of `segment`, and what the user can do."""
    return f"{_REBUILT}; {segment.index_remedy}"


class _Logged:
    """What the batches of a segment show of its producers, from those `known` at its start on."""

    def __init__(self, known: KnownProducers) -> None:
        """Begin at the segment's first batch."""
        self.state = known.state()
        self.aborted: list[AbortedTxn] = []
        self.abort_markers: set[tuple[int, int]] = set()
        """Producer id and offset of each; collected only if not all producers are known."""
        self._is_partial = known.seen_from is not None

    def feed(self, name: str, window: memoryview, batches: BatchTable) -> None:
        """Take the next batches of the segment `name`, whose bytes are `window`. Raises CorruptRecordError."""
        if self._is_partial:
            self.abort_markers.update(abort_markers(name, window, batches))
        self.aborted += follow(self.state, name, window, batches)


class ProducerFileCheck:
    """Follows the producers through one segment, and then returns the files to send.

    `damages` and `notices` are those of a CopyOutcome.
    """

    def __init__(self, segment: OpenSegment, known: KnownProducers, readable_from: int = 0) -> None:
        """Begin where `segment` begins, with the producers known there.

        `readable_from` is the first offset (inclusive) of the partition that readers get from the store.
        """
        self._segment = segment
        self._begun_with = known
        self._readable_from = readable_from
        self._logged = _Logged(known)
        self._contradictions = 0
        """How many of the files are intact, but contradict the log."""
        self.lacks_snapshot = False
        """Whether the snapshot after the segment turned out to be missing, broken or false."""
        self.damages: list[str] = []
        self.notices: list[str] = []

    def feed(self, window: memoryview, batches: BatchTable) -> None:
        """Take the segment's next batches, whose bytes are `window`.

        Raises CorruptRecordError if an end marker cannot be read.
        """
        self._logged.feed(self._segment.name, window, batches)

    def corrected(self, logged: KnownProducers) -> ProducerFileCheck | None:
        """Return the files as they follow from `logged` if the snapshot before the segment is wrong; else None.

        `logged` are the producers before the segment, as the log shows them. The snapshot is wrong if its open
        transactions differ. If `logged` is incomplete, it is wrong only if both files after it, the next snapshot and
        the transaction index, are intact and contradict it.
        """
        is_false = logged.open_transactions != self._begun_with.open_transactions
        if logged.seen_from is not None:
            is_false = self._contradictions == _BOTH
        if not is_false:
            return None
        snapshot = self._segment.producer_snapshot(self._segment.base_offset)
        rebuilt = ProducerFileCheck(self._segment, logged, self._readable_from)
        rebuilt.damages.append(
            f"{snapshot.name}: the snapshot disagrees with its log, or with the files after it, on which transactions "
            "are open; it was ignored"
        )
        for window, batches in self._segment.windows(verify_crc=False):
            rebuilt.feed(window, batches)
        return rebuilt

    def known(self) -> KnownProducers:
        """Return the producers known after the batches so far."""
        return KnownProducers(self._logged.state.end_offset, self._logged.state.snapshot(), self._seen_from)

    @property
    def _seen_from(self) -> int | None:
        return self._begun_with.seen_from

    def contents(self) -> dict[IndexKind, bytes]:
        """Return those of the two files that the segment needs.

        Raises InvalidLogDirectoryError, with what to do, if the aborted transactions cannot be determined.
        """
        found = {
            IndexKind.TRANSACTION: self._transaction_index(),
            IndexKind.PRODUCER_SNAPSHOT: self._producer_snapshot(),
        }
        return {kind: content for kind, content in found.items() if content}

    def _transaction_index(self) -> bytes:
        is_there = True
        try:
            found = self._segment.transaction_index.read()
            is_there = found is not None
            if not (is_there or self._logged.aborted or self._logged.abort_markers):
                return b""
            entries = self._checked(found)
        except (CorruptIndexError, InvalidLogDirectoryError) as error:
            if self._logged.abort_markers and self._readable_from < (self._seen_from or 0):
                raise InvalidLogDirectoryError(f"{error}; {self._remedy()}") from error
            if self._logged.aborted or is_there:
                self.damages.append(f"{error}; {instead_of_index(self._segment)}")
            else:
                self.notices.append(
                    f"{error}: none of them ends a transaction with records from offset {self._seen_from} on, and the "
                    "store has none before"
                )
            return encode_aborted_transactions(self._logged.aborted)
        self._report_missing_entries(entries)
        return encode_aborted_transactions(entries)

    def _producer_snapshot(self) -> bytes | None:
        """Return the snapshot at the offset after the segment; None if it is lost and cannot be rebuilt."""
        snapshot = self._segment.producer_snapshot(self._logged.state.end_offset)
        instead = _REBUILT if self._seen_from is None else "the remote segment goes without a producer snapshot"
        try:
            producers = snapshot.read()
            if producers is not None:
                self._check_snapshot(snapshot.name, producers)
                return encode_producer_snapshot(producers)
            self.notices.append(f"{snapshot.name} is missing: {instead}")
        except CorruptIndexError as error:
            self.damages.append(f"{error}; {instead}")
        self.lacks_snapshot = True
        return None if self._seen_from is not None else encode_producer_snapshot(self._logged.state.snapshot())

    def _checked(self, index: TransactionIndex | None) -> Sequence[AbortedTxn]:
        """Return the file's entries that the batches do not contradict, with the last stable offsets to send."""
        path = self._segment.transaction_index.name
        if index is None:
            raise InvalidLogDirectoryError(f"{path} is missing, though the segment has abort markers")
        found = index.transactions
        of_log = {entry.last_offset: entry for entry in self._logged.aborted}
        entries: list[AbortedTxn] = []
        for entry in found:
            logged = of_log.pop(entry.last_offset, None)
            if not self._is_true(entry, logged):
                raise self._contradiction(path, len(entries) * ENTRY_BYTES, f"the log has no such abort: {entry}")
            decided = entry.decided_up_to if logged is None else min(entry.decided_up_to, logged.decided_up_to)
            entries.append(replace(entry, last_stable_offset=decided))
        if of_log:
            lacking = next(iter(of_log.values()))
            raise self._contradiction(path, len(found) * ENTRY_BYTES, f"it lacks an abort that the log has: {lacking}")
        return entries

    def _report_missing_entries(self, entries: Sequence[AbortedTxn]) -> None:
        """Report aborts without an entry whose transactions may have records in the store before the known part.

        Most of them have no records at all. It ignores a file without any entry, which states just that.
        """
        if not entries or self._readable_from >= (self._seen_from or 0):
            return
        ended = {
            producer.producer_id
            for producer in self._begun_with.producers
            if producer.coordinator_epoch != NO_COORDINATOR_EPOCH
        }
        first_aborts: dict[int, int] = {}
        for producer_id, offset in self._logged.abort_markers:
            first_aborts[producer_id] = min(offset, first_aborts.get(producer_id, offset))
        written = {entry.last_offset for entry in entries}
        lacking = sorted(
            offset for producer_id, offset in first_aborts.items() if producer_id not in ended and offset not in written
        )
        if lacking:
            self.notices.append(
                f"{self._segment.transaction_index.name} has no entry for {len(lacking)} abort markers, the first at "
                f"offset {lacking[0]}. That is correct if their transactions have no records. If one of them began "
                f"before offset {self._seen_from}, where the known producers begin, readers of the store get its "
                "aborted records: compare the file with that of another replica"
            )

    def _is_true(self, entry: AbortedTxn, of_log: AbortedTxn | None) -> bool:
        """Return whether `entry` equals the log's, `of_log`, or can describe a time that the log no longer shows."""
        began_before = entry.first_offset < (self._seen_from or 0)
        if of_log is None:
            return began_before and (entry.producer_id, entry.last_offset) in self._logged.abort_markers
        return entry.producer_id == of_log.producer_id and (began_before or entry.first_offset == of_log.first_offset)

    def _check_snapshot(self, path: str, producers: Sequence[ProducerSnapshotEntry]) -> None:
        """Compare the open transactions with the log: a broker forgets silent producers, but never these."""
        found = OpenTransactions.of(producers).first_offsets
        if self._seen_from is None and found != self._logged.state.open_transactions:
            raise self._contradiction(path, 0, "other transactions are open")

    def _contradiction(self, path: str, position: int, reason: str) -> CorruptIndexError:
        self._contradictions += 1
        return CorruptIndexError(path, position, f"the file disagrees with its log: {reason}")

    def _remedy(self) -> str:
        snapshot = self._segment.producer_snapshot(self._segment.base_offset).name
        instead = "put an empty file in its place"
        if self._logged.aborted:
            instead = (
                f"delete {self._segment.offset_index.name} while the broker is stopped: it rebuilds the transaction "
                "index when it starts"
            )
        return (
            f"readers of the store, which has offsets from {self._readable_from} on, would get aborted records. The "
            f"file cannot be rebuilt here: producers before offset {self._seen_from} are unknown. Restore it, or "
            f"{snapshot}, from another replica. If you are sure that no transaction from before offset "
            f"{self._seen_from} was aborted, {instead}"
        )
