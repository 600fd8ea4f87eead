"""The border to object stores: RemoteStorageManager (KIP-405) and its parameters.

The docstrings here are the contract; one test suite runs it against every implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Protocol

from tiered_storage.errors import TieredStorageError
from tiered_storage.own_classes import call_own, load_class
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions
from tiered_storage.remote_log.storage.transforms.encoding import PLAIN, Encoding
from tiered_storage.settings.own_managers import STORAGE_MANAGER


class IndexKind(IntEnum):
    """The kinds of data in the bundle; the numbers are stored and never change their meaning."""

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
    """A segment to copy: its bytes once, in order, and then its indexes.

    `chunks` yields the segment's bytes as buffers that are valid only until the next one is requested; it raises
    CorruptRecordError if the bytes are corrupt, and then nothing of the segment may become visible as complete.
    `indexes` is called once, after the last chunk: they are known only then. A kind that is absent does not exist.
    `size` is the total number of bytes in all chunks. `encoding` says how the store must encode them; for an encoded
    segment, `ends` returns the ascending positions, known so far, at which readers' ranges end.
    """

    size: int
    chunks: Iterator[memoryview]
    indexes: Callable[[], dict[IndexKind, bytes]]
    encoding: Encoding = PLAIN
    ends: Callable[[], Sequence[int]] | None = None


class RemoteStorageManager(Protocol):
    """Copies, fetches and deletes the bytes of remote segments. Every call may be repeated.

    All methods raise RemoteStorageError or one of its subclasses: refused, full, not found, corrupt; the base class
    itself may be retried. Implementations are opened where they are used (never at import: processes fork), are safe
    to use from several threads, and are closed by `close`. A class of the user's own also has a class method
    `open(url, options)`; see load_remote_storage_manager.
    """

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes:
        """Store `data` under names that contain the segment id, so that no two attempts write the same object.

        Returns custom metadata, which are kept with the segment's metadata and passed to every later call. On return,
        everything is durable, verified against checksums computed before sending, and marked as complete, so that
        metadata can be rebuilt from the store alone. Exceptions of `data` pass through, with nothing marked as
        complete.
        """
        ...

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int = 0, end_position: int | None = None
    ) -> Iterator[bytes]:
        """Stream the bytes from `start_position` to `end_position` (both inclusive; None: to the end).

        Callers check the bytes, by the CRC of each batch; an implementation may check a whole segment too, and raise
        RemoteObjectCorruptError. Raises RemoteObjectNotFoundError, and ValueError for a range outside the segment.
        """
        ...

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, kind: IndexKind) -> bytes:
        """Return one whole index, with its checksum checked.

        Raises RemoteObjectNotFoundError if the segment, or this kind of index of it, does not exist, and
        RemoteObjectCorruptError.
        """
        ...

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Delete all objects of the segment, complete or not; succeed if there are none.

        Find them by the segment's id: if the copy rolled its segment itself and never finished, `metadata` has only
        bounds of its offsets (is_bounded_only).
        """
        ...

    def close(self) -> None:
        """Release all resources; repeated calls are harmless."""
        ...


@dataclass(frozen=True, slots=True)
class DelegatingStorage:
    """A RemoteStorageManager that passes every call on to `storage`; base of those that watch or limit some calls."""

    storage: RemoteStorageManager

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes:
        """As RemoteStorageManager."""
        return self.storage.copy_log_segment_data(metadata, data)

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int = 0, end_position: int | None = None
    ) -> Iterator[bytes]:
        """As RemoteStorageManager."""
        yield from self.storage.fetch_log_segment(metadata, start_position, end_position)

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, kind: IndexKind) -> bytes:
        """As RemoteStorageManager."""
        return self.storage.fetch_index(metadata, kind)

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """As RemoteStorageManager."""
        self.storage.delete_log_segment_data(metadata)

    def close(self) -> None:
        """As RemoteStorageManager."""
        self.storage.close()


def delete_singly(
    storage: RemoteStorageManager, segments: Sequence[RemoteLogSegmentMetadata]
) -> dict[str, TieredStorageError]:
    """Delete the segments one by one; return, by segment id, why one is not fully deleted."""
    failed: dict[str, TieredStorageError] = {}
    for segment in segments:
        try:
            storage.delete_log_segment_data(segment)
        except TieredStorageError as error:
            failed[segment.segment_id.id] = error
    return failed


_METHODS = ("copy_log_segment_data", "fetch_log_segment", "fetch_index", "delete_log_segment_data", "close")


def load_remote_storage_manager(
    class_name: str, url: str, options: ObjectStoreOptions, class_path: Sequence[Path] = ()
) -> RemoteStorageManager:
    """Open the store at `url` with the class `class_name`, `package.module.Class`, which `class_path` may have.

    The class must have the five methods of the protocol and a class method `open(url, options)`; `options.configs` are
    those that the settings hand over. Raises ConfigurationError if it cannot be imported, lacks one, or cannot be
    opened, and passes TieredStorageError of `open` through.
    """
    found = load_class(STORAGE_MANAGER.name, class_name, class_path, RemoteStorageManager, ("open", *_METHODS))
    opens = getattr(found, "open")  # noqa: B009 -- no class of Python's has it
    opened: RemoteStorageManager = call_own(
        STORAGE_MANAGER.name, class_name, lambda: opens(url, options), parts=_METHODS
    )
    return opened
