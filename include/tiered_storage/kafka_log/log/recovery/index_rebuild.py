"""Rebuild all files beside a segment's `.log` file from the log alone.

Offset and time index follow from the segment's own batches. Transaction index and producer snapshot also depend on
earlier batches: they start from the latest producer snapshot up to the segment's base offset and read the batches
between. The files equal those of a broker of release 4.3, byte by byte, if it appended the same batches one by one with
the same `index_interval_bytes`, and no producer has expired meanwhile.

Source: LogSegment and ProducerStateManager of released Kafka.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiered_storage.errors import CorruptIndexError, CorruptRecordError, InvalidLogDirectoryError, UnsupportedMagicError
from tiered_storage.kafka_log.files.log_segment import (
    LogSegment,
    RecoveryEvent,
    Report,
    list_segments,
    producer_snapshot_path,
)
from tiered_storage.kafka_log.files.small_files import holds, replace_file
from tiered_storage.kafka_log.indexes.index_builder import INDEX_INTERVAL_BYTES, IndexBuilder
from tiered_storage.kafka_log.indexes.transaction_index import (
    AbortedTxn,
    TransactionIndex,
    encode_aborted_transactions,
)
from tiered_storage.kafka_log.log.recovery.retained_aborts import RetainedAborts
from tiered_storage.kafka_log.producers.producer_snapshot import encode_producer_snapshot
from tiered_storage.kafka_log.producers.producer_snapshot_files import latest_state
from tiered_storage.kafka_log.producers.producer_state import ProducerState
from tiered_storage.kafka_log.records.segment_scan import iterate_segment

_PRODUCERS_UNKNOWN = "kept; what producers did from there to its end is unknown"


@dataclass(frozen=True, slots=True)
class RebuiltIndexes:
    """The content of the files that belong to a closed segment.

    `transaction_index` is empty if no transaction is aborted in the segment: a broker has no file then.
    `producer_snapshot` is the one at `end_offset`, the first offset after the segment.
    """

    offset_index: bytes
    time_index: bytes
    transaction_index: bytes
    producer_snapshot: bytes
    end_offset: int

    def write(self, segment: LogSegment) -> None:
        """Replace the files of `segment` and the snapshot after it, each durably and atomically."""
        self.write_offset_indexes(segment)
        write_transaction_index(segment, self.transaction_index)
        replace_file(producer_snapshot_path(segment.directory, self.end_offset), self.producer_snapshot)

    def write_indexes(self, segment: LogSegment) -> None:
        """Replace the indexes of `segment`, except a transaction index that is readable.

        A readable one may hold entries that the log no longer shows, and does not depend on the other indexes.
        """
        self.write_offset_indexes(segment)
        if not _has_readable_transaction_index(segment):
            write_transaction_index(segment, self.transaction_index)

    def write_offset_indexes(self, segment: LogSegment) -> None:
        """Replace the offset and the time index of `segment`, each durably and atomically."""
        replace_file(segment.offset_index_path, self.offset_index)
        replace_file(segment.time_index_path, self.time_index)


def rebuild_indexes(
    segment: LogSegment, *, index_interval_bytes: int = INDEX_INTERVAL_BYTES, from_snapshots: bool = True
) -> RebuiltIndexes:
    """Build all files of `segment` from the log in its directory, changing nothing there.

    Without `from_snapshots` the producers are followed from the first segment on. Raises InvalidLogDirectoryError if
    the segment is missing, CorruptRecordError if a batch of it, or one that must be read before it, is corrupt.
    """
    segments = list_segments(segment.directory)
    if segment not in segments:
        raise InvalidLogDirectoryError(f"{segment.log_path} is missing: there is nothing to rebuild its indexes from")
    earlier = segments[: segments.index(segment)]
    start_offset = segments[0].base_offset
    if from_snapshots:
        producers = latest_state(segment.directory, start_offset, segment.base_offset)
    else:
        producers = ProducerState(start_offset, seen_from=start_offset or None)
    feed_segments(producers, earlier, segment.base_offset)
    return rebuild_next_indexes(segment, producers, index_interval_bytes)


def rebuild_next_indexes(segment: LogSegment, producers: ProducerState, index_interval_bytes: int) -> RebuiltIndexes:
    """Build all files of `segment`; `producers` is the state at its base offset and then at its end.

    Raises CorruptRecordError if one of its batches is broken.
    """
    indexes = IndexBuilder(segment.base_offset, index_interval_bytes)
    aborted: list[AbortedTxn] = []
    before = RetainedAborts(segment, producers.seen_from)
    for window, batches in iterate_segment(segment.log_path, segment.base_offset):
        indexes.append(batches)
        aborted += producers.feed(segment.log_path, window, batches)
        before.feed(window, batches)
        producers.on_high_watermark(producers.end_offset)
    indexes.close()
    return RebuiltIndexes(
        offset_index=indexes.offset_index().to_bytes(),
        time_index=indexes.time_index().to_bytes(),
        transaction_index=encode_aborted_transactions(before.joined_with(aborted)),
        producer_snapshot=encode_producer_snapshot(producers.snapshot()),
        end_offset=producers.end_offset,
    )


def feed_segments(
    producers: ProducerState, segments: Sequence[LogSegment], end_offset: int, report: Report | None = None
) -> None:
    """Advance `producers` from its end offset to the end of `segments`, which follow one another up to `end_offset`.

    Their checksums are not verified again. Raises CorruptRecordError if a batch is corrupt. With `report`, such a
    segment is reported instead, and of its producers only the transactions stay known that were open where it breaks:
    they stay open, though one might have ended later. A segment with an unknown magic is then read up to its
    first such batch.
    """
    ends = [*(segment.base_offset for segment in segments), end_offset][1:]
    for segment, end in zip(segments, ends, strict=True):
        if end <= producers.end_offset:
            continue
        try:
            for window, batches in iterate_segment(segment.log_path, segment.base_offset, verify_crc=False):
                producers.feed(segment.log_path, window, batches)
                producers.on_high_watermark(producers.end_offset)  # otherwise every ended transaction is kept
        except CorruptRecordError as error:
            if report is None:
                raise
            if not isinstance(error, UnsupportedMagicError):
                report(RecoveryEvent(segment.log_path, f"at byte {error.position}: {error.reason}", _PRODUCERS_UNKNOWN))
                producers.restart_at(end)
        if producers.end_offset != end:
            producers.seen_from = end
    producers.end_offset = max(producers.end_offset, end_offset)


def write_transaction_index(segment: LogSegment, content: bytes) -> None:
    """Replace the transaction index of `segment`, unless it is the same; without `content` there must be none.

    An empty file is kept: it records that nothing was aborted.
    """
    path = segment.transaction_index_path
    if holds(path, content):
        return
    if content:
        replace_file(path, content)
    else:
        path.unlink(missing_ok=True)


def _has_readable_transaction_index(segment: LogSegment) -> bool:
    try:
        TransactionIndex.read(segment.transaction_index_path, segment.base_offset)
    except CorruptIndexError:
        return False
    return segment.has_transaction_index()
