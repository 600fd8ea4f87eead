"""How old a local segment is, by its time index and by the headers of its batches."""

from __future__ import annotations

from tiered_storage.errors import CorruptIndexError
from tiered_storage.remote_log.source.segment_source import OpenSegment


def is_older_than(segment: OpenSegment, moment: int, below: int | None = None) -> bool:
    """Return whether a closed segment has timestamps, and all of them are before `moment` (ms).

    Only batches that begin below the offset `below` count, if it is given. If the time index has a later timestamp, the
    segment is not read. Raises CorruptRecordError and OSError.
    """
    return not is_indexed_since(segment, moment, below) and 0 <= largest_timestamp(segment, below) < moment


def is_indexed_since(segment: OpenSegment, moment: int, below: int | None = None) -> bool:
    """Return whether the time index has an entry of `moment` (ms) or later with an offset below `below` (None: any)."""
    indexed = _last_indexed(segment, below)
    return indexed is not None and indexed >= moment


def is_indexed_before(segment: OpenSegment, moment: int) -> bool:
    """Return whether the time index has timestamps, all before `moment` (ms): an estimate that reads no batch."""
    indexed = _last_indexed(segment)
    return indexed is not None and 0 <= indexed < moment


def largest_timestamp(segment: OpenSegment, below: int | None = None) -> int:
    """Return the largest timestamp (ms) in the headers of a segment's batches, -1 if none has one.

    Only batches that begin below the offset `below` count, where that is given. Reads all of them, in bounded memory,
    checksums verified. Raises CorruptRecordError and OSError.
    """
    largest = -1
    for _, table in segment.windows():
        count = len(table) if below is None else int(table.base_offset.searchsorted(below))
        largest = max(largest, int(table.max_timestamp[:count].max(initial=-1)))
        if count < len(table):
            break
    return largest


def _last_indexed(segment: OpenSegment, below: int | None = None) -> int | None:
    try:
        index = segment.time_index.read()
    except CorruptIndexError:
        return None
    if index is None:
        return None
    count = index.timestamps.size if below is None else int(index.offsets.searchsorted(below))
    return int(index.timestamps[count - 1]) if count else None
