"""Memory between two protected pages: a kernel that leaves its buffer ends the process at once."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tiered_storage.kafka_log.columnar.chunk_memory import Chunk, ChunkMemory
from tiered_storage.kafka_log.kernels import constants
from tiered_storage.kafka_log.kernels.machine_code import address_of

_PAGE = mmap.PAGESIZE
_PROT_NONE = 0


class GuardedRegion:
    """So many bytes, with a page on either side that can neither be read nor written."""

    def __init__(self, size: int) -> None:
        inner = -(-max(size, 1) // _PAGE) * _PAGE
        self._map = mmap.mmap(-1, inner + 2 * _PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._bytes = np.frombuffer(self._map, np.uint8)[_PAGE : _PAGE + inner]
        libc = ctypes.CDLL(None, use_errno=True)
        begin = self._bytes.ctypes.data
        for page in (begin - _PAGE, begin + inner):
            if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(_PAGE), _PROT_NONE):
                raise OSError(ctypes.get_errno(), "mprotect")

    @property
    def size(self) -> int:
        return self._bytes.size

    def at_end(self, size: int) -> NDArray[np.uint8]:
        """Return the last `size` bytes, right before the guard page."""
        return self._bytes[self._bytes.size - size :]

    def at_start(self, size: int) -> NDArray[np.uint8]:
        """Return the first `size` bytes, right after the guard page before them."""
        return self._bytes[:size]


class GuardedBuffers:
    """Gives guarded memory by name, and uses it again: mapping it costs more than decoding a small input."""

    def __init__(self) -> None:
        self._regions: dict[str, GuardedRegion] = {}

    def region(self, name: str, size: int) -> GuardedRegion:
        region = self._regions.get(name)
        if region is None or region.size < size:
            region = self._regions[name] = GuardedRegion(size)
        return region

    def holding(self, name: str, content: bytes, *, at_end: bool) -> NDArray[np.uint8]:
        """Return a copy of `content` that lies right before or after a guard page."""
        region = self.region(name, len(content))
        place = region.at_end(len(content)) if at_end else region.at_start(len(content))
        place[:] = np.frombuffer(content, np.uint8)
        return place


class GuardedChunkMemory(ChunkMemory):
    """Has the kernel write into guarded memory, and copies that to where the record batches are made from."""

    buffers = GuardedBuffers()

    def allocate(self, rows: int, size: int) -> Chunk:
        chunk = super().allocate(rows, size)
        content = chunk.memory[self.message_size :]
        self._slab = self._guarded("slab", content[: chunk.values])
        self._values = self._guarded("values", content[chunk.values :])
        places = chunk.places.copy()
        for part, place in enumerate(chunk.layout):
            if place >= 0:
                places[part] = address_of(self._slab) + place
        if places[constants.VALUES]:
            places[constants.VALUES] = address_of(self._values)
        return replace(chunk, places=places)

    def record_batch(
        self, chunk: Chunk, progress: NDArray[np.int64], viewed: Sequence[pa.Buffer] = ()
    ) -> pa.RecordBatch:
        content = chunk.memory[self.message_size :]
        content[: chunk.values] = self._slab
        content[chunk.values :] = self._values
        return super().record_batch(chunk, progress, viewed)

    def _reserve(self, size: int) -> None:
        super()._reserve(size)
        self.keys = self._guarded("keys", self.keys)
        keys, values, validity = self.header_texts
        self.header_texts = (
            self._guarded("header keys", keys),
            self._guarded("header values", values),
            self._guarded("header validity", validity),
        )
        key_ends, value_ends = (
            self._guarded(name, ends.view(np.uint8)).view(np.int32)
            for name, ends in zip(("key ends", "value ends"), self.header_ends, strict=True)
        )
        key_ends[0] = value_ends[0] = 0
        self.header_ends = (key_ends, value_ends)
        self._note_places()

    def _guarded(self, name: str, array: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return self.buffers.region(name, array.size).at_end(array.size)
