"""The header of a gzip member: whether one begins where another has ended.

    0  magic              1f 8b
    2  method             08, deflate
    3  flags              what follows: 2 checksum, 4 extra field, 8 name, 16 comment; all others are read over
    4  time, level, system
    10 extra field        size, uint16, the lowest byte first; then so many bytes
       name, comment      each up to a zero
       checksum           uint16, the lowest byte first: the low half of the CRC-32 of all before it

Source: RFC 1952; Java's GZIPInputStream, by which brokers and consumers read: where no header begins behind a member,
the contents have ended, whatever stands there; where one does, the member has to be sound.
"""

from __future__ import annotations

import zlib

_MAGIC_AND_METHOD = b"\x1f\x8b\x08"
_FIXED_BYTES = 10
_CHECKSUM, _EXTRA, _NAME, _COMMENT = 2, 4, 8, 16
_TOO_FEW = 18
"""So few bytes hold no member: Java does not look at them."""


def begins_member(data: bytes, position: int) -> bool:
    """Whether a whole gzip header begins at `position`, with bytes enough behind its start to be a member."""
    if len(data) - position <= _TOO_FEW or data[position : position + 3] != _MAGIC_AND_METHOD:
        return False
    flags, at = data[position + 3], position + _FIXED_BYTES
    if flags & _EXTRA:
        at += 2 + int.from_bytes(data[at : at + 2], "little")
    for flag in (_NAME, _COMMENT):
        if flags & flag:
            at = data.find(0, at) + 1
            if not at:
                return False
    if flags & _CHECKSUM:
        checksum = zlib.crc32(memoryview(data)[position:at]) & 0xFFFF
        if data[at : at + 2] != checksum.to_bytes(2, "little"):
            return False
        at += 2
    return at <= len(data)
