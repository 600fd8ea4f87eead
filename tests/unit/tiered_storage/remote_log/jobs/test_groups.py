from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.remote_logs import a_remote_log
from tiered_storage.errors import ConfigurationError, RemoteObjectNotFoundError
from tiered_storage.remote_log.jobs.groups import (
    LEAST_SHARE,
    GroupResults,
    JobDescription,
    JobFolder,
    JobThreads,
    grouped,
)
from tiered_storage.remote_log.jobs.throttle import Quota
from tiered_storage.remote_log.jobs.worker import described_job, opened_job


@dataclass(frozen=True, slots=True)
class Piece:
    partition: int
    size: int


@dataclass(frozen=True, slots=True)
class Rated(JobDescription):
    bytes_per_second: int


def test_a_kind_of_job_adds_to_the_description_and_any_worker_counts_its_groups(tmp_path: Path) -> None:
    with a_remote_log(tmp_path).open() as remote_log:
        job = JobFolder.of(remote_log.context.work, "runs/test/1")
        job.write_tasks(0, [Piece(0, 10), Piece(0, 20)], Piece)
        job.describe(Rated(1, bytes_per_second=7))

        access = remote_log.context.access(job)
        assert described_job(access).groups == 1
        with opened_job(access, Rated) as opened:
            assert opened.description.bytes_per_second == 7
            assert opened.folder.tasks(0, Piece) == [Piece(0, 10), Piece(0, 20)]
            assert opened.folder.results(0, Piece) == []
            GroupResults(opened.folder, 0, Piece).write()
        assert job.results(0, Piece) == []


def test_a_job_of_another_kind_and_one_that_was_never_described_are_refused(tmp_path: Path) -> None:
    with a_remote_log(tmp_path).open() as remote_log:
        job = JobFolder.of(remote_log.context.work, "runs/test/1")
        job.write_tasks(0, [Piece(0, 10)], Piece)
        with pytest.raises(RemoteObjectNotFoundError):
            described_job(remote_log.context.access(job))
        job.describe(JobDescription(1))
        with pytest.raises(ConfigurationError, match=r"job\.json: line 1 .*Rated"):
            job.description(Rated)


def test_results_of_a_group_can_be_read_before_it_ends(tmp_path: Path) -> None:
    with a_remote_log(tmp_path).open() as remote_log:
        job = JobFolder.of(remote_log.context.work, "runs/test/1")
        results = GroupResults(job, 3, Piece)
        results.add(Piece(0, 1))
        assert job.results(3, Piece) == [Piece(0, 1)]
        assert job.results(2, Piece) == []


def test_groups_hold_whole_partitions_in_the_order_in_which_they_come() -> None:
    pieces = [Piece(1, 40 << 20), Piece(1, 40 << 20), Piece(0, 1), Piece(2, 1)]
    groups = list(grouped(pieces, lambda piece: piece.partition, lambda piece: piece.size))
    assert groups == [pieces[:2], pieces[2:]]


def test_workers_share_a_quota_by_the_bytes_of_their_groups_and_are_no_more_than_it_serves() -> None:
    job = JobDescription(4, quota=Quota(1 << 20, 11), group_bytes=(10, 20, 30, 40))

    assert [job.workers(slots) for slots in (1, 2, 99)] == [1, 2, 4]
    assert JobDescription(4, quota=Quota(LEAST_SHARE, 11)).workers(99) == 1
    assert JobDescription(4).workers(2) == 4
    shares = [job.share(groups).bytes_per_second for groups in ([0, 1], [2, 3])]
    assert shares == pytest.approx([0.3 * (1 << 20), 0.7 * (1 << 20)])
    assert JobDescription(4).share([0]).is_unlimited


def test_every_group_is_run_once_by_so_many_at_a_time() -> None:
    both = threading.Barrier(2, timeout=20)
    ran: list[int] = []

    def run(number: int) -> None:
        both.wait()
        ran.append(number)

    JobThreads(4, 2, run).run()
    assert sorted(ran) == [0, 1, 2, 3]
    JobThreads(0, 2, run).run()


def test_an_error_of_a_group_is_raised_and_no_other_group_begins() -> None:
    ran: list[int] = []

    def run(number: int) -> None:
        ran.append(number)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        JobThreads(4, 1, run).run()
    assert ran == [0]


def test_a_hanging_group_is_abandoned() -> None:
    hangs, continues = threading.Event(), threading.Event()
    ran: list[int] = []

    def run(number: int) -> None:
        ran.append(number)
        hangs.set()
        continues.wait(20)

    threads = JobThreads(2, 1, run)
    waiting = threading.Thread(target=threads.run)
    waiting.start()
    assert hangs.wait(20)
    threads.give_up()
    waiting.join(20)
    assert not waiting.is_alive()
    continues.set()
    for thread in threading.enumerate():
        if thread.name.startswith("group-"):
            assert thread.daemon
            thread.join(20)
    assert ran == [0]
