"""Kafka's variable-length integers: zigzag, then seven bits a byte, the lowest first.

The high bit of a byte says that another follows: -1 is 01, 1 is 02, 64 is 80 01. 32 bits take at most five bytes, 64
bits at most ten. Kafka calls the one a varint and the other a varlong. Where the last byte has bits beyond those, Java
drops them, and so brokers and its consumers do.

Source: KIP-98 (the message format), which takes the encoding from Protocol Buffers.
"""

from __future__ import annotations

MAX_VARINT_BYTES = 5
MAX_VARLONG_BYTES = 10
_MOST_ZIGZAG = {MAX_VARINT_BYTES: (1 << 32) - 1, MAX_VARLONG_BYTES: (1 << 64) - 1}


def append_varint(out: bytearray, value: int) -> None:
    """Append `value`, which fits int32 for a varint and int64 for a varlong, to `out`."""
    zigzag = value << 1 if value >= 0 else (~value << 1) | 1
    while zigzag > 0x7F:
        out.append((zigzag & 0x7F) | 0x80)
        zigzag >>= 7
    out.append(zigzag)


def read_varint(buffer: bytes, position: int, max_bytes: int = MAX_VARINT_BYTES) -> tuple[int, int]:
    """Return the value of the varint at `position`, an int32, and the position behind it.

    Raises IndexError where the buffer ends inside it, ValueError where it exceeds 5 bytes: a caller names the place.
    """
    byte = buffer[position]
    if byte <= 0x7F:
        return (byte >> 1) ^ -(byte & 1), position + 1
    following = buffer[position + 1]
    if following <= 0x7F:
        zigzag = following << 7 | byte & 0x7F
        return (zigzag >> 1) ^ -(zigzag & 1), position + 2
    return _read_long_varint(buffer, position, max_bytes)


def read_varlong(buffer: bytes, position: int) -> tuple[int, int]:
    """Return the value of the varlong at `position`, an int64, and the position behind it.

    Raises IndexError where the buffer ends inside it, ValueError where it exceeds 10 bytes: a caller names the place.
    """
    return read_varint(buffer, position, MAX_VARLONG_BYTES)


def _read_long_varint(buffer: bytes, position: int, max_bytes: int) -> tuple[int, int]:
    zigzag = 0
    for i in range(max_bytes):
        byte = buffer[position + i]
        zigzag |= (byte & 0x7F) << (7 * i)
        if byte <= 0x7F:
            break
    else:
        raise ValueError(f"a varint is longer than {max_bytes} bytes")
    zigzag &= _MOST_ZIGZAG[max_bytes]
    return (zigzag >> 1) ^ -(zigzag & 1), position + i + 1
