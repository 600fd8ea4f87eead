"""What a store has of a segment, read and checked: its data, its bundle of indexes, its commit marker.

All positions are those of the log; encoded_segments.py knows where its chunks lie in an encoded data object.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tiered_storage.errors import (
    REPAIR_ADVICE,
    LaterVersionError,
    RemoteObjectCorruptError,
    RemoteObjectNotFoundError,
)
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.storage.clients.object_client import ObjectClient, data_range
from tiered_storage.remote_log.storage.commit_marker import CommitMarker, StoredCopy, parse_copy
from tiered_storage.remote_log.storage.documents.json_document import MAX_DOCUMENT_BYTES
from tiered_storage.remote_log.storage.documents.manifest import Manifest
from tiered_storage.remote_log.storage.documents.object_names import (
    SegmentObjectName,
    SegmentObjectNames,
    segment_object_names,
)
from tiered_storage.remote_log.storage.documents.segment_key import OBJECT_BYTES as KEY_OBJECT_BYTES
from tiered_storage.remote_log.storage.encoded_segments import (
    DecryptedContents,
    EncodedSegments,
    SegmentLayout,
)
from tiered_storage.remote_log.storage.index_bundle import HEAD_READ_BYTES, BundleHead, parse_bundle
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind

FETCH_BYTES = 4 << 20
MAX_BUNDLE_BYTES = 512 << 20


class StoredSegments:
    """Reads the segments in the store of `client`. Methods raise as those of ListableStorage by their names."""

    def __init__(self, client: ObjectClient, encoded: EncodedSegments) -> None:
        """Read by `client`, which belongs to the caller; `encoded` decodes segments that are not stored as they are."""
        self._client = client
        self._encoded = encoded

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int = 0, end_position: int | None = None
    ) -> Iterator[bytes]:
        """Stream a range of the segment in pieces of at most 4 MiB, each read when it is requested.

        If the range is the whole segment, the last piece comes only after the checksum of all was right.
        """
        end = metadata.size - 1 if end_position is None else end_position
        whole = start_position == 0 and end == metadata.size - 1
        if not whole and not 0 <= start_position <= end < metadata.size:
            raise ValueError(
                f"{metadata.segment_id}: bytes {start_position} to {end} are not in it: it has {metadata.size}"
            )
        name = names_of(metadata).data
        pieces = self._pieces(metadata, name, start_position, end + 1)
        return self._checked(metadata, name, pieces) if whole else pieces

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, kind: IndexKind) -> bytes:
        """Return one index: usually in one request, never in more than two if custom metadata are known.

        An encrypted segment's key is one more request, until it is cached.
        """
        marker = self.marker(metadata)
        content = self._section(metadata, kind, marker.indexes_size)
        if kind is IndexKind.MANIFEST or not marker.is_encrypted:
            return content
        names = names_of(metadata)
        return self._encoded.cipher(metadata, names).decrypt_index(content, kind, self.source(names.indexes))

    def fetch_bundle(self, metadata: RemoteLogSegmentMetadata) -> Mapping[IndexKind, bytes]:
        """See ListableStorage."""
        names = names_of(metadata)
        marker = self.read_marker(names)
        if marker != self.marker(metadata) or marker.data_size != metadata.size:
            raise RemoteObjectCorruptError(
                f"{self.source(names.commit_marker)}: has {marker}; the metadata have {self.marker(metadata)}"
            )
        contents, manifest = self.read_bundle(names, marker)
        manifest.check_against(metadata, self.source(names.indexes))
        return self.decrypted(metadata, names, marker, contents)

    def ensure_sent_size(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Raise RemoteObjectCorruptError if the data object has another size than was sent."""
        name = names_of(metadata).data
        size, sent = self._client.size(name), self.marker(metadata).data_object_size
        if size != sent:
            raise RemoteObjectCorruptError(f"{self.source(name)}: has {size} bytes, {sent} were sent")

    def read_metadata(self, name: SegmentObjectName) -> RemoteLogSegmentMetadata:
        """See ListableStorage."""
        names = name.names
        marker = self.read_marker(names)
        metadata = self.read_bundle(names, marker)[1].metadata(marker.custom_metadata())
        if metadata.segment_id != name.segment_id or metadata.start_offset != name.base_offset:
            raise RemoteObjectCorruptError(f"{self.source(names.indexes)}: its manifest is of another segment")
        return metadata

    def find_copy(self, metadata: RemoteLogSegmentMetadata) -> StoredCopy | None:
        """See ListableStorage."""
        names = names_of(metadata)
        try:
            size = self._client.size(names.indexes)
            if size > MAX_BUNDLE_BYTES:
                return None
            raw = self._client.get_range(names.indexes, 0, size)
            found = parse_copy(raw, self.source(names.indexes), metadata, self.find_marker(names))
            if found is None or any(
                self._client.size(name) != size
                for name, size in self.expected_objects(found.finished).items()
                if name != names.commit_marker
            ):
                return None
        except (RemoteObjectCorruptError, RemoteObjectNotFoundError, LaterVersionError):
            return None
        contents = self.decrypted(metadata, names, self.marker(found.finished), found.contents)
        return replace(found, contents=contents)

    def later_version(self, metadata: RemoteLogSegmentMetadata) -> LaterVersionError | None:
        """See ListableStorage."""
        names = names_of(metadata)
        for look in (self.marker, lambda _: self.read_marker(names), self._head_manifest):
            try:
                look(metadata)
            except LaterVersionError as error:
                return None if self._is_bundle_damaged(metadata) else error
            except (RemoteObjectCorruptError, RemoteObjectNotFoundError):
                continue
        return None

    def _is_bundle_damaged(self, metadata: RemoteLogSegmentMetadata) -> bool:
        """Return whether the bundle's bytes differ from those sent: a bit of the version may have flipped."""
        name = names_of(metadata).indexes
        try:
            marker = self.marker(metadata)
            return crc32c(self._client.get_range(name, 0, marker.indexes_size)) != marker.indexes_crc32c
        except (LaterVersionError, RemoteObjectNotFoundError):
            return False
        except RemoteObjectCorruptError:
            return True

    def expected_objects(self, metadata: RemoteLogSegmentMetadata) -> dict[str, int]:
        """See ListableStorage."""
        names = names_of(metadata)
        marker = self.marker(metadata)
        expected = {
            names.data: marker.data_object_size,
            names.indexes: marker.indexes_size,
            names.commit_marker: len(marker.to_bytes()),
        }
        return expected | ({names.key: KEY_OBJECT_BYTES} if marker.is_encrypted else {})

    def read_damaged(self, metadata: RemoteLogSegmentMetadata, position: int, size: int) -> bytes:
        """See ListableStorage."""
        layout = self._layout(metadata)
        if layout is None:
            return self._client.get_range(names_of(metadata).data, position, size)
        return self._encoded.read_damaged(layout, position, position + size)

    def readable_size(self, metadata: RemoteLogSegmentMetadata) -> int:
        """See ListableStorage."""
        size = self._client.size(names_of(metadata).data)
        layout = self._layout(metadata)
        return size if layout is None else layout.table.size

    def _head_manifest(self, metadata: RemoteLogSegmentMetadata) -> Manifest:
        """Return the manifest in the bundle, whether or not there is a commit marker."""
        name = names_of(metadata).indexes
        return Manifest.parse(self._section(metadata, IndexKind.MANIFEST, self._client.size(name)), self.source(name))

    def _section(self, metadata: RemoteLogSegmentMetadata, kind: IndexKind, size: int) -> bytes:
        """Return one section of a bundle of `size` bytes, checked."""
        name = names_of(metadata).indexes
        source = self.source(name)
        start = self._client.get_range(name, 0, min(size, HEAD_READ_BYTES))
        section = BundleHead.parse(start, source, size).sections.get(kind)
        if section is None:
            raise RemoteObjectNotFoundError(f"{source}: the segment has no index {kind.name}")
        end = section.position + section.length
        if end <= len(start):
            return section.check(start[section.position : end], source)
        return section.check(self._client.get_range(name, section.position, section.length), source)

    def source(self, name: str) -> str:
        """Return where the object of that name is, for messages."""
        return f"{self._client.root}/{name}"

    def _pieces(self, metadata: RemoteLogSegmentMetadata, name: str, start: int, end: int) -> Iterator[bytes]:
        layout = self._layout(metadata)
        if layout is not None:
            yield from self._encoded.read(layout, start, end)
            return
        for position in range(start, end, FETCH_BYTES):
            yield data_range(self._client, name, position, min(FETCH_BYTES, end - position))

    def _layout(self, metadata: RemoteLogSegmentMetadata) -> SegmentLayout | None:
        """Return where an encoded segment's chunks are; None if its data object is the log."""
        names = names_of(metadata)
        marker = self.find_marker(names) if metadata.custom_metadata is None else self.marker(metadata)
        is_encoded = self._encoded.is_encoded(names.data) if marker is None else marker.stored_size is not None
        if not is_encoded:
            return None
        return self._encoded.layout(metadata, names, marker, lambda: self._head_manifest(metadata))

    def decrypted(
        self,
        metadata: RemoteLogSegmentMetadata,
        names: SegmentObjectNames,
        marker: CommitMarker,
        contents: Mapping[IndexKind, bytes],
    ) -> Mapping[IndexKind, bytes]:
        """Return the contents of a bundle; those of an encrypted segment are decrypted when they are asked for."""
        if not marker.is_encrypted:
            return contents
        return DecryptedContents(contents, lambda: self._encoded.cipher(metadata, names), self.source(names.indexes))

    def _checked(self, metadata: RemoteLogSegmentMetadata, name: str, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Pass on a whole segment's pieces, holding each back until the next one exists or the checksum is right."""
        expected = self.marker(metadata).data_crc32c
        checksum, held = 0, b""
        for piece in pieces:
            if held:
                yield held
            checksum, held = crc32c(piece, checksum), piece
        if checksum != expected:
            raise RemoteObjectCorruptError(
                f"{self.source(name)}: its bytes have CRC-32C {checksum:08x}; {expected:08x} was sent; {REPAIR_ADVICE}"
            )
        if held:
            yield held

    def marker(self, metadata: RemoteLogSegmentMetadata) -> CommitMarker:
        """Return sizes and checksums from the metadata, else from the store."""
        if metadata.custom_metadata is not None:
            return CommitMarker.from_custom_metadata(metadata, metadata.custom_metadata)
        return self.read_marker(names_of(metadata))

    def find_marker(self, names: SegmentObjectNames) -> CommitMarker | None:
        """Return the commit marker in the store; None if there is none."""
        try:
            return self.read_marker(names)
        except RemoteObjectNotFoundError:
            return None

    def read_marker(self, names: SegmentObjectNames) -> CommitMarker:
        """Return the commit marker in the store. Raises RemoteObjectNotFoundError."""
        name = names.commit_marker
        size = min(self._client.size(name), MAX_DOCUMENT_BYTES + 1)
        return CommitMarker.parse(self._client.get_range(name, 0, size), self.source(name))

    def read_bundle(self, names: SegmentObjectNames, marker: CommitMarker) -> tuple[dict[IndexKind, bytes], Manifest]:
        """Read and check the whole bundle; return its content, and its manifest separately."""
        source = self.source(names.indexes)
        size = self._client.size(names.indexes)
        if size != marker.indexes_size or size > MAX_BUNDLE_BYTES:
            raise RemoteObjectCorruptError(f"{source}: has {size} bytes, {marker.indexes_size} were sent")
        raw = self._client.get_range(names.indexes, 0, size)
        if crc32c(raw) != marker.indexes_crc32c:
            raise RemoteObjectCorruptError(f"{source}: its bytes are not those that were sent")
        contents = parse_bundle(raw, source)
        if IndexKind.MANIFEST not in contents:
            raise RemoteObjectCorruptError(f"{source}: has no manifest")
        manifest = Manifest.parse(contents[IndexKind.MANIFEST], source)
        if (manifest.size, manifest.data_crc32c) != (marker.data_size, marker.data_crc32c):
            raise RemoteObjectCorruptError(f"{source}: manifest and commit marker are of different data")
        return contents, manifest


def names_of(metadata: RemoteLogSegmentMetadata) -> SegmentObjectNames:
    """Return the names of the segment's objects."""
    return segment_object_names(metadata.segment_id, metadata.start_offset)
