"""Check a segment's remote index trio against its batches: every chunk, and both indexes of the chunks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tiered_storage.errors import CorruptIndexError
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.remote_log.indexes.remote_index_builder import EncodedRemoteIndexes, chunks_of, joined
from tiered_storage.remote_log.indexes.remote_index_lookup import OFFSET_ENTRY, TIME_ENTRY
from tiered_storage.remote_log.indexes.remote_log_index import RemoteLogIndexEntry, read_entry
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.storage.documents.object_names import segment_object_names
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind


class RemoteIndexCheck:
    """Rebuilds the trio from the batches, with the chunks of the remoteLogIndex, and compares."""

    def __init__(self, source: str, segment: RemoteLogSegmentMetadata, contents: Mapping[IndexKind, bytes]) -> None:
        """Check the trio among `contents`, the bundle `source` of `segment`.

        Raises CorruptIndexError if an entry of the remoteLogIndex cannot be read.
        """
        self._source = source
        self._base_offset = segment.start_offset
        self._object_name = segment_object_names(segment.segment_id, segment.start_offset).data
        self._contents = contents
        self._entries: list[tuple[int, RemoteLogIndexEntry]] = []
        raw, position = contents[IndexKind.REMOTE_LOG_INDEX], 0
        while position < len(raw):
            entry, end = read_entry(raw, position, f"{source}: remoteLogIndex")
            self._entries.append((position, entry))
            position = end
        self._starts: NDArray[np.int64] = np.array([entry.position for _, entry in self._entries], np.int64)
        self._made: list[RemoteLogIndexEntry] = []
        self._open = -1

    def feed(self, batches: BatchTable) -> None:
        """Take the next batches of the segment."""
        chunk = np.searchsorted(self._starts, batches.position, side="right") - 1
        first_rows = np.concatenate(([0], np.flatnonzero(np.diff(chunk)) + 1))
        runs = chunks_of(batches, first_rows.tolist(), self._object_name)
        for number, run in zip(chunk[first_rows].tolist(), runs, strict=True):
            if self._made and number == self._open:
                self._made[-1] = joined(self._made[-1], run)
            else:
                self._made.append(run)
            self._open = number

    def finish(self) -> None:
        """End the check. Raises CorruptIndexError if the trio does not match the batches."""
        for (position, entry), made in zip(self._entries, self._made, strict=False):
            if entry != made:
                raise self._disagreement("remoteLogIndex", position, f"it says {entry}, the log {made}")
        if len(self._entries) != len(self._made):
            end = len(self._contents[IndexKind.REMOTE_LOG_INDEX])
            raise self._disagreement("remoteLogIndex", end, "the log continues, or ends before")
        expected = EncodedRemoteIndexes.of(self._made, self._base_offset)
        self._compare("remoteOffsetIndex", IndexKind.REMOTE_OFFSET_INDEX, expected.offset_index, OFFSET_ENTRY.itemsize)
        self._compare("remoteTimeIndex", IndexKind.REMOTE_TIME_INDEX, expected.time_index, TIME_ENTRY.itemsize)

    def _compare(self, name: str, kind: IndexKind, expected: bytes, entry_bytes: int) -> None:
        found = self._contents[kind]
        if found == expected:
            return
        entries = range(0, max(len(found), len(expected)), entry_bytes)
        first = next(at for at in entries if found[at : at + entry_bytes] != expected[at : at + entry_bytes])
        raise self._disagreement(name, first, "the entry is not that of the remoteLogIndex")

    def _disagreement(self, index: str, position: int, reason: str) -> CorruptIndexError:
        return CorruptIndexError(f"{self._source}: {index}", position, f"the index disagrees with its log: {reason}")
