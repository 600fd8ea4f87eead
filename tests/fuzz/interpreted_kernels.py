"""Runs the kernels as ordinary Python, where coverage guides a fuzzer and each access to memory is checked.

`interpret_kernels` has to be called before anything imports numba: it is numba that would compile them. What the
kernels do by address is then done here, inside of the arrays alone that a kernel was given.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

_Region = tuple[int, int, bool]


class CheckedMemory:
    """The arrays that a kernel was given, by their addresses."""

    def __init__(self) -> None:
        self._regions: list[_Region] = []

    def forget(self) -> None:
        self._regions.clear()

    def address_of(self, array: NDArray[Any]) -> int:
        begin = int(array.ctypes.data)
        self._regions.append((begin, begin + array.nbytes, array.flags.writeable))
        return begin

    def allow_reading(self, begin: int, end: int) -> None:
        self._regions.append((begin, end, False))

    def load(self, address: int, size: int) -> bytes:
        self._check(address, size, to_write=False)
        return ctypes.string_at(int(address), size)

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


def interpret_kernels() -> None:
    """Have this process interpret all kernels. Raises AssertionError where numba is imported already."""
    assert "numba" not in sys.modules, "numba was imported before: it has compiled the kernels"
    os.environ["NUMBA_DISABLE_JIT"] = "1"
    np.seterr(over="ignore")  # compiled code wraps, too
    from tiered_storage.kafka_log import kernel_memory

    memory = CheckedMemory()
    replacements: dict[str, Callable[..., Any]] = {
        "address_of": memory.address_of,
        "load_byte": lambda address: memory.load(address, 1)[0],
        "load_half": lambda address: int.from_bytes(memory.load(address, 4), sys.byteorder),
        "load_word": lambda address: int.from_bytes(memory.load(address, 8), sys.byteorder, signed=True),
        "store": memory.store,
        "copy_bytes": memory.copy,
        "prefetch": lambda _: None,
    }
    for name, replacement in replacements.items():
        setattr(kernel_memory, name, replacement)

    from tiered_storage.kafka_log import decode_kernels, scan_kernels

    # There is no C library to be called from interpreted code: the scan then checks batch by batch.
    scan_kernels.crc32c_address = lambda: 0  # type: ignore[assignment]
    decode_batches = decode_kernels.decode_batches

    def decode_in_checked_memory(*arguments: Any) -> int:
        memory.forget()
        data, starts, ends, *_ = arguments
        if not data.size:
            # Batches that were decompressed: they lie wherever their addresses say.
            for begin, end in zip(starts.tolist(), ends.tolist(), strict=True):
                memory.allow_reading(begin, end)
        return decode_batches(*arguments)

    decode_kernels.decode_batches = decode_in_checked_memory  # type: ignore[assignment]
