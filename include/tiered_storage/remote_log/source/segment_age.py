"""How old a local segment is, and of which format: by its time index and by the headers of its batches."""

from __future__ import annotations

from tiered_storage.errors import CorruptIndexError, TieredStorageError
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


def magic(segment: OpenSegment) -> int | None:
    """Return the magic of the first batch; None if there is none. Raises OSError."""
    from tiered_storage.kafka_log.records.batch_header import MAGIC_END

    head = segment.head()[:MAGIC_END]
    return head[-1] if len(head) == MAGIC_END and any(head) else None


def first_timestamp(segment: OpenSegment) -> int | None:
    """Return the timestamp (ms) of the first record; None if there is none, or it has none or is broken.

    A copy reports a broken or older first batch; for the window of a backfill it says nothing. Raises OSError.
    """
    # Whoever only plans needs none of what this imports.
    from tiered_storage.kafka_log.kernels.constants import BATCH_OVERHEAD
    from tiered_storage.kafka_log.records.batch_header import NO_TIMESTAMP, TimestampType, read_batch_header

    head = segment.head()
    if len(head) < BATCH_OVERHEAD or not any(head):
        return None
    try:
        batch = read_batch_header(head, source=segment.name)
    except TieredStorageError:
        return None
    by_broker = batch.timestamp_type is TimestampType.LOG_APPEND_TIME
    timestamp = batch.max_timestamp if by_broker else batch.base_timestamp
    return None if timestamp == NO_TIMESTAMP else timestamp


def _last_indexed(segment: OpenSegment, below: int | None = None) -> int | None:
    try:
        index = segment.time_index.read()
    except CorruptIndexError:
        return None
    if index is None:
        return None
    count = index.timestamps.size if below is None else int(index.offsets.searchsorted(below))
    return int(index.timestamps[count - 1]) if count else None
