"""Decompress a batch's records in one call, if the bytes themselves show that this is safe.

Each function returns the contents, or None if only decompressing piece by piece can show: the claimed size is out of
all proportion or beyond the cap, data follow the end, the data are corrupt, or the codec cannot report it. One call
writes its output once; pieces are joined at the end, which costs up to half of the speed.

    codec   output is at most                where the data ends                    claimed size
    lz4     255 bytes a byte                 the codec reports it                   maybe in the frame's header
    zstd    128 KiB a block, by its header   after the last block and a checksum   maybe in the frame's header

Source: RFC 8878 (Zstandard), the LZ4 frame format.
"""

from __future__ import annotations

import threading

import lz4.frame
import zstandard

_LZ4_MAX_RATIO = 255
_LZ4_CONTENT_SIZE_FLAG = 1 << 3
_LZ4_CONTENT_SIZE_END = 14
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_CHECKSUM_FLAG = 1 << 2
_ZSTD_BLOCK_BYTES = 128 << 10
_ZSTD_REPEATED = 1
_ZSTD_COMPRESSED = 2


class _ThreadCodecs(threading.local):
    """A Zstandard decompressor per thread: two threads must not share one."""

    def __init__(self) -> None:
        self.zstd = zstandard.ZstdDecompressor()


_codecs = _ThreadCodecs()


def zstd_decompressor() -> zstandard.ZstdDecompressor:
    """Return this thread's decompressor: finish decompressing piece by piece before any other use."""
    return _codecs.zstd


def unlz4_whole(data: memoryview, max_bytes: int) -> bytes | None:
    """Return the contents if `data` is one LZ4 frame; None if that is not certain."""
    most = _LZ4_MAX_RATIO * len(data)
    if most > max_bytes or len(data) < _LZ4_CONTENT_SIZE_END:
        return None
    if data[4] & _LZ4_CONTENT_SIZE_FLAG and int.from_bytes(data[6:_LZ4_CONTENT_SIZE_END], "little") > most:
        return None
    try:
        contents, consumed = lz4.frame.decompress(data, return_bytes_read=True)
    except RuntimeError:
        return None
    return contents if consumed == len(data) else None


def unzstd_whole(data: memoryview, max_bytes: int) -> bytes | None:
    """Return the contents if `data` is one Zstandard frame; None if that is not certain."""
    if data[:4] != _ZSTD_MAGIC:
        return None
    try:
        claimed = zstandard.frame_content_size(data)
        if 0 < claimed <= _ZSTD_BLOCK_BYTES and claimed <= max_bytes:
            # A small size may be claimed without checking the blocks; the codec checks the end.
            return _codecs.zstd.decompress(data, allow_extra_data=False)
        end, most = _walk_zstd_blocks(data)
        if end != len(data) or most > max_bytes or claimed > most:
            return None
        contents = _codecs.zstd.decompress(data, max_output_size=most)
    except zstandard.ZstdError:
        return None
    return contents or None  # the codec does not look past a claim of 0


def _walk_zstd_blocks(data: memoryview) -> tuple[int, int]:
    """Return the end of the frame, by the sizes of its blocks, and the most bytes that it can hold."""
    position = zstandard.frame_header_size(data)
    most = 0
    is_last = 0
    while not is_last and position < len(data):
        header = int.from_bytes(data[position : position + 3], "little")
        is_last, kind, size = header & 1, header >> 1 & 3, header >> 3
        most += _ZSTD_BLOCK_BYTES if kind == _ZSTD_COMPRESSED else size
        position += 3 + (1 if kind == _ZSTD_REPEATED else size)
    has_checksum = data[4] & _ZSTD_CHECKSUM_FLAG
    return position + (4 if has_checksum else 0), most
