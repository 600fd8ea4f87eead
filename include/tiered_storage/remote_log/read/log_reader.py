"""RemoteLogReader: every read of a remote log, by offset and by time, with both tiers as one log.

As KIP-405 does it in the broker: local first, remote if the offset is not local, remote reads in their own threads with
a bounded queue, and a deadline for each request. This library needs no broker.
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
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.jobs.throttle import ByteQuota, fetch_quota
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, SegmentState, TopicIdPartition
from tiered_storage.remote_log.read.aborted_transactions import AbortedTransactionSearch
from tiered_storage.remote_log.read.chunks.checked_chunk import CheckedChunk
from tiered_storage.remote_log.read.chunks.chunk_cache import ChunkCache
from tiered_storage.remote_log.read.chunks.chunk_files import ChunkFiles
from tiered_storage.remote_log.read.chunks.fetch_deadline import FetchDeadline, ReadTiming
from tiered_storage.remote_log.read.chunks.reader_pools import ReaderPool, ReaderPools, outcome_of
from tiered_storage.remote_log.read.chunks.remote_chunks import ChunkCounts, RemoteChunks, segment_range
from tiered_storage.remote_log.read.log_stream import LogStream, StreamContext
from tiered_storage.remote_log.read.offset_search import OffsetSearch, is_certain
from tiered_storage.remote_log.read.partition_snapshot import PartitionSnapshot, PartitionSnapshots, snapshot_partition
from tiered_storage.remote_log.read.read_values import (
    NO_EPOCHS,
    FetchedBatches,
    FetchEpochs,
    FoundOffset,
    Isolation,
    OffsetSpec,
)
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind
from tiered_storage.settings.settings import Settings

_CHECKED_ALREADY = Checks(crc=False)


async def decoded(
    batches: AsyncGenerator[FetchedBatches, None],
    columns: Sequence[str] | None,
    within: RecordRange,
    pool: ReaderPool,
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield the records of `batches`, limited to those `within` a range, without those of aborted transactions.

    `columns` are those of record_columns.py, None: all. The threads of `pool` decode one record batch at a time. A
    record batch is one piece of memory: a reference to one of its columns keeps all of it.
    """
    async with aclosing(batches):
        async for fetched in batches:
            step = partial(next, _decode(fetched, columns, within), None)
            while (found := await outcome_of(pool.submit(step))) is not None:
                yield found


def _decode(fetched: FetchedBatches, columns: Sequence[str] | None, within: RecordRange) -> Iterator[pa.RecordBatch]:
    table = fetched.table
    skipped = fetched.aborted_rows()
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

    The context belongs to the caller, who closes it after the reader. If the source does not show its segments, only
    the remote tier is read.
    """

    def __init__(
        self,
        context: RemoteLogContext,
        timing: ReadTiming | None = None,
        *,
        remote_only: bool = False,
        all_decided: bool = False,
        local_may_be_hidden: bool = False,
    ) -> None:
        """Take pools, quota, cache and prefetching from the settings. `timing` replaces the clock, for tests.

        With `remote_only`, only the remote tier is read. With `all_decided`, a read_committed read ends where the
        remote log does, and the caller knows which transactions were aborted after it.
        With `local_may_be_hidden`, a local tier that cannot be read (a broker has its directory, or it is not mounted
        here) does not hide remote data; a read of offsets that only it might have raises its InvalidLogDirectoryError.
        """
        is_local_hidden = remote_only or not context.source.shows_segments
        settings, source = context.settings, None if is_local_hidden else context.source
        self._context = context
        self._timing = timing or ReadTiming()
        self._pools = ReaderPools.of(settings)
        self._cache: ChunkCache[CheckedChunk] = ChunkCache(
            self._pools.remote,
            settings.remote_log_reader_cache_memory_bytes,
            lambda chunk: chunk.memory,
            _files(settings),
        )
        self._chunks = RemoteChunks(
            context.storage,
            self._pools.remote,
            self._cache,
            ByteQuota(fetch_quota(settings), self._timing.now),
            max(settings.remote_log_reader_read_ahead_bytes, settings.remote_log_reader_cache_memory_bytes),
            settings.remote_log_index_file_cache_total_size_bytes,
        )
        self._snapshots = PartitionSnapshots(
            lambda partition: snapshot_partition(
                partition, source, context.segments, may_be_hidden=local_may_be_hidden
            ),
            self._pools.snapshots,
            settings.remote_log_reader_metadata_max_age_ms,
            self._timing,
        )
        self._aborted = AbortedTransactionSearch(self._chunks, self._pools.local, all_decided=all_decided)
        self._streams = StreamContext(
            self._snapshots,
            self._chunks,
            self._pools.local,
            self._aborted,
            settings.remote_log_reader_read_ahead_bytes,
        )
        self._offsets = OffsetSearch(self._chunks, self._pools.searches)

    @property
    def remote_pending(self) -> int:
        """How many remote reads wait for a thread."""
        return self._pools.remote.pending

    @property
    def remote_running(self) -> int:
        """How many remote reads are running."""
        return self._pools.remote.running

    @property
    def cached_bytes(self) -> int:
        """How many bytes of the remote tier are cached in memory."""
        return self._cache.held_bytes

    @property
    def chunk_counts(self) -> ChunkCounts:
        """How often chunks of the remote tier were in memory, and what was fetched ahead in vain."""
        return self._chunks.counts

    async def snapshot(
        self, partition: TopicIdPartition, offset: int | None = None, epochs: FetchEpochs = NO_EPOCHS
    ) -> PartitionSnapshot:
        """Return a snapshot of a partition: a new one, or the last.

        The last is at most remote.log.reader.metadata.max.age.ms old, or twenty times as long as it took to take if
        that is longer. If `offset` lies outside of it, or `epochs` contradict it, the reader takes a new one. Raises
        ReadTimedOutError.
        """
        deadline = self._deadline(None)
        seen = await self._snapshots.get(partition, deadline)
        try:
            if offset is None or seen.log_start_offset <= offset <= seen.end_offset(READ_UNCOMMITTED):
                seen.check_epochs(offset or 0, epochs)
                return seen
        except LeaderEpochError:
            pass  # the snapshot may be older than the latest leader: take a new one before refusing
        return await self._snapshots.refreshed(partition, deadline)

    async def offsets(
        self,
        partition: TopicIdPartition,
        spec: OffsetSpec | int,
        isolation: Isolation = READ_UNCOMMITTED,
        *,
        visible_only: bool = False,
    ) -> FoundOffset | None:
        """Return an offset by its name, or the first whose record has at least the timestamp `spec` (ms).

        None if there is no such record below the end that `isolation` lets a reader see; for LATEST_TIERED, if nothing
        is remote. Raises RemoteStorageError, ReadRefusedError, CorruptLogError, and ConfigurationError for a negative
        timestamp. Raises the error of an unreadable local tier if that tier might change the result, unless
        `visible_only` asks for the result of the readable tiers.
        """
        deadline = self._deadline(self._context.settings.remote_list_offsets_request_timeout_ms)
        snapshot = await self._snapshots.get(partition, deadline)
        try:
            found = await self._find(snapshot, spec, isolation, deadline)
        except (FileNotFoundError, RemoteObjectNotFoundError):
            # Trimmed or deleted since the last snapshot. If the data are lost, the second search fails too.
            snapshot = await self._snapshots.refreshed(partition, deadline)
            found = await self._find(snapshot, spec, isolation, deadline)
        if not visible_only and not is_certain(snapshot, spec, found):
            snapshot.ensure_not_hidden(snapshot.global_log_start)
        return found

    async def _find(
        self, seen: PartitionSnapshot, spec: OffsetSpec | int, isolation: Isolation, deadline: FetchDeadline
    ) -> FoundOffset | None:
        snapshot = await self._aborted.decided(seen, isolation, deadline)
        return await self._offsets.find(snapshot, spec, isolation, deadline)

    async def decided_end(self, snapshot: PartitionSnapshot) -> int:
        """Return up to which offset (exclusive) the remote log of `snapshot` itself shows how each transaction ended.

        Raises RemoteStorageError, ReadRefusedError.
        """
        return await self._aborted.decided_end(snapshot, self._deadline(None))

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
        """Yield whole batches, each offset once, from the one with `start_offset` up to `end_offset` (exclusive; None:
        the end of the log when the read begins).

        `deadline_ms` is how long each step may wait for the remote tier, else remote.fetch.max.wait.ms. Prefetching is
        bounded by remote.log.reader.read.ahead.bytes; it ends with the iterator, so close that (aclosing) if you leave
        early. `epochs` are compared before the first batch. Raises OffsetOutOfRangeError (with the available range),
        LeaderEpochError, RecordsDeletedError if the log start moved past the offset being read,
        RemoteObjectNotFoundError and RemoteObjectCorruptError for lost data, RemoteStorageError, ReadRefusedError.
        """
        stream = self.stream(partition, start_offset, isolation=isolation, deadline_ms=deadline_ms, epochs=epochs)
        return stream.fetch(end_offset)

    def stream(
        self,
        partition: TopicIdPartition,
        start_offset: int,
        *,
        isolation: Isolation = READ_UNCOMMITTED,
        deadline_ms: int | None = None,
        epochs: FetchEpochs = NO_EPOCHS,
    ) -> LogStream:
        """Return the read of `batches` itself, which also shows whether its next batches are in memory."""
        return LogStream(self._streams, partition, start_offset, isolation, lambda: self._deadline(deadline_ms), epochs)

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

        Control records are left out, and at READ_COMMITTED aborted records too. `within` limits the records further,
        by timestamp too, and can ask for control records. Raises as `batches`, and ConfigurationError at once for an
        unknown column.
        """
        select_columns(columns)
        batches = self.batches(
            partition, start_offset, end_offset=end_offset, isolation=isolation, deadline_ms=deadline_ms, epochs=epochs
        )
        return decoded(batches, columns, within or RecordRange(with_control=False), self._pools.decoding)

    async def segment(self, partition: TopicIdPartition, segment_id: str) -> RemoteLogSegmentMetadata:
        """Return a finished remote segment by its id. Raises RemoteObjectNotFoundError, RecordsDeletedError."""
        deadline = self._deadline(None)
        found = _segment_in(await self._snapshots.get(partition, deadline), segment_id)
        if found is None:
            searching = self._pools.snapshots.submit(lambda: self._known(partition, segment_id))
            found = await deadline.outcome(searching, segment_id)
        if found is None:
            raise RemoteObjectNotFoundError(
                f"{partition}: no readable remote segment has the id {segment_id}: 'tiered-storage segments' lists "
                "all of them, with their states"
            )
        return found

    async def segment_bytes(
        self, partition: TopicIdPartition, segment_id: str, start: int = 0, end_inclusive: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a remote segment from `start` to `end_inclusive` (None: to its end), chunk by chunk.

        Every batch's checksum is verified. Raises RemoteObjectNotFoundError, and ValueError for a range outside of it.
        """
        segment = await self.segment(partition, segment_id)
        end = segment.size if end_inclusive is None else end_inclusive + 1
        if not 0 <= start < end <= segment.size:
            raise ValueError(f"{segment.segment_id}: bytes {start} to {end - 1} are not in it: it has {segment.size}")
        pieces = segment_range(
            self._chunks, segment, start, end, lambda: self._deadline(None),
            self._context.settings.remote_log_reader_read_ahead_bytes,
        )  # fmt: skip
        async with aclosing(pieces):
            async for piece in pieces:
                yield piece

    async def index(self, partition: TopicIdPartition, segment_id: str, kind: IndexKind) -> bytes:
        """Return one index of a remote segment after verifying its checksum. Raises RemoteObjectNotFoundError."""
        segment = await self.segment(partition, segment_id)
        return await self._chunks.index(segment, kind, self._deadline(None))

    def close(self) -> None:
        """End the threads once they are idle, and drop the cache; pending reads get ConfigurationError."""
        self._pools.close()
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
        """Return a finished segment that the snapshot lacks: a second copy, or one committed since.

        Raises RecordsDeletedError if it was deleted with its topic or lies below the global log start, even if its
        objects still exist.
        """
        state = self._context.segments.partition_state(partition)
        for segment in self._context.segments.list_remote_log_segments(partition):
            if segment.segment_id.id != segment_id or segment.state is not SegmentState.COPY_SEGMENT_FINISHED:
                continue
            start = segment.end_offset + 1 if state.delete_state is not None else state.log_start_offset or 0
            if segment.end_offset < start:
                raise RecordsDeletedError(str(partition), segment.start_offset, start, start)
            return segment
        return None

    def _deadline(self, wait_ms: int | None) -> FetchDeadline:
        return FetchDeadline.after(
            self._context.settings.remote_fetch_max_wait_ms if wait_ms is None else wait_ms, self._timing
        )


def _files(settings: Settings) -> ChunkFiles | None:
    most = settings.remote_log_reader_cache_disk_bytes
    return ChunkFiles(settings.state_directory / "chunk-cache", most) if most else None


def _segment_in(snapshot: PartitionSnapshot, segment_id: str) -> RemoteLogSegmentMetadata | None:
    for covered in snapshot.coverage.ranges_from(snapshot.log_start_offset):
        if covered.segment.segment_id.id == segment_id:
            return covered.segment
    return None
