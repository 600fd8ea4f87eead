"""Derive what readers need beside Kafka's own indexes: the manifest, and the remote log index trio.

A scan reads the headers of all batches. Where short ranges are cheap, Kafka's offset and time index replace most of it:
the offset index shows where batches begin, so that only those around the chunks' borders are read; the time index has
the largest timestamp up to each of its offsets. If the two contradict the log or the metadata, or a chunk begins with a
message of magic 0 or 1, whose header need not show its first offset, the log is scanned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tiered_storage.errors import (
    CorruptLogError,
    CorruptRecordError,
    RemoteObjectCorruptError,
    RemoteObjectNotFoundError,
)
from tiered_storage.kafka_log.indexes.offset_index import OffsetIndex
from tiered_storage.kafka_log.indexes.time_index import TimeIndex
from tiered_storage.kafka_log.kernels.constants import BATCH_OVERHEAD
from tiered_storage.kafka_log.records.batch_header import LEGACY_MAGICS, MAGIC_END
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.kafka_log.records.segment_scan import SegmentScanner
from tiered_storage.remote_log.indexes.remote_index_builder import (
    CHUNK_BYTES,
    EncodedRemoteIndexes,
    RemoteIndexBuilder,
)
from tiered_storage.remote_log.indexes.remote_log_index import RemoteLogIndexEntry
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.native.segment_files import SegmentFiles
from tiered_storage.remote_log.storage.batch_stream import BatchStream
from tiered_storage.remote_log.storage.documents.manifest import Manifest
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind

DERIVED = frozenset(
    {
        IndexKind.MANIFEST,
        IndexKind.REMOTE_LOG_INDEX,
        IndexKind.REMOTE_OFFSET_INDEX,
        IndexKind.REMOTE_TIME_INDEX,
    }
)
_NONE = -1


def derive_indexes(segment: RemoteLogSegmentMetadata, files: SegmentFiles) -> Mapping[IndexKind, bytes]:
    """Return the manifest and the remote log index trio of `segment`.

    Raises RemoteObjectCorruptError if the log has no whole batches up to its end, and what the store raises.
    """
    if files.reads_ranges_cheaply(segment):
        try:
            return indexes_by_kafkas(segment, files)
        except (CorruptLogError, RemoteObjectCorruptError, RemoteObjectNotFoundError):
            pass  # an index is lost or contradicts the log, which the log itself makes up for
    return scanned_indexes(segment, files)


def scanned_indexes(
    segment: RemoteLogSegmentMetadata, files: SegmentFiles, chunk_bytes: int = CHUNK_BYTES
) -> Mapping[IndexKind, bytes]:
    """Return the manifest and the trio from the headers of all batches; raises as derive_indexes.

    Checksums are not compared here: readers compare them chunk by chunk, so damage hides one chunk and no other.
    """
    builder = RemoteIndexBuilder(segment, chunk_bytes, object_name=files.log_name(segment))
    stream = BatchStream(files.log_name(segment), segment.start_offset, segment.size, verify_crc=False)
    try:
        for piece in files.read_log(segment, 0, segment.size):
            for table in stream.feed(piece):
                builder.append(table)
        stream.finish()
    except CorruptRecordError as error:
        raise RemoteObjectCorruptError(f"{files.root}/{error}") from error
    return builder.indexes()


def indexes_by_kafkas(
    segment: RemoteLogSegmentMetadata, files: SegmentFiles, chunk_bytes: int = CHUNK_BYTES
) -> Mapping[IndexKind, bytes]:
    """Return the manifest, without counts, and the trio by Kafka's indexes, in chunks of `chunk_bytes` or more.

    Raises CorruptLogError if an index is invalid or contradicts the log or the metadata, and what the store raises.
    """
    chunks = list(_Borders(segment, files, chunk_bytes).chunks())
    encoded = EncodedRemoteIndexes.of(chunks, segment.start_offset)
    return {
        IndexKind.MANIFEST: Manifest.of(segment).to_bytes(),
        IndexKind.REMOTE_LOG_INDEX: encoded.log_index,
        IndexKind.REMOTE_OFFSET_INDEX: encoded.offset_index,
        IndexKind.REMOTE_TIME_INDEX: encoded.time_index,
    }


class _Borders:
    """Finds a segment's chunks by reading the batches between a border and the entry of the offset index before it."""

    def __init__(self, segment: RemoteLogSegmentMetadata, files: SegmentFiles, chunk_bytes: int) -> None:
        """Read both indexes; raises CorruptLogError if the time index does not reach the segment's last timestamp."""
        self._segment, self._files, self._chunk_bytes = segment, files, chunk_bytes
        self._name = files.log_name(segment)
        base = segment.start_offset
        self._offsets = OffsetIndex.parse(files.index(segment, IndexKind.OFFSET), f"{self._name}: offset index", base)
        self._times = TimeIndex.parse(files.index(segment, IndexKind.TIMESTAMP), f"{self._name}: time index", base)
        latest = int(self._times.timestamps[-1]) if self._times.timestamps.size else _NONE
        if latest != segment.max_timestamp:
            reason = f"its time index ends with {latest}, the metadata with {segment.max_timestamp}"
            raise CorruptRecordError(self._name, segment.size, reason)

    def chunks(self) -> Iterator[RemoteLogIndexEntry]:
        """Yield the chunks in order; raises CorruptLogError if they contradict the log."""
        cuts = self._cuts()
        first_offset, latest = self._base_offset_at_start(), _NONE
        for start, end in zip([0, *cuts], [*cuts, self._segment.size], strict=True):
            entry = self._entry_before(end)
            table, next_offset = self._batches(max(start, entry[0]), end)
            known = self._largest_up_to(entry[1])
            reached = max(known, int(table.max_timestamp.max()))
            if reached <= latest:
                # The largest timestamp of this chunk is lower than an earlier one's: no index has it.
                table, next_offset = self._batches(start, end)
                last_timestamp = int(table.max_timestamp.max())
            else:
                last_timestamp = latest = reached
            last_offset = int(table.last_offset[-1])
            yield RemoteLogIndexEntry(
                first_offset, last_offset, _NONE, max(last_timestamp, _NONE), self._name, start, end - start
            )
            first_offset = next_offset

    def _cuts(self) -> Sequence[int]:
        """Return where chunks end, but for the last one: at batches of the index, far enough apart."""
        cuts: list[int] = []
        reached = self._chunk_bytes
        while True:
            at = int(np.searchsorted(self._offsets.positions, reached))
            if at >= self._offsets.positions.size or int(self._offsets.positions[at]) >= self._segment.size:
                return cuts
            cuts.append(int(self._offsets.positions[at]))
            reached = cuts[-1] + self._chunk_bytes

    def _entry_before(self, end: int) -> tuple[int, int]:
        """Return the position of the last entry before byte `end`, and the last offset of its batch."""
        at = int(np.searchsorted(self._offsets.positions, end)) - 1
        if at < 0:
            return 0, self._segment.start_offset - 1
        return int(self._offsets.positions[at]), int(self._offsets.offsets[at])

    def _largest_up_to(self, offset: int) -> int:
        """Return the largest timestamp of the records up to `offset`, which an entry of the offset index has."""
        at = int(np.searchsorted(self._times.offsets, offset, side="right")) - 1
        return int(self._times.timestamps[at]) if at >= 0 else _NONE

    def _base_offset_at_start(self) -> int:
        return self._base_offset(
            b"".join(self._files.read_log(self._segment, 0, min(MAGIC_END, self._segment.size))), 0
        )

    def _base_offset(self, head: bytes, position: int) -> int:
        """Return the first offset of the batch at `position`, which `head` begins. Raises CorruptRecordError."""
        if len(head) < MAGIC_END or head[MAGIC_END - 1] in LEGACY_MAGICS:
            raise CorruptRecordError(self._name, position, "no batch of magic 2 begins here, as the index needs it")
        return int.from_bytes(head[:8], "big", signed=True)

    def _batches(self, start: int, end: int) -> tuple[BatchTable, int]:
        """Return the headers of the batches from `start` to `end`, and the offset of the batch that begins at `end`."""
        is_last = end == self._segment.size
        stop = end if is_last else min(end + BATCH_OVERHEAD, self._segment.size)
        window = memoryview(b"".join(self._files.read_log(self._segment, start, stop)))
        scanner = SegmentScanner(self._name, self._segment.start_offset, start_position=start, verify_crc=False)
        table, consumed = scanner.feed(window[: end - start])
        if consumed != end - start or not len(table):
            raise CorruptRecordError(self._name, start + consumed, f"no batch begins at byte {end}, as its index says")
        return table, -1 if is_last else self._base_offset(bytes(window[end - start :]), end)
