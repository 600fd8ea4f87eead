"""Powers of x modulo the polynomial of CRC-32C: what carries a checksum over the bytes that follow.

A word's bits are coefficients, the highest power in the lowest bit. A carry-less product of two such words has its bits
one too low for that, and a factor of 32 bits stands for its product with x^32: so it is 33 powers short.

Source: RFC 3720 (the polynomial).
"""

from __future__ import annotations

_POLYNOMIAL = 0x82F63B78
"""x^32 left out, the coefficient of x^31 in the lowest bit."""


def carrying(bits: int) -> int:
    """Return the factor whose product with a word is congruent to it times x^`bits` (33 or more)."""
    remainder = 1 << 31
    for _ in range(bits - 33):
        remainder = (remainder >> 1) ^ (_POLYNOMIAL if remainder & 1 else 0)
    return remainder
