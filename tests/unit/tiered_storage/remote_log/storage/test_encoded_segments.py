from __future__ import annotations

import base64
import json
import struct
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from hypothesis import given
from hypothesis import strategies as st

from support.key_rings import key_ring
from support.remote_logs import unsynced
from support.remote_segments import INDEXES, copied, segment_bytes, segment_data, segment_metadata
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.storage import encoded_segments
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions
from tiered_storage.remote_log.storage.index_bundle import parse_bundle
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager
from tiered_storage.remote_log.storage.transforms.aes_gcm import TAG_BYTES
from tiered_storage.remote_log.storage.transforms.chain import CHUNK_BYTES, MIN_CHUNK_BYTES
from tiered_storage.remote_log.storage.transforms.encoding import HEAD_BYTES, Encoding

CONTENT = segment_bytes(9 * CHUNK_BYTES + 12345)
STORED_CHUNK = CHUNK_BYTES + HEAD_BYTES + TAG_BYTES
MIB = 1 << 20
SHORT = segment_bytes(12 * MIN_CHUNK_BYTES + 321)
_POSITIONS = st.integers(0, len(SHORT) - 1)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The kind and the size in bytes of each object that is read while a test runs."""
    found: list[tuple[str, int]] = []
    get_range = LocalDirectory.get_range

    def noted(client: LocalDirectory, name: str, start: int, length: int) -> bytes:
        found.append((name.rpartition(".")[2], length))
        return get_range(client, name, start, length)

    monkeypatch.setattr(LocalDirectory, "get_range", noted)
    return found


@pytest.mark.parametrize("length", [1, 1000, CHUNK_BYTES, 3 * MIB, 8 * MIB])
@pytest.mark.parametrize("start", [0, 7, CHUNK_BYTES - 1, CHUNK_BYTES, 5 * CHUNK_BYTES + 99])
def test_a_range_of_an_encrypted_segment_requests_its_chunks_alone_and_key_and_manifest_once(
    tmp_path: Path, requests: list[tuple[str, int]], start: int, length: int
) -> None:
    options = ObjectStoreOptions(key_ring=key_ring(tmp_path / "keys"))
    metadata = segment_metadata(len(CONTENT))
    data = replace(segment_data(CONTENT), encoding=Encoding(encryption=True))
    with closing(ObjectRemoteStorageManager.open(tmp_path.as_uri(), options)) as writer:
        finished = copied(metadata, writer.copy_log_segment_data(metadata, data))
    end = min(start + length, len(CONTENT))
    with closing(ObjectRemoteStorageManager.open(tmp_path.as_uri(), options)) as reader:
        for _ in range(2):
            requests.clear()
            assert b"".join(reader.fetch_log_segment(finished, start, end - 1)) == CONTENT[start:end]
            of_log = [size for kind, size in requests if kind == "log"]
            assert sum(of_log) <= end - start + 2 * STORED_CHUNK
            # Up to 4 MiB of chunks are read together.
            assert len(of_log) <= 1 + (end - start) // (3 * MIB)
        assert {kind for kind, _ in requests} == {"log"}, "key and manifest are kept"


def written(storage: ObjectRemoteStorageManager, content: bytes) -> RemoteLogSegmentMetadata:
    metadata = segment_metadata(len(content))
    data = replace(segment_data(content), encoding=Encoding(encryption=True))
    return copied(metadata, storage.copy_log_segment_data(metadata, data))


def test_readers_of_two_hundred_segments_request_key_and_manifest_of_each_once(
    tmp_path: Path, requests: list[tuple[str, int]]
) -> None:
    """As many partitions may be read at the same time, in turns."""
    options = ObjectStoreOptions(key_ring=key_ring(tmp_path / "keys", "third"))
    with unsynced(), closing(ObjectRemoteStorageManager.open((tmp_path / "store").as_uri(), options)) as storage:
        segments = [written(storage, b"records") for _ in range(200)]
    with closing(ObjectRemoteStorageManager.open((tmp_path / "store").as_uri(), options)) as reader:
        for _ in range(2):
            requests.clear()
            for each in segments:
                assert b"".join(reader.fetch_log_segment(each, 1, 3)) == b"eco"
        assert {kind for kind, _ in requests} == {"log"}


def test_layouts_that_are_not_used_make_room_for_others(
    tmp_path: Path, requests: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoded_segments, "_MOST_KEPT_CHUNKS", 5)
    options = ObjectStoreOptions(key_ring=key_ring(tmp_path / "keys", "third"))
    with unsynced(), closing(ObjectRemoteStorageManager.open((tmp_path / "store").as_uri(), options)) as storage:
        small, other, large = (written(storage, bytes(size)) for size in (1, 2 * CHUNK_BYTES, 9 * CHUNK_BYTES))
        for segment, is_known in ((small, False), (other, False), (small, True), (large, False), (small, False)):
            requests.clear()
            list(storage.fetch_log_segment(segment, 0, 0))
            assert ({kind for kind, _ in requests} == {"log"}) == is_known


@given(
    st.lists(_POSITIONS, max_size=20, unique=True),
    st.lists(st.tuples(_POSITIONS, _POSITIONS), min_size=1, max_size=8),
    st.sampled_from([Encoding(True), Encoding(encryption=True)]),
)
def test_any_range_of_any_chunks_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    ends: list[int],
    ranges: list[tuple[int, int]],
    encoding: Encoding,
) -> None:
    """Ranges need not end where chunks do."""
    folder = tmp_path_factory.mktemp("segment")
    options = ObjectStoreOptions(key_ring=key_ring(folder / "keys", "third"))
    metadata = segment_metadata(len(SHORT))
    data = replace(segment_data(SHORT), encoding=encoding, ends=lambda: sorted(ends))
    with unsynced(), closing(ObjectRemoteStorageManager.open((folder / "store").as_uri(), options)) as storage:
        finished = copied(metadata, storage.copy_log_segment_data(metadata, data))
        for first, last in (sorted(each) for each in ranges):
            assert b"".join(storage.fetch_log_segment(finished, first, last)) == SHORT[first : last + 1]


def data_key(document: dict[str, Any], keys: Path, segment: str) -> bytes:
    """Unwrap the data key in a `.key` by the key whose files are in `keys`."""
    wrapped = base64.b64decode(document["wrapped"])
    if document["algorithm"] == "AES-256-GCM":
        key = (keys / f"{document['key_id']}.key").read_bytes()
        return AESGCM(key).decrypt(wrapped[:12], wrapped[12:], segment.encode())
    assert document["algorithm"] == "RSA-OAEP-SHA-256"
    private = load_pem_private_key((keys / f"{document['key_id']}.pem").read_bytes(), None)
    assert isinstance(private, RSAPrivateKey)
    return private.decrypt(wrapped, padding.OAEP(padding.MGF1(SHA256()), SHA256(), None))


@pytest.mark.parametrize("key_id", ["first", "third"])
def test_each_copy_has_a_data_key_of_its_own(tmp_path: Path, key_id: str) -> None:
    """The nonce of a chunk is its number: a key that serves twice would show what the same chunks differ in."""
    options = ObjectStoreOptions(key_ring=key_ring(tmp_path / "keys", key_id))
    store, found = tmp_path / "store", []

    def noted(segment: RemoteLogSegmentMetadata) -> None:
        [key] = store.rglob(f"*{segment.segment_id.id}*.key")
        found.append(data_key(json.loads(key.read_bytes()), tmp_path / "keys", str(segment.segment_id)))

    with closing(ObjectRemoteStorageManager.open(store.as_uri(), options)) as storage:
        first, second = (written(storage, CONTENT[:MIB]) for _ in range(2))
        noted(first)
        noted(second)
        storage.delete_log_segment_data(first)
        data = replace(segment_data(CONTENT[:MIB]), encoding=Encoding(encryption=True))
        storage.copy_log_segment_data(first, data)
        noted(first)
    with closing(ObjectRemoteStorageManager.open(store.as_uri(), options)) as storage:
        noted(written(storage, CONTENT[:MIB]))
    assert len(set(found)) == 4
    assert {len(key) for key in found} == {32}


@pytest.mark.parametrize("key_id", ["first", "third"])
@pytest.mark.parametrize("encoding", [Encoding(encryption=True), Encoding(True, encryption=True)])
def test_an_encrypted_segment_is_stored_as_the_page_says(tmp_path: Path, key_id: str, encoding: Encoding) -> None:
    """Decoded without our code, by docs/on-the-store.md alone: segments of earlier releases must stay readable."""
    keys, content = tmp_path / "keys", bytes(3 * MIN_CHUNK_BYTES) + segment_bytes(2 * MIN_CHUNK_BYTES)
    metadata = segment_metadata(len(content))
    options = ObjectStoreOptions(key_ring=key_ring(keys, key_id))
    ends = range(MIN_CHUNK_BYTES, len(content), MIN_CHUNK_BYTES)
    data = replace(segment_data(content), encoding=encoding, ends=lambda: ends)
    with closing(ObjectRemoteStorageManager.open((tmp_path / "store").as_uri(), options)) as storage:
        storage.copy_log_segment_data(metadata, data)
    [log, key, bundle] = (next((tmp_path / "store").rglob(f"*.{kind}")) for kind in ("log", "key", "indexes"))
    indexes = parse_bundle(bundle.read_bytes(), "bundle")
    manifest = json.loads(indexes.pop(IndexKind.MANIFEST))
    named = f"{manifest['topic']}-{manifest['partition']}:{manifest['segment_id']}"
    cipher = AESGCM(data_key(json.loads(key.read_bytes()), keys, named))
    bound = b"".join(
        struct.pack(">H", len(part)) + part
        for name in ("cluster_id", "topic_id", "partition", "segment_id")
        for part in [str(manifest[name]).encode()]
    )

    raw, found, flags_seen = log.read_bytes(), b"", set()
    for number, (length, stored, crc) in enumerate(manifest["chunks"]):
        frame, raw = raw[:stored], raw[stored:]
        magic, version, flags, _, numbered, original, payload, payload_crc = struct.unpack(">4sBBHIIII", frame[:24])
        assert (magic, version, numbered, original, payload_crc) == (b"RLCH", 1, number, length, crc)
        place = struct.pack(">BIIQQ", flags, number, length, len(found), manifest["size"])
        nonce = struct.pack(">BxxxQ", 0, number)
        plain = cipher.decrypt(nonce, frame[24 : 24 + payload], b"chunk" + bound + place)
        found += zstandard.ZstdDecompressor().decompress(plain, length) if flags & 1 else plain
        flags_seen.add(flags)
    assert (found, raw) == (content, b"")
    assert flags_seen == ({2, 3} if encoding.compression else {2})
    opened = {
        kind: cipher.decrypt(struct.pack(">BxxxQ", 1, kind), index, b"index" + bound + struct.pack(">I", kind))
        for kind, index in indexes.items()
    }
    assert opened == INDEXES
