"""The layout of Aiven's plugin for Kafka's tiered storage: chunks that may be compressed and encrypted.

    {prefix}{topic}-{topic id}/{partition}/{base offset, 20 digits}-{segment id}.log
                                                                               .indexes
                                                                               .rsm-manifest

The root of rsm.config.url is that of the plugin's storage, with or without its key.prefix: the rest of that goes into
rsm.config.key.prefix. A chunk is decrypted (AES-256-GCM: 12 bytes of nonce, the bytes, 16 of tag), then decompressed
(zstd). Each index is encrypted as one chunk, and never compressed. A data key is wrapped by RSA with OAEP and SHA3-512;
rsm.config.encryption.key.pairs.ID.private.key.file names the private key of the pair ID, in PEM.

Source: github.com/Aiven-Open/tiered-storage-for-apache-kafka, its documentation and formats; see aiven_manifest.py.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from typing import Generic, Self, TypeVar

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tiered_storage.errors import (
    RemoteObjectCorruptError,
    RemoteObjectNotFoundError,
)
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.native.aiven_keys import PrivateKeys
from tiered_storage.remote_log.native.aiven_manifest import AivenChunk, AivenManifest, name_fields
from tiered_storage.remote_log.native.read_only_storage import NativeRemoteStorage
from tiered_storage.remote_log.native.segment_files import PIECE_BYTES, FoundObject
from tiered_storage.remote_log.storage.clients.object_client import ObjectClient
from tiered_storage.remote_log.storage.clients.opening import open_object_client
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind
from tiered_storage.remote_log.storage.transforms.zstd import decompress

LOG, INDEXES, MANIFEST = "log", "indexes", "rsm-manifest"
KEY_PREFIX = "key.prefix"

_NONCE_BYTES = 12
_KEPT_MANIFESTS = 1_000
_KEPT_CHUNKS = 8
_NAME = re.compile(
    rf"(?P<topic>[^/]+)-[\w-]{{22}}/(?P<partition>[0-9]+)/[0-9]{{20}}-(?P<id>[\w-]{{22}})\.({LOG}|{INDEXES}|{re.escape(MANIFEST)})"
)
_Kept = TypeVar("_Kept")


class _Recent(Generic[_Kept]):
    """Keeps the last `most` values. Thread-safe; two threads may make the same one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], _Kept]) -> _Kept:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        made = make()
        with self._lock:
            self._kept[key] = made
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return made

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()


class AivenFiles:
    """See SegmentFiles; `client` reads the objects, and `close` closes it."""

    def __init__(self, client: ObjectClient, keys: PrivateKeys, prefix: str = "") -> None:
        """Read what is below the root of `client`, where names begin with `prefix`."""
        self._client, self._keys, self._prefix = client, keys, prefix
        self._manifests: _Recent[AivenManifest] = _Recent(_KEPT_MANIFESTS)
        self._data_keys: _Recent[bytes] = _Recent(_KEPT_MANIFESTS)
        self._chunks: _Recent[bytes] = _Recent(_KEPT_CHUNKS)

    @property
    def root(self) -> str:
        """See SegmentFiles."""
        return self._client.root

    def reads_ranges_cheaply(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Return whether the segment's chunks are as Kafka wrote them."""
        return self.manifest(segment).is_plain

    def log_name(self, segment: RemoteLogSegmentMetadata) -> str:
        """See SegmentFiles."""
        return self._name(segment, LOG)

    def manifest(self, segment: RemoteLogSegmentMetadata) -> AivenManifest:
        """Return the segment's manifest. Raises RemoteObjectNotFoundError, RemoteObjectCorruptError."""
        return self._manifests.get(segment.segment_id.id, lambda: self._read_manifest(segment))

    def read_log(self, segment: RemoteLogSegmentMetadata, start: int, end: int) -> Iterator[bytes]:
        """See SegmentFiles."""
        manifest, name = self.manifest(segment), self.log_name(segment)
        if manifest.is_plain:
            for position in range(start, end, PIECE_BYTES):
                yield self._client.get_range(name, position, min(PIECE_BYTES, end - position))
            return
        for chunk in manifest.chunks(start, end):
            key = segment.segment_id.id, chunk.number
            content = self._chunks.get(key, lambda chunk=chunk: self._read_chunk(segment, chunk))  # type: ignore[misc]
            yield content[max(0, start - chunk.position) : end - chunk.position]

    def index(self, segment: RemoteLogSegmentMetadata, kind: IndexKind) -> bytes:
        """See SegmentFiles."""
        manifest, name = self.manifest(segment), self._name(segment, INDEXES)
        place = manifest.indexes.get(kind)
        if place is None:
            raise RemoteObjectNotFoundError(f"{self.root}/{name}: the manifest has no index {kind.name}")
        position, size = place
        if size == 0:
            return b""
        try:
            raw = self._client.get_range(name, position, size)
        except RemoteObjectNotFoundError as error:
            self._client.size(self.log_name(segment))  # not found either: brokers have deleted the segment
            # "Not found" would mean that Kafka wrote no such index: that nothing was aborted.
            raise RemoteObjectCorruptError(
                f"{self.root}/{name} is lost: by the manifest it has the index {kind.name}: restore it from a backup"
            ) from error
        return self._decrypted(segment, raw, f"{self.root}/{name}: {kind.name}")

    def expected_objects(self, segment: RemoteLogSegmentMetadata) -> Mapping[str, int | None]:
        """See SegmentFiles. Raises as `manifest`."""
        manifest = self.manifest(segment)
        return {
            self.log_name(segment): manifest.stored_bytes,
            self._name(segment, INDEXES): manifest.indexes_bytes,
            self._name(segment, MANIFEST): None,
        }

    def object_names(self, segment: RemoteLogSegmentMetadata) -> Collection[str]:
        """See SegmentFiles."""
        return [self._name(segment, suffix) for suffix in (LOG, INDEXES, MANIFEST)]

    def list_objects(self) -> Iterator[FoundObject]:
        """See SegmentFiles."""
        for found in self._client.list():
            yield FoundObject.of(found, _NAME.fullmatch(found.name.removeprefix(self._prefix)))

    def object_size(self, name: str) -> int:
        """See SegmentFiles."""
        return self._client.size(name)

    def forget(self, segment: RemoteLogSegmentMetadata) -> None:  # noqa: ARG002 -- SegmentFiles'
        """See SegmentFiles. Chunks are few: those of other segments are read again."""
        self._chunks.clear()

    def close(self) -> None:
        """Close the client."""
        self._client.close()

    def _name(self, segment: RemoteLogSegmentMetadata, suffix: str) -> str:
        prefix, main = name_fields(segment.custom_metadata)
        partition = segment.topic_id_partition
        usual = (
            f"{partition.topic}-{partition.topic_id}/{partition.partition}/"
            f"{segment.start_offset:020d}-{segment.segment_id.id}"
        )
        return f"{self._prefix if prefix is None else prefix}{usual if main is None else main}.{suffix}"

    def _read_manifest(self, segment: RemoteLogSegmentMetadata) -> AivenManifest:
        name = self._name(segment, MANIFEST)
        source = f"{self.root}/{name}"
        manifest = AivenManifest.parse(self._client.get_range(name, 0, self._client.size(name)), source)
        if manifest.log_bytes != segment.size:
            raise RemoteObjectCorruptError(
                f"{source}: the manifest is of a log of {manifest.log_bytes} bytes, the segment has {segment.size}"
            )
        return manifest

    def _read_chunk(self, segment: RemoteLogSegmentMetadata, chunk: AivenChunk) -> bytes:
        name = self.log_name(segment)
        source = f"{self.root}/{name}: chunk {chunk.number}"
        raw = self._client.get_range(name, chunk.stored_position, chunk.stored_length)
        content = self._decrypted(segment, raw, source)
        if self.manifest(segment).is_compressed:
            content = decompress(content, chunk.length, source)
        if len(content) != chunk.length:
            raise RemoteObjectCorruptError(f"{source}: it has {len(content)} bytes, not {chunk.length}")
        return content

    def _decrypted(self, segment: RemoteLogSegmentMetadata, raw: bytes, source: str) -> bytes:
        key = self.manifest(segment).key
        if key is None:
            return raw

        data_key = self._data_keys.get(segment.segment_id.id, lambda: self._keys.unwrap(key, source))
        try:
            return AESGCM(data_key).decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], key.associated_data)
        except (InvalidTag, ValueError):
            raise RemoteObjectCorruptError(f"{source}: does not decrypt: it was changed or truncated") from None


class AivenRemoteStorage(NativeRemoteStorage):
    """Reads the objects that Aiven's plugin wrote; the class that the settings name."""

    @classmethod
    def open(cls, url: str, options: ObjectStoreOptions) -> Self:
        """Open the store at `url` with the plugin's options in `options.configs`. Raises ConfigurationError."""
        configs = options.configs
        client = open_object_client(url, options)
        return cls(AivenFiles(client, PrivateKeys.of(configs), configs.get(KEY_PREFIX, "")))
