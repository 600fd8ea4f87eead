"""Which chunks are worth compressing, by their batches' headers."""

from __future__ import annotations

import tracemalloc

import pytest
import zstandard

from support.records import batches_of
from tiered_storage.errors import RemoteObjectCorruptError
from tiered_storage.kafka_log.records.compression import Compression
from tiered_storage.remote_log.storage.transforms.zstd import compress, decompress, is_compressed_already
from unit.tiered_storage.drawn_records import a_message_of_magic_1

PLAIN = b"".join(batches_of([50, 50], value=b"value" * 20))
PACKED = b"".join(batches_of([5000], value=b"value" * 20, compression=Compression.ZSTD))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (PLAIN, False),
        (PACKED, True),
        (PACKED[:1000], True),
        (PACKED + PLAIN[: len(PACKED) // 2], True),
        (PLAIN + PACKED[:100], False),
        (b"", False),
        (bytes(1000), False),
        (b"\xff" * 1000, False),
        (a_message_of_magic_1(0) * 3, False),
    ],
)
def test_chunks_of_compressed_batches_are_known_by_their_headers(content: bytes, expected: bool) -> None:
    assert is_compressed_already(content) is expected


def test_incompressible_data_are_not_compressed() -> None:
    assert compress(b"x") is None
    compressed = compress(PLAIN)
    assert compressed is not None
    assert decompress(compressed, len(PLAIN), "x") == PLAIN


def a_frame(size: int, *, has_size: bool = True) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=has_size).compress(bytes(size))


def _with_size(size: int) -> bytes:
    """A frame of 1 GiB whose head has another size: 4 bytes of it, after magic, descriptor and window."""
    frame = bytearray(a_frame(1 << 30))
    assert zstandard.frame_content_size(bytes(frame)) == 1 << 30
    descriptor = frame[4]
    at = 5 + (descriptor >> 5 & 1 ^ 1)
    frame[at : at + 4] = size.to_bytes(4, "little")
    assert zstandard.frame_content_size(bytes(frame)) == size
    return bytes(frame)


@pytest.mark.parametrize(
    "bomb",
    [
        a_frame(1 << 30),
        a_frame(1 << 30, has_size=False),
        _with_size(1000),
        a_frame(1000)[:4] + b"\xe0" + (1 << 62).to_bytes(8, "little") + a_frame(1000)[6:],
        a_frame(0) + a_frame(1 << 20),
    ],
    ids=["larger than expected", "of no size", "of another size", "of a huge size", "after an empty frame"],
)
def test_a_bomb_is_refused_within_bounds_of_memory(bomb: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(RemoteObjectCorruptError, match="an object"):
            decompress(bomb, 1000, "an object")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
