"""AES-256-GCM under a segment's own data key.

Each copy of a segment has a new random key, so nonces can count: no two plaintexts under one key share a nonce. A nonce
is 12 bytes: 0 for a chunk or 1 for an index, three zeros, then the chunk's number or the index's kind (uint64).

The associated data bind each chunk to cluster, topic id, partition and segment id, to its number and position, and to
the size of the segment: a chunk of another segment, at another position, or of a shortened segment does not decrypt.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from tiered_storage.errors import REPAIR_ADVICE, RemoteObjectCorruptError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    from tiered_storage.remote_log.model import RemoteLogSegmentId

KEY_BYTES = 32
TAG_BYTES = 16
_OF_CHUNKS, _OF_INDEXES = 0, 1
_NONCE = struct.Struct(">BxxxQ")
_CHUNK = struct.Struct(">BIIQQ")
_INDEX = struct.Struct(">I")
_LENGTH = struct.Struct(">H")


def new_data_key() -> bytes:
    """Return the key for a new copy of a segment."""
    return os.urandom(KEY_BYTES)


def bound_to(segment_id: RemoteLogSegmentId) -> bytes:
    """Return the part of the associated data that names the segment."""
    partition = segment_id.topic_id_partition
    parts = (partition.cluster_id, partition.topic_id, str(partition.partition), segment_id.id)
    return b"".join(_LENGTH.pack(len(part.encode())) + part.encode() for part in parts)


@dataclass(frozen=True, slots=True)
class ChunkIdentity:
    """What a chunk is bound to besides its segment: `segment_size` is that of the log, in bytes, as is `position`."""

    flags: int
    number: int
    length: int
    position: int
    segment_size: int


@dataclass(frozen=True, slots=True)
class SegmentCipher:
    """Encrypts and decrypts the chunks and indexes of one segment."""

    _binding: bytes
    _cipher: AESGCM = field(repr=False)

    @classmethod
    def of(cls, segment_id: RemoteLogSegmentId, data_key: bytes) -> Self:
        """Return the cipher of a segment under its `data_key`, KEY_BYTES long."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return cls(bound_to(segment_id), AESGCM(data_key))

    def encrypt_chunk(self, content: bytes | memoryview, chunk: ChunkIdentity) -> bytes:
        """Return the encrypted bytes, TAG_BYTES longer."""
        return self._cipher.encrypt(_NONCE.pack(_OF_CHUNKS, chunk.number), content, self._chunk_data(chunk))

    def decrypt_chunk(self, content: bytes | memoryview, chunk: ChunkIdentity, source: str) -> bytes:
        """Return the bytes of a chunk. Raises RemoteObjectCorruptError, naming `source`."""
        nonce = _NONCE.pack(_OF_CHUNKS, chunk.number)
        return self._decrypted(nonce, content, self._chunk_data(chunk), f"{source}: chunk {chunk.number}")

    def encrypt_index(self, content: bytes, kind: int) -> bytes:
        """Return the encrypted index."""
        return self._cipher.encrypt(_NONCE.pack(_OF_INDEXES, kind), content, self._index_data(kind))

    def decrypt_index(self, content: bytes, kind: int, source: str) -> bytes:
        """Return the index. Raises RemoteObjectCorruptError, naming `source`."""
        nonce = _NONCE.pack(_OF_INDEXES, kind)
        try:
            return self._decrypted(nonce, content, self._index_data(kind), f"{source}: index {kind}")
        except RemoteObjectCorruptError as error:
            raise RemoteObjectCorruptError(f"{error}; {REPAIR_ADVICE}") from None

    def _chunk_data(self, chunk: ChunkIdentity) -> bytes:
        place = _CHUNK.pack(chunk.flags, chunk.number, chunk.length, chunk.position, chunk.segment_size)
        return b"chunk" + self._binding + place

    def _index_data(self, kind: int) -> bytes:
        return b"index" + self._binding + _INDEX.pack(kind)

    def _decrypted(self, nonce: bytes, content: bytes | memoryview, data: bytes, source: str) -> bytes:
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(nonce, content, data)
        except (InvalidTag, ValueError):
            raise RemoteObjectCorruptError(
                f"{source}: does not decrypt: its authentication tag is wrong. It was changed, truncated, or moved "
                "here from another position or segment"
            ) from None
