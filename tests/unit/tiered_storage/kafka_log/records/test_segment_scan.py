"""The table of a window of batches equals their headers, wherever a window ends."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
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
from tiered_storage.kafka_log.records.segment_scan import BatchTable, SegmentScanner
from unit.tiered_storage.drawn_records import record_lists
from unit.tiered_storage.kafka_log.records.batch_tables import MIB, assert_same


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
        assert_same(BatchTable.concatenate(tables), whole)


def test_a_wrong_guess_of_the_batch_count_gives_the_same_table(monkeypatch: pytest.MonkeyPatch) -> None:
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

    assert_same(BatchTable.concatenate(tables), whole)


def test_batches_are_counted_if_few_or_of_an_unexpected_size(monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize("magic", [3, 127])
@pytest.mark.parametrize("size", [26, 60, 400])
def test_an_unknown_magic_is_named_whatever_its_size(magic: int, size: int) -> None:
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
def test_damage_is_always_found_and_loses_no_batch_before_it(flips: list[tuple[int, int]], cut: int) -> None:
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
