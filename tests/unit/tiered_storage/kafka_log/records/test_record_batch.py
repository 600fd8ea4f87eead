from __future__ import annotations

import struct
import subprocess
import sys
import tracemalloc
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.command_line import mentions
from support.records import record_of, some_records
from tiered_storage.errors import ConfigurationError, CorruptRecordError, UnsupportedMagicError
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.kafka_log.records.batch_header import check_crc
from tiered_storage.kafka_log.records.record_batch import (
    BATCH_OVERHEAD,
    BatchHeader,
    Compression,
    Record,
    TimestampType,
    encode_batch,
    encode_empty_batch,
    iterate_batches,
    read_batch_header,
    read_records,
    restamp_batch,
)
from unit.tiered_storage.drawn_records import batch_of, record_lists

RECORDS = [
    Record(1000, 1700000000123, b"key", b"a value a value a value", (("trace", b"abc"), ("n\u00e9", None))),
    Record(1001, 1700000000100, None, b""),
    Record(1005, 1700000000456, b"", None),
]
BY_KAFKA = {
    codec: bytes.fromhex(batch)
    for codec, batch in {
        Compression.NONE: (
            "00000000000003e80000007000000009026fbd89790000000000050000018bcfe5687b0000018bcfe569c8ffffffffffffff"
            "ffffffffffffff000000035e000000066b65792e612076616c756520612076616c756520612076616c7565040a7472616365"
            "06616263066ec3a9010c002d020100000e009a050a000100"
        ),
        Compression.GZIP: (
            "00000000000003e8000000770000000902f125432b0001000000050000018bcfe5687b0000018bcfe569c8ffffffffffffff"
            "ffffffffffffff000000031f8b08000000000000ff8b63606060cb4eadd44b54284bcc294d5540a359b84a8a129353d91293"
            "92d9f20eaf64e461d065626460e06398c5cac5c0c80000675de4b83f000000"
        ),
        Compression.SNAPPY: (
            "00000000000003e80000007b0000000902473aec2c0002000000050000018bcfe5687b0000018bcfe569c8ffffffffffffff"
            "ffffffffffffff0000000382534e41505059000000000100000001000000363f405e000000066b65792e612076616c756520"
            "3a080078040a747261636506616263066ec3a9010c002d020100000e009a050a000100"
        ),
        Compression.LZ4: (
            "00000000000003e800000076000000090295f458010003000000050000018bcfe5687b0000018bcfe569c8ffffffffffffff"
            "ffffffffffffff0000000304224d1860408236000000fb025e000000066b65792e612076616c7565200800f010040a747261"
            "636506616263066ec3a9010c002d020100000e009a050a00010000000000"
        ),
        Compression.ZSTD: (
            "00000000000003e8000000740000000902887958530004000000050000018bcfe5687b0000018bcfe569c8ffffffffffffff"
            "ffffffffffffff0000000328b52ffd0058bc010004035e000000066b65792e612076616c756520040a747261636506616263"
            "066ec3a9010c002d020100000e009a050a0001000100d79525010000"
        ),
    }.items()
}
"""RECORDS as Kafka 4.3.1 writes them, at leader epoch 9."""
BY_KAFKA_WITH_APPEND_TIME = bytes.fromhex(
    "00000000000003e8000000700000000902d9227d810008000000050000018bcfe5687b000001a3185c5000ffffffffffffff"
    "ffffffffffffff000000035e000000066b65792e612076616c756520612076616c756520612076616c7565040a7472616365"
    "06616263066ec3a9010c002d020100000e009a050a000100"
)
"""RECORDS, appended at 1800000000000."""
BY_KAFKA_IN_A_TRANSACTION = bytes.fromhex(
    "00000000000003e80000007000000009024d7f53610010000000050000018bcfe5687b0000018bcfe569c800000000000000"
    "4d000300000029000000035e000000066b65792e612076616c756520612076616c756520612076616c7565040a7472616365"
    "06616263066ec3a9010c002d020100000e009a050a000100"
)
"""RECORDS by producer 77, epoch 3, from sequence number 41 on."""
BY_KAFKA_COMPACTED_AWAY = bytes.fromhex(
    "0000000000000064000000310000000902ec629893000000000009ffffffffffffffff0000018bcfe5680000000000000000"
    "0700010000000300000000"
)
"""What is left of offsets 100 to 109 of producer 7, epoch 1, from sequence number 3 on."""


@pytest.mark.parametrize("codec", list(Compression))
@given(records=record_lists())
def test_records_survive_each_codec(codec: Compression, records: list[Record]) -> None:
    batch = encode_batch(records, codec)

    assert read_records(batch) == records


@pytest.mark.parametrize("codec", list(Compression))
def test_many_records_survive_each_codec(codec: Compression) -> None:
    records = some_records(5_000_000_000, 5000, b"some value" * 9)

    assert read_records(memoryview(encode_batch(records, codec))) == records


@pytest.mark.parametrize("codec", list(Compression))
def test_batches_of_a_java_producer_are_read(codec: Compression) -> None:
    header = read_batch_header(BY_KAFKA[codec])

    assert read_records(BY_KAFKA[codec]) == RECORDS
    assert header.compression is codec
    assert (header.size, header.partition_leader_epoch) == (len(BY_KAFKA[codec]), 9)


def test_an_encoded_batch_equals_a_java_producers_byte_for_byte() -> None:
    assert encode_batch(RECORDS, partition_leader_epoch=9) == BY_KAFKA[Compression.NONE]


def test_a_transactional_batch_is_written_byte_for_byte() -> None:
    batch = encode_batch(
        RECORDS, partition_leader_epoch=9, producer_id=77, producer_epoch=3, base_sequence=41, is_transactional=True
    )

    assert batch == BY_KAFKA_IN_A_TRANSACTION
    assert read_batch_header(batch).is_transactional


def test_log_append_time_holds_for_every_record() -> None:
    records = read_records(BY_KAFKA_WITH_APPEND_TIME)

    assert {record.timestamp for record in records} == {1800000000000}
    assert [record.offset for record in records] == [1000, 1001, 1005]
    assert read_batch_header(BY_KAFKA_WITH_APPEND_TIME).timestamp_type is TimestampType.LOG_APPEND_TIME


def test_log_append_time_is_written_as_the_latest_timestamp() -> None:
    batch = encode_batch(RECORDS, timestamp_type=TimestampType.LOG_APPEND_TIME)

    assert read_batch_header(batch).max_timestamp == 1700000000456
    assert [record.timestamp for record in read_records(batch)] == [1700000000456] * 3


def test_a_batch_whose_records_are_compacted_away_has_no_records() -> None:
    header = read_batch_header(BY_KAFKA_COMPACTED_AWAY)

    assert read_records(BY_KAFKA_COMPACTED_AWAY) == []
    assert (header.base_offset, header.last_offset, header.next_offset) == (100, 109, 110)
    assert (header.base_sequence, header.last_sequence) == (3, 12)


@given(record_lists(), st.integers(0, 1 << 40), st.sampled_from(Compression))
def test_a_delete_horizon_replaces_the_base_timestamp_and_records_keep_their_times(
    records: list[Record], delete_horizon: int, codec: Compression
) -> None:
    batch = encode_batch(records, codec, delete_horizon=delete_horizon)

    header = read_batch_header(batch)
    assert header.has_delete_horizon
    assert header.base_timestamp == delete_horizon
    assert header.max_timestamp == max(record.timestamp for record in records)
    assert read_records(batch) == records


def test_compaction_may_leave_only_the_header_of_a_batch() -> None:
    batch = encode_batch(
        some_records(70, 3),
        Compression.ZSTD,
        partition_leader_epoch=6,
        producer_id=7,
        producer_epoch=8,
        base_sequence=9,
        is_transactional=True,
    )
    whole, left = read_batch_header(batch), read_batch_header(encode_empty_batch(batch))

    assert (left.size, left.record_count, left.compression) == (61, 0, Compression.NONE)
    assert (left.base_offset, left.last_offset, left.last_sequence) == (70, 72, 11)
    assert (left.partition_leader_epoch, left.producer_id, left.producer_epoch) == (6, 7, 8)
    assert (left.base_timestamp, left.max_timestamp) == (-1, whole.max_timestamp)
    assert left.is_transactional
    check_crc(encode_empty_batch(batch))
    assert read_records(encode_empty_batch(batch)) == []


def test_a_broker_stamps_a_batch_and_leaves_the_producers_times_in_its_deltas() -> None:
    before = encode_batch(some_records(0, 3), Compression.LZ4, producer_id=7, producer_epoch=0, base_sequence=0)
    stamped = bytearray(before)

    restamp_batch(stamped, 1_800_000_000_000)

    batch = bytes(stamped)
    assert (batch[:17], batch[23:35], batch[43:]) == (before[:17], before[23:35], before[43:])
    assert read_batch_header(batch).timestamp_type is TimestampType.LOG_APPEND_TIME
    assert {record.timestamp for record in read_records(batch)} == {1_800_000_000_000}


def test_a_header_says_what_was_encoded() -> None:
    batch = encode_batch(RECORDS, Compression.ZSTD, partition_leader_epoch=3, is_control=True)

    header = read_batch_header(batch)

    assert header == BatchHeader(
        base_offset=1000,
        size=len(batch),
        partition_leader_epoch=3,
        magic=2,
        crc=crc32c(batch[21:]),
        attributes=4 | 32,
        last_offset_delta=5,
        base_timestamp=1700000000123,
        max_timestamp=1700000000456,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=3,
    )
    assert header.is_control
    assert not header.is_transactional
    assert not header.has_delete_horizon
    assert header.last_sequence == -1


def test_sequence_numbers_start_again_after_the_largest() -> None:
    batch = encode_batch(some_records(count=4), producer_id=1, producer_epoch=0, base_sequence=(1 << 31) - 2)

    assert read_batch_header(batch).last_sequence == 1


def test_a_header_is_read_inside_a_larger_buffer() -> None:
    buffer = b"......" + BY_KAFKA[Compression.LZ4][:BATCH_OVERHEAD]

    assert read_batch_header(memoryview(buffer), 6).base_offset == 1000


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([], "at least one record"),
        ([Record(-1, 0, None, None)], "offset -1 follows -1"),
        ([Record(5, 0, None, None), Record(5, 0, None, None)], "offset 5 follows 5"),
        ([Record(0, -2, None, None)], "timestamp -2 at offset 0"),
        ([Record(0, 1 << 63, None, None)], "from offset 0 do not fit"),
        ([Record(0, -1, None, None), Record(1, (1 << 63) - 1, None, None)], "too far after"),
        ([Record(0, 0, None, None), Record(1 << 31, 0, None, None)], "from offset 0 do not fit"),
        ([Record(0, 0, None, None, (("\ud800", None),))], "from offset 0 do not fit"),
        ([Record(0, 0, None, None, ((cast("str", None), b"x"),))], "header key None"),
        ([Record(0, 0, None, cast("bytes", "text"))], "from offset 0 do not fit"),
    ],
)
def test_records_that_no_batch_can_hold_are_refused(records: list[Record], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        encode_batch(records)


@pytest.mark.parametrize("codec", list(Compression))
def test_every_truncation_of_a_batch_is_named(codec: Compression) -> None:
    batch = BY_KAFKA[codec]

    for end in range(len(batch)):
        with pytest.raises(CorruptRecordError):
            read_records(batch[:end])


@pytest.mark.parametrize("codec", list(Compression))
def test_every_flipped_bit_is_named_or_outside_the_checksum(codec: Compression) -> None:
    for bit in range(8 * len(BY_KAFKA[codec])):
        batch = bytearray(BY_KAFKA[codec])
        batch[bit // 8] ^= 1 << bit % 8

        if bit // 8 < 8 or 12 <= bit // 8 < 16:  # base offset and leader epoch are the broker's to change
            _read_or_refuse(bytes(batch))
        else:
            with pytest.raises(CorruptRecordError):
                read_records(bytes(batch))


@pytest.mark.parametrize("codec", list(Compression))
@given(data=st.data())
def test_hostile_changes_under_a_right_checksum_give_our_errors_only(codec: Compression, data: st.DataObject) -> None:
    batch = bytearray(BY_KAFKA[codec])
    changes = data.draw(st.lists(st.tuples(st.integers(17, len(batch) - 1), st.integers(0, 255)), max_size=4))
    for place, byte in changes:
        batch[place] = byte

    _read_or_refuse(_sealed(batch))


@given(body=st.binary(max_size=60), count=st.integers(0, 5))
def test_records_of_random_bytes_give_our_errors_only(body: bytes, count: int) -> None:
    _read_or_refuse(batch_of(body, count=count, last_offset_delta=1000))


def test_an_error_names_source_and_absolute_position() -> None:
    batch = bytearray(BY_KAFKA[Compression.NONE])
    batch[70] ^= 1

    with pytest.raises(CorruptRecordError) as caught:
        read_records(batch, source="orders-0/00000000000000001000.log", source_position=4096)

    stored, computed = crc32c(BY_KAFKA[Compression.NONE][21:]), crc32c(batch[21:])
    assert (caught.value.path, caught.value.position) == ("orders-0/00000000000000001000.log", 4096)
    assert mentions(caught.value.reason, "CRC-32C", f"0x{computed:08x}", f"0x{stored:08x}")


def test_the_position_inside_a_buffer_counts() -> None:
    with pytest.raises(CorruptRecordError) as caught:
        read_batch_header(bytes(100), 30, source="x", source_position=1000)

    assert caught.value.position == 1030
    assert "batch length of 0" in caught.value.reason


@pytest.mark.parametrize("cut", [0, 1, BATCH_OVERHEAD - 1, BATCH_OVERHEAD, 110])
def test_whole_batches_are_iterated_up_to_one_that_a_fetch_cut_off(cut: int) -> None:
    first, second = BY_KAFKA[Compression.NONE], BY_KAFKA_COMPACTED_AWAY

    found = list(iterate_batches(first + second + first[:cut]))

    assert [(header, bytes(batch)) for header, batch in found] == [
        (read_batch_header(first), first),
        (read_batch_header(second), second),
    ]


def test_a_broken_header_among_batches_is_named_by_its_place() -> None:
    batch = BY_KAFKA[Compression.NONE]
    batches = iterate_batches(batch + bytes(BATCH_OVERHEAD), source="orders-0")
    assert next(batches)[0].base_offset == 1000

    with pytest.raises(CorruptRecordError) as caught:
        next(batches)

    assert (caught.value.path, caught.value.position) == ("orders-0", len(batch))


def test_a_wrong_checksum_is_let_pass_on_request() -> None:
    batch = bytearray(BY_KAFKA[Compression.NONE])
    batch[20] ^= 1

    assert read_records(batch, verify_crc=False) == RECORDS
    with pytest.raises(CorruptRecordError, match="CRC-32C"):
        check_crc(batch)


@pytest.mark.parametrize("magic", [3, -1])
def test_an_unknown_magic_is_named(magic: int) -> None:
    batch = bytearray(BY_KAFKA[Compression.NONE])
    batch[16] = magic & 0xFF

    with pytest.raises(UnsupportedMagicError, match=rf"magic {magic}.*magic 0 to 2\b"):
        read_batch_header(batch, source_position=17)


@pytest.mark.parametrize(
    ("place", "layout", "value", "reason"),
    [
        (0, ">q", -1, "the base offset is -1"),
        (0, ">q", (1 << 63) - 6, "the last offset is 9223372036854775807, above 9223372036854775806"),
        (8, ">i", -5, "batch length of -5"),
        (8, ">i", 13, "batch length of 13"),
        (8, ">i", 48, "batch length of 48 is too small for a batch header"),
        (8, ">i", 113, "has 125 bytes, but 124 are given"),
        (21, ">h", 5, "codec 5 is unknown"),
        (21, ">h", 7, "codec 7 is unknown"),
        (23, ">i", -1, "last offset delta is -1"),
        (23, ">i", 4, "record 3 of 3: offset 1005 is not in 1002 to 1004"),
        (57, ">i", -1, "-1 records in a range of 6 offsets"),
        (57, ">i", 7, "7 records in a range of 6 offsets"),
        (57, ">i", 4, "record 4 of 4 runs past the end"),
        (57, ">i", 2, "8 bytes follow the last of 2 records"),
        (57, ">i", 0, "63 bytes follow the header of an empty batch"),
    ],
)
def test_a_header_that_cannot_be_is_named(place: int, layout: str, value: int, reason: str) -> None:
    batch = bytearray(BY_KAFKA[Compression.NONE])
    struct.pack_into(layout, batch, place, value)

    with pytest.raises(CorruptRecordError, match=reason):
        read_records(_sealed(batch))


def test_timestamps_wrap_at_64_bits_as_a_brokers_do() -> None:
    before = [each.timestamp for each in read_records(BY_KAFKA[Compression.NONE])]
    batch = bytearray(BY_KAFKA[Compression.NONE])
    struct.pack_into(">q", batch, 27, (1 << 63) - 1)

    found = [each.timestamp for each in read_records(_sealed(batch))]

    assert found == (np.array([(1 << 63) - 1] * len(before)) + np.subtract(before, before[0])).tolist()
    assert min(found) < 0


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ([], " runs past the end of its batch"),
        ([0, 0, 9], ": a field has 9 bytes, its record 0"),
        ([0, 0, -1, -1, 9], ": 9 headers in 0 bytes"),
        ([0, 0, -1, -1, -1], ": -1 headers in 0 bytes"),
        ([0, 0, -1, -1, 1, -1, -1], ": a header has no key"),
        ([0, 0, -1, -1, 1, -2, -1], ": a header has no key"),
        ([0, 0, -1, -1, 0, 0], ": its fields take 6 bytes, its length says 7"),
        ([0, 3, -1, -1, 0], ": offset 3 is not in 0 to 2"),
        ([0, -1, -1, -1, 0], ": offset -1 is not in 0 to 2"),
    ],
)
def test_a_record_that_cannot_be_is_named(fields: list[int], reason: str) -> None:
    with pytest.raises(CorruptRecordError, match=f"record 1 of 1{reason}"):
        read_records(batch_of(record_of(fields), count=1, last_offset_delta=2))


@pytest.mark.parametrize("length", [-1, -2, -300, -(1 << 31)])
def test_any_negative_length_is_null(length: int) -> None:
    batch = batch_of(record_of([0, 0, length, length, 1, 0, length]))

    assert read_records(batch) == [Record(0, 0, None, None, (("", None),))]


def test_a_record_longer_than_its_batch_is_named() -> None:
    with pytest.raises(CorruptRecordError, match=r"record 1 of 1: .*\b40\b.*\b6\b"):
        read_records(batch_of(b"\x50" + bytes(6), count=1, last_offset_delta=0))


def test_a_header_key_that_is_no_utf_8_is_read_as_far_as_it_is() -> None:
    record = record_of([0, 0, -1, -1, 1, 2], b"a\xff\x01")

    (found,) = read_records(batch_of(record, count=1, last_offset_delta=0))

    assert found.headers == (("a\ufffd", None),)


def test_offsets_that_do_not_rise_are_named() -> None:
    record = record_of([0, 0, -1, -1, 0])

    with pytest.raises(CorruptRecordError, match=r"record 2 of 2: offset 0 .*1 to 1"):
        read_records(batch_of(record * 2, count=2, last_offset_delta=1))


def test_a_batch_that_claims_two_billion_records_costs_no_memory() -> None:
    batch = batch_of(record_of([0, 0, -1, -1, 0]), count=(1 << 31) - 1, last_offset_delta=(1 << 31) - 1)

    tracemalloc.start()
    with pytest.raises(CorruptRecordError):
        read_records(batch)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 1 << 20


def test_decompressed_records_stop_at_their_cap() -> None:
    batch = encode_batch(some_records(value=bytes(1 << 20)), Compression.ZSTD)

    with pytest.raises(CorruptRecordError, match=r"\b1000 bytes"):
        read_records(batch, max_decompressed_bytes=1000)


def test_reading_batches_loads_no_compiler() -> None:
    program = (
        "import sys, tiered_storage.kafka_log.records.record_batch, tiered_storage.kafka_log.records.segment_scan\n"
        "assert 'numba' not in sys.modules"
    )

    subprocess.run([sys.executable, "-c", program], check=True)


def _read_or_refuse(batch: bytes) -> None:
    try:
        records = read_records(batch)
    except CorruptRecordError:
        return
    assert len(records) == read_batch_header(batch).record_count


def _sealed(batch: bytearray) -> bytes:
    """Give `batch` the checksum of what it now holds."""
    struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    return bytes(batch)
