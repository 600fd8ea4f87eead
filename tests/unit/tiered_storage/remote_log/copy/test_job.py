from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from threading import Event
from unittest import mock

import pytest

from support.metadata_stores import a_segment
from support.remote_logs import (
    BATCH_BYTES,
    SIZES,
    a_remote_log,
    begin,
    flip_bit,
    location_of,
    partition_of,
    unsynced,
    with_context,
)
from tiered_storage.errors import ConfigurationError, RemoteObjectNotFoundError
from tiered_storage.remote_log.copy import job as copy_job
from tiered_storage.remote_log.copy.copier import copy_segment
from tiered_storage.remote_log.copy.job import LEAST_PRIORITY, CopyJob, copy_groups
from tiered_storage.remote_log.copy.tasks import CopyOutcome, CopyTask
from tiered_storage.remote_log.jobs import groups as job_groups
from tiered_storage.remote_log.jobs.groups import JobFailure
from tiered_storage.remote_log.jobs.throttle import Quota, QuotaLimit
from tiered_storage.remote_log.model import Finding, Lease, RemoteLogSegmentMetadata
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory
from tiered_storage.remote_log.storage.remote_storage_manager import LogSegmentData
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager


def task(number: int, start: int, size: int) -> CopyTask:
    lease = Lease(partition_of(number=number), "copy", 1, 0)
    return CopyTask(a_segment(lease, start, start + 9, size=size), lease, location_of(Path("a.log")), ())


def starts(groups: list[list[CopyTask]]) -> list[list[tuple[int, int]]]:
    return [
        [(one.metadata.topic_id_partition.partition, one.metadata.start_offset) for one in group] for group in groups
    ]


def test_a_partition_is_never_split_and_its_segments_are_in_order() -> None:
    large = job_groups.GROUP_BYTES
    tasks = [task(1, 10, large), task(0, 0, 1), task(1, 0, large), task(2, 0, 1), task(3, 0, 1)]

    assert starts(list(copy_groups(tasks))) == [[(0, 0), (1, 0), (1, 10)], [(2, 0), (3, 0)]]


def test_a_group_closes_once_it_is_large_or_has_many_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    half = job_groups.GROUP_BYTES // 2
    assert starts(list(copy_groups([task(0, 0, half), task(1, 0, half), task(2, 0, half)]))) == [
        [(0, 0), (1, 0)],
        [(2, 0)],
    ]

    monkeypatch.setattr(job_groups, "GROUP_TASKS", 2)
    assert starts(list(copy_groups([task(number, 0, 1) for number in range(3)]))) == [[(0, 0), (1, 0)], [(2, 0)]]
    assert list(copy_groups([])) == []


def test_a_job_is_found_again_by_its_folder_alone(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, copy_window_bytes=1 << 20, index_interval_bytes=123)

    with files.open() as remote_log:
        job = remote_log.write_copy_job("runs/test/1", begin(remote_log))
        found, description = CopyJob.read(remote_log.context.work, "runs/test/1")

        assert (found.files.folder, found.groups) == (job.files.folder, job.groups)
        assert description.groups == 1
        assert (description.sizes.window, description.sizes.index_interval) == (1 << 20, 123)
        with pytest.raises(RemoteObjectNotFoundError):
            CopyJob.read(remote_log.context.work, "runs/test/2")


def test_a_job_leaves_no_secret_in_the_work_area(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    with files.open() as opened:
        options = replace(
            opened.context.options, access_key_id="the-key", secret_access_key="the-secret", session_token="the-token"
        )
        remote_log = with_context(opened, options=options)
        remote_log.write_copy_job("runs/test/1", begin(remote_log))

    written = b"".join(path.read_bytes() for path in (files.root / "state" / "work").rglob("*") if path.is_file())
    assert b"AAAA" not in written
    for secret in (b"the-key", b"the-secret", b'tok"'):
        assert secret not in written


def test_after_a_failure_the_rest_of_that_partition_is_left_out_and_others_continue(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("clicks", 0): 3, ("orders", 0): 2})
    flip_bit(files.local_segments("clicks")[1].log_path, BATCH_BYTES - 1)

    with files.open() as remote_log:
        job = remote_log.write_copy_job("runs/test/1", begin(remote_log))
        copied = sum(
            job.run_group(number, remote_log.context.storage, SIZES, files.clock) for number in range(job.groups)
        )
        outcomes = sorted(job.outcomes(), key=_partition_and_start)

    assert copied == 3
    assert [(_partition_and_start(one), one.failure is None) for one in outcomes] == [
        (("clicks-0", 0), True),
        (("clicks-0", 10), False),
        (("clicks-0", 20), False),
        (("orders-0", 0), True),
        (("orders-0", 10), True),
    ]
    left_out = outcomes[2].failure
    assert left_out is not None
    assert "left out" in left_out.message
    assert "CRC" in left_out.message
    assert left_out.error == "CorruptRecordError"


def test_segments_copied_beside_an_earlier_failure_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first copy fails only once the second is through: two are under way at once, and never more."""
    second_is_through = Event()
    began: list[int] = []

    def copy(task: CopyTask, *_: object) -> CopyOutcome:
        began.append(task.metadata.start_offset)
        if task.metadata.start_offset:
            second_is_through.set()
            return CopyOutcome(task, None)
        assert second_is_through.wait(10)
        assert began == [0, 10]
        return CopyOutcome(task, None, JobFailure("CorruptRecordError", "CRC", retriable=False))

    monkeypatch.setattr(copy_job, "copy_segment", copy)
    with a_remote_log(tmp_path).open() as remote_log:
        tasks = [task(0, start, 1) for start in (0, 10, 20)]
        job = CopyJob.write(remote_log.context.work, "runs/test/1", tasks, remote_log.context.settings)
        assert job.run_group(0, remote_log.context.storage, SIZES, remote_log.context.clock) == 0
        failures = [one.failure.message for one in job.outcomes() if one.failure]

    assert began == [0, 10]
    assert failures[0] == "CRC"
    assert [failure.startswith("left out ") and failure.endswith(": CRC") for failure in failures[1:]] == [True] * 2


def test_a_copy_that_hangs_takes_one_place_and_holds_up_its_own_partition_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    continues = Event()
    began: list[tuple[int, int]] = []

    def copy(task: CopyTask, *_: object) -> CopyOutcome:
        began.append((task.metadata.topic_id_partition.partition, task.metadata.start_offset))
        if began[-1] == (0, 0):
            assert continues.wait(20)
        if began[-1] == (2, 20):
            continues.set()
        return CopyOutcome(task, None)

    monkeypatch.setattr(copy_job, "copy_segment", copy)
    with a_remote_log(tmp_path).open() as remote_log:
        tasks = [task(number, start, 1) for number in range(3) for start in (0, 10, 20)]
        job = CopyJob.write(remote_log.context.work, "runs/test/1", tasks, remote_log.context.settings)
        job.run_group(0, remote_log.context.storage, SIZES, remote_log.context.clock)
        copied = [_partition_and_start(one) for one in job.files.results(0, CopyOutcome)]

    # Only one more segment follows a hanging one: all later copies may be for nothing.
    assert set(began[:2]) == {(0, 0), (0, 10)}
    assert (0, 20) in began[-2:]
    assert [start for name, start in copied if name == "orders-0"] == [0, 10, 20]
    assert len(copied) == 9


def test_a_dying_worker_leaves_results_of_what_it_copied(tmp_path: Path) -> None:
    class Dying(ObjectRemoteStorageManager):
        def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes:
            if metadata.start_offset == 20:
                raise SystemExit("the machine is gone")
            return super().copy_log_segment_data(metadata, data)

    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        job = remote_log.write_copy_job("runs/test/1", begin(remote_log))
        with pytest.raises(SystemExit):
            job.run_group(0, Dying(LocalDirectory(files.store)), SIZES, files.clock)
        outcomes = list(job.outcomes())

    assert [(_partition_and_start(one)[1], one.finished is not None, one.failure) for one in outcomes] == [
        (0, True, None),
        (10, True, None),
        (20, False, None),
    ]


@pytest.mark.parametrize(("limit", "priority"), [(QuotaLimit(), 0), (QuotaLimit(Quota(1e9)), LEAST_PRIORITY)])
def test_only_a_throttled_copy_lowers_its_priority(tmp_path: Path, limit: QuotaLimit, priority: int) -> None:
    seen: list[int] = []

    class Watched(ObjectRemoteStorageManager):
        def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes:
            seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
            return super().copy_log_segment_data(metadata, data)

    files = a_remote_log(tmp_path)
    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    with files.open() as remote_log:
        job = remote_log.write_copy_job("runs/test/1", begin(remote_log))
        assert job.run_group(0, Watched(LocalDirectory(files.store)), SIZES, files.clock, limit=limit) == 3

    assert seen == [max(before, priority)] * 3
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before


@pytest.mark.parametrize("seconds", [1e9, 0.0])
def test_results_of_many_segments_do_not_cost_their_square_and_few_are_at_risk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    files = a_remote_log(tmp_path)
    written: list[int] = []
    monkeypatch.setattr(job_groups, "RESULT_SECONDS", seconds)
    monkeypatch.setattr(copy_job, "copy_segment", lambda task, *_: CopyOutcome(task, None))
    with unsynced(), files.open() as remote_log:
        tasks = [task(0, start, 1) for start in range(0, 3000, 10)]
        job = CopyJob.write(remote_log.context.work, "runs/test/1", tasks, remote_log.context.settings)
        write = type(remote_log.context.work).write

        def watched(self: object, path: str, messages: list[CopyOutcome], kind: type[CopyOutcome]) -> None:
            if "/result-" in path:
                written.append(len(messages))
            write(self, path, messages, kind)  # type: ignore[arg-type]  # the very ones it was called with

        monkeypatch.setattr(type(remote_log.context.work), "write", watched)
        job.run_group(0, remote_log.context.storage, SIZES, files.clock)
        assert len(list(job.outcomes())) == 300

    assert written[-1] == 300
    if seconds == 0:
        assert written[:300] == list(range(1, 301)), "whatever takes long is written at once"
        return
    assert sum(written) < 300 * 300 / 10
    assert all(later - earlier <= max(1, earlier) for earlier, later in pairwise(written))


def test_a_group_whose_worker_never_began_has_no_results(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    with files.open() as remote_log:
        begun = begin(remote_log)
        job = remote_log.write_copy_job("runs/test/1", begun)

        assert list(job.outcomes()) == [CopyOutcome(one, None) for one in begun.tasks]


def test_a_group_that_a_lost_worker_began_is_copied_by_no_second_one(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    with files.open() as remote_log:
        job = remote_log.write_copy_job("runs/test/1", begin(remote_log))
        halted, proceed = Event(), Event()

        def halt(*of_segment: object) -> CopyOutcome:
            halted.set()
            assert proceed.wait(60)
            return copy_segment(*of_segment)  # type: ignore[arg-type]  # as it was called

        with mock.patch.object(copy_job, "copy_segment", halt), ThreadPoolExecutor(1) as lost:
            copying = lost.submit(job.run_group, 0, remote_log.context.storage, SIZES, files.clock)
            assert halted.wait(60)
            # Spark has lost the first worker, and gives the group to another one.
            assert job.run_group(0, remote_log.context.storage, SIZES, files.clock) == 0
            assert files.objects() == []
            assert {outcome.finished for outcome in job.outcomes()} == {None}
            proceed.set()
            assert copying.result() == 3
        assert [outcome.record_count for outcome in job.outcomes()] == [10, 10, 10]


def test_a_job_that_is_laid_out_again_in_the_same_folder_is_done_again(tmp_path: Path) -> None:
    """A DAG run that is deleted and made again has its name, and counts its tries from one."""
    files = a_remote_log(tmp_path)

    with files.open() as remote_log:
        for _ in range(2):
            job = remote_log.write_copy_job("runs/test/1", begin(remote_log))
            assert job.run_group(0, remote_log.context.storage, SIZES, files.clock) == 3
        assert {outcome.failure for outcome in job.outcomes()} == {None}


def test_a_job_of_no_tasks_has_no_groups_and_no_outcomes(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, topics={})

    with files.open() as remote_log:
        job = remote_log.write_copy_job("runs/test/1", begin(remote_log))

        assert job.groups == 0
        assert list(job.outcomes()) == []
        assert job.write_batches(remote_log.context.work, 5) == []


def test_batches_for_the_commit_hold_whole_partitions_and_are_named_by_them(tmp_path: Path) -> None:
    partitions = {("clicks", 0): 2, ("orders", 0): 1, ("orders", 1): 2}
    files = a_remote_log(tmp_path, partitions)

    with files.open() as remote_log:
        begun = begin(remote_log)
        job = remote_log.write_copy_job("runs/test/1", begun)
        batches = job.write_batches(remote_log.context.work, 2)
        outcomes = [remote_log.context.work.read(batch["path"], CopyOutcome) for batch in batches]

    found = [sorted({str(one.task.metadata.topic_id_partition) for one in batch}) for batch in outcomes]
    assert sorted(name for names in found for name in names) == ["clicks-0", "orders-0", "orders-1"]
    assert [len(names) for names in found] == [2, 1]
    assert sum(len(batch) for batch in outcomes) == len(begun.tasks)
    assert batches[1]["name"] == found[1][0]
    assert batches[0]["name"].endswith("(2 partitions)")
    assert all(batch["path"].startswith("runs/test/1/") for batch in batches)


def test_a_broken_file_in_the_work_area_is_named(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    with files.open() as remote_log:
        job = remote_log.write_copy_job("runs/test/1", begin(remote_log))
        job.files.work.write("runs/test/1/tasks-00000.jsonl", [Finding("orders-0", "no task")], Finding)

        with pytest.raises(ConfigurationError, match=r"tasks-00000\.jsonl: line 1 .*CopyTask"):
            job.run_group(0, remote_log.context.storage, SIZES, files.clock)


def _partition_and_start(outcome: CopyOutcome) -> tuple[str, int]:
    return str(outcome.task.metadata.topic_id_partition), outcome.task.metadata.start_offset
