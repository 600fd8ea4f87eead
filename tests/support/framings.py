"""The framings in which records may stand in a compressed batch: one codec, several ways to write the same bytes."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from dataclasses import dataclass

import cramjam
import lz4.frame
import zstandard

from tiered_storage.kafka_log.kernels.batch_layout import BATCH_OVERHEAD
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.kafka_log.records.compression import Compression
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import encode_batch

XERIAL_MAGIC = b"\x82SNAPPY\x00"
GZIP_MAGIC = b"\x1f\x8b\x08"
_XERIAL_VERSIONS = struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 64


@dataclass(frozen=True, slots=True)
class Framing:
    """A way to `pack` bytes with a codec; `is_shown_by` says whether packed bytes are of this framing."""

    codec: Compression
    pack: Callable[[bytes], bytes]
    is_shown_by: Callable[[bytes], bool]


def batch_in(framing: Framing, records: list[Record]) -> bytes:
    """Return a sound batch of `records`, packed by `framing`."""
    plain = encode_batch(records)
    batch = bytearray(plain[:BATCH_OVERHEAD] + framing.pack(plain[BATCH_OVERHEAD:]))
    batch[22] |= framing.codec
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    return bytes(batch)


def _halves(data: bytes) -> tuple[bytes, bytes]:
    return data[: len(data) // 2], data[len(data) // 2 :]


def _gzip_members(data: bytes) -> bytes:
    return b"".join(gzip.compress(half, mtime=0) for half in _halves(data))


def _raw_snappy(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def _xerial(data: bytes) -> bytes:
    blocks = [_raw_snappy(data[at : at + _XERIAL_BLOCK_BYTES]) for at in range(0, len(data), _XERIAL_BLOCK_BYTES)]
    return XERIAL_MAGIC + _XERIAL_VERSIONS + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


def _lz4_frame(data: bytes, *, with_size: bool, with_checksums: bool = False, linked: bool = False) -> bytes:
    """Two blocks in a frame."""
    compressor = lz4.frame.LZ4FrameCompressor(
        block_linked=linked, auto_flush=True, content_checksum=with_checksums, block_checksum=with_checksums
    )
    begun = compressor.begin(source_size=len(data) if with_size else 0)
    return bytes(begun + b"".join(compressor.compress(half) for half in _halves(data)) + compressor.flush())


def _zstd_frame(data: bytes, *, with_size: bool) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=with_size).compress(data)


def _lz4_flags(packed: bytes) -> int:
    return packed[4]


def _zstd_size(packed: bytes) -> int:
    return zstandard.frame_content_size(packed)


FRAMINGS: dict[str, Framing] = {
    "gzip, one member": Framing(
        Compression.GZIP, lambda data: gzip.compress(data, mtime=0), lambda packed: packed.count(GZIP_MAGIC) == 1
    ),
    "gzip, two members": Framing(Compression.GZIP, _gzip_members, lambda packed: packed.count(GZIP_MAGIC) == 2),
    "snappy, raw": Framing(Compression.SNAPPY, _raw_snappy, lambda packed: not packed.startswith(XERIAL_MAGIC)),
    "snappy, xerial's blocks": Framing(Compression.SNAPPY, _xerial, lambda packed: packed.startswith(XERIAL_MAGIC)),
    "lz4, without content size": Framing(
        Compression.LZ4, lambda data: _lz4_frame(data, with_size=False), lambda packed: _lz4_flags(packed) == 0x60
    ),
    "lz4, with content size": Framing(
        Compression.LZ4, lambda data: _lz4_frame(data, with_size=True), lambda packed: _lz4_flags(packed) == 0x68
    ),
    "lz4, with checksums": Framing(
        Compression.LZ4,
        lambda data: _lz4_frame(data, with_size=False, with_checksums=True),
        lambda packed: _lz4_flags(packed) == 0x74,
    ),
    "zstd, without content size": Framing(
        Compression.ZSTD, lambda data: _zstd_frame(data, with_size=False), lambda packed: _zstd_size(packed) == -1
    ),
    "zstd, with content size": Framing(
        Compression.ZSTD, lambda data: _zstd_frame(data, with_size=True), lambda packed: _zstd_size(packed) > 0
    ),
    "zstd, two frames": Framing(
        Compression.ZSTD,
        lambda data: b"".join(_zstd_frame(half, with_size=True) for half in _halves(data)),
        lambda packed: packed.count(zstandard.FRAME_HEADER) == 2,
    ),
}
"""Those that brokers take; librdkafka's consumer does not get past gzip of two members."""

REFUSED_FRAMINGS: dict[str, Framing] = {
    "lz4, linked blocks": Framing(
        Compression.LZ4,
        lambda data: _lz4_frame(data, with_size=False, linked=True),
        lambda packed: _lz4_flags(packed) == 0x40,
    ),
}
"""Those that brokers refuse and we read."""
