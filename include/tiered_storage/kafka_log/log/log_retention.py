"""Which segments of a local log retention deletes: by time, by size, and by the log's start.

Always from the first segment on, and only those that end at or below the high watermark:

    log start   the next segment begins at the log start or before it
    size        without the segment, the log still has `retention_bytes` or more
    time        the segment's largest timestamp is more than `retention_ms` ago, by its time index and by its batches

The active segment may expire by time or size once the high watermark is at the log's end: it is rolled then.

Source: UnifiedLog of released Kafka.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiered_storage.errors import CorruptRecordError
from tiered_storage.kafka_log.files.log_segment import LogSegment, RecoveryEvent, Report
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.log_segments import LogSegments

_AGE_UNKNOWN = (
    "kept, with all segments after it, since its age is unknown; it can still expire by the log start or by size"
)


@dataclass(frozen=True, slots=True)
class LogLimits:
    """The range of a log; `high_watermark` and `end_offset` are exclusive."""

    start_offset: int
    high_watermark: int
    end_offset: int


def segments_to_delete(
    segments: LogSegments, limits: LogLimits, config: LogConfig, now: int, report: Report
) -> list[LogSegment]:
    """Return the segments that have expired at `now` (ms), from the first one on; an empty active one never has.

    A corrupt segment without a known age does not expire by time, nor do those after it; each is passed to `report`.
    """
    ends = [*(segment.base_offset for segment in segments.all[1:]), limits.end_offset]
    candidates = [
        (segment, end)
        for segment, end in zip(segments.all, ends, strict=True)
        if end <= limits.high_watermark and not (end == limits.end_offset and segments.size_of(segment) == 0)
    ]
    by_start = sum(1 for segment, end in candidates if end <= limits.start_offset and segment != segments.all[-1])
    by_size = _over_by_size(segments, [segment for segment, _ in candidates[by_start:]], config.retention_bytes)
    over = by_start + by_size
    over += _over_by_time(segments, [segment for segment, _ in candidates[over:]], config.retention_ms, now, report)
    return [segment for segment, _ in candidates[:over]]


def _over_by_size(segments: LogSegments, candidates: Sequence[LogSegment], retention_bytes: int) -> int:
    if retention_bytes < 0 or not candidates:
        return 0
    kept = [segment for segment in segments.all if segment.base_offset >= candidates[0].base_offset]
    excess = sum(segments.size_of(segment) for segment in kept) - retention_bytes
    over = 0
    for segment in candidates:
        excess -= segments.size_of(segment)
        if excess < 0:
            break
        over += 1
    return over


def _over_by_time(
    segments: LogSegments, candidates: Sequence[LogSegment], retention_ms: int, now: int, report: Report
) -> int:
    if retention_ms < 0:
        return 0
    over = 0
    for segment in candidates:
        try:
            is_kept = not _is_older(segments, segment, now - retention_ms)
        except CorruptRecordError as error:
            report(RecoveryEvent(segment.log_path, f"at byte {error.position}: {error.reason}", _AGE_UNKNOWN))
            is_kept = True
        if is_kept:
            break
        over += 1
    return over


def _is_older(segments: LogSegments, segment: LogSegment, timestamp: int) -> bool:
    """A wrong index must not cost records: only the timestamps in the batches expire a segment."""
    return (
        segments.latest_timestamp(segment) < timestamp
        and segments.latest_timestamp(segment, confirmed=True) < timestamp
    )
