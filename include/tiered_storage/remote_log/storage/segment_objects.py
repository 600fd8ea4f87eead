"""The RemoteStorageManager over an ObjectClient: three or four objects per segment, named as in object_names.py.

A copy writes the wrapped key of an encrypted segment, the data, the bundle of indexes, and then the commit marker; a
deletion deletes the marker first. So a segment with a marker is complete, and objects without one belong to no finished
copy. All positions are those of the log; encoded_segments.py knows where its chunks lie in an encoded data object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Self

from tiered_storage.errors import (
    ConfigurationError,
    LaterVersionError,
    RemoteObjectCorruptError,
    RemoteStorageError,
    RemoteStorageFullError,
    TieredStorageError,
)
from tiered_storage.remote_log.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition
from tiered_storage.remote_log.storage.clients.aws_credentials import AwsIdentity
from tiered_storage.remote_log.storage.clients.object_client import (
    CheckedChunks,
    ObjectClient,
    StoreReserve,
    WrittenObject,
    check_object_name,
    temporary_name,
)
from tiered_storage.remote_log.storage.clients.opening import open_object_client
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions
from tiered_storage.remote_log.storage.commit_marker import CommitMarker, StoredCopy, marker_of
from tiered_storage.remote_log.storage.documents.manifest import Manifest
from tiered_storage.remote_log.storage.documents.object_names import (
    STORE_CLOCK,
    SegmentObjectName,
    SegmentObjectNames,
    parse_object_name,
    parse_partition_manifest_name,
    segment_object_names,
)
from tiered_storage.remote_log.storage.documents.partition_manifest import PartitionManifests
from tiered_storage.remote_log.storage.documents.store_generation import StoreGenerations
from tiered_storage.remote_log.storage.documents.store_identity import (
    StoreIdentity,
    ensure_store_identity,
    find_store_identity,
    read_store_identity,
    rebind_store,
)
from tiered_storage.remote_log.storage.encoded_segments import (
    EncodedSegments,
    SentSegment,
    encrypted,
)
from tiered_storage.remote_log.storage.index_bundle import build_bundle
from tiered_storage.remote_log.storage.listable_storage import ListableStorage, ListedObject
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind, LogSegmentData, delete_singly
from tiered_storage.remote_log.storage.segment_deletion import delete_objects_of
from tiered_storage.remote_log.storage.stored_segments import StoredSegments, names_of
from tiered_storage.remote_log.storage.transforms.aws_kms import KmsClients, usual_clients
from tiered_storage.remote_log.storage.transforms.encoding import PLAIN
from tiered_storage.remote_log.storage.transforms.key_ring import KeyRing

_ANY_ID = "A" * 22


class ObjectRemoteStorageManager(ListableStorage):
    """Segments as objects; see RemoteStorageManager and ListableStorage for the contract."""

    encodes_segments = True

    def __init__(
        self,
        client: ObjectClient,
        reserve: StoreReserve | None = None,
        key_ring: KeyRing | None = None,
        kms: KmsClients = usual_clients,
    ) -> None:
        """Keep segments in the store of `client`, which `close` closes and whose `reserve` `spend_reserve` spends.

        `key_ring` has the keys of encrypted segments; `kms` is how those in AWS KMS are reached.
        """
        self._client = client
        self._encoded = EncodedSegments(client, key_ring or KeyRing(), kms)
        self._stored = StoredSegments(client, self._encoded)
        self._reserve = reserve or StoreReserve()
        self._pair: tuple[str, str] | None = None
        self.generations = StoreGenerations(client)
        self.partition_manifests = PartitionManifests(client)

    @classmethod
    def open(cls, url: str, options: ObjectStoreOptions) -> Self:
        """Open the store at `url`. Raises ConfigurationError."""
        reserve = StoreReserve()
        kms = AwsIdentity(options).kms_client
        return cls(open_object_client(url, options, reserve=reserve), reserve, options.key_ring, kms)

    @property
    def has_own_clock(self) -> bool:
        """See ListableStorage."""
        return self._client.has_own_clock

    def why_no_name(self, partition: TopicIdPartition) -> str | None:
        """See ListableStorage."""
        try:
            names = segment_object_names(RemoteLogSegmentId(partition, _ANY_ID), 0)
            longest = temporary_name(names.commit_marker, "0" * 16)
            check_object_name(longest)
        except ConfigurationError as error:
            return str(error)
        part = max(longest.split("/"), key=lambda each: len(each.encode()))
        if len(part.encode()) <= self._client.longest_part:
            return None
        return (
            f"{self._client.root} cannot hold a name of {len(part.encode())} bytes, such as {part[:80]!r}…, but at "
            f"most {self._client.longest_part}: keep this topic in a store over the S3 API"
        )

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes:
        """Store a segment.

        A manifest among the indexes is compared with `metadata` and with the checksum of the sent data, if it has one;
        otherwise it gets that checksum. If there is no manifest, one is built from `metadata`.

        The commit marker is created exclusively. If another attempt's marker exists before the first write, nothing is
        written: `data` is only compared. Raises RemoteObjectCorruptError if it differs.

        The key of an encrypted segment is created exclusively before the first write: only one attempt ever writes.
        Another one raises RemoteStorageError; so does a repeated call after a copy that was not finished.

        Else a window remains: an attempt that began before the other's marker existed may overwrite what the other
        finished, with the same bytes unless its source changed. If the content differs, this attempt raises; local
        retention, which reads remote bytes back before it deletes local ones (`remote.log.verify.before.trim`), and a
        deep audit find the damage.
        """
        names = names_of(metadata)
        if data.size != metadata.size:
            raise ConfigurationError(
                f"{metadata.segment_id}: {data.size} bytes of data, {metadata.size} in its metadata"
            )
        if (finished := self._stored.find_marker(names)) is not None:
            sent = _passed(names.data, data)
        elif data.encoding.is_plain:
            sent = _plain(self._client.put(names.data, data.size, data.chunks, more_follows=True))
        else:
            sent = self._encoded.put(metadata, names, data)
        indexes = dict(data.indexes())
        manifest = _manifest(metadata, indexes, sent)
        if finished is not None and finished.stored_size is not None:
            self._ensure_same(metadata, names, finished, replace(manifest, chunks=()), indexes)
            return finished.custom_metadata()
        indexes[IndexKind.MANIFEST] = manifest.to_bytes()
        bundle = build_bundle(encrypted(indexes, sent.cipher))
        marker = marker_of(manifest, bundle)
        if finished is None:
            self._put_bytes(names.indexes, bundle, more_follows=True)
            if not self._client.create(names.commit_marker, marker.to_bytes()):
                finished = self._stored.read_marker(names)
        if finished not in {None, marker}:
            raise self._other_content(names, f"{finished}; this one has {marker}")
        return marker.custom_metadata()

    def _ensure_same(
        self,
        metadata: RemoteLogSegmentMetadata,
        names: SegmentObjectNames,
        finished: CommitMarker,
        manifest: Manifest,
        indexes: Mapping[IndexKind, bytes],
    ) -> None:
        """Raise RemoteObjectCorruptError unless the finished encoded segment has this manifest and these indexes.

        Two encryptions of the same bytes differ, so what was encrypted is compared.
        """
        contents, there = self._stored.read_bundle(names, finished)
        known = self._stored.decrypted(metadata, names, finished, contents)
        if replace(there, chunks=(), codec=manifest.codec) != manifest or any(
            known.get(kind) != content for kind, content in indexes.items() if kind is not IndexKind.MANIFEST
        ):
            raise self._other_content(names, str(finished))

    def _other_content(self, names: SegmentObjectNames, contents: str) -> RemoteObjectCorruptError:
        return RemoteObjectCorruptError(
            f"{self._stored.source(names.commit_marker)}: another attempt finished this segment with other content: "
            f"{contents}. Nothing of this attempt is committed, and the next run copies the offsets under a new id; "
            "'tiered-storage audit --deep' checks the objects there"
        )

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int = 0, end_position: int | None = None
    ) -> Iterator[bytes]:
        """Stream a range of the segment; see StoredSegments.fetch_log_segment."""
        return self._stored.fetch_log_segment(metadata, start_position, end_position)

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, kind: IndexKind) -> bytes:
        """Return one index; see StoredSegments.fetch_index."""
        return self._stored.fetch_index(metadata, kind)

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Delete the segment's objects, the marker first."""
        for error in delete_objects_of([metadata], self._client, self.list_objects).values():
            raise error

    def delete_segments(self, segments: Sequence[RemoteLogSegmentMetadata]) -> Mapping[str, TieredStorageError]:
        """See ListableStorage."""
        if type(self).delete_log_segment_data is not ObjectRemoteStorageManager.delete_log_segment_data:
            return delete_singly(self, segments)
        return delete_objects_of(segments, self._client, self.list_objects)

    def delete_objects(self, names: Sequence[str]) -> Mapping[str, RemoteStorageError]:
        """See ListableStorage."""
        return self._client.delete_many(names)

    def fetch_bundle(self, metadata: RemoteLogSegmentMetadata) -> Mapping[IndexKind, bytes]:
        """See ListableStorage."""
        return self._stored.fetch_bundle(metadata)

    def verify(self, metadata: RemoteLogSegmentMetadata, on_bytes: Callable[[int], object] = lambda _: None) -> None:
        """See ListableStorage."""
        for piece in self.verified(metadata):
            on_bytes(len(piece))

    def verified(self, metadata: RemoteLogSegmentMetadata) -> Iterator[bytes]:
        """See ListableStorage."""
        self.fetch_bundle(metadata)
        self._stored.ensure_sent_size(metadata)
        yield from self.fetch_log_segment(metadata)

    def read_metadata(self, name: SegmentObjectName) -> RemoteLogSegmentMetadata:
        """See ListableStorage."""
        return self._stored.read_metadata(name)

    def find_copy(self, metadata: RemoteLogSegmentMetadata) -> StoredCopy | None:
        """See ListableStorage."""
        return self._stored.find_copy(metadata)

    def later_version(self, metadata: RemoteLogSegmentMetadata) -> LaterVersionError | None:
        """See ListableStorage."""
        return self._stored.later_version(metadata)

    def list_objects(self, folder: str = "", after: str = "") -> Iterator[ListedObject]:
        """See ListableStorage."""
        for found in self._client.list(folder, after):
            segment = parse_object_name(found.name)
            document = None if segment is not None else parse_partition_manifest_name(found.name)
            yield ListedObject(found.name, found.size, found.last_modified, segment, document)

    def expected_objects(self, metadata: RemoteLogSegmentMetadata) -> dict[str, int]:
        """See ListableStorage."""
        return self._stored.expected_objects(metadata)

    def time_of_a_write(self) -> int | None:
        """See ListableStorage."""
        name = f"{STORE_CLOCK}/now"
        try:
            self._put_bytes(name, b"asks for the time; safe to delete\n", more_follows=False)
        except RemoteStorageFullError:
            return None
        written_at = next((found.last_modified for found in self._client.list(STORE_CLOCK) if found.name == name), None)
        if written_at is None:
            raise RemoteStorageError(
                f"{self._stored.source(name)}: the store does not list what was just written there"
            )
        return written_at

    def place_of(self, name: str) -> str:
        """See ListableStorage."""
        return self._stored.source(name)

    def object_size(self, name: str) -> int:
        """See ListableStorage."""
        return self._client.size(name)

    def read_damaged(self, metadata: RemoteLogSegmentMetadata, position: int, size: int) -> bytes:
        """See ListableStorage."""
        return self._stored.read_damaged(metadata, position, size)

    def readable_size(self, metadata: RemoteLogSegmentMetadata) -> int:
        """See ListableStorage."""
        return self._stored.readable_size(metadata)

    def key_id(self, metadata: RemoteLogSegmentMetadata) -> str | None:
        """See ListableStorage."""
        if not self._stored.marker(metadata).is_encrypted:
            return None
        return self._encoded.wrapped_key(metadata, names_of(metadata)).key_id

    def rewrap_key(self, metadata: RemoteLogSegmentMetadata) -> None:
        """See ListableStorage."""
        self._encoded.rewrap(metadata, names_of(metadata))

    def ensure_identity(self, metadata_uuid: str, known_store_uuid: str | None) -> str:
        """See ListableStorage."""
        if self._pair is None or self._pair != (metadata_uuid, known_store_uuid):
            self._pair = metadata_uuid, ensure_store_identity(self._client, metadata_uuid, known_store_uuid)
        return self._pair[1]

    def ensure_belongs(self, metadata_uuid: str, known_store_uuid: str | None) -> None:
        """See ListableStorage."""
        identity = self.find_identity() if known_store_uuid is None else self.read_identity()
        if identity is not None and identity.store_uuid != known_store_uuid:
            identity.ensure_of(self._client.root, metadata_uuid, known_store_uuid)

    def find_identity(self) -> StoreIdentity | None:
        """See ListableStorage."""
        return find_store_identity(self._client)

    def read_identity(self) -> StoreIdentity | None:
        """See ListableStorage."""
        return read_store_identity(self._client)

    def rebind(self, metadata_uuid: str, remember: Callable[[str], None], known_store_uuid: str | None = None) -> str:
        """See ListableStorage."""
        return rebind_store(self._client, metadata_uuid, remember, known_store_uuid)

    def spend_reserve(self) -> None:
        """See ListableStorage."""
        self._reserve.may_be_spent = True

    def close(self) -> None:
        """Close the client."""
        self._client.close()

    def _put_bytes(self, name: str, content: bytes, *, more_follows: bool) -> WrittenObject:
        return self._client.put(name, len(content), iter((memoryview(content),)), more_follows=more_follows)


def _plain(written: WrittenObject) -> SentSegment:
    return SentSegment(written.size, written.crc32c, PLAIN)


def _passed(name: str, data: LogSegmentData) -> SentSegment:
    """Return `data` as an object would be, without writing one."""
    checked = CheckedChunks(name, data.size, data.chunks)
    for _ in checked:
        pass
    return _plain(checked.written())


def _manifest(metadata: RemoteLogSegmentMetadata, indexes: dict[IndexKind, bytes], sent: SentSegment) -> Manifest:
    """Return the manifest to store: the caller's, or one from `metadata`, with the checksum of the sent data."""
    given = indexes.get(IndexKind.MANIFEST)
    source = f"the manifest handed over for {metadata.segment_id}"
    manifest = Manifest.of(metadata) if given is None else Manifest.parse(given, source)
    manifest.check_against(metadata, source)
    if manifest.data_crc32c not in {None, sent.crc32c}:
        raise RemoteObjectCorruptError(
            f"{metadata.segment_id}: the bytes sent have CRC-32C {sent.crc32c:08x}, the manifest has "
            f"{manifest.data_crc32c:08x}: they changed on the way"
        )
    return replace(manifest, data_crc32c=sent.crc32c, codec=sent.encoding.codec, chunks=sent.chunks)
