"""The bundle of indexes: its bytes, and what happens when they are others."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiered_storage.errors import ConfigurationError, LaterVersionError, RemoteObjectCorruptError
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.remote_log.storage.index_bundle import (
    HEAD_READ_BYTES,
    MAX_SECTION_BYTES,
    BundleHead,
    build_bundle,
    parse_bundle,
)
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind

CONTENTS = st.dictionaries(st.sampled_from(IndexKind), st.binary(max_size=300), min_size=1)


def with_head(count: int, rows: list[tuple[int, int, int, int]], body: bytes, version: int = 1) -> bytes:
    head = struct.pack(">4shh", b"RLIB", version, count)
    head += b"".join(struct.pack(">hhIqq", kind, 0, crc, position, length) for kind, crc, position, length in rows)
    return head + struct.pack(">I", crc32c(head)) + body


@settings(deadline=None)
@given(CONTENTS)
def test_a_bundle_gives_back_what_went_in(contents: dict[IndexKind, bytes]) -> None:
    assert parse_bundle(build_bundle(contents), "bundle") == contents


@settings(deadline=None)
@given(CONTENTS)
def test_one_section_is_read_with_nothing_but_the_head_and_itself(contents: dict[IndexKind, bytes]) -> None:
    bundle = build_bundle(contents)
    head = BundleHead.parse(bundle[: 8 + 24 * len(contents) + 4], "bundle", len(bundle))
    for kind, content in contents.items():
        section = head.sections[kind]
        piece = bundle[section.position : section.position + section.length]
        assert section.check(piece, "bundle") == content


def test_the_layout_is_the_documented_one() -> None:
    bundle = build_bundle({IndexKind.OFFSET: b"123456789", IndexKind.MANIFEST: b"{}"})
    start = 8 + 2 * 24 + 4
    rows = [(0, crc32c(b"{}"), start, 2), (4, 0xE3069283, start + 2, 9)]
    assert bundle == with_head(2, rows, b"{}123456789")


@settings(deadline=None)
@given(CONTENTS, st.data())
def test_every_changed_byte_is_found(contents: dict[IndexKind, bytes], data: st.DataObject) -> None:
    bundle = bytearray(build_bundle(contents))
    bundle[data.draw(st.integers(0, len(bundle) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(RemoteObjectCorruptError, match=r"^bundle: at byte"):
        parse_bundle(bytes(bundle), "bundle")


@settings(deadline=None)
@given(CONTENTS, st.data())
def test_every_cut_is_found(contents: dict[IndexKind, bytes], data: st.DataObject) -> None:
    bundle = build_bundle(contents)
    with pytest.raises(RemoteObjectCorruptError, match=r"^bundle: at byte"):
        parse_bundle(bundle[: data.draw(st.integers(0, len(bundle) - 1))], "bundle")


@settings(deadline=None)
@given(st.one_of(st.binary(max_size=200), st.binary(max_size=200).map(lambda raw: b"RLIB\0\x01" + raw)))
def test_any_bytes_are_a_bundle_or_corrupt(raw: bytes) -> None:
    with pytest.raises(RemoteObjectCorruptError):
        parse_bundle(raw, "bundle")


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([(4, 0, 36, 2**40)], "said to be"),
        ([(4, 0, 36, -1)], "said to be"),
        ([(4, 0, 0, 5)], "said to be"),
        ([(4, 0, 37, 5)], "said to be"),
        ([(4, 0, 36, 4)], "the bundle at 41"),
        ([(4, 0, 36, MAX_SECTION_BYTES + 1)], "said to be"),
        ([(4, 0, 60, 5), (4, 0, 65, 0)], "twice"),
    ],
)
def test_a_head_whose_sections_do_not_fill_the_bundle_is_refused(
    rows: list[tuple[int, int, int, int]], reason: str
) -> None:
    with pytest.raises(RemoteObjectCorruptError, match=reason):
        parse_bundle(with_head(len(rows), rows, b"12345"), "bundle")


def test_kinds_of_later_releases_are_passed_over() -> None:
    rows = [(4, crc32c(b"ab"), 60, 2), (900, crc32c(b"c"), 62, 1)]
    assert parse_bundle(with_head(2, rows, b"abc"), "bundle") == {IndexKind.OFFSET: b"ab"}


@pytest.mark.parametrize("count", [-1, 0, 1, 2**15 - 1])
def test_a_later_version_is_refused_whatever_follows(count: int) -> None:
    with pytest.raises(LaterVersionError):
        parse_bundle(struct.pack(">4shh", b"RLIB", 2, count) + bytes(40), "bundle")


def test_a_later_version_is_refused() -> None:
    with pytest.raises(LaterVersionError, match="version 2 "):
        parse_bundle(with_head(1, [(4, 0, 36, 0)], b"", version=2), "bundle")


@pytest.mark.parametrize("count", [0, 65, -1])
def test_a_count_of_sections_out_of_bounds_is_refused(count: int) -> None:
    with pytest.raises(RemoteObjectCorruptError, match="sections"):
        parse_bundle(with_head(count, [], b""), "bundle")


def test_the_largest_head_is_read_at_once() -> None:
    rows = [(kind, 0, 8 + 64 * 24 + 4, 0) for kind in range(64)]
    raw = with_head(64, rows, b"")
    assert len(raw) == 1548 < HEAD_READ_BYTES
    assert len(BundleHead.parse(raw, "bundle", len(raw)).sections) == 64


def test_bundles_that_no_reader_would_accept_are_not_built() -> None:
    with pytest.raises(ConfigurationError, match="at least one"):
        build_bundle({})
    with pytest.raises(ConfigurationError, match="OFFSET"):
        build_bundle({IndexKind.OFFSET: bytes(MAX_SECTION_BYTES + 1)})
