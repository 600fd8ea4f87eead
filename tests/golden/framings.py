"""Framings of compressed batches: valid ones, and ones with something after their end or without one."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import cramjam
import lz4.frame
import zstandard

from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.kafka_log.kernels.constants import BATCH_OVERHEAD
from tiered_storage.kafka_log.records.compression import Compression, compress
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


_GARBAGE = b"garbage! garbage! garbage!"
_GZIP_HEADER = bytes.fromhex("1f8b0800000000000003")
_EMPTY_MEMBER = gzip.compress(b"", mtime=0)
_GZIP_CONTENT = _EMPTY_MEMBER[len(_GZIP_HEADER) :]
_XERIAL_HEADER = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_SKIPPABLE = bytes.fromhex("502a4d1804000000") + b"skip"
_LONG_SKIPPABLE = bytes.fromhex("502a4d18e0930400") + bytes(300_000)


def _gzip(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def _xerial_stream(data: bytes) -> bytes:
    return compress(Compression.SNAPPY, data)


def _lz4(data: bytes) -> bytes:
    return compress(Compression.LZ4, data)


def _lz4_checked(data: bytes) -> bytes:
    return bytes(lz4.frame.compress(data, block_linked=False, content_checksum=True))


def _zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def _member(flags: int, fields: bytes, content: bytes = _GZIP_CONTENT) -> bytes:
    """A gzip member whose header has `flags` and what they announce."""
    return _GZIP_HEADER[:3] + bytes([flags]) + _GZIP_HEADER[4:] + fields + content


def _with(pack: Callable[[bytes], bytes], tails: Mapping[str, bytes]) -> dict[str, Callable[[bytes], bytes]]:
    """Return a way to pack for each of `tails`, appended to what `pack` makes."""
    return {name: lambda data, tail=tail: pack(data) + tail for name, tail in tails.items()}  # type: ignore[misc]


def _in_halves(
    first: Callable[[bytes], bytes], second: Callable[[bytes], bytes], behind: bytes = b""
) -> Callable[[bytes], bytes]:
    return lambda data: first(data[: len(data) // 2]) + second(data[len(data) // 2 :]) + behind


def _framings(codec: Compression, packs: Mapping[str, Callable[[bytes], bytes]]) -> dict[str, Framing]:
    return {f"{codec.name.lower()}, {name}": Framing(codec, pack, lambda _: True) for name, pack in packs.items()}


ODD_FRAMINGS: dict[str, Framing] = {
    **_framings(
        Compression.GZIP,
        {
            **_with(
                _gzip,
                {
                    "eight zeros behind it": bytes(8),
                    "many zeros behind it": bytes(99),
                    "garbage behind it": _GARBAGE,
                    "half a header behind it": _GZIP_HEADER[:8],
                    "a header behind it": _GZIP_HEADER,
                    "too few bytes for a member behind it": _GZIP_HEADER + bytes(8),
                    "an empty member behind it": _EMPTY_MEMBER,
                    "an empty member and zeros behind it": _EMPTY_MEMBER + bytes(30),
                    "a member of another method behind it": b"\x1f\x8b\x09" + _EMPTY_MEMBER[3:],
                    "a member with a name behind it": _member(8, b"name\0"),
                    "a member with all fields behind it": _member(0x1D, b"\2\0xxname\0comment\0"),
                    "a name without an end behind it": _member(8, b"n" * 30, b""),
                    "a comment without an end behind it": _member(16, b"c" * 30, b""),
                    "a field without an end behind it": _member(4, b"\xff\xff" + bytes(30)),
                    "half a field's size behind it": _member(12, b"name" * 5 + b"\0", b"")[:19],
                    "a header with a wrong checksum behind it": _member(2, b"\1\1", _GZIP_CONTENT + bytes(9)),
                },
            ),
            "two members and zeros": _in_halves(_gzip, _gzip, bytes(30)),
        },
    ),
    **_framings(
        Compression.SNAPPY,
        {
            **_with(
                _xerial_stream,
                {
                    "a byte behind xerial's blocks": b"\0",
                    "three bytes behind xerial's blocks": b"abc",
                    "a header behind xerial's blocks": _XERIAL_HEADER,
                    "a header and three bytes behind xerial's blocks": _XERIAL_HEADER + b"abc",
                    "an empty block behind xerial's blocks": b"\0\0\0\1\0",
                },
            ),
            "two of xerial's streams": _in_halves(_xerial_stream, _xerial_stream),
            "xerial's streams, some empty": lambda data: (
                _xerial_stream(b"") * 2 + _in_halves(_xerial_stream, _xerial_stream)(data)
            ),
            "xerial's header of version 0": lambda data: _xerial_stream(data).replace(b"\0\0\0\1\0\0\0\1", bytes(8), 1),
        },
    ),
    **_framings(
        Compression.LZ4,
        _with(_lz4, {"garbage behind it": _GARBAGE, "a byte behind it": b"\0", "a frame behind it": _lz4(b"more")}),
    ),
    **_framings(
        Compression.ZSTD,
        {
            **_with(
                _zstd,
                {
                    "half a magic number behind it": _zstd(b"")[:2],
                    "half a frame behind it": _zstd(b"")[:-5],
                    "a skippable frame behind it": _SKIPPABLE,
                    "a long frame and the beginning of another behind it": _LONG_SKIPPABLE + _SKIPPABLE[:-2],
                    "half a skippable frame behind it": _SKIPPABLE[:-2],
                },
            ),
            "two frames, the last without its checksum": lambda data: _in_halves(_zstd, _zstd)(data)[:-4],
            "a skippable frame, then one without its checksum": lambda data: _SKIPPABLE + _zstd(data)[:-4],
        },
    ),
}
"""Those that brokers take, though hardly a client writes them."""

BROKEN_FRAMINGS: dict[str, Framing] = {
    **_framings(
        Compression.GZIP,
        _with(
            _gzip,
            {
                "a member without its end behind it": _EMPTY_MEMBER[:-1],
                "a broken member behind it": _GZIP_HEADER + b"\7" * 30,
                "a member with a wrong checksum behind it": _EMPTY_MEMBER[:-8] + b"\1" * 8,
            },
        ),
    ),
    **_framings(
        Compression.SNAPPY,
        _with(
            _xerial_stream,
            {
                "zeros behind xerial's blocks": bytes(9),
                "half a magic number behind xerial's blocks": XERIAL_MAGIC[:4],
                "half a header behind xerial's blocks": _XERIAL_HEADER[:12],
                "a header of version 0 behind xerial's blocks": XERIAL_MAGIC + bytes(8),
                "half a block behind xerial's blocks": b"\0\0\0\5abc",
            },
        ),
    ),
    **_framings(
        Compression.LZ4,
        {
            "without its end": lambda data: _lz4(data)[:-4],
            "without the end of its checksum": lambda data: _lz4_checked(data)[:-2],
            "two frames": _in_halves(_lz4, _lz4),
            "a skippable frame before it": lambda data: _SKIPPABLE + _lz4(data),
        },
    ),
    **_framings(
        Compression.ZSTD,
        {
            **_with(
                _zstd,
                {
                    "garbage behind it": _GARBAGE,
                    "a byte behind it": b"\0",
                    "the beginning of a long frame behind it": _LONG_SKIPPABLE[:-1],
                },
            ),
            "without its checksum": lambda data: _zstd(data)[:-4],
        },
    ),
}
"""Those that brokers refuse."""

WRONGLY_SUMMED = Framing(Compression.LZ4, lambda data: _lz4_checked(data)[:-4] + b"\1\2\3\4", lambda _: True)
"""What a broker takes and we do not: it leaves a frame's checksum alone."""
