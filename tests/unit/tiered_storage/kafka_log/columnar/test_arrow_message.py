"""A message whose numbers were put in is what Arrow itself would have written."""

from __future__ import annotations

import pyarrow as pa

from tiered_storage.kafka_log.columnar.arrow_message import ArrowMessage

_NESTED = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
_SCHEMA = pa.schema([pa.field("number", pa.int64()), pa.field("text", pa.binary()), pa.field("lists", _NESTED)])


def test_arrow_reads_numbers_and_buffers_from_where_they_were_put() -> None:
    message = ArrowMessage(_SCHEMA)
    body = bytearray(512)
    body[0:24] = b"".join(number.to_bytes(8, "little") for number in (7, 8, 9))
    body[64:80] = b"".join(end.to_bytes(4, "little") for end in (0, 2, 2, 5))
    body[128:133] = b"abcde"
    body[192] = 0b101
    message.put_size(3, len(body))
    message.put_lengths([0, 1, 2], 3)
    message.put_lengths([3, 4, 5], 0)
    message.put_nulls(1, 1)
    message.put_buffer(1, 0, 24)
    message.put_buffer(2, 192, 1)
    message.put_buffer(3, 64, 16)
    message.put_buffer(4, 128, 5)
    message.put_buffer(6, 256, 16)
    for ends in (9, 12):
        message.put_buffer(ends, 256, 4)
        message.put_buffer(ends + 1, 0, 0)

    batch = pa.ipc.read_record_batch(pa.py_buffer(bytes(message.content) + bytes(body)), _SCHEMA)

    batch.validate(full=True)
    assert batch.to_pydict() == {"number": [7, 8, 9], "text": [b"ab", None, b"cde"], "lists": [[], [], []]}


def test_a_body_begins_where_arrow_likes_its_memory_to() -> None:
    for names in (["number"], ["text"], ["lists"], ["lists", "number", "text"]):
        message = ArrowMessage(pa.schema([_SCHEMA.field(name) for name in names]))

        assert message.size == len(message.content)
        assert message.size % 64 == 0


def test_numbers_can_be_put_again() -> None:
    message = ArrowMessage(pa.schema([_SCHEMA.field("number")]))
    found = []
    for rows in (2, 1, 3):
        body = b"".join(number.to_bytes(8, "little") for number in range(rows))
        message.put_size(rows, len(body))
        message.put_lengths([0], rows)
        message.put_buffer(1, 0, len(body))
        batch = pa.ipc.read_record_batch(pa.py_buffer(bytes(message.content) + body), message.schema)
        found.append(batch["number"].to_pylist())

    assert found == [[0, 1], [0], [0, 1, 2]]
