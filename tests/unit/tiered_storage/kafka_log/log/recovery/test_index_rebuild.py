from __future__ import annotations

from pathlib import Path

import pytest

from support.local_logs import NOW, TOPIC_ID
from support.transactions import ABORT, COMMIT, data
from tiered_storage.errors import CorruptRecordError, InvalidLogDirectoryError
from tiered_storage.kafka_log.files.log_segment import LogSegment, producer_snapshot_path
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.recovery.index_rebuild import RebuiltIndexes, rebuild_indexes

CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=150)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log of many segments with transactions that are aborted in later segments than they begin in."""
    with LocalLog.create(tmp_path, "orders", 0, TOPIC_ID, CONFIG, clock=lambda: NOW) as log:
        for sequence in range(60):
            producer = sequence % 3
            log.append_encoded_batch(data(0, 20 + producer, sequence // 3, transactional=producer < 2))
            if sequence % 13 == 12:
                log.append_end_marker(20 + sequence % 2, 0, ABORT if sequence % 26 == 12 else COMMIT)
    return log.directory


def segments(directory: Path) -> list[LogSegment]:
    return [LogSegment(int(path.stem), directory) for path in sorted(directory.glob("*.log"))]


def files_of(segment: LogSegment, end: int) -> tuple[bytes, ...]:
    paths = (*segment.index_paths, producer_snapshot_path(segment.directory, end))
    return tuple(path.read_bytes() if path.exists() else b"" for path in paths)


def rebuilt(segment: LogSegment, *, from_snapshots: bool = True) -> RebuiltIndexes:
    return rebuild_indexes(segment, index_interval_bytes=150, from_snapshots=from_snapshots)


@pytest.mark.parametrize("from_snapshots", [True, False])
def test_rebuilt_indexes_equal_the_written_ones(directory: Path, from_snapshots: bool) -> None:
    aborts = 0
    for segment in segments(directory):
        found = rebuilt(segment, from_snapshots=from_snapshots)
        assert (
            found.offset_index,
            found.time_index,
            found.transaction_index,
            found.producer_snapshot,
        ) == files_of(segment, found.end_offset)
        aborts += len(found.transaction_index) // 34
    assert aborts == 2
    assert len(segments(directory)) > 5


def test_rebuilt_files_take_the_place_of_lost_and_broken_ones(directory: Path) -> None:
    for segment in segments(directory):
        end = rebuilt(segment).end_offset
        before = files_of(segment, end)
        segment.offset_index_path.unlink()
        segment.time_index_path.write_bytes(b"nonsense")
        segment.transaction_index_path.write_bytes(b"nonsense")
        producer_snapshot_path(directory, end).unlink()

        rebuilt(segment).write(segment)

        assert files_of(segment, end) == before
        assert segment.has_transaction_index() == bool(before[2])


def test_a_broken_snapshot_before_the_segment_is_passed_over(directory: Path) -> None:
    segment = segments(directory)[3]
    before = rebuilt(segment)
    producer_snapshot_path(directory, segment.base_offset).write_bytes(b"broken")

    assert rebuilt(segment) == before


def test_a_segment_that_is_not_there_or_not_whole_is_refused(directory: Path) -> None:
    with pytest.raises(InvalidLogDirectoryError, match=r"00000000000000000001\.log is missing"):
        rebuild_indexes(LogSegment(1, directory))
    segment = segments(directory)[1]
    segment.log_path.write_bytes(segment.log_path.read_bytes()[:-1])
    with pytest.raises(CorruptRecordError):
        rebuild_indexes(segment)
