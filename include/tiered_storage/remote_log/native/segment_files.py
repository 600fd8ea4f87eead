"""The border to one layout of Kafka's own remote tier: which objects a segment has, and how their bytes are read."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, Self

from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.storage.clients.object_client import StoredObject
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind

PIECE_BYTES = 1 << 20
"""How much of a segment is read at once."""


@dataclass(frozen=True, slots=True)
class FoundObject:
    """An object of a layout: its name below the root, bytes, and the ms of its last change.

    `topic`, `partition` and `segment_id` are in the name; None if it is not one that the layout gives.
    """

    name: str
    size: int
    last_modified: int
    topic: str | None = None
    partition: int | None = None
    segment_id: str | None = None

    @classmethod
    def of(cls, stored: StoredObject, match: re.Match[str] | None) -> Self:
        """Return the object that a store listed; `match` has the groups topic, partition and id."""
        if match is None:
            return cls(stored.name, stored.size, stored.last_modified)
        number = int(match["partition"])
        return cls(stored.name, stored.size, stored.last_modified, match["topic"], number, match["id"])


class SegmentFiles(Protocol):
    """Reads the objects of one layout. Thread-safe. All methods raise RemoteStorageError or one of its children."""

    @property
    def root(self) -> str:
        """Where the objects are, as a URL without secrets."""
        ...

    def reads_ranges_cheaply(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Return whether a short range of the log costs hardly more than its bytes, so that a few of them suffice."""
        ...

    def log_name(self, segment: RemoteLogSegmentMetadata) -> str:
        """Return the name of the object with the segment's log."""
        ...

    def read_log(self, segment: RemoteLogSegmentMetadata, start: int, end: int) -> Iterator[bytes]:
        """Stream the bytes of the log from `start` (inclusive) to `end` (exclusive), which are in the segment.

        Raises RemoteObjectNotFoundError, and RemoteObjectCorruptError if bytes are missing or cannot be decoded.
        """
        ...

    def index(self, segment: RemoteLogSegmentMetadata, kind: IndexKind) -> bytes:
        """Return one of Kafka's indexes.

        Raises RemoteObjectNotFoundError if the segment has none of that kind, and RemoteObjectCorruptError if it
        had one that is lost.
        """
        ...

    def expected_objects(self, segment: RemoteLogSegmentMetadata) -> Mapping[str, int | None]:
        """Return the names of the objects that a finished segment must have, with their sizes; None: any size."""
        ...

    def object_names(self, segment: RemoteLogSegmentMetadata) -> Collection[str]:
        """Return the names of all objects that the segment may have, in every state; nothing is read."""
        ...

    def list_objects(self) -> Iterator[FoundObject]:
        """Stream every object below the root."""
        ...

    def object_size(self, name: str) -> int:
        """Return the bytes of an object. Raises RemoteObjectNotFoundError."""
        ...

    def forget(self, segment: RemoteLogSegmentMetadata) -> None:
        """Read the segment from the store again when it is asked for: it was deleted there."""
        ...

    def close(self) -> None:
        """Release all resources; repeated calls are harmless."""
        ...
