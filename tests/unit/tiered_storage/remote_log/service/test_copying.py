from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.remote_logs import (
    ENABLED,
    ORDERS_0,
    RemoteLogFiles,
    a_remote_log,
    assert_clean,
    partition_of,
    ranges,
    segments_of,
    unsynced,
)
from tiered_storage.errors import MetadataUnavailableError, RemoteStorageError
from tiered_storage.remote_log.copy.start import BegunCopy
from tiered_storage.remote_log.copy.tasks import CommitReport, CopyPlan
from tiered_storage.remote_log.jobs.groups import JobFolder
from tiered_storage.remote_log.jobs.progress import JobSize, JobWatch
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import Finding, SegmentState, TopicIdPartition
from tiered_storage.remote_log.service import copying
from tiered_storage.remote_log.service.copying import CopyTasks
from tiered_storage.remote_log.service.pools import TroubleLog
from tiered_storage.remote_log.service.schedule import Outcome, PartitionSchedule, Role, TaskKind
from unit.tiered_storage.remote_log.service.simulated_time import Time, a_schedule

ORDERS_1 = partition_of("orders", 1)
PAYMENTS_0 = partition_of("payments")
PARTITIONS = {("orders", 0): 3, ("orders", 1): 2, ("payments", 0): 1}
ALL = [(0, 9), (10, 19), (20, 29)]


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    return a_remote_log(tmp_path, PARTITIONS)


@pytest.fixture
def remote_log(files: RemoteLogFiles) -> Iterator[RemoteLogManager]:
    with unsynced(), files.open() as opened:
        yield opened


class Site:
    """The tasks of a service over `remote_log`, in this thread."""

    def __init__(self, remote_log: RemoteLogManager) -> None:
        self.schedule: PartitionSchedule = a_schedule(Time())
        self.tasks = CopyTasks(remote_log, self.schedule, "service", TroubleLog())

    def run(self, *partitions: TopicIdPartition) -> dict[TopicIdPartition, Outcome]:
        """Assign `partitions`, and run their tasks; return how they ended."""
        for each in partitions:
            self.schedule.assign(each, Role.LEADER)
        return self.work(partitions)

    def work(self, partitions: Sequence[TopicIdPartition]) -> dict[TopicIdPartition, Outcome]:
        found: dict[TopicIdPartition, Outcome] = {}

        def ended(partition: TopicIdPartition, outcome: Outcome) -> None:
            assert partition not in found
            found[partition] = outcome

        self.tasks(partitions, ended)
        return found


@pytest.fixture
def site(remote_log: RemoteLogManager) -> Site:
    return Site(remote_log)


def copied(remote_log: RemoteLogManager, partition: TopicIdPartition) -> list[tuple[int, int]]:
    return ranges(segments_of(remote_log, partition))


def test_a_task_copies_its_partitions_and_no_other(remote_log: RemoteLogManager, site: Site) -> None:
    assert site.run(ORDERS_0, PAYMENTS_0) == dict.fromkeys((ORDERS_0, PAYMENTS_0), Outcome.DONE)

    assert copied(remote_log, ORDERS_0) == ALL
    assert copied(remote_log, PAYMENTS_0) == ALL[:1]
    assert copied(remote_log, ORDERS_1) == []
    assert remote_log.context.leases.held() == []
    assert_clean(remote_log)


def test_a_task_with_nothing_due_is_done_and_leaves_no_file(
    files: RemoteLogFiles, remote_log: RemoteLogManager, site: Site
) -> None:
    site.run(ORDERS_0)
    before = segments_of(remote_log)

    assert site.work([ORDERS_0]) == {ORDERS_0: Outcome.DONE}

    assert segments_of(remote_log) == before
    assert [path for path in (files.root / "state" / "work" / copying.FOLDER).rglob("*") if path.is_file()] == []


def test_a_task_copies_a_bounded_part_and_is_due_again(
    remote_log: RemoteLogManager, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "RUN_BYTES", 1)

    assert site.run(ORDERS_0, ORDERS_1) == {ORDERS_0: Outcome.MORE, ORDERS_1: Outcome.MORE}
    assert [copied(remote_log, each) for each in (ORDERS_0, ORDERS_1)] == [ALL[:1], ALL[:1]]
    assert site.work([ORDERS_0, ORDERS_1]) == {ORDERS_0: Outcome.MORE, ORDERS_1: Outcome.DONE}
    assert site.work([ORDERS_0, ORDERS_1]) == {ORDERS_0: Outcome.DONE, ORDERS_1: Outcome.DONE}
    assert [copied(remote_log, each) for each in (ORDERS_0, ORDERS_1)] == [ALL, ALL[:2]]


def test_a_partition_that_was_removed_before_its_copy_began_is_not_copied(
    remote_log: RemoteLogManager, site: Site
) -> None:
    site.schedule.assign(ORDERS_1, Role.FOLLOWER)

    assert site.work([ORDERS_0, ORDERS_1]) == {ORDERS_0: Outcome.DONE, ORDERS_1: Outcome.DONE}

    assert copied(remote_log, ORDERS_0) == copied(remote_log, ORDERS_1) == []


def test_a_partition_that_another_run_holds_is_left_to_the_next_task(remote_log: RemoteLogManager, site: Site) -> None:
    lease = remote_log.context.leases.acquire(ORDERS_0, "a DAG", 600_000)

    assert site.run(ORDERS_0, ORDERS_1) == {ORDERS_0: Outcome.DONE, ORDERS_1: Outcome.DONE}
    assert copied(remote_log, ORDERS_0) == []
    assert copied(remote_log, ORDERS_1) == ALL[:2]
    remote_log.context.leases.check(lease)


def test_a_broken_segment_fails_its_partition_alone(
    files: RemoteLogFiles, remote_log: RemoteLogManager, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    path = files.local_segments("orders", 0)[1].log_path
    path.write_bytes(path.read_bytes()[:-20] + bytes(20))

    assert site.run(ORDERS_0, ORDERS_1) == {ORDERS_0: Outcome.BROKEN, ORDERS_1: Outcome.DONE}

    first = next(each for each in segments_of(remote_log) if each.start_offset == 0)
    assert first.state is SegmentState.COPY_SEGMENT_FINISHED
    assert copied(remote_log, ORDERS_1) == ALL[:2]
    assert "copier: orders-0: " in caplog.text


def test_partitions_do_not_wait_for_a_run_that_takes_long(
    remote_log: RemoteLogManager, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "RUN_BYTES", 1)
    real = site.tasks._watched

    def slow(on_slow: Callable[[], None], *others: Any) -> JobWatch:
        on_slow()
        return real(on_slow, *others)

    monkeypatch.setattr(site.tasks, "_watched", slow)

    assert site.run(ORDERS_0, ORDERS_1, PAYMENTS_0) == dict.fromkeys((ORDERS_0, ORDERS_1, PAYMENTS_0), Outcome.MORE)

    assert copied(remote_log, ORDERS_0) == ALL[:1]
    assert copied(remote_log, ORDERS_1) == copied(remote_log, PAYMENTS_0) == []


def test_a_run_that_reports_its_progress_is_one_that_takes_long(site: Site) -> None:
    slow = list[int]()
    work = JobFolder.of(site.tasks._remote_log.context.work, "runs/test")

    watch = site.tasks._watched(lambda: slow.append(1), work, JobSize(1, 1, 1), lambda: None)
    watch._report(watch.progress)

    assert slow == [1]


def test_a_partition_whose_copy_hung_is_copied_alone_after_the_others(
    remote_log: RemoteLogManager, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = (ORDERS_0, ORDERS_1, PAYMENTS_0)
    hung = CommitReport((), (Finding("orders-0", "no byte moved"),), (), (), True), True

    def hang(_: RemoteLogManager, begun: BegunCopy, *others: Any, **options: Any) -> tuple[CommitReport, bool]:
        remote_log.context.leases.release_many(begun.leases)
        return hung

    with monkeypatch.context() as patched:
        patched.setattr(copying, "copy_in_threads", hang)
        assert site.run(*every) == {ORDERS_0: Outcome.BROKEN, ORDERS_1: Outcome.DONE, PAYMENTS_0: Outcome.DONE}

    plan = remote_log.plan_copy()
    runs = [run.partitions for run in copying.copy_runs(plan, site.tasks._suspects)]
    assert runs == [(ORDERS_1, PAYMENTS_0), (ORDERS_0,)]
    assert list(site.work(every)) == [ORDERS_1, PAYMENTS_0, ORDERS_0]
    assert site.tasks._suspects == set()


def test_an_error_of_one_run_ends_no_other(
    remote_log: RemoteLogManager, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "RUN_BYTES", 1)
    begin_copy = RemoteLogManager.begin_copy

    def begun(self: RemoteLogManager, plan: CopyPlan, *others: Any) -> BegunCopy:
        if ORDERS_0 in plan.by_partition:
            raise RemoteStorageError("one object cannot be written")
        return begin_copy(self, plan, *others)

    monkeypatch.setattr(RemoteLogManager, "begin_copy", begun)

    found = site.run(ORDERS_0, ORDERS_1, PAYMENTS_0)

    assert found == {ORDERS_0: Outcome.FAILED, ORDERS_1: Outcome.MORE, PAYMENTS_0: Outcome.DONE}
    assert copied(remote_log, ORDERS_1) == ALL[:1]


def test_metadata_that_are_away_end_the_task(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def begun(*_: Any) -> BegunCopy:
        raise MetadataUnavailableError("the database is away")

    monkeypatch.setattr(RemoteLogManager, "begin_copy", begun)

    with pytest.raises(MetadataUnavailableError):
        site.run(ORDERS_0, ORDERS_1)


def test_a_topic_that_is_not_tiered_any_more_has_nothing_due(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, PARTITIONS, topics={"orders": ENABLED, "payments": {"remote.storage.enable": False}})
    with unsynced(), files.open() as remote_log:
        assert Site(remote_log).run(PAYMENTS_0) == {PAYMENTS_0: Outcome.DONE}
        assert copied(remote_log, PAYMENTS_0) == []


def test_what_was_not_ended_is_given_back(remote_log: RemoteLogManager, site: Site) -> None:
    held = list[str]()

    def watched(*arguments: object) -> object:
        site.tasks.give_back()
        held.extend(str(each) for each in remote_log.context.leases.held())
        return real(*arguments)  # type: ignore[arg-type]

    real = site.tasks._watched
    site.tasks._watched = watched  # type: ignore[method-assign, assignment]

    site.run(ORDERS_0)

    assert held == []
    site.tasks.give_back()


def test_runs_are_whole_partitions_up_to_a_size(remote_log: RemoteLogManager, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = remote_log.plan_copy()
    size = plan.segments[0].size
    assert TaskKind.COPY.role is Role.LEADER

    for most, expected in (
        (1, [(1, True), (1, True), (1, False)]),
        (2 * size, [(2, True), (2, False), (1, False)]),
        (3 * size, [(3, False), (3, False)]),
        (100 * size, [(6, False)]),
    ):
        monkeypatch.setattr(copying, "RUN_BYTES", most)
        runs = list(copying.copy_runs(plan))
        assert [(len(run.plan.segments), bool(run.cut & set(run.partitions))) for run in runs] == expected
        assert [each for run in runs for each in run.partitions] == [ORDERS_0, ORDERS_1, PAYMENTS_0]
