from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tiered_storage.errors import CorruptIndexError
from tiered_storage.kafka_log.indexes import index_file
from tiered_storage.kafka_log.indexes.offset_index import OffsetIndex, OffsetPosition

BASE = 1000


def index_of(*entries: tuple[int, int], base_offset: int = BASE) -> OffsetIndex:
    columns = np.array(entries, np.int64).reshape(-1, 2)
    return OffsetIndex(base_offset, columns[:, 0], columns[:, 1])


@st.composite
def indexes(draw: st.DrawFn) -> OffsetIndex:
    base_offset = draw(st.integers(0, 2**62))
    count = draw(st.integers(0, 20))
    field = st.lists(st.integers(1, 2**31 - 1), min_size=count, max_size=count, unique=True).map(sorted)
    return index_of(
        *((base_offset + o, p) for o, p in zip(draw(field), draw(field), strict=True)), base_offset=base_offset
    )


@given(indexes(), st.integers(0, 5))
def test_an_index_survives_its_file_with_and_without_preallocation(
    tmp_path_factory: pytest.TempPathFactory, index: OffsetIndex, padding: int
) -> None:
    assume(index.offsets.size or padding != 1)  # one entry of zeros alone is an entry
    path = tmp_path_factory.mktemp("segment") / "00000000000000001000.index"
    path.write_bytes(index.to_bytes() + bytes(8 * padding))

    found = OffsetIndex.read(path, index.base_offset)

    assert found.offsets.tolist() == index.offsets.tolist()
    assert found.positions.tolist() == index.positions.tolist()
    assert found.to_bytes() == index.to_bytes()


def test_entries_are_big_endian_and_relative_to_the_base_offset() -> None:
    assert index_of((1032, 4204), (1064, 8428)).to_bytes().hex() == "000000200000106c00000040000020ec"


@given(indexes(), st.integers(-100, 2**63 - 1))
def test_a_look_up_finds_the_last_entry_at_or_before_the_offset(index: OffsetIndex, offset: int) -> None:
    entries = zip(index.offsets.tolist(), index.positions.tolist(), strict=True)
    below = [OffsetPosition(*entry) for entry in entries if entry[0] <= offset]

    assert index.lookup(offset) == (below[-1] if below else OffsetPosition(index.base_offset, 0))


@pytest.mark.parametrize(
    ("content", "position", "reason"),
    [
        (("000000200000100000"), 9, "whole number of entries"),
        (("00000020000010000000002000002000"), 8, "does not rise"),
        (("00000020000010000000004000001000"), 8, "does not rise"),
        (("000000200000100000000000000000000000004000002000"), 8, "does not rise"),
        ("ffffffff00001000", 0, "negative"),
        (("000000200000100000000040ffffffff"), 8, "negative"),
    ],
)
def test_a_broken_file_is_refused_with_the_place(tmp_path: Path, content: str, position: int, reason: str) -> None:
    path = tmp_path / "00000000000000001000.index"
    path.write_bytes(bytes.fromhex(content))

    with pytest.raises(CorruptIndexError, match=reason) as raised:
        OffsetIndex.read(path, BASE)

    assert (raised.value.path, raised.value.position) == (str(path), position)


def test_a_file_larger_than_any_index_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_file, "MAX_INDEX_BYTES", 800)
    path = tmp_path / "00000000000000001000.index"
    path.write_bytes(bytes(807) + b"\1")

    with pytest.raises(CorruptIndexError, match=r"\b800 bytes"):
        OffsetIndex.read(path, BASE)
