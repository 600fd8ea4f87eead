"""Ranges of segments, whole segments with their checksums, and derived indexes that are kept."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.native_tier import NativeTier, a_native_tier
from support.remote_logs import flip_bit
from support.waiting import wait_for
from tiered_storage.errors import ConfigurationError, RemoteObjectCorruptError, RemoteObjectNotFoundError
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.native import read_only_storage
from tiered_storage.remote_log.native.derived_indexes import derive_indexes
from tiered_storage.remote_log.native.local_tiered_storage import LocalTieredFiles
from tiered_storage.remote_log.native.read_only_storage import NativeRemoteStorage
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind, LogSegmentData

WAIT_SECONDS = 30
TRIO = (IndexKind.REMOTE_LOG_INDEX, IndexKind.REMOTE_OFFSET_INDEX, IndexKind.REMOTE_TIME_INDEX)


class CountedFiles(LocalTieredFiles):
    """Files of LocalTieredStorage, and how often a log was opened."""

    reads = 0

    def read_log(self, segment: RemoteLogSegmentMetadata, start: int, end: int) -> Iterator[bytes]:
        self.reads += 1
        return super().read_log(segment, start, end)


@pytest.fixture
def tier(tmp_path: Path) -> NativeTier:
    return a_native_tier(tmp_path)


def opened(tier: NativeTier, kept_bytes: int = 1 << 20) -> tuple[NativeRemoteStorage, CountedFiles]:
    files = CountedFiles(LocalDirectory(tier.remote))
    return NativeRemoteStorage(files, kept_bytes), files


def test_a_range_is_what_the_file_has(tier: NativeTier) -> None:
    segment, (storage, _) = tier.segments[1], opened(tier)
    content = tier.object_of(segment).read_bytes()

    assert b"".join(storage.fetch_log_segment(segment)) == content
    assert b"".join(storage.fetch_log_segment(segment, 7, 20)) == content[7:21]
    for start, end in ((-1, 5), (5, 4), (0, segment.size), (segment.size, None)):
        with pytest.raises(ValueError, match="are not in it"):
            list(storage.fetch_log_segment(segment, start, end))


def test_the_last_bytes_of_a_damaged_segment_never_come(tier: NativeTier) -> None:
    segment, (storage, _) = tier.segments[1], opened(tier)
    flip_bit(tier.object_of(segment), segment.size - 3)

    received: list[bytes] = []
    with pytest.raises(RemoteObjectCorruptError):
        received.extend(storage.fetch_log_segment(segment))
    assert sum(map(len, received)) < segment.size


def test_an_index_is_kafkas_or_derived(tier: NativeTier) -> None:
    segment, (storage, _) = tier.segments[0], opened(tier)

    assert storage.fetch_index(segment, IndexKind.OFFSET) == tier.object_of(segment, "index").read_bytes()
    assert all(storage.fetch_index(segment, kind) for kind in (*TRIO, IndexKind.MANIFEST))
    with pytest.raises(RemoteObjectNotFoundError):
        storage.fetch_index(segment, IndexKind.TRANSACTION)


def test_derived_indexes_are_kept_up_to_their_bytes(tier: NativeTier) -> None:
    storage, files = opened(tier, kept_bytes=1)
    for segment in tier.segments[:2]:
        for kind in TRIO:
            storage.fetch_index(segment, kind)
    of_each_once = files.reads

    storage.fetch_index(tier.segments[1], IndexKind.REMOTE_LOG_INDEX)
    assert files.reads == of_each_once

    storage.fetch_index(tier.segments[0], IndexKind.REMOTE_LOG_INDEX)
    assert files.reads > of_each_once


def test_a_segment_that_brokers_deleted_never_reads_as_nothing_aborted(tier: NativeTier) -> None:
    """The core asks for the trio if there is no transaction index: then the segment is there, and has no aborts."""
    segment, (storage, _) = tier.segments[0], opened(tier)
    storage.fetch_index(segment, IndexKind.REMOTE_LOG_INDEX)
    for path in tier.remote.rglob(f"*{segment.segment_id.id}*"):
        path.unlink()

    for kind in (IndexKind.TRANSACTION, IndexKind.REMOTE_LOG_INDEX):
        with pytest.raises(RemoteObjectNotFoundError):
            storage.fetch_index(segment, kind)


def test_of_two_readers_one_derives_the_indexes(tier: NativeTier, monkeypatch: pytest.MonkeyPatch) -> None:
    segment, (storage, _) = tier.segments[0], opened(tier)
    derived: list[int] = []
    is_deriving, may_end = threading.Event(), threading.Event()

    def derive(*asked: Any) -> Mapping[IndexKind, bytes]:
        derived.append(len(derived))
        is_deriving.set()
        assert may_end.wait(WAIT_SECONDS)
        return derive_indexes(*asked)

    monkeypatch.setattr(read_only_storage, "derive_indexes", derive)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(storage.fetch_index, segment, IndexKind.REMOTE_LOG_INDEX)
        assert is_deriving.wait(WAIT_SECONDS)
        second = pool.submit(storage.fetch_index, segment, IndexKind.REMOTE_LOG_INDEX)
        wait_for(second.running, lambda: "the second reader did not begin", WAIT_SECONDS)
        may_end.set()
        assert first.result() == second.result()
    assert derived == [0]


def test_nothing_is_written(tier: NativeTier) -> None:
    segment, (storage, _) = tier.segments[0], opened(tier)
    data = LogSegmentData(1, iter([memoryview(b"x")]), dict)

    with pytest.raises(ConfigurationError):
        storage.copy_log_segment_data(segment, data)
    with pytest.raises(ConfigurationError):
        storage.delete_log_segment_data(segment)
    assert tier.object_of(segment).stat().st_size == segment.size
