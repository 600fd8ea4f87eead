"""The border to object stores: RemoteStorageManager (KIP-405) and what is handed over it.

The docstrings here are the contract; one suite of tests runs it against every implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from tiered_storage.errors import TieredStorageError
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata


class IndexKind(IntEnum):
    """What stands beside a segment's bytes; the numbers are written in the bundle and never change their meaning."""

    MANIFEST = 0
    REMOTE_LOG_INDEX = 1
    REMOTE_OFFSET_INDEX = 2
    REMOTE_TIME_INDEX = 3
    OFFSET = 4
    TIMESTAMP = 5
    PRODUCER_SNAPSHOT = 6
    LEADER_EPOCH = 7
    TRANSACTION = 8


@dataclass(frozen=True, slots=True)
class LogSegmentData:
    """A segment on its way out: its bytes once, in order, and then its indexes.

    `chunks` gives the segment's bytes as buffers that are valid only until the next one is asked for; it raises
    CorruptRecordError when the bytes turn out broken, and then nothing of the segment may become visible as whole.
    `indexes` is called once, after the last chunk: only then are they known. A kind that is absent does not exist.
    `size` is the number of bytes that all chunks have together.
    """

    size: int
    chunks: Iterator[memoryview]
    indexes: Callable[[], dict[IndexKind, bytes]]


class RemoteStorageManager(Protocol):
    """Copies, fetches and deletes the bytes of remote segments. Every call may be repeated.

    All methods raise RemoteStorageError or one of its children: refused, full, not found, corrupt; or the plain one,
    which is worth another try. Implementations are opened where they are used (never at import: processes fork), are
    safe to use from several threads, and are closed by `close`.
    """

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes:
        """Store `data` under names of its own (they hold the segment id: no two attempts write the same object).

        Returns custom metadata, to be kept with the segment's metadata and shown in every later call. When it returns,
        all is durable, verified against checksums made before it left, and marked as whole, so that metadata can be
        rebuilt from the store alone. Whatever `data` raises passes through, with nothing marked as whole.
        """
        ...

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int = 0, end_position: int | None = None
    ) -> Iterator[bytes]:
        """Stream the bytes from `start_position` to `end_position` (both inclusive; None: to the end).

        Raises RemoteObjectNotFoundError, and ValueError for a range that is not in the segment.
        """
        ...

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, kind: IndexKind) -> bytes:
        """Return one index whole, its checksum checked.

        Raises RemoteObjectNotFoundError if the segment, or this kind of index of it, does not exist, and
        RemoteObjectCorruptError.
        """
        ...

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Remove all that belongs to the segment, whole or half; succeeds if there is nothing (any more)."""
        ...

    def close(self) -> None:
        """Let go of what was opened; a second call does nothing."""
        ...


def delete_singly(
    storage: RemoteStorageManager, segments: Sequence[RemoteLogSegmentMetadata]
) -> dict[str, TieredStorageError]:
    """Delete the segments one after the other; return, by segment id, why one is not all gone."""
    failed: dict[str, TieredStorageError] = {}
    for segment in segments:
        try:
            storage.delete_log_segment_data(segment)
        except TieredStorageError as error:
            failed[segment.segment_id.id] = error
    return failed
