"""The remote index trio: its bytes, how it is built, what it finds, and what it does with broken bytes."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.records import Batch, batch_table
from support.remote_segments import segment_metadata
from tiered_storage.errors import ConfigurationError, CorruptIndexError
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.remote_log.indexes.remote_index_builder import RemoteIndexBuilder
from tiered_storage.remote_log.indexes.remote_index_lookup import RemoteIndexes
from tiered_storage.remote_log.indexes.remote_log_index import RemoteLogIndexEntry, iterate_entries, read_entry
from tiered_storage.remote_log.storage.documents.manifest import Manifest
from tiered_storage.remote_log.storage.documents.object_names import segment_object_names
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind
from unit.tiered_storage.drawn_records import batch_lists, windows

BASE = 4200
METADATA = segment_metadata(1000, BASE)
DATA_NAME = segment_object_names(METADATA.segment_id, BASE).data
ENTRY = RemoteLogIndexEntry(4200, 4299, 1000, 2000, "c/t/0/x.log", 1 << 20, 1_048_577)
OFFSETS = st.integers(0, 2**62)
ENTRIES = st.builds(
    RemoteLogIndexEntry,
    OFFSETS,
    st.integers(2**62, 2**63 - 1),
    st.integers(-1, 2**63 - 1),
    st.integers(-1, 2**63 - 1),
    st.text(min_size=1, max_size=200),
    st.integers(0, 2**63 - 1),
    st.integers(1, 2**31 - 1),
)


def build(table: BatchTable, cuts: list[int], chunk_bytes: int) -> dict[IndexKind, bytes]:
    builder = RemoteIndexBuilder(METADATA, chunk_bytes)
    for window in windows(table, cuts):
        builder.append(window)
    return builder.indexes()


def trio(indexes: dict[IndexKind, bytes]) -> RemoteIndexes:
    return RemoteIndexes.parse(
        "segment",
        BASE,
        indexes[IndexKind.REMOTE_LOG_INDEX],
        indexes[IndexKind.REMOTE_OFFSET_INDEX],
        indexes[IndexKind.REMOTE_TIME_INDEX],
    )


def entries_of(indexes: dict[IndexKind, bytes]) -> list[RemoteLogIndexEntry]:
    return list(iterate_entries(indexes[IndexKind.REMOTE_LOG_INDEX], "segment"))


def chunks_by_hand(batches: list[Batch], chunk_bytes: int) -> list[RemoteLogIndexEntry]:
    """The chunks of `batches`, one batch after the other."""
    chunks: list[list[tuple[int, int, Batch]]] = [[]]
    offset = BASE
    for batch in batches:
        if sum(previous.size for _, _, previous in chunks[-1]) >= chunk_bytes:
            chunks.append([])
        first = offset + batch.gap
        offset = first + batch.records
        chunks[-1].append((first, offset - 1, batch))
    position, expected = 0, []
    for chunk in chunks:
        if chunk:
            length = sum(batch.size for _, _, batch in chunk)
            latest = max(batch.max_timestamp for _, _, batch in chunk)
            expected.append(RemoteLogIndexEntry(chunk[0][0], chunk[-1][1], 0, latest, DATA_NAME, position, length))
            position += length
    return expected


@settings(deadline=None)
@given(ENTRIES)
def test_an_entry_comes_back_as_it_was_written(entry: RemoteLogIndexEntry) -> None:
    raw = entry.to_bytes()
    assert read_entry(raw, 0, "index") == (entry, len(raw))
    assert read_entry(b"before" + raw + b"behind", 6, "index") == (entry, 6 + len(raw))


def test_an_entrys_layout_is_the_documents() -> None:
    rdi = struct.pack(">q", 1 << 20) + b"c/t/0/x.log"
    checked = struct.pack(">qqqqih", 4200, 4299, 1000, 2000, 1_048_577, len(rdi)) + rdi
    assert ENTRY.to_bytes() == struct.pack(">hhI", 0, 8 + len(checked), zlib.crc32(checked)) + checked


@settings(deadline=None)
@given(ENTRIES, st.data())
def test_every_changed_byte_of_an_entry_is_found(entry: RemoteLogIndexEntry, data: st.DataObject) -> None:
    raw = bytearray(entry.to_bytes())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptIndexError) as raised:
        read_entry(bytes(raw), 0, "some.remoteLogIndex")
    assert (raised.value.path, raised.value.position) == ("some.remoteLogIndex", 0)


@settings(deadline=None)
@given(ENTRIES, st.data())
def test_every_cut_through_an_entry_is_found(entry: RemoteLogIndexEntry, data: st.DataObject) -> None:
    raw = entry.to_bytes()
    with pytest.raises(CorruptIndexError):
        read_entry(raw[: data.draw(st.integers(0, len(raw) - 1))], 0, "index")


def sealed(fixed: tuple[int, ...], rdi: bytes, rdi_length: int | None = None) -> bytes:
    """Return an entry whose checksum is right, whatever it holds."""
    checked = struct.pack(">qqqqih", *fixed, len(rdi) if rdi_length is None else rdi_length) + rdi
    return struct.pack(">hhI", 0, 8 + len(checked), zlib.crc32(checked)) + checked


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (sealed((5, 4, 0, 0, 1), bytes(8) + b"x"), "offsets 5 to 4"),
        (sealed((-1, 4, 0, 0, 1), bytes(8) + b"x"), "offsets -1 to 4"),
        (sealed((0, 4, 0, 0, 0), bytes(8) + b"x"), "in 0 bytes"),
        (sealed((0, 4, 0, 0, -7), bytes(8) + b"x"), "in -7 bytes"),
        (sealed((0, 4, -2, 0, 1), bytes(8) + b"x"), "timestamps -2"),
        (sealed((0, 4, 0, 0, 1), bytes(8) + b"x", 8), "rdi of 8 bytes"),
        (sealed((0, 4, 0, 0, 1), bytes(8) + b"x", -1), "rdi of -1 bytes"),
        (sealed((0, 4, 0, 0, 1), b"\xff" * 8 + b"x"), "begin at byte -1"),
        (sealed((0, 4, 0, 0, 1), bytes(8) + b"\xff"), "not UTF-8"),
        (sealed((0, 4, 0, 0, 1), bytes(8)), "less than an entry"),
        (b"\0\1" + ENTRY.to_bytes()[2:], "magic 1"),
        (b"\0\0\x7f\xff" + ENTRY.to_bytes()[4:], "an entry of 32767 bytes"),
        (b"\0\0\xff\xff" + ENTRY.to_bytes()[4:], "an entry of -1 bytes"),
    ],
)
def test_an_invalid_entry_is_corrupt(raw: bytes, reason: str) -> None:
    with pytest.raises(CorruptIndexError, match=reason):
        read_entry(raw, 0, "index")


@settings(deadline=None)
@given(st.binary(max_size=200), st.integers(-300, 300))
def test_any_bytes_are_an_entry_or_corrupt(raw: bytes, position: int) -> None:
    with pytest.raises(CorruptIndexError):
        read_entry(raw, position, "index")


def test_offsets_that_come_again_are_reported() -> None:
    raw = ENTRY.to_bytes()
    with pytest.raises(CorruptIndexError, match="4200 comes again") as raised:
        list(iterate_entries(raw + raw, "index"))
    assert raised.value.position == len(raw)


def test_a_name_that_is_too_long_for_an_entry_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="too long"):
        replace(ENTRY, object_name="x" * 40_000).to_bytes()


@settings(deadline=None)
@given(batch_lists(), st.lists(st.integers(0, 30), max_size=5), st.integers(1, 2000))
def test_chunks_are_the_same_however_the_batches_come(batches: list[Batch], cuts: list[int], chunk_bytes: int) -> None:
    indexes = build(batch_table(BASE, batches), cuts, chunk_bytes)
    found = entries_of(indexes)
    expected = chunks_by_hand(batches, chunk_bytes)
    # The tables' base timestamps are all 0.
    assert found == expected
    manifest = Manifest.parse(indexes[IndexKind.MANIFEST], "manifest")
    assert manifest == replace(
        Manifest.of(METADATA),
        first_timestamp=0 if batches else -1,
        max_timestamp=max((batch.max_timestamp for batch in batches), default=-1),
        batch_count=len(batches),
        record_count=sum(batch.records for batch in batches),
    )


@settings(deadline=None)
@given(batch_lists(), st.integers(1, 2000), st.integers(BASE - 3, BASE + 200))
def test_an_offset_is_found_in_the_chunk_that_has_it_or_the_next(
    batches: list[Batch], chunk_bytes: int, offset: int
) -> None:
    indexes = build(batch_table(BASE, batches), [], chunk_bytes)
    expected = next((entry for entry in entries_of(indexes) if entry.last_offset >= offset), None)
    assert trio(indexes).chunk_for_offset(offset) == expected


@settings(deadline=None)
@given(batch_lists(), st.integers(1, 2000), st.integers(-2, 14))
def test_a_timestamp_is_found_in_the_first_chunk_with_a_record_as_late(
    batches: list[Batch], chunk_bytes: int, timestamp: int
) -> None:
    indexes = build(batch_table(BASE, batches), [], chunk_bytes)
    late = (entry for entry in entries_of(indexes) if entry.last_timestamp >= max(timestamp, 0))
    assert trio(indexes).chunk_for_timestamp(timestamp) == next(late, None)


def test_batches_with_the_brokers_time_begin_at_that_time() -> None:
    table = batch_table(BASE, [Batch(1, 100, 5_000), Batch(1, 100, 6_000)])
    table.base_timestamp[:] = [10, 4_000]
    table.attributes[:] = [0x08, 0]
    (entry,) = entries_of(build(table, [], 1 << 20))
    assert (entry.first_timestamp, entry.last_timestamp) == (4_000, 6_000)


def test_records_without_timestamps_have_no_entries_in_the_time_index() -> None:
    table = batch_table(BASE, [Batch(1, 100, -1), Batch(1, 100, -1)])
    table.base_timestamp[:] = -1
    indexes = build(table, [], 1)
    assert indexes[IndexKind.REMOTE_TIME_INDEX] == b""
    assert trio(indexes).chunk_for_timestamp(0) is None
    assert len(entries_of(indexes)) == 2


def test_an_empty_segment_has_empty_indexes() -> None:
    indexes = RemoteIndexBuilder(METADATA).indexes()
    assert {indexes[kind] for kind in indexes if kind is not IndexKind.MANIFEST} == {b""}
    assert trio(indexes).chunk_for_offset(BASE) is None
    assert trio(indexes).chunk_for_timestamp(0) is None


def test_the_small_indexes_have_kafkas_layout() -> None:
    indexes = build(batch_table(BASE, [Batch(2, 100, 7), Batch(3, 100, 5), Batch(1, 100, 9, gap=4)]), [], 1)
    size = len(entries_of(indexes)[0].to_bytes())
    assert indexes[IndexKind.REMOTE_OFFSET_INDEX] == struct.pack(">iiiiii", 0, 0, 2, size, 9, 2 * size)
    assert indexes[IndexKind.REMOTE_TIME_INDEX] == struct.pack(">qiqi", 7, 0, 9, 2 * size)


def test_a_gap_between_windows_is_reported() -> None:
    table = batch_table(BASE, [Batch(1, 100, 0)] * 3)
    builder = RemoteIndexBuilder(METADATA, 1 << 20)
    builder.append(table.rows(0, 1))
    with pytest.raises(CorruptIndexError, match="byte 200") as raised:
        builder.append(table.rows(2, 3))
    assert raised.value.position == 100


@pytest.mark.parametrize("chunk_bytes", [0, -1, (64 << 20) + 1])
def test_chunks_of_useless_sizes_are_refused(chunk_bytes: int) -> None:
    with pytest.raises(ConfigurationError, match="chunks of"):
        RemoteIndexBuilder(METADATA, chunk_bytes)


def test_many_small_batches_make_chunks_of_the_size_asked_for() -> None:
    table = batch_table(BASE, [Batch(1, 137, 0)] * 100_000)
    entries = entries_of(build(table, [33_333, 77_777], 1 << 20))
    assert {entry.length for entry in entries[:-1]} == {137 * 7654}
    assert sum(entry.length for entry in entries) == 13_700_000


GOOD = build(batch_table(BASE, [Batch(1, 100, 5), Batch(1, 100, 7), Batch(1, 100, 9)]), [], 1)
SIZE = len(GOOD[IndexKind.REMOTE_LOG_INDEX]) // 3


@pytest.mark.parametrize(
    ("kind", "raw", "reason"),
    [
        (IndexKind.REMOTE_OFFSET_INDEX, b"\0" * 7, "whole number of entries"),
        (IndexKind.REMOTE_OFFSET_INDEX, b"", "it is empty"),
        (IndexKind.REMOTE_OFFSET_INDEX, struct.pack(">ii", -1, 0), "outside"),
        (IndexKind.REMOTE_OFFSET_INDEX, struct.pack(">ii", 0, -1), "outside"),
        (IndexKind.REMOTE_OFFSET_INDEX, struct.pack(">ii", 0, 3 * SIZE), "outside"),
        (IndexKind.REMOTE_OFFSET_INDEX, struct.pack(">iiii", 0, 0, 0, SIZE), "does not rise"),
        (IndexKind.REMOTE_OFFSET_INDEX, struct.pack(">iiii", 0, SIZE, 1, 0), "does not rise"),
        (IndexKind.REMOTE_TIME_INDEX, b"\0" * 11, "whole number of entries"),
        (IndexKind.REMOTE_TIME_INDEX, struct.pack(">qi", -1, 0), "outside"),
        (IndexKind.REMOTE_TIME_INDEX, struct.pack(">qiqi", 5, 0, 5, SIZE), "does not rise"),
    ],
)
def test_small_indexes_that_are_broken_are_reported(kind: IndexKind, raw: bytes, reason: str) -> None:
    with pytest.raises(CorruptIndexError, match=reason) as raised:
        trio({**GOOD, kind: raw})
    assert raised.value.path.startswith("segment: remote")


def test_indexes_that_disagree_are_reported() -> None:
    wrong_offset = {**GOOD, IndexKind.REMOTE_OFFSET_INDEX: struct.pack(">iiii", 0, 0, 1, 2 * SIZE)}
    with pytest.raises(CorruptIndexError, match=r"offset 4201\b.*\b4202\b"):
        trio(wrong_offset).chunk_for_offset(4201)
    wrong_time = {**GOOD, IndexKind.REMOTE_TIME_INDEX: struct.pack(">qi", 6, SIZE)}
    with pytest.raises(CorruptIndexError, match=r"timestamp 6\b.*\b7\b"):
        trio(wrong_time).chunk_for_timestamp(1)
    between = {**GOOD, IndexKind.REMOTE_OFFSET_INDEX: struct.pack(">ii", 0, 3)}
    with pytest.raises(CorruptIndexError, match="remoteLogIndex: at byte 3"):
        trio(between).chunk_for_offset(4200)


@settings(deadline=None)
@given(st.binary(max_size=300), st.binary(max_size=64), st.binary(max_size=48), st.integers(BASE, BASE + 9))
def test_any_bytes_are_indexes_or_corrupt(log: bytes, offsets: bytes, times: bytes, wanted: int) -> None:
    for log_index in (log, GOOD[IndexKind.REMOTE_LOG_INDEX]):
        try:
            indexes = RemoteIndexes.parse("segment", BASE, log_index, offsets, times)
            indexes.chunk_for_offset(wanted)
            indexes.chunk_for_timestamp(wanted)
        except CorruptIndexError as error:
            assert error.position >= 0
            assert error.path.startswith("segment: remote")


def test_a_table_is_not_changed_by_building() -> None:
    table = batch_table(BASE, [Batch(1, 100, 5)] * 5)
    before = [column.copy() for column in table.columns()]
    build(table, [2], 150)
    assert all(np.array_equal(old, new) for old, new in zip(before, table.columns(), strict=True))
