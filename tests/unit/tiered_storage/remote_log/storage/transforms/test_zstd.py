"""Which chunks are worth compressing, by their batches' headers."""

from __future__ import annotations

import pytest

from support.records import a_message_of_magic_1, batches_of
from tiered_storage.kafka_log.records.compression import Compression
from tiered_storage.remote_log.storage.transforms.zstd import compress, decompress, is_compressed_already

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


def test_what_gets_no_smaller_is_not_compressed() -> None:
    assert compress(b"x") is None
    compressed = compress(PLAIN)
    assert compressed is not None
    assert decompress(compressed, len(PLAIN), "x") == PLAIN
