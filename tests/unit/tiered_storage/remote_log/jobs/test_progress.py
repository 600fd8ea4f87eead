from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.remote_logs import SIZES, a_remote_log, begin, unsynced
from support.waiting import wait_for
from tiered_storage.errors import RemoteStorageError
from tiered_storage.remote_log.jobs.groups import JobFolder
from tiered_storage.remote_log.jobs.progress import GroupProgress, JobSize, JobWatch, ProgressLog
from tiered_storage.remote_log.jobs.work_area import WorkArea
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.progress import Progress

SIZE = JobSize(groups=3, pieces=6, bytes=6000)


@pytest.fixture
def remote_log(tmp_path: Path) -> Iterator[RemoteLogManager]:
    with unsynced(), a_remote_log(tmp_path).open() as remote_log:
        yield remote_log


@pytest.fixture
def job(remote_log: RemoteLogManager) -> JobFolder:
    return JobFolder(remote_log.context.work, "runs/test/1")


class Watched:
    """A watch whose clock is set by hand, with what it said."""

    def __init__(self, job: JobFolder, size: JobSize = SIZE) -> None:
        self.now = 100.0
        self.said: list[str] = []
        self.given_up: list[float] = []
        self.job = job
        self.watch = JobWatch(
            job,
            size,
            stuck_after_ms=60_000,
            report=lambda progress: self.said.append(str(progress)),
            on_stuck=lambda: self.given_up.append(self.now),
            monotonic=lambda: self.now,
        )

    def check(self, seconds: float) -> Progress:
        """Look so many seconds later."""
        self.now += seconds
        self.watch.check()
        return self.watch.progress

    def tell(self, number: int, pieces: int, size: int, *, is_over: bool = False) -> None:
        """Write what the worker of a group writes."""
        path = self.job.path("progress", number)
        self.job.work.write(path, [GroupProgress(pieces, size, is_over)], GroupProgress)


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (Progress(0, 2, 0, 4_000_000, 0.0), "0 of 2 segments, 0.0 of 4.0 MB, 0.0 MB/s, time left unknown"),
        (Progress(1, 2, 1_500_000, 4_000_000, 5e5), "1 of 2 segments, 1.5 of 4.0 MB, 0.5 MB/s, 5 s left"),
        (Progress(1, 2, 0, 90_000_000, 1e6), "1 of 2 segments, 0.0 of 90.0 MB, 1.0 MB/s, 1 min 30 s left"),
        (
            Progress(1_000, 2_000, 1, 7_500_000_001, 1e6),
            "1,000 of 2,000 segments, 0.0 of 7,500.0 MB, 1.0 MB/s, 2 h 05 min left",
        ),
        (Progress(2, 2, 5_000_000, 4_000_000, 1e6), "2 of 2 segments, 5.0 of 4.0 MB, 1.0 MB/s, 0 s left"),
    ],
)
def test_progress_reads_as_a_line(progress: Progress, text: str) -> None:
    assert str(progress) == text


def test_a_worker_reports_progress_while_it_works_and_at_its_end(job: JobFolder) -> None:
    def written() -> list[GroupProgress]:
        return job.work.read_if_there(job.path("progress", 2), GroupProgress)

    with ProgressLog(job, 2, seconds=0.005) as progress:
        progress.moved(70)
        progress.moved(30)
        progress.ended()
        wait_for(lambda: written() == [GroupProgress(1, 100)], written, 20)
        progress.moved(1)
    assert written() == [GroupProgress(1, 101, is_over=True)]


def test_a_worker_that_breaks_down_is_not_over_and_a_work_area_that_is_away_harms_no_worker(
    job: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit), ProgressLog(job, 0) as progress:
        progress.moved(5)
        raise SystemExit
    assert job.work.read(job.path("progress", 0), GroupProgress) == [GroupProgress(0, 5)]

    def away(*_: object) -> None:
        raise RemoteStorageError("the work area is away")

    monkeypatch.setattr(WorkArea, "write", away)
    with ProgressLog(job, 1) as progress:
        progress.moved(5)


def test_a_copy_reports_every_byte_and_every_segment(remote_log: RemoteLogManager) -> None:
    begun = begin(remote_log)
    copy = remote_log.write_copy_job("runs/test/1", begun)
    copy.run_group(0, remote_log.context.storage, SIZES, remote_log.context.clock)

    size = copy.size_of(begun.tasks)
    assert size == JobSize(1, 3, sum(task.metadata.size for task in begun.tasks))
    progress = copy.files.work.read(copy.files.path("progress", 0), GroupProgress)
    assert progress == [GroupProgress(size.pieces, size.bytes, is_over=True)]


def test_the_watch_sums_all_groups_and_speaks_every_half_minute(job: JobFolder) -> None:
    watched = Watched(job)
    assert watched.check(5) == Progress(0, 6, 0, 6000, 0.0)
    watched.tell(0, 2, 2000, is_over=True)
    watched.tell(2, 0, 1000)
    assert watched.check(5) == Progress(2, 6, 3000, 6000, 300.0)
    assert watched.said == []
    watched.check(20)
    assert watched.said == ["2 of 6 segments, 0.0 of 0.0 MB, 0.0 MB/s, 30 s left"]
    watched.check(29)
    assert len(watched.said) == 1
    watched.check(1)
    assert len(watched.said) == 2


def test_the_rate_is_that_of_the_last_two_minutes(job: JobFolder) -> None:
    watched = Watched(job)
    watched.tell(0, 0, 3000)
    assert watched.check(30).rate == 100.0
    for seconds in range(30, 180, 30):
        watched.tell(0, 0, 3000 + seconds)
        last = watched.check(30)
    assert last.rate == 1.0


def test_a_stuck_job_is_ended_once_and_its_position_is_reported(job: JobFolder) -> None:
    watched = Watched(job)
    watched.tell(0, 1, 10)
    watched.check(59)
    watched.tell(0, 1, 11)  # slow is not stuck
    watched.check(59)
    watched.tell(0, 2, 11)  # and what ends, moves
    watched.check(59)
    assert watched.watch.stuck is None
    assert watched.watch.is_moving()
    watched.check(60)
    watched.check(600)
    assert watched.given_up == [100.0 + 59 * 3 + 60]
    assert not watched.watch.is_moving()
    assert watched.watch.stuck is not None
    assert watched.watch.stuck.error == "CopyStuckError"
    assert watched.watch.stuck.retriable
    assert "no byte moved for 60 s (copy.stuck.after.ms), at 2 of 6 segments" in watched.watch.stuck.message


def test_a_job_that_never_begins_is_stuck_too_also_where_its_work_area_is_away(
    job: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise RemoteStorageError("the work area is away")

    monkeypatch.setattr(WorkArea, "read_if_there", away)
    watched = Watched(job)
    watched.check(60)
    assert watched.given_up == [160.0]


def test_groups_that_have_not_begun_cost_few_looks(job: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(job, JobSize(10_000, 10_000, 10_000))
    watched.tell(0, 1, 1, is_over=True)
    watched.tell(40, 1, 1)
    reads: list[str] = []
    read = WorkArea.read_if_there

    def counted(work: WorkArea, path: str, kind: type[GroupProgress]) -> list[GroupProgress]:
        reads.append(path)
        return read(work, path, kind)

    monkeypatch.setattr(WorkArea, "read_if_there", counted)
    assert watched.check(1).pieces == 2
    first = len(reads)
    assert first < 100
    assert watched.check(1).pieces == 2
    assert len(reads) - first == first - 1  # what is over is not looked at again


def test_after_the_block_the_watch_knows_the_end_and_a_job_that_ended_is_not_stuck(job: JobFolder) -> None:
    watched = Watched(job)
    with watched.watch:
        watched.tell(0, 6, 6000, is_over=True)
        watched.now += 3600
        watched.watch._stop.set()  # before its thread looks
    assert watched.watch.progress.pieces == 6
    assert watched.watch.stuck is None
