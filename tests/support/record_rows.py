"""What the columns of a segment should be, record by record from the plain decoder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from support.record_batches import MAX_TIMESTAMP
from tiered_storage.kafka_log.kernels.batch_layout import INT32_MAX
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import (
    Compression,
    TimestampType,
    encode_batch,
    read_batch_header,
    read_records,
)

Row = dict[str, Any]

_bytes_or_null = st.none() | st.binary(max_size=40)
_headers = st.lists(st.tuples(st.sampled_from(["", "a", "trace"]) | st.text(max_size=12), _bytes_or_null), max_size=3)
_timestamps = st.integers(-1, MAX_TIMESTAMP) | st.integers(1_700_000_000_000, 1_700_000_000_100)


@st.composite
def segments(draw: st.DrawFn, codecs: Sequence[Compression] = tuple(Compression), max_batches: int = 6) -> list[bytes]:
    """Batches of every kind, their offsets rising with gaps inside and between them."""
    offset = draw(st.integers(0, 1 << 40))
    batches = []
    for _ in range(draw(st.integers(1, max_batches))):
        records = []
        for step in draw(st.lists(st.integers(1, 300), min_size=1, max_size=8)):
            headers = tuple(draw(_headers))
            records.append(Record(offset, draw(_timestamps), draw(_bytes_or_null), draw(_bytes_or_null), headers))
            offset += step
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
