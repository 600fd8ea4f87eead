"""Chunks and indexes of remote segments, each fetched once and checked before use."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from tiered_storage.errors import (
    CorruptIndexError,
    ReaderBusyError,
    ReadQuotaExceededError,
    ReadTimedOutError,
    RemoteObjectCorruptError,
    RemoteObjectNotFoundError,
    TieredStorageError,
)
from tiered_storage.kafka_log.indexes.transaction_index import TransactionIndex
from tiered_storage.kafka_log.producers.producer_snapshot import parse_producer_snapshot
from tiered_storage.remote_log.indexes.remote_index_lookup import RemoteIndexes
from tiered_storage.remote_log.indexes.remote_log_index import RemoteLogIndexEntry
from tiered_storage.remote_log.jobs.throttle import ByteQuota
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.read.chunks.checked_chunk import CheckedChunk, fetch_chunk, read_chunk
from tiered_storage.remote_log.read.chunks.chunk_cache import ChunkCache, SharedFetch
from tiered_storage.remote_log.read.chunks.fetch_deadline import FetchDeadline
from tiered_storage.remote_log.read.chunks.reader_pools import ReaderPool
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind, RemoteStorageManager

_OBJECT_BYTES = 500
_TABLE_ROW_BYTES = 72
Kept = TypeVar("Kept")


@dataclass(frozen=True, slots=True)
class SegmentTransactions:
    """A segment's aborted transactions, and the first offset that is undecided at its end.

    `undecided_from` is None if unknown, and the offset after the segment's end if no transaction was open there.
    """

    index: TransactionIndex
    undecided_from: int | None

    @property
    def memory(self) -> int:
        """Its approximate size in memory in bytes."""
        return _OBJECT_BYTES + 200 * len(self.index.transactions)


@dataclass(slots=True)
class AheadFetch:
    """A prefetch of a chunk; it takes `size` bytes of the prefetch budget of all readers."""

    shared: SharedFetch[CheckedChunk]
    size: int
    was_cached: bool = False
    is_read: bool = False

    @property
    def is_there(self) -> bool:
        """Whether the chunk is in memory: the prefetch has ended, and not by an error."""
        future = self.shared.future
        return future.done() and not future.cancelled() and future.exception() is None


@dataclass(slots=True)
class ChunkCounts:
    """Counts of chunks that reads needed, and of prefetched bytes that no read used."""

    hits: int = 0
    """Chunks that were in memory already, fetched ahead or for another read."""
    misses: int = 0
    wasted_bytes: int = 0
    """Prefetched bytes that no read used: the read ended first."""


def _memory_of_indexes(indexes: RemoteIndexes) -> int:
    return _OBJECT_BYTES + len(indexes.log_index) + 16 * (indexes.first_offsets.size + indexes.timestamps.size)


class RemoteChunks:
    """Fetches from one store what is not cached, on the threads of `pool` and within a quota."""

    def __init__(
        self,
        storage: RemoteStorageManager,
        pool: ReaderPool,
        chunks: ChunkCache[CheckedChunk],
        quota: ByteQuota,
        ahead_bytes: int,
        index_bytes: int,
    ) -> None:
        """`ahead_bytes` is the prefetch budget of all readers together, `index_bytes` the size of both index caches."""
        self._storage = storage
        self._pool = pool
        self._chunks = chunks
        self._quota = quota
        self._ahead_left = ahead_bytes
        self._ahead_lock = threading.Lock()
        self.counts = ChunkCounts()
        self._indexes: ChunkCache[RemoteIndexes] = ChunkCache(pool, index_bytes // 2, _memory_of_indexes)
        self._transactions: ChunkCache[SegmentTransactions] = ChunkCache(
            pool, index_bytes // 2, lambda each: each.memory
        )

    async def indexes(self, segment: RemoteLogSegmentMetadata, deadline: FetchDeadline) -> RemoteIndexes:
        """Return the remote index trio. Raises CorruptIndexError, RemoteStorageError and ReadRefusedError."""
        key = segment.segment_id.id
        known = self._indexes.known(key)
        if known is not None:
            return known
        fetch, what = (lambda: self._fetch_indexes(segment)), f"the indexes of {segment.segment_id}"
        return await self._get(self._indexes, key, fetch, deadline, what)

    def indexes_ahead(self, segment: RemoteLogSegmentMetadata) -> RemoteIndexes | None:
        """Return the indexes if they are cached; else begin to fetch them if there is room."""
        known = self._indexes.known(segment.segment_id.id)
        if known is None and self._pool.has_room():
            with suppress(ReaderBusyError):
                shared = self._indexes.join(segment.segment_id.id, lambda: self._fetch_indexes(segment))
                shared.future.add_done_callback(lambda _: self._indexes.leave(shared))
        return known

    async def transactions(self, segment: RemoteLogSegmentMetadata, deadline: FetchDeadline) -> SegmentTransactions:
        """Return the segment's aborted transactions. Raises as `indexes`."""
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
                return await deadline.outcome(future, f"{kind.name} of {segment.segment_id}")
            finally:
                self._pool.withdraw(future)

        return await deadline.attempt(once)

    async def chunk(
        self,
        segment: RemoteLogSegmentMetadata,
        entry: RemoteLogIndexEntry,
        deadline: FetchDeadline,
        begun: AheadFetch | None = None,
    ) -> CheckedChunk:
        """Return a chunk; if its prefetch has `begun`, wait for that, which the caller must still `leave`.

        Raises RemoteStorageError (also if its bytes are corrupt) and ReadRefusedError.
        """
        key = _key(segment, entry)
        self._count(is_there=begun.shared.future.done() if begun is not None else self._chunks.known(key) is not None)
        if begun is not None:
            begun.is_read = True
            try:
                return await deadline.outcome(begun.shared.future, _named(entry))
            except TieredStorageError as error:
                if not error.retriable or isinstance(error, ReadTimedOutError):
                    raise
        known = self._chunks.known(key)
        if known is not None:
            return known
        before = self._within_quota(deadline)
        return await self._get(
            self._chunks, key, lambda: self._fetch_chunk(segment, entry), deadline, _named(entry), before
        )

    def ahead(self, segment: RemoteLogSegmentMetadata, entry: RemoteLogIndexEntry) -> AheadFetch | None:
        """Begin to prefetch a chunk if there is room; the caller must `leave` the result."""
        key = _key(segment, entry)
        was_cached = self._chunks.known(key) is not None
        if not was_cached and (not self._pool.has_room() or self._quota.seconds_left()):
            return None
        if not self._take_ahead(entry.length):
            return None
        try:
            shared = self._chunks.join(key, lambda: self._fetch_chunk(segment, entry))
            return AheadFetch(shared, entry.length, was_cached)
        except ReaderBusyError:
            self._take_ahead(-entry.length)
            return None

    def leave(self, begun: AheadFetch) -> None:
        """Stop waiting for a prefetch."""
        future = begun.shared.future
        is_wasted = not (begun.is_read or begun.was_cached) and (future.running() or future.done())
        self._chunks.leave(begun.shared)
        self._take_ahead(-begun.size)
        if is_wasted:
            with self._ahead_lock:
                self.counts.wasted_bytes += begun.size

    def _count(self, *, is_there: bool) -> None:
        with self._ahead_lock:
            self.counts.hits += is_there
            self.counts.misses += not is_there

    def _take_ahead(self, size: int) -> bool:
        with self._ahead_lock:
            if size > self._ahead_left:
                return False
            self._ahead_left -= size
            return True

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
                return await deadline.outcome(shared.future, what)
            finally:
                cache.leave(shared)

        return await deadline.attempt(once)

    def _within_quota(self, deadline: FetchDeadline) -> Callable[[], Awaitable[None]]:
        async def wait() -> None:
            seconds = self._quota.seconds_left()
            if seconds > deadline.seconds_left:
                raise ReadQuotaExceededError(
                    "the quota of remote reads (remote.log.manager.fetch.max.bytes.per.second) is used up: try again "
                    f"in {seconds:.1f} s"
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

    def _fetch_chunk(self, segment: RemoteLogSegmentMetadata, entry: RemoteLogIndexEntry) -> CheckedChunk:
        try:
            return self._fetch_chunk_once(segment, entry)
        except RemoteObjectCorruptError:
            # Corrupt in transit: the second fetch is right. Corrupt in the store: the second fetch raises.
            return self._fetch_chunk_once(segment, entry)

    def _fetch_chunk_once(self, segment: RemoteLogSegmentMetadata, entry: RemoteLogIndexEntry) -> CheckedChunk:
        self._quota.spend(entry.length)
        return read_chunk(segment, entry, fetch_chunk(segment, entry, self._storage))


def _key(segment: RemoteLogSegmentMetadata, entry: RemoteLogIndexEntry) -> Hashable:
    return segment.segment_id.id, entry.position


def _named(entry: RemoteLogIndexEntry) -> str:
    return f"{entry.object_name}, the chunk at byte {entry.position}"


def chunk_at_byte(indexes: RemoteIndexes, position: int) -> RemoteLogIndexEntry:
    """Return the chunk with the byte at `position`, which must be in the segment."""
    row = bisect_right(range(indexes.first_offsets.size), position, key=lambda each: _entry(indexes, each).position)
    return _entry(indexes, max(0, row - 1))


def _entry(indexes: RemoteIndexes, row: int) -> RemoteLogIndexEntry:
    found = indexes.chunk_for_offset(int(indexes.first_offsets[row]))
    if found is None:
        raise IndexError(row)
    return found


async def segment_range(
    chunks: RemoteChunks,
    segment: RemoteLogSegmentMetadata,
    start: int,
    end: int,
    new_deadline: Callable[[], FetchDeadline],
    read_ahead_bytes: int,
) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of `segment` from `start` (inclusive) to `end` (exclusive), which must be in it.

    Prefetches up to `read_ahead_bytes`, at first only one chunk. Raises RemoteStorageError, ReadRefusedError,
    CorruptIndexError.
    """
    indexes = await chunks.indexes(segment, new_deadline())
    ahead: deque[tuple[RemoteLogIndexEntry, AheadFetch | None]] = deque()
    planned, window = start, 1
    try:
        while start < end:
            on_the_way = sum(entry.length for entry, _ in ahead)
            while not ahead or (planned < end and on_the_way < window):
                entry = chunk_at_byte(indexes, planned)
                if not entry.position <= planned < entry.position + entry.length:
                    raise CorruptIndexError(
                        indexes.source,
                        0,
                        f"no chunk has byte {planned} of the segment; 'tiered-storage repair --deep' rebuilds it",
                    )
                shared = chunks.ahead(segment, entry)
                if shared is None and ahead:
                    break
                ahead.append((entry, shared))
                planned = entry.position + entry.length
                on_the_way += entry.length
            window = min(max(2 * window, 2 * ahead[0][0].length), max(read_ahead_bytes, 1))
            entry, shared = ahead.popleft()
            try:
                chunk = await chunks.chunk(segment, entry, new_deadline(), shared)
            finally:
                if shared is not None:
                    chunks.leave(shared)
            yield chunk.content[start - entry.position : end - entry.position]
            start = entry.position + entry.length
    finally:
        for _, shared in ahead:
            if shared is not None:
                chunks.leave(shared)
