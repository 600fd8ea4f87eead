"""The folders that a worker rolls segments in are its own for as long as it lives, and no longer."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from contract.sources import log_directory_under_test
from support.remote_logs import NOW, ORDERS_0, a_copied_remote_log, batches_in, records, segments_of
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage.kafka_log.producers.producer_history import ProducerHistory
from tiered_storage.kafka_log.records.record_batch import encode_batch
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.fetch import FetchAnswer
from tiered_storage.remote_log.copy.copier import CopySizes, copy_segment
from tiered_storage.remote_log.copy.job import COPIES_AT_ONCE, _copied
from tiered_storage.remote_log.copy.segment_roller import SegmentRoller
from tiered_storage.remote_log.copy.tasks import CopyOutcome, CopyTask, RollOrder
from tiered_storage.remote_log.jobs.groups import JobFailure
from tiered_storage.remote_log.jobs.throttle import QuotaLimit
from tiered_storage.remote_log.model import Lease, RemoteLogSegmentId, RemoteLogSegmentMetadata
from tiered_storage.remote_log.source.leader_files import BrokerDirectories
from tiered_storage.remote_log.source.partition_log import RollRules, SegmentLocation
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager
from unit.tiered_storage.remote_log.fake_cluster import FakeCluster

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
    rules = RollRules(1000, 1 << 40, 1 << 20, 4096, 1 << 20, files=files)
    end = list_segments(tmp_path / "logs" / str(ORDERS_0))[2].base_offset - 1
    return [
        CopyTask(
            RemoteLogSegmentMetadata(RemoteLogSegmentId(ORDERS_0, random_uuid()), 0, end, -1, NOW, 1000, LINEAGE),
            Lease(ORDERS_0, "copy", 1, NOW),
            SegmentLocation("the leader"),
            LINEAGE,
            roll=RollOrder(rules, 0, 1000),
        )
        for _ in range(2)
    ]


def roller_of(tasks: list[CopyTask], folder: Path) -> SegmentRoller:
    storage = ObjectRemoteStorageManager(LocalDirectory(folder / "store"))
    return SegmentRoller(tasks, {"bootstrap.servers": "127.0.0.1:1"}, storage, lambda: NOW)


def test_another_worker_removes_only_unlocked_folders(
    tasks: list[CopyTask], work_folders: Path, tmp_path: Path
) -> None:
    killed = work_folders / "remote-log-cut-killed"
    killed.mkdir()
    left: list[Path] = []

    def copied_long(known: CopyTask) -> CopyOutcome:
        for folder in work_folders.iterdir():
            os.utime(folder, (0, 0))
        with closing(roller_of(tasks, tmp_path)):
            left.extend(work_folders.iterdir())
        return CopyOutcome(known, None)

    with closing(roller_of(tasks, tmp_path)) as roller:
        outcome = roller.copy(tasks[0], copied_long)

    assert outcome.failure is None
    assert outcome.rolled is not None
    [held] = left
    assert held != killed
    assert list(work_folders.iterdir()) == []


def test_nothing_is_rolled_again_once_a_segment_of_the_partition_failed(
    tasks: list[CopyTask], work_folders: Path, tmp_path: Path
) -> None:
    """A thread may begin its task only after another one's has failed, and has closed the partition's log."""
    copied: list[CopyTask] = []

    def copy(known: CopyTask) -> CopyOutcome:
        copied.append(known)
        return CopyOutcome(known, None, JobFailure("RemoteStorageError", "the store is away", retriable=True))

    with closing(roller_of(tasks, tmp_path)) as roller:
        first, second = (roller.copy(task, copy) for task in tasks)
        assert list(work_folders.iterdir()) == []

    assert [each.metadata.segment_id for each in copied] == [tasks[0].metadata.segment_id]
    assert first.failure is not None
    assert second.failure is not None
    assert (second.task, second.rolled, second.failure.retriable) == (tasks[1], None, True)
    assert "an earlier segment" in second.failure.message


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
    rules = RollRules(1000, 1 << 40, 1 << 20, 4096, 1 << 20, has_topic_id=False)
    lineage = (EpochEntry(0, 0), EpochEntry(4, 25))
    begun = RemoteLogSegmentMetadata(RemoteLogSegmentId(ORDERS_0, random_uuid()), 25, 64, -1, NOW, 1000, lineage)
    lease = Lease(ORDERS_0, "copy", 1, NOW)

    with files.open() as remote_log:
        before = segments_of(remote_log)[-1]
        assert (before.start_offset, before.end_offset) == (20, 29)
        task = CopyTask(
            begun, lease, SegmentLocation("a leader"), lineage, after=before, roll=RollOrder(rules, 25, 1000)
        )
        access = {"bootstrap.servers": "127.0.0.1:1"}
        with closing(SegmentRoller([task], access, remote_log.context.storage, lambda: NOW)) as roller:
            outcome = roller.copy(task, lambda known: CopyOutcome(known, None))

    assert (outcome.failure and outcome.failure.error) == failure
    assert (outcome.rolled and outcome.rolled.start_offset) == (None if failure else 25)


class Watched(Leader):
    """Leads every partition, and counts the segments' files in `folder` whenever it is asked."""

    def __init__(self, batches: Sequence[bytes], folder: Path) -> None:
        super().__init__(batches)
        self.folder = folder
        self.most = 0

    def look(self) -> None:
        # Other threads continue meanwhile: what both looks find was there at one moment.
        self.most = max(self.most, len(self.found() & self.found()))

    def found(self) -> set[int]:
        """Return the inodes of the segments' files."""
        paths = [Path(folder, name) for folder, _, names in os.walk(self.folder) for name in names]
        inodes = set()
        for path in paths:
            with suppress(FileNotFoundError):
                if path.suffix in {".log", ".spare"}:
                    inodes.add(path.stat().st_ino)
        return inodes

    def fetch(self, *asked: Any) -> FetchAnswer:
        self.look()
        return super().fetch(*asked)


@pytest.mark.parametrize("start", [0, 40], ids=["all producers known", "no producer snapshot"])
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_worker_has_one_file_for_each_copy_under_way(
    work_folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: int, fails: bool, seed: int
) -> None:
    """Copies take random times, so that threads leave partitions and return; the tails are not rolled."""
    chance = Random(seed)  # noqa: S311 -- content, no secret
    leader = Watched([other_batch(at) for at in range(0, 400, 5)], work_folders)
    monkeypatch.setattr(ClusterClient, "by_properties", lambda *_: leader)
    rules, lease = RollRules(1500, 1 << 40, 1 << 20, 4096, 2000), Lease(ORDERS_0, "copy", 1, NOW)
    tasks = [
        CopyTask(
            RemoteLogSegmentMetadata(RemoteLogSegmentId(partition, random_uuid()), start, 399, -1, NOW, 1, LINEAGE),
            replace(lease, topic_id_partition=partition),
            SegmentLocation("a leader"),
            LINEAGE,
            roll=RollOrder(rules, start, 1500),
        )
        for partition in (replace(ORDERS_0, partition=number) for number in range(4))
        for _ in range(chance.randrange(1, 20))
    ]
    failing = {chance.choice(tasks).metadata.segment_id for _ in range(3 if fails else 0)}
    waits = {task.metadata.segment_id: chance.choice([0, 0, 0.002, 0.02]) for task in tasks}
    storage = ObjectRemoteStorageManager(LocalDirectory(tmp_path / "store"))

    def copy(task: CopyTask) -> CopyOutcome:
        time.sleep(waits[task.metadata.segment_id])
        leader.look()
        if task.metadata.segment_id in failing:
            return CopyOutcome(task, None, JobFailure("RemoteStorageError", "the store is away", retriable=True))
        outcome = copy_segment(task, storage, CopySizes(1 << 20, 500, 1 << 20), lambda: NOW, history)
        leader.look()
        return outcome

    history = ProducerHistory()
    with closing(roller_of(tasks, tmp_path)) as roller:
        outcomes = list(_copied(tasks, lambda task: roller.copy(task, copy), QuotaLimit()))
        assert list(work_folders.iterdir()) == []

    failures = [each.failure.message for each in outcomes if each.failure is not None]
    assert bool(failures) == fails
    assert all("the store is away" in message for message in failures), failures
    assert sum(each.rolled is not None and each.failure is None for each in outcomes) > 0
    assert 1 <= leader.most <= COPIES_AT_ONCE
