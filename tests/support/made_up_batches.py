"""Batches and records put together field by field, so that each may lie; their checksums are right."""

from __future__ import annotations

import struct

from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.kafka_log.records.record import append_varint


def batch_of(body: bytes, count: int = 1, last_offset_delta: int = 0) -> bytes:
    """A batch around any bytes, from offset 0 on."""
    checked = struct.pack(">hiqqqhii", 0, last_offset_delta, 0, 0, -1, -1, -1, count) + body
    return struct.pack(">qiibI", 0, 9 + len(checked), 0, 2, crc32c(checked)) + checked


def record_of(fields: list[int], behind: bytes = b"") -> bytes:
    """A record of varints, with its length before it; its attributes come first."""
    body = bytearray(1)
    for field in fields:
        append_varint(body, field)
    body += behind
    record = bytearray()
    append_varint(record, len(body))
    return bytes(record + body)
