"""The manifest: what is kept of a segment in the store, and what happens when it is broken."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.remote_segments import segment_metadata
from tiered_storage.errors import LaterVersionError, RemoteObjectCorruptError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.model import SegmentState
from tiered_storage.remote_log.storage.documents.manifest import FORMAT_VERSION, Manifest
from tiered_storage.remote_log.storage.transforms.encoding import (
    HEAD_BYTES,
    MAX_CHUNK_BYTES,
    MAX_PAYLOAD_BYTES,
    EncodedChunk,
)

OFFSETS = st.integers(0, 2**63 - 1)
TEXTS = st.text(min_size=1, max_size=30)
COUNTS = st.none() | OFFSETS
MANIFESTS = st.builds(
    Manifest,
    cluster_id=TEXTS,
    topic=TEXTS,
    topic_id=TEXTS,
    partition=st.integers(0, 2**31 - 1),
    id=TEXTS,
    base_offset=st.integers(0, 2**62),
    end_offset=st.integers(2**62, 2**63 - 1),
    max_timestamp=st.integers(-1, 2**63 - 1),
    size=OFFSETS,
    leader_epochs=st.lists(st.builds(EpochEntry, OFFSETS, OFFSETS)).map(tuple),
    copied_at=OFFSETS,
    broker_id=st.integers(-1, 2**31 - 1),
    first_timestamp=st.none() | st.integers(-1, 2**63 - 1),
    batch_count=COUNTS,
    record_count=COUNTS,
    data_crc32c=st.none() | st.integers(0, 2**32 - 1),
    codec=st.just("none"),
)
METADATA = segment_metadata(1000)
MANIFEST = replace(Manifest.of(METADATA), data_crc32c=0xE3069283, batch_count=7, record_count=900)


def changed(**fields: Any) -> bytes:
    return json.dumps({**json.loads(MANIFEST.to_bytes()), **fields}).encode()


@settings(deadline=None)
@given(MANIFESTS)
def test_a_manifest_comes_back_as_it_was_written(manifest: Manifest) -> None:
    parsed = Manifest.parse(manifest.to_bytes(), "manifest")
    assert parsed == manifest


def test_a_manifest_is_json_with_documented_keys() -> None:
    assert json.loads(MANIFEST.to_bytes()) == {
        "format_version": 1,
        "cluster_id": "test-cluster",
        "topic": "orders",
        "topic_id": METADATA.topic_id_partition.topic_id,
        "partition": 0,
        "segment_id": METADATA.segment_id.id,
        "base_offset": 4200,
        "end_offset": 5199,
        "first_timestamp": None,
        "max_timestamp": 1_763_700_000_000,
        "copied_at": 1_763_723_000_000,
        "broker_id": 1,
        "size": 1000,
        "batch_count": 7,
        "record_count": 900,
        "leader_epochs": [[0, 0], [3, 4210]],
        "data_crc32c": "e3069283",
        "codec": "none",
        "key_id": None,
    }


def test_the_manifest_of_an_encoded_segment_lists_its_chunks() -> None:
    manifest = replace(MANIFEST, codec="zstd+aes-256-gcm", chunks=(EncodedChunk(600, 99, 7), EncodedChunk(400, 50, 8)))
    document = json.loads(manifest.to_bytes())
    assert (document["format_version"], document["codec"]) == (2, "zstd+aes-256-gcm")
    assert document["chunks"] == [[600, 99, 7], [400, 50, 8]]
    assert manifest.stored_size == 149
    assert Manifest.parse(manifest.to_bytes(), "manifest") == manifest
    for wrong in (None, [], [[600, 99, 7]], [[1000, 99]], [[1000, 99, -1]], [[1000, 99, True]], [3]):
        with pytest.raises(RemoteObjectCorruptError, match=r"^manifest: chunks"):
            Manifest.parse(json.dumps({**document, "chunks": wrong}).encode(), "manifest")


@pytest.mark.parametrize(
    "chunk",
    [
        [1000, HEAD_BYTES - 1, 0],
        [1000, HEAD_BYTES + MAX_PAYLOAD_BYTES + 1, 0],
        [MAX_CHUNK_BYTES + 1, 100, 0],
        [0, 100, 0],
    ],
    ids=["smaller than a head", "larger than any", "of more bytes than any", "of no bytes"],
)
def test_a_chunk_of_an_impossible_size_is_corrupt(chunk: list[int]) -> None:
    """A reader would ask the store for so much at once."""
    document = json.loads(replace(MANIFEST, codec="zstd", chunks=(EncodedChunk(1000, 99, 7),)).to_bytes())
    raw = json.dumps({**document, "size": chunk[0] + 1000, "chunks": [chunk, [1000, 99, 0]]}).encode()
    with pytest.raises(RemoteObjectCorruptError, match=r"^manifest: chunks"):
        Manifest.parse(raw, "manifest")


def test_metadata_are_made_again() -> None:
    expected = replace(METADATA, state=SegmentState.COPY_SEGMENT_FINISHED, custom_metadata=b"custom")
    assert MANIFEST.metadata(b"custom") == expected


def test_a_later_version_is_refused() -> None:
    with pytest.raises(LaterVersionError, match="version 3 "):
        Manifest.parse(changed(format_version=3, size="something else"), "manifest")


def test_keys_of_the_same_version_that_are_not_known_are_left_alone() -> None:
    assert Manifest.parse(changed(colour="blue", nested={"a": [1]}), "manifest") == MANIFEST


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("format_version", 0),
        ("format_version", None),
        ("cluster_id", ""),
        ("topic", 7),
        ("partition", -1),
        ("partition", 2**31),
        ("partition", True),
        ("base_offset", 1.0),
        ("base_offset", 2**63),
        ("base_offset", "4200"),
        ("end_offset", 4199),
        ("max_timestamp", -2),
        ("size", None),
        ("size", 10**400),
        ("batch_count", -1),
        ("leader_epochs", None),
        ("leader_epochs", [[0]]),
        ("leader_epochs", [[0, -1]]),
        ("leader_epochs", [["0", 0]]),
        ("leader_epochs", [3]),
        ("data_crc32c", "E3069283"),
        ("data_crc32c", "e306928"),
        ("codec", "rot13"),
        ("codec", None),
    ],
)
def test_a_field_that_cannot_be_meant_is_named(field: str, value: object) -> None:
    with pytest.raises(RemoteObjectCorruptError, match=f"^manifest: {field}[. ]"):
        Manifest.parse(changed(**{field: value}), "manifest")


@pytest.mark.parametrize(
    "raw",
    [b"", b"\xff\xfe", b"null", b"[]", b'"text"', b"{", b"[" * 100_000, b'{"format_version":NaN}', b" " * (9 << 20)],
)
def test_a_manifest_that_is_no_json_object_is_corrupt(raw: bytes) -> None:
    with pytest.raises(RemoteObjectCorruptError, match=r"^manifest: "):
        Manifest.parse(raw, "manifest")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(json.loads(MANIFEST.to_bytes()))), JSON))
def test_any_values_make_a_manifest_or_are_corrupt(fields: dict[str, object]) -> None:
    version = fields.get("format_version", FORMAT_VERSION)
    if type(version) is int and version > FORMAT_VERSION:
        with pytest.raises(LaterVersionError if version < 1 << 63 else RemoteObjectCorruptError):
            Manifest.parse(changed(**fields), "manifest")
        return
    try:
        manifest = Manifest.parse(changed(**fields), "manifest")
    except RemoteObjectCorruptError:
        return
    assert Manifest.parse(manifest.to_bytes(), "manifest") == manifest


@pytest.mark.parametrize(
    "other",
    [
        segment_metadata(1000),
        replace(METADATA, size=1001),
        replace(METADATA, end_offset=5200),
        replace(METADATA, leader_epochs=()),
    ],
)
def test_a_manifest_of_another_segment_is_reported(other: Any) -> None:
    MANIFEST.check_against(METADATA, "manifest")
    with pytest.raises(RemoteObjectCorruptError, match=r"^manifest: "):
        MANIFEST.check_against(other, "manifest")
