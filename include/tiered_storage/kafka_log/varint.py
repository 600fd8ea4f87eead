"""Kafka's variable-length integers: zigzag, then seven bits a byte, the lowest first.

The high bit of a byte says that another follows: -1 is 01, 1 is 02, 64 is 80 01. 64 bits take at most ten bytes.

Source: KIP-98 (the message format), which takes the encoding from Protocol Buffers.
"""

from __future__ import annotations

MAX_VARINT_BYTES = 10
UINT64_MAX = (1 << 64) - 1


def append_varint(out: bytearray, value: int) -> None:
    """Append `value`, which fits int64, to `out`."""
    zigzag = value << 1 if value >= 0 else (~value << 1) | 1
    while zigzag > 0x7F:
        out.append((zigzag & 0x7F) | 0x80)
        zigzag >>= 7
    out.append(zigzag)


def read_varint(buffer: bytes, position: int) -> tuple[int, int]:
    """Return the value at `position` and the position behind it.

    Raises IndexError where the buffer ends inside it, ValueError where it exceeds 64 bits: a caller names the place.
    """
    byte = buffer[position]
    if byte <= 0x7F:
        return (byte >> 1) ^ -(byte & 1), position + 1
    following = buffer[position + 1]
    if following <= 0x7F:
        zigzag = following << 7 | byte & 0x7F
        return (zigzag >> 1) ^ -(zigzag & 1), position + 2
    return _read_long_varint(buffer, position)


def _read_long_varint(buffer: bytes, position: int) -> tuple[int, int]:
    zigzag = 0
    for i in range(MAX_VARINT_BYTES):
        byte = buffer[position + i]
        zigzag |= (byte & 0x7F) << (7 * i)
        if byte <= 0x7F:
            break
    else:
        raise ValueError(f"a varint is longer than {MAX_VARINT_BYTES} bytes")
    if zigzag > UINT64_MAX:
        raise ValueError("a varint exceeds 64 bits")
    return (zigzag >> 1) ^ -(zigzag & 1), position + i + 1
