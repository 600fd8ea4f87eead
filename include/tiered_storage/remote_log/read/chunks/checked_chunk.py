"""A chunk of a remote segment: fetched, and checked by its batches' checksums, the index and the leader epochs.

`read_chunk` checks a whole chunk. A reader that continues after damage checks in two steps: `chunk_headers`, then
`check_batches` for the batches that it wants. In a damaged chunk `sound_batches` finds what is still readable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from tiered_storage.errors import REPAIR_ADVICE, CorruptRecordError, RemoteObjectCorruptError, UnsupportedMagicError
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.kafka_log.records.segment_scan import SegmentScanner, as_array, check_checksums
from tiered_storage.remote_log.indexes.batch_epochs import wrong_epoch
from tiered_storage.remote_log.indexes.remote_log_index import RemoteLogIndexEntry
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.storage.remote_storage_manager import RemoteStorageManager

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


@dataclass(frozen=True, slots=True)
class DamagedBytes:
    """`size` bytes of a segment, from byte `position` on, that are not the batches that were sent.

    The records there had offsets from `first_offset` to `last_offset` (inclusive).
    """

    position: int
    size: int
    first_offset: int
    last_offset: int
    error: CorruptRecordError

    @classmethod
    def batch(cls, alone: BatchTable, error: CorruptRecordError) -> Self:
        """Return the one batch of `alone`, in which `error` was found."""
        return cls(error.position, int(alone.size[0]), int(alone.base_offset[0]), int(alone.last_offset[0]), error)


def fetch_chunk(
    segment: RemoteLogSegmentMetadata, entry: RemoteLogIndexEntry, storage: RemoteStorageManager, *, requests: int = 1
) -> bytes:
    """Return the unchecked bytes of a chunk, fetched by that many `requests` of the store.

    Raises what the store raises, and RemoteObjectCorruptError if bytes are missing.
    """
    cuts = [entry.position + entry.length * part // requests for part in range(requests + 1)]
    ranges = ((start, end - 1) for start, end in pairwise(cuts) if start < end)
    pieces = [piece for first, last in ranges for piece in storage.fetch_log_segment(segment, first, last)]
    content = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    if len(content) != entry.length:
        raise RemoteObjectCorruptError(
            f"{entry.object_name}: the store returned {len(content)} of {entry.length} bytes from byte "
            f"{entry.position} on"
        )
    return content


def read_chunk(segment: RemoteLogSegmentMetadata, entry: RemoteLogIndexEntry, content: bytes) -> CheckedChunk:
    """Check `content`, the bytes of the chunk `entry` of `segment`, and return the chunk.

    Raises RemoteObjectCorruptError if a checksum is wrong, or if offsets or leader epochs, which no checksum covers,
    differ from those of the index and of the segment.
    """
    try:
        table = _scanned(segment, entry, memoryview(content), verify_crc=True)
        _check_offsets(entry, table)
        _check_epochs(segment, entry, table)
    except CorruptRecordError as error:
        raise_damaged(error)
    return CheckedChunk(segment, entry, content, table)


def chunk_headers(segment: RemoteLogSegmentMetadata, entry: RemoteLogIndexEntry, content: memoryview) -> BatchTable:
    """Return the headers of the chunk's batches; use one only after `check_batches` has checked its batch.

    Raises CorruptRecordError for a header that no batch can have there, and if offsets differ from the index.
    """
    table = _scanned(segment, entry, content, verify_crc=False)
    _check_offsets(entry, table)
    return table


def check_batches(
    segment: RemoteLogSegmentMetadata, entry: RemoteLogIndexEntry, content: memoryview, table: BatchTable
) -> None:
    """Check the checksum and the leader epoch of the batches in `table`, some of the chunk whose bytes are `content`.

    Raises CorruptRecordError for the first wrong checksum, else for the first wrong epoch.
    """
    check_checksums(as_array(content), entry.position, table.position, table.size, source=entry.object_name)
    _check_epochs(segment, entry, table)


def sound_batches(
    segment: RemoteLogSegmentMetadata,
    entry: RemoteLogIndexEntry,
    content: memoryview,
    wanted: Callable[[BatchTable], NDArray[np.intp]],
    on_damaged: Callable[[DamagedBytes], None],
) -> Iterator[BatchTable]:
    """Yield the headers of each sound batch of a damaged chunk by itself, of those that `wanted` selects by headers.

    `on_damaged` gets each of the wanted batches that is damaged, and everything from a damaged header on.
    """
    table = _headers_before_damage(segment, entry, content, on_damaged)
    for row in wanted(table).tolist():
        alone = table.rows(row, row + 1)
        try:
            check_batches(segment, entry, content, alone)
        except CorruptRecordError as error:
            on_damaged(DamagedBytes.batch(alone, error))
            continue
        yield alone


def raise_damaged(error: CorruptRecordError) -> NoReturn:
    """Raise RemoteObjectCorruptError for `error`, found in stored bytes; UnsupportedMagicError as it is.

    The copier refuses batches with such errors, so the bytes changed after they were sent.
    """
    if isinstance(error, UnsupportedMagicError):
        raise error
    raise RemoteObjectCorruptError(f"{error}: its bytes differ from those that were sent; {REPAIR_ADVICE}") from error


def _headers_before_damage(
    segment: RemoteLogSegmentMetadata,
    entry: RemoteLogIndexEntry,
    content: memoryview,
    on_damaged: Callable[[DamagedBytes], None],
) -> BatchTable:
    """Return the headers of all batches, or of those before a damaged header, which `on_damaged` gets with the rest."""
    try:
        return chunk_headers(segment, entry, content)
    except CorruptRecordError as error:
        sound = max(0, error.position - entry.position)
        before = content[:sound]
        table = _scanned(segment, entry, before, verify_crc=False) if sound else BatchTable.allocate(0)
        next_offset = int(table.last_offset[-1]) + 1 if len(table) else entry.first_offset
        last_offset = max(entry.last_offset, next_offset)
        on_damaged(DamagedBytes(error.position, entry.length - sound, next_offset, last_offset, error))
        return table


def _scanned(
    segment: RemoteLogSegmentMetadata, entry: RemoteLogIndexEntry, content: memoryview, *, verify_crc: bool
) -> BatchTable:
    scanner = SegmentScanner(
        entry.object_name, segment.start_offset, start_position=entry.position, verify_crc=verify_crc
    )
    table, consumed = scanner.feed(content)
    scanner.finish(len(content) - consumed)
    return table


def _check_offsets(entry: RemoteLogIndexEntry, table: BatchTable) -> None:
    found = (int(table.base_offset[0]), int(table.last_offset[-1])) if len(table) else None
    if found != (entry.first_offset, entry.last_offset):
        raise CorruptRecordError(
            entry.object_name,
            entry.position,
            f"the batches of the chunk do not hold offsets {entry.first_offset} to {entry.last_offset}, as the remote "
            "log index has them",
        )


def _check_epochs(segment: RemoteLogSegmentMetadata, entry: RemoteLogIndexEntry, table: BatchTable) -> None:
    wrong = wrong_epoch(table, segment.leader_epochs)
    if wrong is not None:
        raise CorruptRecordError(entry.object_name, wrong.position, f"{segment.topic_id_partition}: {wrong}")
