from __future__ import annotations

from pathlib import Path

from tiered_storage.kafka_log.files.log_segment import LogSegment, awaits_swap, list_segments, producer_snapshot_path


def test_a_segments_files_are_named_by_its_base_offset(tmp_path: Path) -> None:
    segment = LogSegment(7729, tmp_path)

    assert segment.log_path == tmp_path / "00000000000000007729.log"
    assert segment.offset_index_path == tmp_path / "00000000000000007729.index"
    assert segment.time_index_path == tmp_path / "00000000000000007729.timeindex"
    assert segment.transaction_index_path == tmp_path / "00000000000000007729.txnindex"
    assert producer_snapshot_path(tmp_path, 15363) == tmp_path / "00000000000000015363.snapshot"


def test_a_segment_says_which_of_its_files_exist_and_how_large_its_log_is(tmp_path: Path) -> None:
    segment = LogSegment(0, tmp_path)
    segment.log_path.write_bytes(bytes(100))
    segment.offset_index_path.touch()

    assert segment.size() == 100
    assert not segment.has_indexes()
    segment.time_index_path.touch()
    assert segment.has_indexes()
    assert not segment.has_transaction_index()
    segment.transaction_index_path.touch()
    assert segment.has_transaction_index()


def test_segments_are_listed_by_base_offset_and_all_other_files_are_left_out(tmp_path: Path) -> None:
    for name in (
        "00000000000000015363.log",
        "00000000000000000000.log",
        "09223372036854775807.log",
        "09223372036854775808.log",
        "00000000000000007729.log.deleted",
        "00000000000000000100.log.cleaned",
        "00000000000000000200.log.swap",
        "00000000000000000300.index",
        "00000000000000000400.snapshot",
        "0.log",
        "\N{ARABIC-INDIC DIGIT ZERO}" * 20 + ".log",
        "leader-epoch-checkpoint",
    ):
        (tmp_path / name).touch()
    (tmp_path / "00000000000000000500.log").mkdir()

    assert list_segments(tmp_path) == [
        LogSegment(0, tmp_path),
        LogSegment(15363, tmp_path),
        LogSegment((1 << 63) - 1, tmp_path),
    ]


def test_a_segment_that_awaits_its_swap_is_no_part_of_the_log_yet(tmp_path: Path) -> None:
    assert not awaits_swap(tmp_path)
    (tmp_path / "00000000000000000000.index.swap").touch()
    assert not awaits_swap(tmp_path)
    (tmp_path / "00000000000000000000.log.swap").touch()

    assert awaits_swap(tmp_path)
    assert list_segments(tmp_path) == []
