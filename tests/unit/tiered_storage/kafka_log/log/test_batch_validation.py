"""What a batch has to be before a log takes it from a producer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.transactions import TIME, data, marker
from tiered_storage.errors import ConfigurationError, CorruptRecordError, InvalidTimestampError, TieredStorageError
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.kafka_log.kernels.constants import BATCH_OVERHEAD, CRC_END, LOG_OVERHEAD
from tiered_storage.kafka_log.log.batch_validation import (
    FEW_RECORDS,
    RecordTimes,
    check_timestamps,
    read_produced_batch,
    read_record_times,
)
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.records.compression import Compression, compress
from tiered_storage.kafka_log.records.record import Record, encode_records
from tiered_storage.kafka_log.records.record_batch import TimestampType, encode_batch, read_batch_header, read_records

COUNTS = (1, 3, FEW_RECORDS, FEW_RECORDS + 1)


def numbered(count: int, times: tuple[int, ...] = (TIME,)) -> list[Record]:
    return [Record(i, times[i % len(times)], b"key", b"value", (("h", None),)) for i in range(count)]


def mended(batch: bytearray) -> bytes:
    """The batch with its length and its checksum set right."""
    batch[8:LOG_OVERHEAD] = (len(batch) - LOG_OVERHEAD).to_bytes(4, "big")
    batch[CRC_END - 4 : CRC_END] = crc32c(memoryview(batch)[CRC_END:]).to_bytes(4, "big")
    return bytes(batch)


def with_records(content: bytes, count: int, codec: Compression = Compression.NONE) -> bytes:
    """A batch whose header promises `count` records, and which holds `content` in their place."""
    header = encode_batch(numbered(count), codec)[:BATCH_OVERHEAD]
    return mended(bytearray(header + compress(codec, content)))


def test_a_sound_batch_of_any_size_and_codec_is_taken() -> None:
    for codec in Compression:
        for count in COUNTS:
            batch = encode_batch(numbered(count, (TIME, TIME + 9, -1, TIME - 4)), codec)
            expected = RecordTimes(TIME if count < 4 else TIME - 4, TIME if count < 2 else TIME + 9)

            assert read_record_times(batch, read_produced_batch(batch)) == expected


def test_records_without_a_time_have_none() -> None:
    for count in COUNTS:
        batch = encode_batch(numbered(count, (-1,)))

        assert read_record_times(batch, read_produced_batch(batch)) == RecordTimes(None, -1)


@pytest.mark.parametrize("codec", Compression)
@pytest.mark.parametrize("count", COUNTS)
def test_records_that_do_not_decode_to_the_last_byte_are_refused(codec: Compression, count: int) -> None:
    sound = encode_records(numbered(count), 0, TIME)
    for content in (sound[:-1], sound + b"\0", b"garbage", b"\xff" * len(sound), sound[:-2] + b"\x7f\x7e"):
        batch = with_records(content, count, codec)

        with pytest.raises(CorruptRecordError, match=r"<batch>: at byte 0: .*record"):
            read_record_times(batch, read_produced_batch(batch))


@pytest.mark.parametrize("codec", [codec for codec in Compression if codec])
def test_records_that_are_not_compressed_as_the_header_says_are_refused(codec: Compression) -> None:
    batch = bytearray(encode_batch(numbered(3)))
    batch[CRC_END + 1] |= codec
    sound = mended(batch)

    with pytest.raises(CorruptRecordError, match=f"{codec.name.lower()} data is broken"):
        read_record_times(sound, read_produced_batch(sound))


@pytest.mark.parametrize("offsets", [(0, 1, 1), (0, 2, 1), (1, 2, 3), (0, 1, 3), (-1, 0, 1)])
def test_offset_deltas_are_0_1_2_and_so_on(offsets: tuple[int, ...]) -> None:
    for more in (0, FEW_RECORDS):
        records = [Record(offset, TIME, None, b"x") for offset in (*offsets, *range(3, 3 + more))]
        batch = with_records(encode_records(records, 0, TIME), len(records))

        with pytest.raises(CorruptRecordError, match="offset"):
            read_record_times(batch, read_produced_batch(batch))


def test_batches_that_no_producer_may_send_are_refused_by_their_header() -> None:
    def changed(position: int, value: bytes) -> bytes:
        batch = bytearray(data(0, 7, 0, count=2))
        batch[position : position + len(value)] = value
        return mended(batch)

    for batch, reason in (
        (changed(23, bytes(4)), "not in 0 to 1|2 records"),
        (changed(23, b"\0\0\0\2"), "2 records for 3 offsets"),
        (changed(57, bytes(4)), "0 records for 2 offsets"),
        (changed(57, b"\0\0\0\1"), "1 records for 2 offsets"),
        (marker(0, 7), "control batch"),
        (encode_batch(numbered(1), timestamp_type=TimestampType.LOG_APPEND_TIME), "append time"),
        (encode_batch(numbered(1), delete_horizon=TIME), "delete horizon"),
        (changed(43, b"\xff" * 7 + b"\xfe"), "producer id -2"),
        (changed(51, b"\xff\xff"), "no epoch or no sequence number"),
        (changed(53, b"\xff" * 4), "no epoch or no sequence number"),
        (encode_batch(numbered(1), is_transactional=True), "no producer id"),
    ):
        with pytest.raises((ConfigurationError, CorruptRecordError), match=reason):
            read_produced_batch(batch)


def test_a_batch_is_whole_and_one() -> None:
    batch = data(0, 7, 0)
    for broken, reason in (
        (batch[:-1], "are given"),
        (batch + b"\0", "are given"),
        (batch + batch, "are given"),
        (batch[:60], "truncated"),
        (batch[:-1] + bytes([batch[-1] ^ 1]), "CRC"),
        (mended(bytearray(batch[:22] + bytes([batch[22] | 7]) + batch[23:])), "codec 7 is unknown"),
    ):
        with pytest.raises(CorruptRecordError, match=reason):
            read_produced_batch(broken)


@given(st.binary(max_size=300), st.integers(0, 2 * FEW_RECORDS), st.sampled_from(Compression))
def test_any_records_are_taken_by_both_readers_or_by_neither(content: bytes, count: int, codec: Compression) -> None:
    batch = with_records(content, count or 1, codec)
    header = read_batch_header(batch)

    def outcome(few: int) -> RecordTimes | str:
        try:
            return read_record_times(batch, header, few_records=few)
        except CorruptRecordError:
            return "refused"

    assert outcome(0) == outcome(1000)


@given(st.data())
def test_readers_can_read_every_accepted_batch(draw: st.DataObject) -> None:
    batch = bytearray(encode_batch(numbered(3), draw.draw(st.sampled_from(Compression))))
    for _ in range(draw.draw(st.integers(1, 3))):
        batch[draw.draw(st.integers(16, len(batch) - 1))] = draw.draw(st.integers(0, 255))
    content = mended(batch)
    try:
        header = read_produced_batch(content)
        times = read_record_times(content, header)
    except TieredStorageError:
        return

    records = read_records(content)
    assert [record.offset - header.base_offset for record in records] == list(range(len(records)))
    assert times.latest == max(-1, *(record.timestamp for record in records))


@pytest.mark.parametrize(
    ("before", "after", "is_taken"), [(0, 0, True), (-10, 0, True), (0, 20, True), (-11, 0, False), (0, 21, False)]
)
def test_times_lie_within_the_limits_around_the_clock(before: int, after: int, *, is_taken: bool) -> None:
    config = LogConfig(message_timestamp_before_max_ms=10, message_timestamp_after_max_ms=20)
    times = RecordTimes(TIME + before, TIME + after)
    if is_taken:
        check_timestamps(times, TIME, config, "orders-0")
        return
    with pytest.raises(InvalidTimestampError, match=rf"orders-0: .* {TIME + before + after}; .* {TIME - 10} to"):
        check_timestamps(times, TIME, config, "orders-0")


def test_records_without_a_time_are_within_any_limits() -> None:
    config = LogConfig(message_timestamp_before_max_ms=0, message_timestamp_after_max_ms=0)

    check_timestamps(RecordTimes(None, -1), TIME, config, "orders-0")
