from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from tiered_storage.errors import ConfigurationError
from tiered_storage.kafka_log.columnar.decoder import ColumnDecoder
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import encode_batch
from tiered_storage.kafka_log.records.segment_scan import SegmentScanner
from tiered_storage.remote_log.tables.columns import SCHEMA, TableColumns
from unit.tiered_storage.drawn_records import record_lists

LAST_MICROS = (1 << 63) // 1000 * 1000 - 1000


def table_of(records: list[Record], names: list[str] | None = None) -> pa.Table:
    """The rows of one batch."""
    content = np.frombuffer(encode_batch(records), np.uint8)
    batches, _ = SegmentScanner("test", records[0].offset).feed(content)
    columns = TableColumns(names)
    decoded = ColumnDecoder("test", columns.decoded).decode(content, batches)
    return pa.Table.from_batches([columns.converted(each, "orders", 7) for each in decoded], columns.schema)


@given(record_lists())
def test_every_record_becomes_a_row(records: list[Record]) -> None:
    found = table_of(records)
    found.validate(full=True)
    assert found.schema == SCHEMA
    assert found.column("key").to_pylist() == [each.key for each in records]
    assert found.column("value").to_pylist() == [each.value for each in records]
    assert found.column("offset").to_pylist() == [each.offset for each in records]
    assert found.column("timestamp").cast(pa.int64()).to_pylist() == [
        min(1000 * each.timestamp, LAST_MICROS) for each in records
    ]
    assert [
        [(header["key"], header["value"]) for header in headers] for headers in found.column("headers").to_pylist()
    ] == [list(each.headers) for each in records]
    assert set(found.column("topic").to_pylist()) == {"orders"}
    assert set(found.column("partition").to_pylist()) == {7}
    assert set(found.column("timestampType").to_pylist()) == {0}


def test_columns_are_chosen_in_an_order() -> None:
    found = table_of([Record(3, 5, b"key", b"value")], ["partition", "value"])
    assert found.to_pylist() == [{"partition": 7, "value": b"value"}]


def test_timestamps_that_microseconds_cannot_hold_are_the_nearest_that_they_can() -> None:
    most = (1 << 63) - 1
    times = [-most, -LAST_MICROS // 1000, 0, LAST_MICROS // 1000, most]
    column = pa.array(times, pa.int64()).cast(pa.timestamp("ms", tz="UTC"))
    decoded = pa.RecordBatch.from_arrays([column], ["timestamp"])
    found = TableColumns(["timestamp"]).converted(decoded, "orders", 7)
    expected = [-LAST_MICROS, -LAST_MICROS, 0, LAST_MICROS, LAST_MICROS]
    assert found.column("timestamp").cast(pa.int64()).to_pylist() == expected


NAMES: list[Any] = [[], ["size"], ["offset", "offset"], ["Offset"]]


@pytest.mark.parametrize("names", NAMES, ids=str)
def test_other_columns_are_refused(names: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="key, value, topic"):
        TableColumns(names)
