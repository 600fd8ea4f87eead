"""The contract of SegmentSource, OpenSegment and LocalTrim, checked with every kind of source."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from contract.sources import SOURCES, SourceUnderTest
from servers.real_kafka import RealKafka
from tiered_storage.errors import InvalidLogDirectoryError
from tiered_storage.kafka_log.indexes.index_check import OffsetIndexCheck, TimeIndexCheck
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.kafka_log.producers.producer_history import ProducerHistory
from tiered_storage.kafka_log.records.batch_header import BatchHeader, read_batch_header
from tiered_storage.kafka_log.records.record_batch import read_records
from tiered_storage.remote_log.source.opening import open_segment
from tiered_storage.remote_log.source.partition_log import (
    NamedPartition,
    PartitionLog,
    SegmentLocation,
    name_of,
)
from tiered_storage.remote_log.source.segment_source import OpenSegment, first_timestamp


@contextmanager
def opened_site(request: pytest.FixtureRequest, root: Path) -> Iterator[SourceUnderTest]:
    def real_kafka() -> RealKafka:
        kafka: RealKafka = request.getfixturevalue("real_kafka")
        return kafka

    site = SOURCES[request.param](root, real_kafka)
    with closing(site.source):
        yield site


@pytest.fixture(scope="module", params=SOURCES)
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SourceUnderTest]:
    """A log of the same kind in each kind of source, for tests that only read it."""
    with opened_site(request, tmp_path_factory.mktemp("shared")) as site:
        yield site


@pytest.fixture(params=SOURCES)
def own_site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SourceUnderTest]:
    """The same for one test, which may change the log."""
    with opened_site(request, tmp_path) as site:
        yield site


def look(site: SourceUnderTest) -> PartitionLog:
    log = site.source.partition(site.partition)
    assert log is not None
    return comparable(log)


def comparable(log: PartitionLog) -> PartitionLog:
    """Return `log` without what asks the cluster: two looks have functions of their own."""
    return replace(log, unsegmented=None)


def opened(site: SourceUnderTest) -> list[OpenSegment]:
    return [open_segment(segment.location) for segment in site.segments()]


def batches(content: bytes) -> list[BatchHeader]:
    found, position = [], 0
    while position < len(content):
        found.append(read_batch_header(content, position))
        position += found[-1].size
    return found


def batches_of(segment: OpenSegment) -> list[BatchHeader]:
    return batches(b"".join(bytes(window) for window, _ in segment.windows()))


def test_every_listing_finds_the_partition(site: SourceUnderTest) -> None:
    # A cluster has other partitions too.
    asked = site.partition.topic, site.partition.partition
    [log] = [one for one in site.source.partitions() if name_of(one) == asked]
    [named] = [one for one in site.source.names() if name_of(one) == asked]
    assert isinstance(log, PartitionLog)
    assert isinstance(named, NamedPartition)
    assert site.source.is_configured
    assert comparable(log) == look(site)
    assert log.topic_id_partition == named.topic_id_partition == site.partition
    assert name_of(log) == name_of(named) == (site.partition.topic, site.partition.partition)
    assert log.place == named.place
    assert list(site.source.named(site.partition.topic, site.partition.partition)) == [named]
    assert list(site.source.named(site.unknown.topic, site.unknown.partition)) == []
    assert list(site.source.named(site.partition.topic, site.partition.partition + 1)) == []
    assert site.source.partition(site.unknown) is None


def test_segments_are_contiguous_up_to_the_active_one(site: SourceUnderTest) -> None:
    log, segments = site.source.partition(site.partition), site.segments()
    assert log is not None
    assert len(segments) > 4
    assert not any(segment.is_active for segment in segments[:-1])
    for before, segment in pairwise(segments):
        assert before.end_offset == segment.base_offset - 1
    assert log.log_start_offset == segments[0].base_offset
    written = batches(site.content)
    assert log.last_stable_offset == log.readable_end == written[-1].next_offset
    assert sum(segment.size for segment in segments) == len(site.content)
    shown = site.source.shows_segments
    assert segments[-1].is_active == shown
    assert log.segments == (segments if shown else ())
    assert (log.unsegmented is None) == shown


def test_windows_have_every_batch_as_it_was_written(site: SourceUnderTest) -> None:
    content = b""
    for segment, known in zip(opened(site), site.segments(), strict=True):
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
    for segment in site.segments():
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
        assert first_timestamp(segment) == next(iter(read_records(first))).timestamp


def test_aborts_are_in_the_index_of_the_segment_with_the_marker(site: SourceUnderTest) -> None:
    aborts = 0
    for segment, known in zip(opened(site), site.segments(), strict=True):
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
        if segment.log_name != before.log_name:
            # What a copy fetches after a broker's own files has nothing before it.
            assert by_log.seen_from == segment.base_offset
            continue
        assert by_log.seen_from is None
        assert by_log.open_transactions == segment.producers.before().open_transactions
        assert {entry.producer_id for entry in snapshot} == {entry.producer_id for entry in by_log.producers}
    assert segments[0].producer_snapshot(segments[1].base_offset + 1).read() is None


def test_readers_share_known_producers(site: SourceUnderTest) -> None:
    history = ProducerHistory()
    first, second, *_ = site.segments()
    known = open_segment(second.location).producers.by_log()
    open_segment(first.location, history).producers.remember(known)
    assert open_segment(second.location, history).producers.before() is known


def test_siblings_are_all_segments_of_the_log(site: SourceUnderTest) -> None:
    offsets = [segment.base_offset for segment in site.segments()]
    for segment in opened(site):
        siblings = segment.siblings()
        found = [one.base_offset for one in siblings]
        # A copy fetches what a broker still writes to into a log of its own.
        assert found in (offsets, offsets[-1:])
        assert segment.base_offset in found
        assert [one.is_active for one in siblings] == [*(False for _ in found[1:]), True]
        assert str(site.partition) in segment.log_name
        if site.source.shows_segments:
            assert tuple(siblings) == site.segments()
            assert segment.log_name == look(site).place


def test_the_state_of_a_segment_changes_with_its_batches(own_site: SourceUnderTest) -> None:
    *closed, last = opened(own_site)
    states = [segment.state() for segment in closed]
    before, size, end = last.state(), last.size(), look(own_site).readable_end
    assert last.state() == before
    own_site.append()
    assert [segment.state() for segment in closed] == states
    assert look(own_site).readable_end > end
    # What a copy rolled is closed.
    grows = own_site.source.shows_segments
    assert (last.state() != before) == grows
    assert (last.size() > size) == grows
    assert len({*states, before}) == len(states) + 1


def test_a_trim_removes_the_oldest_segments_and_their_indexes(own_site: SourceUnderTest) -> None:
    first, second, third, *rest = own_site.segments()
    gone = open_segment(first.location)
    trim = own_site.source.local_trim
    trim.ensure_removable([first, second])
    assert gone.exists()

    for _ in range(2):
        assert trim.trim(own_site.partition, [first, second], third.base_offset) == third.base_offset
        assert look(own_site).log_start_offset == third.base_offset
    assert look(own_site).readable_end == batches(own_site.content)[-1].next_offset
    if not own_site.source.shows_segments:
        # Brokers delete their files later, and a copy's own files are not the log's.
        return
    assert list(own_site.segments()) == [third, *rest]
    assert not gone.exists()
    for beside in (gone.offset_index, gone.time_index, gone.transaction_index):
        assert beside.read() is None
    for read in (gone.state, gone.size, gone.crc32c, gone.head, lambda: list(gone.windows())):
        with pytest.raises(FileNotFoundError):
            read()


def test_a_trim_asks_for_the_start_under_the_lock(own_site: SourceUnderTest) -> None:
    first, second, third, *_ = own_site.segments()
    seen: list[PartitionLog] = []

    def still_due() -> int:
        log = own_site.source.while_trimming(first).partition(own_site.partition)
        assert log is not None
        seen.append(comparable(log))
        return second.base_offset

    before = look(own_site)
    assert own_site.source.local_trim.trim(own_site.partition, [first, second], third.base_offset, still_due) == (
        second.base_offset
    )
    assert seen == [before]
    assert look(own_site).log_start_offset == second.base_offset


def test_nothing_is_deleted_where_a_trim_is_refused(own_site: SourceUnderTest) -> None:
    log, segments = look(own_site), own_site.segments()

    def refused() -> int:
        raise InvalidLogDirectoryError("not any more")

    with pytest.raises(InvalidLogDirectoryError, match="not any more"):
        own_site.source.local_trim.trim(own_site.partition, segments[:1], segments[1].base_offset, refused)
    assert look(own_site) == log
    if own_site.source.shows_segments:
        with pytest.raises(InvalidLogDirectoryError):
            own_site.source.local_trim.trim(own_site.partition, segments[1:2], segments[2].base_offset)
        assert look(own_site) == log
