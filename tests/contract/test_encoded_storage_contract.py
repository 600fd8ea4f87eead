"""The contract of RemoteStorageManager for encoded segments, checked with every kind of store."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from contract.object_stores import failing_data
from support.key_rings import key_ring, ring_file, ring_of_three
from support.remote_segments import INDEXES, copied, segment_bytes, segment_data, segment_metadata
from tiered_storage.errors import (
    CorruptRecordError,
    EncryptionKeyError,
    RemoteObjectCorruptError,
    RemoteObjectNotFoundError,
    RemoteStorageError,
)
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, SegmentState
from tiered_storage.remote_log.storage.clients.object_client import delete_object
from tiered_storage.remote_log.storage.documents.manifest import Manifest
from tiered_storage.remote_log.storage.documents.object_names import SegmentObjectNames, segment_object_names
from tiered_storage.remote_log.storage.index_bundle import build_bundle, parse_bundle
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind, LogSegmentData
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager
from tiered_storage.remote_log.storage.transforms.encoding import ENCODINGS, Encoding
from tiered_storage.remote_log.storage.transforms.key_ring import KeyRing

if TYPE_CHECKING:
    from contract.object_stores import StoreUnderTest
    from tiered_storage.remote_log.storage.clients.object_client import ObjectClient

MIB = 1 << 20
BOTH = Encoding(True, encryption=True)
ENCRYPTED = Encoding(encryption=True)
ENCODED = [encoding for encoding in ENCODINGS.values() if not encoding.is_plain]
each_encoding = pytest.mark.parametrize("encoding", ENCODED, ids=lambda each: each.codec)


@pytest.fixture
def storage(client: ObjectClient, tmp_path: Path) -> ObjectRemoteStorageManager:
    return ObjectRemoteStorageManager(client, key_ring=key_ring(tmp_path / "keys"))


def opened(client: ObjectClient, ring: KeyRing) -> ObjectRemoteStorageManager:
    """Return the same store in another process."""
    return ObjectRemoteStorageManager(client, key_ring=ring)


def half_random(size: int) -> bytes:
    """Return bytes that zstd makes about half as large."""
    chance = random.Random(size)  # noqa: S311 -- content, no secret
    return b"".join(chance.randbytes(500) + bytes(500) for _ in range(size // 1000 + 1))[:size]


def copy(storage: ObjectRemoteStorageManager, content: bytes, encoding: Encoding = BOTH) -> RemoteLogSegmentMetadata:
    metadata = segment_metadata(len(content))
    data = replace(segment_data(content), encoding=encoding)
    return copied(metadata, storage.copy_log_segment_data(metadata, data))


def names(metadata: RemoteLogSegmentMetadata) -> SegmentObjectNames:
    return segment_object_names(metadata.segment_id, metadata.start_offset)


def read(client: ObjectClient, name: str) -> bytes:
    return client.get_range(name, 0, client.size(name))


def overwrite(client: ObjectClient, name: str, content: bytes) -> None:
    client.put(name, len(content), iter((memoryview(content),)))


@each_encoding
@pytest.mark.parametrize("size", [0, 1000, 9 * MIB + 17])
def test_an_encoded_segment_is_fetched_whole(
    storage: ObjectRemoteStorageManager, encoding: Encoding, size: int
) -> None:
    content = half_random(size)
    metadata = copy(storage, content, encoding)
    pieces = list(storage.fetch_log_segment(metadata))
    assert b"".join(pieces) == content
    assert all(len(piece) <= 4 * MIB for piece in pieces)
    assert {kind: storage.fetch_index(metadata, kind) for kind in INDEXES} == INDEXES
    storage.verify(metadata)


@each_encoding
def test_ranges_are_in_bytes_of_the_log(storage: ObjectRemoteStorageManager, encoding: Encoding) -> None:
    content = half_random(3 * MIB)
    metadata = copy(storage, content, encoding)
    for start, end in [(0, 0), (MIB - 1, MIB), (5, 2 * MIB + 7), (3 * MIB - 1, 3 * MIB - 1), (1, 3 * MIB - 1)]:
        assert b"".join(storage.fetch_log_segment(metadata, start, end)) == content[start : end + 1]
    with pytest.raises(ValueError, match="not in it"):
        storage.fetch_log_segment(metadata, 0, 3 * MIB)


def test_an_encrypted_segment_shows_neither_records_nor_indexes(
    storage: ObjectRemoteStorageManager, client: ObjectClient
) -> None:
    content = b"the secret of the house " * 10_000
    metadata = copy(storage, content)
    stored = {found.name.rpartition(".")[2]: read(client, found.name) for found in client.list()}
    assert set(stored) == {"log", "indexes", "key", "commit"}
    assert not any(b"secret of the house" in raw for raw in stored.values())
    sections = parse_bundle(stored["indexes"], "bundle")
    assert not any(sections[kind] == content for kind, content in INDEXES.items() if kind is not IndexKind.MANIFEST)
    manifest = Manifest.parse(sections[IndexKind.MANIFEST], "manifest")
    assert (manifest.size, manifest.data_crc32c) == (len(content), crc32c(content))
    assert len(stored["log"]) == manifest.stored_size < len(content)
    assert storage.expected_objects(metadata) == {
        name: client.size(name) for name in (found.name for found in client.list())
    }


def test_an_encoded_segment_is_found_without_custom_metadata(storage: ObjectRemoteStorageManager) -> None:
    content = half_random(2 * MIB)
    metadata = replace(copy(storage, content), custom_metadata=None)
    assert b"".join(storage.fetch_log_segment(metadata)) == content
    assert storage.fetch_index(metadata, IndexKind.OFFSET) == INDEXES[IndexKind.OFFSET]


def test_the_same_copy_can_be_repeated(storage: ObjectRemoteStorageManager, client: ObjectClient) -> None:
    content = half_random(2 * MIB)
    metadata = copy(storage, content)
    late = replace(metadata, custom_metadata=None, state=SegmentState.COPY_SEGMENT_STARTED)
    before = {found.name: read(client, found.name) for found in client.list()}
    data = replace(segment_data(content, chunk_size=77_777), encoding=BOTH)
    assert storage.copy_log_segment_data(late, data) == metadata.custom_metadata
    other_indexes = {**INDEXES, IndexKind.TIMESTAMP: b"other"}
    for other in (segment_data(segment_bytes(2 * MIB)), segment_data(content, indexes=other_indexes)):
        with pytest.raises(RemoteObjectCorruptError, match="another attempt"):
            storage.copy_log_segment_data(late, replace(other, encoding=BOTH))
    assert {found.name: read(client, found.name) for found in client.list()} == before


@each_encoding
@pytest.mark.parametrize("share", [0, 0.5, 1], ids=["before its data", "amid its data", "before its indexes"])
def test_two_concurrent_attempts_leave_one_whole_segment(
    storage: ObjectRemoteStorageManager, client: ObjectClient, encoding: Encoding, share: float
) -> None:
    """A worker that was given up still writes under the id of its successor, each with its own data key."""
    content = half_random(9 * MIB)
    metadata = segment_metadata(len(content))
    finished: list[bytes] = []

    def attempt(data: LogSegmentData) -> None:
        another = opened(client, storage._encoded._keys)
        with suppress(RemoteStorageError):
            finished.append(another.copy_log_segment_data(metadata, replace(data, encoding=encoding)))

    def interrupted() -> Iterator[memoryview]:
        done = int(len(content) * share) // MIB * MIB
        yield from segment_data(content[:done]).chunks
        attempt(segment_data(content))
        yield from segment_data(content[done:]).chunks

    attempt(replace(segment_data(content), chunks=interrupted()))
    assert finished
    assert len(set(finished)) == 1
    reader = opened(client, storage._encoded._keys)
    whole = copied(metadata, finished[0])
    reader.verify(whole)
    assert b"".join(reader.fetch_log_segment(whole)) == content
    assert {kind: reader.fetch_index(whole, kind) for kind in INDEXES} == INDEXES


@pytest.mark.parametrize("left", [["key"], ["key", "log"], ["key", "log", "indexes"]], ids="+".join)
def test_data_of_another_attempt_is_never_overwritten(
    storage: ObjectRemoteStorageManager, client: ObjectClient, left: list[str]
) -> None:
    content = half_random(MIB)
    metadata = copy(storage, content)
    client.delete_many([each.name for each in client.list() if each.name.rpartition(".")[2] not in left])
    before = {found.name: read(client, found.name) for found in client.list()}
    late = replace(metadata, custom_metadata=None, state=SegmentState.COPY_SEGMENT_STARTED)
    with pytest.raises(RemoteStorageError, match=r"\.key: another attempt") as raised:
        opened(client, storage._encoded._keys).copy_log_segment_data(
            late, replace(segment_data(content), encoding=ENCRYPTED)
        )
    assert raised.value.retriable
    assert {found.name: read(client, found.name) for found in client.list()} == before
    storage.delete_log_segment_data(late)
    assert list(client.list()) == []


def test_a_source_that_fails_midway_leaves_no_data(storage: ObjectRemoteStorageManager, store: StoreUnderTest) -> None:
    failure = CorruptRecordError("00000000000000004200.log", 17, "its checksum is wrong")
    data = replace(failing_data(segment_bytes(30 * MIB), failure, after=20 * MIB), encoding=BOTH)
    with pytest.raises(CorruptRecordError) as raised:
        storage.copy_log_segment_data(segment_metadata(30 * MIB), data)
    assert raised.value is failure
    # The key stays, so that no other attempt uses this segment's names.
    assert [found.name.rpartition(".")[2] for found in storage.list_objects()] == ["key"]
    assert store.unfinished() == []


def test_verification_reports_a_missing_key(storage: ObjectRemoteStorageManager, client: ObjectClient) -> None:
    metadata = copy(storage, half_random(MIB))
    delete_object(client, names(metadata).key)

    with pytest.raises(RemoteStorageError, match=names(metadata).key):
        storage.verify(metadata)


def test_a_deletion_also_deletes_the_key(storage: ObjectRemoteStorageManager, client: ObjectClient) -> None:
    for metadata in (copy(storage, b"1"), replace(copy(storage, b"2"), custom_metadata=None)):
        storage.delete_log_segment_data(metadata)
        storage.delete_log_segment_data(metadata)
    assert list(client.list()) == []


def test_a_lost_key_is_one_clear_error_and_no_damage(client: ObjectClient, tmp_path: Path) -> None:
    ring = key_ring(tmp_path / "keys", "second")
    metadata = copy(opened(client, ring), half_random(MIB))
    other = copy(opened(client, replace(ring, active="third")), half_random(MIB))
    folder = tmp_path / "keys"
    without = opened(client, KeyRing.load(ring_file(folder, {"third": {"key.file": "third.key"}}), "third"))
    for look in (
        lambda: list(without.fetch_log_segment(metadata)),
        lambda: list(without.fetch_log_segment(metadata, 5, 10)),
        lambda: without.fetch_index(metadata, IndexKind.OFFSET),
        lambda: without.verify(metadata),
    ):
        with pytest.raises(EncryptionKeyError, match=rf"{metadata.segment_id}.*key second"):
            look()
    without.verify(other)
    assert without.fetch_bundle(metadata)[IndexKind.MANIFEST]
    assert without.find_copy(metadata) is not None
    assert without.later_version(metadata) is None
    parsed = next(found.segment for found in without.list_objects() if found.segment)
    assert without.read_metadata(parsed).size == MIB


def test_a_copy_without_a_usable_key_writes_nothing(client: ObjectClient, tmp_path: Path) -> None:
    storage = opened(client, KeyRing.load(ring_of_three(tmp_path), "fourth"))
    with pytest.raises(EncryptionKeyError, match="no key fourth"):
        copy(storage, b"x")
    assert list(client.list()) == []


def test_a_rotation_changes_only_the_key(client: ObjectClient, tmp_path: Path) -> None:
    ring, content = key_ring(tmp_path / "keys", "first"), half_random(2 * MIB)
    before = opened(client, ring)
    metadata = copy(before, content)
    assert before.key_id(metadata) == "first"
    assert before.key_id(copy(before, b"plain", Encoding(True))) is None
    stored = {found.name: read(client, found.name) for found in client.list()}

    after = opened(client, replace(ring, active="third"))
    after.rewrap_key(metadata)
    after.rewrap_key(metadata)

    assert after.key_id(metadata) == "third"
    key = names(metadata).key
    assert {found.name: read(client, found.name) for found in client.list() if found.name != key} == {
        name: raw for name, raw in stored.items() if name != key
    }
    assert after.expected_objects(metadata)[key] == client.size(key)
    folder = tmp_path / "keys"
    alone = opened(client, KeyRing.load(ring_file(folder, {"third": {"key.file": "third.key"}}), "third"))
    for storage in (before, after, alone):
        assert b"".join(storage.fetch_log_segment(metadata)) == content
    with pytest.raises(EncryptionKeyError):
        opened(client, replace(ring, active="fourth")).rewrap_key(metadata)
    assert alone.key_id(metadata) == "third"


@pytest.mark.parametrize("lost", ["log", "indexes", "key", "commit"])
def test_an_error_names_a_lost_object(storage: ObjectRemoteStorageManager, client: ObjectClient, lost: str) -> None:
    metadata = copy(storage, half_random(MIB))
    again = opened(client, storage._encoded._keys)
    client.delete_many([f"{names(metadata).stem}.{lost}"])
    with pytest.raises(RemoteObjectNotFoundError, match=rf"\.{lost}"):
        again.verify(metadata)


def test_a_damaged_key_is_reported_as_corrupt(storage: ObjectRemoteStorageManager, client: ObjectClient) -> None:
    metadata = copy(storage, half_random(MIB))
    name = names(metadata).key
    raw = read(client, name)
    document = json.loads(raw)
    for broken in (
        raw[:-1],
        raw[:100],
        b"",
        json.dumps({**document, "wrapped": "AAAA"}).encode().ljust(len(raw)),
        json.dumps({**document, "wrapped": "***"}).encode().ljust(len(raw)),
        json.dumps({**document, "algorithm": "ROT13"}).encode().ljust(len(raw)),
        json.dumps({**document, "segment_id": "B" * 22}).encode().ljust(len(raw)),
    ):
        overwrite(client, name, broken)
        with pytest.raises(RemoteObjectCorruptError, match=r"\.key"):
            list(opened(client, storage._encoded._keys).fetch_log_segment(metadata))


def _spoiled(log: bytes, other: bytes) -> Iterator[bytes]:
    yield log[:-1]
    yield log[: len(log) // 2]
    yield b""
    yield log[:-1] + bytes([log[-1] ^ 1])
    yield log + b"x"
    yield other
    half = len(log) // 2
    yield log[half:] + log[:half]
    yield log[:half] + other[half:]


@each_encoding
def test_other_bytes_are_never_returned(
    storage: ObjectRemoteStorageManager, client: ObjectClient, encoding: Encoding
) -> None:
    """A changed, truncated or reordered object, and chunks of another segment."""
    content = segment_bytes(2 * MIB)
    metadata, another = copy(storage, content, encoding), copy(storage, segment_bytes(2 * MIB, 1), encoding)
    log, other = read(client, names(metadata).data), read(client, names(another).data)
    for spoiled in _spoiled(log, other):
        overwrite(client, names(metadata).data, spoiled)
        with pytest.raises(RemoteObjectCorruptError, match=metadata.segment_id.id):
            storage.verify(metadata)
        received = 0
        try:
            for piece in storage.fetch_log_segment(metadata):
                assert piece == content[received : received + len(piece)]
                received += len(piece)
        except RemoteObjectCorruptError:
            assert received < len(content)
        else:
            # Bytes after the last chunk are not part of the segment.
            assert spoiled.startswith(log)
            assert received == len(content)


def test_a_chunk_swapped_with_anothers_is_refused_even_with_its_checksums(
    storage: ObjectRemoteStorageManager, client: ObjectClient
) -> None:
    """A writer of the store can make every checksum right, but cannot exchange encrypted chunks."""
    metadata = copy(storage, segment_bytes(MIB), ENCRYPTED)
    another = copy(storage, segment_bytes(MIB, 1), ENCRYPTED)
    stolen = read(client, names(another).data)
    manifest = Manifest.parse(storage.fetch_index(another, IndexKind.MANIFEST), "manifest")
    overwrite(client, names(metadata).data, stolen)
    forged = opened(client, storage._encoded._keys)
    layout = forged._encoded.layout(metadata, names(metadata), None, lambda: manifest)
    with pytest.raises(RemoteObjectCorruptError, match="does not decrypt"):
        list(forged._encoded.read(layout, 0, MIB))


@pytest.mark.parametrize("codec", ["none", "zstd", None], ids=["as plain", "as compressed", "without a manifest"])
def test_bytes_without_encryption_in_the_place_of_an_encrypted_segment_are_refused(
    storage: ObjectRemoteStorageManager, client: ObjectClient, codec: str | None
) -> None:
    """A writer of the store needs no key for them, and can make every checksum right."""
    metadata = copy(storage, segment_bytes(MIB), ENCRYPTED)
    forged = copy(storage, segment_bytes(MIB, 1), ENCODINGS[codec or "zstd"])
    overwrite(client, names(metadata).data, read(client, names(forged).data))
    bundle = parse_bundle(read(client, names(metadata).indexes), "bundle")
    manifest = Manifest.parse(storage.fetch_index(forged, IndexKind.MANIFEST), "manifest")
    bundle[IndexKind.MANIFEST] = replace(manifest, id=metadata.segment_id.id).to_bytes()
    overwrite(client, names(metadata).indexes, build_bundle(bundle) if codec else b"")
    reader = opened(client, storage._encoded._keys)
    for start, end in ((0, MIB - 1), (5, 100)):
        with pytest.raises(RemoteObjectCorruptError, match="not encrypted"):
            list(reader.fetch_log_segment(metadata, start, end))


@each_encoding
def test_the_data_is_readable_without_the_bundle(
    storage: ObjectRemoteStorageManager, client: ObjectClient, encoding: Encoding
) -> None:
    content = half_random(3 * MIB)
    metadata = copy(storage, content, encoding)
    client.delete_many([names(metadata).indexes])
    again = opened(client, storage._encoded._keys)
    assert b"".join(again.fetch_log_segment(metadata)) == content
    client.delete_many([names(metadata).commit_marker])
    bare = replace(metadata, custom_metadata=None)
    again = opened(client, storage._encoded._keys)
    assert again.readable_size(bare) == len(content)
    assert again.read_damaged(bare, 10, MIB + 5) == content[10 : MIB + 15]


def test_the_sound_chunks_of_a_damaged_segment_are_readable(
    storage: ObjectRemoteStorageManager, client: ObjectClient
) -> None:
    content = segment_bytes(3 * MIB)
    metadata = copy(storage, content, ENCRYPTED)
    log = bytearray(read(client, names(metadata).data))
    log[len(log) // 2] ^= 1
    overwrite(client, names(metadata).data, bytes(log))
    expected = content[:MIB] + bytes(MIB) + content[2 * MIB :]
    assert storage.read_damaged(metadata, 0, 3 * MIB) == expected
