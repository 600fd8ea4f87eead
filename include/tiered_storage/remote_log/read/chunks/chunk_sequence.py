"""The chunks of one segment in their order, for a reader that waits for each: no cache, no quota, no deadline.

Memory holds a few chunks, whatever the segment's size.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

from tiered_storage.errors import CorruptIndexError, RemoteChunkCorruptError, RemoteObjectCorruptError
from tiered_storage.remote_log.indexes.remote_log_index import RemoteLogIndexEntry, iterate_entries
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.read.chunks.checked_chunk import fetch_chunk
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind, RemoteStorageManager

CHUNKS_AHEAD = 2
"""How many chunks of a few MiB are prefetched while one is used."""


def chunk_entries(segment: RemoteLogSegmentMetadata, storage: RemoteStorageManager) -> Iterator[RemoteLogIndexEntry]:
    """Yield the entries of all chunks of `segment`, from its remote log index.

    Raises CorruptIndexError if the index is corrupt or its chunks do not cover the segment, and what the store raises.
    """
    source = f"{segment.segment_id}: remoteLogIndex"
    raw = storage.fetch_index(segment, IndexKind.REMOTE_LOG_INDEX)
    position = 0
    for entry in iterate_entries(raw, source):
        if entry.position != position or entry.position + entry.length > segment.size:
            raise CorruptIndexError(
                source, 0, f"the chunk of offset {entry.first_offset} begins at byte {entry.position}"
            )
        position += entry.length
        yield entry
    if position != segment.size:
        raise CorruptIndexError(source, len(raw), f"its chunks have {position} bytes of the segment's {segment.size}")


def fetch_in_order(
    segment: RemoteLogSegmentMetadata, entries: Iterator[RemoteLogIndexEntry], storage: RemoteStorageManager
) -> Iterator[tuple[RemoteLogIndexEntry, bytes | RemoteChunkCorruptError]]:
    """Yield each chunk with its unchecked bytes; prefetch CHUNKS_AHEAD more.

    Raises as `fetch_for_check`, but yields a RemoteChunkCorruptError in place of the bytes.
    """

    def fetch(entry: RemoteLogIndexEntry) -> bytes | RemoteChunkCorruptError:
        try:
            return fetch_for_check(segment, entry, storage)
        except RemoteChunkCorruptError as error:
            return error

    waiting: deque[tuple[RemoteLogIndexEntry, Future[bytes | RemoteChunkCorruptError]]] = deque()
    pool = ThreadPoolExecutor(1, thread_name_prefix="chunk-sequence")
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


def fetch_for_check(
    segment: RemoteLogSegmentMetadata, entry: RemoteLogIndexEntry, storage: RemoteStorageManager
) -> bytes:
    """Return the bytes of a chunk, also if they are damaged: the check of its batches shows which ones.

    Raises what the store raises, RemoteChunkCorruptError among it, and RemoteObjectCorruptError if bytes are missing.
    """
    try:
        return fetch_chunk(segment, entry, storage)
    except RemoteObjectCorruptError:
        # A chunk can be a whole segment, which the store compares with its checksum. In two parts it is not compared:
        # the bytes arrive, and the batches' checksums show which batch is corrupt. A truncated object fails again.
        return fetch_chunk(segment, entry, storage, requests=2)
