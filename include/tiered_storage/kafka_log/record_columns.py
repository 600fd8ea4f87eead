"""The Arrow columns of Kafka's records, and the memory that a chunk of them is decoded into.

    offset           int64                    absolute
    timestamp        timestamp[ms, UTC]       what consumers are given: the producer's time, or the broker's where the
                                              batch has log append time; -1 ms, before 1970, where there is none
    timestamp_type   int8                     0 create time, 1 log append time
    create_time      timestamp[ms, UTC]       the producer's time in either case: the broker leaves it in the records
    log_append_time  timestamp[ms, UTC]       the broker's time; null with create time
    key, value       binary                   null where the producer sent none
    headers          list<struct<key: string, value: binary>>   as sent: in their order, keys may repeat
    leader_epoch     int32                    of the leader that appended the batch
    producer_id      int64                    -1: none, as for the two that follow
    producer_epoch   int16
    sequence         int32                    behind 2**31 - 1 follows 0
    transactional    bool                     visible to read_committed consumers with a later commit marker only
    control          bool                     a marker of Kafka's own, which no consumer is given

A timestamp is an instant to Spark, to Arrow and to those who read tables; Kafka's milliseconds are kept as they are,
and cast to int64 without a copy. Values can be left where they are, as `binary_view`. `binary` has offsets of 32 bits:
a chunk ends long before 2 GiB, and no batch may exceed that, so neither can a single value.

Source: KIP-32 (timestamp types); KIP-82 (headers); KIP-98 (producers, sequences); released Kafka.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tiered_storage.errors import ConfigurationError
from tiered_storage.kafka_log import column_parts as parts
from tiered_storage.kafka_log.machine_code import address_of
from tiered_storage.kafka_log.record import decode_header_key

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

_PARTS = {
    "offset": (parts.OFFSETS,),
    "timestamp": (parts.TIMESTAMPS,),
    "timestamp_type": (parts.TIMESTAMP_TYPES,),
    "create_time": (parts.CREATE_TIMES,),
    "log_append_time": (parts.APPEND_TIMES, parts.APPEND_TIME_VALIDITY),
    "key": (parts.KEY_ENDS, parts.KEY_VALIDITY),
    "value": (parts.VALUE_ENDS, parts.VALUE_VALIDITY),
    "headers": (parts.HEADER_ENDS,),
    "leader_epoch": (parts.LEADER_EPOCHS,),
    "producer_id": (parts.PRODUCER_IDS,),
    "producer_epoch": (parts.PRODUCER_EPOCHS,),
    "sequence": (parts.SEQUENCES,),
    "transactional": (parts.TRANSACTIONAL,),
    "control": (parts.CONTROL,),
}
_COMPOUND = ("log_append_time", "key", "value", "headers")
_BINARY = pa.binary()
_VIEW = pa.binary_view()
_ALIGNMENT = 64
_ALIGNED_BITS = 8 * _ALIGNMENT
_EMPTY = np.empty(0, np.uint8)
_SPARE = 8
"""Memory is taken larger by such a share: the next chunk may need a little more."""


def select_columns(names: Sequence[str] | None, *, value_views: bool = False) -> pa.Schema:
    """Return the schema of the columns `names`, in their order; of all where it is None.

    With `value_views` values are `binary_view`. Raises ConfigurationError for a name that is none of them or comes
    twice, and where there are no names.
    """
    names = SCHEMA.names if names is None else names
    wrong = [name for name in names if name not in _PARTS or names.count(name) > 1]
    if wrong or not names:
        raise ConfigurationError(f"columns [{', '.join(names)}]: take one or more of {', '.join(_PARTS)}, each once")
    fields = [SCHEMA.field(name) for name in names]
    return pa.schema([field.with_type(_VIEW) if value_views and field.name == "value" else field for field in fields])


@dataclass(frozen=True, slots=True)
class Chunk:
    """Where the columns of the next chunk go, made for `rows` records whose bytes are `size` in all."""

    rows: int
    size: int
    slab: pa.Buffer
    layout: list[int]
    """Where in the slab each part begins."""
    values: pa.Buffer | None
    places: NDArray[np.int64]
    """The address of each part, in the slab and beside it, or 0."""


class ChunkMemory:
    """Makes chunks and turns them into record batches. What is copied out anyway, keys and headers, is used again."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._plan = [
            (field.name, field.type, -1 if field.name in _COMPOUND else _PARTS[field.name][0]) for field in schema
        ]
        self._row = pa.struct(list(schema))
        """Arrow looks at each column of a batch that is made of single ones, but takes a struct for what it is."""
        self.has_value_views = _VIEW in schema.types
        used = [part for name in schema.names for part in _PARTS[name]]
        if self.has_value_views:
            used[used.index(parts.VALUE_ENDS)] = parts.VALUE_VIEWS
        self._parts = [(part, parts.PART_BITS[part]) for part in used]
        self._has_key = "key" in schema.names
        self._has_value = "value" in schema.names and not self.has_value_views
        self._has_headers = "headers" in schema.names
        self._size = self._rows = -1
        self._layout: list[int] = []
        self._slab_size = 0
        self._slab_parts = np.array([part for part, _ in self._parts], np.intp)
        self._offsets = np.empty(0, np.int64)
        self._places = np.zeros(parts.PLACES, np.int64)
        self.keys = _EMPTY
        self.header_texts = (_EMPTY, _EMPTY, _EMPTY)
        self.header_ends = (np.zeros(1, np.int32), np.zeros(1, np.int32))

    def allocate(self, rows: int, size: int) -> Chunk:
        """Return a chunk for `rows` records that take `size` bytes in all."""
        if rows > self._rows or rows < self._rows // 2:
            self._lay_out(rows + rows // _SPARE)
        if size > self._size:
            self._reserve(size + size // _SPARE)
        slab = pa.allocate_buffer(self._slab_size)
        values = pa.allocate_buffer(size, resizable=True) if self._has_value else None
        places = self._places.copy()
        places[self._slab_parts] = self._offsets + slab.address
        places[parts.VALUES] = 0 if values is None else values.address
        return Chunk(rows, size, slab, self._layout, values, places)

    def _lay_out(self, rows: int) -> None:
        """Give each part of a slab its place, with room for `rows` rows."""
        self._rows = rows
        self._layout = [-1] * len(parts.PART_BITS)
        at = 0
        for part, bits in self._parts:
            self._layout[part] = at
            at += (((rows + 1) * bits + _ALIGNED_BITS - 1) // _ALIGNED_BITS) * _ALIGNMENT
        self._slab_size = at
        self._offsets = np.array(self._layout, np.int64)[self._slab_parts]

    def record_batch(
        self, chunk: Chunk, progress: NDArray[np.int64], viewed: Sequence[pa.Buffer] = ()
    ) -> pa.RecordBatch:
        """Return what `chunk` was filled with; `progress` says how far that is. Views of values look into `viewed`."""
        filled = _Filled(self, chunk, progress.tolist(), viewed)
        columns = pa.Array.from_buffers(self._row, filled.rows, [None], 0, children=filled.columns(self._plan))
        batch = pa.RecordBatch.from_struct_array(columns)
        rows = batch.num_rows
        is_wasteful = rows < chunk.rows // 2 and not self.has_value_views
        return batch.take(_first_numbers(rows)) if is_wasteful else batch

    def _reserve(self, size: int) -> None:
        """Have room for the keys and headers of `size` bytes of records; a header takes two bytes or more."""
        self._size = size
        if self._has_key:
            self.keys = np.empty(size, np.uint8)
        if self._has_headers:
            most = size // 2 + 1
            self.header_texts = (np.empty(size, np.uint8), np.empty(size, np.uint8), np.empty(most, np.uint8))
            self.header_ends = (np.zeros(most + 1, np.int32), np.zeros(most + 1, np.int32))
        self._note_places()

    def _note_places(self) -> None:
        keys, values, validity = self.header_texts
        key_ends, value_ends = self.header_ends
        if self._has_key:
            self._places[parts.KEYS] = address_of(self.keys)
        if self._has_headers:
            self._places[parts.HEADER_KEYS :] = [
                address_of(keys), address_of(key_ends), address_of(values), address_of(value_ends), address_of(validity)
            ]  # fmt: skip


class _Filled:
    """A filled chunk on its way to Arrow; what lies in memory that is used again is copied."""

    def __init__(self, memory: ChunkMemory, chunk: Chunk, progress: list[int], viewed: Sequence[pa.Buffer]) -> None:
        self._viewed = viewed
        self._memory = memory
        self._slab = chunk.slab
        self._places = chunk.layout
        self._values_buffer = chunk.values
        self._progress = progress
        self.rows = progress[parts.ROWS]

    def columns(self, plan: Sequence[tuple[str, pa.DataType, int]]) -> list[pa.Array]:
        """Return an array for each column of `plan`: its name, its type, and the part it is if it is a single one."""
        slab, places, rows = self._slab, self._places, self.rows
        from_buffers = pa.Array.from_buffers
        return [
            from_buffers(kind, rows, [None, slab.slice(places[part])], 0) if part >= 0 else self._compound(name, kind)
            for name, kind, part in plan
        ]

    def _compound(self, name: str, kind: pa.DataType) -> pa.Array:
        match name:
            case "key":
                return self._keys()
            case "value":
                return self._values()
            case "headers":
                return self._headers(kind)
            case _:
                validity = self._part(parts.APPEND_TIME_VALIDITY)
                return pa.Array.from_buffers(kind, self.rows, [validity, self._part(parts.APPEND_TIMES)])

    def _keys(self) -> pa.Array:
        nulls = self._progress[parts.KEY_NULLS]
        validity = self._part(parts.KEY_VALIDITY) if nulls else None
        content = _copy(self._memory.keys, self._progress[parts.KEY_BYTES])
        return pa.Array.from_buffers(_BINARY, self.rows, [validity, self._part(parts.KEY_ENDS), content], nulls)

    def _values(self) -> pa.Array:
        nulls = self._progress[parts.VALUE_NULLS]
        validity = self._part(parts.VALUE_VALIDITY) if nulls else None
        if self._memory.has_value_views:
            views = [validity, self._part(parts.VALUE_VIEWS), *self._viewed]
            return pa.Array.from_buffers(_VIEW, self.rows, views, nulls)
        content = self._values_buffer
        assert content is not None  # noqa: S101 -- allocated for this column
        content.resize(self._progress[parts.VALUE_BYTES], shrink_to_fit=True)
        return pa.Array.from_buffers(_BINARY, self.rows, [validity, self._part(parts.VALUE_ENDS), content], nulls)

    def _headers(self, kind: pa.DataType) -> pa.Array:
        structs = self._header_structs(kind.value_type)
        return pa.Array.from_buffers(kind, self.rows, [None, self._part(parts.HEADER_ENDS)], 0, children=[structs])

    def _header_structs(self, kind: pa.DataType) -> pa.Array:
        count = self._progress[parts.HEADERS]
        if not count:
            return _NO_HEADERS
        nulls = self._progress[parts.HEADER_VALUE_NULLS]
        keys, values, value_validity = self._memory.header_texts
        key_ends, value_ends = self._memory.header_ends
        keys, key_ends = keys[: self._progress[parts.HEADER_KEY_BYTES]], key_ends[: count + 1]
        if self._progress[parts.STRANGE_HEADER_KEYS]:
            keys, key_ends = _as_utf8(keys, key_ends)
        key_buffers = [None, _copy(key_ends, count + 1), _copy(keys, keys.size)]
        value_buffers = [
            _copy(value_validity, (count + 7) >> 3) if nulls else None,
            _copy(value_ends, count + 1),
            _copy(values, self._progress[parts.HEADER_VALUE_BYTES]),
        ]
        fields = [
            pa.Array.from_buffers(pa.string(), count, key_buffers, 0),
            pa.Array.from_buffers(_BINARY, count, value_buffers, nulls),
        ]
        return pa.Array.from_buffers(kind, count, [None], 0, children=fields)

    def _part(self, part: int) -> pa.Buffer:
        return self._slab.slice(self._places[part])


def _no_headers() -> pa.Array:
    """Return none. pyarrow would import pandas, for a second, to make an array of a list."""
    nothing = pa.py_buffer(bytes(4))
    fields = [pa.Array.from_buffers(field.type, 0, [None, nothing, nothing]) for field in _HEADER]
    return pa.Array.from_buffers(_HEADER, 0, [None], 0, children=fields)


_NO_HEADERS = _no_headers()


def _as_utf8(texts: NDArray[np.uint8], ends: NDArray[np.int32]) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Return texts and their ends with U+FFFD for what is no UTF-8, as Java's consumers are given it."""
    content = texts.tobytes()
    places = ends.tolist()
    mended = [decode_header_key(content[begin:end]).encode() for begin, end in pairwise(places)]
    sizes = np.array([0, *map(len, mended)], np.int64)
    return np.frombuffer(b"".join(mended), np.uint8), np.cumsum(sizes).astype(np.int32)


def _first_numbers(count: int) -> pa.Array:
    """Return 0 to `count` - 1. pyarrow makes an array of numpy's only after it has imported pandas, for a second."""
    return pa.Array.from_buffers(pa.int64(), count, [None, _copy(np.arange(count), count)], 0)


def _copy(source: NDArray[Any], count: int) -> pa.Buffer:
    return pa.py_buffer(source[:count].tobytes())
