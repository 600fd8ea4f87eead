"""A chunk of a remote segment with every byte checked: by its batches' checksums, its index, its leader epochs."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_storage.errors import CorruptLogError, RemoteObjectCorruptError, UnsupportedMagicError
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.kafka_log.records.segment_scan import SegmentScanner
from tiered_storage.remote_log.indexes.batch_epochs import wrong_epoch
from tiered_storage.remote_log.indexes.remote_log_index import RemoteLogIndexEntry
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata

_OBJECT_BYTES = 500
_TABLE_ROW_BYTES = 72


@dataclass(frozen=True, slots=True, eq=False)
class CheckedChunk:
    """A chunk's bytes and the headers of its batches, which were checked; its own place in `segment` is `entry`."""

    segment: RemoteLogSegmentMetadata
    entry: RemoteLogIndexEntry
    content: bytes
    table: BatchTable

    @property
    def memory(self) -> int:
        """Its approximate size in memory in bytes."""
        return len(self.content) + _TABLE_ROW_BYTES * len(self.table) + _OBJECT_BYTES


def read_chunk(segment: RemoteLogSegmentMetadata, entry: RemoteLogIndexEntry, content: bytes) -> CheckedChunk:
    """Return the chunk of `segment` of which `content` are the bytes.

    Raises RemoteObjectCorruptError unless every checksum is right, and offsets and leader epochs, which no checksum
    covers, are those of the index and of the segment.
    """
    scanner = SegmentScanner(entry.object_name, segment.start_offset, start_position=entry.position)
    try:
        table, consumed = scanner.feed(memoryview(content))
    except UnsupportedMagicError:
        raise
    except CorruptLogError as error:
        raise RemoteObjectCorruptError(
            f"{error}: its bytes are not those that were sent; 'tiered-storage repair --deep' copies it anew where the "
            "local log still has it"
        ) from error
    is_whole = consumed == len(content) == entry.length and bool(len(table))
    if not is_whole or int(table.base_offset[0]) != entry.first_offset or scanner.next_offset != entry.last_offset + 1:
        raise RemoteObjectCorruptError(
            f"{entry.object_name}: the batches from byte {entry.position} on do not hold offsets {entry.first_offset} "
            f"to {entry.last_offset}, as their index says"
        )
    wrong = wrong_epoch(table, segment.leader_epochs)
    if wrong is not None:
        raise wrong.error(segment, entry.object_name)
    return CheckedChunk(segment, entry, content, table)
