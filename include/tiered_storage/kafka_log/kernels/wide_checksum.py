"""CRC-32C by vectors of 64 bytes, in the form that is compiled: for CPUs that multiply four pairs of words at once.

A vector is four lanes of two words. To carry a lane over some bytes, multiply its words by powers of x, then add what
lies there. Four vectors take turns, since each waits some cycles for its products. At the end the four are folded into
one, that one is carried over the last vectors of bytes, and its lanes are folded into one. The CPU's own checksum of
that lane is the checksum of all bytes.

numba has no vectors: this module writes LLVM code, which checksum_kernels.py calls as a function.

Source: V. Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel, 2009.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import config, types
from numba.extending import intrinsic

from tiered_storage.kafka_log.kernels.kernel_memory import AHEAD, WORD, call_llvm, fetch_line
from tiered_storage.kafka_log.kernels.machine_code import has_wide_products

_POLYNOMIAL = 0x82F63B78
"""x^32 left out, the coefficient of x^31 in the lowest bit."""


def carrying(bits: int) -> int:
    """Return the factor whose product with a word is congruent to it times x^`bits` (33 or more)."""
    remainder = 1 << 31
    for _ in range(bits - 33):
        remainder = (remainder >> 1) ^ (_POLYNOMIAL if remainder & 1 else 0)
    return remainder


HAS_WIDE_PRODUCTS = has_wide_products() and bool(cast("Any", config).ENABLE_AVX)
"""Whether the code may use them: numba disables them for some CPUs by name, whatever features those report."""
VECTOR_BYTES = 64
STRIDE_BYTES = 4 * VECTOR_BYTES
"""How much the four vectors take in one turn."""
_BYTE, _NUMBER = ir.IntType(8), ir.IntType(32)
_VECTOR = ir.VectorType(WORD, VECTOR_BYTES // 8)
_LANE_BITS, _VECTOR_BITS, _STRIDE_BITS = 128, 8 * VECTOR_BYTES, 8 * STRIDE_BYTES
_FIRST_WORDS, _SECOND_WORDS = 0x00, 0x11
"""Which word of each lane is multiplied, and with which of the factors' lane."""

_Step = Callable[[Any, list[Any]], list[Any]]


def _state_code(_: Any, state: Any, begin: Any, strides_end: Any, end: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001 -- numba's own
        return _state_after(builder, *arguments) if HAS_WIDE_PRODUCTS else WORD(0)

    return types.int64(state, begin, strides_end, end), generate


def _state_after(builder: Any, state: Any, begin: Any, strides_end: Any, end: Any) -> Any:
    def take_stride(at: Any, before: list[Any]) -> list[Any]:
        for place in _places(builder, builder.add(at, WORD(AHEAD))):
            fetch_line(builder, place)
        taken = [_load(builder, place) for place in _places(builder, at)]
        return [_over(builder, *each, _STRIDE_BITS) for each in zip(before, taken, strict=True)]

    def take_vector(at: Any, before: list[Any]) -> list[Any]:
        return [_over(builder, before[0], _load(builder, at), _VECTOR_BITS)]

    vectors = [_load(builder, place) for place in _places(builder, begin)]
    vectors[0] = builder.xor(vectors[0], builder.insert_element(ir.Constant(_VECTOR, None), state, _NUMBER(0)))
    second = builder.add(begin, WORD(STRIDE_BYTES))
    vector, *others = _loop(builder, (second, strides_end, STRIDE_BYTES), vectors, take_stride)
    for other in others:
        vector = _over(builder, vector, other, _VECTOR_BITS)
    (vector,) = _loop(builder, (strides_end, end, VECTOR_BYTES), [vector], take_vector)
    lane, *lanes = (
        builder.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(_NUMBER, 2), [first, first + 1]))
        for first in range(0, _VECTOR.count, 2)
    )
    for other in lanes:
        lane = _over(builder, lane, other, _LANE_BITS)
    rest = WORD(0)
    for number in range(2):
        rest = call_llvm(
            builder, "llvm.x86.sse42.crc32.64.64", WORD, rest, builder.extract_element(lane, _NUMBER(number))
        )
    return rest


def _places(builder: Any, at: Any) -> list[Any]:
    """Return the addresses of the vectors of the stride at `at`."""
    return [builder.add(at, WORD(offset)) for offset in range(0, STRIDE_BYTES, VECTOR_BYTES)]


def _load(builder: Any, address: Any) -> Any:
    return builder.load(builder.inttoptr(address, _VECTOR.as_pointer()), align=1)


def _over(builder: Any, before: Any, following: Any, bits: int) -> Any:
    """Return a vector, or a lane, carried over `bits` of which `following` are the last."""
    name = "llvm.x86.pclmulqdq.512" if before.type == _VECTOR else "llvm.x86.pclmulqdq"
    factors = ir.Constant(before.type, [carrying(bits + 64), carrying(bits)] * (before.type.count // 2))
    for words in (_FIRST_WORDS, _SECOND_WORDS):
        product = call_llvm(builder, name, before.type, before, factors, _BYTE(words))
        following = builder.xor(following, product)
    return following


def _loop(builder: Any, places: tuple[Any, Any, int], vectors: list[Any], step: _Step) -> list[Any]:
    """Return `vectors` after a step at each address from `begin` on, so many bytes apart."""
    begin, end, distance = places
    before = builder.basic_block
    head, body, after = (builder.append_basic_block(name) for name in ("head", "body", "after"))
    builder.branch(head)
    builder.position_at_end(head)
    at, *now = (builder.phi(kind) for kind in (WORD, *(_VECTOR for _ in vectors)))
    builder.cbranch(builder.icmp_unsigned("<", at, end), body, after)
    builder.position_at_end(body)
    then = step(at, now)
    following = builder.add(at, WORD(distance))
    for variable, first, next_one in zip((at, *now), (begin, *vectors), (following, *then), strict=True):
        variable.add_incoming(first, before)
        variable.add_incoming(next_one, body)
    builder.branch(head)
    builder.position_at_end(after)
    return now


state_after = cast("Callable[[int, int, int, int], int]", intrinsic(_state_code))
"""Returns the state of a CRC-32C after the bytes from `begin` to `end`, given `state` before `begin` (addresses).

The bytes are whole strides up to `strides_end`, at least one, then whole vectors. Returns 0 if not HAS_WIDE_PRODUCTS.
"""
