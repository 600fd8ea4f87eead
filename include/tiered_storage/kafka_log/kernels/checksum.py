"""CRC-32C (Castagnoli), the checksum of Kafka's v2 batches and of our objects, over any buffer without copying it.

Source: KIP-98; RFC 3720, appendix B.4 has its test vectors.
"""

from __future__ import annotations


def crc32c(data: bytes | bytearray | memoryview, before: int = 0) -> int:
    """Return the CRC-32C (0 to 2**32 - 1) of `data`, after bytes whose checksum is `before`."""
    from awscrt import checksums

    return int(checksums.crc32c(data, before))
