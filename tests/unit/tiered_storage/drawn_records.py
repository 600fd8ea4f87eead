"""Records and batches for unit tests: drawn by hypothesis, or wrong on purpose."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from itertools import pairwise

from hypothesis import strategies as st

from support.records import Batch
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.kafka_log.records.record_batch import (
    Record,
)

MAX_TIMESTAMP = (1 << 63) - 2
"""What a batch can hold after a record without timestamp (-1): the difference is an int64."""
_bytes_or_null = st.none() | st.binary(max_size=60)
_keys = st.sampled_from(["", "a", "trace"]) | st.text(max_size=12)
_headers = st.lists(st.tuples(_keys, _bytes_or_null), max_size=3).map(tuple)
_timestamps = st.integers(-1, MAX_TIMESTAMP) | st.integers(1_700_000_000_000, 1_700_000_100_000)


@st.composite
def record_lists(
    draw: st.DrawFn, max_size: int = 20, offset: int | None = None, max_step: int = 1 << 20
) -> list[Record]:
    """At least one record, from `offset` or any on; offsets rise by up to `max_step`, timestamps go anywhere."""
    at = draw(st.integers(0, 1 << 62)) if offset is None else offset
    records = []
    for step in draw(st.lists(st.integers(1, max_step), min_size=1, max_size=max_size)):
        records.append(Record(at, draw(_timestamps), draw(_bytes_or_null), draw(_bytes_or_null), draw(_headers)))
        at += step
    return records


def a_message_of_magic_1(offset: int, size: int = 100) -> bytes:
    """A message as brokers wrote them before release 0.11, its checksum right; `size` is without offset and size."""
    content = b"\x01" + bytes(size - 5)
    return struct.pack(">qiI", offset, size, zlib.crc32(content)) + content


def batch_of(body: bytes, count: int = 1, last_offset_delta: int = 0) -> bytes:
    """A batch around any bytes, from offset 0 on."""
    checked = struct.pack(">hiqqqhii", 0, last_offset_delta, 0, 0, -1, -1, -1, count) + body
    return struct.pack(">qiibI", 0, 9 + len(checked), 0, 2, crc32c(checked)) + checked


def batch_lists(min_size: int = 0, max_size: int = 30) -> st.SearchStrategy[list[Batch]]:
    """Batches that are small against their number, so that equal timestamps and full intervals are common."""
    batch = st.builds(
        Batch, st.integers(1, 4), st.integers(61, 400), st.integers(-1, 12), st.sampled_from([0, 0, 0, 1, 5])
    )
    return st.lists(batch, min_size=min_size, max_size=max_size)


def windows(table: BatchTable, cuts: Sequence[int]) -> list[BatchTable]:
    """Return `table` in pieces, cut before each of the rows `cuts`."""
    bounds = [0, *sorted(min(cut, len(table)) for cut in cuts), len(table)]
    return [table.rows(first, end) for first, end in pairwise(bounds)]
