from __future__ import annotations

from pathlib import Path

import pytest

from support.remote_logs import BATCH_BYTES, a_remote_log
from tiered_storage.errors import CorruptRecordError
from tiered_storage.kafka_log.files.log_segment import LogSegment
from tiered_storage.remote_log.source.log_directory_segment import LogDirectorySegment


@pytest.fixture
def segments(tmp_path: Path) -> list[LogSegment]:
    return a_remote_log(tmp_path).local_segments()


@pytest.mark.parametrize(("offset", "position"), [(10, 0), (14, 0), (15, BATCH_BYTES), (19, BATCH_BYTES)])
def test_reading_begins_with_the_batch_that_an_offset_is_in(
    segments: list[LogSegment], offset: int, position: int
) -> None:
    written = segments[1].log_path.read_bytes()

    assert LogDirectorySegment(segments[1]).read(offset) == (written[position:], position)


def test_after_the_end_there_is_nothing(segments: list[LogSegment]) -> None:
    assert LogDirectorySegment(segments[1]).read(20) is None


def test_a_segment_that_is_gone_or_broken_is_an_error(segments: list[LogSegment]) -> None:
    segments[1].log_path.write_bytes(b"\xff" * 100)
    with pytest.raises(CorruptRecordError, match=segments[1].log_path.name):
        LogDirectorySegment(segments[1]).read(10)

    segments[1].log_path.unlink()
    with pytest.raises(FileNotFoundError):
        LogDirectorySegment(segments[1]).read(10)
