"""Which transforms a segment has, and how its encoded chunks lie in its data object.

Chunks are frames, back to back, each with a head (big-endian).

    magic            4 bytes   "RLCH"
    version          uint8     1
    flags            uint8     1: compressed by zstd, 2: encrypted by AES-256-GCM
    reserved         uint16    0
    number           uint32    of the chunk in its segment, from 0
    original length  uint32    bytes of the log that the chunk holds, at most MAX_CHUNK_BYTES
    payload length   uint32    bytes that follow the head
    payload crc      uint32    CRC-32C of those

A segment's manifest lists its chunks, so a range is found without reading heads. If the manifest is lost, the heads
alone give the list again.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Self

from tiered_storage.errors import LaterVersionError, RemoteObjectCorruptError

ZSTD = "zstd"
AES_GCM = "aes-256-gcm"


@dataclass(frozen=True, slots=True)
class Encoding:
    """What to do with the chunks of a segment.

    With `compression`, each chunk is compressed by zstd if that makes it smaller; with `skips_compressed`, chunks whose
    batches are mostly compressed already stay as they are. With `encryption`, chunks and indexes are encrypted.
    """

    compression: bool = False
    encryption: bool = False
    skips_compressed: bool = True

    @property
    def is_plain(self) -> bool:
        """Whether the objects hold the bytes as Kafka wrote them."""
        return not (self.compression or self.encryption)

    @property
    def codec(self) -> str:
        """Its name in a manifest: "none", "zstd", "aes-256-gcm" or "zstd+aes-256-gcm"."""
        parts = [name for name, used in ((ZSTD, self.compression), (AES_GCM, self.encryption)) if used]
        return "+".join(parts) or "none"


PLAIN = Encoding()
ENCODINGS = {
    each.codec: each for each in (PLAIN, Encoding(True), Encoding(encryption=True), Encoding(True, encryption=True))
}
"""Every encoding by the name of its codec."""

MAGIC = b"RLCH"
VERSION = 1
COMPRESSED = 1
ENCRYPTED = 2
MAX_CHUNK_BYTES = 8 << 20
"""A longer run of batches is cut, so that a reader holds no more than this at once."""
MAX_PAYLOAD_BYTES = MAX_CHUNK_BYTES + 64

_HEAD = struct.Struct(">4sBBHIIII")
HEAD_BYTES = _HEAD.size


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """One chunk: `length` bytes of the log, `stored` in the object with its head, CRC-32C of its payload."""

    length: int
    stored: int
    payload_crc32c: int

    @property
    def is_possible(self) -> bool:
        """Whether its sizes are within the limits of the format: else no reader may ask for so much at once."""
        return 0 < self.length <= MAX_CHUNK_BYTES and HEAD_BYTES <= self.stored <= HEAD_BYTES + MAX_PAYLOAD_BYTES


@dataclass(frozen=True, slots=True)
class FrameHead:
    """The head of a chunk's frame."""

    flags: int
    number: int
    length: int
    payload_length: int
    payload_crc32c: int

    @classmethod
    def parse(cls, raw: bytes | memoryview, source: str, position: int) -> Self:
        """Read the head at `position` of the object `source`. Raises RemoteObjectCorruptError and LaterVersionError."""
        if len(raw) < HEAD_BYTES:
            raise RemoteObjectCorruptError(f"{source}: at byte {position}: it ends inside the head of a chunk")
        magic, version, flags, reserved, number, length, payload_length, crc = _HEAD.unpack_from(raw)
        if magic != MAGIC:
            raise RemoteObjectCorruptError(f"{source}: at byte {position}: no chunk begins there")
        if version > VERSION:
            raise LaterVersionError(f"{source}: at byte {position}: a chunk", version, VERSION)
        if version != VERSION or reserved or flags & ~(COMPRESSED | ENCRYPTED):
            raise RemoteObjectCorruptError(f"{source}: at byte {position}: the head of the chunk is damaged")
        if length > MAX_CHUNK_BYTES or payload_length > MAX_PAYLOAD_BYTES:
            raise RemoteObjectCorruptError(
                f"{source}: at byte {position}: a chunk of {length} bytes in {payload_length} is larger than any"
            )
        return cls(flags, number, length, payload_length, crc)

    @property
    def chunk(self) -> EncodedChunk:
        """The chunk as a manifest lists it."""
        return EncodedChunk(self.length, HEAD_BYTES + self.payload_length, self.payload_crc32c)

    def to_bytes(self) -> bytes:
        """Return the head's bytes."""
        return _HEAD.pack(
            MAGIC, VERSION, self.flags, 0, self.number, self.length, self.payload_length, self.payload_crc32c
        )


@dataclass(frozen=True, slots=True)
class PlacedChunk:
    """A chunk with its number, the position of its bytes in the log, and its place in the data object."""

    number: int
    position: int
    place: int
    chunk: EncodedChunk

    @property
    def end(self) -> int:
        """Where its bytes end in the log."""
        return self.position + self.chunk.length


@dataclass(frozen=True, slots=True)
class ChunkTable:
    """All chunks of a segment, in order."""

    chunks: tuple[EncodedChunk, ...]
    _positions: tuple[int, ...] = field(repr=False)
    _places: tuple[int, ...] = field(repr=False)

    @classmethod
    def of(cls, chunks: Iterable[EncodedChunk]) -> Self:
        """Return the table of `chunks`."""
        every = tuple(chunks)
        positions = tuple(accumulate((chunk.length for chunk in every), initial=0))
        return cls(every, positions, tuple(accumulate((chunk.stored for chunk in every), initial=0)))

    @property
    def size(self) -> int:
        """Bytes of the log."""
        return self._positions[-1]

    @property
    def stored_size(self) -> int:
        """Bytes of the data object."""
        return self._places[-1]

    def within(self, start: int, end: int) -> Iterator[PlacedChunk]:
        """Yield the chunks that hold bytes of the log from `start` (inclusive) to `end` (exclusive)."""
        number = max(bisect_right(self._positions, start) - 1, 0)
        while number < len(self.chunks) and self._positions[number] < end:
            yield PlacedChunk(number, self._positions[number], self._places[number], self.chunks[number])
            number += 1
