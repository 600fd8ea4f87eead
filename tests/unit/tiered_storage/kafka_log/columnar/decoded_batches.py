"""Batches for tests of the decoder: drawn, sealed again after a change, and decoded."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from support.records import Row, rows_of
from tiered_storage.kafka_log.columnar.decoder import EVERYTHING, STRICT, Checks, ColumnDecoder, RecordRange
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.kafka_log.kernels.constants import INT32_MAX
from tiered_storage.kafka_log.records.legacy_message import encode_messages, read_true_header
from tiered_storage.kafka_log.records.record_batch import (
    Compression,
    TimestampType,
    encode_batch,
    iterate_batches,
    read_batch_header,
)
from tiered_storage.kafka_log.records.segment_scan import SegmentScanner
from unit.tiered_storage.drawn_records import record_lists

MIB = 1 << 20
EVERY_CODEC = pytest.mark.parametrize("codec", list(Compression))


@st.composite
def segments(draw: st.DrawFn, codecs: Sequence[Compression] = tuple(Compression), max_batches: int = 6) -> list[bytes]:
    """Batches of every kind, their offsets rising with gaps inside and between them."""
    offset = draw(st.integers(0, 1 << 40))
    batches = []
    for _ in range(draw(st.integers(1, max_batches))):
        records = draw(record_lists(max_size=8, offset=offset, max_step=300))
        offset = records[-1].offset + draw(st.integers(1, 300))
        batches.append(
            encode_batch(
                records,
                draw(st.sampled_from(codecs)),
                partition_leader_epoch=draw(st.integers(-1, INT32_MAX)),
                timestamp_type=draw(st.sampled_from(TimestampType)),
                producer_id=draw(st.integers(-1, 1 << 60)),
                producer_epoch=draw(st.integers(-1, 1 << 14)),
                base_sequence=draw(st.integers(-1, 5) | st.integers(INT32_MAX - 5, INT32_MAX)),
                is_transactional=draw(st.booleans()),
                is_control=draw(st.booleans()),
            )
        )
    return batches


@st.composite
def mixed_segments(draw: st.DrawFn) -> list[bytes]:
    """The same with messages of magic 0 and 1 among the batches, stamped or not."""
    offset, mixed = 0, list[bytes]()
    for batch in draw(segments()):
        for _ in range(draw(st.integers(0, 2))):
            drawn = draw(record_lists(max_size=6, offset=offset, max_step=300))
            records = [replace(record, headers=()) for record in drawn]
            magic, codec = draw(st.sampled_from([0, 1])), draw(st.sampled_from(list(Compression)[:4]))
            append_time = draw(st.none() | st.integers(-1, 1 << 62)) if magic else None
            messages = encode_messages(records, magic, codec, append_time=append_time)
            mixed += [bytes(message) for _, message in iterate_batches(messages)]
            offset = records[-1].offset + 1
        moved = bytearray(batch)
        moved[:8] = offset.to_bytes(8, "big")
        mixed.append(bytes(moved))
        offset = read_batch_header(moved).next_offset
    return mixed


def record_batches(
    batches: list[bytes],
    columns: list[str] | None = None,
    within: RecordRange = EVERYTHING,
    checks: Checks = STRICT,
    chunk_bytes: int = 100_000,
    *,
    value_views: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Decode batches of a segment that begins with the first of them."""
    source = "orders-0/00000000000000000000.log"
    decoder = ColumnDecoder(source, columns, within, checks, chunk_bytes=chunk_bytes, value_views=value_views)
    window = memoryview(b"".join(batches))
    first = read_true_header(batches[0]).base_offset
    table, consumed = SegmentScanner("a segment", first, verify_crc=False).feed(window)
    assert consumed == len(window)
    return decoder.decode(window, table)


def decode(
    batches: list[bytes],
    within: RecordRange = EVERYTHING,
    checks: Checks = STRICT,
    chunk_bytes: int = 100_000,
    *,
    value_views: bool = False,
) -> list[Row]:
    """Return the rows that `record_batches` gives."""
    return rows_of(record_batches(batches, None, within, checks, chunk_bytes, value_views=value_views))


def sealed(batch: bytes | bytearray) -> bytes:
    """Give `batch` the length and the checksum of what it now holds."""
    whole = bytearray(batch)
    struct.pack_into(">i", whole, 8, len(whole) - 12)
    struct.pack_into(">I", whole, 17, crc32c(whole[21:]))
    return bytes(whole)
