"""Kafka's transaction index: the aborted transactions whose abort markers are in a segment.

`{base offset, 20 digits}.txnindex` is a run of 34-byte entries, big-endian, in the order of their markers:

    version              int16   0
    producer id          int64
    first offset         int64   of the transaction, maybe in an earlier segment
    last offset          int64   the abort marker's
    last stable offset   int64   as the marker left it: the first offset of the earliest transaction that was still
                                 open, or the offset after the marker; a follower may have written a later one

A transaction that begins in one segment and is aborted in another has its entry in the latter alone: a reader continues
into later segments until an entry shows that no more transactions before an offset can be aborted. The file exists only
if there was an abort, is never preallocated, and grows entry by entry.

A follower takes all batches of a fetch before it computes the last stable offsets of the transactions that end in it.
If none is open at the marker, an entry may name the first offset of a transaction that begins later in the same fetch,
even if the very next batch begins another one of the same producer. So only the part of a last stable offset up to the
offset after the marker is reliable: the marker decides nothing that begins there.

Source: KIP-98; released Kafka (UnifiedLog, ProducerStateManager).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tiered_storage.errors import CorruptIndexError
from tiered_storage.kafka_log.files.small_files import read_small_file
from tiered_storage.kafka_log.indexes.index_file import MAX_INDEX_BYTES
from tiered_storage.kafka_log.kernels.constants import CONTROL_BIT, TRANSACTIONAL_BIT
from tiered_storage.kafka_log.records.batch_table import BatchTable

VERSION = 0

_ENTRY = struct.Struct(">hqqqq")
ENTRY_BYTES = _ENTRY.size


@dataclass(frozen=True, slots=True)
class AbortedTxn:
    """An entry of the index (Kafka's AbortedTxn): absolute offsets, `last_offset` (inclusive) is the abort marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    @property
    def decided_up_to(self) -> int:
        """The offset (exclusive) below which no transaction is open after the marker, whoever wrote the entry."""
        return min(self.last_stable_offset, self.last_offset + 1)


@dataclass(frozen=True, slots=True)
class TxnIndexSearchResult:
    """The result of a look-up; if `is_complete`, later segments have no more for its range of offsets."""

    transactions: tuple[AbortedTxn, ...]
    is_complete: bool


@dataclass(frozen=True, slots=True)
class TransactionIndex:
    """The transaction index of one segment in memory: 34 bytes per abort."""

    base_offset: int
    transactions: tuple[AbortedTxn, ...] = ()

    @classmethod
    def read(cls, path: Path, base_offset: int) -> Self:
        """Read the entries of `path`; a missing file has none.

        Raises CorruptIndexError if an entry is torn or of an unknown version, ends before it begins or before the
        segment, does not end after the one before it, or has a last stable offset below 0.
        """
        if not path.is_file():
            return cls(base_offset)
        return cls.parse(read_small_file(path, MAX_INDEX_BYTES), path, base_offset)

    @classmethod
    def parse(cls, raw: bytes, source: Path | str, base_offset: int) -> Self:
        """Return the entries in `raw`, the content of an index; raises as `read`, naming `source`."""
        whole = len(raw) // ENTRY_BYTES * ENTRY_BYTES
        if len(raw) != whole:
            raise CorruptIndexError(source, whole, f"{len(raw)} bytes are not a whole number of entries")
        transactions: list[AbortedTxn] = []
        lowest = base_offset
        for version, *fields in _ENTRY.iter_unpack(raw):
            position = len(transactions) * ENTRY_BYTES
            entry = AbortedTxn(*fields)
            _check(source, position, version, entry, lowest)
            transactions.append(entry)
            lowest = entry.last_offset + 1
        return cls(base_offset, tuple(transactions))

    def collect_aborted(self, start_offset: int, end_offset: int) -> TxnIndexSearchResult:
        """Return the aborted transactions with records in [`start_offset`, `end_offset`) that end in this segment.

        If the result is not complete, search the next segment's index as well.
        """
        found = []
        for transaction in self.transactions:
            if transaction.last_offset >= start_offset and transaction.first_offset < end_offset:
                found.append(transaction)
            if transaction.decided_up_to >= end_offset:
                return TxnIndexSearchResult(tuple(found), is_complete=True)
        return TxnIndexSearchResult(tuple(found), is_complete=False)

    def to_bytes(self) -> bytes:
        """Return the file's content."""
        return encode_aborted_transactions(self.transactions)


def collect_aborted(indexes: Iterable[TransactionIndex], start_offset: int, end_offset: int) -> TxnIndexSearchResult:
    """Return the aborted transactions with records in [`start_offset`, `end_offset`).

    `indexes` are those of the segments from the one with `start_offset` on; only as many are taken as needed.
    """
    found: list[AbortedTxn] = []
    for index in indexes:
        here = index.collect_aborted(start_offset, end_offset)
        found += here.transactions
        if here.is_complete:
            return TxnIndexSearchResult(tuple(found), is_complete=True)
    return TxnIndexSearchResult(tuple(found), is_complete=False)


def read_sound_entries(path: Path, base_offset: int) -> tuple[AbortedTxn, ...]:
    """Return the entries of the file `path` that are valid each on its own, even if it is torn, corrupt or missing."""
    try:
        raw = read_small_file(path, MAX_INDEX_BYTES)
    except (FileNotFoundError, CorruptIndexError):
        return ()
    found: list[AbortedTxn] = []
    for position in range(0, len(raw) - ENTRY_BYTES + 1, ENTRY_BYTES):
        version, *fields = _ENTRY.unpack_from(raw, position)
        entry = AbortedTxn(*fields)
        try:
            _check(path, position, version, entry, base_offset)
        except CorruptIndexError:
            continue
        found.append(entry)
    return tuple(found)


def encode_aborted_transactions(transactions: Sequence[AbortedTxn]) -> bytes:
    """Return the bytes of these entries, one after the other."""
    return b"".join(
        _ENTRY.pack(VERSION, entry.producer_id, entry.first_offset, entry.last_offset, entry.last_stable_offset)
        for entry in transactions
    )


def _check(source: Path | str, position: int, version: int, entry: AbortedTxn, lowest: int) -> None:
    if version != VERSION:
        raise CorruptIndexError(source, position, f"entry version {version} is unknown: {VERSION} was expected")
    if entry.first_offset < 0 or entry.first_offset > entry.last_offset:
        reason = f"the transaction goes from offset {entry.first_offset} to {entry.last_offset}"
        raise CorruptIndexError(source, position, reason)
    if entry.last_offset < lowest:
        raise CorruptIndexError(source, position, f"the abort at offset {entry.last_offset} comes before {lowest}")
    if entry.last_stable_offset < 0:
        raise CorruptIndexError(source, position, f"the last stable offset {entry.last_stable_offset} is below 0")


class AbortedBatches:
    """Aborted transactions, for look-ups of many batches at once."""

    def __init__(self, transactions: Iterable[AbortedTxn]) -> None:
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
