"""Segments of arbitrary bytes with their metadata, for tests of what stores them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace

from tiered_storage.kafka_log.files.kafka_uuid import encode_uuid, random_uuid
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind, LogSegmentData

TOPIC_ID = encode_uuid(bytes(range(16)))
CLUSTER_ID = "test-cluster"

INDEXES: Mapping[IndexKind, bytes] = {
    IndexKind.REMOTE_LOG_INDEX: b"remote log index " * 20,
    IndexKind.REMOTE_OFFSET_INDEX: b"remote offset index",
    IndexKind.REMOTE_TIME_INDEX: b"",
    IndexKind.OFFSET: random.Random(1).randbytes(100_000),  # noqa: S311 -- content, no secret
    IndexKind.TIMESTAMP: b"time index" * 9,
    IndexKind.LEADER_EPOCH: b"0\n1\n0 0\n",
}
"""One larger than what is read of a bundle at once, one empty; no producer snapshot, no transaction index."""


def partition(number: int = 0, topic: str = "orders", topic_id: str = TOPIC_ID) -> TopicIdPartition:
    """Return a partition of the test cluster."""
    return TopicIdPartition(CLUSTER_ID, topic_id, number, topic)


def segment_bytes(size: int, seed: int = 0) -> bytes:
    """Return `size` bytes that are the same for the same `seed`."""
    return random.Random(seed).randbytes(size)  # noqa: S311 -- content, no secret


def segment_metadata(
    size: int, start_offset: int = 4200, of: TopicIdPartition | None = None, segment_id: str | None = None
) -> RemoteLogSegmentMetadata:
    """Return the metadata of a new copy of a segment of `size` bytes and 1,000 offsets, led by epochs 0 and 3."""
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(of or partition(), segment_id or random_uuid()),
        start_offset=start_offset,
        end_offset=start_offset + 999,
        max_timestamp=1_763_700_000_000,
        event_timestamp=1_763_723_000_000,
        size=size,
        leader_epochs=(EpochEntry(0, 0), EpochEntry(3, start_offset + 10)),
        broker_id=1,
    )


def reused_chunks(content: bytes, chunk_size: int) -> Iterator[memoryview]:
    """Yield `content` in one buffer that is used again for each chunk, and overwritten at the end."""
    buffer = bytearray(chunk_size)
    for start in range(0, len(content), chunk_size):
        piece = content[start : start + chunk_size]
        buffer[: len(piece)] = piece
        yield memoryview(buffer)[: len(piece)]
    buffer[:] = b"\xee" * chunk_size


def segment_data(
    content: bytes, chunk_size: int = 1 << 20, indexes: Mapping[IndexKind, bytes] = INDEXES
) -> LogSegmentData:
    """Return a segment of `content` on its way out."""
    return LogSegmentData(len(content), reused_chunks(content, chunk_size), lambda: dict(indexes))


def copied(metadata: RemoteLogSegmentMetadata, custom_metadata: bytes) -> RemoteLogSegmentMetadata:
    """Return `metadata` as it is kept after the copy."""
    return replace(metadata, custom_metadata=custom_metadata)
