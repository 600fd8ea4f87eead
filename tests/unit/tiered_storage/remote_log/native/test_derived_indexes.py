"""The remote log index trio out of Kafka's own indexes, compared with the batches themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.older_formats import OLDER_LOGS
from support.native_tier import NativeTier, a_native_tier
from support.remote_logs import LOG_CONFIG, NOW, SEGMENT_BYTES, topic_id, unsynced
from tiered_storage.errors import CorruptLogError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.files.log_segment import LogSegment, list_segments
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import read_batch_header
from tiered_storage.kafka_log.records.segment_scan import scan_segment
from tiered_storage.remote_log.indexes.remote_log_index import RemoteLogIndexEntry, iterate_entries
from tiered_storage.remote_log.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition
from tiered_storage.remote_log.native.derived_indexes import derive_indexes, indexes_by_kafkas, scanned_indexes
from tiered_storage.remote_log.native.local_tiered_storage import LocalTieredFiles
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind

PARTITION = TopicIdPartition("a-cluster", topic_id("orders"), 0, "orders")


class FilesOfOneSegment(LocalTieredFiles):
    """The files of a local segment, and how many bytes of its log were read."""

    def __init__(self, segment: LogSegment) -> None:
        super().__init__(LocalDirectory(segment.directory))
        self.segment, self.bytes_read = segment, 0

    def read_log(self, segment: RemoteLogSegmentMetadata, start: int, end: int) -> Iterator[bytes]:
        del segment
        self.bytes_read += end - start
        yield self.segment.log_path.read_bytes()[start:end]

    def index(self, segment: RemoteLogSegmentMetadata, kind: IndexKind) -> bytes:
        del segment
        of_offsets = kind is IndexKind.OFFSET
        return (self.segment.offset_index_path if of_offsets else self.segment.time_index_path).read_bytes()


def a_segment(root: Path, timestamps: Sequence[Sequence[int]]) -> tuple[RemoteLogSegmentMetadata, FilesOfOneSegment]:
    """Write a closed segment below `root`, a batch for each of `timestamps`, whose records have these times."""
    config = replace(LOG_CONFIG, segment_bytes=1 << 20)
    with unsynced(), LogDirectoryWriter.create(root / "logs", "a-cluster", clock=lambda: NOW) as writer:
        log = writer.create_log("orders", 0, PARTITION.topic_id, config)
        for times in timestamps:
            log.append([Record(0, time, b"key", b"value") for time in times])
        log.roll()
        end = log.log_end_offset - 1
    segment = list_segments(root / "logs" / "orders-0")[0]
    metadata = RemoteLogSegmentMetadata(
        RemoteLogSegmentId(PARTITION, topic_id("a segment")),
        0,
        end,
        max(map(max, timestamps)),
        NOW,
        segment.size(),
        (EpochEntry(0, 0),),
    )
    return metadata, FilesOfOneSegment(segment)


@given(st.lists(st.lists(st.integers(NOW, NOW + 20), min_size=1, max_size=4), min_size=1, max_size=40))
def test_every_chunk_has_the_offsets_and_times_of_its_batches(timestamps: list[list[int]]) -> None:
    with TemporaryDirectory() as root:
        metadata, files = a_segment(Path(root), timestamps)

        found = indexes_by_kafkas(metadata, files, chunk_bytes=300)

        assert chunks(found[IndexKind.REMOTE_LOG_INDEX]) == expected_chunks(files, found)


def test_most_of_a_segment_is_not_read(tmp_path: Path) -> None:
    metadata, files = a_segment(tmp_path, [[NOW + number] for number in range(1_000)])

    found = indexes_by_kafkas(metadata, files, chunk_bytes=metadata.size // 10)

    assert 8 <= len(chunks(found[IndexKind.REMOTE_LOG_INDEX])) <= 11
    assert files.bytes_read < metadata.size / 10


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
@pytest.mark.parametrize("content", [None, b"", b"\xff" * 24, b"\0\0\0\1\0\0\0\x09" * 3])
def test_the_log_makes_up_for_a_lost_or_wrong_index(tmp_path: Path, suffix: str, content: bytes | None) -> None:
    tier = a_native_tier(tmp_path)
    metadata, files = tier.segments[0], files_of(tier)
    path = tier.object_of(metadata, suffix)
    path.unlink() if content is None else path.write_bytes(content)

    found, scanned = derive_indexes(metadata, files), scanned_indexes(metadata, files)

    assert [(first, last) for first, last, _, _ in chunks(found[IndexKind.REMOTE_LOG_INDEX])] == [(0, 9)]
    assert found[IndexKind.REMOTE_TIME_INDEX] == scanned[IndexKind.REMOTE_TIME_INDEX]


def test_an_index_of_another_log_is_noticed(tmp_path: Path) -> None:
    metadata, files = a_segment(tmp_path, [[NOW, NOW] for _ in range(50)])
    index = files.segment.offset_index_path.read_bytes()
    files.segment.offset_index_path.write_bytes(index[:-4] + (SEGMENT_BYTES // 3).to_bytes(4, "big"))

    with pytest.raises(CorruptLogError):
        indexes_by_kafkas(metadata, files, chunk_bytes=100)


def chunks(raw: bytes) -> list[tuple[int, int, int, int]]:
    """Return first and last offset, last timestamp and position of each chunk."""
    found: Iterator[RemoteLogIndexEntry] = iterate_entries(raw, "a trio")
    return [(each.first_offset, each.last_offset, each.last_timestamp, each.position) for each in found]


def expected_chunks(files: FilesOfOneSegment, found: object) -> list[tuple[int, int, int, int]]:
    """Return the same out of the batches, between the positions that `found` has."""
    assert isinstance(found, dict)
    starts = [position for *_, position in chunks(found[IndexKind.REMOTE_LOG_INDEX])]
    content, position, expected = files.segment.log_path.read_bytes(), 0, list[list[int]]()
    while position < len(content):
        header = read_batch_header(content, position)
        if position in starts:
            expected.append([header.base_offset, header.last_offset, header.max_timestamp, position])
        expected[-1][1] = header.last_offset
        expected[-1][2] = max(expected[-1][2], header.max_timestamp)
        position += header.size
    return [(first, last, latest, at) for first, last, latest, at in expected]


def files_of(tier: NativeTier) -> LocalTieredFiles:
    return LocalTieredFiles(LocalDirectory(tier.remote))


@pytest.mark.parametrize("topic", ["v0-gzip", "v1-none", "v1-lz4", "mixed"])
def test_messages_of_older_formats_are_scanned(topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    segment, following, *_ = list_segments(OLDER_LOGS.partition(topic))
    latest = int(scan_segment(segment.log_path, segment.base_offset).max_timestamp.max())
    identity = RemoteLogSegmentId(PARTITION, topic_id("a segment"))
    metadata = RemoteLogSegmentMetadata(identity, 0, following.base_offset - 1, latest, NOW, segment.size(), ())
    files = FilesOfOneSegment(segment)
    monkeypatch.setattr(FilesOfOneSegment, "reads_ranges_cheaply", lambda *_: True)

    found, expected = derive_indexes(metadata, files), scanned_indexes(metadata, files)

    trio = (IndexKind.REMOTE_LOG_INDEX, IndexKind.REMOTE_OFFSET_INDEX, IndexKind.REMOTE_TIME_INDEX)
    assert [found[kind] for kind in trio] == [expected[kind] for kind in trio]
    [chunk] = iterate_entries(found[IndexKind.REMOTE_LOG_INDEX], topic)
    assert (chunk.first_offset, chunk.last_offset) == (0, metadata.end_offset)
