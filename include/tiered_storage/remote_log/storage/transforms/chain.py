"""Encode a segment's bytes on their way to the store, and decode its chunks.

Chunks are compressed in threads, some ahead of the store, and come out in order; DEPTH of them are in memory at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from tiered_storage.errors import REPAIR_ADVICE, LaterVersionError, RemoteChunkCorruptError, RemoteObjectCorruptError
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.remote_log.storage.transforms.aes_gcm import TAG_BYTES, ChunkIdentity, SegmentCipher
from tiered_storage.remote_log.storage.transforms.encoding import (
    COMPRESSED,
    ENCRYPTED,
    HEAD_BYTES,
    MAX_CHUNK_BYTES,
    ChunkTable,
    EncodedChunk,
    Encoding,
    FrameHead,
    PlacedChunk,
)
from tiered_storage.remote_log.storage.transforms.zstd import compress, decompress, is_compressed_already

CHUNK_BYTES = 1 << 20
"""The size of a chunk if the caller does not set the chunks' ends."""
MIN_CHUNK_BYTES = 64 << 10
"""Chunks end only this far apart, so that heads and tags stay a small share of the object."""
THREADS = 2
DEPTH = 6

Ends = Callable[[], Sequence[int]]


def most_stored_bytes(size: int) -> int:
    """Return the most bytes that the data object of `size` bytes of log can have."""
    return size + (size // MIN_CHUNK_BYTES + 1) * (HEAD_BYTES + TAG_BYTES)


@dataclass(frozen=True, slots=True)
class ChunkCodec:
    """Encodes and decodes the chunks of one segment of `segment_size` bytes; `cipher` is None without encryption."""

    encoding: Encoding
    segment_size: int
    cipher: SegmentCipher | None = None

    def encode(self, content: bytes | memoryview, number: int, position: int) -> tuple[FrameHead, bytes | memoryview]:
        """Return the head and the payload of the chunk `content`, which is at `position` of the log."""
        flags, payload = 0, content
        if self.encoding.compression and not (self.encoding.skips_compressed and is_compressed_already(bytes(content))):
            compressed = compress(bytes(content))
            if compressed is not None:
                flags, payload = COMPRESSED, compressed
        if self.cipher is not None:
            flags |= ENCRYPTED
            chunk = ChunkIdentity(flags, number, len(content), position, self.segment_size)
            payload = self.cipher.encrypt_chunk(payload, chunk)
        return FrameHead(flags, number, len(content), len(payload), crc32c(payload)), payload

    def decode(self, frame: bytes | memoryview, placed: PlacedChunk, source: str) -> bytes:
        """Return the bytes of the chunk whose frame, in the object `source`, is `frame`.

        Raises RemoteChunkCorruptError unless every byte is the one that was sent.
        """
        try:
            return self._decoded(frame, placed, source)
        except (RemoteObjectCorruptError, LaterVersionError) as error:
            # The manifest is of a version that we know, so a head of a later one is damaged.
            raise RemoteChunkCorruptError(f"{error}; {REPAIR_ADVICE}") from error

    def _decoded(self, frame: bytes | memoryview, placed: PlacedChunk, source: str) -> bytes:
        head = FrameHead.parse(frame, source, placed.place)
        where = f"{source}: at byte {placed.place}"
        if (head.number, head.chunk) != (placed.number, placed.chunk) or len(frame) != placed.chunk.stored:
            raise RemoteObjectCorruptError(
                f"{where}: chunk {head.number} ({_shown(head.chunk)}) is there; chunk {placed.number} "
                f"({_shown(placed.chunk)}) was sent. It was changed, truncated, or moved here from another position or "
                "segment"
            )
        payload = memoryview(frame)[HEAD_BYTES:]
        if bool(head.flags & ENCRYPTED) != (self.cipher is not None):
            raise RemoteObjectCorruptError(f"{where}: chunk {head.number} is not encoded as its manifest says")
        content: bytes | memoryview = payload
        if self.cipher is None:
            _check_payload(head, payload, where)
        else:
            chunk = ChunkIdentity(head.flags, head.number, head.length, placed.position, self.segment_size)
            try:
                # The tag covers every byte, so the checksum only distinguishes damage from an exchange.
                content = self.cipher.decrypt_chunk(payload, chunk, where)
            except RemoteObjectCorruptError:
                _check_payload(head, payload, where)
                raise
        if head.flags & COMPRESSED:
            return decompress(bytes(content), head.length, f"{where}: chunk {head.number}")
        if len(content) != head.length:
            raise RemoteObjectCorruptError(f"{where}: chunk {head.number} has {len(content)} bytes, not {head.length}")
        return bytes(content)


def _check_payload(head: FrameHead, payload: memoryview, where: str) -> None:
    found = crc32c(payload)
    if found != head.payload_crc32c:
        raise RemoteObjectCorruptError(
            f"{where}: chunk {head.number} has CRC-32C {found:08x}; {head.payload_crc32c:08x} was sent"
        )


def _shown(chunk: EncodedChunk) -> str:
    return f"{chunk.length} bytes of log, {chunk.stored} stored, CRC-32C {chunk.payload_crc32c:08x}"


class EncodedChunks:
    """The frames of a segment, as buffers to put; `table`, `size` and `crc32c` (of the log) are complete at the end.

    `ends` returns the ascending positions of the log, known so far, at which chunks end; None: every CHUNK_BYTES.
    """

    def __init__(self, name: str, codec: ChunkCodec, chunks: Iterator[memoryview], ends: Ends | None) -> None:
        self._name = name
        self._codec = codec
        self._source = chunks
        self._ends = ends
        self._chunks: list[EncodedChunk] = []
        self.size = 0
        self.crc32c = 0

    @property
    def table(self) -> ChunkTable:
        """The chunks so far."""
        return ChunkTable.of(self._chunks)

    def __iter__(self) -> Iterator[memoryview]:
        """Yield the frames. Raises what the source raises, and RemoteObjectCorruptError if its size is wrong."""
        if not self._codec.encoding.compression:
            for number, (position, content) in enumerate(self._cut()):
                yield from self._framed(self._codec.encode(content, number, position))
            return
        under_way: deque[Future[tuple[FrameHead, bytes | memoryview]]] = deque()
        with ThreadPoolExecutor(THREADS, thread_name_prefix="compress") as threads:
            try:
                for number, (position, content) in enumerate(self._cut()):
                    under_way.append(threads.submit(self._codec.encode, bytes(content), number, position))
                    if len(under_way) >= DEPTH:
                        yield from self._framed(under_way.popleft().result())
                while under_way:
                    yield from self._framed(under_way.popleft().result())
            finally:
                for future in under_way:
                    future.cancel()

    def _framed(self, encoded: tuple[FrameHead, bytes | memoryview]) -> Iterator[memoryview]:
        head, payload = encoded
        self._chunks.append(head.chunk)
        yield memoryview(head.to_bytes())
        yield memoryview(payload)

    def _cut(self) -> Iterator[tuple[int, bytes | memoryview]]:
        """Yield each chunk with its position in the log; it is valid until the next one is requested."""
        pending, begin = bytearray(), 0
        for window in self._source:
            view = window.cast("B")
            self.crc32c = crc32c(view, self.crc32c)
            window_start, self.size = self.size, self.size + len(view)
            self._check_size(ended=False)
            while begin < self.size:
                end = self._end_of_chunk(begin)
                if end is None:
                    break
                rest = view[max(begin, window_start) - window_start : end - window_start]
                # A chunk within one window is encrypted in place, before the next window is requested.
                yield begin, rest if begin >= window_start else bytes(pending + rest)
                pending.clear()
                begin = end
            pending += view[max(begin, window_start) - window_start :]
        self._check_size(ended=True)
        if pending:
            yield begin, bytes(pending)

    def _end_of_chunk(self, begin: int) -> int | None:
        """Return where the chunk that begins at `begin` ends; None: not within the bytes so far."""
        if self._ends is None:
            end = begin + CHUNK_BYTES
        else:
            ends = self._ends()
            row = bisect_left(ends, begin + MIN_CHUNK_BYTES)
            end = ends[row] if row < len(ends) else begin + MAX_CHUNK_BYTES
        end = min(end, begin + MAX_CHUNK_BYTES)
        return end if end <= self.size else None

    def _check_size(self, *, ended: bool) -> None:
        announced = self._codec.segment_size
        if self.size > announced or (ended and self.size < announced):
            raise RemoteObjectCorruptError(
                f"{self._name}: its source {'ended' if ended else 'continued'} after {announced} bytes were announced "
                f"and {self.size} came: has the file changed while it was copied?"
            )
