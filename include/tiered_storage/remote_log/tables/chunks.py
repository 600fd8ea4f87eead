"""The chunks of a range, fetched from the store while the one before them is worked on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

from tiered_storage.errors import CorruptIndexError, RemoteObjectCorruptError
from tiered_storage.remote_log.indexes.remote_log_index import RemoteLogIndexEntry, iterate_entries
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind, RemoteStorageManager
from tiered_storage.remote_log.tables.query import RowFilter
from tiered_storage.remote_log.tables.splits import TableRange

CHUNKS_AHEAD = 2
"""How many chunks of a few MiB are fetched, or wait, beside the one that is worked on."""

_NONE = -1


def chunks_of(wanted: TableRange, rows: RowFilter, storage: RemoteStorageManager) -> Iterator[RemoteLogIndexEntry]:
    """Yield the entries of the chunks that may have `rows` of `wanted`, by the segment's remote log index.

    Raises CorruptIndexError for an index that is broken or leaves an offset of the range out of every chunk's reach,
    and what the store raises.
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
) -> Iterator[tuple[RemoteLogIndexEntry, bytes]]:
    """Yield each chunk with its bytes; CHUNKS_AHEAD of them are fetched meanwhile. Raises as `fetch_chunk`."""
    waiting: deque[tuple[RemoteLogIndexEntry, Future[bytes]]] = deque()
    pool = ThreadPoolExecutor(1, thread_name_prefix="table-chunks")
    try:
        for entry in islice(entries, CHUNKS_AHEAD):
            waiting.append((entry, pool.submit(fetch_chunk, entry, wanted, storage)))
        while waiting:
            entry, coming = waiting.popleft()
            content = coming.result()
            for following in islice(entries, 1):
                waiting.append((following, pool.submit(fetch_chunk, following, wanted, storage)))
            yield entry, content
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def fetch_chunk(entry: RemoteLogIndexEntry, wanted: TableRange, storage: RemoteStorageManager) -> bytes:
    """Return the bytes of one chunk.

    Raises what the store raises, and RemoteObjectCorruptError for a chunk that came short.
    """
    first, last = entry.position, entry.position + entry.length - 1
    try:
        return _ranged(entry, wanted, storage, (first, last))
    except RemoteObjectCorruptError:
        # Of a whole segment only the checksum of all is known to be wrong: in two parts it comes, and its batches
        # tell which of them it is. An object that is too short fails again.
        middle = (first + last) // 2
        return _ranged(entry, wanted, storage, (first, middle), (middle + 1, last))


def _ranged(
    entry: RemoteLogIndexEntry, wanted: TableRange, storage: RemoteStorageManager, *parts: tuple[int, int]
) -> bytes:
    pieces = (piece for part in parts for piece in storage.fetch_log_segment(wanted.segment, *part))
    content = b"".join(pieces)
    if len(content) != entry.length:
        raise RemoteObjectCorruptError(
            f"{entry.object_name}: {len(content)} bytes came from byte {entry.position} on, of {entry.length}"
        )
    return content
