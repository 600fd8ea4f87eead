"""The bytes of a range of one remote segment, chunk by chunk, read ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable

from tiered_storage.errors import CorruptIndexError
from tiered_storage.remote_log.indexes.remote_log_index import RemoteLogIndexEntry
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.read.fetch_deadline import FetchDeadline
from tiered_storage.remote_log.read.remote_chunks import AheadFetch, RemoteChunks, chunk_at_byte


async def segment_range(
    chunks: RemoteChunks,
    segment: RemoteLogSegmentMetadata,
    start: int,
    end: int,
    new_deadline: Callable[[], FetchDeadline],
    read_ahead_bytes: int,
) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of `segment` from `start` (inclusive) to `end` (exclusive), which are in it.

    As many as `read_ahead_bytes` are on their way, at first only a chunk. Raises RemoteStorageError, ReadRefusedError,
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
                    raise CorruptIndexError(indexes.source, 0, f"no chunk has byte {planned} of the segment")
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
