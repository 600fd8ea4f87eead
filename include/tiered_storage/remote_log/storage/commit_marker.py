"""The commit marker, the object that marks a segment's other two as complete; and custom metadata, its short form.

The marker is a JSON object: format_version (1; 2 for an encoded segment), segment_id, data_size and data_crc32c of the
log, indexes_size and indexes_crc32c of the bundle (bytes; CRC-32C as 8 hex digits). That of an encoded segment also has
stored_size, the bytes of the data object, and is_encrypted (0 or 1). Custom metadata, kept with the segment's metadata,
are 18 bytes, or 27 for an encoded segment, big-endian:

    version          int16    1; 2 for an encoded segment
    data crc         uint32   CRC-32C of the log
    indexes size     int64    bytes of the bundle
    indexes crc      uint32   CRC-32C of the bundle
    stored size      int64    bytes of the data object, only in version 2
    is encrypted     uint8    1 if there is a `.key` object, else 0, only in version 2
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, PlainSerializer

from tiered_storage.errors import LaterVersionError, RemoteObjectCorruptError
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.storage.documents.json_document import (
    Checksum,
    JsonDocument,
    Natural,
    Text,
    encode_document,
)
from tiered_storage.remote_log.storage.documents.manifest import Manifest
from tiered_storage.remote_log.storage.index_bundle import parse_bundle
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind

FORMAT_VERSION = 2
PLAIN_VERSION = 1
_HIGHEST_VERSION = 255
"""A higher leading number than our versions will ever reach belongs to another RemoteStorageManager."""
_CUSTOM_METADATA = struct.Struct(">hIqI")
_OF_ENCODED = struct.Struct(">hIqIqB")


def _zero_or_one(value: object) -> bool:
    if type(value) is not int or value not in {0, 1}:
        raise ValueError("is neither 0 nor 1")
    return bool(value)


Flag = Annotated[bool, BeforeValidator(_zero_or_one), PlainSerializer(int)]


@dataclass(frozen=True, slots=True)
class _OfEncoded:
    """What the marker of an encoded segment must have: without the flag, encrypted bytes would count as plain ones."""

    stored_size: Natural
    is_encrypted: Flag


@dataclass(frozen=True, slots=True)
class CommitMarker:
    """Sizes (bytes) and checksums (CRC-32C) of a segment's log and of the bundle of its indexes.

    `stored_size` is that of the data object of an encoded segment; None: the data object is the log.
    """

    segment_id: Text
    data_size: Natural
    data_crc32c: Checksum
    indexes_size: Annotated[int, Field(strict=True, ge=1, lt=2**63)]
    indexes_crc32c: Checksum
    stored_size: Natural | None = None
    is_encrypted: Flag = False

    @property
    def data_object_size(self) -> int:
        """Bytes of the data object."""
        return self.data_size if self.stored_size is None else self.stored_size

    def __str__(self) -> str:
        return (
            f"segment {self.segment_id}, {self.data_size} bytes of data with CRC-32C {self.data_crc32c:08x}, "
            f"{self.indexes_size} of indexes with {self.indexes_crc32c:08x}"
        )

    @classmethod
    def parse(cls, raw: bytes, source: str) -> Self:
        """Read a marker. Raises RemoteObjectCorruptError if it is corrupt, and LaterVersionError."""
        document = JsonDocument(raw, source, FORMAT_VERSION)
        marker = document.read(cls)
        if document.version == PLAIN_VERSION:
            return replace(marker, stored_size=None, is_encrypted=False)
        of_encoded = document.read(_OfEncoded)
        return replace(marker, stored_size=of_encoded.stored_size, is_encrypted=of_encoded.is_encrypted)

    def to_bytes(self) -> bytes:
        """Return the marker's JSON."""
        if self.stored_size is None:
            return encode_document(PLAIN_VERSION, self, omitted={"stored_size", "is_encrypted"})
        return encode_document(FORMAT_VERSION, self)

    @classmethod
    def from_custom_metadata(cls, metadata: RemoteLogSegmentMetadata, raw: bytes) -> Self:
        """Return the marker of the segment of `metadata`, whose custom metadata are `raw`.

        Raises RemoteObjectCorruptError if they are not ours, and LaterVersionError.
        """
        if len(raw) < 2:
            raise RemoteObjectCorruptError(f"{metadata.segment_id}: {len(raw)} bytes are not valid custom metadata")
        version = int.from_bytes(raw[:2], "big")
        if FORMAT_VERSION < version <= _HIGHEST_VERSION:
            raise LaterVersionError(f"{metadata.segment_id}: its custom metadata", version, FORMAT_VERSION)
        if version == FORMAT_VERSION and len(raw) == _OF_ENCODED.size:
            _, data_crc32c, indexes_size, indexes_crc32c, stored_size, is_encrypted = _OF_ENCODED.unpack(raw)
            return cls(
                metadata.segment_id.id,
                metadata.size,
                data_crc32c,
                indexes_size,
                indexes_crc32c,
                stored_size,
                bool(is_encrypted),
            )
        if version != PLAIN_VERSION or len(raw) != _CUSTOM_METADATA.size:
            raise RemoteObjectCorruptError(
                f"{metadata.segment_id}: custom metadata of {len(raw)} bytes in version {version} are not known: they "
                "come from another RemoteStorageManager"
            )
        _, data_crc32c, indexes_size, indexes_crc32c = _CUSTOM_METADATA.unpack(raw)
        return cls(metadata.segment_id.id, metadata.size, data_crc32c, indexes_size, indexes_crc32c)

    def custom_metadata(self) -> bytes:
        """Return the custom metadata for the segment's metadata."""
        if self.stored_size is None:
            return _CUSTOM_METADATA.pack(PLAIN_VERSION, self.data_crc32c, self.indexes_size, self.indexes_crc32c)
        return _OF_ENCODED.pack(
            FORMAT_VERSION,
            self.data_crc32c,
            self.indexes_size,
            self.indexes_crc32c,
            self.stored_size,
            self.is_encrypted,
        )


def marker_of(manifest: Manifest, bundle: bytes) -> CommitMarker:
    """Return the marker of the segment whose `bundle` has the `manifest`, with its `data_crc32c`."""
    if manifest.data_crc32c is None:
        raise ValueError(f"{manifest.segment_id}: its data were not sent")
    encoding = manifest.encoding
    return CommitMarker(
        manifest.segment_id.id,
        manifest.size,
        manifest.data_crc32c,
        len(bundle),
        crc32c(bundle),
        None if encoding.is_plain else manifest.stored_size,
        encoding.encryption,
    )


@dataclass(frozen=True, slots=True)
class StoredCopy:
    """The indexes of a copy, and its metadata as a finished one, from its manifest."""

    contents: Mapping[IndexKind, bytes]
    finished: RemoteLogSegmentMetadata


def parse_copy(
    raw: bytes, source: str, metadata: RemoteLogSegmentMetadata, marker: CommitMarker | None
) -> StoredCopy | None:
    """Return the copy whose bundle at `source` is `raw`; None if it does not match `metadata`, or `marker`.

    Raises RemoteObjectCorruptError if the bundle is corrupt.
    """
    contents = parse_bundle(raw, source)
    manifest = Manifest.parse(contents.get(IndexKind.MANIFEST, b""), source)
    if manifest.data_crc32c is None:
        return None
    of_manifest = marker_of(manifest, raw)
    if marker not in {None, of_manifest}:
        return None
    if (manifest.segment_id, manifest.base_offset) != (metadata.segment_id, metadata.start_offset):
        return None
    return StoredCopy(contents, manifest.metadata(of_manifest.custom_metadata()))
