from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.remote_logs import NOW, a_remote_log, flip_bit, record
from tiered_storage.errors import CorruptRecordError
from tiered_storage.kafka_log.files.log_segment import LogSegment
from tiered_storage.remote_log.source.log_directory_segment import LogDirectorySegment
from tiered_storage.remote_log.source.segment_source import is_older_than, largest_timestamp

LARGEST = record(9).timestamp


@pytest.fixture
def segment(tmp_path: Path) -> LogSegment:
    return a_remote_log(tmp_path).local_segments()[0]


def test_the_largest_timestamp_is_that_of_the_records_whatever_the_file_says(segment: LogSegment) -> None:
    for moment in (1, NOW * 10):
        os.utime(segment.log_path, (moment / 1000, moment / 1000))
        assert largest_timestamp(LogDirectorySegment(segment)) == LARGEST


@pytest.mark.parametrize("index", ["whole", "missing", "broken", "empty", "too early"])
def test_a_segment_is_older_once_all_of_its_records_are(segment: LogSegment, index: str) -> None:
    path = segment.time_index_path
    if index == "missing":
        path.unlink()
    elif index != "whole":
        path.write_bytes({"broken": b"\xff" * 12, "empty": b"", "too early": path.read_bytes()[:12]}[index])

    assert not is_older_than(LogDirectorySegment(segment), LARGEST)
    assert is_older_than(LogDirectorySegment(segment), LARGEST + 1)


def test_an_index_that_reports_a_later_record_keeps_the_segment(segment: LogSegment) -> None:
    content = segment.time_index_path.read_bytes()
    segment.time_index_path.write_bytes(content[:-12] + (LARGEST + 5).to_bytes(8, "big") + content[-4:])

    assert not is_older_than(LogDirectorySegment(segment), LARGEST + 5)


def test_a_broken_segment_is_never_said_to_be_older(segment: LogSegment) -> None:
    flip_bit(segment.log_path, 100)

    with pytest.raises(CorruptRecordError):
        is_older_than(LogDirectorySegment(segment), NOW * 2)


def test_an_empty_segment_does_not_grow_old(segment: LogSegment) -> None:
    segment.log_path.write_bytes(b"")
    assert largest_timestamp(LogDirectorySegment(segment)) == -1
    assert not is_older_than(LogDirectorySegment(segment), NOW * 2)
