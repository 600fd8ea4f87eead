"""RemoteLogReader: every read of a remote log, by offset and by time, with both tiers as one log.

KIP-405 has this in the broker: local first, remote if that is out of range, remote reads in their own threads with a
bounded queue, each request with its own deadline. Here it is a library: no broker is involved.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa

from tiered_storage.errors import LeaderEpochError, RecordsDeletedError, RemoteObjectNotFoundError
from tiered_storage.kafka_log.columnar.decoder import Checks, ColumnDecoder, RecordRange
from tiered_storage.kafka_log.columnar.record_columns import select_columns
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, SegmentState, TopicIdPartition
from tiered_storage.remote_log.read.aborted_transactions import AbortedTransactionSearch
from tiered_storage.remote_log.read.chunks.checked_chunk import CheckedChunk
from tiered_storage.remote_log.read.chunks.chunk_cache import ChunkCache
from tiered_storage.remote_log.read.chunks.chunk_files import ChunkFiles
from tiered_storage.remote_log.read.chunks.fetch_deadline import FetchDeadline, ReadTiming
from tiered_storage.remote_log.read.chunks.reader_pools import ByteQuota, ReaderPool, outcome_of
from tiered_storage.remote_log.read.chunks.remote_chunks import RemoteChunks, segment_range
from tiered_storage.remote_log.read.log_stream import LogStream
from tiered_storage.remote_log.read.offset_search import OffsetSearch, is_certain
from tiered_storage.remote_log.read.partition_view import PartitionView, PartitionViews, look_at
from tiered_storage.remote_log.read.read_values import (
    NO_EPOCHS,
    FetchedBatches,
    FetchEpochs,
    FoundOffset,
    Isolation,
    OffsetSpec,
    aborted_rows,
)
from tiered_storage.remote_log.source.segment_source import SegmentSource
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind, RemoteStorageManager
from tiered_storage.settings.settings import Settings

_CHECKED_ALREADY = Checks(crc=False)


async def decoded(
    batches: AsyncGenerator[FetchedBatches, None],
    columns: Sequence[str] | None,
    within: RecordRange,
    pool: ReaderPool,
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield the records of `batches` that lie `within` a range too, without those of aborted transactions.

    `columns` are those of record_columns.py, None: all. Decoding is done on the threads of `pool`, one record batch at
    a time. A record batch is one piece of memory: who keeps one of its columns keeps all.
    """
    async with aclosing(batches):
        async for fetched in batches:
            step = partial(next, _decode(fetched, columns, within), None)
            while (found := await outcome_of(pool.submit(step))) is not None:
                yield found


def _decode(fetched: FetchedBatches, columns: Sequence[str] | None, within: RecordRange) -> Iterator[pa.RecordBatch]:
    table = fetched.table
    skipped = aborted_rows(table, fetched.aborted)
    window, origin = memoryview(fetched.content), fetched.source_position
    if skipped.any():
        rows = np.flatnonzero(~skipped)
        if not rows.size:
            return
        table = type(table)(*(column[rows] for column in table.columns()))
        window = window[int(table.position[0]) - origin :]
    firsts = [each for each in (within.first_offset, fetched.start_offset) if each is not None]
    ends = [each for each in (within.end_offset, fetched.end_offset) if each is not None]
    inside = RecordRange(
        max(firsts), min(ends), within.first_timestamp, within.end_timestamp, with_control=within.with_control
    )
    for found in ColumnDecoder(fetched.source, columns, inside, _CHECKED_ALREADY).decode(window, table):
        if found.num_rows:
            yield found


READ_UNCOMMITTED = Isolation.READ_UNCOMMITTED


class RemoteLogReader:
    """Reads partitions of one remote log. Thread-safe, for any event loop; `close` it, or use it in a `with`.

    Its source, metadata and storage belong to the caller and must stay open as long.
    """

    def __init__(
        self,
        source: SegmentSource,
        metadata: RemoteLogMetadataManager,
        storage: RemoteStorageManager,
        settings: Settings,
        timing: ReadTiming | None = None,
        *,
        local_may_be_hidden: bool = False,
    ) -> None:
        """Read as `settings` configure: pools, quota, cache, prefetching. `timing` replaces the clock, for tests.

        With `local_may_be_hidden`, a local tier that cannot be read (a broker has its directory, or it is not mounted
        here) does not hide remote data; a read of what only it might have raises its InvalidLogDirectoryError.
        """
        self._metadata = metadata
        self._settings = settings
        self._timing = timing or ReadTiming()
        self._local_pool = ReaderPool("local reads", settings.local_log_reader_threads)
        self._look_pool = ReaderPool("looks at partitions", settings.local_log_reader_threads)
        self._decode_pool = ReaderPool("decoding", settings.local_log_reader_threads)
        self._search_pool = ReaderPool("searches by time", settings.local_log_reader_threads)
        self._remote_pool = ReaderPool(
            "remote reads", settings.remote_log_reader_threads, settings.remote_log_reader_max_pending_tasks
        )
        quota = ByteQuota(settings.remote_log_manager_fetch_max_bytes_per_second, self._timing.now)
        self._cache: ChunkCache[CheckedChunk] = ChunkCache(
            self._remote_pool,
            settings.remote_log_reader_cache_memory_bytes,
            lambda chunk: chunk.memory,
            _files(settings),
        )
        ahead = max(settings.remote_log_reader_read_ahead_bytes, settings.remote_log_reader_cache_memory_bytes)
        self._chunks = RemoteChunks(storage, self._remote_pool, self._cache, quota, ahead)
        has_source = bool(settings.log_dirs)
        self._views = PartitionViews(
            lambda partition: look_at(
                partition, source, metadata, has_source=has_source, may_be_hidden=local_may_be_hidden
            ),
            self._look_pool,
            settings.remote_log_reader_metadata_max_age_ms,
            self._timing,
        )
        self._aborted = AbortedTransactionSearch(self._chunks, self._local_pool)
        self._offsets = OffsetSearch(self._chunks, self._search_pool)

    @property
    def remote_pending(self) -> int:
        """How many remote reads wait for a thread."""
        return self._remote_pool.pending

    @property
    def remote_running(self) -> int:
        """How many remote reads are running."""
        return self._remote_pool.running

    @property
    def cached_bytes(self) -> int:
        """How many bytes of the remote tier are cached in memory."""
        return self._cache.held_bytes

    async def view(
        self, partition: TopicIdPartition, offset: int | None = None, epochs: FetchEpochs = NO_EPOCHS
    ) -> PartitionView:
        """Return the present content of a partition, or that of the last look.

        The last look is at most remote.log.reader.metadata.max.age.ms ago, or twenty times as long as it took, if that
        is more. If `offset` lies outside of it, or `epochs` contradict it, the partition is looked at again. Raises
        ReadTimedOutError.
        """
        deadline = self._deadline(None)
        seen = await self._views.get(partition, deadline)
        try:
            if offset is None or seen.log_start_offset <= offset <= seen.end_offset(READ_UNCOMMITTED):
                seen.check_epochs(offset or 0, epochs)
                return seen
        except LeaderEpochError:
            pass  # of a later leader than known, or really not ours: another look decides
        return await self._views.anew(partition, deadline)

    async def offsets(
        self,
        partition: TopicIdPartition,
        spec: OffsetSpec | int,
        isolation: Isolation = READ_UNCOMMITTED,
        *,
        of_what_is_seen: bool = False,
    ) -> FoundOffset | None:
        """Return an offset by its name, or the first whose record has at least the timestamp `spec` (ms).

        None if there is no such record below the end that `isolation` lets a reader see, or nothing tiered. Raises
        RemoteStorageError, ReadRefusedError, CorruptLogError, ConfigurationError for a negative timestamp; and what
        hides the local tier where that might change the answer, unless asked only `of_what_is_seen`.
        """
        deadline = self._deadline(None)
        view = await self._views.get(partition, deadline)
        try:
            found = await self._find(view, spec, isolation, deadline)
        except (FileNotFoundError, RemoteObjectNotFoundError):
            # Trimmed or deleted since the last look; lost data are missing after another look too.
            view = await self._views.anew(partition, deadline)
            found = await self._find(view, spec, isolation, deadline)
        if not of_what_is_seen and not is_certain(view, spec, found):
            view.ensure_not_hidden(view.our_log_start)
        return found

    async def _find(
        self, seen: PartitionView, spec: OffsetSpec | int, isolation: Isolation, deadline: FetchDeadline
    ) -> FoundOffset | None:
        view = await self._aborted.decided(seen, isolation, deadline)
        return await self._offsets.find(view, spec, isolation, deadline)

    def batches(
        self,
        partition: TopicIdPartition,
        start_offset: int,
        *,
        end_offset: int | None = None,
        isolation: Isolation = READ_UNCOMMITTED,
        deadline_ms: int | None = None,
        epochs: FetchEpochs = NO_EPOCHS,
    ) -> AsyncGenerator[FetchedBatches, None]:
        """Yield whole batches from the one with `start_offset` up to `end_offset` (exclusive), or to the end as it is
        when this begins; each offset once.

        `deadline_ms` is how long each step may wait for the remote tier, else remote.fetch.max.wait.ms. Prefetching is
        bounded by remote.log.reader.read.ahead.bytes; it ends with the iterator, so close that (aclosing) if you leave
        early. `epochs` are compared before the first batch. Raises OffsetOutOfRangeError (with the available range),
        is), LeaderEpochError, RecordsDeletedError if the log start moved past what is being read,
        RemoteObjectNotFoundError and RemoteObjectCorruptError for what is lost, RemoteStorageError, ReadRefusedError.
        """
        stream = LogStream(
            partition,
            start_offset,
            isolation,
            views=self._views,
            chunks=self._chunks,
            local_pool=self._local_pool,
            aborted=self._aborted,
            new_deadline=lambda: self._deadline(deadline_ms),
            read_ahead_bytes=self._settings.remote_log_reader_read_ahead_bytes,
            epochs=epochs,
        )
        return stream.fetch(end_offset)

    def tables(
        self,
        partition: TopicIdPartition,
        start_offset: int,
        *,
        end_offset: int | None = None,
        isolation: Isolation = READ_UNCOMMITTED,
        columns: Sequence[str] | None = None,
        within: RecordRange | None = None,
        deadline_ms: int | None = None,
        epochs: FetchEpochs = NO_EPOCHS,
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield the same records as Arrow record batches, with `columns` (record_columns.py; None: all).

        Markers of transactions are left out, and at READ_COMMITTED the records of aborted ones. `within` narrows it
        further, by timestamp too, and says whether markers are given. Raises as `batches`, and ConfigurationError at
        once for an unknown column.
        """
        select_columns(columns)
        batches = self.batches(
            partition, start_offset, end_offset=end_offset, isolation=isolation, deadline_ms=deadline_ms, epochs=epochs
        )
        return decoded(batches, columns, within or RecordRange(with_control=False), self._decode_pool)

    async def segment(self, partition: TopicIdPartition, segment_id: str) -> RemoteLogSegmentMetadata:
        """Return a finished remote segment by its id. Raises RemoteObjectNotFoundError, RecordsDeletedError."""
        deadline = self._deadline(None)
        found = _segment_in(await self._views.get(partition, deadline), segment_id)
        if found is None:
            looking = self._look_pool.submit(lambda: self._known(partition, segment_id))
            found = await deadline.outcome(looking, segment_id)
        if found is None:
            raise RemoteObjectNotFoundError(
                f"{partition}: no remote segment {segment_id} can be read: 'tiered-storage segments' lists those there "
                "are, and what state they are in"
            )
        return found

    async def segment_bytes(
        self, partition: TopicIdPartition, segment_id: str, start: int = 0, end_inclusive: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a remote segment from `start` to `end_inclusive` (None: to its end), chunk by chunk.

        Every batch's checksum is right. Raises RemoteObjectNotFoundError, ValueError for a range that is not in it.
        """
        segment = await self.segment(partition, segment_id)
        end = segment.size if end_inclusive is None else end_inclusive + 1
        if not 0 <= start < end <= segment.size:
            raise ValueError(f"{segment.segment_id}: bytes {start} to {end - 1} are not in it: it has {segment.size}")
        pieces = segment_range(
            self._chunks, segment, start, end, lambda: self._deadline(None),
            self._settings.remote_log_reader_read_ahead_bytes,
        )  # fmt: skip
        async with aclosing(pieces):
            async for piece in pieces:
                yield piece

    async def index(self, partition: TopicIdPartition, segment_id: str, kind: IndexKind) -> bytes:
        """Return one index of a remote segment, its checksum checked. Raises RemoteObjectNotFoundError."""
        segment = await self.segment(partition, segment_id)
        return await self._chunks.index(segment, kind, self._deadline(None))

    def close(self) -> None:
        """End the threads once they are idle, and drop the cache; pending reads get ConfigurationError."""
        pools = (self._remote_pool, self._local_pool, self._look_pool, self._decode_pool, self._search_pool)
        for pool in pools:
            pool.close()
        self._cache.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self.close()

    def _known(self, partition: TopicIdPartition, segment_id: str) -> RemoteLogSegmentMetadata | None:
        """Return a finished segment that no reader needs, as a second copy, or that was committed a moment ago.

        Raises RecordsDeletedError for one of what was deleted, by topic or below our log start, though its objects may
        still be there.
        """
        state = self._metadata.partition_state(partition)
        for segment in self._metadata.list_remote_log_segments(partition):
            if segment.segment_id.id != segment_id or segment.state is not SegmentState.COPY_SEGMENT_FINISHED:
                continue
            start = segment.end_offset + 1 if state.delete_state is not None else state.log_start_offset or 0
            if segment.end_offset < start:
                raise RecordsDeletedError(str(partition), segment.start_offset, start, start)
            return segment
        return None

    def _deadline(self, wait_ms: int | None) -> FetchDeadline:
        return FetchDeadline.after(
            self._settings.remote_fetch_max_wait_ms if wait_ms is None else wait_ms, self._timing
        )


def _files(settings: Settings) -> ChunkFiles | None:
    most = settings.remote_log_reader_cache_disk_bytes
    return ChunkFiles(settings.state_directory / "chunk-cache", most) if most else None


def _segment_in(view: PartitionView, segment_id: str) -> RemoteLogSegmentMetadata | None:
    for covered in view.coverage.ranges_from(view.log_start_offset):
        if covered.segment.segment_id.id == segment_id:
            return covered.segment
    return None
