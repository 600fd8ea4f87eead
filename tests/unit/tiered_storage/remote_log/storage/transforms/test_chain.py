"""Chunks on their way to the store and back, and all that can happen to them between."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.records import batches_of
from support.remote_segments import partition, reused_chunks, segment_bytes, segment_metadata
from tiered_storage.errors import LaterVersionError, RemoteChunkCorruptError, RemoteObjectCorruptError
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.kafka_log.records.compression import Compression
from tiered_storage.remote_log.model import RemoteLogSegmentId
from tiered_storage.remote_log.storage.transforms.aes_gcm import SegmentCipher, new_data_key
from tiered_storage.remote_log.storage.transforms.chain import (
    CHUNK_BYTES,
    ChunkCodec,
    EncodedChunks,
    most_stored_bytes,
)
from tiered_storage.remote_log.storage.transforms.encoding import (
    COMPRESSED,
    ENCODINGS,
    HEAD_BYTES,
    MAX_CHUNK_BYTES,
    ChunkTable,
    Encoding,
    FrameHead,
)

MIB = 1 << 20
SEGMENT = segment_metadata(0).segment_id
KEY = new_data_key()
ENCODED = [encoding for encoding in ENCODINGS.values() if not encoding.is_plain]


def codec(encoding: Encoding, size: int, segment_id: RemoteLogSegmentId = SEGMENT, key: bytes = KEY) -> ChunkCodec:
    return ChunkCodec(encoding, size, SegmentCipher.of(segment_id, key) if encoding.encryption else None)


def encoded(
    content: bytes, encoding: Encoding, ends: Sequence[int] | None = None, window: int = 3 * MIB
) -> tuple[bytes, ChunkTable]:
    known_ends = None if ends is None else (lambda: ends)
    chunks = EncodedChunks("an object", codec(encoding, len(content)), reused_chunks(content, window), known_ends)
    stored = b"".join(bytes(piece) for piece in chunks)
    assert (chunks.size, chunks.crc32c) == (len(content), crc32c(content))
    return stored, chunks.table


def decoded(stored: bytes, table: ChunkTable, by: ChunkCodec) -> bytes:
    return b"".join(
        by.decode(stored[placed.place : placed.place + placed.chunk.stored], placed, "an object")
        for placed in table.within(0, table.size)
    )


def text(size: int) -> bytes:
    return (b'{"order":17,"state":"shipped","city":"Oslo"}\n' * (size // 45 + 1))[:size]


@pytest.mark.parametrize("encoding", ENCODED, ids=lambda each: each.codec)
@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, 3 * MIB + 17])
def test_a_segment_comes_back_byte_for_byte(encoding: Encoding, size: int) -> None:
    for content in (segment_bytes(size), text(size)):
        stored, table = encoded(content, encoding)
        assert table.stored_size == len(stored) <= most_stored_bytes(size)
        assert decoded(stored, table, codec(encoding, size)) == content


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(0, 700_000),
    ends=st.lists(st.integers(1, 700_000), max_size=12).map(sorted),
    window=st.integers(1_000, 300_000),
)
def test_chunks_end_where_readers_ranges_end(size: int, ends: list[int], window: int) -> None:
    content = text(size)
    stored, table = encoded(content, Encoding(True, encryption=True), ends, window)
    assert decoded(stored, table, codec(Encoding(True, encryption=True), size)) == content
    borders = {placed.position for placed in table.within(0, size)} - {0}
    assert borders <= set(ends) | set(range(0, size, MAX_CHUNK_BYTES))
    assert all(placed.chunk.length <= MAX_CHUNK_BYTES for placed in table.within(0, size))


def test_a_run_without_ends_is_cut_into_chunks_that_fit_into_memory() -> None:
    content = segment_bytes(20 * MIB)
    _, table = encoded(content, Encoding(encryption=True), [19 * MIB])
    assert [chunk.length for chunk in table.chunks] == [8 * MIB, 8 * MIB, 3 * MIB, 1 * MIB]


@pytest.mark.parametrize(("start", "end", "numbers"), [(0, 1, [0]), (9, 11, [0, 1]), (10, 20, [1]), (25, 30, [2])])
def test_a_range_needs_only_the_chunks_that_hold_it(start: int, end: int, numbers: list[int]) -> None:
    chunk = FrameHead(0, 0, 10, 10, 0).chunk
    table = ChunkTable.of([chunk, chunk, chunk])
    assert [placed.number for placed in table.within(start, end)] == numbers
    assert [placed.place for placed in table.within(start, end)] == [number * (10 + HEAD_BYTES) for number in numbers]


def test_text_gets_smaller_and_what_zstd_cannot_shrink_stays_as_it_is() -> None:
    stored, _ = encoded(text(4 * MIB), Encoding(True))
    assert len(stored) < MIB
    content = segment_bytes(4 * MIB)
    stored, table = encoded(content, Encoding(True))
    assert len(stored) == len(content) + len(table.chunks) * HEAD_BYTES


@pytest.mark.parametrize(("skips", "flags"), [(True, 0), (False, COMPRESSED)])
def test_chunks_of_compressed_batches_are_compressed_only_if_asked(*, skips: bool, flags: int) -> None:
    # Snappy leaves zstd enough to do, so only the batches' headers can tell.
    content = b"".join(batches_of([1000] * 20, value=text(500), compression=Compression.SNAPPY))
    by = ChunkCodec(Encoding(True, skips_compressed=skips), len(content))
    head, payload = by.encode(content, 0, 0)
    assert head.flags == flags
    assert (bytes(payload) == content) is skips


def test_every_copy_of_the_same_bytes_is_encrypted_otherwise() -> None:
    content, encoding = text(MIB), Encoding(encryption=True)
    first, _ = encoded(content, encoding)
    chunks = EncodedChunks("x", codec(encoding, MIB, key=new_data_key()), reused_chunks(content, MIB), None)
    second = b"".join(bytes(piece) for piece in chunks)
    assert len(first) == len(second)
    assert content[:45] not in first
    assert sum(a == b for a, b in zip(first[HEAD_BYTES:9000], second[HEAD_BYTES:9000], strict=True)) < 200


@pytest.mark.parametrize("encoding", ENCODED, ids=lambda each: each.codec)
def test_a_changed_byte_is_found_wherever_it_is(encoding: Encoding) -> None:
    content = text(200_000)
    stored, table = encoded(content, encoding)
    by = codec(encoding, len(content))
    for position in [*range(HEAD_BYTES), HEAD_BYTES, len(stored) // 2, len(stored) - 1]:
        for bit in (0x01, 0x02):
            broken = bytearray(stored)
            broken[position] ^= bit
            with pytest.raises(RemoteChunkCorruptError, match="an object"):
                decoded(bytes(broken), table, by)


def test_a_chunk_of_another_segment_or_position_is_refused() -> None:
    encoding, content = Encoding(encryption=True), segment_bytes(2 * MIB)
    stored, table = encoded(content, encoding)
    first, second = stored[: len(stored) // 2], stored[len(stored) // 2 :]
    swapped = ChunkTable.of(reversed(table.chunks))
    with pytest.raises(RemoteObjectCorruptError, match="chunk"):
        decoded(second + first, swapped, codec(encoding, len(content)))
    head = FrameHead.parse(first, "x", 0)
    renumbered = replace(FrameHead.parse(second, "x", 0), number=0).to_bytes() + second[HEAD_BYTES:]
    other = ChunkTable.of([replace(head.chunk, payload_crc32c=table.chunks[1].payload_crc32c)])
    with pytest.raises(RemoteObjectCorruptError, match="does not decrypt"):
        decoded(renumbered, other, codec(encoding, len(content)))
    for another in (
        segment_metadata(0).segment_id,
        RemoteLogSegmentId(partition(1), SEGMENT.id),
        RemoteLogSegmentId(partition(topic_id="A" * 22), SEGMENT.id),
    ):
        with pytest.raises(RemoteObjectCorruptError, match="does not decrypt"):
            decoded(stored, table, codec(encoding, len(content), another))
    with pytest.raises(RemoteObjectCorruptError, match="does not decrypt"):
        decoded(stored, table, codec(encoding, len(content), key=os.urandom(32)))


def test_a_segment_that_lost_its_last_chunk_with_its_manifest_is_refused() -> None:
    encoding, content = Encoding(encryption=True), segment_bytes(2 * MIB)
    stored, table = encoded(content, encoding)
    shortened = ChunkTable.of(table.chunks[:1])
    with pytest.raises(RemoteObjectCorruptError, match="does not decrypt"):
        decoded(stored[: shortened.stored_size], shortened, codec(encoding, shortened.size))


def test_a_truncated_tag_is_refused() -> None:
    encoding = Encoding(encryption=True)
    stored, table = encoded(b"some records", encoding)
    with pytest.raises(RemoteObjectCorruptError, match="an object"):
        codec(encoding, 12).decode(stored[:-1], next(table.within(0, 12)), "an object")
    head = FrameHead.parse(stored, "x", 0)
    payload = stored[HEAD_BYTES:-1]
    changed = replace(head, payload_length=len(payload), payload_crc32c=crc32c(payload))
    with pytest.raises(RemoteObjectCorruptError, match="does not decrypt"):
        codec(encoding, 12).decode(
            changed.to_bytes() + payload, next(ChunkTable.of([changed.chunk]).within(0, 12)), "x"
        )


def test_zstd_that_holds_more_than_it_says_is_refused() -> None:
    by = codec(Encoding(True), 10)
    head, payload = codec(Encoding(True), 3 * MIB).encode(text(3 * MIB), 0, 0)
    assert head.flags == COMPRESSED
    changed = replace(head, length=10)
    with pytest.raises(RemoteObjectCorruptError, match="zstd"):
        by.decode(changed.to_bytes() + payload, next(ChunkTable.of([changed.chunk]).within(0, 10)), "an object")


def test_a_head_of_a_later_release_is_reported() -> None:
    raw = bytearray(FrameHead(0, 0, 1, 1, 0).to_bytes())
    raw[4] = 2
    with pytest.raises(LaterVersionError):
        FrameHead.parse(bytes(raw), "an object", 0)


@pytest.mark.parametrize("passed", [5, 15])
def test_a_source_of_another_size_than_announced_is_refused(passed: int) -> None:
    chunks = EncodedChunks("an object", codec(Encoding(True), 10), reused_chunks(bytes(passed), 4), None)
    with pytest.raises(RemoteObjectCorruptError, match="10 bytes were announced"):
        list(chunks)


def test_the_exception_of_the_source_comes_through() -> None:
    def broken() -> Iterator[memoryview]:
        yield from reused_chunks(bytes(5 * MIB), MIB)
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        list(EncodedChunks("x", codec(Encoding(True), 9 * MIB), broken(), None))
