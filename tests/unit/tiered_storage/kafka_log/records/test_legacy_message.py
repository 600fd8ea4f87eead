from __future__ import annotations

import struct
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered_storage.errors import ConfigurationError, CorruptRecordError, UnsupportedMagicError
from tiered_storage.kafka_log.records.batch_header import NO_TIMESTAMP, TimestampType, read_batch_header
from tiered_storage.kafka_log.records.compression import Compression, compress
from tiered_storage.kafka_log.records.legacy_message import encode_messages, read_legacy_batch
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import iterate_batches, read_records
from unit.tiered_storage.drawn_records import record_lists

CODECS = (Compression.NONE, Compression.GZIP, Compression.SNAPPY, Compression.LZ4)
WRAPPED = CODECS[1:]
NOW = 1_700_000_000_000


def plain(count: int, first_offset: int = 10) -> list[Record]:
    return [Record(first_offset + i, NOW + i, b"key", b"value %d" % i) for i in range(count)]


def records_in(content: bytes) -> list[Record]:
    return [record for _, batch in iterate_batches(content) for record in read_records(batch)]


def wrapper(inside: bytes, magic: int = 1, offset: int = 12, attributes: int = 1, timestamp: int = NOW) -> bytes:
    """A message around any bytes, compressed with gzip, its checksum right."""
    value = compress(Compression.GZIP, inside)
    stamp = struct.pack(">q", timestamp) if magic else b""
    checked = struct.pack(">bB", magic, attributes) + stamp + struct.pack(">ii", -1, len(value)) + value
    return struct.pack(">qiI", offset, 4 + len(checked), zlib.crc32(checked)) + checked


def inner(magic: int, *offsets: int, timestamps: list[int] | None = None) -> bytes:
    times = timestamps or [NOW] * len(offsets)
    return b"".join(
        encode_messages([Record(offset, time, None, b"value")], magic)
        for offset, time in zip(offsets, times, strict=True)
    )


@given(
    record_lists(max_size=8),
    st.sampled_from([0, 1]),
    st.sampled_from(CODECS),
    st.none() | st.integers(-1, 1 << 62),
)
def test_messages_are_read_as_they_were_written(
    drawn: list[Record], magic: int, codec: Compression, append_time: int | None
) -> None:
    append_time = append_time if magic else None
    records = [replace(record, headers=()) for record in drawn]
    content = encode_messages(records, magic, codec, append_time=append_time)
    batches = list(iterate_batches(content))
    if magic == 0:
        records = [replace(record, timestamp=NO_TIMESTAMP) for record in records]
    expected = records if append_time is None else [replace(record, timestamp=append_time) for record in records]
    assert [record for _, batch in batches for record in read_records(batch)] == expected
    assert len(batches) == (len(records) if codec is Compression.NONE else 1)
    for header, batch in batches:
        assert (header.magic, header.compression, header.size) == (magic, codec, len(batch))
        assert header.timestamp_type is TimestampType(append_time is not None)
        assert (header.partition_leader_epoch, header.has_producer) == (-1, False)
    whole = [read_legacy_batch(batch).header for _, batch in batches]
    assert [whole[0].base_offset, whole[-1].last_offset] == [records[0].offset, records[-1].offset]
    assert sum(header.record_count for header in whole) == len(records)
    times = [record.timestamp for record in expected]
    assert max(header.max_timestamp for header in whole) == max(times)


@pytest.mark.parametrize("codec", WRAPPED)
def test_offsets_in_a_wrapper_are_absolute_in_v0_and_relative_in_v1(codec: Compression) -> None:
    for magic, first in ((0, 10), (1, 0)):
        inside = inner(magic, first, first + 1, first + 2)
        by_hand = wrapper(inside, magic)
        assert [record.offset for record in read_records(by_hand)] == [10, 11, 12]
        written = encode_messages(plain(3), magic, codec)
        assert [record.offset for record in read_records(written)] == [10, 11, 12]
        assert read_batch_header(written).base_offset == 12


def test_the_lz4_frames_of_v0_have_the_checksum_that_covers_their_magic_number() -> None:
    frames = [encode_messages(plain(3), magic, Compression.LZ4).partition(b"\x04\x22\x4d\x18") for magic in (0, 1)]
    (_, _, of_v0), (_, _, of_v1) = frames
    assert of_v0[:2] == of_v1[:2] == b"\x60\x40"
    assert (of_v0[2], of_v1[2]) == (0x1A, 0x82)
    # A v0 reader ignores it, so the right one is read too.
    right = bytearray(encode_messages(plain(3), 0, Compression.LZ4))
    right[right.index(b"\x04\x22\x4d\x18") + 6] = 0x82
    right[12:16] = zlib.crc32(right[16:]).to_bytes(4, "big")
    assert records_in(bytes(right)) == records_in(encode_messages(plain(3), 0, Compression.LZ4))
    wrong = bytearray(encode_messages(plain(3), 1, Compression.LZ4))
    wrong[wrong.index(b"\x04\x22\x4d\x18") + 6] = 0x1A
    wrong[12:16] = zlib.crc32(wrong[16:]).to_bytes(4, "big")
    with pytest.raises(CorruptRecordError, match="lz4"):
        read_records(bytes(wrong))


@pytest.mark.parametrize("times", [[-1, -1], [0, 0], [1 << 62, 5], [9, 8], [-(1 << 63), (1 << 63) - 1]])
def test_any_timestamps_are_read_and_a_wrappers_is_trusted_as_the_largest(times: list[int]) -> None:
    content = wrapper(inner(1, 0, 1, timestamps=times), timestamp=77)
    assert [record.timestamp for record in read_records(content)] == times
    assert read_legacy_batch(content).header.max_timestamp == 77
    stamped = wrapper(inner(1, 0, 1, timestamps=times), timestamp=77, attributes=9)
    assert [record.timestamp for record in read_records(stamped)] == [77, 77]
    assert [one.timestamp for one in read_legacy_batch(stamped).messages] == times


def test_reserved_attribute_bits_are_ignored_and_so_is_the_timestamp_type_of_v0() -> None:
    [reserved] = records_in(resealed(encode_messages(plain(1), 1), 17, 0xF0))
    assert reserved == plain(1)[0]
    header = read_batch_header(resealed(encode_messages(plain(1), 0), 17, 0xF8))
    assert header.attributes == 0
    header = read_batch_header(resealed(encode_messages(plain(1), 1), 17, 0xF8))
    assert (header.timestamp_type, header.is_transactional, header.is_control) == (1, False, False)


def resealed(message: bytes, at: int, value: int) -> bytes:
    changed = bytearray(message)
    changed[at] = value
    changed[12:16] = zlib.crc32(changed[16:]).to_bytes(4, "big")
    return bytes(changed)


def test_bytes_after_the_value_and_a_message_that_is_cut_off_in_a_wrapper_are_ignored() -> None:
    message = encode_messages(plain(1), 1) + b"more"
    longer = bytearray(message)
    longer[8:12] = (len(message) - 12).to_bytes(4, "big")
    assert records_in(resealed(bytes(longer), 16, 1)) == plain(1)
    content = wrapper(inner(1, 0, 1, 2) + inner(1, 3)[:-1])
    assert [record.offset for record in read_records(content)] == [10, 11, 12]


@pytest.mark.parametrize(
    ("magic", "offsets"),
    [(0, (11, 10)), (0, (10, 10)), (0, (-1, 10)), (0, (10, 13)), (1, (1, 0)), (1, (0, 0)), (1, (0, 13))],
)
def test_offsets_that_lie_are_refused(magic: int, offsets: tuple[int, ...]) -> None:
    with pytest.raises(CorruptRecordError, match="in the wrapper has offset"):
        read_records(wrapper(inner(magic, *offsets), magic))


def test_the_last_message_of_a_v1_wrapper_has_its_offset_whatever_its_number() -> None:
    assert [record.offset for record in read_records(wrapper(inner(1, 13, 15)))] == [10, 12]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (wrapper(wrapper(inner(1, 0))), "compressed itself"),
        (wrapper(inner(0, 0)), "magic 0, the wrapper 1"),
        (wrapper(inner(1, 0), magic=0), "magic 1, the wrapper 0"),
        (wrapper(b"\0" * 30), "size of 0 bytes"),
        (wrapper(b"no message"), "no message"),
        (wrapper(inner(1, 0), attributes=4), "codec 4"),
        (wrapper(inner(0, 0), magic=0, attributes=7), "codec 7"),
        (wrapper(inner(1, 0), attributes=2), "snappy"),
        (wrapper(inner(1, 0)[:-1] + b"x"), "CRC-32"),
        (resealed(encode_messages([Record(1, 1, None, None)], 1), 17, 1), "no value"),
        (resealed(encode_messages(plain(1), 1), 29, 0x40), "the key has 64 bytes"),
    ],
)
def test_broken_messages_are_refused_by_file_position_and_reason(content: bytes, reason: str) -> None:
    with pytest.raises(CorruptRecordError, match=reason) as caught:
        read_records(content, source="x.log", source_position=70)
    assert (caught.value.path, caught.value.position) == ("x.log", 70)


@given(
    st.sampled_from([0, 1]),
    st.sampled_from(CODECS),
    st.lists(st.tuples(st.integers(8, 200), st.integers(0, 255)), min_size=1, max_size=4),
    st.integers(0, 60),
)
def test_any_damage_under_a_right_checksum_is_read_or_refused(
    magic: int, codec: Compression, changes: list[tuple[int, int]], cut: int
) -> None:
    message = bytearray(encode_messages(plain(1 if codec is Compression.NONE else 3), magic, codec))
    for at, value in changes:
        message[at % len(message)] = value
    content = bytes(message[: max(len(message) - cut, 26)])
    try:
        records = read_records(resealed(content, 16, magic))
    except CorruptRecordError:
        return
    assert all(record.offset >= 0 for record in records)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("at", [12, 17, 30])
def test_a_flipped_bit_is_found_by_the_checksum(magic: int, at: int) -> None:
    message = bytearray(encode_messages(plain(1), magic))
    message[at] ^= 1 << 6
    with pytest.raises(CorruptRecordError, match="CRC-32 is"):
        read_records(bytes(message))


def test_a_wrapper_that_holds_too_much_is_refused() -> None:
    bomb = encode_messages([Record(0, NOW, None, bytes(1 << 20))], 1, Compression.GZIP)
    with pytest.raises(CorruptRecordError, match="more than the 1000 bytes"):
        read_records(bomb, max_decompressed_bytes=1000)


def test_headers_show_a_message_that_is_not_whole_and_an_unknown_magic() -> None:
    message = encode_messages(plain(1), 1)
    assert read_batch_header(message[:34]).last_offset == 10
    with pytest.raises(CorruptRecordError, match="truncated: 33 bytes"):
        read_batch_header(message[:33])
    with pytest.raises(CorruptRecordError, match="but 40 are given"):
        read_legacy_batch(message[:40])
    with pytest.raises(UnsupportedMagicError, match="magic 3"):
        read_batch_header(resealed(message, 16, 3))


@pytest.mark.parametrize(
    ("records", "magic", "codec"),
    [
        (plain(1), 2, Compression.NONE),
        (plain(1), 1, Compression.ZSTD),
        ([], 1, Compression.NONE),
        ([replace(plain(1)[0], headers=(("a", None),))], 1, Compression.NONE),
        ([Record(1 << 63, 0, None, None)], 1, Compression.NONE),
    ],
)
def test_what_these_formats_cannot_hold_is_not_written(records: list[Record], magic: int, codec: Compression) -> None:
    with pytest.raises(ConfigurationError):
        encode_messages(records, magic, codec)


def test_no_append_time_in_v0() -> None:
    with pytest.raises(ConfigurationError, match="no time"):
        encode_messages(plain(1), 0, append_time=NOW)
