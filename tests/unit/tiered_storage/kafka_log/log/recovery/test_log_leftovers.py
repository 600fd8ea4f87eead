from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from support.transactions import data
from tiered_storage.errors import CorruptRecordError
from tiered_storage.kafka_log.log.recovery.log_leftovers import clear_leftovers

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


def test_deleted_and_unfinished_files_are_deleted(tmp_path: Path) -> None:
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


def test_temporary_files_are_removed(tmp_path: Path) -> None:
    segment(tmp_path, 0)
    kept = {path.name for path in tmp_path.iterdir()} | {"notes.tmp"}
    mine = {"leader-epoch-checkpoint.tmp", "partition.metadata.tmp", *(f"{0:020d}.{kind}.tmp" for kind in KINDS)}
    for name in (*mine, "notes.tmp"):
        (tmp_path / name).write_bytes(b"half of it")

    assert set(clear_leftovers(tmp_path)) == mine
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_a_segment_of_which_nothing_but_the_swap_is_left_is_swapped_in(tmp_path: Path) -> None:
    segment(tmp_path, 0, ".swap")
    segment(tmp_path, 50, ".swap")
    segment(tmp_path, 0, ".deleted")

    clear_leftovers(tmp_path)

    assert files(tmp_path) == {kind: {0, 50} for kind in KINDS}


@pytest.mark.parametrize("stop", range(1, 20))
def test_a_swap_that_is_cut_off_again_and_again_comes_to_the_same_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    """Kill the process at each change of the directory, and open it again."""
    for base in (0, 10, 20, 30):
        segment(tmp_path, base)
    parts = (data(12, count=3), data(20, count=5))
    segment(tmp_path, 10, ".swap", parts[0], kinds=("log", "index", "timeindex"))
    segment(tmp_path, 20, ".swap", parts[1], kinds=("log", "index", "timeindex"))

    class KilledError(Exception): ...

    left = [stop]

    def counted(change: Callable[..., object]) -> Callable[..., object]:
        def changed(*arguments: object, **options: object) -> object:
            left[0] -= 1
            if left[0] < 0:
                raise KilledError
            return change(*arguments, **options)

        return changed

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", counted(Path.unlink))
        patched.setattr(Path, "replace", counted(Path.replace))
        with contextlib.suppress(KilledError):
            clear_leftovers(tmp_path)
    clear_leftovers(tmp_path)

    assert {path.name for path in tmp_path.glob("*.log")} == {f"{base:020d}.log" for base in (0, 10, 20, 30)}
    assert [(tmp_path / f"{base:020d}.log").read_bytes() for base in (10, 20)] == list(parts)
    assert not list(tmp_path.glob("*.swap"))


def test_nothing_is_deleted_for_a_swap_whose_checksum_is_wrong(tmp_path: Path) -> None:
    segment(tmp_path, 0)
    batch = data(0)
    segment(tmp_path, 0, ".swap", batch[:-1] + bytes([batch[-1] ^ 1]), kinds=("log",))

    with pytest.raises(CorruptRecordError, match=r"log\.swap: .*CRC"):
        clear_leftovers(tmp_path)

    assert files(tmp_path) == {"log.swap": {0}} | each(KINDS, 0)


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


def test_a_swap_of_which_the_segment_was_renamed_already_continues(tmp_path: Path) -> None:
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


def test_indexes_without_their_log_are_removed(tmp_path: Path) -> None:
    segment(tmp_path, 0)
    segment(tmp_path, 7, kinds=("index", "timeindex", "txnindex", "snapshot"))

    assert len(clear_leftovers(tmp_path)) == 3
    assert files(tmp_path) == {"snapshot": {0, 7}} | each(KINDS[:4], 0)


def test_nothing_is_deleted_for_a_broken_swap(tmp_path: Path) -> None:
    segment(tmp_path, 0)
    segment(tmp_path, 0, ".swap", b"broken", kinds=("log",))

    with pytest.raises(CorruptRecordError, match=r"log\.swap"):
        clear_leftovers(tmp_path)

    assert files(tmp_path) == {"log.swap": {0}} | each(KINDS, 0)


@pytest.mark.parametrize("batches", [b"", data(0), data(0) + data(1)])
def test_no_index_of_a_segment_outlives_its_swap(tmp_path: Path, batches: bytes) -> None:
    """Compaction may leave an empty segment in its place, whose offsets cover nothing."""
    segment(tmp_path, 0)
    segment(tmp_path, 10)
    for kind in ("log", "index", "timeindex"):
        (tmp_path / f"{0:020d}.{kind}.swap").write_bytes(batches if kind == "log" else b"new")

    clear_leftovers(tmp_path)

    assert (tmp_path / f"{0:020d}.log").read_bytes() == batches
    assert (tmp_path / f"{0:020d}.index").read_bytes() == b"new"
    assert files(tmp_path)["txnindex"] == {10}
    assert files(tmp_path)["log"] == {0, 10}


def test_a_large_swap_takes_little_memory(tmp_path: Path) -> None:
    batch, count = np.frombuffer(data(0), np.uint8), 300_000
    batches = np.tile(batch, (count, 1))
    batches[:, :8] = np.arange(count, dtype=">i8").view(np.uint8).reshape(count, 8)
    batches.tofile(tmp_path / f"{0:020d}.log.swap")
    for base in (count - 1, count):
        segment(tmp_path, base)

    tracemalloc.start()
    try:
        clear_leftovers(tmp_path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert files(tmp_path)["log"] == {0, count}
    assert peak < 20 << 20
