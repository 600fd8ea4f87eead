"""Dump the index files of a segment entry by entry, and compare them with the log beside them, if it is there.

The entries of a corrupt index are shown up to the damage. offset_index.py, time_index.py and transaction_index.py
define what an entry promises; which entries must exist is not checked, since it depends on the broker's settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tiered_storage.errors import CorruptIndexError, CorruptRecordError
from tiered_storage.kafka_log.dump.dump_event import DumpEvent, DumpProblem, DumpRow, RowKind
from tiered_storage.kafka_log.dump.log_dump import end_of_log
from tiered_storage.kafka_log.indexes.index_check import OffsetIndexCheck, TimeIndexCheck
from tiered_storage.kafka_log.indexes.offset_index import ENTRY as OFFSET_ENTRY
from tiered_storage.kafka_log.indexes.offset_index import OffsetIndex
from tiered_storage.kafka_log.indexes.time_index import ENTRY as TIME_ENTRY
from tiered_storage.kafka_log.indexes.time_index import TimeIndex
from tiered_storage.kafka_log.indexes.transaction_index import ENTRY_BYTES, AbortedTxn, TransactionIndex
from tiered_storage.kafka_log.kernels.constants import CONTROL_BIT
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.kafka_log.records.segment_scan import iterate_segment
from tiered_storage.regular_files import open_unbuffered

_TRANSACTION_ENTRY = np.dtype(
    [("version", ">i2"), ("producerId", ">i8"), ("firstOffset", ">i8"), ("lastOffset", ">i8"), ("stable", ">i8")]
)
_CHUNK = 1 << 14


class _Check(Protocol):
    """Compares an index with the batches of its log, like those in index_check.py."""

    def feed(self, batches: BatchTable) -> None: ...

    def finish(self) -> None: ...


def dump_offset_index(path: Path, base_offset: int, log_path: Path) -> Iterator[DumpEvent]:
    """Yield the entries of an offset index (`offset` and `position`), then its problems."""

    def rows(entries: NDArray[Any]) -> Iterator[dict[str, object]]:
        offsets = entries["relative_offset"].astype(np.int64) + base_offset
        for offset, position in zip(offsets.tolist(), entries["position"].tolist(), strict=True):
            yield {"offset": offset, "position": position}

    def read() -> tuple[int, _Check]:
        index = OffsetIndex.read(path, base_offset)
        return index.offsets.size, OffsetIndexCheck(path, index)

    yield from _dump_index(path, base_offset, log_path, OFFSET_ENTRY, rows, read)


def dump_time_index(path: Path, base_offset: int, log_path: Path) -> Iterator[DumpEvent]:
    """Yield the entries of a time index (`timestamp`, ms, and `offset`), then its problems."""

    def rows(entries: NDArray[Any]) -> Iterator[dict[str, object]]:
        offsets = entries["relative_offset"].astype(np.int64) + base_offset
        for timestamp, offset in zip(entries["timestamp"].tolist(), offsets.tolist(), strict=True):
            yield {"timestamp": timestamp, "offset": offset}

    def read() -> tuple[int, _Check]:
        index = TimeIndex.read(path, base_offset)
        return index.offsets.size, TimeIndexCheck(path, index)

    yield from _dump_index(path, base_offset, log_path, TIME_ENTRY, rows, read)


def dump_transaction_index(path: Path, base_offset: int, log_path: Path) -> Iterator[DumpEvent]:
    """Yield the entries of a transaction index, then its problems."""

    def rows(entries: NDArray[Any]) -> Iterator[dict[str, object]]:
        for version, producer_id, first_offset, last_offset, stable in entries.tolist():
            yield {
                "version": version,
                "producerId": producer_id,
                "firstOffset": first_offset,
                "lastOffset": last_offset,
                "lastStableOffset": stable,
            }

    def read() -> tuple[int, _Check]:
        index = TransactionIndex.read(path, base_offset)
        return len(index.transactions), _MarkerCheck(path, index)

    yield from _dump_index(path, base_offset, log_path, _TRANSACTION_ENTRY, rows, read)


def _dump_index(
    path: Path,
    base_offset: int,
    log_path: Path,
    entry: np.dtype[np.void],
    rows: Callable[[NDArray[Any]], Iterator[dict[str, object]]],
    read: Callable[[], tuple[int, _Check]],
) -> Iterator[DumpEvent]:
    """Yield the sound `rows` of the entries in `path`, and the problems that `read` or its check finds."""
    problem, check = None, None
    try:
        count, check = read()
    except CorruptIndexError as error:
        count, problem = error.position // entry.itemsize, DumpProblem(error)
    for first in range(0, count, _CHUNK):
        with open_unbuffered(path) as file:
            entries = np.fromfile(file, entry, min(_CHUNK, count - first), offset=first * entry.itemsize)
        for fields in rows(entries):
            yield DumpRow(RowKind.ENTRY, fields)
    if problem is not None:
        yield problem
    if check is not None and log_path.is_file():
        yield from _hold_against_log(check, log_path, base_offset)


def _hold_against_log(check: _Check, log_path: Path, base_offset: int) -> Iterator[DumpEvent]:
    size, next_offset = log_path.stat().st_size, base_offset
    try:
        try:
            for _, batches in iterate_segment(log_path, base_offset, verify_crc=False):
                check.feed(batches)
                next_offset = int(batches.last_offset[-1]) + 1
        except CorruptRecordError as error:
            end = end_of_log(log_path, size, error, next_offset)
            if isinstance(end, DumpProblem):
                yield end
                return
        check.finish()
    except CorruptIndexError as error:
        yield DumpProblem(error)


class _MarkerCheck:
    """Checks that each entry of a transaction index ends with its producer's marker; feed it the segment's batches.

    The marker may be missing, with its whole transaction, if the log was compacted.
    """

    def __init__(self, path: Path, index: TransactionIndex) -> None:
        self._path = path
        self._transactions = index.transactions
        self._checked = 0

    def feed(self, batches: BatchTable) -> None:
        """Take the next batches. Raises CorruptIndexError at the first entry that they contradict."""
        while self._checked < len(self._transactions):
            transaction = self._transactions[self._checked]
            row = int(np.searchsorted(batches.last_offset, transaction.last_offset))
            if row == len(batches):
                return
            if batches.base_offset[row] <= transaction.last_offset:
                self._check(batches, row, transaction)
            self._checked += 1

    def finish(self) -> None:
        """End the check. Raises CorruptIndexError if entries point past the batches."""
        if self._checked < len(self._transactions):
            self._refuse("the entry points past the end of the log")

    def _check(self, batches: BatchTable, row: int, transaction: AbortedTxn) -> None:
        is_control = bool(batches.attributes[row] & CONTROL_BIT)
        if not is_control or batches.producer_id[row] != transaction.producer_id:
            self._refuse(f"no marker of producer {transaction.producer_id} is at offset {transaction.last_offset}")

    def _refuse(self, reason: str) -> None:
        position = self._checked * ENTRY_BYTES
        raise CorruptIndexError(self._path, position, f"the index disagrees with its log: {reason}")
