"""Records and batches for tests, tables of batches, and what columns are to hold."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from hypothesis import settings

from tiered_storage.kafka_log.records.batch_header import LEGACY_MAGICS
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.kafka_log.records.legacy_message import read_legacy_batch
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


def some_records(base_offset: int = 0, count: int = 1, value: bytes = b"value") -> list[Record]:
    """`count` records of one value, one offset and one millisecond apart."""
    return [Record(base_offset + i, 1_700_000_000_000 + base_offset + i, b"key %d" % i, value) for i in range(count)]


def batches_of(
    counts: Sequence[int],
    base_offset: int = 0,
    value: bytes = b"value",
    compression: Compression = Compression.NONE,
) -> list[bytes]:
    """One batch for each of `counts`, its number of records; offsets continue from batch to batch."""
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
    if header.magic in LEGACY_MAGICS:
        return [message.timestamp for message in read_legacy_batch(batch, verify_crc=verify_crc).messages]
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
