"""Logs of producers whose segments are copied, and a store for them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.local_logs import NOW, TOPIC_ID
from support.remote_logs import unsynced
from support.transactions import ABORT, COMMIT, data, marker
from tiered_storage.kafka_log.files.log_segment import LogSegment, list_segments
from tiered_storage.kafka_log.indexes.transaction_index import TransactionIndex
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager
from unit.tiered_storage.remote_log.copy.copied_producers import CONFIG


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of many segments, of two producers with transactions over their borders and one without any."""
    root = tmp_path_factory.mktemp("written")
    with unsynced(), LocalLog.create(root, "orders", 0, TOPIC_ID, CONFIG, clock=lambda: NOW) as log:
        for sequence in range(60):
            producer = sequence % 3
            log.append_encoded_batch(data(0, 20 + producer, sequence // 3, transactional=producer < 2))
            if sequence % 13 == 12:
                log.append_end_marker(20 + sequence % 2, 0, ABORT if sequence % 26 == 12 else COMMIT)
    return log.directory


@pytest.fixture
def directory(written: Path, tmp_path: Path) -> Path:
    return shutil.copytree(written, tmp_path / written.name)


@pytest.fixture
def aborting(directory: Path) -> LogSegment:
    """A segment with an abort marker whose transaction began in an earlier one."""
    *_, segment = (segment for segment in list_segments(directory) if segment.has_transaction_index())
    [entry] = TransactionIndex.read(segment.transaction_index_path, segment.base_offset).transactions
    assert entry.first_offset < segment.base_offset
    return segment


@pytest.fixture
def storage(tmp_path: Path) -> ObjectRemoteStorageManager:
    return ObjectRemoteStorageManager(LocalDirectory(tmp_path / "store"))


@pytest.fixture
def followed(tmp_path: Path) -> LogSegment:
    """The first segment of a replica that began at offset 100: the end of something before it, and a whole abort."""
    with unsynced(), LocalLog.create(tmp_path, "orders", 0, TOPIC_ID, CONFIG, base_offset=100) as log:
        log.append_as_follower(
            data(100)
            + marker(101, 7, ABORT)
            + data(102, 8, 0, transactional=True)
            + data(103, 9, 0, transactional=True)
            + marker(104, 8, COMMIT)
        )
        log.roll()
        log.append_as_follower(marker(105, 9, ABORT))
    return LogSegment(100, log.directory)
