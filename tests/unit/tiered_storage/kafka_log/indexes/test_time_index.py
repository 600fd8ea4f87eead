from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tiered_storage.errors import CorruptIndexError
from tiered_storage.kafka_log.indexes.index_file import MAX_INDEX_BYTES
from tiered_storage.kafka_log.indexes.time_index import TimeIndex, TimestampOffset

BASE = 1000


def index_of(*entries: tuple[int, int], base_offset: int = BASE) -> TimeIndex:
    columns = np.array(entries, np.int64).reshape(-1, 2)
    return TimeIndex(base_offset, columns[:, 0], columns[:, 1])


@st.composite
def indexes(draw: st.DrawFn) -> TimeIndex:
    base_offset = draw(st.integers(0, 2**62))
    count = draw(st.integers(0, 20))
    times = draw(st.lists(st.integers(1, 2**63 - 1), min_size=count, max_size=count).map(sorted))
    offsets = draw(st.lists(st.integers(0, 2**31 - 1), min_size=count, max_size=count).map(sorted))
    return index_of(*((t, base_offset + o) for t, o in zip(times, offsets, strict=True)), base_offset=base_offset)


@given(indexes(), st.integers(0, 5))
def test_an_index_survives_its_file_with_and_without_preallocation(
    tmp_path_factory: pytest.TempPathFactory, index: TimeIndex, padding: int
) -> None:
    assume(index.timestamps.size or padding != 1)  # one entry of zeros alone is an entry
    path = tmp_path_factory.mktemp("segment") / "00000000000000001000.timeindex"
    path.write_bytes(index.to_bytes() + bytes(12 * padding))

    found = TimeIndex.read(path, index.base_offset)

    assert found.timestamps.tolist() == index.timestamps.tolist()
    assert found.offsets.tolist() == index.offsets.tolist()
    assert found.to_bytes() == index.to_bytes()


def test_entries_are_big_endian_and_relative_to_the_base_offset() -> None:
    assert index_of((1753819149788, 1032)).to_bytes().hex() == "0000019857c475dc00000020"


def test_a_first_entry_of_zeros_counts_if_another_follows(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000001000.timeindex"
    path.write_bytes(index_of((0, BASE), (0, 1032)).to_bytes() + bytes(24))

    assert TimeIndex.read(path, BASE).offsets.tolist() == [BASE, 1032]


def test_an_entry_of_zeros_that_is_the_whole_file_counts(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000001000.timeindex"
    path.write_bytes(index_of((0, BASE)).to_bytes())

    assert TimeIndex.read(path, BASE).lookup(0) == TimestampOffset(0, BASE)
    assert TimeIndex.parse(path.read_bytes(), path, BASE).offsets.tolist() == [BASE]


@pytest.mark.parametrize("size", [12 << 20, 252 << 20])
def test_a_preallocated_index_of_any_size_is_read(tmp_path: Path, size: int) -> None:
    path = tmp_path / "00000000000000001000.timeindex"
    path.write_bytes(index_of((7, 1032)).to_bytes())
    os.truncate(path, size)

    assert TimeIndex.read(path, BASE).offsets.tolist() == [1032]


def test_an_index_that_continues_after_all_that_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000001000.timeindex"
    with path.open("wb") as file:
        file.seek(MAX_INDEX_BYTES + 12)
        file.write(index_of((7, 1032)).to_bytes())

    with pytest.raises(CorruptIndexError, match=f"{MAX_INDEX_BYTES} bytes"):
        TimeIndex.read(path, BASE)


@given(indexes(), st.integers(-100, 2**63 - 1))
def test_a_look_up_finds_the_last_entry_at_or_before_the_timestamp(index: TimeIndex, timestamp: int) -> None:
    entries = zip(index.timestamps.tolist(), index.offsets.tolist(), strict=True)
    below = [TimestampOffset(*entry) for entry in entries if entry[0] <= timestamp]

    assert index.lookup(timestamp) == (below[-1] if below else TimestampOffset(-1, index.base_offset))


@pytest.mark.parametrize(
    ("content", "position", "reason"),
    [
        (("00000000000000010000002000"), 13, "whole number of entries"),
        (("000000000000000200000020000000000000000100000040"), 12, "lower than the one before"),
        (("00000000000000020000002000000000000000030000001f"), 12, "lower than the one before"),
        ("ffffffffffffffff00000020", 0, "negative"),
        ("0000000000000001ffffffff", 0, "negative"),
        (("7fffffffffffffff00000020800000000000000000000040"), 12, "negative"),
    ],
)
def test_a_broken_file_is_refused_with_the_place(tmp_path: Path, content: str, position: int, reason: str) -> None:
    path = tmp_path / "00000000000000001000.timeindex"
    path.write_bytes(bytes.fromhex(content))

    with pytest.raises(CorruptIndexError, match=reason) as raised:
        TimeIndex.read(path, BASE)

    assert (raised.value.path, raised.value.position) == (str(path), position)
