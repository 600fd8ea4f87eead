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
from typing import Self

from tiered_storage.errors import RemoteObjectCorruptError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)
from tiered_storage.remote_log.storage.documents.json_document import JsonDocument, encode_document
from tiered_storage.remote_log.storage.transforms.encoding import (
    ENCODINGS,
    MAX_CHUNK_BYTES,
    PLAIN,
    EncodedChunk,
    Encoding,
)

FORMAT_VERSION = 2
PLAIN_VERSION = 1

_MAX_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Manifest:
    """The store's own metadata of a segment; offsets are inclusive, timestamps ms, sizes bytes.

    `data_crc32c` is None until the data object is written.
    """

    segment_id: RemoteLogSegmentId
    base_offset: int
    end_offset: int
    max_timestamp: int
    size: int
    leader_epochs: tuple[EpochEntry, ...]
    copied_at: int
    broker_id: int = -1
    first_timestamp: int | None = None
    batch_count: int | None = None
    record_count: int | None = None
    data_crc32c: int | None = None
    encoding: Encoding = PLAIN
    chunks: tuple[EncodedChunk, ...] = ()

    @classmethod
    def of(cls, metadata: RemoteLogSegmentMetadata) -> Self:
        """Return the manifest that follows from `metadata` alone."""
        return cls(
            segment_id=metadata.segment_id,
            base_offset=metadata.start_offset,
            end_offset=metadata.end_offset,
            max_timestamp=metadata.max_timestamp,
            size=metadata.size,
            leader_epochs=metadata.leader_epochs,
            copied_at=metadata.event_timestamp,
            broker_id=metadata.broker_id,
        )

    @classmethod
    def parse(cls, raw: bytes, source: str) -> Self:
        """Read a manifest. Raises RemoteObjectCorruptError if it is corrupt, and LaterVersionError."""
        document = JsonDocument(raw, source, FORMAT_VERSION)
        partition = TopicIdPartition(
            cluster_id=document.text("cluster_id"),
            topic_id=document.text("topic_id"),
            partition=document.integer("partition", maximum=_MAX_INT32),
            topic=document.text("topic"),
        )
        base_offset = document.integer("base_offset")
        encoding = ENCODINGS.get(document.text("codec"))
        if encoding is None:
            raise document.wrong("codec", f"one that this release can read: {', '.join(ENCODINGS)}")
        size = document.integer("size")
        chunks = () if encoding.is_plain else tuple(EncodedChunk(*values) for values in document.triples("chunks"))
        if not encoding.is_plain and sum(chunk.length for chunk in chunks) != size:
            raise document.wrong("chunks", f"a list of {size} bytes in all")
        if not all(chunk.is_possible for chunk in chunks):
            raise document.wrong("chunks", f"a list of chunks of at most {MAX_CHUNK_BYTES} bytes")
        return cls(
            segment_id=RemoteLogSegmentId(partition, document.text("segment_id")),
            base_offset=base_offset,
            end_offset=document.integer("end_offset", minimum=base_offset),
            max_timestamp=document.integer("max_timestamp", minimum=-1),
            size=size,
            leader_epochs=tuple(EpochEntry(epoch, start) for epoch, start in document.pairs("leader_epochs")),
            copied_at=document.integer("copied_at"),
            broker_id=document.integer("broker_id", minimum=-1, maximum=_MAX_INT32),
            first_timestamp=document.optional_integer("first_timestamp", minimum=-1),
            batch_count=document.optional_integer("batch_count"),
            record_count=document.optional_integer("record_count"),
            data_crc32c=document.optional_checksum("data_crc32c"),
            encoding=encoding,
            chunks=chunks,
        )

    @property
    def stored_size(self) -> int:
        """Bytes of the data object."""
        return self.size if self.encoding.is_plain else sum(chunk.stored for chunk in self.chunks)

    def to_bytes(self) -> bytes:
        """Return the manifest's JSON."""
        partition = self.segment_id.topic_id_partition
        version, chunks = PLAIN_VERSION, {}
        if not self.encoding.is_plain:
            version = FORMAT_VERSION
            chunks = {"chunks": [[each.length, each.stored, each.payload_crc32c] for each in self.chunks]}
        return encode_document(
            version,
            {
                "cluster_id": partition.cluster_id,
                "topic": partition.topic,
                "topic_id": partition.topic_id,
                "partition": partition.partition,
                "segment_id": self.segment_id.id,
                "base_offset": self.base_offset,
                "end_offset": self.end_offset,
                "first_timestamp": self.first_timestamp,
                "max_timestamp": self.max_timestamp,
                "copied_at": self.copied_at,
                "broker_id": self.broker_id,
                "size": self.size,
                "batch_count": self.batch_count,
                "record_count": self.record_count,
                "leader_epochs": [[entry.epoch, entry.start_offset] for entry in self.leader_epochs],
                "data_crc32c": None if self.data_crc32c is None else f"{self.data_crc32c:08x}",
                "codec": self.encoding.codec,
                "key_id": None,
                **chunks,
            },
        )

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
