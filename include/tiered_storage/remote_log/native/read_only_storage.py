"""The RemoteStorageManager over a layout of Kafka's own remote tier: it reads, and refuses to write.

Kafka's layouts lack the remote log index trio and the manifest; both are derived when a reader first needs them, and
the last ones are kept in memory.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import NoReturn

from tiered_storage.errors import (
    ConfigurationError,
    CorruptRecordError,
    RemoteObjectCorruptError,
    RemoteObjectNotFoundError,
)
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.native.derived_indexes import DERIVED, derive_indexes
from tiered_storage.remote_log.native.segment_files import SegmentFiles
from tiered_storage.remote_log.storage.batch_stream import BatchStream
from tiered_storage.remote_log.storage.remote_storage_manager import (
    IndexKind,
    LogSegmentData,
    RemoteStorageManager,
)

_READ_ONLY = "Kafka itself tiers this cluster, and Remote Log only reads it"
KEPT_BYTES = 16 << 20
"""Derived indexes that are kept in memory; those of a segment of 1 GiB take about 130 KiB."""


class NativeRemoteStorage:
    """See RemoteStorageManager; `files` reads the objects, and `close` closes it."""

    why_not_listable = (
        f"{_READ_ONLY}: 'tiered-storage audit' lists its objects; nothing repairs them or spreads an audit over workers"
    )

    def __init__(self, files: SegmentFiles, kept_bytes: int = KEPT_BYTES) -> None:
        """Keep derived indexes of up to `kept_bytes`, and always those of the last segment."""
        self.files = files
        self._kept_bytes = kept_bytes
        self._derived: OrderedDict[str, Mapping[IndexKind, bytes]] = OrderedDict()
        self._held = 0
        self._lock = threading.Lock()
        self._turns: dict[str, threading.Lock] = {}

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes:  # noqa: ARG002
        """Raise ConfigurationError: the cluster's own brokers copy."""
        refuse(f"{metadata.segment_id} cannot be copied here")

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int = 0, end_position: int | None = None
    ) -> Iterator[bytes]:
        """Stream a range of the segment; see RemoteStorageManager.

        No layout has a checksum of the whole: for a whole segment, that of every batch is compared instead, before the
        last bytes come.
        """
        end = metadata.size if end_position is None else end_position + 1
        if not 0 <= start_position < end <= metadata.size:
            raise ValueError(
                f"{metadata.segment_id}: bytes {start_position} to {end - 1} are not in it: it has {metadata.size}"
            )
        content = self.files.read_log(metadata, start_position, end)
        yield from self._checked(metadata, content) if end - start_position == metadata.size else content

    def _checked(self, segment: RemoteLogSegmentMetadata, content: Iterator[bytes]) -> Iterator[bytes]:
        source = f"{self.files.root}/{self.files.log_name(segment)}"
        stream = BatchStream(source, segment.start_offset, segment.size)
        left = segment.size
        try:
            for piece in content:
                for _ in stream.feed(piece):
                    pass
                left -= len(piece)
                if left <= 0:
                    stream.finish()
                yield piece
        except CorruptRecordError as error:
            raise RemoteObjectCorruptError(str(error)) from error

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, kind: IndexKind) -> bytes:
        """Return one index, a derived one if Kafka has none of that kind; see RemoteStorageManager."""
        if kind not in DERIVED:
            return self._kafkas_index(metadata, kind)
        found = self._derived_of(metadata).get(kind)
        if found is None:
            raise RemoteObjectNotFoundError(f"{metadata.segment_id}: there is no index {kind.name}")
        return found

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Raise ConfigurationError: the cluster's own brokers delete."""
        refuse(f"{metadata.segment_id} cannot be deleted here")

    def close(self) -> None:
        """Close the layout's client."""
        self.files.close()

    def _kafkas_index(self, segment: RemoteLogSegmentMetadata, kind: IndexKind) -> bytes:
        try:
            return self.files.index(segment, kind)
        except RemoteObjectNotFoundError:
            try:
                self.files.object_size(self.files.log_name(segment))
            except RemoteObjectNotFoundError:
                # Brokers have deleted it: what is kept of it must not look as if it had no such index.
                self._forget(segment)
            raise

    def _derived_of(self, segment: RemoteLogSegmentMetadata) -> Mapping[IndexKind, bytes]:
        """Return what is derived of a segment; of several threads, one derives it and the others wait."""
        key = segment.segment_id.id
        known = self._known(key)
        if known is not None:
            return known
        with self._lock:
            turn = self._turns.setdefault(key, threading.Lock())
        try:
            with turn:
                return self._known(key) or self._derive(segment)
        finally:
            with self._lock:
                self._turns.pop(key, None)

    def _known(self, key: str) -> Mapping[IndexKind, bytes] | None:
        with self._lock:
            known = self._derived.get(key)
            if known is not None:
                self._derived.move_to_end(key)
            return known

    def _derive(self, segment: RemoteLogSegmentMetadata) -> Mapping[IndexKind, bytes]:
        derived = derive_indexes(segment, self.files)
        with self._lock:
            self._held += _size(derived) - _size(self._derived.get(segment.segment_id.id, {}))
            self._derived[segment.segment_id.id] = derived
            while self._held > self._kept_bytes and len(self._derived) > 1:
                self._held -= _size(self._derived.popitem(last=False)[1])
        return derived

    def _forget(self, segment: RemoteLogSegmentMetadata) -> None:
        with self._lock:
            self._held -= _size(self._derived.pop(segment.segment_id.id, {}))
        self.files.forget(segment)


def refuse(what: str) -> NoReturn:
    """Raise ConfigurationError: `what` cannot be done to a cluster that tiers by itself."""
    raise ConfigurationError(
        f"{what}: {_READ_ONLY}: use Kafka's own tools and settings for changes, or the settings of a remote log of "
        "your own"
    )


def _size(derived: Mapping[IndexKind, bytes]) -> int:
    return sum(map(len, derived.values()))


def native_storage(storage: RemoteStorageManager) -> NativeRemoteStorage | None:
    """Return `storage` if it reads Kafka's own remote tier; None if it is a store of Remote Log."""
    return storage if isinstance(storage, NativeRemoteStorage) else None
