"""Records for tests: a strategy for hypothesis, and segments written by our own encoder."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

from hypothesis import strategies as st

from tiered_storage.kafka_log.records.record_batch import Compression, Record, encode_batch

MAX_TIMESTAMP = (1 << 63) - 2
"""What a batch can hold behind a record without timestamp (-1): the difference is an int64."""

_bytes_or_null = st.none() | st.binary(max_size=100)
_headers = st.lists(st.tuples(st.text(max_size=10), _bytes_or_null), max_size=3).map(tuple)


@st.composite
def record_lists(draw: st.DrawFn, max_size: int = 20) -> list[Record]:
    """At least one record; offsets rise by any step that a batch can hold, timestamps go anywhere."""
    steps = draw(st.lists(st.integers(1, 1 << 20), min_size=1, max_size=max_size))
    offset = draw(st.integers(0, 1 << 62))
    timestamps = st.integers(-1, MAX_TIMESTAMP) | st.integers(1_700_000_000_000, 1_700_000_100_000)
    records = []
    for step in steps:
        records.append(Record(offset, draw(timestamps), draw(_bytes_or_null), draw(_bytes_or_null), draw(_headers)))
        offset += step
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
