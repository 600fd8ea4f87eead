"""The Arrow columns of Kafka's records.

    offset           int64                    absolute
    timestamp        timestamp[ms, UTC]       as consumers see it: the producer's time, or the broker's if the
                                              batch has log append time; -1 ms, before 1970, if there is none
    timestamp_type   int8                     0 create time, 1 log append time
    create_time      timestamp[ms, UTC]       the producer's time in either case: the broker leaves it in the records
    log_append_time  timestamp[ms, UTC]       the broker's time; null with create time
    key, value       binary                   null if the producer sent none
    headers          list<struct<key: string, value: binary>>   as sent: in their order, keys may repeat
    leader_epoch     int32                    of the leader that appended the batch
    producer_id      int64                    -1: none, as for the two that follow
    producer_epoch   int16
    sequence         int32                    0 follows 2**31 - 1
    transactional    bool                     visible to read_committed consumers with a later commit marker only
    control          bool                     a marker of Kafka's own, which no consumer is given

A timestamp is an instant to Spark and Arrow; Kafka's milliseconds are kept, and cast to int64 without a copy. Values
can stay in place, as `binary_view`. `binary` has 32-bit offsets: a chunk ends long before 2 GiB, and no batch may
exceed that, so no value can.

Source: KIP-32 (timestamp types); KIP-82 (headers); KIP-98 (producers, sequences); released Kafka.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tiered_storage.errors import ConfigurationError

_INSTANT = pa.timestamp("ms", tz="UTC")
_HEADER = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])

SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", _INSTANT, nullable=False),
        pa.field("timestamp_type", pa.int8(), nullable=False),
        pa.field("create_time", _INSTANT, nullable=False),
        pa.field("log_append_time", _INSTANT),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(pa.field("header", _HEADER, nullable=False)), nullable=False),
        pa.field("leader_epoch", pa.int32(), nullable=False),
        pa.field("producer_id", pa.int64(), nullable=False),
        pa.field("producer_epoch", pa.int16(), nullable=False),
        pa.field("sequence", pa.int32(), nullable=False),
        pa.field("transactional", pa.bool_(), nullable=False),
        pa.field("control", pa.bool_(), nullable=False),
    ]
)
"""All columns, in their order."""

VIEW = pa.binary_view()
"""The type of values that stay in place."""


def select_columns(names: Sequence[str] | None, *, value_views: bool = False) -> pa.Schema:
    """Return the schema of the columns `names`, in their order; None: all columns.

    With `value_views` values are `binary_view`. Raises ConfigurationError if a name is unknown or repeated, or if
    there are no names.
    """
    names = SCHEMA.names if names is None else names
    wrong = [name for name in names if name not in SCHEMA.names or names.count(name) > 1]
    if wrong or not names:
        raise ConfigurationError(
            f"columns [{', '.join(names)}]: take one or more of {', '.join(SCHEMA.names)}, each once"
        )
    fields = [SCHEMA.field(name) for name in names]
    return pa.schema([field.with_type(VIEW) if value_views and field.name == "value" else field for field in fields])
