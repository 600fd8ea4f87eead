"""Sizes and bits of a record batch's header, as plain integers for compiled code and its callers.

The layout itself is in records/batch_header.py.
"""

from __future__ import annotations

BATCH_OVERHEAD = 61
"""Bytes before a batch's records."""
LOG_OVERHEAD = 12
"""Bytes up to and with the batch length, which does not count them."""
MAGIC = 2
CRC_END = 21
"""Bytes up to and with the crc, which covers everything after it."""

CODEC_BITS = 0b111
APPEND_TIME_BIT = 1 << 3
TRANSACTIONAL_BIT = 1 << 4
CONTROL_BIT = 1 << 5
DELETE_HORIZON_BIT = 1 << 6

INT16_MAX = (1 << 15) - 1
INT32_MAX = (1 << 31) - 1
HIGHEST_OFFSET = (1 << 63) - 2
"""The last offset that a record can have: the next offset must fit an int64 too."""
