"""A decoder returns the rows of the plain one, whole or in part, for every codec."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.records import USUAL_EXAMPLES, Row, batches_of, expected_rows, rows_of, some_records
from tiered_storage.errors import CorruptRecordError
from tiered_storage.kafka_log.columnar.decoder import Checks, RecordRange, iterate_columns
from tiered_storage.kafka_log.columnar.record_columns import SCHEMA
from tiered_storage.kafka_log.kernels.constants import BATCH_OVERHEAD, INT32_MAX
from tiered_storage.kafka_log.kernels.machine_code import load_kernels
from tiered_storage.kafka_log.records.record import append_varint
from tiered_storage.kafka_log.records.record_batch import (
    Compression,
    Record,
    TimestampType,
    encode_batch,
    read_batch_header,
)
from unit.tiered_storage.drawn_records import batch_of
from unit.tiered_storage.kafka_log.columnar.decoded_batches import EVERY_CODEC, decode, record_batches, sealed, segments


@EVERY_CODEC
@settings(deadline=None, max_examples=USUAL_EXAMPLES // 2)
@given(data=st.data())
def test_each_row_is_what_the_plain_decoder_reads(codec: Compression, data: st.DataObject) -> None:
    batches = data.draw(segments(codecs=(codec,)))

    assert decode(batches) == [*expected_rows(batches)]


@settings(deadline=None)
@given(batches=segments(), chunk_bytes=st.integers(1, 600))
def test_chunks_of_any_size_give_the_same_rows(batches: list[bytes], chunk_bytes: int) -> None:
    assert decode(batches, chunk_bytes=chunk_bytes) == [*expected_rows(batches)]


@settings(deadline=None)
@given(batches=segments(), names=st.lists(st.sampled_from(SCHEMA.names), min_size=1, unique=True))
def test_columns_are_given_alone_and_in_the_order_asked_for(batches: list[bytes], names: list[str]) -> None:
    rows = [{name: row[name] for name in names} for row in expected_rows(batches)]

    decoded = [*record_batches(batches, columns=names)]

    assert all(batch.schema.names == names for batch in decoded)
    assert rows_of(decoded) == rows


@settings(deadline=None)
@given(batches=segments(), first_offset=st.none() | st.integers(0, 1000), chunk_bytes=st.integers(1, 600))
def test_views_look_at_the_same_values(batches: list[bytes], first_offset: int | None, chunk_bytes: int) -> None:
    start = read_batch_header(batches[0]).base_offset
    within = RecordRange(first_offset and start + first_offset)

    decoded = [*record_batches(batches, None, within, chunk_bytes=chunk_bytes, value_views=True)]

    for batch in decoded:
        batch.validate(full=True)
        assert batch.schema.field("value").type == pa.binary_view()
    assert rows_of(decoded) == decode(batches, within)


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
    assert decode(batches, within=within) == inside
    assert decode(batches, within=within, checks=Checks(outside=True)) == inside


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


def test_sequences_start_again_after_the_largest() -> None:
    batch = encode_batch(some_records(count=4), producer_id=1, producer_epoch=0, base_sequence=INT32_MAX - 1)

    assert [row["sequence"] for row in decode([batch])] == [INT32_MAX - 1, INT32_MAX, 0, 1]


def test_a_batch_with_append_time_still_has_its_producers_times() -> None:
    batch = encode_batch(some_records(count=3), timestamp_type=TimestampType.LOG_APPEND_TIME)

    rows = decode([batch])

    assert [row["create_time"] for row in rows] == [1_700_000_000_000 + i for i in range(3)]
    assert [row["timestamp"] for row in rows] == [row["log_append_time"] for row in rows] == [1_700_000_000_002] * 3


def test_a_batch_whose_records_are_compacted_away_has_no_rows() -> None:
    first, last = encode_batch(some_records()), encode_batch(some_records(20))
    empty = bytes.fromhex(
        "0000000000000005000000310000000902ec629893000400000009ffffffffffffffff0000018bcfe5680000000000000000"
        "0700010000000300000000"
    )

    assert [row["offset"] for row in decode([first, sealed(empty), last])] == [0, 20]
    assert decode([sealed(empty)]) == []


@EVERY_CODEC
def test_a_record_larger_than_a_chunk_is_read(codec: Compression) -> None:
    records = [Record(i, i, b"key", bytes([i]) * (i * 300_000), (("h", bytes(i)),)) for i in range(6)]
    batches = [encode_batch(records, codec), encode_batch(some_records(10), codec)]

    assert decode(batches, chunk_bytes=100_000) == [*expected_rows(batches)]


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


def _is_inside(row: Row, within: RecordRange) -> bool:
    offset, timestamp = row["offset"], row["timestamp"]
    return (
        (within.first_offset is None or offset >= within.first_offset)
        and (within.end_offset is None or offset < within.end_offset)
        and (within.first_timestamp is None or timestamp >= within.first_timestamp)
        and (within.end_timestamp is None or timestamp < within.end_timestamp)
        and (within.with_control or not row["control"])
    )
