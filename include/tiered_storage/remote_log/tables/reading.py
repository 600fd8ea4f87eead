"""Reads a split into Arrow record batches, chunk after chunk: memory is that of a few chunks, whatever the split has.

The checksum of every batch is compared. What the checksum does not cover, a batch's place among the offsets, is held
against the remote log index. A batch that is broken ends the reading with an error; or, where somebody takes broken
ones, it is handed to him and the reading goes on behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tiered_storage.errors import CorruptRecordError
from tiered_storage.kafka_log.batch_header import (
    APPEND_TIME_BIT,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    TRANSACTIONAL_BIT,
)
from tiered_storage.kafka_log.batch_table import BatchTable
from tiered_storage.kafka_log.columnar import ColumnDecoder, RecordRange
from tiered_storage.kafka_log.segment_scan import SegmentScanner
from tiered_storage.kafka_log.transaction_index import AbortedTransaction
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.remote_log_index import RemoteLogIndexEntry
from tiered_storage.remote_log.storage import RemoteStorageManager
from tiered_storage.remote_log.tables.chunks import chunks_of, fetched
from tiered_storage.remote_log.tables.columns import TableColumns
from tiered_storage.remote_log.tables.query import RowFilter
from tiered_storage.remote_log.tables.splits import TableRange, TableSplit
from tiered_storage.remote_log.task_progress import OnMoved, untold


@dataclass(frozen=True, slots=True)
class BrokenBytes:
    """Bytes `position` to `position + size` of a remote segment's `object` that are no records, and why.

    Their records have some of the offsets `first_offset` to `last_offset` (inclusive) of the partition.
    """

    partition: int
    object: str
    position: int
    size: int
    first_offset: int
    last_offset: int
    reason: str


OnBroken = Callable[[BrokenBytes], None]


def read_split(
    split: TableSplit, storage: RemoteStorageManager, columns: TableColumns, on_moved: OnMoved = untold
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `split`, in order of its ranges and of their offsets.

    Raises CorruptRecordError for a broken batch, CorruptIndexError for a broken index, RemoteObjectNotFoundError where
    a segment was deleted since it was planned, and what else the store raises.
    """
    for each in split.ranges:
        yield from read_range(each, split.rows, storage, columns, on_moved=on_moved)


def read_range(
    wanted: TableRange,
    rows: RowFilter,
    storage: RemoteStorageManager,
    columns: TableColumns,
    *,
    on_moved: OnMoved = untold,
    on_broken: OnBroken | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield `rows` of one range in order of their offsets; raises as `read_split`.

    With `on_broken` it is told of broken batches and goes on behind them. `on_moved` is told of bytes.
    """
    of = wanted.segment.topic_id_partition
    reader = _RangeReader(wanted, rows, columns, on_broken)
    for chunk, content in fetched(chunks_of(wanted, rows, storage), wanted, storage):
        for decoded in reader.decoded(chunk, content):
            yield columns.converted(decoded, of.topic, of.partition)
        on_moved(len(content))


class _RangeReader:
    """Decodes the chunks of one range."""

    def __init__(self, wanted: TableRange, rows: RowFilter, columns: TableColumns, on_broken: OnBroken | None) -> None:
        self._wanted = wanted
        self._rows = rows
        self._columns = columns.decoded
        self._on_broken = on_broken
        self._aborted = _Aborted(wanted.aborted) if rows.committed_only and wanted.aborted else None
        self._decoder: ColumnDecoder | None = None

    @property
    def _partition(self) -> TopicIdPartition:
        return self._wanted.segment.topic_id_partition

    def decoded(self, chunk: RemoteLogIndexEntry, content: bytes) -> Iterator[pa.RecordBatch]:
        """Yield the wanted rows of a chunk, with the columns that are decoded."""
        data = memoryview(content)
        table = self._scanned(chunk, data)
        table = _rows_of(table, self._wanted_batches(table))
        if not len(table):
            return
        if self._decoder is None:
            self._decoder = self._new_decoder(chunk.object_name, self._wanted.start_offset)
        reached = self._wanted.start_offset
        try:
            for batch in self._decoder.decode(_behind(data, chunk, table), table):
                reached = _last_offset(batch) + 1
                yield batch
        except CorruptRecordError:
            if self._on_broken is None:
                raise
            yield from self._around(chunk, data, table, reached, self._on_broken)

    def _new_decoder(self, source: str, first_offset: int) -> ColumnDecoder:
        within = RecordRange(
            first_offset,
            self._wanted.end_offset + 1,
            self._rows.first_timestamp,
            self._rows.end_timestamp,
            with_control=False,
        )
        return ColumnDecoder(source, self._columns, within)

    def _around(
        self, chunk: RemoteLogIndexEntry, data: memoryview, table: BatchTable, reached: int, on_broken: OnBroken
    ) -> Iterator[pa.RecordBatch]:
        """Go on from offset `reached`, each batch by itself; `on_broken` is told of those that are broken."""
        for row in np.flatnonzero(table.last_offset >= reached).tolist():
            alone = _rows_of(table, np.array([row]))
            first, last = int(alone.base_offset[0]), int(alone.last_offset[0])
            decoder = self._new_decoder(chunk.object_name, reached)
            try:
                # A batch that breaks at its end gives none of its records.
                rows = list(decoder.decode(_behind(data, chunk, alone), alone))
            except CorruptRecordError as broken:
                on_broken(self._broken(chunk, broken.position, int(alone.size[0]), first, last, broken.reason))
                continue
            yield from rows

    def _scanned(self, chunk: RemoteLogIndexEntry, data: memoryview) -> BatchTable:
        """Return the batches of a chunk: all, or those in front of a broken header where broken ones are taken."""
        try:
            table = self._scan(chunk, data)
            self._check_offsets(chunk, table)
        except CorruptRecordError as error:
            if self._on_broken is None:
                raise
            sound = max(0, error.position - chunk.position)
            table = self._scan(chunk, data[:sound]) if sound else BatchTable.allocate(0)
            next_offset = int(table.last_offset[-1]) + 1 if len(table) else chunk.first_offset
            last = max(chunk.last_offset, next_offset)
            self._on_broken(self._broken(chunk, error.position, chunk.length - sound, next_offset, last, error.reason))
        return table

    def _scan(self, chunk: RemoteLogIndexEntry, data: memoryview) -> BatchTable:
        scanner = SegmentScanner(
            chunk.object_name, self._wanted.segment.start_offset, start_position=chunk.position, verify_crc=False
        )
        table, consumed = scanner.feed(data)
        scanner.finish(len(data) - consumed)
        return table

    def _check_offsets(self, chunk: RemoteLogIndexEntry, table: BatchTable) -> None:
        """Hold the offsets that the batches claim against the index: no checksum of a batch covers them."""
        found = (int(table.base_offset[0]), int(table.last_offset[-1])) if len(table) else None
        if found != (chunk.first_offset, chunk.last_offset):
            raise CorruptRecordError(
                chunk.object_name,
                chunk.position,
                f"the batches of the chunk have not offsets {chunk.first_offset} to {chunk.last_offset}, as their "
                "index says",
            )

    def _wanted_batches(self, table: BatchTable) -> NDArray[np.intp]:
        taken = (table.last_offset >= self._wanted.start_offset) & (table.base_offset <= self._wanted.end_offset)
        taken &= table.attributes & CONTROL_BIT == 0
        if self._rows.first_timestamp is not None:
            taken &= table.max_timestamp >= self._rows.first_timestamp
        if self._rows.latest_begin is not None:
            # With log append time all records have the greatest one; the first one's is the producer's, and nobody sees
            # it. With a delete horizon the header does not tell the first record's.
            begins = np.where(table.attributes & APPEND_TIME_BIT != 0, table.max_timestamp, table.base_timestamp)
            begins_late = begins >= self._rows.latest_begin
            taken &= ~(begins_late & (table.attributes & DELETE_HORIZON_BIT == 0))
        if self._aborted is not None:
            taken &= ~self._aborted.holds(table)
        return np.flatnonzero(taken)

    def _broken(
        self, chunk: RemoteLogIndexEntry, position: int, size: int, first: int, last: int, reason: str
    ) -> BrokenBytes:
        return BrokenBytes(self._partition.partition, chunk.object_name, position, size, first, last, reason)


class _Aborted:
    """Aborted transactions, for look-ups of many batches at once."""

    def __init__(self, transactions: tuple[AbortedTransaction, ...]) -> None:
        spans: dict[int, list[tuple[int, int]]] = {}
        for each in sorted(transactions, key=lambda each: each.first_offset):
            spans.setdefault(each.producer_id, []).append((each.first_offset, each.last_offset))
        self._by_producer: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        for producer_id, of_producer in spans.items():
            firsts, lasts = np.array(of_producer, np.int64).T
            self._by_producer[producer_id] = firsts, np.maximum.accumulate(lasts)

    def holds(self, table: BatchTable) -> NDArray[np.bool_]:
        """Return which batches of `table` belong to one of them."""
        held = np.zeros(len(table), np.bool_)
        transactional = table.attributes & TRANSACTIONAL_BIT != 0
        for producer_id in np.unique(table.producer_id[transactional]).tolist():
            if producer_id not in self._by_producer:
                continue
            firsts, lasts = self._by_producer[producer_id]
            rows = np.flatnonzero(transactional & (table.producer_id == producer_id))
            at = np.searchsorted(firsts, table.base_offset[rows], "right") - 1
            held[rows] = (at >= 0) & (table.base_offset[rows] <= lasts[at])
        return held


def _rows_of(table: BatchTable, rows: NDArray[np.intp]) -> BatchTable:
    if rows.size == len(table):
        return table
    return BatchTable(*(column[rows] for column in table.columns()))


def _behind(data: memoryview, chunk: RemoteLogIndexEntry, table: BatchTable) -> memoryview:
    """Return the bytes of the chunk from the first batch of `table` on."""
    return data[int(table.position[0]) - chunk.position :]


def _last_offset(batch: pa.RecordBatch) -> int:
    offsets = batch.column("offset")
    return int(offsets[len(offsets) - 1].as_py())
