"""The folders that a worker cuts segments in are its own for as long as it lives, and no longer."""

from __future__ import annotations

import os
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from contract.sources import log_directory_under_test
from support.remote_logs import NOW, ORDERS_0
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage.remote_log.copy.cutting import SegmentCuts
from tiered_storage.remote_log.copy.tasks import CopyOutcome, CopyTask, CutOrder
from tiered_storage.remote_log.model import Lease, RemoteLogSegmentId, RemoteLogSegmentMetadata
from tiered_storage.remote_log.source.partition_log import CutRules, LeaderFiles, SegmentLocation
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager

LINEAGE = (EpochEntry(0, 0),)


@pytest.fixture
def work_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def tasks(tmp_path: Path) -> list[CopyTask]:
    """Two tasks, which copy the first two segments of a leader that answers nothing."""
    log_directory_under_test(tmp_path)
    rules = CutRules(1000, 1 << 40, 1 << 20, 4096, 1 << 20, files=LeaderFiles(1, (tmp_path / "logs",)))
    end = list_segments(tmp_path / "logs" / str(ORDERS_0))[2].base_offset - 1
    return [
        CopyTask(
            RemoteLogSegmentMetadata(RemoteLogSegmentId(ORDERS_0, random_uuid()), 0, end, -1, NOW, 1000, LINEAGE),
            Lease(ORDERS_0, "copy", 1, NOW),
            SegmentLocation("the leader"),
            LINEAGE,
            cut=CutOrder(rules, 0, 1000),
        )
        for _ in range(2)
    ]


def cuts_of(tasks: list[CopyTask], folder: Path) -> SegmentCuts:
    storage = ObjectRemoteStorageManager(LocalDirectory(folder / "store"))
    return SegmentCuts(tasks, {"bootstrap.servers": "127.0.0.1:1"}, storage, lambda: NOW)


def test_another_worker_removes_only_the_folders_that_nobody_holds(
    tasks: list[CopyTask], work_folders: Path, tmp_path: Path
) -> None:
    killed = work_folders / "remote-log-cut-killed"
    killed.mkdir()
    left: list[Path] = []

    def copied_long(known: CopyTask) -> CopyOutcome:
        for folder in work_folders.iterdir():
            os.utime(folder, (0, 0))
        with closing(cuts_of(tasks, tmp_path)):
            left.extend(work_folders.iterdir())
        return CopyOutcome(known, None)

    with closing(cuts_of(tasks, tmp_path)) as cuts:
        outcome = cuts.copy(tasks[0], copied_long)

    assert outcome.failure is None
    assert outcome.cut is not None
    [held] = left
    assert held != killed
    assert list(work_folders.iterdir()) == []
