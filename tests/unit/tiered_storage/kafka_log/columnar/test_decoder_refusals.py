"""A decoder refuses the input that the plain one refuses, reports why and where, and keeps to its limits."""

from __future__ import annotations

import struct
import tracemalloc

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.records import USUAL_EXAMPLES, batches_of, expected_rows, record_of, some_records
from tiered_storage.errors import ConfigurationError, CorruptRecordError
from tiered_storage.kafka_log.columnar import decoder as columnar
from tiered_storage.kafka_log.columnar.decoder import Checks, ColumnDecoder, RecordRange
from tiered_storage.kafka_log.kernels.constants import BATCH_OVERHEAD, INT32_MAX
from tiered_storage.kafka_log.records import segment_scan
from tiered_storage.kafka_log.records.record_batch import Compression, Record, encode_batch, read_records
from tiered_storage.kafka_log.records.segment_scan import SegmentScanner
from unit.tiered_storage.drawn_records import batch_of
from unit.tiered_storage.kafka_log.columnar.decoded_batches import (
    EVERY_CODEC,
    MIB,
    decode,
    record_batches,
    sealed,
    segments,
)

MUTATIONS = st.lists(
    st.tuples(
        st.floats(0, 1, exclude_max=True),
        st.integers(0, 2),
        st.binary(max_size=2)
        | st.sampled_from([b"\x80", b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x1f", b"\x01"])
        | st.sampled_from(
            [b"\xff" * 9 + b"\x01", b"\x80" * 9 + b"\x02", b"\xfe\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x00"]
        ),
    ),
    min_size=1,
    max_size=3,
)


@settings(deadline=None, max_examples=4 * USUAL_EXAMPLES)
@given(batches=segments(codecs=(Compression.NONE,), max_batches=1), mutations=MUTATIONS)
def test_broken_records_are_refused_exactly_where_the_plain_decoder_refuses(
    batches: list[bytes], mutations: list[tuple[float, int, bytes]]
) -> None:
    body = bytearray(batches[0][BATCH_OVERHEAD:])
    for place, removed, inserted in mutations:
        at = int(place * len(body))
        body[at : at + removed] = inserted
    _assert_same_status(sealed(batches[0][:BATCH_OVERHEAD] + body))


@settings(deadline=None, max_examples=2 * USUAL_EXAMPLES)
@given(
    batches=segments(max_batches=1),
    field=st.sampled_from([(21, ">h"), (23, ">i"), (27, ">q"), (35, ">q"), (53, ">i"), (57, ">i")]),
    value=st.integers(-3, 9) | st.sampled_from([INT32_MAX, -(1 << 31), 1 << 62, (1 << 63) - 1, -(1 << 63)]),
)
def test_headers_that_lie_are_refused_exactly_where_the_plain_decoder_refuses(
    batches: list[bytes], field: tuple[int, str], value: int
) -> None:
    place, layout = field
    size = struct.calcsize(layout)
    batch = bytearray(batches[0])
    batch[place : place + size] = (value & ((1 << 8 * size) - 1)).to_bytes(size, "big")
    _assert_same_status(sealed(batch))


@settings(deadline=None, max_examples=2 * USUAL_EXAMPLES)
@given(key=st.binary(max_size=12) | st.text(max_size=6).map(str.encode), cut=st.integers(0, 3))
def test_header_keys_are_utf_8_or_mended_as_python_mends_it(key: bytes, cut: int) -> None:
    key = key[: max(0, len(key) - cut)]
    _assert_same_status(batch_of(record_of([0, 0, -1, -1, 1, len(key)], key + b"\x01")))


REFUSED = [
    "c080",
    "c1bf",
    "e09fbf",
    "eda080",
    "edbfbf",
    "f08fbfbf",
    "f4908080",
    "f5808080",
    "80",
    "c2",
    "e1bf",
    "f0bfbf",
]
TAKEN = ["c280", "e0a080", "ed9fbf", "ee8080", "f0908080", "f48fbfbf", "6161616161616161c2a9"]


@pytest.mark.parametrize("key", [*REFUSED, *TAKEN, "61616161616161c2"])
def test_the_edges_of_utf_8_are_those_of_python(key: str) -> None:
    content = bytes.fromhex(key)
    _assert_same_status(batch_of(record_of([0, 0, -1, -1, 1, len(content)], content + b"\x01")))


def test_a_header_key_that_is_no_utf_8_changes_no_other() -> None:
    strange = batch_of(record_of([0, 0, -1, -1, 3, 1], b"a\x01\x02\xff\x02v\x04\xc2\xa9\x02w"))
    sound = encode_batch([Record(1, 5, None, None, (("b", b"x"),))])

    rows = [row for batch in record_batches([strange, sound]) for row in batch["headers"].to_pylist()]

    assert [[(each["key"], each["value"]) for each in row] for row in rows] == [
        [("a", None), ("\ufffd", b"v"), ("\u00a9", b"w")],
        [("b", b"x")],
    ]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ([], "past its end"),
        ([0, 0, 9], "field is longer"),
        ([0, 0, -1, -1, 9], "number of headers"),
        ([0, 0, -1, -1, 1, -1, -1], "header has no key"),
        ([0, 0, -1, -1, 1, -2, -1], "header has no key"),
        ([0, 0, -1, -1, 0, 0], "fewer bytes"),
        ([0, 3, -1, -1, 0], "its offset"),
        ([0, 1 << 40, -1, -1, 0], "varint is longer"),
    ],
)
def test_an_error_names_source_position_record_and_reason(fields: list[int], reason: str) -> None:
    sound = encode_batch(some_records())
    broken = bytearray(batch_of(record_of(fields)))
    broken[:8] = (1).to_bytes(8, "big")

    with pytest.raises(CorruptRecordError) as caught:
        decode([sound, bytes(broken)])

    assert caught.value.path == "orders-0/00000000000000000000.log"
    assert caught.value.position == len(sound)
    assert caught.value.reason.startswith("record 1 of 1: ")
    assert reason in caught.value.reason


@pytest.mark.parametrize(
    "fields",
    [
        *([0, 0, length, length, 1, 0, length] for length in (-2, -300, -(1 << 31))),
        [0, 1 << 32, -1, -1, 0],
        [0, 0, -(1 << 33) - 1, -(3 << 31) - 1, 0],
    ],
)
@pytest.mark.parametrize("value_views", [False, True])
def test_unusual_varints_are_decoded_as_by_java(fields: list[int], value_views: bool) -> None:
    batch = batch_of(record_of(fields))
    record = Record(0, 0, None, None, (("", None),) * fields[4])

    assert read_records(batch) == [record]
    assert decode([batch], value_views=value_views) == [*expected_rows([batch])]


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4])
@pytest.mark.parametrize("with_instructions", [True, False])
def test_a_wrong_checksum_is_named_with_both(
    codec: Compression, with_instructions: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not with_instructions:
        for module in (columnar, segment_scan):
            monkeypatch.setattr(module, "has_checksum_instructions", lambda: False)
    batches = batches_of([3, 3, 3], compression=codec)
    broken = bytearray(batches[1])
    broken[19] ^= 1

    with pytest.raises(CorruptRecordError, match=r"CRC-32C .*0x.*0x") as caught:
        decode([batches[0], bytes(broken), batches[2]])

    assert caught.value.position == len(batches[0])
    rows = decode([batches[0], bytes(broken), batches[2]], checks=Checks(crc=False))
    assert rows == [*expected_rows(batches)]


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.LZ4])
def test_a_table_of_more_than_its_window_reads_nothing_outside(compression: Compression) -> None:
    window = memoryview(b"".join(batches_of([3, 3], compression=compression)))
    table, _ = SegmentScanner("a segment", 0).feed(window)

    for missing in (1, len(window)):
        with pytest.raises(CorruptRecordError, match="window"):
            list(ColumnDecoder("a segment").decode(window[:-missing], table))
    table.size[1] = 1 << 34
    with pytest.raises(CorruptRecordError, match="window"):
        list(ColumnDecoder("a segment").decode(window, table))


def test_an_error_names_the_first_of_two_broken_batches() -> None:
    first = batch_of(record_of([0, 0, 9]))
    second = bytearray(encode_batch(some_records(1), Compression.ZSTD))
    second[-1] ^= 1

    with pytest.raises(CorruptRecordError, match="longer") as caught:
        decode([first, sealed(second)])

    assert caught.value.position == 0


def test_a_batch_outside_the_range_is_not_looked_at_unless_asked() -> None:
    batches = batches_of([5, 5, 5], compression=Compression.ZSTD)
    broken = bytearray(batches[0])
    broken[-1] ^= 1
    damaged = [bytes(broken), *batches[1:]]

    rows = decode(damaged, within=RecordRange(first_offset=7))

    assert [row["offset"] for row in rows] == [*range(7, 15)]
    with pytest.raises(CorruptRecordError, match="CRC-32C"):
        decode(damaged, within=RecordRange(first_offset=7), checks=Checks(outside=True))


@EVERY_CODEC
def test_decompression_of_a_batch_stops_at_its_limit(codec: Compression) -> None:
    batch = encode_batch(some_records(value=bytes(MIB)), codec)

    with pytest.raises(CorruptRecordError, match=r"\b100000 bytes"):
        decode([batch], checks=Checks(max_decompressed_bytes=100_000))


@pytest.mark.parametrize(
    ("count", "fields"),
    [
        (INT32_MAX, [0, 0, -1, -1, 0]),
        (1, [0, 0, INT32_MAX]),
        (1, [0, 0, -1, -1, INT32_MAX]),
        (1, [0, 0, -1, -1, 1, INT32_MAX]),
    ],
)
def test_claims_of_gigabytes_cost_no_memory(count: int, fields: list[int]) -> None:
    batch = batch_of(record_of(fields), count=count, last_offset_delta=INT32_MAX)
    decode([encode_batch(some_records())])
    arrow_before = pa.default_memory_pool().max_memory()

    tracemalloc.start()
    with pytest.raises(CorruptRecordError):
        decode([batch])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < MIB
    assert pa.default_memory_pool().max_memory() < arrow_before + MIB


@pytest.mark.parametrize(
    "arguments",
    [
        {"columns": ["offset", "offest"]},
        {"columns": ["offset", "offset"]},
        {"columns": []},
        {"checks": Checks(max_decompressed_bytes=0)},
        {"checks": Checks(max_decompressed_bytes=1 << 31)},
        {"chunk_bytes": 0},
    ],
)
def test_arguments_without_a_meaning_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        ColumnDecoder("a segment", **arguments)  # type: ignore[arg-type]


def _assert_same_status(batch: bytes) -> None:
    try:
        rows = [*expected_rows([batch])]
    except CorruptRecordError:
        with pytest.raises(CorruptRecordError):
            decode([batch])
        return
    assert decode([batch]) == rows
