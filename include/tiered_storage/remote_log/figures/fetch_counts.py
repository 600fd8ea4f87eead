"""Count what a process fetches of segments from the remote tier, by topic, under Kafka's names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter

from tiered_storage.errors import TieredStorageError
from tiered_storage.remote_log.figures.exposition import KAFKA
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind, LogSegmentData, RemoteStorageManager


class FetchCounts:
    """RemoteFetchRequestsPerSec, RemoteFetchBytesPerSec and RemoteFetchErrorsPerSec of this process. Thread-safe."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        names = {
            "requests": "Reads of a segment from the remote tier",
            "bytes": "Bytes of segments read from the remote tier",
            "errors": "Reads of a segment from the remote tier that failed",
        }
        self._counters = {
            name: Counter(f"{KAFKA}remotefetch{name}", text, ["topic"], registry=self.registry)
            for name, text in names.items()
        }

    def add(self, name: str, topic: str, count: int = 1) -> None:
        """Add to `requests`, `bytes` or `errors` of a topic."""
        self._counters[name].labels(topic).inc(count)


@dataclass(frozen=True, slots=True)
class CountedStorage:
    """A RemoteStorageManager that counts what is read through it; `storage` does the work."""

    storage: RemoteStorageManager
    counts: FetchCounts

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes:
        """As RemoteStorageManager."""
        return self.storage.copy_log_segment_data(metadata, data)

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int = 0, end_position: int | None = None
    ) -> Iterator[bytes]:
        """As RemoteStorageManager."""
        topic = metadata.topic_id_partition.topic
        self.counts.add("requests", topic)
        try:
            for piece in self.storage.fetch_log_segment(metadata, start_position, end_position):
                self.counts.add("bytes", topic, len(piece))
                yield piece
        except TieredStorageError:
            self.counts.add("errors", topic)
            raise

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, kind: IndexKind) -> bytes:
        """As RemoteStorageManager. That a segment has no index of a kind is no error."""
        return self.storage.fetch_index(metadata, kind)

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """As RemoteStorageManager."""
        self.storage.delete_log_segment_data(metadata)

    def close(self) -> None:
        """As RemoteStorageManager."""
        self.storage.close()
