"""Compression of one chunk by zstd, and whether it is worth trying."""

from __future__ import annotations

import struct
import threading

from tiered_storage.errors import RemoteObjectCorruptError

LEVEL = 3
_LENGTH = struct.Struct(">i")
_BEFORE_LENGTH, _MAGIC_AT, _ATTRIBUTES_OF_2, _ATTRIBUTES_BEFORE_2 = 8, 16, 22, 17
_OVERHEAD = 12
_CODEC_BITS = 0x07
_MOST_BATCHES = 200
_of_thread = threading.local()


def compress(content: bytes) -> bytes | None:
    """Return `content` as a zstd frame; None if that is not smaller."""
    import zstandard

    compressor = getattr(_of_thread, "compressor", None)
    if compressor is None:
        compressor = _of_thread.compressor = zstandard.ZstdCompressor(level=LEVEL)
    compressed: bytes = compressor.compress(content)
    return compressed if len(compressed) < len(content) else None


def decompress(compressed: bytes, length: int, source: str) -> bytes:
    """Return the `length` bytes of a zstd frame. Raises RemoteObjectCorruptError if it holds anything else."""
    import zstandard

    try:
        declared = zstandard.frame_content_size(compressed)
        if declared != length:
            raise RemoteObjectCorruptError(f"{source}: zstd holds {declared} bytes, not {length}")
        return zstandard.ZstdDecompressor().decompress(compressed, max_output_size=length)
    except zstandard.ZstdError as error:
        raise RemoteObjectCorruptError(f"{source}: zstd cannot decompress it ({error})") from error


def is_compressed_already(content: bytes) -> bool:
    """Return whether at least half of the first batches' bytes are compressed, by the batches' headers.

    `content` begins with a batch; looks at 200 of them at most.
    """
    position = seen = compressed = 0
    for _ in range(_MOST_BATCHES):
        if position + _ATTRIBUTES_OF_2 >= len(content):
            break
        size = _LENGTH.unpack_from(content, position + _BEFORE_LENGTH)[0] + _OVERHEAD
        magic = content[position + _MAGIC_AT]
        if size <= _ATTRIBUTES_OF_2 or magic > 2:
            break
        size = min(size, len(content) - position)
        attributes = content[position + (_ATTRIBUTES_OF_2 if magic == 2 else _ATTRIBUTES_BEFORE_2)]
        seen += size
        compressed += size if attributes & _CODEC_BITS else 0
        position += size
    return 0 < seen <= 2 * compressed
