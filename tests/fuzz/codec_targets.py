"""Targets: what each codec makes of a batch's compressed records, under a cap."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable

import cramjam
import lz4.frame
import zstandard

from fuzz.target import SOURCE, Target, value_or_error
from tiered_storage.kafka_log.records.compression import Compression, compress, decompress

MAX_BYTES = 1 << 20
SMALL_CAP = 1000

_ZSTD_WIDE_WINDOW = bytes.fromhex("28b52ffd0088")
"""A frame that wants 128 MiB of what was decompressed to be kept."""
_ZSTD_ZEROS, _ZSTD_LAST_ZEROS = bytes.fromhex("02001000"), bytes.fromhex("03001000")
"""128 KiB in 4 bytes."""
_CONTENTS = (b"", b"a", b"hello hello hello " * 20, bytes(range(256)) * 4, bytes(70_000))


def _decompressing(codec: Compression) -> Callable[[bytes], None]:
    def run(content: bytes) -> None:
        for cap in (MAX_BYTES, SMALL_CAP):
            found = value_or_error(lambda cap=cap: decompress(codec, content, max_bytes=cap, source=SOURCE))  # type: ignore[misc]
            if isinstance(found, bytes):
                assert len(found) <= cap
                assert decompress(codec, compress(codec, found)) == found

    return run


def _gzip_seeds() -> Iterable[bytes]:
    yield gzip.compress(b"one member", mtime=0) + gzip.compress(b"and another", mtime=0)
    yield gzip.compress(b"", mtime=0) * 3
    yield gzip.compress(bytes(2 << 20), mtime=0)
    yield bytes.fromhex("1f8b081e00000000000305006578747261") + b"name\0comment\0" + bytes(2)


def _snappy_seeds() -> Iterable[bytes]:
    yield bytes(cramjam.snappy.compress_raw(b"a raw block, as librdkafka writes it" * 3))
    yield compress(Compression.SNAPPY, bytes(range(256)) * 300)
    yield b"\xff\xff\xff\xff\x0f" + bytes(12)


def _lz4_seeds() -> Iterable[bytes]:
    for store_size in (False, True):
        yield bytes(lz4.frame.compress(b"linked blocks" * 20, block_linked=True, store_size=store_size))
        yield bytes(lz4.frame.compress(b"checksums" * 20, content_checksum=True, block_checksum=True))
    yield bytes.fromhex("502a4d1804000000") + b"skip" + compress(Compression.LZ4, b"behind a skippable frame")
    yield bytes.fromhex("02214c18") + bytes(20)


def _zstd_seeds() -> Iterable[bytes]:
    frame = zstandard.ZstdCompressor(level=3, write_content_size=False, write_checksum=True).compress(b"no size" * 20)
    yield frame
    yield frame + frame
    yield bytes.fromhex("502a4d1804000000") + b"skip" + frame
    yield zstandard.ZstdCompressor(level=19).compress(bytes(3000))
    yield _ZSTD_WIDE_WINDOW + _ZSTD_ZEROS * 7 + _ZSTD_LAST_ZEROS
    yield (_ZSTD_WIDE_WINDOW + _ZSTD_LAST_ZEROS) * 20


_MORE = {
    Compression.GZIP: _gzip_seeds,
    Compression.SNAPPY: _snappy_seeds,
    Compression.LZ4: _lz4_seeds,
    Compression.ZSTD: _zstd_seeds,
}


def _seeds(codec: Compression) -> Callable[[], Iterable[bytes]]:
    return lambda: [*(compress(codec, content) for content in _CONTENTS), *_MORE[codec]()]


CODEC_TARGETS = tuple(
    Target(codec.name.lower(), _decompressing(codec), _seeds(codec)) for codec in Compression if codec in _MORE
)
