"""The columns of a topic as a table, named and typed as those of Spark's Kafka source.

    key, value      binary                       null if the producer sent none
    topic           string
    partition       int32
    offset          int64
    timestamp       timestamp[us, UTC]           as consumers see it; Kafka's are ms
    timestampType   int32                        0 create time, 1 log append time
    headers         list<struct<key: string, value: binary>>   as sent

A timestamp that 64-bit microseconds cannot hold becomes the nearest one they can: in the year 294246, or as long before
1970.

Source: Structured Streaming + Kafka Integration Guide of Apache Spark.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tiered_storage.errors import ConfigurationError

_MILLIS = pa.timestamp("ms", tz="UTC")
_MICROS = pa.timestamp("us", tz="UTC")
_LAST_MILLIS = (1 << 63) // 1000 - 1
_HEADER_FIELDS = [pa.field("key", pa.string()), pa.field("value", pa.binary())]
_HEADERS = pa.list_(pa.field("element", pa.struct(_HEADER_FIELDS)))

SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", _MICROS),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", _HEADERS),
    ]
)
"""All columns, in their order."""

_DECODED = {"timestampType": "timestamp_type"}
_CONSTANT = frozenset({"topic", "partition"})


class TableColumns:
    """Some of the columns, in an order, and how decoded record batches become them."""

    def __init__(self, names: Sequence[str] | None = None) -> None:
        """Take the columns `names`; None: all of them.

        Raises ConfigurationError if a name is unknown or repeated, or if there are no names.
        """
        names = SCHEMA.names if names is None else list(names)
        wrong = [name for name in names if name not in SCHEMA.names or names.count(name) > 1]
        if wrong or not names:
            raise ConfigurationError(
                f"columns [{', '.join(names)}]: name one or more of {', '.join(SCHEMA.names)}, each once"
            )
        self.schema = pa.schema([SCHEMA.field(name) for name in names])

    @property
    def decoded(self) -> list[str]:
        """The columns that must be decoded: those of columnar/record_columns.py, always with the offset."""
        names = [_DECODED.get(name, name) for name in self.schema.names if name not in _CONSTANT]
        return names if "offset" in names else [*names, "offset"]

    def converted(self, decoded: pa.RecordBatch, topic: str, partition: int) -> pa.RecordBatch:
        """Return a decoded record batch of that partition with the table's columns; nothing large is copied."""
        columns = [self._column(name, decoded, topic, partition) for name in self.schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _column(self, name: str, decoded: pa.RecordBatch, topic: str, partition: int) -> pa.Array:
        if name == "topic":
            return pa.repeat(topic, decoded.num_rows)
        if name == "partition":
            return pa.repeat(pa.scalar(partition, pa.int32()), decoded.num_rows)
        column = decoded.column(_DECODED.get(name, name))
        if name == "timestamp":
            return _micros(column)
        if name == "timestampType":
            return column.cast(pa.int32())
        if name == "headers":
            return _headers(column)
        return column


def _micros(column: pa.Array) -> pa.Array:
    try:
        return column.cast(_MICROS)
    except pa.ArrowInvalid:
        held = pc.min_element_wise(column.cast(pa.int64()), pa.scalar(_LAST_MILLIS))
        return pc.max_element_wise(held, pa.scalar(-_LAST_MILLIS)).cast(_MILLIS).cast(_MICROS)


def _headers(column: pa.Array) -> pa.Array:
    header = column.values
    fields = [header.field(index) for index in range(header.type.num_fields)]
    values = pa.StructArray.from_arrays(fields, fields=_HEADER_FIELDS)
    return pa.ListArray.from_arrays(column.offsets, values, type=_HEADERS)
