"""A chunk of a remote segment, checked against its batches' checksums, the remote log index and the leader epochs."""

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
    """A chunk's bytes and the headers of its batches, after the check; `entry` is its position in `segment`."""

    segment: RemoteLogSegmentMetadata
    entry: RemoteLogIndexEntry
    content: bytes
    table: BatchTable

    @property
    def memory(self) -> int:
        """Its approximate size in memory in bytes."""
        return len(self.content) + _TABLE_ROW_BYTES * len(self.table) + _OBJECT_BYTES


def read_chunk(segment: RemoteLogSegmentMetadata, entry: RemoteLogIndexEntry, content: bytes) -> CheckedChunk:
    """Check `content`, the bytes of the chunk `entry` of `segment`, and return the chunk.

    Raises RemoteObjectCorruptError if a checksum is wrong, or if offsets or leader epochs, which no checksum covers,
    differ from those of the index and of the segment.
    """
    scanner = SegmentScanner(entry.object_name, segment.start_offset, start_position=entry.position)
    try:
        table, consumed = scanner.feed(memoryview(content))
    except UnsupportedMagicError:
        raise
    except CorruptLogError as error:
        raise RemoteObjectCorruptError(
            f"{error}: its bytes differ from those that were sent; 'tiered-storage repair --deep' copies it again if "
            "the local log still has it"
        ) from error
    is_whole = consumed == len(content) == entry.length and bool(len(table))
    if not is_whole or int(table.base_offset[0]) != entry.first_offset or scanner.next_offset != entry.last_offset + 1:
        raise RemoteObjectCorruptError(
            f"{entry.object_name}: the batches from byte {entry.position} on do not hold offsets {entry.first_offset} "
            f"to {entry.last_offset}, as the remote log index has them"
        )
    wrong = wrong_epoch(table, segment.leader_epochs)
    if wrong is not None:
        raise wrong.error(segment, entry.object_name)
    return CheckedChunk(segment, entry, content, table)
