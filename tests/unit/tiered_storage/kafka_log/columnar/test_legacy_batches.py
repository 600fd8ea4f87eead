"""Messages of magic 0 and 1 are decoded like batches, wherever they stand among them."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.records import USUAL_EXAMPLES, expected_rows, rows_of
from tiered_storage.errors import CorruptRecordError
from tiered_storage.kafka_log.columnar.decoder import Checks, ColumnDecoder, RecordRange
from tiered_storage.kafka_log.records.compression import Compression
from tiered_storage.kafka_log.records.legacy_message import encode_messages
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import encode_batch
from tiered_storage.kafka_log.records.segment_scan import SegmentScanner
from unit.tiered_storage.kafka_log.columnar.decoded_batches import decode, mixed_segments, record_batches

optional_offsets = st.none() | st.integers(0, 3000)


@settings(deadline=None, max_examples=USUAL_EXAMPLES // 2)
@given(batches=mixed_segments(), chunk_bytes=st.integers(1, 600))
def test_each_row_is_what_the_plain_decoder_reads(batches: list[bytes], chunk_bytes: int) -> None:
    assert decode(batches, chunk_bytes=chunk_bytes) == [*expected_rows(batches)]


@settings(deadline=None, max_examples=USUAL_EXAMPLES // 2)
@given(batches=mixed_segments(), first=optional_offsets, end=optional_offsets, with_views=st.booleans())
def test_a_range_has_its_rows_and_views_the_same_values(
    batches: list[bytes], first: int | None, end: int | None, with_views: bool
) -> None:
    within = RecordRange(first, end)
    rows = [
        row
        for row in expected_rows(batches)
        if (first is None or row["offset"] >= first) and (end is None or row["offset"] < end)
    ]
    assert rows_of([*record_batches(batches, None, within, value_views=with_views)]) == rows


def test_times_choose_messages_by_their_own_and_v0_has_none() -> None:
    records = [Record(i, 1000 + i, None, b"value") for i in range(4)]
    batches = [
        encode_messages(records[:2], 0, Compression.GZIP),
        encode_messages([Record(2, 1002, None, b"value"), Record(3, 1003, None, b"value")], 1, Compression.GZIP),
        encode_batch([Record(4, 1001, None, b"value"), Record(5, 1004, None, b"value")]),
    ]
    assert [row["offset"] for row in decode(batches, RecordRange(first_timestamp=1003))] == [3, 5]
    assert [row["offset"] for row in decode(batches, RecordRange(end_timestamp=1003))] == [0, 1, 2, 4]


@pytest.mark.parametrize("place", ["checksum", "inside"])
def test_a_damaged_message_is_named_after_the_rows_before_it(place: str) -> None:
    sound = encode_batch([Record(0, 1, None, b"value")])
    broken = bytearray(encode_messages([Record(1, 1, None, bytes(50))], 1, Compression.GZIP))
    broken_at = len(sound)
    table, _ = SegmentScanner("x", 0).feed(memoryview(sound + broken))
    broken[-6] ^= 1
    if place == "inside":
        broken[12:16] = zlib.crc32(broken[16:]).to_bytes(4, "big")
    decoded = ColumnDecoder("x", ["offset"]).decode(memoryview(sound + broken), table)
    assert next(decoded).to_pylist() == [{"offset": 0}]
    with pytest.raises(CorruptRecordError, match="CRC-32 is" if place == "checksum" else "gzip") as caught:
        next(decoded)
    assert (caught.value.path, caught.value.position) == ("x", broken_at)


def test_a_wrapper_that_holds_too_much_is_refused() -> None:
    bomb = encode_messages([Record(0, 1, None, bytes(1 << 20))], 0, Compression.GZIP)
    table, _ = SegmentScanner("x", 0).feed(memoryview(bomb))
    with pytest.raises(CorruptRecordError, match="more than the 1000 bytes"):
        list(ColumnDecoder("x", ["offset"], checks=Checks(max_decompressed_bytes=1000)).decode(memoryview(bomb), table))
