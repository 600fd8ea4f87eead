"""A segment file is read in windows, and recovered up to its last whole batch."""

from __future__ import annotations

import os
import struct
import tempfile
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.records import batches_of
from tiered_storage.errors import CorruptRecordError, UnsupportedMagicError
from tiered_storage.kafka_log.kernels.machine_code import load_kernels
from tiered_storage.kafka_log.records.batch_header import BatchHeader
from tiered_storage.kafka_log.records.legacy_message import encode_messages, read_legacy_batch
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import Compression, encode_batch, iterate_batches
from tiered_storage.kafka_log.records.segment_scan import (
    BatchTable,
    SegmentScanner,
    claimed_checksums,
    iterate_mapped_segment,
    iterate_segment,
    scan_segment,
)
from tiered_storage.kafka_log.records.sound_part import recover_valid_length
from unit.tiered_storage.drawn_records import a_message_of_magic_1
from unit.tiered_storage.kafka_log.records.batch_tables import MIB, assert_same

Windows = Iterator[tuple[memoryview, BatchTable]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "00000000000000000100.log"


@pytest.mark.parametrize("iterate", [iterate_segment, iterate_mapped_segment])
def test_a_file_is_read_whole_in_windows_of_any_size(path: Path, iterate: Callable[..., Windows]) -> None:
    batches = batches_of([1, 30, 2, 5, 1], base_offset=100, compression=Compression.LZ4)
    path.write_bytes(b"".join(batches))
    whole = scan_segment(path, 100)
    assert whole.record_count.tolist() == [1, 30, 2, 5, 1]

    for window_bytes in (0, 1, 61, 100, 150, 1000, 8 * MIB):
        data = b""
        tables = []
        for part, table in iterate(path, 100, window_bytes=window_bytes):
            assert part.readonly
            assert len(part) == table.size.sum()
            data += part
            tables.append(table)
        assert data == path.read_bytes()
        assert_same(BatchTable.concatenate(tables), whole)


@pytest.mark.parametrize(("broken", "sound"), [("truncated", 3), ("flipped", 2)])
def test_a_mapped_file_is_read_up_to_a_broken_batch(path: Path, broken: str, sound: int) -> None:
    batches = batches_of([1, 30, 2, 5], base_offset=100)
    content = bytearray(b"".join(batches))
    if broken == "truncated":
        del content[-1:]
    else:
        content[sum(map(len, batches[:2])) + 70] ^= 1
    path.write_bytes(content)

    for window_bytes in (1, 100, MIB):
        found = b""
        with pytest.raises(CorruptRecordError):
            for part, _ in iterate_mapped_segment(path, 100, window_bytes=window_bytes):
                found += part
        assert found == b"".join(batches[:sound])


def test_an_empty_file_has_no_batches(path: Path) -> None:
    path.touch()

    assert len(scan_segment(path, 100)) == 0
    assert list(iterate_mapped_segment(path, 100)) == []
    assert recover_valid_length(path, 100) == 0


@pytest.mark.parametrize("window_bytes", [61, 8 * MIB])
def test_a_torn_end_is_refused_and_recovered_up_to_the_last_whole_batch(path: Path, window_bytes: int) -> None:
    first, second = batches_of([3, 4], base_offset=100)

    for end in range(1, len(second)):
        path.write_bytes(first + second[:end])
        with pytest.raises(CorruptRecordError) as caught:
            scan_segment(path, 100, window_bytes=window_bytes)
        assert (caught.value.path, caught.value.position) == (str(path), len(first))
        assert recover_valid_length(path, 100, window_bytes=window_bytes) == len(first)


def test_a_file_that_is_whole_is_recovered_whole(path: Path) -> None:
    path.write_bytes(b"".join(batches_of([3, 4], base_offset=100)))

    assert recover_valid_length(path, 100) == path.stat().st_size


@pytest.mark.parametrize(
    "tail", [bytes(1), bytes(5000), b"\xff" * 80, struct.pack(">qiib", 107, 90, 0, 77) + bytes(99)]
)
def test_zeros_and_noise_after_the_last_batch_are_not_recovered(path: Path, tail: bytes) -> None:
    sound = b"".join(batches_of([3, 4], base_offset=100))
    path.write_bytes(sound + tail)

    assert recover_valid_length(path, 100) == len(sound)


@pytest.mark.parametrize("zeros", [1, 16, 17, 61, 5000, 3 * MIB])
@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("window_bytes", [61, 8 * MIB])
def test_zeros_to_the_end_are_no_damage_where_a_file_may_be_preallocated(
    path: Path, zeros: int, count: int, window_bytes: int
) -> None:
    sound = b"".join(batches_of([3, 4][:count], base_offset=100))
    path.write_bytes(sound)
    os.truncate(path, len(sound) + zeros)

    found = list(iterate_segment(path, 100, window_bytes=window_bytes, may_be_preallocated=True))
    assert sum(int(table.size.sum()) for _, table in found) == len(sound)
    with pytest.raises(CorruptRecordError) as caught:
        scan_segment(path, 100, window_bytes=window_bytes)
    assert caught.value.position == len(sound)


@pytest.mark.parametrize("tail", [bytes(5000) + b"\1", b"\1" + bytes(5000), bytes(2 * MIB) + b"\1" + bytes(9)])
def test_zeros_with_anything_after_them_are_damage(path: Path, tail: bytes) -> None:
    path.write_bytes(batches_of([3], base_offset=100)[0] + tail)

    with pytest.raises(CorruptRecordError):
        list(iterate_segment(path, 100, may_be_preallocated=True))


def test_a_batch_of_an_unknown_magic_is_never_taken_for_damage(path: Path) -> None:
    later = bytearray(batches_of([1], base_offset=101)[0])
    later[16] = 3
    path.write_bytes(batches_of([1], base_offset=100)[0] + later)

    with pytest.raises(UnsupportedMagicError, match="magic 3"):
        recover_valid_length(path, 100)


def test_messages_of_an_older_magic_are_never_taken_for_damage(path: Path) -> None:
    sound = batches_of([1], base_offset=100)[0] + a_message_of_magic_1(101)
    path.write_bytes(sound + bytes(99))

    assert recover_valid_length(path, 100) == len(sound)


def test_compressed_messages_that_cannot_be_read_are_never_taken_for_damage(path: Path) -> None:
    broken = bytearray(encode_messages([Record(100, 1, None, bytes(99))], 1, Compression.GZIP))
    broken[-6] ^= 1
    broken[12:16] = zlib.crc32(broken[16:]).to_bytes(4, "big")
    path.write_bytes(broken)

    with pytest.raises(CorruptRecordError, match="gzip"):
        recover_valid_length(path, 100)


@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 2]), st.sampled_from(list(Compression)[:4]), st.integers(1, 4))),
    st.data(),
)
def test_segments_of_all_formats_are_scanned_by_windows_of_any_size(
    runs: list[tuple[int, Compression, int]], data: st.DataObject
) -> None:
    content, headers, offset = b"", list[BatchHeader](), 100
    for magic, codec, count in runs:
        records = [Record(offset + i, 1000 - offset + i, b"key", b"value") for i in range(count)]
        new = encode_batch(records, codec) if magic == 2 else encode_messages(records, magic, codec)
        for header, batch in iterate_batches(new):
            headers.append(header if magic == 2 else read_legacy_batch(batch).header)
        content, offset = content + new, offset + count
    window_bytes = data.draw(st.integers(1, 300))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "00000000000000000100.log"
        path.write_bytes(content)
        mapped = [table for _, table in iterate_mapped_segment(path, 100, window_bytes=window_bytes)]
        read = scan_segment(path, 100, window_bytes=window_bytes)
    for table in (BatchTable.concatenate(mapped), read):
        assert table.base_offset.tolist() == [header.base_offset for header in headers]
        assert table.last_offset.tolist() == [header.last_offset for header in headers]
        assert table.max_timestamp.tolist() == [header.max_timestamp for header in headers]
        assert table.base_timestamp.tolist() == [header.base_timestamp for header in headers]
        assert table.attributes.tolist() == [header.attributes for header in headers]
        assert table.record_count.tolist() == [header.record_count for header in headers]
        assert table.position.tolist() == (table.size.cumsum() - table.size).tolist()
        assert int(table.size.sum()) == len(content)


@pytest.mark.parametrize("verify_crc", [True, False])
def test_the_checksum_of_a_message_is_always_compared(path: Path, verify_crc: bool) -> None:
    sound, broken = a_message_of_magic_1(100), bytearray(a_message_of_magic_1(101))
    broken[-1] ^= 1
    path.write_bytes(sound + broken)

    with pytest.raises(CorruptRecordError, match="CRC-32") as caught:
        scan_segment(path, 100, verify_crc=verify_crc)
    assert caught.value.position == len(sound)


@pytest.mark.parametrize(("offset", "reason"), [(100, "offsets rise"), (99, "offsets rise"), (1 << 33, "too far")])
def test_a_message_out_of_place_is_named(path: Path, offset: int, reason: str) -> None:
    path.write_bytes(a_message_of_magic_1(100) + a_message_of_magic_1(offset))

    with pytest.raises(CorruptRecordError, match=reason) as caught:
        scan_segment(path, 100)
    assert caught.value.position == len(a_message_of_magic_1(100))


def test_checksums_are_those_that_headers_of_any_magic_have() -> None:
    content = a_message_of_magic_1(100) + batches_of([1], base_offset=101)[0]
    window = memoryview(content)
    table, _ = SegmentScanner("a segment", 100).feed(window)

    assert claimed_checksums(window, table).tolist() == [header.crc for header, _ in iterate_batches(content)]


@pytest.mark.parametrize("kept", range(60))
def test_a_header_torn_in_a_preallocated_file_is_no_older_magic(path: Path, kept: int) -> None:
    sound, torn = batches_of([3, 4], base_offset=100)
    path.write_bytes(sound + torn[:kept] + bytes(5000))

    assert recover_valid_length(path, 100) == len(sound)


@pytest.mark.parametrize(
    ("position", "field", "reason"),
    [(0, struct.pack(">q", 99), "offsets rise"), (0, struct.pack(">q", 100 + (1 << 32)), "too far")],
)
def test_a_batch_whose_own_checksum_is_right_is_never_taken_for_damage(
    path: Path, position: int, field: bytes, reason: str
) -> None:
    """Its base offset is under no checksum."""
    sound, strange = batches_of([3, 4], base_offset=100)
    path.write_bytes(sound + strange[:position] + field + strange[position + len(field) :])

    with pytest.raises(CorruptRecordError, match=reason):
        recover_valid_length(path, 100)


def test_a_batch_that_claims_gigabytes_allocates_only_the_window(path: Path) -> None:
    (batch,) = batches_of([1], base_offset=100, value=bytes(MIB))
    path.write_bytes(batch[:8] + struct.pack(">i", (1 << 31) - 1) + batch[12:])
    load_kernels()
    arrow_before = pa.default_memory_pool().max_memory()

    tracemalloc.start()
    with pytest.raises(CorruptRecordError, match="truncated"):
        scan_segment(path, 100, window_bytes=1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < MIB
    assert pa.default_memory_pool().max_memory() < arrow_before + MIB


def test_memory_follows_the_window_not_the_file(path: Path) -> None:
    (batch,) = batches_of([1], base_offset=100, value=bytes(1000))
    count = 16 * MIB // len(batch)
    path.write_bytes(b"".join(struct.pack(">q", 100 + i) + batch[8:] for i in range(count)))
    rows = sum(len(table) for _, table in iterate_segment(path, 100))

    tracemalloc.start()
    again = sum(len(table) for _, table in iterate_segment(path, 100, window_bytes=MIB))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert again == rows == count
    assert peak < 2 * MIB
