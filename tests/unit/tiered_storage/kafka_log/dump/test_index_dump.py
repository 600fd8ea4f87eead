from __future__ import annotations

import struct
from pathlib import Path

import pytest

from support.records import batches_of
from tiered_storage.kafka_log.files.log_segment import LogSegment
from tiered_storage.kafka_log.log.recovery.index_rebuild import rebuild_indexes
from tiered_storage.kafka_log.records.control_record import ControlRecordType, EndTransactionMarker, encode_end_marker
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import encode_batch
from unit.tiered_storage.follower_fetches import OTHER_BEGINS_LATER, OTHER_BEGINS_LATER_INDEX
from unit.tiered_storage.kafka_log.dump.dumps import dumped, problems, rows

BASE = 100
TIME = 1_700_000_000_000


def a_segment(directory: Path) -> LogSegment:
    """A segment of ten batches and an aborted transaction, with all its indexes."""
    segment = LogSegment(BASE, directory)
    transactional = encode_batch(
        [Record(BASE + 10, TIME, None, b"aborted")],
        producer_id=9,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
    marker = EndTransactionMarker(ControlRecordType.ABORT, coordinator_epoch=0, timestamp=TIME)
    abort = encode_end_marker(marker, BASE + 11, producer_id=9, producer_epoch=0)
    segment.log_path.write_bytes(b"".join([*batches_of([1] * 10, BASE), transactional, abort]))
    rebuild_indexes(segment, index_interval_bytes=200).write(segment)
    return segment


def paths(segment: LogSegment) -> list[Path]:
    return list(segment.index_paths)


def test_entries_are_shown_as_offsets_and_positions(tmp_path: Path) -> None:
    segment = a_segment(tmp_path)
    batch = len(batches_of([1], BASE)[0])
    first, *_ = rows(dumped(segment.offset_index_path))
    assert first == {"offset": BASE + 3, "position": 3 * batch}
    assert rows(dumped(segment.time_index_path))[0] == {"timestamp": 1_700_000_000_103, "offset": BASE + 3}
    assert rows(dumped(segment.transaction_index_path)) == [
        {"version": 0, "producerId": 9, "firstOffset": 110, "lastOffset": 111, "lastStableOffset": 112}
    ]
    for path in paths(segment):
        assert problems(dumped(path)) == []


def test_an_index_that_a_follower_wrote_of_a_whole_fetch_is_sound(tmp_path: Path) -> None:
    segment = LogSegment(0, tmp_path)
    segment.log_path.write_bytes(OTHER_BEGINS_LATER)
    segment.transaction_index_path.write_bytes(OTHER_BEGINS_LATER_INDEX)

    events = dumped(segment.transaction_index_path)

    assert problems(events) == []
    assert rows(events) == [{"version": 0, "producerId": 7, "firstOffset": 0, "lastOffset": 1, "lastStableOffset": 10}]


def test_zeros_of_a_preallocated_index_are_left_out(tmp_path: Path) -> None:
    segment = a_segment(tmp_path)
    for path in (segment.offset_index_path, segment.time_index_path):
        before = dumped(path)
        with path.open("ab") as file:
            file.truncate(10 * 1024 * 1024 // 24 * 24)
        assert dumped(path) == before


def test_without_its_log_an_index_is_shown_alone(tmp_path: Path) -> None:
    segment = a_segment(tmp_path)
    before = [dumped(path) for path in paths(segment)]
    segment.log_path.unlink()
    assert [dumped(path) for path in paths(segment)] == before


@pytest.mark.parametrize("kind", range(3))
def test_a_torn_index_is_shown_up_to_the_tear(tmp_path: Path, kind: int) -> None:
    path = paths(a_segment(tmp_path))[kind]
    content, before = path.read_bytes(), rows(dumped(path))
    path.write_bytes(content + b"\1\2\3")
    events = dumped(path)
    assert rows(events) == before
    [(name, position, reason)] = problems(events)
    assert name == path.name
    assert position in (len(content), len(content) + 3)
    assert "whole number of entries" in reason


def test_an_index_that_does_not_rise_is_shown_up_to_there(tmp_path: Path) -> None:
    path = a_segment(tmp_path).offset_index_path
    content = path.read_bytes()
    path.write_bytes(content + content[:8])
    events = dumped(path)
    assert len(rows(events)) == len(content) // 8
    [(name, position, reason)] = problems(events)
    assert (name, position) == (path.name, len(content))
    assert "does not rise" in reason


@pytest.mark.parametrize(
    ("layout", "values", "kind", "reason"),
    [
        (">ii", (3, 5), 0, "no batch begins"),
        (">qi", (TIME, 3), 1, "later than"),
        (">hqqqq", (0, 8, 110, 111, 112), 2, "no marker of producer 8 "),
        (">hqqqq", (0, 9, 105, 110, 111), 2, "no marker of producer 9 "),
        (">hqqqq", (0, 9, 110, 115, 116), 2, "past the end"),
        (">ii", (90, 5000), 0, "past the end"),
        (">qi", (TIME + 200, 90), 1, "past the end"),
    ],
)
def test_an_entry_that_its_log_does_not_bear_out_is_named(
    tmp_path: Path, layout: str, values: tuple[int, ...], kind: int, reason: str
) -> None:
    path = paths(a_segment(tmp_path))[kind]
    path.write_bytes(struct.pack(layout, *values))
    [(name, position, found)] = problems(dumped(path))
    assert (name, position) == (path.name, 0)
    assert reason in found
    assert len(rows(dumped(path))) == 1


@pytest.mark.parametrize("kind", range(3))
def test_a_dump_of_an_index_names_the_broken_log(tmp_path: Path, kind: int) -> None:
    segment = a_segment(tmp_path)
    content = segment.log_path.read_bytes()
    segment.log_path.write_bytes(content[:-5])
    assert [name for name, _, _ in problems(dumped(paths(segment)[kind]))] == [segment.log_path.name]


@pytest.mark.parametrize("kind", range(3))
def test_zeros_after_the_log_are_not_the_indexes_affair(tmp_path: Path, kind: int) -> None:
    segment = a_segment(tmp_path)
    with segment.log_path.open("ab") as file:
        file.truncate(1 << 20)
    assert problems(dumped(paths(segment)[kind])) == []


def test_an_abort_whose_marker_was_compacted_away_is_no_damage(tmp_path: Path) -> None:
    segment = a_segment(tmp_path)
    content = b"".join([*batches_of([1] * 10, BASE), *batches_of([1], BASE + 20)])
    segment.log_path.write_bytes(content)
    assert problems(dumped(segment.transaction_index_path)) == []
