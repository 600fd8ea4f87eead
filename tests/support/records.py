"""Records and batches for tests: fixed ones, random ones, batches that lie, and what columns are to hold."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st

from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.kafka_log.records.record import append_varint
from tiered_storage.kafka_log.records.record_batch import (
    Compression,
    Record,
    TimestampType,
    encode_batch,
    read_batch_header,
    read_records,
)

USUAL_EXAMPLES: Final = settings().max_examples
"""By the profile in use, see tests/conftest.py: a test whose examples cost more or less than others takes its share."""


MAX_TIMESTAMP = (1 << 63) - 2
"""What a batch can hold after a record without timestamp (-1): the difference is an int64."""

_bytes_or_null = st.none() | st.binary(max_size=60)
_keys = st.sampled_from(["", "a", "trace"]) | st.text(max_size=12)
_headers = st.lists(st.tuples(_keys, _bytes_or_null), max_size=3).map(tuple)
_timestamps = st.integers(-1, MAX_TIMESTAMP) | st.integers(1_700_000_000_000, 1_700_000_100_000)


@st.composite
def record_lists(
    draw: st.DrawFn, max_size: int = 20, offset: int | None = None, max_step: int = 1 << 20
) -> list[Record]:
    """At least one record, from `offset` or any on; offsets rise by up to `max_step`, timestamps go anywhere."""
    at = draw(st.integers(0, 1 << 62)) if offset is None else offset
    records = []
    for step in draw(st.lists(st.integers(1, max_step), min_size=1, max_size=max_size)):
        records.append(Record(at, draw(_timestamps), draw(_bytes_or_null), draw(_bytes_or_null), draw(_headers)))
        at += step
    return records


def a_message_of_magic_1(offset: int, size: int = 100) -> bytes:
    """A message as brokers wrote them before release 0.11, its checksum right; `size` is without offset and size."""
    content = b"\x01" + bytes(size - 5)
    return struct.pack(">qiI", offset, size, zlib.crc32(content)) + content


def some_records(base_offset: int = 0, count: int = 1, value: bytes = b"value") -> list[Record]:
    """`count` records of one value, one offset and one millisecond apart."""
    return [Record(base_offset + i, 1_700_000_000_000 + base_offset + i, b"key %d" % i, value) for i in range(count)]


def batches_of(
    counts: Sequence[int],
    base_offset: int = 0,
    value: bytes = b"value",
    compression: Compression = Compression.NONE,
) -> list[bytes]:
    """One batch for each of `counts`, its number of records; offsets go on from batch to batch."""
    batches = []
    for count in counts:
        batches.append(encode_batch(some_records(base_offset, count, value), compression, partition_leader_epoch=7))
        base_offset += count
    return batches


FIRST_TIMESTAMP = 1_700_000_000_000


def varied_records(count: int, seed: int) -> Iterator[Record]:
    """Yield records with and without keys, values and headers, from offset 0 on, the same ones for the same `seed`.

    They compress by about a half. Their times rise by 10 ms a record on the whole, but go back by up to half a second.
    """
    chance = random.Random(seed)  # noqa: S311 -- data, no secret
    for number in range(count):
        yield Record(
            offset=number,
            timestamp=FIRST_TIMESTAMP + 10 * number - chance.randrange(500),
            key=None if number % 5 == 0 else f"key {number % 50}".encode(),
            value=None if number % 7 == 3 else b"" if number % 7 == 4 else chance.randbytes(60).hex().encode(),
            headers=(("trace", chance.randbytes(8)), ("größe", None), ("trace", b""))[: number % 4],
        )


def batch_of(body: bytes, count: int = 1, last_offset_delta: int = 0) -> bytes:
    """A batch around any bytes, from offset 0 on."""
    checked = struct.pack(">hiqqqhii", 0, last_offset_delta, 0, 0, -1, -1, -1, count) + body
    return struct.pack(">qiibI", 0, 9 + len(checked), 0, 2, crc32c(checked)) + checked


def record_of(fields: list[int], tail: bytes = b"") -> bytes:
    """A record of varints, with its length before it; its attributes come first."""
    body = bytearray(1)
    for field in fields:
        append_varint(body, field)
    body += tail
    record = bytearray()
    append_varint(record, len(body))
    return bytes(record + body)


Row = dict[str, Any]


def expected_rows(batches: Iterable[bytes], *, verify_crc: bool = True) -> Iterator[Row]:
    """Yield a row for each record, its times in ms; raises as read_records does."""
    for batch in batches:
        header = read_batch_header(batch)
        appended = header.timestamp_type is TimestampType.LOG_APPEND_TIME
        created = _create_times(batch, verify_crc=verify_crc)
        for record, create_time in zip(read_records(batch, verify_crc=verify_crc), created, strict=True):
            delta = record.offset - header.base_offset
            yield {
                "offset": record.offset,
                "timestamp": record.timestamp,
                "timestamp_type": int(appended),
                "create_time": create_time,
                "log_append_time": header.max_timestamp if appended else None,
                "key": record.key,
                "value": record.value,
                "headers": [{"key": key, "value": value} for key, value in record.headers],
                "leader_epoch": header.partition_leader_epoch,
                "producer_id": header.producer_id,
                "producer_epoch": header.producer_epoch,
                "sequence": -1 if header.base_sequence < 0 else (header.base_sequence + delta) % (1 << 31),
                "transactional": header.is_transactional,
                "control": header.is_control,
            }


def rows_of(record_batches: Iterable[pa.RecordBatch]) -> list[Row]:
    """Return the rows of valid record batches, their times in ms."""
    rows: list[Row] = []
    for batch in record_batches:
        batch.validate(full=True)
        columns = [
            column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in batch.columns
        ]
        rows += pa.RecordBatch.from_arrays(columns, names=batch.schema.names).to_pylist()
    return rows


def _create_times(batch: bytes, *, verify_crc: bool) -> list[int]:
    """Read the records as if the batch had create time, 64 bits wide as Kafka computes it."""
    header = read_batch_header(batch)
    with_create_time = bytearray(batch)
    with_create_time[22] &= ~0x08
    if header.timestamp_type is TimestampType.CREATE_TIME:
        return [record.timestamp for record in read_records(batch, verify_crc=verify_crc)]
    # From 0 on no sum can exceed 64 bits.
    with_create_time[27:35] = bytes(8)
    deltas = [record.timestamp for record in read_records(with_create_time, verify_crc=False)]
    return [(header.base_timestamp + delta + (1 << 63)) % (1 << 64) - (1 << 63) for delta in deltas]


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch: how many offsets it covers, how many it leaves out before itself, its bytes and its timestamp (ms)."""

    records: int
    size: int
    max_timestamp: int
    gap: int = 0


def batch_lists(min_size: int = 0, max_size: int = 30) -> st.SearchStrategy[list[Batch]]:
    """Batches that are small against their number, so that equal timestamps and full intervals are common."""
    batch = st.builds(
        Batch, st.integers(1, 4), st.integers(61, 400), st.integers(-1, 12), st.sampled_from([0, 0, 0, 1, 5])
    )
    return st.lists(batch, min_size=min_size, max_size=max_size)


def batch_table(base_offset: int, batches: Sequence[Batch]) -> BatchTable:
    """Return the table of a segment that begins at `base_offset` and holds `batches`."""
    table = BatchTable.allocate(len(batches))
    for column in table.columns():
        column[:] = 0
    records = np.array([batch.records for batch in batches], np.int64)
    gaps = np.array([batch.gap for batch in batches], np.int64)
    table.size[:] = [batch.size for batch in batches]
    table.max_timestamp[:] = [batch.max_timestamp for batch in batches]
    table.record_count[:] = records
    table.last_offset[:] = base_offset + np.cumsum(records + gaps) - 1
    table.base_offset[:] = table.last_offset - records + 1
    table.position[:] = np.cumsum(table.size) - table.size
    table.producer_id[:] = -1
    return table


def windows(table: BatchTable, cuts: Sequence[int]) -> list[BatchTable]:
    """Return `table` in pieces, cut before each of the rows `cuts`."""
    bounds = [0, *sorted(min(cut, len(table)) for cut in cuts), len(table)]
    return [table.rows(first, end) for first, end in pairwise(bounds)]
