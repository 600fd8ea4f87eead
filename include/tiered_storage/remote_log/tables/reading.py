"""Read a split into Arrow record batches, chunk by chunk: memory holds a few chunks, whatever the split's size.

The checksum of every batch in the range is verified before its header is used. What the checksum does not cover is
checked too: a batch's offsets against the remote log index, its leader epoch against the segment's metadata. A corrupt
chunk is fetched once more. If it is corrupt in the store, reading ends with an error; if the caller handles corrupt
batches, it gets the batch, or the whole chunk of an encoded segment, and reading continues after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tiered_storage.errors import (
    CorruptIndexError,
    CorruptRecordError,
    RemoteChunkCorruptError,
    RemoteObjectCorruptError,
    TieredStorageError,
)
from tiered_storage.kafka_log.columnar.decoder import Checks, ColumnDecoder, RecordRange
from tiered_storage.kafka_log.indexes.transaction_index import AbortedTransaction
from tiered_storage.kafka_log.kernels.batch_layout import (
    APPEND_TIME_BIT,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    TRANSACTIONAL_BIT,
)
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.kafka_log.records.segment_scan import SegmentScanner, as_array, check_checksums
from tiered_storage.remote_log.indexes.batch_epochs import wrong_epoch
from tiered_storage.remote_log.indexes.remote_log_index import RemoteLogIndexEntry, iterate_entries
from tiered_storage.remote_log.progress import OnMoved, unreported
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind, RemoteStorageManager
from tiered_storage.remote_log.tables.columns import TableColumns
from tiered_storage.remote_log.tables.planning import TableRange, TableSplit
from tiered_storage.remote_log.tables.query import RowFilter

CHUNKS_AHEAD = 2
"""How many chunks of a few MiB are prefetched while one is decoded."""

_NONE = -1


def chunks_of(wanted: TableRange, rows: RowFilter, storage: RemoteStorageManager) -> Iterator[RemoteLogIndexEntry]:
    """Yield the entries of the chunks that may have `rows` of `wanted`, from the segment's remote log index.

    Raises CorruptIndexError if the index is corrupt or its chunks do not cover the segment, and what the store raises.
    """
    segment = wanted.segment
    source = f"{segment.segment_id}: remoteLogIndex"
    raw = storage.fetch_index(segment, IndexKind.REMOTE_LOG_INDEX)
    position = 0
    for entry in iterate_entries(raw, source):
        if entry.position != position or entry.position + entry.length > segment.size:
            raise CorruptIndexError(
                source, 0, f"the chunk of offset {entry.first_offset} begins at byte {entry.position}"
            )
        position += entry.length
        if entry.last_offset < wanted.start_offset or entry.first_offset > wanted.end_offset:
            continue
        if _may_have(entry, rows):
            yield entry
    if position != segment.size:
        raise CorruptIndexError(source, len(raw), f"its chunks have {position} bytes of the segment's {segment.size}")


def _may_have(entry: RemoteLogIndexEntry, rows: RowFilter) -> bool:
    if rows.first_timestamp is not None and entry.last_timestamp < rows.first_timestamp:
        return False
    latest = rows.latest_begin
    return latest is None or entry.first_timestamp == _NONE or entry.first_timestamp < latest


def fetched(
    entries: Iterator[RemoteLogIndexEntry], wanted: TableRange, storage: RemoteStorageManager
) -> Iterator[tuple[RemoteLogIndexEntry, bytes | RemoteChunkCorruptError]]:
    """Yield each chunk with its bytes; prefetch CHUNKS_AHEAD more.

    Raises as `fetch_chunk`, but yields a RemoteChunkCorruptError in place of the bytes.
    """

    def fetch(entry: RemoteLogIndexEntry) -> bytes | RemoteChunkCorruptError:
        try:
            return fetch_chunk(entry, wanted, storage)
        except RemoteChunkCorruptError as error:
            return error

    waiting: deque[tuple[RemoteLogIndexEntry, Future[bytes | RemoteChunkCorruptError]]] = deque()
    pool = ThreadPoolExecutor(1, thread_name_prefix="table-chunks")
    try:
        for entry in islice(entries, CHUNKS_AHEAD):
            waiting.append((entry, pool.submit(fetch, entry)))
        while waiting:
            entry, coming = waiting.popleft()
            content = coming.result()
            for following in islice(entries, 1):
                waiting.append((following, pool.submit(fetch, following)))
            yield entry, content
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def fetch_chunk(entry: RemoteLogIndexEntry, wanted: TableRange, storage: RemoteStorageManager) -> bytes:
    """Return the bytes of one chunk.

    Raises what the store raises, RemoteChunkCorruptError among it, and RemoteObjectCorruptError if bytes are missing.
    """
    first, last = entry.position, entry.position + entry.length - 1
    try:
        return _ranged(entry, wanted, storage, (first, last))
    except RemoteObjectCorruptError:
        # A chunk can be a whole segment, which the store compares with its checksum. In two parts it is not compared:
        # the bytes arrive, and the batches' checksums show which batch is corrupt. A truncated object fails again.
        middle = (first + last) // 2
        return _ranged(entry, wanted, storage, (first, middle), (middle + 1, last))


def _ranged(
    entry: RemoteLogIndexEntry, wanted: TableRange, storage: RemoteStorageManager, *parts: tuple[int, int]
) -> bytes:
    pieces = (piece for part in parts for piece in storage.fetch_log_segment(wanted.segment, *part))
    content = b"".join(pieces)
    if len(content) != entry.length:
        raise RemoteObjectCorruptError(
            f"{entry.object_name}: the store returned {len(content)} of {entry.length} bytes from byte "
            f"{entry.position} on"
        )
    return content


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

    Raises CorruptRecordError for a broken batch, CorruptIndexError for a broken index, RemoteObjectNotFoundError if
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
    on_moved: OnMoved = unreported,
    on_broken: OnBroken | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield `rows` of one range in order of their offsets; raises as `read_split`.

    If `on_broken` is given, it gets corrupt batches, and reading continues after them. `on_moved` gets the bytes read.
    """
    of = wanted.segment.topic_id_partition
    reader = _RangeReader(wanted, rows, storage, columns, on_broken)
    for chunk, content in fetched(chunks_of(wanted, rows, storage), wanted, storage):
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
        self._aborted = _Aborted(wanted.aborted) if rows.committed_only and wanted.aborted else None
        self._decoder: ColumnDecoder | None = None
        self._reached = wanted.start_offset

    def decoded(self, chunk: RemoteLogIndexEntry, content: bytes) -> Iterator[pa.RecordBatch]:
        """Yield the wanted rows of a chunk, with the decoded columns.

        A chunk that was corrupted in transit is fetched again; one that is corrupt in the store is reported.
        """
        data = memoryview(content)
        try:
            table = self._scan(chunk, data)
            self._check_offsets(chunk, table)
            for batch in self._rows_inside(chunk, data, table.take(self._inside(table))):
                self._reached = _last_offset(batch) + 1
                yield batch
        except CorruptRecordError:
            yield from self._around(chunk, memoryview(fetch_chunk(chunk, self._wanted, self._storage)))

    def leave_out(self, chunk: RemoteLogIndexEntry, error: RemoteChunkCorruptError) -> None:
        """Report a whole chunk that cannot be decoded; raises `error` without `on_broken`."""
        place = (chunk.position, chunk.length, chunk.first_offset, chunk.last_offset)
        self._report(chunk, error, place, str(error))

    def _around(self, chunk: RemoteLogIndexEntry, data: memoryview) -> Iterator[pa.RecordBatch]:
        """Continue from the reached offset, batch by batch; corrupt ones go to `on_broken` if it is given."""
        table = self._sound(chunk, data)
        for row in self._inside(table).tolist():
            alone = table.rows(row, row + 1)
            self._decoder = None
            try:
                # All of a batch or nothing: it may be corrupt only at its end.
                found = list(self._rows_inside(chunk, data, alone))
            except CorruptRecordError as broken:
                sizes = (int(alone.size[0]), int(alone.base_offset[0]), int(alone.last_offset[0]))
                self._report(chunk, broken, (broken.position, *sizes), broken.reason)
                continue
            yield from found
        self._decoder = None

    def _rows_inside(self, chunk: RemoteLogIndexEntry, data: memoryview, table: BatchTable) -> Iterator[pa.RecordBatch]:
        """Yield the wanted rows of the batches in `table`, after checking each one's checksum and leader epoch.

        No header may exclude its batch before it is checked.
        """
        check_checksums(as_array(data), chunk.position, table.position, table.size, source=chunk.object_name)
        self._check_epochs(chunk, table)
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

    def _sound(self, chunk: RemoteLogIndexEntry, data: memoryview) -> BatchTable:
        """Return the batches of a chunk: all, or those before a corrupt header."""
        try:
            table = self._scan(chunk, data)
            self._check_offsets(chunk, table)
        except CorruptRecordError as error:
            sound = max(0, error.position - chunk.position)
            table = self._scan(chunk, data[:sound]) if sound else BatchTable.allocate(0)
            next_offset = int(table.last_offset[-1]) + 1 if len(table) else chunk.first_offset
            place = (error.position, chunk.length - sound, next_offset, max(chunk.last_offset, next_offset))
            self._report(chunk, error, place, error.reason)
        return table

    def _scan(self, chunk: RemoteLogIndexEntry, data: memoryview) -> BatchTable:
        scanner = SegmentScanner(
            chunk.object_name, self._wanted.segment.start_offset, start_position=chunk.position, verify_crc=False
        )
        table, consumed = scanner.feed(data)
        scanner.finish(len(data) - consumed)
        return table

    def _check_offsets(self, chunk: RemoteLogIndexEntry, table: BatchTable) -> None:
        """Compare the batches' offsets with the index: no checksum of a batch covers them."""
        found = (int(table.base_offset[0]), int(table.last_offset[-1])) if len(table) else None
        if found != (chunk.first_offset, chunk.last_offset):
            raise CorruptRecordError(
                chunk.object_name,
                chunk.position,
                f"the batches of the chunk do not have offsets {chunk.first_offset} to {chunk.last_offset}, as the "
                "remote log index has them",
            )

    def _check_epochs(self, chunk: RemoteLogIndexEntry, table: BatchTable) -> None:
        wrong = wrong_epoch(table, self._wanted.segment.leader_epochs)
        if wrong is not None:
            reason = f"{self._wanted.segment.topic_id_partition}: {wrong}"
            raise CorruptRecordError(chunk.object_name, wrong.position, reason)

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

    def _report(
        self, chunk: RemoteLogIndexEntry, error: TieredStorageError, place: tuple[int, int, int, int], reason: str
    ) -> None:
        """Hand over the bytes at `place`: position, size, first and last offset."""
        if self._on_broken is None:
            raise error
        partition = self._wanted.segment.topic_id_partition.partition
        self._on_broken(BrokenBytes(partition, chunk.object_name, *place, reason))


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
        """Return for each batch of `table` whether it belongs to an aborted transaction."""
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


def _last_offset(batch: pa.RecordBatch) -> int:
    offsets = batch.column("offset")
    return int(offsets[len(offsets) - 1].as_py())
