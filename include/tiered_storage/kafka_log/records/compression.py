"""The codecs of a batch's records, in the framings that Kafka's clients write into v2 batches.

    none     the records themselves
    gzip     one gzip member; further members are read too. Bytes that begin no further member end the contents
    snappy   xerial's framing, as Java writes it: a header of 16 bytes (82 'SNAPPY' 00, version and lowest
             compatible version, both int32 1), then blocks: int32 size, raw Snappy of up to 32 KiB. Another header
             may stand where a block does; fewer bytes than a size has end the contents.
             librdkafka writes one raw Snappy block without framing: read too
    lz4      one LZ4 frame of independent blocks (Java reads no others); what follows its end is not looked at
    zstd     one Zstandard frame; further frames are read too. The last of several may lack its end, if the one
             before it ended in the same piece of 131,075 bytes, as Java reads them

Java's codecs are that lenient, so a broker accepts such bytes and its consumers read them. Compressed bytes do not
reliably show the size of their contents, so output grows piece by piece and stops at a cap.

Source: KIP-98, KIP-110 (zstd); released Kafka and librdkafka; snappy-java's stream format.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from typing import cast

import cramjam
import lz4.frame
import zstandard
from isal import isal_zlib

from tiered_storage.errors import CorruptRecordError
from tiered_storage.kafka_log.records.whole_decompression import unlz4_whole, unzstd_whole, zstd_decompressor

_MAGIC_AND_METHOD = b"\x1f\x8b\x08"
_FIXED_BYTES = 10
_CHECKSUM, _EXTRA, _NAME, _COMMENT = 2, 4, 8, 16
_TOO_FEW = 18
"""Fewer bytes hold no member: Java ignores them."""


def begins_member(data: bytes, position: int) -> bool:
    """Return whether a whole gzip header begins at `position`, with enough bytes for a member."""
    if len(data) - position <= _TOO_FEW or data[position : position + 3] != _MAGIC_AND_METHOD:
        return False
    flags, at = data[position + 3], position + _FIXED_BYTES
    if flags & _EXTRA:
        at += 2 + int.from_bytes(data[at : at + 2], "little")
    for flag in (_NAME, _COMMENT):
        if flags & flag:
            at = data.find(0, at) + 1
            if not at:
                return False
    if flags & _CHECKSUM:
        checksum = zlib.crc32(memoryview(data)[position:at]) & 0xFFFF
        if data[at : at + 2] != checksum.to_bytes(2, "little"):
            return False
        at += 2
    return at <= len(data)


DEFAULT_MAX_DECOMPRESSED_BYTES = 256 << 20
"""Far more than producers batch by default (at most 1 MiB), and little enough for a worker's memory."""

_PIECE_BYTES = 1 << 20
_LEAST_INPUT_BYTES = 1 << 10
_GZIP_WBITS = 31
_GZIP_LEVEL = 2
_ZSTD_LEVEL = 3
_ZSTD_INPUT_BYTES = 1024
"""A 4-byte Zstandard block can hold 128 KiB: this many bytes at once cannot yield more than about 43 MiB."""
_JAVA_ZSTD_INPUT_BYTES = zstandard.DECOMPRESSION_RECOMMENDED_INPUT_SIZE
"""How many bytes Java's stream reads at once: the maximum of a block and its header."""

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_LEAST_VERSION = 1
_XERIAL_SIZE_BYTES = 4
_XERIAL_BLOCK_BYTES = 32 << 10
_SNAPPY_MAX_RATIO = 22
"""Snappy's densest element takes 3 bytes and copies 64; a block that claims more is invalid."""


_CODEC_ERRORS: tuple[type[Exception], ...] = (
    cast("type[Exception]", isal_zlib.IsalError),  # its stub calls it an instance
    cramjam.DecompressionError,
    zstandard.ZstdError,
    RuntimeError,  # all that lz4.frame raises
    ValueError,  # ours, for errors that a codec does not report
)


class Compression(IntEnum):
    """A codec by its number, the lowest three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


WHOLE: Mapping[int, Callable[[memoryview, int], bytes | None]] = {
    Compression.LZ4: unlz4_whole,
    Compression.ZSTD: unzstd_whole,
}
"""A function of the data and the most that its contents may be, which returns them at once; None if uncertain."""


class _ThreadCodecs(threading.local):
    """A Zstandard compressor per thread: two threads must not share one."""

    def __init__(self) -> None:
        self.zstd_compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL)


_codecs = _ThreadCodecs()


def compress(compression: Compression, data: bytes) -> bytes:
    """Return `data` in the framing of `compression`."""
    match compression:
        case Compression.NONE:
            return data
        case Compression.GZIP:
            return isal_zlib.compress(data, _GZIP_LEVEL, _GZIP_WBITS)
        case Compression.SNAPPY:
            return _compress_xerial(data)
        case Compression.LZ4:
            return bytes(lz4.frame.compress(data, block_linked=False, store_size=False))
        case Compression.ZSTD:
            return _codecs.zstd_compressor.compress(data)


def decompress(
    compression: Compression,
    data: bytes | memoryview,
    *,
    max_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    source: str = "<memory>",
    source_position: int = 0,
) -> bytes:
    """Return the contents of `data`; like a broker, ignore what follows their end.

    Raises CorruptRecordError, naming `source` and `source_position`, for corrupt data and beyond `max_bytes` of output.
    """
    view = memoryview(data)
    try:
        whole = _whole(compression, view, max_bytes)
        return _joined_pieces(compression, view, max_bytes) if whole is None else whole
    except _TooLargeError as error:
        reason = f"{compression.name.lower()} data holds more than the {max_bytes} bytes allowed for one batch"
        raise CorruptRecordError(source, source_position, reason) from error
    except _CODEC_ERRORS as error:
        reason = f"{compression.name.lower()} data is broken: {error}"
        raise CorruptRecordError(source, source_position, reason) from error


class _TooLargeError(Exception):
    """The output exceeds its cap."""


def _whole(compression: Compression, data: memoryview, max_bytes: int) -> bytes | None:
    """Return all of the contents at once, or None if they must be decompressed piece by piece."""
    decompress_whole = WHOLE.get(compression)
    return decompress_whole(data, max_bytes) if decompress_whole else None


def _joined_pieces(compression: Compression, data: memoryview, max_bytes: int) -> bytes:
    pieces = []
    total = 0
    for piece in _pieces(compression, data, max_bytes):
        total += len(piece)
        if total > max_bytes:
            raise _TooLargeError
        pieces.append(piece)
    return b"".join(pieces)


def _pieces(compression: Compression, data: memoryview, max_bytes: int) -> Iterator[bytes]:
    match compression:
        case Compression.NONE:
            yield bytes(data)
        case Compression.GZIP:
            yield from _gzip_pieces(data)
        case Compression.SNAPPY:
            yield from _snappy_pieces(data, max_bytes)
        case Compression.LZ4:
            yield from _lz4_pieces(data)
        case Compression.ZSTD:
            yield from _zstd_pieces(data)


def _piece_bytes(data: memoryview) -> int:
    """gzip and lz4 copy the input that a piece leaves: pieces grow with the input, so that this stays linear."""
    return max(_PIECE_BYTES, 4 * len(data))


def _gzip_pieces(data: memoryview) -> Iterator[bytes]:
    """The input after a member is copied too: later members get little input at first, so that this stays linear."""
    position = 0
    content = b""
    input_bytes = len(data)
    while True:
        member = isal_zlib.decompressobj(_GZIP_WBITS)
        while not member.eof:
            taken = data[position : position + input_bytes]
            piece = member.decompress(taken, _piece_bytes(taken))
            if not piece and not taken and not member.eof:
                raise ValueError("it ends inside a member")
            position += len(taken) - len(member.unconsumed_tail) - len(member.unused_data)
            input_bytes *= 4
            yield piece
        if position == len(data):
            return
        content = content or bytes(data)
        if not begins_member(content, position):
            return
        input_bytes = _LEAST_INPUT_BYTES


def _lz4_pieces(data: memoryview) -> Iterator[bytes]:
    piece_bytes = _piece_bytes(data)
    frame = lz4.frame.LZ4FrameDecompressor()
    yield frame.decompress(data, max_length=piece_bytes)
    while not frame.eof:
        if frame.needs_input:
            raise ValueError("it ends inside a frame")
        yield frame.decompress(b"", max_length=piece_bytes)


def _zstd_pieces(data: memoryview) -> Iterator[bytes]:
    """If a frame ends in the last piece that Java reads, Java accepts an incomplete next frame."""
    position = 0
    last_end = 0
    java_reads_last = max(len(data) - 1, 0) // _JAVA_ZSTD_INPUT_BYTES * _JAVA_ZSTD_INPUT_BYTES
    decompressor = zstd_decompressor()
    frame: zstandard.ZstdDecompressionObj | None = decompressor.decompressobj()
    while position < len(data):
        frame = frame or decompressor.decompressobj()
        taken = data[position : position + _ZSTD_INPUT_BYTES]
        yield frame.decompress(taken)
        position += len(taken)
        if frame.eof:
            position -= len(frame.unused_data)
            frame, last_end = None, position
    if frame is not None and last_end <= java_reads_last:
        raise ValueError("it ends inside a frame")


def _compress_xerial(data: bytes) -> bytes:
    out = bytearray(_XERIAL_HEADER)
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES])
        out += struct.pack(">i", len(block))
        out += memoryview(block)
    return bytes(out)


def _snappy_pieces(data: memoryview, max_bytes: int) -> Iterator[bytes]:
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        yield _decompress_snappy_block(data, max_bytes)
        return
    position = len(_XERIAL_HEADER)
    if len(data) < position:
        raise ValueError("it ends inside its header")
    while (start := position + _XERIAL_SIZE_BYTES) <= len(data):
        if data[position : position + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:
            position += _xerial_header_bytes(data[position:])
            continue
        position = start + int.from_bytes(data[position:start], "big", signed=True)
        if not start <= position <= len(data):
            raise ValueError(f"the block at byte {start - _XERIAL_SIZE_BYTES} of {len(data)} does not end inside it")
        content = _decompress_snappy_block(data[start:position], max_bytes)
        max_bytes -= len(content)
        yield content


def _xerial_header_bytes(rest: memoryview) -> int:
    """Return the size of a further stream's header: its magic number cannot be a block's size."""
    version = rest[len(_XERIAL_MAGIC) : len(_XERIAL_MAGIC) + 4]
    if len(rest) < len(_XERIAL_HEADER) or int.from_bytes(version, "big", signed=True) < _XERIAL_LEAST_VERSION:
        raise ValueError("a header among the blocks is cut, or of an unknown version")
    return len(_XERIAL_HEADER)


def _decompress_snappy_block(block: memoryview, max_bytes: int) -> bytes:
    claimed = cramjam.snappy.decompress_raw_len(block)
    if claimed > _SNAPPY_MAX_RATIO * len(block):
        raise ValueError(f"a block of {len(block)} bytes claims to hold {claimed}")
    if claimed > max_bytes:
        raise _TooLargeError
    return bytes(cramjam.snappy.decompress_raw(block))
