"""How old the records of a local segment are: by their own timestamps, and never by the times of files.

A file is as old as the last copy, restore or rsync of it. A segment ends its life by this answer before it was ever
copied, so a yes is always confirmed by its batches.
"""

from __future__ import annotations

from tiered_storage.errors import CorruptIndexError
from tiered_storage.kafka_log.files.log_segment import LogSegment
from tiered_storage.kafka_log.indexes.time_index import TimeIndex
from tiered_storage.kafka_log.records.segment_scan import iterate_segment


def is_older_than(segment: LogSegment, moment: int) -> bool:
    """Whether every record of a closed segment that has a timestamp was made before `moment` (ms), and one at least.

    Where the time index tells of a later one the segment is not even read. Raises CorruptRecordError and OSError.
    """
    indexed = _last_indexed(segment)
    if indexed is not None and indexed >= moment:
        return False
    return 0 <= largest_timestamp(segment) < moment


def is_indexed_before(segment: LogSegment, moment: int) -> bool:
    """Whether the time index tells of timestamps, all before `moment` (ms): an estimate that reads no batch."""
    indexed = _last_indexed(segment)
    return indexed is not None and 0 <= indexed < moment


def largest_timestamp(segment: LogSegment) -> int:
    """Return the largest timestamp (ms) in the headers of a segment's batches, -1 where none has one.

    Reads all of it, in bounded memory, checksums verified. Raises CorruptRecordError and OSError.
    """
    tables = (table for _, table in iterate_segment(segment.log_path, segment.base_offset))
    return max((int(table.max_timestamp.max()) for table in tables if len(table)), default=-1)


def _last_indexed(segment: LogSegment) -> int | None:
    try:
        index = TimeIndex.read(segment.time_index_path, segment.base_offset)
    except (CorruptIndexError, FileNotFoundError):
        return None
    return int(index.timestamps[-1]) if index.timestamps.size else None
