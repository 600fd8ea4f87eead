"""Build what the remote tier adds to a segment, its manifest and its remote index trio, from its batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tiered_storage.errors import ConfigurationError, CorruptIndexError
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.remote_log.indexes.remote_index_lookup import OFFSET_ENTRY, TIME_ENTRY
from tiered_storage.remote_log.indexes.remote_log_index import RemoteLogIndexEntry
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.storage.documents.manifest import Manifest
from tiered_storage.remote_log.storage.documents.object_names import segment_object_names
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind

CHUNK_BYTES = 1 << 20
MAX_CHUNK_BYTES = 64 << 20

_LOG_APPEND_TIME = 0x08
"""The attribute bit of batches in which every record has the max timestamp, whatever the base timestamp is."""


@dataclass(frozen=True, slots=True)
class EncodedRemoteIndexes:
    """The bytes of a segment's remote index trio."""

    log_index: bytes
    offset_index: bytes
    time_index: bytes

    @classmethod
    def of(cls, chunks: Sequence[RemoteLogIndexEntry], base_offset: int) -> Self:
        """Return the trio of `chunks`, those of a segment that begins at `base_offset`."""
        entries = [chunk.to_bytes() for chunk in chunks]
        positions = np.cumsum([0, *(len(entry) for entry in entries[:-1])])[: len(entries)]
        return cls(b"".join(entries), _offset_index(chunks, positions, base_offset), _time_index(chunks, positions))


class RemoteIndexBuilder:
    """Collects the chunks of one segment; feed it the batches in order and without a gap.

    A chunk ends with the batch that brings it to `chunk_bytes` or more; the last one may be smaller.
    """

    def __init__(
        self, metadata: RemoteLogSegmentMetadata, chunk_bytes: int = CHUNK_BYTES, *, object_name: str | None = None
    ) -> None:
        """Build for the segment of `metadata`, whose chunks are parts of its data object, or of `object_name`.

        Raises ConfigurationError if `chunk_bytes` is not between 1 and 64 MiB, or the ids make no object's name.
        """
        if not 1 <= chunk_bytes <= MAX_CHUNK_BYTES:
            raise ConfigurationError(f"chunks of {chunk_bytes} bytes: choose from 1 to {MAX_CHUNK_BYTES}")
        self._metadata = metadata
        self._chunk_bytes = chunk_bytes
        self._object_name = object_name or segment_object_names(metadata.segment_id, metadata.start_offset).data
        self._closed: list[RemoteLogIndexEntry] = []
        self._ends: list[int] = []
        self._open: RemoteLogIndexEntry | None = None
        self._batch_count = 0
        self._record_count = 0

    def append(self, batches: BatchTable) -> None:
        """Add the next batches; `position` counts from the start of the segment's `.log` file.

        Raises CorruptIndexError if they do not begin where the previous ones ended.
        """
        if not len(batches):
            return
        expected = self._open.position + self._open.length if self._open else self._end_of_closed()
        if int(batches.position[0]) != expected:
            raise CorruptIndexError(
                self._object_name, expected, f"batches come from byte {int(batches.position[0])}, with a gap"
            )
        self._batch_count += len(batches)
        self._record_count += int(batches.record_count.sum())
        start = self._open.position if self._open else expected
        first_rows = self._first_rows(batches, start)
        for chunk in chunks_of(batches, first_rows, self._object_name):
            self._add(chunk)

    def chunk_ends(self) -> Sequence[int]:
        """Return where the chunks of the batches so far end in the log, but for one that may still grow."""
        return self._ends

    def indexes(self) -> dict[IndexKind, bytes]:
        """Return the manifest (without the data's checksum) and the trio of the batches so far."""
        chunks = [*self._closed, self._open] if self._open else self._closed
        encoded = EncodedRemoteIndexes.of(chunks, self._metadata.start_offset)
        return {
            IndexKind.MANIFEST: self._manifest(chunks).to_bytes(),
            IndexKind.REMOTE_LOG_INDEX: encoded.log_index,
            IndexKind.REMOTE_OFFSET_INDEX: encoded.offset_index,
            IndexKind.REMOTE_TIME_INDEX: encoded.time_index,
        }

    def _end_of_closed(self) -> int:
        return self._closed[-1].position + self._closed[-1].length if self._closed else 0

    def _first_rows(self, batches: BatchTable, chunk_start: int) -> list[int]:
        """Return the rows that begin a chunk, and row 0; the open chunk began at `chunk_start`."""
        ends = batches.position + batches.size
        rows = [0]
        while True:
            last = int(np.searchsorted(ends, chunk_start + self._chunk_bytes))
            if last + 1 >= len(batches):
                return rows
            rows.append(last + 1)
            chunk_start = int(ends[last])

    def _add(self, run: RemoteLogIndexEntry) -> None:
        """Add a run of batches to the open chunk, and close it when it is large enough."""
        chunk = run if self._open is None else joined(self._open, run)
        if chunk.length >= self._chunk_bytes:
            self._closed.append(chunk)
            self._ends.append(chunk.position + chunk.length)
            self._open = None
        else:
            self._open = chunk

    def _manifest(self, chunks: list[RemoteLogIndexEntry]) -> Manifest:
        return replace(
            Manifest.of(self._metadata),
            first_timestamp=min((chunk.first_timestamp for chunk in chunks), default=-1),
            max_timestamp=max((chunk.last_timestamp for chunk in chunks), default=-1),
            batch_count=self._batch_count,
            record_count=self._record_count,
        )


def chunks_of(batches: BatchTable, first_rows: Sequence[int], object_name: str) -> list[RemoteLogIndexEntry]:
    """Return the runs of batches that begin at `first_rows`, which include row 0, as chunks of the object."""
    starts = np.array(first_rows)
    last_rows = np.append(starts[1:], len(batches)) - 1
    begun = np.where(batches.attributes & _LOG_APPEND_TIME, batches.max_timestamp, batches.base_timestamp)
    columns = (
        batches.base_offset[starts],
        batches.last_offset[last_rows],
        np.maximum(np.minimum.reduceat(begun, starts), -1),
        np.maximum(np.maximum.reduceat(batches.max_timestamp, starts), -1),
        batches.position[starts],
        batches.position[last_rows] + batches.size[last_rows] - batches.position[starts],
    )
    return [
        RemoteLogIndexEntry(first, last, earliest, latest, object_name, position, length)
        for first, last, earliest, latest, position, length in zip(
            *(column.tolist() for column in columns), strict=True
        )
    ]


def joined(first: RemoteLogIndexEntry, second: RemoteLogIndexEntry) -> RemoteLogIndexEntry:
    """Return both runs, the second one after the first, as one."""
    return replace(
        first,
        last_offset=second.last_offset,
        first_timestamp=min(first.first_timestamp, second.first_timestamp),
        last_timestamp=max(first.last_timestamp, second.last_timestamp),
        length=first.length + second.length,
    )


def _offset_index(chunks: Sequence[RemoteLogIndexEntry], positions: NDArray[np.int64], base_offset: int) -> bytes:
    entries = np.empty(len(chunks), OFFSET_ENTRY)
    entries["relative_offset"] = [chunk.first_offset - base_offset for chunk in chunks]
    entries["position"] = positions
    return entries.tobytes()


def _time_index(chunks: Sequence[RemoteLogIndexEntry], positions: NDArray[np.int64]) -> bytes:
    timestamps = np.array([chunk.last_timestamp for chunk in chunks], np.int64)
    before = np.maximum.accumulate(np.concatenate(([-1], timestamps)))[:-1]
    later = timestamps > before
    entries = np.empty(int(later.sum()), TIME_ENTRY)
    entries["timestamp"] = timestamps[later]
    entries["position"] = positions[later]
    return entries.tobytes()
