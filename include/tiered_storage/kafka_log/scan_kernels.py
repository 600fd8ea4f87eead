"""The loops over a window of batches, compiled by numba; the layout of what they read is in batch_header.py.

Compiling takes seconds once a machine: the machine code is cached beside this file, or in NUMBA_CACHE_DIR. Every kernel
releases the GIL and reads inside the window alone: `count_batches` bounds what the others are given.

CRC-32C comes from the C library that google-crc32c's extension is linked with. Compiled code, cached too, refers to it
by a name of our own, and LLVM ends the process where nobody has defined that: `checksum_kernel` does.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from llvmlite import binding
from numba import njit, types
from numpy.typing import NDArray

from tiered_storage.kafka_log.batch_header import (
    BATCH_OVERHEAD,
    CRC_END,
    HIGHEST_OFFSET,
    INT32_MAX,
    LOG_OVERHEAD,
    MAGIC,
)

HEADERS_SOUND = 0
BROKEN_HEADER = 1
BROKEN_OFFSETS = 2

_CRC32C_SYMBOL = "tiered_storage_crc32c_extend"
_crc32c_extend = cast(
    "Callable[[np.uint32, np.uintp, np.uintp], np.uint32]",
    types.ExternalFunction(_CRC32C_SYMBOL, types.uint32(types.uint32, types.uintp, types.uintp)),
)

ChecksumKernel = Callable[[NDArray[np.uint8], int, NDArray[np.int64], NDArray[np.int64]], int]
_Function = TypeVar("_Function", bound=Callable[..., Any])


def _compiled(function: _Function) -> _Function:
    return cast("_Function", njit(nogil=True, cache=True)(function))


@_compiled
def _int16(window: NDArray[np.uint8], at: np.int64) -> np.int16:
    place = np.uintp(at)  # unsigned, no index can be meant from the end: the bytes are loaded as one number
    return np.int16((np.int32(window[place]) << 8) | np.int32(window[place + np.uintp(1)]))


@_compiled
def _uint32(window: NDArray[np.uint8], at: np.int64) -> np.uint32:
    place = np.uintp(at)
    high = np.uint32(np.uint32(window[place]) << 24) | np.uint32(np.uint32(window[place + np.uintp(1)]) << 16)
    low = np.uint32(np.uint32(window[place + np.uintp(2)]) << 8) | np.uint32(window[place + np.uintp(3)])
    return np.uint32(high | low)


@_compiled
def _int32(window: NDArray[np.uint8], at: np.int64) -> np.int32:
    return np.int32(_uint32(window, at))


@_compiled
def _int64(window: NDArray[np.uint8], at: np.int64) -> np.int64:
    return np.int64((np.uint64(_uint32(window, at)) << 32) | np.uint64(_uint32(window, at + 4)))


@_compiled
def count_batches(window: NDArray[np.uint8]) -> int:
    """Return how many whole batches, by their sizes alone, lie one behind the other from the start of `window`."""
    count = 0
    at = np.int64(0)
    while at + BATCH_OVERHEAD <= window.size:
        size = np.int64(_int32(window, at + 8)) + LOG_OVERHEAD
        if size < BATCH_OVERHEAD or at + size > window.size:
            break
        count += 1
        at += size
    return count


@_compiled
def read_headers(
    window: NDArray[np.uint8],
    window_position: int,
    base_offset: int,
    next_offset: int,
    columns: tuple[NDArray[Any], ...],
) -> tuple[int, int, int]:
    """Fill `columns`, those of a BatchTable, with as many rows as it has from the batches that `window` begins with.

    `window_position` is the window's place in its file, `base_offset` the segment's, `next_offset` the lowest that the
    first batch may have. Returns the rows that are right, their bytes, and what breaks the batch behind them.
    """
    (
        base_offsets, last_offsets, positions, sizes, base_timestamps, max_timestamps, leader_epochs, attributes,
        record_counts, producer_ids, producer_epochs, base_sequences,
    ) = columns  # fmt: skip
    at = np.int64(0)
    lowest = np.int64(next_offset)
    for row in range(base_offsets.size):
        first = _int64(window, at)
        delta = np.int64(_int32(window, at + 23))
        flags = _int16(window, at + 21)
        count = _int32(window, at + 57)
        if window[at + 16] != MAGIC or first < 0 or delta < 0 or count < 0 or count > delta + 1 or flags & 7 > 4:
            return row, int(at), BROKEN_HEADER
        if first > HIGHEST_OFFSET - delta:
            return row, int(at), BROKEN_HEADER
        if first < lowest or first - base_offset > INT32_MAX - delta:
            return row, int(at), BROKEN_OFFSETS
        base_offsets[row] = first
        last_offsets[row] = first + delta
        positions[row] = window_position + at
        sizes[row] = np.int64(_int32(window, at + 8)) + LOG_OVERHEAD
        base_timestamps[row] = _int64(window, at + 27)
        max_timestamps[row] = _int64(window, at + 35)
        leader_epochs[row] = _int32(window, at + 12)
        attributes[row] = flags
        record_counts[row] = count
        producer_ids[row] = _int64(window, at + 43)
        producer_epochs[row] = _int16(window, at + 51)
        base_sequences[row] = _int32(window, at + 53)
        lowest = first + delta + 1
        at += sizes[row]
    return base_offsets.size, int(at), HEADERS_SOUND


@functools.cache
def checksum_kernel() -> ChecksumKernel | None:
    """Return the loop that compares the CRC-32C of batches, or None where this installation lacks the C library.

    It takes a window, its place in its file, and the places and sizes of whole batches in it, as a BatchTable has them.
    It returns the row of the first batch whose bytes do not have the checksum that its header says, or -1.
    """
    address = crc32c_address()
    if not address:
        return None
    binding.add_symbol(_CRC32C_SYMBOL, address)
    return _first_checksum_mismatch


@functools.cache
def crc32c_address() -> int:
    """Return the address of the C library's crc32c_extend(uint32 crc, bytes, size_t), or 0 where it is not there."""
    try:
        from google_crc32c import _crc32c  # noqa: PLC0415 -- the package also comes without this extension

        crc32c_extend = ctypes.CDLL(_crc32c.__file__).crc32c_extend
    except (ImportError, OSError, AttributeError):
        return 0
    return ctypes.cast(crc32c_extend, ctypes.c_void_p).value or 0


@_compiled
def _first_checksum_mismatch(
    window: NDArray[np.uint8], window_position: int, positions: NDArray[np.int64], sizes: NDArray[np.int64]
) -> int:
    address = window.ctypes.data
    for row in range(positions.size):
        at = positions[row] - window_position
        computed = _crc32c_extend(np.uint32(0), np.uintp(address + at + CRC_END), np.uintp(sizes[row] - CRC_END))
        if computed != _uint32(window, at + 17):
            return row
    return -1
