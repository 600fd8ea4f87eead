"""The message of a record batch in Arrow's IPC form, made once for a schema; its numbers are put in for each batch.

Arrow takes a whole record batch out of memory that begins with such a message, several times as fast as it takes column
by column; nothing is copied.

    0  continuation   uint32  ff ff ff ff
    4  size           int32   of the metadata, padding included
    8  metadata       a FlatBuffers table: Message
       padding        up to 64 bytes
    .. body           the buffers, where the message says, in bytes from here

FlatBuffers, little-endian: a table begins with how far before it (int32) its vtable lies: uint16 size, uint16 size of
the table, then for each field how far after the table's beginning it is. A field that is a table or a vector holds how
far after itself (uint32) that begins; a vector begins with its number of elements (uint32).

    Message        ... 2 header: RecordBatch, 3 body length int64
    RecordBatch    0 length int64, 1 nodes, 2 buffers
    a node         int64 length, int64 number of nulls (-1: not counted)
    a buffer       int64 offset in the body, int64 length

Nodes stand in the order of fields, each before its children; so do buffers, validity first.

Source: Arrow's columnar format, "Serialization and Interprocess Communication" (Message.fbs, Schema.fbs).
"""

from __future__ import annotations

import functools
import struct

import pyarrow as pa

_ALIGNMENT = 64
_PREFIX = 8
_HEADER, _BODY_LENGTH = 2, 3
_LENGTH, _NODES, _BUFFERS = 0, 1, 2


class ArrowMessage:
    """The metadata of the record batches of one schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        content = _one_row(schema)
        (size,) = struct.unpack_from("<i", content, 4)
        self.size: int = -(-(_PREFIX + size) // _ALIGNMENT) * _ALIGNMENT
        """Bytes before the body."""
        self.content = bytearray(content[: _PREFIX + size].ljust(self.size, b"\0"))
        """The bytes before the body, with the present numbers."""
        struct.pack_into("<i", self.content, 4, self.size - _PREFIX)
        self._numbers = memoryview(self.content).cast("q")
        message = _PREFIX + _uint32(content, _PREFIX)
        batch = _followed(content, _field(content, message, _HEADER))
        self._body_length = _field(content, message, _BODY_LENGTH) >> 3
        self._length = _field(content, batch, _LENGTH) >> 3
        self._nodes, self._buffers = (
            _followed(content, _field(content, batch, field)) + 4 >> 3 for field in (_NODES, _BUFFERS)
        )

    def put_size(self, rows: int, body_bytes: int) -> None:
        """Set how many rows the batch has, and how many bytes follow the message."""
        self._numbers[self._length] = rows
        self._numbers[self._body_length] = body_bytes

    def put_lengths(self, nodes: list[int], length: int) -> None:
        """Set the length of several arrays."""
        numbers, first = self._numbers, self._nodes
        for node in nodes:
            numbers[first + 2 * node] = length

    def put_nulls(self, node: int, nulls: int) -> None:
        """Set how many elements of an array are null, or -1 for unknown; with 0, readers ignore its validity."""
        self._numbers[self._nodes + 2 * node + 1] = nulls

    def put_buffer(self, buffer: int, offset: int, size: int) -> None:
        """Set where in the body a buffer is (bytes); it may be longer than its array needs."""
        at = self._buffers + 2 * buffer
        self._numbers[at] = offset
        self._numbers[at + 1] = size


def _uint32(content: bytes, at: int) -> int:
    return int.from_bytes(content[at : at + 4], "little")


def _followed(content: bytes, at: int) -> int:
    return at + _uint32(content, at)


def _field(content: bytes, table: int, number: int) -> int:
    """Return where a field of a table is. A field that has its default value may be missing, as 0 of an empty body."""
    (back,) = struct.unpack_from("<i", content, table)
    (offset,) = struct.unpack_from("<H", content, table - back + 4 + 2 * number)
    assert offset  # noqa: S101 -- one row of at least one column leaves none of them at its default
    return table + int(offset)


@functools.lru_cache
def _one_row(schema: pa.Schema) -> bytes:
    """Return the message of a row of zeros, without the import of pandas (a second) that pyarrow's lists need.

    pyarrow releases the GIL several times per array; build the message once per schema.
    """
    row = pa.struct(list(schema))
    columns = pa.Array.from_buffers(row, 1, [None], 0, children=[_zeros(kind.type, 1) for kind in schema])
    return bytes(pa.RecordBatch.from_struct_array(columns).serialize())


def _zeros(kind: pa.DataType, length: int) -> pa.Array:
    """Return an array of zeros, empty values and empty lists."""
    children = [_zeros(kind.field(i).type, 0 if pa.types.is_list(kind) else length) for i in range(kind.num_fields)]
    buffers = [None] + [pa.py_buffer(bytes(_ALIGNMENT))] * (kind.num_buffers - 1)
    return pa.Array.from_buffers(kind, length, buffers, 0, children=children)
