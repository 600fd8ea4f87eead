"""A chunk of columns while it is being filled, and the state that decode_batches keeps in it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from tiered_storage.kafka_log.columnar.record_columns import Chunk, ChunkMemory
from tiered_storage.kafka_log.kernels import constants
from tiered_storage.kafka_log.kernels.machine_code import address_of


class ChunkFilling:
    """A chunk while batches are decoded into it, and the kernel's notes."""

    def __init__(self, memory: ChunkMemory) -> None:
        self._memory = memory
        self._chunk: Chunk | None = None
        self.progress = np.zeros(constants.PROGRESS_SIZE, np.int64)
        self._progress_address = address_of(self.progress)
        self.capacity = (0, 0)
        self.viewed: list[pa.Buffer] = []

    @property
    def is_begun(self) -> bool:
        return self._chunk is not None

    @property
    def record_bytes(self) -> int:
        """How many bytes of records are in the chunk."""
        return int(self.progress[constants.RECORD_BYTES])

    @property
    def viewed_bytes(self) -> int:
        """How many bytes the chunk keeps for its views, whether or not a view looks at them."""
        return sum(buffer.size for buffer in self.viewed)

    def begin(self, rows: int, size: int) -> None:
        """Take a new chunk for `rows` records of `size` bytes; the kernel's position among the batches is kept."""
        self.capacity = (rows, size)
        self._chunk = self._memory.allocate(rows, size)
        self.progress[constants.ROWS :] = 0
        self.viewed = []

    def arguments(self) -> tuple[int, int, int, int]:
        """Return the kernel's arguments: the addresses of the chunk, its capacity, and the address of its notes."""
        assert self._chunk is not None  # noqa: S101 -- it is begun before
        return address_of(self._chunk.places), *self.capacity, self._progress_address

    def end(self) -> Iterator[pa.RecordBatch]:
        """Yield the chunk, if there is anything in it."""
        chunk, self._chunk = self._chunk, None
        viewed, self.viewed = self.viewed, []
        if chunk is not None and self.progress[constants.ROWS]:
            yield self._memory.record_batch(chunk, self.progress, viewed)
