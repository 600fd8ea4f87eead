"""The layout of LocalTieredStorage, the RemoteStorageManager that comes with Kafka's tests: plain files in a directory.

    kafka-tiered-storage/{topic}-{partition}-{topic id}/{base offset, 20 digits}-{segment id}
        .log, .index, .timeindex, .snapshot, .leader_epoch_checkpoint; .txnindex only if a transaction aborted

The directory is the broker's rsm.config.dir. Other stores may hold the same files, such as a copy in a bucket.

Source: released Kafka (org.apache.kafka.server.log.remote.storage.LocalTieredStorage), its files.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Self

from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.native.read_only_storage import NativeRemoteStorage
from tiered_storage.remote_log.native.segment_files import PIECE_BYTES, FoundObject
from tiered_storage.remote_log.storage.clients.object_client import ObjectClient
from tiered_storage.remote_log.storage.clients.opening import open_object_client
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind

FOLDER = "kafka-tiered-storage"

_SUFFIXES = {
    IndexKind.OFFSET: "index",
    IndexKind.TIMESTAMP: "timeindex",
    IndexKind.PRODUCER_SNAPSHOT: "snapshot",
    IndexKind.LEADER_EPOCH: "leader_epoch_checkpoint",
    IndexKind.TRANSACTION: "txnindex",
}
_OPTIONAL = {IndexKind.TRANSACTION}
_NAME = re.compile(
    rf"{FOLDER}/(?P<topic>[^/]+)-(?P<partition>[0-9]+)-[\w-]{{22}}/[0-9]{{20}}-(?P<id>[\w-]{{22}})\.(log|{'|'.join(_SUFFIXES.values())})"
)


class LocalTieredFiles:
    """See SegmentFiles; `client` reads the files, and `close` closes it."""

    def __init__(self, client: ObjectClient) -> None:
        """Read what is below the root of `client`."""
        self._client = client

    @property
    def root(self) -> str:
        """See SegmentFiles."""
        return self._client.root

    def reads_ranges_cheaply(self, segment: RemoteLogSegmentMetadata) -> bool:  # noqa: ARG002 -- SegmentFiles'
        """Return True: the files are as Kafka wrote them."""
        return True

    def log_name(self, segment: RemoteLogSegmentMetadata) -> str:
        """See SegmentFiles."""
        return _name(segment, "log")

    def read_log(self, segment: RemoteLogSegmentMetadata, start: int, end: int) -> Iterator[bytes]:
        """See SegmentFiles."""
        name = self.log_name(segment)
        for position in range(start, end, PIECE_BYTES):
            yield self._client.get_range(name, position, min(PIECE_BYTES, end - position))

    def index(self, segment: RemoteLogSegmentMetadata, kind: IndexKind) -> bytes:
        """See SegmentFiles."""
        name = _name(segment, _SUFFIXES[kind])
        return self._client.get_range(name, 0, self._client.size(name))

    def expected_objects(self, segment: RemoteLogSegmentMetadata) -> Mapping[str, int | None]:
        """See SegmentFiles."""
        indexes = (suffix for kind, suffix in _SUFFIXES.items() if kind not in _OPTIONAL)
        return {self.log_name(segment): segment.size, **{_name(segment, suffix): None for suffix in indexes}}

    def object_names(self, segment: RemoteLogSegmentMetadata) -> Collection[str]:
        """See SegmentFiles."""
        return [self.log_name(segment), *(_name(segment, suffix) for suffix in _SUFFIXES.values())]

    def list_objects(self) -> Iterator[FoundObject]:
        """See SegmentFiles."""
        for found in self._client.list():
            yield FoundObject.of(found, _NAME.fullmatch(found.name))

    def object_size(self, name: str) -> int:
        """See SegmentFiles."""
        return self._client.size(name)

    def forget(self, segment: RemoteLogSegmentMetadata) -> None:
        """Do nothing: nothing is kept."""

    def close(self) -> None:
        """Close the client."""
        self._client.close()


class LocalTieredStorage(NativeRemoteStorage):
    """Reads the files that Kafka's LocalTieredStorage wrote; the class that the settings name."""

    @classmethod
    def open(cls, url: str, options: ObjectStoreOptions) -> Self:
        """Open the store at `url`, where the folder kafka-tiered-storage is. Raises ConfigurationError."""
        return cls(LocalTieredFiles(open_object_client(url, options)))


def _name(segment: RemoteLogSegmentMetadata, suffix: str) -> str:
    partition = segment.topic_id_partition
    folder = f"{partition.topic}-{partition.partition}-{partition.topic_id}"
    return f"{FOLDER}/{folder}/{segment.start_offset:020d}-{segment.segment_id.id}.{suffix}"
