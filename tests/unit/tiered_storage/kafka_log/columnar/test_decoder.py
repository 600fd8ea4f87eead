from __future__ import annotations

import os
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from support.records import USUAL_EXAMPLES, Row, batches_of, expected_rows, record_of, rows_of, some_records
from tiered_storage.errors import ConfigurationError, CorruptRecordError
from tiered_storage.kafka_log.columnar import decoder as columnar
from tiered_storage.kafka_log.columnar.chunk_memory import ChunkMemory
from tiered_storage.kafka_log.columnar.decoder import (
    EVERYTHING,
    STRICT,
    Checks,
    ColumnDecoder,
    RecordRange,
    iterate_columns,
)
from tiered_storage.kafka_log.columnar.record_columns import SCHEMA
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.kafka_log.kernels.constants import BATCH_OVERHEAD, INT32_MAX, KEYS, VALUES
from tiered_storage.kafka_log.kernels.machine_code import address_of, load_kernels
from tiered_storage.kafka_log.records import segment_scan
from tiered_storage.kafka_log.records.record import append_varint
from tiered_storage.kafka_log.records.record_batch import (
    Compression,
    Record,
    TimestampType,
    encode_batch,
    read_batch_header,
    read_records,
)
from tiered_storage.kafka_log.records.segment_scan import SegmentScanner
from unit.tiered_storage.drawn_records import batch_of, record_lists

MIB = 1 << 20
EVERY_CODEC = pytest.mark.parametrize("codec", list(Compression))


@st.composite
def segments(draw: st.DrawFn, codecs: Sequence[Compression] = tuple(Compression), max_batches: int = 6) -> list[bytes]:
    """Batches of every kind, their offsets rising with gaps inside and between them."""
    offset = draw(st.integers(0, 1 << 40))
    batches = []
    for _ in range(draw(st.integers(1, max_batches))):
        records = draw(record_lists(max_size=8, offset=offset, max_step=300))
        offset = records[-1].offset + draw(st.integers(1, 300))
        batches.append(
            encode_batch(
                records,
                draw(st.sampled_from(codecs)),
                partition_leader_epoch=draw(st.integers(-1, INT32_MAX)),
                timestamp_type=draw(st.sampled_from(TimestampType)),
                producer_id=draw(st.integers(-1, 1 << 60)),
                producer_epoch=draw(st.integers(-1, 1 << 14)),
                base_sequence=draw(st.integers(-1, 5) | st.integers(INT32_MAX - 5, INT32_MAX)),
                is_transactional=draw(st.booleans()),
                is_control=draw(st.booleans()),
            )
        )
    return batches


@EVERY_CODEC
@settings(deadline=None, max_examples=USUAL_EXAMPLES // 2)
@given(data=st.data())
def test_each_row_is_what_the_plain_decoder_reads(codec: Compression, data: st.DataObject) -> None:
    batches = data.draw(segments(codecs=(codec,)))

    assert _decode(batches) == [*expected_rows(batches)]


@settings(deadline=None)
@given(batches=segments(), chunk_bytes=st.integers(1, 600))
def test_chunks_of_any_size_give_the_same_rows(batches: list[bytes], chunk_bytes: int) -> None:
    assert _decode(batches, chunk_bytes=chunk_bytes) == [*expected_rows(batches)]


@settings(deadline=None)
@given(batches=segments(), names=st.lists(st.sampled_from(SCHEMA.names), min_size=1, unique=True))
def test_columns_are_given_alone_and_in_the_order_asked_for(batches: list[bytes], names: list[str]) -> None:
    rows = [{name: row[name] for name in names} for row in expected_rows(batches)]

    decoded = [*_record_batches(batches, columns=names)]

    assert all(batch.schema.names == names for batch in decoded)
    assert rows_of(decoded) == rows


@settings(deadline=None)
@given(batches=segments(), first_offset=st.none() | st.integers(0, 1000), chunk_bytes=st.integers(1, 600))
def test_views_look_at_the_same_values(batches: list[bytes], first_offset: int | None, chunk_bytes: int) -> None:
    start = read_batch_header(batches[0]).base_offset
    within = RecordRange(first_offset and start + first_offset)

    decoded = [*_record_batches(batches, None, within, chunk_bytes=chunk_bytes, value_views=True)]

    for batch in decoded:
        batch.validate(full=True)
        assert batch.schema.field("value").type == pa.binary_view()
    assert rows_of(decoded) == _decode(batches, within)


@EVERY_CODEC
def test_views_stay_as_they_are_while_a_file_is_read_on(codec: Compression, tmp_path: Path) -> None:
    values = [bytes([number]) * 2000 for number in range(40)]
    batches = [batches_of([100], 100 * i, value, codec)[0] for i, value in enumerate(values)]
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(b"".join(batches))

    decoded = [*iterate_columns(path, 0, ["value"], value_views=True)]

    assert len(decoded) > 1
    found = [value for batch in decoded for value in batch["value"].to_pylist()]
    assert found == [value for value in values for _ in range(100)]


@settings(deadline=None)
@given(batches=segments(), data=st.data())
def test_a_range_gives_the_rows_inside_it(batches: list[bytes], data: st.DataObject) -> None:
    rows = [*expected_rows(batches)]
    offsets = st.none() | st.sampled_from([row["offset"] + step for row in rows for step in (0, 1)])
    times = st.none() | st.sampled_from([row["timestamp"] + step for row in rows for step in (0, 1)])
    within = RecordRange(
        data.draw(offsets), data.draw(offsets), data.draw(times), data.draw(times), data.draw(st.booleans())
    )

    inside = [row for row in rows if _is_inside(row, within)]
    assert _decode(batches, within=within) == inside
    assert _decode(batches, within=within, checks=Checks(outside=True)) == inside


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
    _assert_same_status(_sealed(batches[0][:BATCH_OVERHEAD] + body))


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
    _assert_same_status(_sealed(batch))


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

    rows = [row for batch in _record_batches([strange, sound]) for row in batch["headers"].to_pylist()]

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
        _decode([sound, bytes(broken)])

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
def test_numbers_that_nobody_writes_are_read_as_java_reads_them(fields: list[int], value_views: bool) -> None:
    batch = batch_of(record_of(fields))
    record = Record(0, 0, None, None, (("", None),) * fields[4])

    assert read_records(batch) == [record]
    assert _decode([batch], value_views=value_views) == [*expected_rows([batch])]


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
        _decode([batches[0], bytes(broken), batches[2]])

    assert caught.value.position == len(batches[0])
    rows = _decode([batches[0], bytes(broken), batches[2]], checks=Checks(crc=False))
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


@pytest.mark.parametrize("value_views", [False, True])
def test_a_preallocated_file_ends_where_its_zeros_begin(tmp_path: Path, value_views: bool) -> None:
    path, batches = tmp_path / "00000000000000000000.log", batches_of([3, 4])
    path.write_bytes(b"".join(batches))
    os.truncate(path, 1 << 30)

    assert rows_of(iterate_columns(path, 0, value_views=value_views)) == [*expected_rows(batches)]


@pytest.mark.nightly
@pytest.mark.parametrize("columns", [["value"], None])
@pytest.mark.parametrize("value_views", [False, True])
def test_a_value_of_nearly_2_gib_is_whole(tmp_path: Path, columns: list[str] | None, value_views: bool) -> None:
    path, size = tmp_path / "00000000000000000000.log", INT32_MAX - 80
    record = bytearray(1)
    for field in (0, 0, -1, size):
        append_varint(record, field)
    body = bytearray()
    append_varint(body, len(record) + size + 1)
    body += record
    header = bytearray(batch_of(b""))
    header[8:12] = (BATCH_OVERHEAD - 12 + len(body) + size + 1).to_bytes(4, "big")
    with path.open("wb") as file:
        file.write(header + body + b"first")
        file.seek(size - 9, os.SEEK_CUR)
        file.write(b"last\0")
    checks = Checks(crc=False, max_decompressed_bytes=INT32_MAX)

    (chunk,) = iterate_columns(path, 0, columns, checks=checks, value_views=value_views)

    value = memoryview(chunk["value"][0].as_buffer())
    assert (len(value), bytes(value[:6]), bytes(value[-5:])) == (size, b"first\0", b"\0last")


def test_an_error_names_the_first_of_two_broken_batches() -> None:
    first = batch_of(record_of([0, 0, 9]))
    second = bytearray(encode_batch(some_records(1), Compression.ZSTD))
    second[-1] ^= 1

    with pytest.raises(CorruptRecordError, match="longer") as caught:
        _decode([first, _sealed(second)])

    assert caught.value.position == 0


def test_sequences_start_again_after_the_largest() -> None:
    batch = encode_batch(some_records(count=4), producer_id=1, producer_epoch=0, base_sequence=INT32_MAX - 1)

    assert [row["sequence"] for row in _decode([batch])] == [INT32_MAX - 1, INT32_MAX, 0, 1]


def test_a_batch_with_append_time_still_has_its_producers_times() -> None:
    batch = encode_batch(some_records(count=3), timestamp_type=TimestampType.LOG_APPEND_TIME)

    rows = _decode([batch])

    assert [row["create_time"] for row in rows] == [1_700_000_000_000 + i for i in range(3)]
    assert [row["timestamp"] for row in rows] == [row["log_append_time"] for row in rows] == [1_700_000_000_002] * 3


def test_a_batch_whose_records_are_compacted_away_has_no_rows() -> None:
    first, last = encode_batch(some_records()), encode_batch(some_records(20))
    empty = bytes.fromhex(
        "0000000000000005000000310000000902ec629893000400000009ffffffffffffffff0000018bcfe5680000000000000000"
        "0700010000000300000000"
    )

    assert [row["offset"] for row in _decode([first, _sealed(empty), last])] == [0, 20]
    assert _decode([_sealed(empty)]) == []


def test_a_batch_outside_the_range_is_not_looked_at_unless_asked() -> None:
    batches = batches_of([5, 5, 5], compression=Compression.ZSTD)
    broken = bytearray(batches[0])
    broken[-1] ^= 1
    damaged = [bytes(broken), *batches[1:]]

    rows = _decode(damaged, within=RecordRange(first_offset=7))

    assert [row["offset"] for row in rows] == [*range(7, 15)]
    with pytest.raises(CorruptRecordError, match="CRC-32C"):
        _decode(damaged, within=RecordRange(first_offset=7), checks=Checks(outside=True))


@EVERY_CODEC
def test_a_record_larger_than_a_chunk_is_read(codec: Compression) -> None:
    records = [Record(i, i, b"key", bytes([i]) * (i * 300_000), (("h", bytes(i)),)) for i in range(6)]
    batches = [encode_batch(records, codec), encode_batch(some_records(10), codec)]

    assert _decode(batches, chunk_bytes=100_000) == [*expected_rows(batches)]


def test_one_batch_of_very_many_records_makes_chunks_of_equal_size() -> None:
    batch = encode_batch([Record(i, 0, None, None) for i in range(150_000)], Compression.LZ4)

    decoded = [*_record_batches([batch], chunk_bytes=MIB)]

    assert [each.num_rows for each in decoded] == [50_000, 50_000, 50_000]
    assert pa.Table.from_batches(decoded)["offset"].to_pylist() == [*range(150_000)]


def test_chunks_of_more_records_than_fit_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columnar, "_MOST_ROWS", 1000)
    decoder, addresses = ColumnDecoder("a segment"), set()
    for records in (1120, 1150, 1200, 1300, 1900) * 2:
        window = b"".join(batches_of([records // 10] * 10))
        table, _ = SegmentScanner("a segment", 0).feed(memoryview(window))
        rows = []
        for batch in decoder.decode(memoryview(window), table):
            rows.append(batch.num_rows)
            addresses.add(batch.column("offset").buffers()[1].address)
        assert rows == [records // 2, records // 2]

    assert len(addresses) <= 6


@pytest.mark.parametrize("codec", list(Compression)[1:])
def test_decompression_of_a_batch_stops_at_its_limit(codec: Compression) -> None:
    batch = encode_batch(some_records(value=bytes(MIB)), codec)

    with pytest.raises(CorruptRecordError, match=r"\b100000 bytes"):
        _decode([batch], checks=Checks(max_decompressed_bytes=100_000))


def test_an_uncompressed_batch_has_the_same_cap() -> None:
    batch = encode_batch(some_records(value=bytes(MIB)))

    with pytest.raises(CorruptRecordError, match=r"\b100000 bytes"):
        _decode([batch], checks=Checks(max_decompressed_bytes=100_000))


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
    _decode([encode_batch(some_records())])
    arrow_before = pa.default_memory_pool().max_memory()

    tracemalloc.start()
    with pytest.raises(CorruptRecordError):
        _decode([batch])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < MIB
    assert pa.default_memory_pool().max_memory() < arrow_before + MIB


def test_decoded_batches_do_not_keep_their_chunk_in_memory() -> None:
    batches = batches_of([1000, 1000], value=bytes(500))

    decoded = [*_record_batches(batches, within=RecordRange(first_offset=1999))]

    assert [batch.num_rows for batch in decoded] == [1]
    assert decoded[0].get_total_buffer_size() < 10_000


@pytest.mark.parametrize("value_views", [False, True])
def test_a_chunk_is_used_again_only_when_nobody_keeps_anything_of_it(value_views: bool) -> None:
    batches = [encode_batch([Record(offset, offset, b"k%d" % offset, b"v%d" % offset * 50)]) for offset in range(60)]
    kept: list[pa.Array] = []
    dropped: set[int] = set()

    for batch in _record_batches(batches, chunk_bytes=500, value_views=value_views):
        address = batch.column("offset").buffers()[1].address
        assert address not in {each.buffers()[1].address for each in kept}
        if len(kept) < 3:
            kept.append(batch.column("offset"))
        else:
            dropped.add(address)

    offsets = [offset for each in kept for offset in each.to_pylist()]
    assert offsets == [*range(len(offsets))]
    assert 0 < len(dropped) < 5


def test_the_memory_of_a_large_batch_is_freed() -> None:
    batches = [encode_batch([Record(0, 0, None, bytes(20 * MIB))]), encode_batch([Record(1, 1, None, b"v")])]
    before = pa.total_allocated_bytes()

    decoded = _record_batches(batches, ["value"])
    assert [next(decoded).num_rows, pa.total_allocated_bytes() > before + 20 * MIB] == [1, True]
    assert next(decoded).num_rows == 1
    assert pa.total_allocated_bytes() < before + MIB


def test_a_profiler_does_not_make_the_decoder_overwrite_its_results() -> None:
    batches = [encode_batch([Record(offset, offset, b"k", b"v" * 100)]) for offset in range(60)]
    looks: list[int] = []

    def look(frame: FrameType, event: str, _: object) -> None:
        if "chunk_memory" in frame.f_code.co_filename and event != "call":
            looks.append(len(frame.f_locals))

    sys.setprofile(look)
    try:
        kept = [*_record_batches(batches, ["offset", "value"], chunk_bytes=500)]
    finally:
        sys.setprofile(None)

    assert looks
    assert [offset for batch in kept for offset in batch.column("offset").to_pylist()] == [*range(60)]


@pytest.mark.parametrize("missing", range(6))
def test_a_chunk_that_finds_no_memory_leaves_the_decoder_whole(missing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = ChunkMemory(SCHEMA)
    memory.allocate(4, 100)
    found: list[int] = []

    def take(make: Callable[..., NDArray[Any]]) -> Callable[..., NDArray[Any]]:
        def take_or_fail(size: int, *arguments: object) -> NDArray[Any]:
            if len(found) == missing:
                raise MemoryError
            found.append(size)
            return make(size, *arguments)

        return take_or_fail

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(np, "empty", take(np.empty))
        patch.setattr(np, "zeros", take(np.zeros))
        memory.allocate(4, 10_000)

    for size in (100, 10_000):
        chunk = memory.allocate(4, size)
        kept: list[NDArray[Any]] = [memory.keys, *memory.header_texts, *memory.header_ends]
        assert min(memory.keys.size, memory.header_texts[0].size, memory.header_texts[1].size) >= size
        assert {*chunk.places[KEYS:].tolist()} - {chunk.places[VALUES]} == {address_of(array) for array in kept}


@pytest.mark.parametrize("last_timestamp", [1000, 10])
def test_views_do_not_keep_the_decompressed_batches_of_which_nothing_is_left(last_timestamp: int) -> None:
    times = [1000] * 20 + [last_timestamp]
    batches = [
        encode_batch([Record(offset, time, None, bytes(2 * MIB))], Compression.ZSTD)
        for offset, time in enumerate(times)
    ]

    tracemalloc.start()
    decoded = [*_record_batches(batches, ["value"], RecordRange(end_timestamp=500), value_views=True)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert sum(batch.num_rows for batch in decoded) == (last_timestamp < 500)
    assert peak < 10 * MIB


def test_a_decoder_in_each_thread_reads_alike() -> None:
    # No two are alike, so that nothing of another thread's could pass for one's own.
    segments = [
        batches_of([50] * 20, base_offset=number << 20, value=b"value %d" % number, compression=codec)
        for number, codec in enumerate([*Compression] * 4)
    ]
    expected = [[*expected_rows(batches)] for batches in segments]
    all_begin = Barrier(4)

    def decode_after_the_others_are_there(batches: list[bytes]) -> list[Row]:
        all_begin.wait(60)
        return _decode(batches)

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(decode_after_the_others_are_there, segments)] == expected


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


def test_a_file_is_read_lazily_and_only_as_far_as_its_range(tmp_path: Path) -> None:
    batches = batches_of([100] * 300, value=bytes(200))
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(b"".join(batches) + b"torn")

    def offsets(found: Iterator[pa.RecordBatch]) -> list[int]:
        return [offset for batch in found for offset in batch["offset"].to_pylist()]

    within = RecordRange(first_offset=150, end_offset=7050)
    assert offsets(iterate_columns(path, 0, ["offset"], within)) == [*range(150, 7050)]
    start = len(b"".join(batches[:70]))
    assert offsets(iterate_columns(path, 0, ["offset"], within, start_position=start)) == [*range(7000, 7050)]
    everything = iterate_columns(path, 0)
    assert next(everything)["offset"][0].as_py() == 0
    with pytest.raises(CorruptRecordError, match=r"truncated: .*4 bytes") as caught:
        list(everything)
    assert caught.value.path == str(path)


def test_neither_the_compiler_nor_pandas_is_loaded_where_kernels_are_compiled_already(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(b"".join(batches_of([100, 100])))
    program = """
import sys
from pathlib import Path
from tiered_storage.kafka_log.columnar.decoder import RecordRange, iterate_columns
from tiered_storage.kafka_log.kernels.constants import KEYS, VALUES
from tiered_storage.kafka_log.kernels.machine_code import address_of, load_kernels

for first_offset in (0, 150, 199):
    assert next(iterate_columns(Path(sys.argv[1]), 0, within=RecordRange(first_offset))).num_rows == 200 - first_offset
assert not {"numba", "pandas"} & set(sys.modules)
"""

    load_kernels()
    subprocess.run([sys.executable, "-c", program, str(path)], check=True)


def _record_batches(
    batches: list[bytes],
    columns: list[str] | None = None,
    within: RecordRange = EVERYTHING,
    checks: Checks = STRICT,
    chunk_bytes: int = 100_000,
    *,
    value_views: bool = False,
) -> Iterator[pa.RecordBatch]:
    source = "orders-0/00000000000000000000.log"
    decoder = ColumnDecoder(source, columns, within, checks, chunk_bytes=chunk_bytes, value_views=value_views)
    window = memoryview(b"".join(batches))
    first = read_batch_header(batches[0]).base_offset
    table, consumed = SegmentScanner("a segment", first, verify_crc=False).feed(window)
    assert consumed == len(window)
    return decoder.decode(window, table)


def _decode(
    batches: list[bytes],
    within: RecordRange = EVERYTHING,
    checks: Checks = STRICT,
    chunk_bytes: int = 100_000,
    *,
    value_views: bool = False,
) -> list[Row]:
    return rows_of(_record_batches(batches, None, within, checks, chunk_bytes, value_views=value_views))


def _assert_same_status(batch: bytes) -> None:
    try:
        rows = [*expected_rows([batch])]
    except CorruptRecordError:
        with pytest.raises(CorruptRecordError):
            _decode([batch])
        return
    assert _decode([batch]) == rows


def _is_inside(row: Row, within: RecordRange) -> bool:
    offset, timestamp = row["offset"], row["timestamp"]
    return (
        (within.first_offset is None or offset >= within.first_offset)
        and (within.end_offset is None or offset < within.end_offset)
        and (within.first_timestamp is None or timestamp >= within.first_timestamp)
        and (within.end_timestamp is None or timestamp < within.end_timestamp)
        and (within.with_control or not row["control"])
    )


def _sealed(batch: bytes | bytearray) -> bytes:
    """Give `batch` the length and the checksum of what it now holds."""
    sealed = bytearray(batch)
    struct.pack_into(">i", sealed, 8, len(sealed) - 12)
    struct.pack_into(">I", sealed, 17, crc32c(sealed[21:]))
    return bytes(sealed)
