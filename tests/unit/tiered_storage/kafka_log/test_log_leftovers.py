from __future__ import annotations

from pathlib import Path

import pytest

from support.transactions import data
from tiered_storage.errors import CorruptRecordError
from tiered_storage.kafka_log.log_leftovers import clear_leftovers

KINDS = ("log", "index", "timeindex", "txnindex", "snapshot")


def segment(directory: Path, base: int, suffix: str = "", batches: bytes = b"", kinds: tuple[str, ...] = KINDS) -> None:
    for kind in kinds:
        content = (batches or data(base)) if kind == "log" else kind.encode()
        (directory / f"{base:020d}.{kind}{suffix}").write_bytes(content)


def files(directory: Path) -> dict[str, set[int]]:
    """The base offsets of the files of each kind."""
    found: dict[str, set[int]] = {}
    for path in directory.iterdir():
        offset, _, kind = path.name.partition(".")
        found.setdefault(kind, set()).add(int(offset))
    return found


def each(kinds: tuple[str, ...], base: int) -> dict[str, set[int]]:
    return {kind: {base} for kind in kinds}


def test_deleted_and_unfinished_files_go(tmp_path: Path) -> None:
    segment(tmp_path, 0, ".deleted")
    segment(tmp_path, 5, ".cleaned")
    segment(tmp_path, 5)
    (tmp_path / "leader-epoch-checkpoint").write_text("0\n0\n")
    (tmp_path / "00000000000000000005-0000000001.checkpoint.deleted").write_bytes(b"of KRaft's own")

    removed = clear_leftovers(tmp_path)

    assert len(removed) == 10
    (tmp_path / "leader-epoch-checkpoint").unlink()
    (tmp_path / "00000000000000000005-0000000001.checkpoint.deleted").unlink()
    assert files(tmp_path) == each(KINDS, 5)


def test_a_swap_that_was_under_way_is_brought_to_its_end(tmp_path: Path) -> None:
    for base in (0, 10, 20, 30):
        segment(tmp_path, base)
    segment(tmp_path, 10, ".swap", data(12, count=3) + data(20, count=5), kinds=("log", "index", "timeindex"))

    removed = clear_leftovers(tmp_path)

    assert {name.partition(".")[0][-2:] for name in removed} == {"10", "20"}
    assert files(tmp_path) == {
        "log": {0, 10, 30},
        "index": {0, 10, 30},
        "timeindex": {0, 10, 30},
        "txnindex": {0, 30},
        "snapshot": {0, 30},
    }
    assert (tmp_path / "00000000000000000010.log").read_bytes() == data(12, count=3) + data(20, count=5)


def test_a_swap_of_which_the_segment_was_renamed_already_goes_on(tmp_path: Path) -> None:
    segment(tmp_path, 10, kinds=("log",))
    segment(tmp_path, 10, ".swap", kinds=("index", "timeindex"))

    assert clear_leftovers(tmp_path) == ()
    assert files(tmp_path) == {"log": {10}, "index": {10}, "timeindex": {10}}


def test_a_split_that_was_cut_off_is_undone(tmp_path: Path) -> None:
    segment(tmp_path, 0)
    segment(tmp_path, 0, ".cleaned", kinds=("log",))
    segment(tmp_path, 50, ".swap", kinds=("log",))

    clear_leftovers(tmp_path)

    assert files(tmp_path) == each(KINDS, 0)


def test_indexes_without_their_log_go(tmp_path: Path) -> None:
    segment(tmp_path, 0)
    segment(tmp_path, 7, kinds=("index", "timeindex", "txnindex", "snapshot"))

    assert len(clear_leftovers(tmp_path)) == 3
    assert files(tmp_path) == {"snapshot": {0, 7}} | each(KINDS[:4], 0)


def test_nothing_goes_for_a_broken_swap(tmp_path: Path) -> None:
    segment(tmp_path, 0)
    segment(tmp_path, 0, ".swap", b"broken", kinds=("log",))

    with pytest.raises(CorruptRecordError, match=r"log\.swap"):
        clear_leftovers(tmp_path)

    assert files(tmp_path) == {"log.swap": {0}} | each(KINDS, 0)
