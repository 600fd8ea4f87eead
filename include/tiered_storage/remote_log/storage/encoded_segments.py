"""Segments whose data object holds encoded chunks: written, found and decoded here, beside the plain ones."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from tiered_storage.errors import (
    REPAIR_ADVICE,
    EncryptionKeyError,
    RemoteObjectCorruptError,
    RemoteObjectNotFoundError,
    RemoteStorageError,
)
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.storage.clients.object_client import ObjectClient, data_range
from tiered_storage.remote_log.storage.commit_marker import CommitMarker
from tiered_storage.remote_log.storage.documents.manifest import Manifest
from tiered_storage.remote_log.storage.documents.object_names import SegmentObjectNames
from tiered_storage.remote_log.storage.documents.segment_key import OBJECT_BYTES, encode_segment_key, parse_segment_key
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind, LogSegmentData
from tiered_storage.remote_log.storage.transforms.aes_gcm import SegmentCipher, new_data_key
from tiered_storage.remote_log.storage.transforms.aws_kms import KmsClients, usual_clients
from tiered_storage.remote_log.storage.transforms.chain import ChunkCodec, EncodedChunks, most_stored_bytes
from tiered_storage.remote_log.storage.transforms.encoding import (
    COMPRESSED,
    ENCRYPTED,
    HEAD_BYTES,
    MAGIC,
    ChunkTable,
    EncodedChunk,
    Encoding,
    FrameHead,
    PlacedChunk,
)
from tiered_storage.remote_log.storage.transforms.key_ring import KeyRing, WrappedKey

REQUEST_BYTES = 4 << 20
"""Neighbouring chunks are read together up to this size."""
PIECE_BYTES = 4 << 20
_MOST_KEPT_CHUNKS = 100_000
"""Chunks of all cached layouts, some 250 bytes each: those of a hundred segments of 1 GiB."""
_MOST_KEPT_CIPHERS = 10_000
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class SentSegment:
    """A segment as it was sent: bytes and CRC-32C of the log, and what its manifest has of the encoding."""

    size: int
    crc32c: int
    encoding: Encoding
    chunks: tuple[EncodedChunk, ...] = ()
    cipher: SegmentCipher | None = None


@dataclass(frozen=True, slots=True)
class SegmentLayout:
    """Where an encoded segment's chunks are, and how to decode them."""

    name: str
    codec: ChunkCodec
    table: ChunkTable


class _LastUsed(Generic[_Value]):
    """The values that were used last, by segment id: at least one, together of at most `most` `weight`. Thread-safe."""

    def __init__(self, most: int, weight: Callable[[_Value], int]) -> None:
        self._most = most
        self._weight = weight
        self._kept: OrderedDict[str, _Value] = OrderedDict()
        self._weighs = 0
        self._lock = threading.Lock()

    def get(self, segment_id: str) -> _Value | None:
        with self._lock:
            if segment_id in self._kept:
                self._kept.move_to_end(segment_id)
            return self._kept.get(segment_id)

    def put(self, segment_id: str, value: _Value) -> None:
        with self._lock:
            if segment_id in self._kept:
                self._weighs -= self._weight(self._kept.pop(segment_id))
            self._kept[segment_id] = value
            self._weighs += self._weight(value)
            while self._weighs > self._most and len(self._kept) > 1:
                self._weighs -= self._weight(self._kept.popitem(last=False)[1])


class EncodedSegments:
    """The encoded segments in the store of `client`, with the keys of `keys`, some of them in `kms`. Thread-safe."""

    def __init__(self, client: ObjectClient, keys: KeyRing, kms: KmsClients = usual_clients) -> None:
        self._client = client
        self._keys = keys
        self._kms = kms
        self._layouts = _LastUsed[SegmentLayout](_MOST_KEPT_CHUNKS, lambda layout: len(layout.table.chunks))
        self._ciphers = _LastUsed[SegmentCipher](_MOST_KEPT_CIPHERS, lambda _: 1)

    def put(self, metadata: RemoteLogSegmentMetadata, names: SegmentObjectNames, data: LogSegmentData) -> SentSegment:
        """Write the data object, and before it the key of an encrypted one.

        The key is created exclusively, since each attempt has its own data key: an attempt that finds another's writes
        nothing, so neither can make the other's objects unreadable. It stays if this attempt fails. Raises
        RemoteStorageError for that, and EncryptionKeyError before anything is written.
        """
        cipher = self._claimed(metadata, names) if data.encoding.encryption else None
        codec = ChunkCodec(data.encoding, data.size, cipher)
        encoded = EncodedChunks(names.data, codec, data.chunks, data.ends)
        most = most_stored_bytes(data.size)
        self._client.put(names.data, most, iter(encoded), more_follows=True, at_most=True)
        return SentSegment(encoded.size, encoded.crc32c, data.encoding, encoded.table.chunks, cipher)

    def _claimed(self, metadata: RemoteLogSegmentMetadata, names: SegmentObjectNames) -> SegmentCipher:
        """Create the segment's `.key` with a new data key; return the cipher of that key."""
        segment_id, data_key = metadata.segment_id, new_data_key()
        key = encode_segment_key(segment_id.id, self._keys.wrap(data_key, str(segment_id), self._kms))
        # A store may have created it although its answer was lost and the request repeated.
        if not self._client.create(names.key, key) and self._stored_key(names) != key:
            raise RemoteStorageError(
                f"{self._source(names.key)}: another attempt has begun to copy this segment under its own data key. "
                "Nothing of this attempt is stored; the next run copies the offsets under a new id"
            )
        return SegmentCipher.of(segment_id, data_key)

    def _stored_key(self, names: SegmentObjectNames) -> bytes:
        return self._client.get_range(names.key, 0, min(self._client.size(names.key), OBJECT_BYTES + 1))

    def wrapped_key(self, metadata: RemoteLogSegmentMetadata, names: SegmentObjectNames) -> WrappedKey:
        """Return the segment's data key as it is stored."""
        return parse_segment_key(self._stored_key(names), metadata.segment_id.id, self._source(names.key))

    def rewrap(self, metadata: RemoteLogSegmentMetadata, names: SegmentObjectNames) -> None:
        """Wrap the segment's data key by the active key of the key ring, replacing its `.key` in one step.

        Raises EncryptionKeyError with the `.key` unchanged.
        """
        segment = str(metadata.segment_id)
        data_key = self._unwrapped(metadata, names)
        content = encode_segment_key(metadata.segment_id.id, self._keys.wrap(data_key, segment, self._kms))
        self._client.put(names.key, len(content), iter((memoryview(content),)))

    def cipher(self, metadata: RemoteLogSegmentMetadata, names: SegmentObjectNames) -> SegmentCipher:
        """Return the cipher of an encrypted segment. Raises EncryptionKeyError."""
        segment_id = metadata.segment_id
        known = self._ciphers.get(segment_id.id)
        if known is None:
            known = SegmentCipher.of(segment_id, self._unwrapped(metadata, names))
            self._ciphers.put(segment_id.id, known)
        return known

    def _unwrapped(self, metadata: RemoteLogSegmentMetadata, names: SegmentObjectNames) -> bytes:
        """Return the segment's data key."""
        wrapped, segment = self.wrapped_key(metadata, names), str(metadata.segment_id)
        try:
            return self._keys.unwrap(wrapped, segment, self._kms)
        except EncryptionKeyError:
            # A process may run for months, and keys rotate meanwhile.
            now = self._keys.read_again()
            if now == self._keys:
                raise
            self._keys = now
            return now.unwrap(wrapped, segment, self._kms)

    def layout(
        self,
        metadata: RemoteLogSegmentMetadata,
        names: SegmentObjectNames,
        marker: CommitMarker | None,
        manifest: Callable[[], Manifest],
    ) -> SegmentLayout:
        """Return the layout of an encoded segment: by its `manifest`, or by its chunks' heads if that is lost.

        Raises RemoteObjectCorruptError if `marker` says that it is encrypted and they do not: whoever can write to the
        store could otherwise replace it by bytes of their own, with every checksum right.
        """
        known = self._layouts.get(metadata.segment_id.id)
        if known is not None:
            return known
        try:
            parsed = manifest()
            encoding, table, size = parsed.encoding, ChunkTable.of(parsed.chunks), parsed.size
        except (RemoteObjectNotFoundError, RemoteObjectCorruptError):
            encoding, table = self._read_heads(names.data)
            # Of a copy that was never committed, only the chunks say how much of the log there is.
            size = table.size if metadata.custom_metadata is None else metadata.size
        if marker is not None and marker.is_encrypted and not encoding.encryption:
            raise RemoteObjectCorruptError(
                f"{self._source(names.data)}: its chunks are not encrypted, but those that were sent were: it was "
                f"replaced; {REPAIR_ADVICE}"
            )
        cipher = self.cipher(metadata, names) if encoding.encryption else None
        layout = SegmentLayout(names.data, ChunkCodec(encoding, size, cipher), table)
        self._layouts.put(metadata.segment_id.id, layout)
        return layout

    def is_encoded(self, name: str) -> bool:
        """Return whether the data object `name` begins with a chunk's head. False if there is no such object."""
        try:
            return self._client.get_range(name, 0, len(MAGIC)) == MAGIC
        except (RemoteObjectNotFoundError, RemoteObjectCorruptError):
            return False

    def read(self, layout: SegmentLayout, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes of the log from `start` (inclusive) to `end` (exclusive), each chunk checked."""
        together: list[PlacedChunk] = []
        for placed in layout.table.within(start, end):
            if together and placed.place + placed.chunk.stored - together[0].place > REQUEST_BYTES:
                yield from self._decoded(layout, together, start, end)
                together = []
            together.append(placed)
        if together:
            yield from self._decoded(layout, together, start, end)

    def read_damaged(self, layout: SegmentLayout, start: int, end: int) -> bytes:
        """Return those bytes of the log, with zeros for each chunk that cannot be decoded."""
        found = bytearray()
        for placed in layout.table.within(start, end):
            try:
                content = b"".join(self._decoded(layout, [placed], start, end))
            except RemoteObjectCorruptError:
                content = bytes(min(placed.end, end) - max(placed.position, start))
            found += content
        return bytes(found)

    def _decoded(self, layout: SegmentLayout, together: list[PlacedChunk], start: int, end: int) -> Iterator[bytes]:
        place, last = together[0].place, together[-1]
        frames = memoryview(data_range(self._client, layout.name, place, last.place + last.chunk.stored - place))
        for placed in together:
            frame = frames[placed.place - place :][: placed.chunk.stored]
            content = layout.codec.decode(frame, placed, self._source(layout.name))
            wanted = content[max(start - placed.position, 0) : end - placed.position]
            for first in range(0, len(wanted), PIECE_BYTES):
                yield wanted[first : first + PIECE_BYTES] if len(wanted) > PIECE_BYTES else wanted

    def _read_heads(self, name: str) -> tuple[Encoding, ChunkTable]:
        """Return encoding and chunks of the data object by the heads in it alone, up to the first damaged one."""
        size, place, flags = self._client.size(name), 0, 0
        chunks: list[EncodedChunk] = []
        while place < size:
            raw = self._client.get_range(name, place, min(HEAD_BYTES, size - place))
            try:
                head = FrameHead.parse(raw, self._source(name), place)
            except RemoteObjectCorruptError:
                break
            if head.number != len(chunks) or place + head.chunk.stored > size:
                break
            flags |= head.flags
            chunks.append(head.chunk)
            place += head.chunk.stored
        return Encoding(bool(flags & COMPRESSED), bool(flags & ENCRYPTED)), ChunkTable.of(chunks)

    def _source(self, name: str) -> str:
        return f"{self._client.root}/{name}"


def encrypted(contents: Mapping[IndexKind, bytes], cipher: SegmentCipher | None) -> dict[IndexKind, bytes]:
    """Return the indexes as they are stored: the manifest is readable without a key."""
    if cipher is None:
        return dict(contents)
    return {
        kind: content if kind is IndexKind.MANIFEST else cipher.encrypt_index(content, kind)
        for kind, content in contents.items()
    }


class DecryptedContents(Mapping[IndexKind, bytes]):
    """The `stored` indexes of an encrypted segment, each decrypted when it is asked for: the manifest needs no key."""

    def __init__(self, stored: Mapping[IndexKind, bytes], cipher: Callable[[], SegmentCipher], source: str) -> None:
        self._stored = stored
        self._cipher = cipher
        self._source = source

    def __getitem__(self, kind: IndexKind) -> bytes:
        """Return one index. Raises EncryptionKeyError and RemoteObjectCorruptError."""
        content = self._stored[kind]
        return content if kind is IndexKind.MANIFEST else self._cipher().decrypt_index(content, kind, self._source)

    def __iter__(self) -> Iterator[IndexKind]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)
