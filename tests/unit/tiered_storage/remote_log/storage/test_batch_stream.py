from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.remote_logs import BATCH_RECORDS, records
from tiered_storage.errors import CorruptRecordError
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.kafka_log.records.record_batch import encode_batch
from tiered_storage.kafka_log.records.segment_scan import SegmentScanner
from tiered_storage.remote_log.storage.batch_stream import BatchStream

BATCHES = [encode_batch(records(start, start + BATCH_RECORDS)) for start in range(0, 40, BATCH_RECORDS)]
SEGMENT = b"".join(BATCHES)


def streamed(segment: bytes, cuts: list[int]) -> BatchTable:
    """Feed `segment`, cut at these places, and return all batches."""
    places = sorted({0, len(segment), *cuts})
    stream = BatchStream("segment", 0, len(segment))
    tables = [table for start, end in pairwise(places) for table in stream.feed(segment[start:end])]
    stream.finish()
    return BatchTable.concatenate(tables)


@given(st.lists(st.integers(0, len(SEGMENT)), max_size=30))
def test_batches_do_not_depend_on_how_the_stream_is_cut(cuts: list[int]) -> None:
    whole, _ = SegmentScanner("segment", 0).feed(memoryview(SEGMENT))

    for found, expected in zip(streamed(SEGMENT, cuts).columns(), whole.columns(), strict=True):
        assert np.array_equal(found, expected)


def test_a_segment_is_streamed_byte_by_byte() -> None:
    assert len(streamed(SEGMENT, list(range(len(SEGMENT))))) == len(BATCHES)


@given(st.integers(0, len(SEGMENT) - 1), st.lists(st.integers(0, len(SEGMENT)), max_size=5))
def test_a_flipped_bit_is_found_wherever_a_checksum_covers_it(position: int, cuts: list[int]) -> None:
    broken = bytearray(SEGMENT)
    broken[position] ^= 0x10
    # A batch's checksum leaves out its base offset and the leader epoch.
    if position % len(BATCHES[0]) in {*range(8), *range(12, 16)}:
        return

    with pytest.raises(CorruptRecordError):
        streamed(bytes(broken), cuts)


def test_a_segment_that_ends_inside_a_batch_is_refused_without_waiting_for_more() -> None:
    with pytest.raises(CorruptRecordError, match="truncated"):
        streamed(SEGMENT[:-1], [100, 200])
