"""Runs the kernels as ordinary Python, where coverage guides a fuzzer and each access to memory is checked.

`interpret_kernels` has to be called before anything imports numba: it is numba that would compile them. What the
kernels do by address is then done here, inside of the memory alone that a kernel was given.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from tiered_storage.kafka_log.kernels import constants

_Region = tuple[int, int, bool]
_HEADER_BYTES = 61


class CheckedMemory:
    """The memory that a kernel was given: where it begins and ends, and whether the kernel may write there."""

    def __init__(self) -> None:
        self._regions: list[_Region] = []

    def forget(self) -> None:
        self._regions.clear()

    def allow_reading(self, begin: int, size: int) -> None:
        self._regions.append((begin, begin + size, False))

    def allow_writing(self, begin: int, size: int) -> None:
        self._regions.append((begin, begin + size, True))

    def load(self, address: int, size: int) -> bytes:
        self._check(address, size, to_write=False)
        return ctypes.string_at(int(address), size)

    def load_big_endian(self, address: int, size: int) -> np.int64:
        return np.int64(int.from_bytes(self.load(address, size), "big", signed=True))

    def words(self, address: int, count: int) -> list[int]:
        """Return what a caller has put there; no kernel asks."""
        return [*memoryview(ctypes.string_at(address, 8 * count)).cast("q")]

    def store(self, address: int, value: np.generic) -> None:
        content = value.tobytes()
        self._check(address, len(content), to_write=True)
        ctypes.memmove(int(address), content, len(content))

    def copy(self, target: int, source: int, size: int) -> None:
        if size:
            self._check(source, size, to_write=False)
            self._check(target, size, to_write=True)
            ctypes.memmove(int(target), int(source), int(size))

    def _check(self, address: int, size: int, *, to_write: bool) -> None:
        for begin, end, is_writeable in self._regions:
            if begin <= address and address + size <= end and (is_writeable or not to_write):
                return
        verb = "writes" if to_write else "reads"
        raise AssertionError(f"a kernel {verb} {size} bytes outside of the memory that it was given")


class InterpretedKernels:
    """The kernels as they are called, each with just the memory that its arguments give it."""

    def __init__(self, memory: CheckedMemory) -> None:
        from tiered_storage.kafka_log.kernels import decode_kernels, scan_kernels

        self._memory = memory
        self._scan = scan_kernels
        self._decode = decode_kernels

    def count_batches(self, window: int, size: int) -> int:
        self._begin(window, size)
        return self._scan.count_batches(window, size)

    def read_headers(self, window: int, size: int, *numbers: int) -> int:
        *_, table, rows, result = numbers
        self._begin(window, size)
        self._memory.allow_writing(table, 72 * rows)
        self._memory.allow_writing(result, 16)
        return self._scan.read_headers(window, size, *numbers)

    def first_mismatch(self, *_: int) -> int:
        raise AssertionError("interpreted code has no instructions for checksums")

    def place_batches(self, window: int, size: int, *numbers: int) -> int:
        _, positions, sizes, rows, count, places, totals = numbers
        self._begin(window, size)
        length = 8 * (max(self._memory.words(rows, count), default=-1) + 1)
        for column, column_size in ((positions, length), (sizes, length), (rows, 8 * count)):
            self._memory.allow_reading(column, column_size)
        self._memory.allow_writing(places, 24 * count)
        self._memory.allow_writing(totals, 32)
        return self._decode.place_batches(window, size, *numbers)

    def decode_batches(self, headers: int, starts: int, ends: int, batches: int, *numbers: int) -> int:
        _, _, _, _, bounds, places, most_rows, most_bytes, progress = numbers
        self._begin(bounds, 40)
        for column in (headers, starts, ends):
            self._memory.allow_reading(column, 8 * batches)
        for header in self._memory.words(headers, batches):
            self._memory.allow_reading(header, _HEADER_BYTES)
        lines = zip(self._memory.words(starts, batches), self._memory.words(ends, batches), strict=True)
        for start, end in lines:
            self._memory.allow_reading(start, end - start)
        self._allow_chunk(places, most_rows, most_bytes)
        self._memory.allow_writing(progress, 8 * constants.PROGRESS_SIZE)
        return self._decode.decode_batches(headers, starts, ends, batches, *numbers)

    def _begin(self, begin: int, size: int) -> None:
        self._memory.forget()
        self._memory.allow_reading(begin, size)

    def _allow_chunk(self, places: int, most_rows: int, most_bytes: int) -> None:
        self._memory.allow_reading(places, 8 * constants.PLACES)
        most_headers = most_bytes // 2 + 1
        sizes = {part: (most_rows * bits + 7) // 8 for part, bits in enumerate(constants.PART_BITS)}
        sizes |= dict.fromkeys((constants.KEY_ENDS, constants.VALUE_ENDS, constants.HEADER_ENDS), 4 * (most_rows + 1))
        sizes |= dict.fromkeys(
            (constants.KEYS, constants.VALUES, constants.HEADER_KEYS, constants.HEADER_VALUES), most_bytes
        )
        sizes |= dict.fromkeys((constants.HEADER_KEY_ENDS, constants.HEADER_VALUE_ENDS), 4 * (most_headers + 1))
        sizes[constants.HEADER_VALUE_VALIDITY] = (most_headers + 7) // 8
        for part, place in enumerate(self._memory.words(places, constants.PLACES)):
            if place:
                self._memory.allow_writing(place, sizes[part])


def interpret_kernels() -> None:
    """Have this process interpret all kernels. Raises AssertionError where numba is imported already."""
    assert "numba" not in sys.modules, "numba was imported before: it has compiled the kernels"
    os.environ["NUMBA_DISABLE_JIT"] = "1"
    np.seterr(over="ignore")  # compiled code wraps, too
    from tiered_storage.kafka_log.kernels import kernel_memory, machine_code

    memory = CheckedMemory()
    replacements: dict[str, Callable[..., Any]] = {
        "load_byte": lambda address: memory.load(address, 1)[0],
        "load_half": lambda address: int.from_bytes(memory.load(address, 4), sys.byteorder),
        "load_word": lambda address: int.from_bytes(memory.load(address, 8), sys.byteorder, signed=True),
        "load_int16": lambda address: memory.load_big_endian(address, 2),
        "load_int32": lambda address: memory.load_big_endian(address, 4),
        "load_int64": lambda address: memory.load_big_endian(address, 8),
        "store": memory.store,
        "copy_bytes": memory.copy,
        "prefetch": lambda _: None,
    }
    for name, replacement in replacements.items():
        setattr(kernel_memory, name, replacement)
    kernels = InterpretedKernels(memory)
    machine_code.load_kernels = lambda: kernels  # type: ignore[assignment, return-value]
    machine_code.load_brief_kernels = lambda: kernels  # type: ignore[assignment, return-value]
    # Without the instructions, which Python has not, the scan checks batch by batch.
    machine_code.has_checksum_instructions = lambda: False  # type: ignore[assignment]
