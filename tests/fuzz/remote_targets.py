"""Targets: the small formats of the remote log."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from fuzz.target import SOURCE, Target, value_or_error
from tiered_storage.errors import EncryptionKeyError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.remote_log.indexes.remote_index_lookup import RemoteIndexes
from tiered_storage.remote_log.indexes.remote_log_index import RemoteLogIndexEntry, iterate_entries
from tiered_storage.remote_log.model import RemoteLogSegmentId, TopicIdPartition
from tiered_storage.remote_log.storage.commit_marker import CommitMarker
from tiered_storage.remote_log.storage.documents.manifest import Manifest
from tiered_storage.remote_log.storage.documents.segment_key import (
    OBJECT_BYTES,
    encode_segment_key,
    parse_segment_key,
)
from tiered_storage.remote_log.storage.index_bundle import BundleHead, build_bundle, parse_bundle
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind
from tiered_storage.remote_log.storage.transforms.aes_gcm import KEY_BYTES, SegmentCipher
from tiered_storage.remote_log.storage.transforms.chain import ChunkCodec
from tiered_storage.remote_log.storage.transforms.encoding import (
    ENCODINGS,
    HEAD_BYTES,
    ChunkTable,
    EncodedChunk,
    Encoding,
    FrameHead,
)
from tiered_storage.remote_log.storage.transforms.key_ring import Key, KeyRing, WrapAlgorithm, WrappedKey

_PARTITION = TopicIdPartition("MkU3OEVBNTcwNTJENDM2Qg", "cxfmXdFdRF2-6WITmvYjdA", 0, "orders")
_SEGMENT_ID = RemoteLogSegmentId(_PARTITION, "xsMTrxMGRlSGrhb3Dmq0Yg")
_CHUNKS = [
    RemoteLogIndexEntry(1000, 1004, 5, 9, "orders/0.log", 0, 400),
    RemoteLogIndexEntry(1005, 1009, -1, 7, "orders/0.log", 400, 61),
    RemoteLogIndexEntry(1012, 1012, 9, 12, "größer.log", 461, 100),
]


def _read_remote_log_index(content: bytes) -> None:
    """The index as it is, and with the checksum of each entry set right."""
    for raw in (content, _with_checksums(content)):
        entries = value_or_error(lambda raw=raw: list(iterate_entries(raw, SOURCE)), size=len(raw))  # type: ignore[misc]
        if isinstance(entries, list):
            assert b"".join(entry.to_bytes() for entry in entries) == raw


def _with_checksums(content: bytes) -> bytes:
    raw = bytearray(content)
    position = 0
    while position + 8 <= len(raw):
        end = position + int.from_bytes(raw[position + 2 : position + 4], "big")
        if not position + 8 < end <= len(raw):
            break
        raw[position + 4 : position + 8] = zlib.crc32(raw[position + 8 : end]).to_bytes(4, "big")
        position = end
    return bytes(raw)


def _read_remote_indexes(content: bytes) -> None:
    """The three indexes, one after the other; the first two begin with their lengths."""
    if len(content) < 2:
        return
    first, second = content[0] * 8, content[1] * 8
    parts = content[2 : 2 + first], content[2 + first : 2 + first + second], content[2 + first + second :]
    by_offset, by_time, log_index = parts[0], parts[1], _with_checksums(parts[2])
    found = value_or_error(lambda: RemoteIndexes.parse(SOURCE, 1000, log_index, by_offset, by_time))
    if isinstance(found, RemoteIndexes):
        for offset in (0, 1000, 1007, 1 << 62):
            value_or_error(lambda offset=offset: found.chunk_for_offset(offset))  # type: ignore[misc]
            value_or_error(lambda offset=offset: found.chunk_for_timestamp(offset))  # type: ignore[misc]


def _read_bundle(content: bytes) -> None:
    """The bundle as it is, and with the checksums of its head and its sections set right."""
    for raw in (content, _sealed_bundle(content)):
        value_or_error(lambda raw=raw: parse_bundle(raw, SOURCE))  # type: ignore[misc]
        value_or_error(lambda raw=raw: BundleHead.parse(raw[:100], SOURCE, len(raw)))  # type: ignore[misc]


def _sealed_bundle(content: bytes) -> bytes:
    if len(content) < 12:
        return content
    raw = bytearray(content)
    table_end = 8 + 24 * min(int.from_bytes(raw[6:8], "big"), (len(raw) - 12) // 24)
    for row in range(8, table_end, 24):
        position, length = struct.unpack_from(">qq", raw, row + 8)
        if 0 <= position <= len(raw) and 0 <= length <= len(raw):
            raw[row + 4 : row + 8] = crc32c(raw[position : position + length]).to_bytes(4, "big")
    raw[table_end : table_end + 4] = crc32c(raw[:table_end]).to_bytes(4, "big")
    return bytes(raw)


def _read_manifest(content: bytes) -> None:
    found = value_or_error(lambda: Manifest.parse(content, SOURCE))
    if isinstance(found, Manifest):
        assert Manifest.parse(found.to_bytes(), SOURCE) == found
        assert str(found).encode() is not None


def _read_commit_marker(content: bytes) -> None:
    found = value_or_error(lambda: CommitMarker.parse(content, SOURCE))
    if isinstance(found, CommitMarker):
        assert CommitMarker.parse(found.to_bytes(), SOURCE) == found
        assert found.segment_id.encode() is not None
    metadata = _MANIFEST.metadata(content)
    value_or_error(lambda: CommitMarker.from_custom_metadata(metadata, content), source=str(metadata.segment_id))


def _read_segment_key(content: bytes) -> None:
    """The key as it is, and filled up to its size."""
    for raw in (content, content[:-1].ljust(OBJECT_BYTES - 1) + content[-1:]):
        found = value_or_error(lambda raw=raw: parse_segment_key(raw, _SEGMENT_ID.id, SOURCE))  # type: ignore[misc]
        if isinstance(found, WrappedKey):
            assert parse_segment_key(encode_segment_key(_SEGMENT_ID.id, found), _SEGMENT_ID.id, SOURCE) == found
            with suppress(EncryptionKeyError):
                assert len(_RING.unwrap(found, "a segment")) == KEY_BYTES


def _read_chunks(content: bytes) -> None:
    """An object of chunks by their heads: as it is, and with every checksum set right; then each chunk alone."""
    for raw in (content, _with_right_checksums(content)):
        chunks: list[EncodedChunk] = []
        place = position = 0
        while place < len(raw):
            head = value_or_error(lambda raw=raw, place=place: FrameHead.parse(raw[place:], SOURCE, place))  # type: ignore[misc]
            if not isinstance(head, FrameHead):
                break
            chunks.append(head.chunk)
            place += head.chunk.stored
            position += head.length
        for placed in ChunkTable.of(chunks).within(0, position):
            frame = raw[placed.place :][: placed.chunk.stored]
            for cipher in (None, _CIPHER):
                codec = ChunkCodec(Encoding(), position, cipher)
                found = value_or_error(partial(codec.decode, frame, placed, SOURCE))
                assert not isinstance(found, bytes) or len(found) == placed.chunk.length


def _with_right_checksums(content: bytes) -> bytes:
    raw = bytearray(content)
    place = number = 0
    while place + HEAD_BYTES <= len(raw):
        length = int.from_bytes(raw[place + 16 : place + 20], "big")
        raw[place + 8 : place + 12] = number.to_bytes(4, "big")
        raw[place + 20 : place + 24] = crc32c(raw[place + HEAD_BYTES : place + HEAD_BYTES + length]).to_bytes(4, "big")
        place, number = place + HEAD_BYTES + length, number + 1
    return bytes(raw)


def _chunks() -> Iterable[bytes]:
    content = b"a record of an order" * 30
    for encoding in ENCODINGS.values():
        codec = ChunkCodec(encoding, 2 * len(content), _CIPHER if encoding.encryption else None)
        frames = (codec.encode(content, number, number * len(content)) for number in range(2))
        yield b"".join(head.to_bytes() + bytes(payload) for head, payload in frames)


_CIPHER = SegmentCipher.of(_SEGMENT_ID, bytes(KEY_BYTES))
_RING = KeyRing("key", {"key": Key("key", WrapAlgorithm.AES_GCM, bytes(KEY_BYTES))})
_MANIFEST = Manifest(
    cluster_id=_SEGMENT_ID.topic_id_partition.cluster_id,
    topic=_SEGMENT_ID.topic_id_partition.topic,
    topic_id=_SEGMENT_ID.topic_id_partition.topic_id,
    partition=_SEGMENT_ID.topic_id_partition.partition,
    id=_SEGMENT_ID.id,
    base_offset=1000,
    end_offset=1012,
    max_timestamp=12,
    copied_at=1_700_000_000_000,
    broker_id=-1,
    size=561,
    leader_epochs=(EpochEntry(0, 0), EpochEntry(3, 1005)),
    codec="none",
)
_ENCODED_MANIFEST = replace(
    _MANIFEST, codec="zstd+aes-256-gcm", chunks=(EncodedChunk(400, 90, 1), EncodedChunk(161, 80, 2))
)
_MARKERS = (
    CommitMarker(_SEGMENT_ID.id, 561, 1, 700, 2),
    CommitMarker(_SEGMENT_ID.id, 561, 1, 700, 2, stored_size=170, is_encrypted=True),
)


def _trio() -> Iterable[bytes]:
    raw = [chunk.to_bytes() for chunk in _CHUNKS]
    positions = [0, len(raw[0]), len(raw[0]) + len(raw[1])]
    by_offset = b"".join(
        struct.pack(">ii", chunk.first_offset - 1000, position)
        for chunk, position in zip(_CHUNKS, positions, strict=True)
    )
    by_time = struct.pack(">qi", 9, 0) + struct.pack(">qi", 12, positions[2])
    yield bytes([len(by_offset) // 8, len(by_time) // 8]) + by_offset + by_time + b"".join(raw)


REMOTE_TARGETS = (
    Target("remote_log_index", _read_remote_log_index, lambda: [b"".join(chunk.to_bytes() for chunk in _CHUNKS)]),
    Target("remote_indexes", _read_remote_indexes, _trio),
    Target(
        "index_bundle",
        _read_bundle,
        lambda: [build_bundle({kind: bytes(range(kind)) for kind in IndexKind})],
    ),
    Target(
        "manifest",
        _read_manifest,
        lambda: [
            _MANIFEST.to_bytes(),
            _MANIFEST.to_bytes().replace(b"orders", b"gr\\u00f6\\u00dfer"),
            _ENCODED_MANIFEST.to_bytes(),
        ],
    ),
    Target(
        "commit_marker",
        _read_commit_marker,
        lambda: [each for marker in _MARKERS for each in (marker.to_bytes(), marker.custom_metadata())],
    ),
    Target(
        "segment_key",
        _read_segment_key,
        lambda: [encode_segment_key(_SEGMENT_ID.id, _RING.wrap(bytes(KEY_BYTES), "a segment"))],
    ),
    Target("chunks", _read_chunks, _chunks),
)
