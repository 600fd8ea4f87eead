"""Batches whose records are at hand, uncompressed, by their addresses in memory, as decode_batches takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tiered_storage.kafka_log.machine_code import address_of
from tiered_storage.kafka_log.placed_batches import ENDS, HEADERS, STARTS, PlacedBatches

_FIRST_ROOM = 16


@dataclass(frozen=True, slots=True)
class OpenBatches:
    """The arrays of addresses of `count` batches, those from number `first` on of `placed`; they are its to keep."""

    placed: PlacedBatches
    first: int
    count: int
    headers: int
    starts: int
    ends: int
    size: int
    """How many bytes their records take."""
    viewed: Sequence[pa.Buffer | bytes | memoryview]
    """What views of values look into: all of one window, or the records of each batch."""
    view_base: int
    """Where the window begins; 0 where each batch has its own."""
    data_end: int
    """Up to where may be read ahead."""

    @classmethod
    def in_window(cls, placed: PlacedBatches) -> OpenBatches:
        """Return uncompressed batches as they lie in their window."""
        places = placed.places
        headers, starts, ends = (address_of(places[row]) for row in (HEADERS, STARTS, ENDS))
        return cls(
            placed, 0, placed.rows.size, headers, starts, ends, placed.total,
            (placed.data.data,), placed.data_end - placed.data.size, placed.data_end,
        )  # fmt: skip


class DecompressedBatches:
    """Takes the records of one batch after the other, of some that follow each other, and is then emptied."""

    def __init__(self) -> None:
        self._contents: list[pa.Buffer] = []
        self._take_room(np.zeros((3, _FIRST_ROOM), np.int64))
        self.size = 0
        """How many bytes there are."""

    def __len__(self) -> int:
        return len(self._contents)

    def add(self, header: int, content: bytes | memoryview) -> None:
        """Take the records of the batch whose header is at the address `header`."""
        buffer = pa.py_buffer(content)
        at, address, size = len(self._contents), buffer.address, buffer.size
        if at == self._room:
            wider = np.zeros((3, 2 * at), np.int64)
            wider[:, :at] = self._places
            self._take_room(wider)
        self._slots[at] = header
        self._slots[self._room + at] = address
        self._slots[2 * self._room + at] = address + size
        self._contents.append(buffer)
        self.size += size

    def opened(self, placed: PlacedBatches, first: int) -> OpenBatches:
        """Return what was taken, the batches from number `first` on of `placed`; valid until more is taken."""
        headers = self._address
        starts, ends = headers + 8 * self._room, headers + 16 * self._room
        return OpenBatches(placed, first, len(self._contents), headers, starts, ends, self.size, self._contents, 0, 0)

    def clear(self) -> None:
        self._contents = []
        self.size = 0

    def _take_room(self, places: NDArray[np.int64]) -> None:
        self._room = places.shape[1]
        self._places = places
        self._slots = places.reshape(-1).data
        self._address = address_of(places)
