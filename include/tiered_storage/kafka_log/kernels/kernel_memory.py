"""The kernels' access to memory by its address: compiled code without bounds checks or reference counts.

Import it only to compile kernels: numba takes most of a second to import.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from tiered_storage.kafka_log.kernels.machine_code import has_checksum_instructions

HAS_CHECKSUM_INSTRUCTIONS = has_checksum_instructions()
_WORD_BITS = 64
WORD = ir.IntType(_WORD_BITS)
AHEAD = 16 << 10
"""How many bytes ahead of a checksum computation memory is prefetched."""
_Function = TypeVar("_Function", bound=Callable[..., Any])

_memcpy = cast(
    "Callable[[int, int, int], int]", types.ExternalFunction("memcpy", types.intp(types.intp, types.intp, types.intp))
)


def compiled(function: _Function) -> _Function:
    return cast("_Function", njit(nogil=True)(function))


def inlined(function: _Function) -> _Function:
    return cast("_Function", njit(nogil=True, forceinline=True)(function))


def call_llvm(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    """Emit a call of one of LLVM's intrinsics, which stand for instructions."""
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cast("Any", cgutils).get_or_insert_function(builder.module, kind, name), arguments)


def fetch_line(builder: Any, address: Any) -> None:
    """Emit a prefetch of the cache line at `address`; absent memory is ignored."""
    number = ir.IntType(32)
    place = builder.inttoptr(address, ir.IntType(8).as_pointer())
    call_llvm(builder, "llvm.prefetch.p0", ir.VoidType(), place, number(0), number(2), number(1))


def _load_code(bits: int, *, of_kafka: bool) -> Callable[..., Any]:
    def load(_: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001 -- numba's own
            number = builder.load(builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer()), align=1)
            if of_kafka:
                number = builder.bswap(number)
            if bits == _WORD_BITS:
                return number
            widen = builder.sext if of_kafka else builder.zext
            return widen(number, ir.IntType(_WORD_BITS))

        return types.int64(address), generate

    return load


def _store_code(_: Any, address: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001 -- numba's own
        builder.store(arguments[1], builder.inttoptr(arguments[0], arguments[1].type.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(address, value), generate


def _prefetch_code(_: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001 -- numba's own
        fetch_line(builder, arguments[0])
        return context.get_dummy_value()

    return types.void(address), generate


def _checksum_code(function: str, bits: int) -> Callable[..., Any]:
    def step(_: Any, before: Any, data: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001 -- numba's own
            if not HAS_CHECKSUM_INSTRUCTIONS:
                return WORD(0)
            before, data = arguments
            if bits == _WORD_BITS:
                return call_llvm(builder, function, WORD, before, data)
            state = ir.IntType(32)
            narrow = builder.trunc(before, state), builder.trunc(data, ir.IntType(bits))
            return builder.zext(call_llvm(builder, function, state, *narrow), WORD)

        return types.int64(before, data), generate

    return step


def _carryless_code(_: Any, left: Any, right: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001 -- numba's own
        if not HAS_CHECKSUM_INSTRUCTIONS:
            return WORD(0)
        pair, low = ir.VectorType(WORD, 2), ir.Constant(ir.IntType(32), 0)
        pairs = [builder.insert_element(ir.Constant(pair, None), number, low) for number in arguments]
        product = call_llvm(builder, "llvm.x86.pclmulqdq", pair, *pairs, ir.IntType(8)(0))
        return builder.extract_element(product, low)

    return types.int64(left, right), generate


checksum_word = cast("Callable[[int, int], int]", intrinsic(_checksum_code("llvm.x86.sse42.crc32.64.64", 64)))
checksum_half = cast("Callable[[int, int], int]", intrinsic(_checksum_code("llvm.x86.sse42.crc32.32.32", 32)))
checksum_byte = cast("Callable[[int, int], int]", intrinsic(_checksum_code("llvm.x86.sse42.crc32.32.8", 8)))
"""The state of a CRC-32C, `before` at first, after another word, half word, or byte.

0 if the CPU has no instruction for it.
"""
carryless_product = cast("Callable[[int, int], int]", intrinsic(_carryless_code))
"""The low 64 bits of the product of two polynomials over bits, or 0 if the CPU has no instruction for it."""
prefetch = cast("Callable[[int], None]", intrinsic(_prefetch_code))
load_byte = cast("Callable[[int], int]", intrinsic(_load_code(8, of_kafka=False)))
load_half = cast("Callable[[int], int]", intrinsic(_load_code(32, of_kafka=False)))
load_word = cast("Callable[[int], int]", intrinsic(_load_code(64, of_kafka=False)))
"""Loads in this machine's byte order."""
load_int16 = cast("Callable[[int], int]", intrinsic(_load_code(16, of_kafka=True)))
load_int32 = cast("Callable[[int], int]", intrinsic(_load_code(32, of_kafka=True)))
load_int64 = cast("Callable[[int], int]", intrinsic(_load_code(64, of_kafka=True)))
"""Loads a signed number, the most significant byte first, as Kafka writes numbers."""
store = cast("Callable[[int, Any], None]", intrinsic(_store_code))
"""Stores the value in the width of its type."""


@inlined
def copy_bytes(target: int, source: int, size: int) -> None:
    """Copy `size` bytes; most fields are short, and two overlapping words are faster than a call."""
    if size > 16:
        _memcpy(target, source, size)
    elif size >= 8:
        first, last = load_word(source), load_word(source + size - 8)
        store(target, first)
        store(target + size - 8, last)
    elif size >= 4:
        first, last = load_half(source), load_half(source + size - 4)
        store(target, np.int32(first))
        store(target + size - 4, np.int32(last))
    else:
        for i in range(size):
            store(target + i, np.uint8(load_byte(source + i)))


@inlined
def put_bit(bits: int, row: int, is_set: bool) -> None:
    """Set the bit of `row`; rows must come in order."""
    address = bits + (row >> 3)
    before = load_byte(address) if row & 7 else 0
    store(address, np.uint8(before | np.int64(is_set) << (row & 7)))


@inlined
def fill_bits(bits: int, begin: int, end: int, is_set: bool) -> None:
    for row in range(begin, end):
        put_bit(bits, row, is_set)
