"""The `.key` object of an encrypted segment: its data key, wrapped by a key of the key ring.

A JSON object: format_version (1), segment_id, key_id, algorithm (see WrapAlgorithm), wrapped (base64), and
wrapped_crc32c (8 hex digits), filled up with spaces to OBJECT_BYTES, so that its size in a listing shows whether it is
whole.

It is the only object of a segment that is ever replaced: a rotation of keys wraps the same data key again.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass

from tiered_storage.errors import ConfigurationError, RemoteObjectCorruptError
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.remote_log.storage.documents.json_document import Checksum, JsonDocument, Text, encode_document
from tiered_storage.remote_log.storage.transforms.key_ring import WrapAlgorithm, WrappedKey

FORMAT_VERSION = 1
OBJECT_BYTES = 4096


@dataclass(frozen=True, slots=True)
class _SegmentKey:
    segment_id: Text
    key_id: Text
    algorithm: WrapAlgorithm
    wrapped: str
    wrapped_crc32c: Checksum


def encode_segment_key(segment_id: str, key: WrappedKey) -> bytes:
    """Return the content of the object. Raises ConfigurationError if the wrapped key is too long for it."""
    wrapped = base64.b64encode(key.wrapped).decode()
    document = encode_document(
        FORMAT_VERSION, _SegmentKey(segment_id, key.key_id, key.algorithm, wrapped, crc32c(key.wrapped))
    )
    if len(document) > OBJECT_BYTES:
        raise ConfigurationError(f"key {key.key_id} makes wrapped keys of {len(key.wrapped)} bytes: use a smaller key")
    return document.rstrip(b"\n").ljust(OBJECT_BYTES - 1) + b"\n"


def parse_segment_key(raw: bytes, segment_id: str, source: str) -> WrappedKey:
    """Read the key of a segment. Raises RemoteObjectCorruptError and LaterVersionError."""
    found = JsonDocument(raw, source, FORMAT_VERSION).read(_SegmentKey)
    if len(raw) != OBJECT_BYTES or found.segment_id != segment_id:
        raise RemoteObjectCorruptError(f"{source}: it is not the key of segment {segment_id}")
    try:
        wrapped = base64.b64decode(found.wrapped, validate=True)
    except ValueError:
        raise RemoteObjectCorruptError(f"{source}: its wrapped key is damaged") from None
    if crc32c(wrapped) != found.wrapped_crc32c:
        raise RemoteObjectCorruptError(f"{source}: the wrapped key is not the one that was sent")
    return WrappedKey(found.key_id, found.algorithm, wrapped)
