from __future__ import annotations

from pathlib import Path

import pytest

from support.remote_logs import BATCH_BYTES, a_remote_log, records
from tiered_storage.errors import CorruptRecordError
from tiered_storage.kafka_log.files.log_segment import LogSegment
from tiered_storage.kafka_log.records.record_batch import encode_batch
from tiered_storage.remote_log.source.log_directory_segment import LocalSegmentReader, below


@pytest.fixture
def segments(tmp_path: Path) -> list[LogSegment]:
    return a_remote_log(tmp_path).local_segments()


@pytest.mark.parametrize(("offset", "position"), [(10, 0), (14, 0), (15, BATCH_BYTES), (19, BATCH_BYTES)])
def test_reading_begins_with_the_batch_that_an_offset_is_in(
    segments: list[LogSegment], offset: int, position: int
) -> None:
    written = segments[1].log_path.read_bytes()

    assert LocalSegmentReader().read(segments[1], offset) == (written[position:], position)


def test_behind_the_end_there_is_nothing(segments: list[LogSegment]) -> None:
    assert LocalSegmentReader().read(segments[1], 20) is None


def test_one_reader_goes_from_segment_to_segment(segments: list[LogSegment]) -> None:
    reader = LocalSegmentReader()

    found = [reader.read(segment, segment.base_offset + 5) for segment in (*segments[:3], *segments[:3])]

    assert [each is not None and each[1] for each in found] == [BATCH_BYTES] * 6


def test_a_segment_that_is_gone_or_broken_is_an_error(segments: list[LogSegment]) -> None:
    segments[1].log_path.write_bytes(b"\xff" * 100)
    with pytest.raises(CorruptRecordError, match=segments[1].log_path.name):
        LocalSegmentReader().read(segments[1], 10)

    segments[1].log_path.unlink()
    with pytest.raises(FileNotFoundError):
        LocalSegmentReader().read(segments[1], 10)


def test_batches_are_cut_off_where_an_offset_is_reached() -> None:
    batches = [encode_batch(records(base, base + 5)) for base in (0, 5, 10)]
    content = b"".join(batches)

    assert below(content, 15, "orders-0", 0) == below(content, 11, "orders-0", 0) == content
    assert below(content, 10, "orders-0", 0) == below(content, 6, "orders-0", 0) == content[: 2 * BATCH_BYTES]
    assert below(content, 0, "orders-0", 0) == b""
    assert below(b"", 5, "orders-0", 0) == b""
