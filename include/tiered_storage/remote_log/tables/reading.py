"""Read a split into Arrow record batches, chunk by chunk: memory holds a few chunks, whatever the split's size.

The checksum of every batch in the range is verified before its header is used. What the checksum does not cover is
checked too: a batch's offsets against the remote log index, its leader epoch against the segment's metadata. A corrupt
chunk is fetched once more. If it is corrupt in the store, reading ends with an error; if the caller handles corrupt
batches, it gets the batch, or the whole chunk of an encoded segment, and reading continues after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tiered_storage.errors import CorruptRecordError, RemoteChunkCorruptError
from tiered_storage.kafka_log.columnar.decoder import Checks, ColumnDecoder, RecordRange
from tiered_storage.kafka_log.indexes.transaction_index import AbortedBatches
from tiered_storage.kafka_log.kernels.constants import APPEND_TIME_BIT, CONTROL_BIT, DELETE_HORIZON_BIT
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.remote_log.indexes.remote_log_index import RemoteLogIndexEntry
from tiered_storage.remote_log.progress import OnMoved, unreported
from tiered_storage.remote_log.read.chunks.checked_chunk import (
    DamagedBytes,
    check_batches,
    chunk_headers,
    raise_damaged,
    sound_batches,
)
from tiered_storage.remote_log.read.chunks.chunk_sequence import chunk_entries, fetch_for_check, fetch_in_order
from tiered_storage.remote_log.storage.remote_storage_manager import RemoteStorageManager
from tiered_storage.remote_log.tables.columns import TableColumns
from tiered_storage.remote_log.tables.planning import TableRange, TableSplit
from tiered_storage.remote_log.tables.query import RowFilter

_NONE = -1


def _may_have(entry: RemoteLogIndexEntry, wanted: TableRange, rows: RowFilter) -> bool:
    if entry.last_offset < wanted.start_offset or entry.first_offset > wanted.end_offset:
        return False
    if rows.first_timestamp is not None and entry.last_timestamp < rows.first_timestamp:
        return False
    latest = rows.latest_begin
    return latest is None or entry.first_timestamp == _NONE or entry.first_timestamp < latest


@dataclass(frozen=True, slots=True)
class BrokenBytes:
    """Bytes `position` to `position + size` (exclusive) of a remote segment's `object` that are not valid records.

    The records there had offsets from `first_offset` to `last_offset` (inclusive). `reason` is why they are invalid.
    """

    partition: int
    object: str
    position: int
    size: int
    first_offset: int
    last_offset: int
    reason: str


OnBroken = Callable[[BrokenBytes], None]

_CHECKED_ALREADY = Checks(crc=False)


def read_split(
    split: TableSplit, storage: RemoteStorageManager, columns: TableColumns, on_moved: OnMoved = unreported
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `split`, in order of its ranges and of their offsets.

    Raises RemoteObjectCorruptError for a batch that is not as it was sent, CorruptRecordError for one whose records
    cannot be decoded, CorruptIndexError for a broken index, RemoteObjectNotFoundError if a segment was deleted since it
    was planned, and what else the store raises.
    """
    for each in split.ranges:
        yield from read_range(each, split.rows, storage, columns, on_moved=on_moved)


def read_range(
    wanted: TableRange,
    rows: RowFilter,
    storage: RemoteStorageManager,
    columns: TableColumns,
    *,
    on_moved: OnMoved = unreported,
    on_broken: OnBroken | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield `rows` of one range in order of their offsets; raises as `read_split`.

    If `on_broken` is given, it gets corrupt batches, and reading continues after them. `on_moved` gets the bytes read.
    """
    segment = wanted.segment
    of = segment.topic_id_partition
    reader = _RangeReader(wanted, rows, storage, columns, on_broken)
    chunks = (each for each in chunk_entries(segment, storage) if _may_have(each, wanted, rows))
    for chunk, content in fetch_in_order(segment, chunks, storage):
        if isinstance(content, RemoteChunkCorruptError):
            reader.leave_out(chunk, content)
            continue
        for decoded in reader.decoded(chunk, content):
            yield columns.converted(decoded, of.topic, of.partition)
        on_moved(len(content))


class _RangeReader:
    """Decodes the chunks of one range."""

    def __init__(
        self,
        wanted: TableRange,
        rows: RowFilter,
        storage: RemoteStorageManager,
        columns: TableColumns,
        on_broken: OnBroken | None,
    ) -> None:
        self._wanted = wanted
        self._rows = rows
        self._storage = storage
        self._columns = columns.decoded
        self._on_broken = on_broken
        self._aborted = AbortedBatches(wanted.aborted) if rows.committed_only and wanted.aborted else None
        self._decoder: ColumnDecoder | None = None
        self._reached = wanted.start_offset

    def decoded(self, chunk: RemoteLogIndexEntry, content: bytes) -> Iterator[pa.RecordBatch]:
        """Yield the wanted rows of a chunk, with the decoded columns.

        A chunk that was corrupted in transit is fetched again; one that is corrupt in the store is reported.
        """
        data = memoryview(content)
        try:
            table = chunk_headers(self._wanted.segment, chunk, data)
            for batch in self._rows_inside(chunk, data, table.take(self._inside(table))):
                self._reached = _last_offset(batch) + 1
                yield batch
        except CorruptRecordError:
            again = fetch_for_check(self._wanted.segment, chunk, self._storage)
            yield from self._around(chunk, memoryview(again))

    def leave_out(self, chunk: RemoteLogIndexEntry, error: RemoteChunkCorruptError) -> None:
        """Report a whole chunk that cannot be decoded; raises `error` without `on_broken`."""
        if self._on_broken is None:
            raise error
        place = (chunk.position, chunk.length, chunk.first_offset, chunk.last_offset)
        self._on_broken(self._broken(chunk, place, str(error)))

    def _around(self, chunk: RemoteLogIndexEntry, data: memoryview) -> Iterator[pa.RecordBatch]:
        """Continue from the reached offset, batch by batch; corrupt ones go to `on_broken` if it is given."""

        def report(damaged: DamagedBytes) -> None:
            if self._on_broken is None:
                raise_damaged(damaged.error)
            place = (damaged.position, damaged.size, damaged.first_offset, damaged.last_offset)
            self._on_broken(self._broken(chunk, place, damaged.error.reason))

        for alone in sound_batches(self._wanted.segment, chunk, data, self._inside, report):
            self._decoder = None
            try:
                # All of a batch or nothing: it may be corrupt only at its end.
                found = list(self._decoded(chunk, data, alone))
            except CorruptRecordError as error:
                if self._on_broken is None:
                    raise
                report(DamagedBytes.batch(alone, error))
                continue
            yield from found
        self._decoder = None

    def _rows_inside(self, chunk: RemoteLogIndexEntry, data: memoryview, table: BatchTable) -> Iterator[pa.RecordBatch]:
        """Yield the wanted rows of the batches in `table`, after checking each one's checksum and leader epoch.

        No header may exclude its batch before it is checked.
        """
        check_batches(self._wanted.segment, chunk, data, table)
        yield from self._decoded(chunk, data, table)

    def _decoded(self, chunk: RemoteLogIndexEntry, data: memoryview, table: BatchTable) -> Iterator[pa.RecordBatch]:
        table = table.take(self._wanted_batches(table))
        if not len(table):
            return
        if self._decoder is None:
            within = RecordRange(
                self._reached,
                self._wanted.end_offset + 1,
                self._rows.first_timestamp,
                self._rows.end_timestamp,
                with_control=False,
            )
            self._decoder = ColumnDecoder(chunk.object_name, self._columns, within, _CHECKED_ALREADY)
        # The decoder expects the bytes to begin with the first batch of the table.
        yield from self._decoder.decode(data[int(table.position[0]) - chunk.position :], table)

    def _inside(self, table: BatchTable) -> NDArray[np.intp]:
        """Return the batches with offsets of the range that are not read yet."""
        return np.flatnonzero((table.last_offset >= self._reached) & (table.base_offset <= self._wanted.end_offset))

    def _wanted_batches(self, table: BatchTable) -> NDArray[np.intp]:
        taken = table.attributes & CONTROL_BIT == 0
        if self._rows.first_timestamp is not None:
            taken &= table.max_timestamp >= self._rows.first_timestamp
        if self._rows.latest_begin is not None:
            # With log append time every record has the largest timestamp; the base timestamp is the producer's, which
            # readers never see. A batch with a delete horizon has that in place of its base timestamp.
            begins = np.where(table.attributes & APPEND_TIME_BIT != 0, table.max_timestamp, table.base_timestamp)
            begins_late = begins >= self._rows.latest_begin
            taken &= ~(begins_late & (table.attributes & DELETE_HORIZON_BIT == 0))
        if self._aborted is not None:
            taken &= ~self._aborted.holds(table)
        return np.flatnonzero(taken)

    def _broken(self, chunk: RemoteLogIndexEntry, place: tuple[int, int, int, int], reason: str) -> BrokenBytes:
        """Return the bytes at `place`: position, size, first and last offset."""
        return BrokenBytes(self._wanted.segment.topic_id_partition.partition, chunk.object_name, *place, reason)


def _last_offset(batch: pa.RecordBatch) -> int:
    offsets = batch.column("offset")
    return int(offsets[len(offsets) - 1].as_py())
