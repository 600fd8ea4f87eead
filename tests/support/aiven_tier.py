"""A writer of Aiven's layout, after its public description and independent of what reads it in the product."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import zstandard
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from support.native_tier import NativeTier, a_native_tier, parts_of
from tiered_storage.kafka_log.files.log_segment import LogSegment
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.native.aiven import AivenRemoteStorage

KEY_PAIR = "2026-11"
_INDEXES = {
    "offset": "index",
    "timestamp": "timeindex",
    "producerSnapshot": "snapshot",
    "leaderEpoch": "leader_epoch_checkpoint",
    "transaction": "txnindex",
}


@dataclass(frozen=True)
class AivenWriter:
    """Writes segments as the plugin does with these settings."""

    chunk_bytes: int = 300
    compresses: bool = False
    encrypts: bool = False
    prefix: str = "tiered/"
    names_in_metadata: bool = True

    def __call__(self, tier: NativeTier, metadata: RemoteLogSegmentMetadata, segment: LogSegment) -> bytes | None:
        """Write the three objects of a segment; return its custom metadata."""
        parts = parts_of(metadata, segment)
        data_key, aad = os.urandom(32), os.urandom(32)
        log = parts["log"]
        chunks = [
            self._transformed(log[at : at + self.chunk_bytes], data_key, aad)
            for at in range(0, len(log), self.chunk_bytes)
        ]
        indexes, places = self._indexes(parts, data_key, aad)
        manifest: dict[str, Any] = {
            "version": "1",
            "chunkIndex": self._chunk_index(len(log), [len(chunk) for chunk in chunks]),
            "segmentIndexes": places,
            "compression": self.compresses,
        }
        if self.encrypts:
            wrapped = wrap(data_key)
            key = f"{KEY_PAIR}:{base64.b64encode(wrapped).decode()}"
            manifest["encryption"] = {"dataKey": key, "aad": base64.b64encode(aad).decode()}
        partition = metadata.topic_id_partition
        main = (
            f"{partition.topic}-{partition.topic_id}/{partition.partition}/"
            f"{metadata.start_offset:020d}-{metadata.segment_id.id}"
        )
        for suffix, content in (
            ("log", b"".join(chunks)),
            ("indexes", indexes),
            ("rsm-manifest", json.dumps(manifest).encode()),
        ):
            path = tier.remote / f"{self.prefix}{main}.{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return custom_metadata(self.prefix, main) if self.names_in_metadata else None

    def _transformed(self, chunk: bytes, data_key: bytes, aad: bytes) -> bytes:
        if self.compresses:
            chunk = zstandard.ZstdCompressor().compress(chunk)
        return self._encrypted(chunk, data_key, aad)

    def _encrypted(self, chunk: bytes, data_key: bytes, aad: bytes) -> bytes:
        if not self.encrypts:
            return chunk
        nonce = os.urandom(12)
        return nonce + AESGCM(data_key).encrypt(nonce, chunk, aad)

    def _indexes(self, parts: dict[str, bytes], data_key: bytes, aad: bytes) -> tuple[bytes, dict[str, Any]]:
        written, places = b"", dict[str, Any]()
        for name, suffix in _INDEXES.items():
            if suffix not in parts:
                places[name] = None
                continue
            content = self._encrypted(parts[suffix], data_key, aad) if parts[suffix] else b""
            places[name] = {"position": len(written), "size": len(content)}
            written += content
        return written, places

    def _chunk_index(self, size: int, stored: list[int]) -> dict[str, Any]:
        common = {"originalChunkSize": self.chunk_bytes, "originalFileSize": size}
        if self.compresses:
            frame = zstandard.ZstdCompressor().compress(encoded_sizes(stored))
            return {"type": "variable", **common, "transformedChunks": base64.b64encode(frame).decode()}
        return {
            "type": "fixed",
            **common,
            "transformedChunkSize": stored[0],
            "finalTransformedChunkSize": stored[-1],
        }


def an_aiven_tier(root: Path, writer: AivenWriter, closed: int = 3) -> NativeTier:
    """Make a tier below `root` that `writer` wrote, and settings that read it."""
    tier = a_native_tier(root, closed, store=writer)
    storage = f"{AivenRemoteStorage.__module__}.{AivenRemoteStorage.__name__}"
    tier.files.properties["remote.log.storage.manager.class.name"] = storage
    if not writer.names_in_metadata:
        tier.files.properties["rsm.config.key.prefix"] = writer.prefix
    if writer.encrypts:
        key_file = root / "private.pem"
        key_file.write_bytes(private_key().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        tier.files.properties[f"rsm.config.encryption.key.pairs.{KEY_PAIR}.private.key.file"] = str(key_file)
    return tier


@cache
def private_key() -> rsa.RSAPrivateKey:
    """Return the private key of KEY_PAIR."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def wrap(data_key: bytes) -> bytes:
    """Wrap a data key for KEY_PAIR as the plugin does: RFC 8017, RSAES-OAEP-ENCRYPT with SHA3-512."""
    public = private_key().public_key().public_numbers()
    size, seed = public.n.bit_length() // 8, os.urandom(64)
    empty = hashlib.sha3_512(b"").digest()
    block = empty + bytes(size - len(data_key) - 2 * 64 - 2) + b"\x01" + data_key
    masked = _masked(block, seed)
    padded = b"\0" + _masked(seed, masked) + masked
    return pow(int.from_bytes(padded, "big"), public.e, public.n).to_bytes(size, "big")


def _masked(content: bytes, seed: bytes) -> bytes:
    stream = b"".join(hashlib.sha3_512(seed + struct.pack(">I", i)).digest() for i in range(1 + len(content) // 64))
    return bytes(a ^ b for a, b in zip(content, stream, strict=False))


def encoded_sizes(sizes: list[int]) -> bytes:
    """Return sizes of chunks as the plugin encodes them, before compression."""
    if len(sizes) < 2:
        return struct.pack(f">{1 + len(sizes)}i", len(sizes), *sizes)
    base = min(sizes[:-1])
    width = max(1, (max(sizes[:-1]) - base).bit_length() + 7 >> 3)
    apart = b"".join((size - base).to_bytes(width, "big") for size in sizes[:-1])
    return struct.pack(">iib", len(sizes), base, width) + apart + struct.pack(">i", sizes[-1])


def custom_metadata(prefix: str, main: str) -> bytes:
    """Return custom metadata with the size, the prefix and the main part of the names; each shorter than 126 bytes."""
    fields = {0: b"\xac\x02", 1: bytes([len(prefix) + 1]) + prefix.encode(), 2: bytes([len(main) + 1]) + main.encode()}
    return bytes([len(fields)]) + b"".join(bytes([tag, len(raw)]) + raw for tag, raw in fields.items())
