from __future__ import annotations

import os
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from support.records import batches_of, some_records
from tiered_storage.errors import CorruptRecordError, UnsupportedMagicError
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.kafka_log.kernels.constants import CRC_END, INT32_MAX
from tiered_storage.kafka_log.kernels.machine_code import load_kernels
from tiered_storage.kafka_log.records import segment_scan
from tiered_storage.kafka_log.records.record_batch import (
    Compression,
    Record,
    encode_batch,
    read_batch_header,
    read_records,
)
from tiered_storage.kafka_log.records.segment_scan import (
    BatchTable,
    SegmentScanner,
    iterate_mapped_segment,
    iterate_segment,
    recover_valid_length,
    scan_segment,
)
from unit.tiered_storage.drawn_records import a_message_of_magic_1, record_lists

MIB = 1 << 20

Windows = Iterator[tuple[memoryview, BatchTable]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "00000000000000000100.log"


@pytest.fixture(params=["compiled", "without the instructions"])
def scanner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., SegmentScanner]:
    """SegmentScanner as it is here, and as it is where the CPU has no instructions for checksums."""
    if request.param != "compiled":
        monkeypatch.setattr(segment_scan, "has_checksum_instructions", lambda: False)
    return SegmentScanner


@settings(deadline=None)
@given(records=record_lists(), codec=st.sampled_from(Compression), position=st.integers(0, 1 << 40))
def test_a_row_says_what_the_header_says(records: list[Record], codec: Compression, position: int) -> None:
    batch = encode_batch(
        records, codec, partition_leader_epoch=5, producer_id=1 << 40, producer_epoch=7, base_sequence=9
    )
    header = read_batch_header(batch)

    table, consumed = SegmentScanner("a segment", header.base_offset, start_position=position).feed(memoryview(batch))

    assert consumed == len(batch)
    assert len(table) == 1
    assert table.position.tolist() == [position]
    for name in BatchTable.__dataclass_fields__:
        if name != "position":
            assert getattr(table, name).tolist() == [getattr(header, name)], name


def test_a_window_may_be_anything_that_lies_in_memory(scanner: Callable[..., SegmentScanner]) -> None:
    data = b"".join(batches_of([1, 2, 3]))

    for window in (
        memoryview(data),
        memoryview(bytearray(data)),
        np.frombuffer(data, np.uint8),
        np.array([*data], "u1"),
    ):
        table, consumed = scanner("a segment", 0).feed(window)
        assert (table.record_count.tolist(), consumed) == ([1, 2, 3], len(data))


def test_an_empty_window_has_no_batches(scanner: Callable[..., SegmentScanner]) -> None:
    table, consumed = scanner("a segment", 0).feed(memoryview(b""))

    assert (len(table), consumed) == (0, 0)


def test_windows_that_cut_batches_give_the_same_table(scanner: Callable[..., SegmentScanner]) -> None:
    data = b"".join(batches_of([1, 20, 3, 1], base_offset=100))
    whole, _ = scanner("a segment", 100).feed(memoryview(data))

    for step in range(1, len(data), 7):
        in_steps = scanner("a segment", 100)
        tables, end = [], 0
        while in_steps.position < len(data):
            end = max(end + step, in_steps.position + in_steps.needed(memoryview(data)[in_steps.position : end]))
            tables.append(in_steps.feed(memoryview(data)[in_steps.position : end])[0])
        in_steps.finish(len(data) - in_steps.position)
        assert in_steps.next_offset == 125
        _assert_same(BatchTable.concatenate(tables), whole)


def test_windows_whose_batches_are_unlike_those_before_give_the_same_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_scan, "_FEWEST_GUESSED", 1)
    counts = [[1] * 50, [400, 1], [1] * 300, [500], [1]]
    batches = batches_of([*chain(*counts)])
    data = b"".join(batches)
    whole, _ = SegmentScanner("a segment", 0).feed(memoryview(data))

    scanner, tables = SegmentScanner("a segment", 0), []
    for number in map(len, counts):
        window, batches = b"".join(batches[:number]), batches[number:]
        table, consumed = scanner.feed(memoryview(window))
        tables.append(table)
        assert (len(table), consumed) == (number, len(window))
        assert _memory_of(table) <= 2 * number * 72, "of a guess that was too high most is given back"

    _assert_same(BatchTable.concatenate(tables), whole)


def test_batches_are_counted_where_they_are_few_or_like_none_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch cut by a window is scanned alone: its size does not predict the small ones after it."""
    kernels, counted = load_kernels(), []

    def count_batches(window: int, size: int) -> int:
        counted.append(size)
        return kernels.count_batches(window, size)

    monkeypatch.setattr(segment_scan, "load_brief_kernels", lambda: replace(kernels, count_batches=count_batches))
    many, large = batches_of([1] * 1200), [encode_batch(some_records(1200, 1, bytes(5000)))]
    many_more, few = batches_of([1] * 1200, base_offset=1201), batches_of([1] * 60, base_offset=2401)
    windows = [b"".join(batches) for batches in (many, large, many_more, few)]
    scanner = SegmentScanner("a segment", 0)

    assert [len(scanner.feed(memoryview(window))[0]) for window in windows] == [1200, 1, 1200, 60]
    assert counted == [len(windows[0]), len(windows[1]), len(windows[3])]


def test_a_large_window_has_no_table_for_the_batches_that_came_before() -> None:
    small, large = encode_batch(some_records(0, 1, b"")), encode_batch(some_records(1, 1, bytes(9 * MIB)))
    scanner = SegmentScanner("a segment", 0)
    scanner.feed(memoryview(small))
    tracemalloc.start()
    try:
        table, _ = scanner.feed(memoryview(large))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(table) == 1
    assert peak < MIB


def test_a_scanner_needs_the_head_of_a_batch_first_and_then_the_batch() -> None:
    (batch,) = batches_of([4])
    scanner = SegmentScanner("a segment", 0)

    assert scanner.needed(memoryview(batch)[:16]) == 17
    assert scanner.needed(memoryview(batch)[:17]) == len(batch)


def test_bytes_left_at_the_end_are_truncated() -> None:
    first, second = batches_of([4, 5])
    scanner = SegmentScanner("orders-0/00000000000000000000.log", 0)
    scanner.feed(memoryview(first + second[:30]))

    with pytest.raises(CorruptRecordError, match=r"truncated: .*30 bytes") as caught:
        scanner.finish(30)

    assert caught.value.position == len(first)


def test_a_wrong_checksum_is_named_with_both(scanner: Callable[..., SegmentScanner]) -> None:
    first, second, third = batches_of([1, 2, 3])
    broken = bytearray(second)
    broken[-1] ^= 0x40

    with pytest.raises(CorruptRecordError) as caught:
        scanner("a segment", 0, start_position=1000).feed(memoryview(first + broken + third))

    assert caught.value.position == 1000 + len(first)
    assert f"0x{crc32c(second[CRC_END:]):08x}" in caught.value.reason
    assert f"0x{crc32c(broken[CRC_END:]):08x}" in caught.value.reason


def test_checksums_are_let_be_on_request() -> None:
    (batch,) = batches_of([1])
    broken = bytearray(batch)
    broken[-1] ^= 1

    table, _ = SegmentScanner("a segment", 0, verify_crc=False).feed(memoryview(broken))

    assert len(table) == 1


def test_a_segment_continues_as_it_was_after_an_error(scanner: Callable[..., SegmentScanner]) -> None:
    first, second = batches_of([1, 2])
    one = scanner("a segment", 0)
    one.feed(memoryview(first))

    with pytest.raises(CorruptRecordError):
        one.feed(memoryview(second[:-1] + b"?"))

    assert (one.position, one.next_offset) == (len(first), 1)
    assert len(one.feed(memoryview(second))[0]) == 1


@pytest.mark.parametrize(
    ("base_offset", "batches", "reason"),
    [
        (10, batches_of([1], base_offset=9), "starts at offset 9; .* from 10 "),
        (0, batches_of([2]) + batches_of([1], base_offset=1), "starts at offset 1; .* from 2 "),
        (0, batches_of([2]) * 2, "starts at offset 0; .* from 2 "),
        (5, batches_of([1], base_offset=6 + INT32_MAX), "base offset 5"),
    ],
)
def test_offsets_out_of_order_are_named(base_offset: int, batches: list[bytes], reason: str) -> None:
    with pytest.raises(CorruptRecordError, match=reason) as caught:
        SegmentScanner("a segment", base_offset).feed(memoryview(b"".join(batches)))

    assert caught.value.position == sum(map(len, batches[:-1]))


def test_the_furthest_offset_of_an_index_is_in_order() -> None:
    batch = encode_batch([Record(5, 0, None, None), Record(5 + INT32_MAX, 0, None, None)])

    table, _ = SegmentScanner("a segment", 5).feed(memoryview(batch))

    assert table.last_offset.tolist() == [5 + INT32_MAX]


def test_offsets_end_where_64_bits_still_hold_the_next_one() -> None:
    highest = (1 << 63) - 2
    batch = bytearray(encode_batch([Record(highest - 1, 0, None, None), Record(highest, 0, None, None)]))

    table, _ = SegmentScanner("a segment", highest - 1).feed(memoryview(batch))
    assert table.last_offset.tolist() == [highest]

    for base_offset in (highest, highest + 1):
        struct.pack_into(">q", batch, 0, base_offset)
        with pytest.raises(CorruptRecordError, match=f"{base_offset + 1}.*{highest}"):
            SegmentScanner("a segment", highest - 1).feed(memoryview(batch))


@pytest.mark.parametrize("magic", [0, 1, 3])
@pytest.mark.parametrize("size", [26, 60, 400])
def test_another_magic_is_named_whatever_its_size(magic: int, size: int) -> None:
    first = batches_of([1])[0]
    other = struct.pack(">qiIbb", 1, size - 12, 0, magic, 0) + bytes(size - 18)

    with pytest.raises(UnsupportedMagicError, match=f"has magic {magic}") as caught:
        SegmentScanner("a segment", 0).feed(memoryview(first + other))

    assert caught.value.position == len(first)


@pytest.mark.parametrize(
    ("place", "layout", "value", "reason"),
    [
        (8, ">i", 0, "batch length of 0"),
        (8, ">i", -1, "batch length of -1"),
        (0, ">q", -1, "base offset is -1"),
        (23, ">i", -1, "last offset delta is -1"),
        (57, ">i", -1, "-1 records"),
        (57, ">i", 4, "4 records in a range of 3 offsets"),
        (21, ">h", 6, "codec 6"),
    ],
)
def test_a_header_that_cannot_be_is_named(place: int, layout: str, value: int, reason: str) -> None:
    broken = bytearray(batches_of([3])[0])
    struct.pack_into(layout, broken, place, value)
    struct.pack_into(">I", broken, 17, crc32c(broken[CRC_END:]))

    with pytest.raises(CorruptRecordError, match=reason):
        SegmentScanner("a segment", 0).feed(memoryview(broken))


@settings(deadline=None)
@given(data=st.binary(max_size=300), verify_crc=st.booleans())
def test_random_bytes_are_refused_or_left_over(data: bytes, verify_crc: bool) -> None:
    try:
        table, consumed = SegmentScanner("noise", 0, verify_crc=verify_crc).feed(memoryview(data))
    except CorruptRecordError as error:
        assert 0 <= error.position <= len(data)
        return
    assert consumed == table.size.sum()


@settings(deadline=None)
@given(
    flips=st.lists(st.tuples(st.integers(0, 399), st.integers(0, 7)), min_size=1, max_size=3), cut=st.integers(0, 99)
)
def test_damage_never_passes_and_never_costs_what_lies_before_it(flips: list[tuple[int, int]], cut: int) -> None:
    batches = batches_of([1] * 6)
    data = bytearray(b"".join(batches))
    for place, bit in flips:
        data[place] ^= 1 << bit
    data = data[: len(data) - cut]
    sound = 0
    while sound < len(batches) and data.startswith(b"".join(batches[: sound + 1])):
        sound += 1

    scanner = SegmentScanner("damaged", 0)
    try:
        table, consumed = scanner.feed(memoryview(data))
        scanner.finish(len(data) - consumed)
    except CorruptRecordError as error:
        assert error.position >= sum(map(len, batches[:sound]))
        return
    assert read_back(bytes(data), table)


def read_back(data: bytes, table: BatchTable) -> bool:
    """What passed differs at most where no checksum reaches: in offsets that still rise, and in the leader epoch."""
    places = zip(table.position.tolist(), table.size.tolist(), strict=True)
    values = [record.value for at, size in places for record in read_records(data[at : at + size])]
    return values == [b"value"] * len(table)


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
        _assert_same(BatchTable.concatenate(tables), whole)


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


def test_an_empty_mapped_file_has_no_batches(path: Path) -> None:
    path.touch()

    assert list(iterate_mapped_segment(path, 100)) == []


def test_an_empty_file_has_no_batches(path: Path) -> None:
    path.touch()

    assert len(scan_segment(path, 100)) == 0
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


def test_batches_of_an_older_magic_are_never_taken_for_damage(path: Path) -> None:
    path.write_bytes(batches_of([1], base_offset=100)[0] + a_message_of_magic_1(101))

    with pytest.raises(UnsupportedMagicError, match="magic 1"):
        recover_valid_length(path, 100)


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


def test_tables_join_in_order_and_no_tables_make_an_empty_one() -> None:
    one, _ = SegmentScanner("a segment", 0).feed(memoryview(encode_batch(some_records(0, 2))))
    two, _ = SegmentScanner("a segment", 0).feed(memoryview(encode_batch(some_records(2, 3))))

    assert BatchTable.concatenate([one, two]).last_offset.tolist() == [1, 4]
    assert len(BatchTable.concatenate([])) == 0


def _memory_of(table: BatchTable) -> int:
    """Return how many bytes the columns of `table` keep."""
    kept = {id(base): base.nbytes for base in map(_base_of, table.columns())}
    return sum(kept.values())


def _base_of(column: NDArray[Any]) -> NDArray[Any]:
    while column.base is not None:
        column = column.base
    return column


def _assert_same(table: BatchTable, other: BatchTable) -> None:
    for mine, theirs in zip(table.columns(), other.columns(), strict=True):
        np.testing.assert_array_equal(mine, theirs, strict=True)
