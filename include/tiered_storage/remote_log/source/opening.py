"""Opens a segment by the location that its source gave it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiered_storage.remote_log.source.segment_source import OpenSegment, SegmentLocation

if TYPE_CHECKING:
    from tiered_storage.kafka_log.producers.producer_history import ProducerHistory


def open_segment(location: SegmentLocation, history: ProducerHistory | None = None) -> OpenSegment:
    """Open the segment at `location`, which need not exist any more; segments of one log may share their `history`.

    Raises InvalidLogDirectoryError for what no source can have given.
    """
    # Whoever only plans needs none of what this imports.
    from tiered_storage.remote_log.source.log_directory_segment import LogDirectorySegment

    return LogDirectorySegment.at(location, history)
