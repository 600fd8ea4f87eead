"""The folders that a worker cuts segments in are its own for as long as it lives, and no longer."""

from __future__ import annotations

import os
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from contract.sources import log_directory_under_test
from support.fake_cluster import FakeCluster
from support.remote_logs import NOW, ORDERS_0, a_copied_remote_log, batches_in, records, segments_of
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage.kafka_log.records.record_batch import encode_batch
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.remote_log.copy.cutting import SegmentCuts
from tiered_storage.remote_log.copy.tasks import CopyOutcome, CopyTask, CutOrder
from tiered_storage.remote_log.model import Lease, RemoteLogSegmentId, RemoteLogSegmentMetadata
from tiered_storage.remote_log.source.leader_files import BrokerDirectories
from tiered_storage.remote_log.source.partition_log import CutRules, SegmentLocation
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
    files = BrokerDirectories({1: (tmp_path / "logs",)}).files_of(1)
    rules = CutRules(1000, 1 << 40, 1 << 20, 4096, 1 << 20, files=files)
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


class Leader(FakeCluster):
    """The leader of a topic without an id."""

    def close(self) -> None:
        pass


def other_batch(start: int, leader_epoch: int = 0) -> bytes:
    """Return a batch of five records that the remote log does not have."""
    others = [replace(each, key=b"other") for each in records(start, start + 5)]
    return encode_batch(others, partition_leader_epoch=leader_epoch)


@pytest.mark.parametrize(
    ("last_kept", "failure"),
    [(None, None), (other_batch(20), "ForkedLogError"), (other_batch(20, leader_epoch=3), None)],
    ids=["truncated", "created again", "of another epoch"],
)
def test_without_topic_ids_the_last_batch_that_a_later_leader_kept_is_compared(
    last_kept: bytes | None, failure: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader truncated the last remote segment, of offsets 20 to 29, at 25, and has appended others since."""
    files = a_copied_remote_log(tmp_path)
    kept = [batch for segment in files.local_segments()[:3] for batch in batches_in(segment.log_path)][:5]
    leader = Leader([*kept[:4], last_kept or kept[4], *(other_batch(at, leader_epoch=4) for at in range(25, 65, 5))])
    monkeypatch.setattr(ClusterClient, "by_properties", lambda *_: leader)
    rules = CutRules(1000, 1 << 40, 1 << 20, 4096, 1 << 20, has_topic_id=False)
    lineage = (EpochEntry(0, 0), EpochEntry(4, 25))
    begun = RemoteLogSegmentMetadata(RemoteLogSegmentId(ORDERS_0, random_uuid()), 25, 64, -1, NOW, 1000, lineage)
    lease = Lease(ORDERS_0, "copy", 1, NOW)

    with files.open() as remote_log:
        before = segments_of(remote_log)[-1]
        assert (before.start_offset, before.end_offset) == (20, 29)
        task = CopyTask(begun, lease, SegmentLocation("a leader"), lineage, after=before, cut=CutOrder(rules, 25, 1000))
        access = {"bootstrap.servers": "127.0.0.1:1"}
        with closing(SegmentCuts([task], access, remote_log.storage, lambda: NOW)) as cuts:
            outcome = cuts.copy(task, lambda known: CopyOutcome(known, None))

    assert (outcome.failure and outcome.failure.error) == failure
    assert (outcome.cut and outcome.cut.start_offset) == (None if failure else 25)
