"""The contract of SegmentSource, OpenSegment and LocalTrim, checked with every kind of source."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from contract.sources import SOURCES, SourceUnderTest
from tiered_storage.errors import InvalidLogDirectoryError
from tiered_storage.kafka_log.indexes.index_check import OffsetIndexCheck, TimeIndexCheck
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.kafka_log.kernels.constants import MAGIC
from tiered_storage.kafka_log.producers.producer_history import ProducerHistory
from tiered_storage.kafka_log.records.batch_header import RecordBatch, read_batch_header
from tiered_storage.kafka_log.records.record_batch import read_records
from tiered_storage.remote_log.source.opening import open_segment
from tiered_storage.remote_log.source.partition_log import (
    LocalSegment,
    NamedPartition,
    PartitionLog,
    SegmentLocation,
    name_of,
)
from tiered_storage.remote_log.source.segment_age import first_timestamp, magic
from tiered_storage.remote_log.source.segment_source import OpenSegment


@pytest.fixture(params=SOURCES)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> SourceUnderTest:
    """The same log in each kind of source."""
    return SOURCES[request.param](tmp_path)


def look(site: SourceUnderTest) -> PartitionLog:
    log = site.source.partition(site.partition)
    assert log is not None
    return log


def opened(site: SourceUnderTest) -> list[OpenSegment]:
    return [open_segment(segment.location) for segment in look(site).segments]


def closed(site: SourceUnderTest) -> Sequence[LocalSegment]:
    return look(site).closed_segments


def batches(content: bytes) -> list[RecordBatch]:
    found, position = [], 0
    while position < len(content):
        found.append(read_batch_header(content, position))
        position += found[-1].size
    return found


def batches_of(segment: OpenSegment) -> list[RecordBatch]:
    return batches(b"".join(bytes(window) for window, _ in segment.windows()))


def test_every_listing_finds_the_partition(site: SourceUnderTest) -> None:
    [log] = site.source.partitions()
    [named] = site.source.names()
    assert isinstance(log, PartitionLog)
    assert isinstance(named, NamedPartition)
    assert site.source.is_configured
    assert log == look(site)
    assert log.topic_id_partition == named.topic_id_partition == site.partition
    assert name_of(log) == name_of(named) == (site.partition.topic, site.partition.partition)
    assert log.place == named.place
    assert list(site.source.named(site.partition.topic, site.partition.partition)) == [named]
    assert list(site.source.named(site.unknown.topic, site.unknown.partition)) == []
    assert list(site.source.named(site.partition.topic, site.partition.partition + 1)) == []
    assert site.source.partition(site.unknown) is None


def test_segments_are_contiguous_up_to_the_active_one(site: SourceUnderTest) -> None:
    log = look(site)
    *closed, active = log.segments
    assert len(closed) > 3
    assert active.is_active
    for before, segment in pairwise(log.segments):
        assert before.end_offset == segment.base_offset - 1
    assert log.log_start_offset == closed[0].base_offset
    written = batches(site.content)
    assert log.last_stable_offset == log.readable_end == written[-1].next_offset
    assert sum(segment.size for segment in log.segments) == len(site.content)


def test_windows_have_every_batch_as_it_was_written(site: SourceUnderTest) -> None:
    content = b""
    for segment, known in zip(opened(site), look(site).segments, strict=True):
        windows = [(bytes(window), table) for window, table in segment.windows(window_bytes=300)]
        whole = b"".join(window for window, _ in windows)
        assert len(windows) > 1
        assert segment.base_offset == known.base_offset
        assert segment.size() == known.size == len(whole)
        assert segment.crc32c() == crc32c(whole)
        found = batches(whole)
        assert found == [header for window, _ in windows for header in batches(window)]
        for column, values in (
            ("base_offset", [header.base_offset for header in found]),
            ("last_offset", [header.last_offset for header in found]),
            ("position", list(np.cumsum([0, *(header.size for header in found[:-1])]))),
        ):
            assert np.concatenate([getattr(table, column) for _, table in windows]).tolist() == values
        second = b"".join(bytes(window) for window, _ in segment.windows(found[0].size, verify_crc=False))
        assert second == whole[found[0].size :]
        content += whole
    assert content == site.content


def test_a_location_survives_json_and_opens_its_segment(site: SourceUnderTest) -> None:
    for segment in look(site).segments:
        carried = SegmentLocation(json.loads(json.dumps(segment.location)))
        assert open_segment(carried).crc32c() == open_segment(segment.location).crc32c()
    with pytest.raises(InvalidLogDirectoryError, match="elsewhere"):
        open_segment(SegmentLocation("elsewhere"))
    with pytest.raises(InvalidLogDirectoryError, match="nowhere"):
        open_segment(SegmentLocation("nowhere://elsewhere"))


def test_reading_begins_with_the_batch_that_an_offset_is_in(site: SourceUnderTest) -> None:
    for segment in opened(site):
        position = 0
        found = batches_of(segment)
        for header in found:
            assert 0 <= segment.position_before(header.base_offset) <= position
            read, scanned = segment.read(header.base_offset), segment.scan(header.last_offset)
            assert read is not None
            assert scanned is not None
            assert read[1] == scanned[2] == position
            assert batches(read[0])[0] == batches(scanned[0])[0] == header
            assert scanned[1].base_offset.tolist() == [each.base_offset for each in batches(scanned[0])]
            position += header.size
        assert segment.read(found[-1].next_offset) is None
        assert segment.scan(found[-1].next_offset) is None


def test_indexes_agree_with_the_batches(site: SourceUnderTest) -> None:
    for segment in opened(site):
        offsets, times = segment.offset_index.read(), segment.time_index.read()
        assert offsets is not None
        assert times is not None
        checks: list[OffsetIndexCheck | TimeIndexCheck] = [
            OffsetIndexCheck(segment.offset_index.name, offsets),
            TimeIndexCheck(segment.time_index.name, times),
        ]
        for _, table in segment.windows():
            for check in checks:
                check.feed(table)
        for check in checks:
            check.finish()


def test_a_segment_begins_with_its_first_batch(site: SourceUnderTest) -> None:
    for segment in opened(site):
        [first] = [bytes(window) for window, _ in segment.windows(window_bytes=1)][:1]
        assert magic(segment) == MAGIC
        assert first_timestamp(segment) == next(iter(read_records(first))).timestamp


def test_aborts_are_in_the_index_of_the_segment_with_the_marker(site: SourceUnderTest) -> None:
    aborts = 0
    for segment, known in zip(opened(site), look(site).segments, strict=True):
        index = segment.transaction_index.read()
        ended = [] if index is None else [entry.last_offset for entry in index.transactions]
        assert all(known.base_offset <= offset <= (known.end_offset or offset) for offset in ended)
        aborts += len(ended)
    assert aborts == 2
    assert {None} < {segment.transaction_index.read() for segment in opened(site)}


def test_the_snapshot_at_a_segment_has_the_producers_before_it(site: SourceUnderTest) -> None:
    segments = opened(site)
    for before, segment in pairwise(segments):
        snapshot = before.producer_snapshot(segment.base_offset).read()
        assert snapshot is not None
        by_log = segment.producers.by_log()
        assert by_log.end_offset == segment.base_offset
        assert by_log.seen_from is None
        assert by_log.open_transactions == segment.producers.before().open_transactions
        assert {entry.producer_id for entry in snapshot} == {entry.producer_id for entry in by_log.producers}
    assert segments[0].producer_snapshot(segments[1].base_offset + 1).read() is None


def test_readers_share_known_producers(site: SourceUnderTest) -> None:
    history = ProducerHistory()
    first, second, *_ = closed(site)
    known = open_segment(second.location).producers.by_log()
    open_segment(first.location, history).producers.remember(known)
    assert open_segment(second.location, history).producers.before() is known


def test_siblings_are_all_segments_of_the_log(site: SourceUnderTest) -> None:
    for segment in opened(site):
        assert tuple(segment.siblings()) == look(site).segments
        assert segment.log_name == look(site).place


def test_the_state_of_a_segment_changes_with_its_batches(site: SourceUnderTest) -> None:
    *closed, active = opened(site)
    states = [segment.state() for segment in closed]
    before, size = active.state(), active.size()
    assert active.state() == before
    site.append()
    assert [segment.state() for segment in closed] == states
    assert active.state() != before
    assert active.size() > size
    assert len({*states, before}) == len(states) + 1


def test_a_trim_removes_the_oldest_segments_and_their_indexes(site: SourceUnderTest) -> None:
    first, second, third, *_ = look(site).segments
    gone = open_segment(first.location)
    trim = site.source.local_trim
    trim.ensure_removable([first, second])
    assert gone.exists()

    for _ in range(2):
        assert trim.trim(site.partition, [first, second], third.base_offset) == third.base_offset
        assert look(site).segments[0] == third
        assert look(site).log_start_offset == third.base_offset
    assert not gone.exists()
    for beside in (gone.offset_index, gone.time_index, gone.transaction_index):
        assert beside.read() is None
    for read in (gone.state, gone.size, gone.crc32c, gone.head, lambda: list(gone.windows())):
        with pytest.raises(FileNotFoundError):
            read()


def test_a_trim_asks_for_the_start_under_the_lock(site: SourceUnderTest) -> None:
    first, second, third, *_ = look(site).segments
    seen: list[PartitionLog | None] = []

    def still_due() -> int:
        seen.append(site.source.while_trimming(first).partition(site.partition))
        return second.base_offset

    before = look(site)
    assert site.source.local_trim.trim(site.partition, [first, second], third.base_offset, still_due) == (
        second.base_offset
    )
    assert seen == [before]
    assert look(site).segments[0] == second


def test_nothing_is_deleted_where_a_trim_is_refused(site: SourceUnderTest) -> None:
    log = look(site)

    def refused() -> int:
        raise InvalidLogDirectoryError("not any more")

    with pytest.raises(InvalidLogDirectoryError, match="not any more"):
        site.source.local_trim.trim(site.partition, log.segments[:1], log.segments[1].base_offset, refused)
    with pytest.raises(InvalidLogDirectoryError):
        site.source.local_trim.trim(site.partition, log.segments[1:2], log.segments[2].base_offset)
    assert look(site) == log
