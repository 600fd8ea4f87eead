"""The manifest: a JSON object in each segment's bundle from which its metadata can be rebuilt without any database.

    format_version                            1; 2 if the segment is encoded
    cluster_id, topic, topic_id, segment_id   text
    partition                                 its number
    base_offset, end_offset                   both inclusive
    first_timestamp                           ms; the smallest in batch headers, -1: none, null: not determined
    max_timestamp                             ms; the largest of all records, -1: none
    copied_at, broker_id                      ms, and the node whose copy it is, -1: none in particular
    size, batch_count, record_count           bytes; the counts are null if not counted
    leader_epochs                             [[epoch, start offset], …] up to the segment's end
    data_crc32c                               of the log, 8 hex digits; null until the data object is written
    codec                                     "none", "zstd", "aes-256-gcm" or "zstd+aes-256-gcm"
    key_id                                    null: a segment's key is in its `.key` object
    chunks                                    of an encoded segment: [[bytes of the log, bytes in the object, CRC-32C of
                                              the payload], …]; see transforms/encoding.py

A manifest of a later version, or with an unknown codec, is refused: its data would be misread. It is never encrypted,
so that audits and rebuilds need no key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import AfterValidator, Field

from tiered_storage.errors import RemoteObjectCorruptError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)
from tiered_storage.remote_log.storage.documents.json_document import (
    Checksum,
    Int32,
    JsonDocument,
    Natural,
    Text,
    Timestamp,
    encode_document,
    in_a_list,
)
from tiered_storage.remote_log.storage.transforms.encoding import (
    ENCODINGS,
    MAX_CHUNK_BYTES,
    PLAIN,
    EncodedChunk,
    Encoding,
)

FORMAT_VERSION = 2
PLAIN_VERSION = 1


def _known(codec: str) -> str:
    if codec not in ENCODINGS:
        raise ValueError(f"this release can read {', '.join(ENCODINGS)}")
    return codec


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The store's own metadata of a segment, with the fields of its document."""

    cluster_id: Text
    topic: Text
    topic_id: Text
    partition: Int32
    id: Annotated[Text, Field(alias="segment_id")]
    base_offset: Natural
    end_offset: Natural
    first_timestamp: Timestamp | None = None
    max_timestamp: Timestamp
    copied_at: Natural
    broker_id: Annotated[int, Field(strict=True, ge=-1, lt=2**31)]
    size: Natural
    batch_count: Natural | None = None
    record_count: Natural | None = None
    leader_epochs: tuple[Annotated[EpochEntry, in_a_list(EpochEntry)], ...]
    data_crc32c: Checksum | None = None
    codec: Annotated[str, AfterValidator(_known)]
    key_id: Text | None = None
    chunks: tuple[Annotated[EncodedChunk, in_a_list(EncodedChunk)], ...] = ()

    @classmethod
    def of(cls, metadata: RemoteLogSegmentMetadata) -> Self:
        """Return the manifest that follows from `metadata` alone."""
        partition = metadata.topic_id_partition
        return cls(
            cluster_id=partition.cluster_id,
            topic=partition.topic,
            topic_id=partition.topic_id,
            partition=partition.partition,
            id=metadata.segment_id.id,
            base_offset=metadata.start_offset,
            end_offset=metadata.end_offset,
            max_timestamp=metadata.max_timestamp,
            size=metadata.size,
            leader_epochs=metadata.leader_epochs,
            copied_at=metadata.event_timestamp,
            broker_id=metadata.broker_id,
            codec=PLAIN.codec,
        )

    @classmethod
    def parse(cls, raw: bytes, source: str) -> Self:
        """Read a manifest. Raises RemoteObjectCorruptError if it is corrupt, and LaterVersionError."""
        document = JsonDocument(raw, source, FORMAT_VERSION)
        manifest = document.read(cls)
        if manifest.end_offset < manifest.base_offset:
            raise document.wrong(f"end_offset is {manifest.end_offset}, which is below base_offset")
        if sum(chunk.length for chunk in manifest.chunks) != (0 if manifest.encoding.is_plain else manifest.size):
            raise document.wrong(f"chunks is not a list of {manifest.size} bytes in all")
        if not all(chunk.is_possible for chunk in manifest.chunks):
            raise document.wrong(f"chunks is not a list of chunks of at most {MAX_CHUNK_BYTES} bytes")
        return manifest

    @property
    def segment_id(self) -> RemoteLogSegmentId:
        """The id of the segment."""
        partition = TopicIdPartition(self.cluster_id, self.topic_id, self.partition, self.topic)
        return RemoteLogSegmentId(partition, self.id)

    @property
    def encoding(self) -> Encoding:
        """What was done with the chunks of the segment."""
        return ENCODINGS[self.codec]

    @property
    def stored_size(self) -> int:
        """Bytes of the data object."""
        return self.size if self.encoding.is_plain else sum(chunk.stored for chunk in self.chunks)

    def to_bytes(self) -> bytes:
        """Return the manifest's JSON."""
        if self.encoding.is_plain:
            return encode_document(PLAIN_VERSION, self, omitted={"chunks"})
        return encode_document(FORMAT_VERSION, self)

    def check_against(self, metadata: RemoteLogSegmentMetadata, source: str) -> None:
        """Raise RemoteObjectCorruptError if the manifest does not belong to the segment of `metadata`."""
        mine = (self.segment_id, self.base_offset, self.end_offset, self.size, self.leader_epochs)
        other = (
            metadata.segment_id, metadata.start_offset, metadata.end_offset, metadata.size, metadata.leader_epochs
        )  # fmt: skip
        if mine != other:
            raise RemoteObjectCorruptError(
                f"{source}: the manifest is of {self.segment_id}, offsets {self.base_offset} to {self.end_offset}, "
                f"{self.size} bytes, epochs {_shown(self.leader_epochs)}; the metadata of {metadata.segment_id}, "
                f"offsets {metadata.start_offset} to {metadata.end_offset}, {metadata.size} bytes, epochs "
                f"{_shown(metadata.leader_epochs)}"
            )

    def metadata(self, custom_metadata: bytes) -> RemoteLogSegmentMetadata:
        """Return the segment's metadata as those of a finished copy."""
        return RemoteLogSegmentMetadata(
            segment_id=self.segment_id,
            start_offset=self.base_offset,
            end_offset=self.end_offset,
            max_timestamp=self.max_timestamp,
            event_timestamp=self.copied_at,
            size=self.size,
            leader_epochs=self.leader_epochs,
            state=SegmentState.COPY_SEGMENT_FINISHED,
            broker_id=self.broker_id,
            custom_metadata=custom_metadata,
        )


def _shown(leader_epochs: tuple[EpochEntry, ...]) -> str:
    return ", ".join(f"{entry.epoch} from {entry.start_offset}" for entry in leader_epochs[-5:]) or "none"
