"""Targets: the small formats of the remote log."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable

from fuzz.target import SOURCE, Target, value_or_error
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.remote_log.indexes.remote_index_lookup import RemoteIndexes
from tiered_storage.remote_log.indexes.remote_log_index import RemoteLogIndexEntry, iterate_entries
from tiered_storage.remote_log.model import RemoteLogSegmentId, TopicIdPartition
from tiered_storage.remote_log.storage.commit_marker import CommitMarker
from tiered_storage.remote_log.storage.documents.manifest import Manifest
from tiered_storage.remote_log.storage.index_bundle import BundleHead, build_bundle, parse_bundle
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind

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
    """The three indexes, one behind the other; the first two begin with their lengths."""
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


_MANIFEST = Manifest(_SEGMENT_ID, 1000, 1012, 12, 561, (EpochEntry(0, 0), EpochEntry(3, 1005)), 1_700_000_000_000)
_MARKER = CommitMarker(_SEGMENT_ID.id, 561, 1, 700, 2)


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
        lambda: [_MANIFEST.to_bytes(), _MANIFEST.to_bytes().replace(b"orders", b"gr\\u00f6\\u00dfer")],
    ),
    Target("commit_marker", _read_commit_marker, lambda: [_MARKER.to_bytes(), _MARKER.custom_metadata()]),
)
