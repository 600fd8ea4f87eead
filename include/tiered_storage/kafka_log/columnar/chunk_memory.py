"""The memory that a chunk of columns is decoded into: its layout, its filling, and the record batch made of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tiered_storage.kafka_log.columnar.arrow_message import ArrowMessage
from tiered_storage.kafka_log.columnar.record_columns import SCHEMA, VIEW
from tiered_storage.kafka_log.kernels import constants
from tiered_storage.kafka_log.kernels.machine_code import address_of
from tiered_storage.kafka_log.records.record import decode_header_key

_PARTS = {
    "offset": (constants.OFFSETS,),
    "timestamp": (constants.TIMESTAMPS,),
    "timestamp_type": (constants.TIMESTAMP_TYPES,),
    "create_time": (constants.CREATE_TIMES,),
    "log_append_time": (constants.APPEND_TIMES, constants.APPEND_TIME_VALIDITY),
    "key": (constants.KEY_ENDS, constants.KEY_VALIDITY),
    "value": (constants.VALUE_ENDS, constants.VALUE_VALIDITY),
    "headers": (constants.HEADER_ENDS,),
    "leader_epoch": (constants.LEADER_EPOCHS,),
    "producer_id": (constants.PRODUCER_IDS,),
    "producer_epoch": (constants.PRODUCER_EPOCHS,),
    "sequence": (constants.SEQUENCES,),
    "transactional": (constants.TRANSACTIONAL,),
    "control": (constants.CONTROL,),
}
_VIEW_PARTS = (constants.VALUE_VIEWS, constants.VALUE_VALIDITY)
_VIEW_BYTES = pa.binary(16)
_EXTENT = {pa.binary(): (1, 3), SCHEMA.field("headers").type: (4, 9)}
"""The nodes and buffers of a column in a message, unless one and two (validity, contents)."""
_ALIGNMENT = 64
_NOT_COUNTED = -1
_EMPTY = np.empty(0, np.uint8)
_MOST_SPARES = 2
"""A reader that takes a record batch while it still holds the previous one needs two chunks in turn."""
_MOST_SPARE_BYTES = 12 << 20
"""A larger chunk, made for a large batch, is not kept. Chunks of the smallest records are the largest others."""
_MOST_WASTE = 2
"""A record batch that would keep this many times its own size in memory is copied."""
_SPARE = 8
"""The share by which memory is allocated larger than needed: the next chunk may need a little more."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Memory for the columns of a chunk: records of `size` bytes in all, as many as the layout has room for."""

    size: int
    memory: NDArray[np.uint8]
    """All memory in one piece: Arrow's message, the parts, the values, then room for keys and headers."""
    layout: list[int]
    """The position of each part, after the message."""
    values: int
    """The position of the values, after the message."""
    places: NDArray[np.int64]
    """The address of each part, inside and outside the slab, or 0."""

    @property
    def references(self) -> int:
        """The number of references to the memory. It changes only under the GIL, which Arrow takes to drop one."""
        return sys.getrefcount(self.memory)


_ALONE = Chunk(0, np.empty(0, np.uint8), [], 0, np.empty(0, np.int64)).references
"""The number of references to the memory of a chunk without other holders.

Not measured on a new chunk: a debugger may hold a reference for a while, and too high a number would let the decoder
overwrite memory that is in use.
"""


class ChunkMemory:
    """Allocates chunks and turns them into record batches.

    It reuses the memory for keys and headers, which are copied out anyway, and a chunk to whose record batch nothing
    refers: allocating and freeing Arrow's memory costs more time, and the GIL twice.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.has_value_views = VIEW in schema.types
        fields = [field.with_type(_VIEW_BYTES) if field.type == VIEW else field for field in schema]
        self._message = ArrowMessage(pa.schema(fields))
        """A message has the viewed memory as a buffer of its body: the buffer is used to make the views."""
        self._nodes, self._buffers = _numbered(self._message.schema)
        self._row_nodes = list(self._nodes.values())
        if "log_append_time" in self._nodes:
            self._message.put_nulls(self._nodes["log_append_time"], _NOT_COUNTED)
        used = [part for name in schema.names for part in self._parts_of(name)]
        self._parts = [(part, constants.PART_BITS[part]) for part in used]
        self._has_key = "key" in schema.names
        self._has_value = "value" in schema.names and not self.has_value_views
        self._has_headers = "headers" in schema.names
        self._size = self._rows = -1
        self._tail_bytes = 0
        self._spares: list[Chunk] = []
        """The last chunks."""
        self._layout: list[int] = []
        self._parts_size = 0
        self._slab_parts = np.array([part for part, _ in self._parts], np.intp)
        self._offsets = np.empty(0, np.int64)
        self._places = np.zeros(constants.PLACES, np.int64)
        self.keys = _EMPTY
        self.header_texts = (_EMPTY, _EMPTY, _EMPTY)
        self.header_ends = (np.zeros(1, np.int32), np.zeros(1, np.int32))

    def _parts_of(self, name: str) -> tuple[int, ...]:
        return _VIEW_PARTS if self.has_value_views and name == "value" else _PARTS[name]

    @property
    def message_size(self) -> int:
        """The number of bytes before the parts of a slab."""
        return self._message.size

    def allocate(self, rows: int, size: int) -> Chunk:
        """Return a chunk for `rows` records that take `size` bytes in all."""
        if rows > self._rows or rows < self._rows // 2:
            self._spares.clear()
            self._lay_out(rows + rows // _SPARE)
        if size > self._size:
            self._spares.clear()
            self._reserve(size + size // _SPARE)
        for chunk in self._spares:
            if chunk.size >= size and chunk.references <= _ALONE:
                return chunk
        return self._new_chunk(size + size // _SPARE)

    def _new_chunk(self, size: int) -> Chunk:
        before, values = self._message.size, self._parts_size
        tail = values + (size if self._has_value else 0)
        memory = np.frombuffer(pa.allocate_buffer(before + tail + self._tail_bytes), np.uint8)
        address = address_of(memory)
        places = self._places.copy()
        places[self._slab_parts] = self._offsets + (address + before)
        places[constants.VALUES] = address + before + values if self._has_value else 0
        chunk = Chunk(size, memory, self._layout, values, places)
        if memory.size <= _MOST_SPARE_BYTES:
            self._spares = [*self._spares[1 - _MOST_SPARES :], chunk]
        return chunk

    def _lay_out(self, rows: int) -> None:
        """Assign each part of a slab its place, with room for `rows` rows."""
        self._rows = rows
        self._layout = [-1] * len(constants.PART_BITS)
        at = 0
        for part, bits in self._parts:
            self._layout[part] = at
            at = _aligned(at + ((rows + 1) * bits + 7) // 8)
        self._parts_size = at
        self._offsets = np.array(self._layout, np.int64)[self._slab_parts]
        for name, buffer in self._buffers.items():
            first, *validity = self._parts_of(name)
            self._message.put_buffer(
                buffer + 1, self._layout[first], ((rows + 1) * constants.PART_BITS[first] + 7) // 8
            )
            for part in validity:
                self._message.put_buffer(buffer, self._layout[part], (rows + 7) // 8)

    def record_batch(
        self, chunk: Chunk, progress: NDArray[np.int64], viewed: Sequence[pa.Buffer] = ()
    ) -> pa.RecordBatch:
        """Return the record batch in `chunk`; `progress` has how far it is filled. Value views refer to `viewed`."""
        noted = progress.tolist()
        rows = noted[constants.ROWS]
        message = self._message
        tail = self._describe(chunk, noted)
        end = message.size + tail.end
        memory = chunk.memory
        if end > memory.size:
            # Later chunks get as much room; this one is used up.
            self._tail_bytes = max(self._tail_bytes, tail.size + tail.size // _SPARE)
            self._spares.clear()
            memory = np.frombuffer(pa.allocate_buffer(end), np.uint8)
            memory[: end - tail.size] = chunk.memory[: end - tail.size]
        message.put_size(rows, tail.end)
        content = memory.data
        content[: message.size] = message.content
        tail.copy_to(content[message.size :])
        batch = pa.ipc.read_record_batch(pa.py_buffer(memory), message.schema)
        if self.has_value_views:
            at = self.schema.get_field_index("value")
            return batch.set_column(at, self.schema.field(at), self._views(memory, chunk, noted, viewed))
        is_wasteful = rows < self._rows // _MOST_WASTE or end < memory.size // _MOST_WASTE
        return batch.take(_first_numbers(rows)) if is_wasteful else batch

    def _describe(self, chunk: Chunk, noted: list[int]) -> _Tail:
        """Write the numbers of a filled chunk into the message; return what to copy after its values."""
        message = self._message
        message.put_lengths(self._row_nodes, noted[constants.ROWS])
        end = chunk.values
        if self._has_value:
            message.put_nulls(self._nodes["value"], noted[constants.VALUE_NULLS])
            message.put_buffer(self._buffers["value"] + 2, end, noted[constants.VALUE_BYTES])
            end += noted[constants.VALUE_BYTES]
        tail = _Tail(end)
        if self._has_key:
            message.put_nulls(self._nodes["key"], noted[constants.KEY_NULLS])
            message.put_buffer(self._buffers["key"] + 2, *tail.add(self.keys, noted[constants.KEY_BYTES]))
        if self._has_headers:
            self._describe_headers(tail, noted)
        return tail

    def _describe_headers(self, tail: _Tail, noted: list[int]) -> None:
        message, node, buffer = self._message, self._nodes["headers"], self._buffers["headers"]
        count = noted[constants.HEADERS]
        message.put_lengths([node + 1, node + 2, node + 3], count)
        message.put_nulls(node + 3, noted[constants.HEADER_VALUE_NULLS])
        if not count:
            for ends in (buffer + 4, buffer + 7):
                message.put_buffer(ends, self._layout[constants.HEADER_ENDS], 4)
                message.put_buffer(ends + 1, 0, 0)
            return
        keys, values, validity = self.header_texts
        key_ends, value_ends = self.header_ends
        key_bytes = noted[constants.HEADER_KEY_BYTES]
        if noted[constants.STRANGE_HEADER_KEYS]:
            keys, key_ends = _as_utf8(keys[:key_bytes], key_ends[: count + 1])
            key_bytes = keys.size
        message.put_buffer(buffer + 4, *tail.add(key_ends, 4 * (count + 1)))
        message.put_buffer(buffer + 5, *tail.add(keys, key_bytes))
        message.put_buffer(buffer + 6, *tail.add(validity, (count + 7) >> 3))
        message.put_buffer(buffer + 7, *tail.add(value_ends, 4 * (count + 1)))
        message.put_buffer(buffer + 8, *tail.add(values, noted[constants.HEADER_VALUE_BYTES]))

    def _views(
        self, memory: NDArray[np.uint8], chunk: Chunk, noted: list[int], viewed: Sequence[pa.Buffer]
    ) -> pa.Array:
        nulls = noted[constants.VALUE_NULLS]
        body = pa.py_buffer(memory).slice(self._message.size)
        validity = body.slice(chunk.layout[constants.VALUE_VALIDITY]) if nulls else None
        views = body.slice(chunk.layout[constants.VALUE_VIEWS])
        return pa.Array.from_buffers(VIEW, noted[constants.ROWS], [validity, views, *viewed], nulls)

    def _reserve(self, size: int) -> None:
        """Make room for the keys and headers of `size` bytes of records; a header takes two bytes or more.

        If memory runs out, nothing changes: the kernel must never get stale addresses.
        """
        keys, texts, ends = self.keys, self.header_texts, self.header_ends
        if self._has_key:
            keys = np.empty(size, np.uint8)
        if self._has_headers:
            most = size // 2 + 1
            texts = (np.empty(size, np.uint8), np.empty(size, np.uint8), np.empty(most, np.uint8))
            ends = (np.empty(most + 1, np.int32), np.empty(most + 1, np.int32))
            for each in ends:
                each[0] = 0  # all others are written first; zeros would touch memory that few records need
        self._size, self.keys, self.header_texts, self.header_ends = size, keys, texts, ends
        self._note_places()

    def _note_places(self) -> None:
        keys, values, validity = self.header_texts
        key_ends, value_ends = self.header_ends
        if self._has_key:
            self._places[constants.KEYS] = address_of(self.keys)
        if self._has_headers:
            self._places[constants.HEADER_KEYS :] = [
                address_of(keys), address_of(key_ends), address_of(values), address_of(value_ends), address_of(validity)
            ]  # fmt: skip


class ChunkFilling:
    """A chunk while batches are decoded into it, and the kernel's notes."""

    def __init__(self, memory: ChunkMemory) -> None:
        self._memory = memory
        self._chunk: Chunk | None = None
        self.progress = np.zeros(constants.PROGRESS_SIZE, np.int64)
        self._progress_address = address_of(self.progress)
        self.capacity = (0, 0)
        self.viewed: list[pa.Buffer] = []

    @property
    def is_begun(self) -> bool:
        return self._chunk is not None

    @property
    def record_bytes(self) -> int:
        """How many bytes of records are in the chunk."""
        return int(self.progress[constants.RECORD_BYTES])

    @property
    def viewed_bytes(self) -> int:
        """How many bytes the chunk keeps for its views, whether or not a view looks at them."""
        return sum(buffer.size for buffer in self.viewed)

    def begin(self, rows: int, size: int) -> None:
        """Take a new chunk for `rows` records of `size` bytes; the kernel's position among the batches is kept."""
        self.capacity = (rows, size)
        self._chunk = self._memory.allocate(rows, size)
        self.progress[constants.ROWS :] = 0
        self.viewed = []

    def arguments(self) -> tuple[int, int, int, int]:
        """Return the kernel's arguments: the addresses of the chunk, its capacity, and the address of its notes."""
        assert self._chunk is not None  # noqa: S101 -- it is begun before
        return address_of(self._chunk.places), *self.capacity, self._progress_address

    def end(self) -> Iterator[pa.RecordBatch]:
        """Yield the chunk, if there is anything in it."""
        chunk, self._chunk = self._chunk, None
        viewed, self.viewed = self.viewed, []
        if chunk is not None and self.progress[constants.ROWS]:
            yield self._memory.record_batch(chunk, self.progress, viewed)


class _Tail:
    """What to copy after the values of a chunk. Positions count from the end of the message."""

    def __init__(self, begin: int) -> None:
        self._begin = begin
        self.end = begin
        self._pieces: list[tuple[int, NDArray[Any], int]] = []

    @property
    def size(self) -> int:
        return self.end - self._begin

    def add(self, source: NDArray[Any], size: int) -> tuple[int, int]:
        """Add the first `size` bytes of `source`; return their position and `size`."""
        at = _aligned(self.end)
        self._pieces.append((at, source, size))
        self.end = at + size
        return at, size

    def copy_to(self, body: memoryview) -> None:
        for at, source, size in self._pieces:
            body[at : at + size] = source.view(np.uint8)[:size].data


def _numbered(schema: pa.Schema) -> tuple[dict[str, int], dict[str, int]]:
    """Return the number of each column's first node in a message, and that of its first buffer."""
    nodes, buffers = {}, {}
    node = buffer = 0
    for field in schema:
        nodes[field.name], buffers[field.name] = node, buffer
        more_nodes, more_buffers = _EXTENT.get(field.type, (1, 2))
        node += more_nodes
        buffer += more_buffers
    return nodes, buffers


def _aligned(size: int) -> int:
    return (size + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT


def _as_utf8(texts: NDArray[np.uint8], ends: NDArray[np.int32]) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Return texts and their ends with U+FFFD for invalid UTF-8, as Java's consumers get them."""
    content = texts.tobytes()
    places = ends.tolist()
    mended = [decode_header_key(content[begin:end]).encode() for begin, end in pairwise(places)]
    sizes = np.array([0, *map(len, mended)], np.int64)
    return np.frombuffer(b"".join(mended), np.uint8), np.cumsum(sizes).astype(np.int32)


def _first_numbers(count: int) -> pa.Array:
    """Return 0 to `count` - 1. From a numpy array pyarrow would first import pandas, which takes a second."""
    return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(np.arange(count).tobytes())], 0)
