"""A segment as a stream: its bytes and batches, or an error that describes their fault."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.remote_logs import BATCH_RECORDS, ORDERS_0, a_copied_remote_log, records
from tiered_storage.errors import CorruptRecordError, RemoteObjectCorruptError
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.kafka_log.records.record_batch import encode_batch
from tiered_storage.kafka_log.records.segment_scan import SegmentScanner
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.storage.batch_stream import BatchStream, checked_batches, fetch_whole
from tiered_storage.remote_log.storage.remote_storage_manager import DelegatingStorage

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


class Shortened(DelegatingStorage):
    """A storage that checks nothing and leaves out the last byte."""

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int = 0, end_position: int | None = None
    ) -> Iterator[bytes]:
        yield b"".join(self.storage.fetch_log_segment(metadata, start_position, end_position))[:-1]


def test_all_bytes_come_in_order_and_hold_every_batch(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        for segment in remote_log.context.segments.list_remote_log_segments(ORDERS_0):
            content = list(fetch_whole(segment, remote_log.context.storage))
            batches = list(checked_batches(segment, content))

            assert b"".join(bytes(window) for window, _ in batches) == b"".join(content)
            assert sum(len(window) for window, _ in batches) == segment.size
            assert int(batches[0][1].base_offset[0]) == segment.start_offset
            assert int(batches[-1][1].last_offset[-1]) == segment.end_offset


def test_a_flipped_bit_is_an_error_of_the_whole(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    stored = files.objects(".log")[0]
    stored.write_bytes(bytes([stored.read_bytes()[0] ^ 1]) + stored.read_bytes()[1:])
    with files.open() as remote_log:
        segment = next(iter(remote_log.context.segments.list_remote_log_segments(ORDERS_0)))
        with pytest.raises(RemoteObjectCorruptError, match=stored.name):
            list(fetch_whole(segment, remote_log.context.storage))


def test_a_storage_that_returns_too_few_bytes_is_found_out(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        segment = next(iter(remote_log.context.segments.list_remote_log_segments(ORDERS_0)))
        with pytest.raises(RemoteObjectCorruptError, match=f"{segment.size - 1} bytes"):
            list(fetch_whole(segment, Shortened(remote_log.context.storage)))
        with pytest.raises(CorruptRecordError):
            list(checked_batches(segment, Shortened(remote_log.context.storage).fetch_log_segment(segment)))
