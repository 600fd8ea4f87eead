"""Count what a process fetches of segments from the remote tier, by topic, under Kafka's names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter

from tiered_storage.errors import TieredStorageError
from tiered_storage.remote_log.metrics.exposition import KAFKA
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.storage.remote_storage_manager import PassingStorage


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
class CountedStorage(PassingStorage):
    """Counts what is read of segments through it. That a segment has no index of a kind is no error."""

    counts: FetchCounts

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
