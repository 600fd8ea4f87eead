"""CRC-32C (Castagnoli), the checksum of Kafka's v2 batches, over any buffer without copying it.

Source: KIP-98; RFC 3720, appendix B.4 has its test vectors.
"""

from __future__ import annotations

from awscrt import checksums


def crc32c(data: bytes | bytearray | memoryview) -> int:
    """Return the CRC-32C of `data`, between 0 and 2**32 - 1."""
    return int(checksums.crc32c(data))
