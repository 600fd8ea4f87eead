"""Chunks and indexes of remote segments, each fetched once and checked before anybody is given it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from tiered_storage.errors import (
    CorruptLogError,
    ReaderBusyError,
    ReadQuotaExceededError,
    RemoteObjectCorruptError,
    RemoteObjectNotFoundError,
    TieredStorageError,
    UnsupportedMagicError,
)
from tiered_storage.kafka_log.batch_table import BatchTable
from tiered_storage.kafka_log.producer_snapshot import parse_producer_snapshot
from tiered_storage.kafka_log.segment_scan import SegmentScanner
from tiered_storage.kafka_log.transaction_index import TransactionIndex
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.reading.chunk_cache import ChunkCache, SharedFetch
from tiered_storage.remote_log.reading.fetch_deadline import FetchDeadline
from tiered_storage.remote_log.reading.reader_pools import ByteQuota, ReaderPool, outcome_of
from tiered_storage.remote_log.remote_index_lookup import RemoteIndexes
from tiered_storage.remote_log.remote_log_index import RemoteLogIndexEntry
from tiered_storage.remote_log.storage import IndexKind, RemoteStorageManager

INDEX_CACHE_BYTES = 16 << 20
_OBJECT_BYTES = 500
_TABLE_ROW_BYTES = 72
Kept = TypeVar("Kept")


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """A chunk's bytes and the headers of its batches, whose checksums were right; its own place is `entry`."""

    entry: RemoteLogIndexEntry
    content: bytes
    table: BatchTable

    @property
    def memory(self) -> int:
        """The bytes that it takes in memory, about."""
        return len(self.content) + _TABLE_ROW_BYTES * len(self.table) + _OBJECT_BYTES


@dataclass(frozen=True, slots=True)
class SegmentTransactions:
    """A segment's aborted transactions, and the first offset that its end left undecided.

    That is None where nobody knows, and the offset behind the segment's end where no transaction was open there.
    """

    index: TransactionIndex
    undecided_from: int | None

    @property
    def memory(self) -> int:
        """The bytes that it takes in memory, about."""
        return _OBJECT_BYTES + 200 * len(self.index.transactions)


def _memory_of_indexes(indexes: RemoteIndexes) -> int:
    return _OBJECT_BYTES + len(indexes.log_index) + 16 * (indexes.first_offsets.size + indexes.timestamps.size)


class RemoteChunks:
    """Fetches from one store, on the threads of `pool`, what it does not have; within a quota."""

    def __init__(
        self,
        storage: RemoteStorageManager,
        pool: ReaderPool,
        chunks: ChunkCache[Chunk],
        quota: ByteQuota,
    ) -> None:
        self._storage = storage
        self._pool = pool
        self._chunks = chunks
        self._quota = quota
        self._indexes: ChunkCache[RemoteIndexes] = ChunkCache(pool, INDEX_CACHE_BYTES, _memory_of_indexes)
        self._transactions: ChunkCache[SegmentTransactions] = ChunkCache(
            pool, INDEX_CACHE_BYTES, lambda each: each.memory
        )

    async def indexes(self, segment: RemoteLogSegmentMetadata, deadline: FetchDeadline) -> RemoteIndexes:
        """Return the remote index trio. Raises CorruptIndexError, RemoteStorageError and ReadRefusedError."""
        key = segment.segment_id.id
        known = self._indexes.known(key)
        if known is not None:
            return known
        fetch, what = (lambda: self._fetch_indexes(segment)), f"the indexes of {segment.segment_id}"
        return await self._get(self._indexes, key, fetch, deadline, what)

    async def transactions(self, segment: RemoteLogSegmentMetadata, deadline: FetchDeadline) -> SegmentTransactions:
        """Return what the segment says of aborted transactions. Raises as `indexes`."""
        key = segment.segment_id.id
        known = self._transactions.known(key)
        if known is not None:
            return known
        fetch, what = (lambda: self._fetch_transactions(segment)), f"the transaction index of {segment.segment_id}"
        return await self._get(self._transactions, key, fetch, deadline, what)

    async def index(self, segment: RemoteLogSegmentMetadata, kind: IndexKind, deadline: FetchDeadline) -> bytes:
        """Return one index of the segment as it is stored. Raises RemoteStorageError and ReadRefusedError."""

        async def once() -> bytes:
            future = self._pool.submit(lambda: self._storage.fetch_index(segment, kind))
            try:
                return await outcome_of(future, deadline.seconds_left)
            except TimeoutError:
                raise deadline.timed_out(f"{kind.name} of {segment.segment_id}") from None
            finally:
                self._pool.withdraw(future)

        return await deadline.attempt(once)

    async def chunk(
        self,
        segment: RemoteLogSegmentMetadata,
        entry: RemoteLogIndexEntry,
        deadline: FetchDeadline,
        begun: SharedFetch[Chunk] | None = None,
    ) -> Chunk:
        """Return a chunk, maybe one that was `begun` ahead, which stays the caller's to leave.

        Raises RemoteStorageError (also where its bytes are not those that were sent) and ReadRefusedError.
        """
        key = _key(segment, entry)
        if begun is not None:
            try:
                return await outcome_of(begun.future, deadline.seconds_left)
            except TimeoutError:
                raise deadline.timed_out(_named(entry)) from None
            except TieredStorageError as error:
                if not error.retriable:
                    raise
        known = self._chunks.known(key)
        if known is not None:
            return known
        before = self._within_quota(deadline)
        return await self._get(
            self._chunks, key, lambda: self._fetch_chunk(segment, entry), deadline, _named(entry), before
        )

    def ahead(self, segment: RemoteLogSegmentMetadata, entry: RemoteLogIndexEntry) -> SharedFetch[Chunk] | None:
        """Begin to fetch a chunk that is wanted soon, if there is room for that; `leave` what this returns."""
        key = _key(segment, entry)
        if self._chunks.known(key) is None and (not self._pool.has_room() or self._quota.seconds_left()):
            return None
        try:
            return self._chunks.join(key, lambda: self._fetch_chunk(segment, entry))
        except ReaderBusyError:
            return None

    def leave(self, shared: SharedFetch[Chunk]) -> None:
        """Say that what was begun ahead is not waited for any more."""
        self._chunks.leave(shared)

    async def _get(
        self,
        cache: ChunkCache[Kept],
        key: Hashable,
        fetch: Callable[[], Kept],
        deadline: FetchDeadline,
        what: str,
        before: Callable[[], Awaitable[None]] | None = None,
    ) -> Kept:
        async def once() -> Kept:
            if before is not None:
                await before()
            shared = cache.join(key, fetch)
            try:
                return await outcome_of(shared.future, deadline.seconds_left)
            except TimeoutError:
                raise deadline.timed_out(what) from None
            finally:
                cache.leave(shared)

        return await deadline.attempt(once)

    def _within_quota(self, deadline: FetchDeadline) -> Callable[[], Awaitable[None]]:
        async def wait() -> None:
            seconds = self._quota.seconds_left()
            if seconds > deadline.seconds_left:
                raise ReadQuotaExceededError(
                    "more was read from the remote tier than remote.log.manager.fetch.max.bytes.per.second allows: "
                    f"the next read is due in {seconds:.1f} s"
                )
            if seconds:
                await deadline.timing.sleep(seconds)

        return wait

    def _fetch_indexes(self, segment: RemoteLogSegmentMetadata) -> RemoteIndexes:
        return RemoteIndexes.parse(
            str(segment.segment_id),
            segment.start_offset,
            self._storage.fetch_index(segment, IndexKind.REMOTE_LOG_INDEX),
            self._storage.fetch_index(segment, IndexKind.REMOTE_OFFSET_INDEX),
            self._storage.fetch_index(segment, IndexKind.REMOTE_TIME_INDEX),
        )

    def _fetch_transactions(self, segment: RemoteLogSegmentMetadata) -> SegmentTransactions:
        source = f"{segment.segment_id}: transaction index"
        try:
            raw = self._storage.fetch_index(segment, IndexKind.TRANSACTION)
        except RemoteObjectNotFoundError:
            self._storage.fetch_index(segment, IndexKind.REMOTE_LOG_INDEX)  # the segment is there: it has no aborts
            index = TransactionIndex(segment.start_offset)
        else:
            index = TransactionIndex.parse(raw, source, segment.start_offset)
        return SegmentTransactions(index, self._undecided_from(segment))

    def _undecided_from(self, segment: RemoteLogSegmentMetadata) -> int | None:
        try:
            snapshot = self._storage.fetch_index(segment, IndexKind.PRODUCER_SNAPSHOT)
        except RemoteObjectNotFoundError:
            return None
        producers = parse_producer_snapshot(snapshot, f"{segment.segment_id}: producer snapshot")
        opened = [each.current_transaction_first_offset for each in producers]
        return min((offset for offset in opened if offset >= 0), default=segment.end_offset + 1)

    def _fetch_chunk(self, segment: RemoteLogSegmentMetadata, entry: RemoteLogIndexEntry) -> Chunk:
        self._quota.spend(entry.length)
        pieces = list(self._storage.fetch_log_segment(segment, entry.position, entry.position + entry.length - 1))
        return read_chunk(segment, entry, pieces[0] if len(pieces) == 1 else b"".join(pieces))


def _key(segment: RemoteLogSegmentMetadata, entry: RemoteLogIndexEntry) -> Hashable:
    return segment.segment_id.id, entry.position


def _named(entry: RemoteLogIndexEntry) -> str:
    return f"{entry.object_name}, the chunk at byte {entry.position}"


def read_chunk(segment: RemoteLogSegmentMetadata, entry: RemoteLogIndexEntry, content: bytes) -> Chunk:
    """Return the chunk whose bytes are `content`, once every batch's checksum is right and the index tells the truth.

    Raises RemoteObjectCorruptError.
    """
    scanner = SegmentScanner(entry.object_name, segment.start_offset, start_position=entry.position)
    try:
        table, consumed = scanner.feed(memoryview(content))
    except UnsupportedMagicError:
        raise
    except CorruptLogError as error:
        raise RemoteObjectCorruptError(
            f"{error}: its bytes are not those that were sent; 'tiered-storage repair --deep' copies it anew where the "
            "local log still has it"
        ) from error
    is_whole = consumed == len(content) == entry.length and bool(len(table))
    if not is_whole or int(table.base_offset[0]) != entry.first_offset or scanner.next_offset != entry.last_offset + 1:
        raise RemoteObjectCorruptError(
            f"{entry.object_name}: the batches from byte {entry.position} on do not hold offsets {entry.first_offset} "
            f"to {entry.last_offset}, as their index says"
        )
    return Chunk(entry, content, table)


def chunk_at_byte(indexes: RemoteIndexes, position: int) -> RemoteLogIndexEntry:
    """Return the chunk that has the byte at `position` of the segment, of a segment that has that byte."""
    row = bisect_right(range(indexes.first_offsets.size), position, key=lambda each: _entry(indexes, each).position)
    return _entry(indexes, max(0, row - 1))


def _entry(indexes: RemoteIndexes, row: int) -> RemoteLogIndexEntry:
    found = indexes.chunk_for_offset(int(indexes.first_offsets[row]))
    if found is None:
        raise IndexError(row)
    return found


def first_row_ending_at_or_behind(table: BatchTable, offset: int) -> int:
    """Return the first batch of `table` that ends at or behind `offset`."""
    return int(np.searchsorted(table.last_offset, offset, side="left"))
