"""The commit marker and custom metadata."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.remote_segments import segment_metadata
from tiered_storage.errors import LaterVersionError, RemoteObjectCorruptError
from tiered_storage.remote_log.storage.commit_marker import CommitMarker

CRCS = st.integers(0, 2**32 - 1)
MARKERS = st.builds(CommitMarker, st.text(min_size=1), st.integers(0, 2**63 - 1), CRCS, st.integers(1, 2**63 - 1), CRCS)
METADATA = segment_metadata(1000)
MARKER = CommitMarker(METADATA.segment_id.id, 1000, 0xE3069283, 77, 5)


@settings(deadline=None)
@given(MARKERS)
def test_a_marker_comes_back_as_it_was_written(marker: CommitMarker) -> None:
    assert CommitMarker.parse(marker.to_bytes(), "marker") == marker


def test_a_marker_is_json_with_documented_keys() -> None:
    assert json.loads(MARKER.to_bytes()) == {
        "format_version": 1,
        "segment_id": METADATA.segment_id.id,
        "data_size": 1000,
        "data_crc32c": "e3069283",
        "indexes_size": 77,
        "indexes_crc32c": "00000005",
    }


def test_custom_metadata_say_the_same_in_18_bytes() -> None:
    raw = MARKER.custom_metadata()
    assert raw == bytes.fromhex("0001 e3069283 000000000000004d 00000005")
    assert CommitMarker.from_custom_metadata(METADATA, raw) == MARKER


@pytest.mark.parametrize("raw", [b"", b"\0", b"\0\1", bytes(18), b"\0\1" + bytes(17)])
def test_custom_metadata_of_others_are_refused(raw: bytes) -> None:
    with pytest.raises(RemoteObjectCorruptError, match="custom metadata"):
        CommitMarker.from_custom_metadata(METADATA, raw)


def test_custom_metadata_of_a_later_version_are_no_damage() -> None:
    with pytest.raises(LaterVersionError, match=r"custom metadata.*version 3"):
        CommitMarker.from_custom_metadata(METADATA, b"\0\3" + bytes(16))


def test_a_later_version_is_refused() -> None:
    later = json.dumps({**json.loads(MARKER.to_bytes()), "format_version": 3}).encode()
    with pytest.raises(LaterVersionError, match="later release"):
        CommitMarker.parse(later, "marker")


@pytest.mark.parametrize("is_encrypted", [True, False])
def test_the_marker_of_an_encoded_segment_has_the_size_of_its_object(is_encrypted: bool) -> None:
    marker = replace(MARKER, stored_size=700, is_encrypted=is_encrypted)
    assert json.loads(marker.to_bytes())["format_version"] == 2
    assert CommitMarker.parse(marker.to_bytes(), "marker") == marker
    metadata = replace(METADATA, size=MARKER.data_size, segment_id=replace(METADATA.segment_id, id=MARKER.segment_id))
    assert len(marker.custom_metadata()) == 27
    assert CommitMarker.from_custom_metadata(metadata, marker.custom_metadata()) == marker
    for raw in (marker.custom_metadata()[:-1], marker.custom_metadata() + b"x"):
        with pytest.raises(RemoteObjectCorruptError):
            CommitMarker.from_custom_metadata(metadata, raw)


@pytest.mark.parametrize("flag", [True, "no", 1.0, 2, None])
def test_only_0_and_1_say_whether_a_segment_is_encrypted(flag: object) -> None:
    marker = replace(MARKER, stored_size=700, is_encrypted=True)
    raw = json.dumps({**json.loads(marker.to_bytes()), "is_encrypted": flag}).encode()
    with pytest.raises(RemoteObjectCorruptError, match="is_encrypted"):
        CommitMarker.parse(raw, "marker")


@pytest.mark.parametrize("field", ["stored_size", "is_encrypted"])
def test_the_marker_of_an_encoded_segment_lacks_nothing(field: str) -> None:
    written = json.loads(replace(MARKER, stored_size=700, is_encrypted=True).to_bytes())
    del written[field]
    with pytest.raises(RemoteObjectCorruptError, match=f"{field} is missing"):
        CommitMarker.parse(json.dumps(written).encode(), "marker")


@settings(deadline=None)
@given(st.binary(max_size=100))
def test_any_bytes_are_a_marker_or_corrupt(raw: bytes) -> None:
    with pytest.raises(RemoteObjectCorruptError, match=r"^marker: "):
        CommitMarker.parse(raw, "marker")


def test_a_marker_is_shown_in_words() -> None:
    marker = CommitMarker("LRlSo8aWSY2Bd2IKwOXe9g", 1000, 0x12AB, 200, 0xCD)
    assert str(marker) == (
        "segment LRlSo8aWSY2Bd2IKwOXe9g, 1000 bytes of data with CRC-32C 000012ab, 200 of indexes with 000000cd"
    )
