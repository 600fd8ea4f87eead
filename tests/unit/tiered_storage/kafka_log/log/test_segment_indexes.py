"""Missing, broken or wrong indexes of closed segments are detected, rebuilt and reported."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from support.transactions import ABORT, TIME, data, marker
from tiered_storage.errors import CorruptRecordError
from tiered_storage.kafka_log.files.log_segment import LogSegment, RecoveryEvent
from tiered_storage.kafka_log.log.recovery.index_rebuild import rebuild_indexes
from tiered_storage.kafka_log.log.segment_indexes import SegmentIndexes

SIZE = len(data(10, 1, 0))
POSITIONS = [0, SIZE, 2 * SIZE, 3 * SIZE]
ENTRY, TIME_ENTRY = struct.Struct(">ii"), struct.Struct(">qi")


class Closed:
    """A closed segment: `count` batches from offset 10 on and the abort of a transaction; its recovery events."""

    def __init__(self, directory: Path, count: int = 4) -> None:
        self.segment = LogSegment(10, directory)
        batches = [data(10 + i, 1, i, timestamp=TIME + i % 3, transactional=True) for i in range(count)]
        self.segment.log_path.write_bytes(b"".join(batches) + marker(10 + count, 1, ABORT, timestamp=TIME))
        rebuild_indexes(self.segment, index_interval_bytes=0).write_indexes(self.segment)
        self.before = self.contents()
        self.events: list[RecoveryEvent] = []
        self.indexes = SegmentIndexes(0, self.events.append)

    def contents(self) -> list[bytes]:
        return [path.read_bytes() for path in self.segment.index_paths]

    def positions(self) -> list[int]:
        return [self.indexes.position(self.segment, offset) for offset in range(10, 14)]

    def break_log(self) -> None:
        """Flip a bit of the last data batch."""
        content = bytearray(self.segment.log_path.read_bytes())
        content[4 * SIZE - 1] ^= 1
        self.segment.log_path.write_bytes(content)


@pytest.fixture
def closed(tmp_path: Path) -> Closed:
    return Closed(tmp_path)


def test_sound_indexes_are_read_and_nothing_is_reported(closed: Closed) -> None:
    for _ in range(2):
        assert closed.positions() == POSITIONS
        assert closed.indexes.latest_timestamp(closed.segment) == TIME + 2
        assert closed.indexes.confirmed_latest_timestamp(closed.segment) == TIME + 2
        assert len(closed.indexes.transaction_index(closed.segment).transactions) == 1
        closed.indexes.forget()
    assert (closed.contents(), closed.events) == (closed.before, [])


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"torn",
        b"\xff" * 16,
        ENTRY.pack(1, 2 * SIZE),  # leads past offset 11
        ENTRY.pack(0, SIZE) + ENTRY.pack(1, 2 * SIZE),
        ENTRY.pack(1, SIZE + 1),  # between two batches
        ENTRY.pack(1, 1 << 30),  # after the end of the log
        ENTRY.pack(1, SIZE) + ENTRY.pack(2, 3 * SIZE) + ENTRY.pack(3, 3 * SIZE + 1),
    ],
)
def test_an_offset_index_that_would_hide_records_is_rebuilt(closed: Closed, content: bytes | None) -> None:
    path = closed.segment.offset_index_path
    path.unlink()
    if content is not None:
        path.write_bytes(content)

    positions = closed.positions()

    assert all(found <= right for found, right in zip(positions, POSITIONS, strict=True))
    assert positions[1:] == POSITIONS[1:]
    assert [event.path for event in closed.events] == [path]
    assert closed.contents() == closed.before


def test_an_offset_index_that_is_only_sparser_stays(closed: Closed) -> None:
    sparser = ENTRY.pack(2, SIZE)
    closed.segment.offset_index_path.write_bytes(sparser)

    assert closed.positions() == [0, 0, SIZE, SIZE]
    assert (closed.events, closed.segment.offset_index_path.read_bytes()) == ([], sparser)


@pytest.mark.parametrize("content", [b"", bytes(80), ENTRY.pack(1, SIZE)])
def test_an_offset_index_that_ends_too_early_is_rebuilt(tmp_path: Path, content: bytes) -> None:
    """As long as it is empty, each read begins at the start of the segment."""
    closed = Closed(tmp_path, count=40)
    path = closed.segment.offset_index_path
    path.write_bytes(content)

    assert closed.indexes.position(closed.segment, 12) == 2 * SIZE
    assert closed.indexes.position(closed.segment, 49) == 39 * SIZE

    assert [event.path for event in closed.events] == [path]
    assert "ends too early" in closed.events[0].fault
    assert closed.contents() == closed.before


@pytest.mark.parametrize(("interval", "positions"), [(3 * SIZE, []), (10 * SIZE, [11, 22]), (10 * SIZE, [11, 22, 33])])
def test_an_offset_index_of_another_interval_stays(tmp_path: Path, interval: int, positions: list[int]) -> None:
    closed = Closed(tmp_path, count=40 if positions else 4)
    content = b"".join(ENTRY.pack(i, i * SIZE) for i in positions)
    closed.segment.offset_index_path.write_bytes(content)
    events: list[RecoveryEvent] = []

    SegmentIndexes(interval, events.append).position(closed.segment, 13)

    assert (events, closed.segment.offset_index_path.read_bytes()) == ([], content)


def test_one_large_batch_needs_no_entry(tmp_path: Path) -> None:
    segment = LogSegment(0, tmp_path)
    segment.log_path.write_bytes(data(0, count=200))
    segment.offset_index_path.touch()
    events: list[RecoveryEvent] = []

    assert SegmentIndexes(8, events.append).position(segment, 150) == 0
    assert events == []


def test_an_index_that_ends_too_early_stays_where_the_log_is_broken(tmp_path: Path) -> None:
    closed = Closed(tmp_path, count=40)
    content = bytearray(closed.segment.log_path.read_bytes())
    content[20 * SIZE - 1] ^= 1
    closed.segment.log_path.write_bytes(content)
    early = ENTRY.pack(1, SIZE)
    closed.segment.offset_index_path.write_bytes(early)

    for _ in range(2):
        assert closed.indexes.position(closed.segment, 49) == SIZE
        assert closed.indexes.position(closed.segment, 10) == 0
    assert (closed.events, closed.segment.offset_index_path.read_bytes()) == ([], early)


def test_positions_before_a_break_are_found_without_an_index(closed: Closed) -> None:
    closed.segment.offset_index_path.unlink()
    closed.break_log()

    for _ in range(2):
        assert [closed.indexes.position(closed.segment, offset) for offset in range(10, 13)] == POSITIONS[:3]
        with pytest.raises(CorruptRecordError, match=f"at byte {3 * SIZE}: .*CRC"):
            closed.indexes.position(closed.segment, 13)
    assert (closed.events, closed.segment.offset_index_path.exists()) == ([], False)


def test_a_sound_index_leads_past_what_is_broken_in_the_log(closed: Closed) -> None:
    content = bytearray(closed.segment.log_path.read_bytes())
    content[SIZE] ^= 1
    closed.segment.log_path.write_bytes(content)

    assert [closed.indexes.position(closed.segment, offset) for offset in (10, 12, 13)] == [0, 2 * SIZE, 3 * SIZE]
    with pytest.raises(CorruptRecordError):
        closed.indexes.position(closed.segment, 11)
    assert (closed.contents(), closed.events) == (closed.before, [])


@pytest.mark.parametrize(
    "content",
    [None, b"", b"torn", b"\xff" * 12, TIME_ENTRY.pack(TIME + 2, 1) + TIME_ENTRY.pack(TIME, 2)],
)
def test_a_time_index_that_cannot_be_read_is_rebuilt(closed: Closed, content: bytes | None) -> None:
    path = closed.segment.time_index_path
    path.unlink()
    if content is not None:
        path.write_bytes(content)

    assert closed.indexes.latest_timestamp(closed.segment) == TIME + 2
    assert closed.indexes.confirmed_latest_timestamp(closed.segment) == TIME + 2

    assert [event.path for event in closed.events] == [path]
    assert closed.contents() == closed.before


def test_no_timestamp_is_guessed_if_index_and_log_are_broken(closed: Closed) -> None:
    closed.segment.time_index_path.unlink()
    closed.break_log()

    for _ in range(2):
        with pytest.raises(CorruptRecordError, match="CRC"):
            closed.indexes.latest_timestamp(closed.segment)
    assert not closed.segment.time_index_path.exists()
    closed.segment.time_index_path.touch()
    with pytest.raises(CorruptRecordError, match="CRC"):
        closed.indexes.latest_timestamp(closed.segment)


@pytest.mark.parametrize(("timestamp", "offset"), [(TIME + (1 << 40), 2), (TIME + 2, 3), (TIME + 2, 50)])
def test_a_time_index_whose_last_entry_is_of_no_batch_is_rebuilt(closed: Closed, timestamp: int, offset: int) -> None:
    closed.segment.time_index_path.write_bytes(TIME_ENTRY.pack(timestamp, offset))

    assert closed.indexes.latest_timestamp(closed.segment) == TIME + 2
    assert [event.path for event in closed.events] == [closed.segment.time_index_path]
    assert closed.contents() == closed.before


def test_a_time_index_is_held_against_the_batches_before_it_costs_records(closed: Closed) -> None:
    closed.segment.time_index_path.write_bytes(TIME_ENTRY.pack(TIME, 0))

    assert closed.indexes.latest_timestamp(closed.segment) == TIME
    assert closed.indexes.confirmed_latest_timestamp(closed.segment) == TIME + 2
    assert [event.path for event in closed.events] == [closed.segment.time_index_path]
    assert closed.contents() == closed.before

    closed.indexes.forget()
    closed.break_log()
    closed.segment.time_index_path.write_bytes(TIME_ENTRY.pack(TIME + 9, 0))
    assert closed.indexes.confirmed_latest_timestamp(closed.segment) == TIME + 9


def test_records_without_a_time_need_no_time_index(tmp_path: Path) -> None:
    segment = LogSegment(0, tmp_path)
    segment.log_path.write_bytes(data(0, timestamp=-1))
    segment.time_index_path.touch()
    events: list[RecoveryEvent] = []

    assert SegmentIndexes(0, events.append).latest_timestamp(segment) == -1
    assert events == []


def test_a_transaction_index_that_cannot_be_read_is_rebuilt(closed: Closed) -> None:
    path = closed.segment.transaction_index_path
    for content in (b"torn", path.read_bytes()[:-1], b"\xff" * 34):
        path.write_bytes(content)

        [aborted] = closed.indexes.transaction_index(closed.segment).transactions

        assert (aborted.producer_id, aborted.first_offset, aborted.last_offset) == (1, 10, 14)
        assert closed.events.pop().path == path
        assert closed.contents() == closed.before


def test_a_recovery_event_says_what_was_wrong_and_what_was_done(closed: Closed) -> None:
    path = closed.segment.offset_index_path
    path.write_bytes(b"torn")
    closed.positions()

    [event] = closed.events
    assert str(event).startswith(f"{path}: 4 bytes ")
    assert "rebuilt" in str(event)
