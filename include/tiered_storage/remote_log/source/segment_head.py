"""What the header of a segment's first batch tells: the format of its batches, and when it begins."""

from __future__ import annotations

from tiered_storage.errors import TieredStorageError
from tiered_storage.remote_log.source.segment_source import OpenSegment


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
    from tiered_storage.kafka_log.kernels.batch_layout import BATCH_OVERHEAD
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
