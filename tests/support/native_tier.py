"""A log directory whose closed segments Kafka itself tiered, made without a broker: its objects, and their metadata.

The remote tier has the layout of LocalTieredStorage, and the metadata are in the log directory's own topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from support.remote_logs import CLUSTER_ID, NOW, RemoteLogFiles, a_remote_log, topic_id, unsynced
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import (
    LEADER_EPOCH_CHECKPOINT,
    EpochEntry,
    encode_leader_epochs,
    read_leader_epochs,
)
from tiered_storage.kafka_log.files.log_segment import LogSegment, list_segments, producer_snapshot_path
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.remote_log.metadata.topic.records import MetadataRecord, encode_record
from tiered_storage.remote_log.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    SegmentState,
    TopicIdPartition,
)
from tiered_storage.remote_log.native.local_tiered_storage import FOLDER, LocalTieredStorage
from tiered_storage.remote_log.native.metadata_store import NativeMetadataStore
from tiered_storage.remote_log.native.metadata_topic import TOPIC
from tiered_storage.remote_log.source.partition_log import epochs_within

METADATA_CONFIG = LogConfig(segment_bytes=600)
NATIVE_METADATA = {
    "remote.log.metadata.manager.class.name": f"{NativeMetadataStore.__module__}.{NativeMetadataStore.__name__}",
}
NATIVE = {
    **NATIVE_METADATA,
    "remote.log.storage.manager.class.name": f"{LocalTieredStorage.__module__}.{LocalTieredStorage.__name__}",
}
"""The settings that name both managers."""

Store = Callable[["NativeTier", RemoteLogSegmentMetadata, LogSegment], bytes | None]
"""Writes the objects of a closed local segment; returns its custom metadata."""


@dataclass
class NativeTier:
    """Such a log directory, as `files`; `remote` is the root of its objects."""

    files: RemoteLogFiles
    remote: Path
    segments: list[RemoteLogSegmentMetadata] = field(default_factory=list)

    def add_records(self, values: Sequence[bytes | None]) -> None:
        """Append these values to the metadata topic."""
        with (
            unsynced(),
            LogDirectoryWriter.open(self.files.log_directory, METADATA_CONFIG, clock=lambda: NOW) as writer,
        ):
            log = _metadata_log(writer)
            for value in values:
                log.append([Record(log.log_end_offset, NOW, None, value)])

    def add(self, *records: MetadataRecord) -> None:
        """Append these records to the metadata topic."""
        self.add_records([encode_record(record, 1) for record in records])

    def object_of(self, segment: RemoteLogSegmentMetadata, suffix: str = "log") -> Path:
        """Return the file of a segment in the remote tier."""
        return next(self.remote.rglob(f"*-{segment.segment_id.id}.{suffix}"))


def a_native_tier(root: Path, closed: int = 3, topic: str = "orders", store: Store | None = None) -> NativeTier:
    """Make one below `root`: a partition of `closed` remote segments, whose local log begins after them."""
    return tiered(a_remote_log(root, {(topic, 0): closed}, topics={}), topic, store)


def tiered(
    files: RemoteLogFiles, topic: str = "orders", store: Store | None = None, *, keeps_local: bool = False
) -> NativeTier:
    """Let Kafka tier the closed segments of a topic in the log directory of `files`; see tier_closed."""
    tier = NativeTier(files, files.root / "kafka-remote")
    tier.remote.mkdir()
    files.properties = {**NATIVE, **properties_of(tier)}
    tier_closed(tier, topic, store, keeps_local=keeps_local)
    return tier


def tier_closed(
    tier: NativeTier, topic: str = "orders", store: Store | None = None, *, keeps_local: bool = False
) -> None:
    """Write the objects and the metadata of the closed segments that are not tiered yet; the local ones go after it."""
    write = store or as_local_tiered_storage
    known = {(each.topic_id_partition, each.start_offset) for each in tier.segments}
    copied: list[LogSegment] = []
    records: list[MetadataRecord] = []
    for directory in sorted(tier.files.log_directory.glob(f"{topic}-*")):
        partition = TopicIdPartition(CLUSTER_ID, topic_id(topic), int(directory.name.rpartition("-")[2]), topic)
        lineage = read_leader_epochs(directory / LEADER_EPOCH_CHECKPOINT)
        for segment, end in _closed(directory):
            if (partition, segment.base_offset) in known:
                continue
            epochs = epochs_within(lineage, segment.base_offset, end)
            metadata = _started(partition, segment, end, len(tier.segments), epochs)
            custom = write(tier, metadata, segment)
            tier.segments.append(metadata)
            copied.append(segment)
            records += [metadata, finish_of(metadata, custom)]
    tier.add(*records)
    for segment in [] if keeps_local else copied:
        _remove(segment)


def properties_of(tier: NativeTier) -> dict[str, Any]:
    """Return where both managers read, as settings."""
    return {
        "rsm.config.url": tier.remote.as_uri(),
        "rlmm.config.url": tier.files.log_directory.as_uri(),
        "state.directory": str(tier.files.root / "state"),
    }


def finish_of(segment: RemoteLogSegmentMetadata, custom: bytes | None = None) -> RemoteLogSegmentMetadataUpdate:
    """Return the end of a segment's copy."""
    finished = SegmentState.COPY_SEGMENT_FINISHED
    return RemoteLogSegmentMetadataUpdate(segment.segment_id, finished, segment.event_timestamp + 1, custom)


def as_local_tiered_storage(tier: NativeTier, metadata: RemoteLogSegmentMetadata, segment: LogSegment) -> None:
    """Write the files that LocalTieredStorage does."""
    partition = metadata.topic_id_partition
    folder = tier.remote / FOLDER / f"{partition.topic}-{partition.partition}-{partition.topic_id}"
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{metadata.start_offset:020d}-{metadata.segment_id.id}"
    for suffix, content in parts_of(metadata, segment).items():
        (folder / f"{stem}.{suffix}").write_bytes(content)


def parts_of(metadata: RemoteLogSegmentMetadata, segment: LogSegment) -> dict[str, bytes]:
    """Return what Kafka hands over to a RemoteStorageManager, by the suffixes of LocalTieredStorage."""
    snapshot = producer_snapshot_path(segment.directory, metadata.end_offset + 1)
    parts = {
        "log": segment.log_path.read_bytes(),
        "index": segment.offset_index_path.read_bytes(),
        "timeindex": segment.time_index_path.read_bytes(),
        "snapshot": snapshot.read_bytes(),
        "leader_epoch_checkpoint": encode_leader_epochs(metadata.leader_epochs),
    }
    if segment.has_transaction_index():
        parts["txnindex"] = segment.transaction_index_path.read_bytes()
    return parts


def _started(
    partition: TopicIdPartition, segment: LogSegment, end: int, number: int, epochs: tuple[EpochEntry, ...]
) -> RemoteLogSegmentMetadata:
    latest = NOW + 1000 * end
    return RemoteLogSegmentMetadata(
        RemoteLogSegmentId(partition, topic_id(f"segment {number} of {partition}")),
        segment.base_offset,
        end,
        latest,
        NOW,
        segment.size(),
        epochs,
        broker_id=1,
    )


def _closed(directory: Path) -> Iterator[tuple[LogSegment, int]]:
    """Yield each closed segment with its last offset."""
    segments = list_segments(directory)
    for segment, following in pairwise(segments):
        yield segment, following.base_offset - 1


def _remove(segment: LogSegment) -> None:
    for path in (segment.log_path, *segment.index_paths):
        path.unlink(missing_ok=True)


def _metadata_log(writer: LogDirectoryWriter) -> LocalLog:
    if (writer.root / f"{TOPIC}-0").exists():
        return writer.log(TOPIC, 0)
    return writer.create_log(TOPIC, 0, topic_id(TOPIC), METADATA_CONFIG)
