"""Scenario 10 through Airflow and Spark: the Spark worker, its driver, any task and the scheduler are killed.

An embedded Airflow is really started; a worker or a task stands still in the middle of its work while its killer looks
for it.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import psutil
import pytest

from crashes.airflow_parts import STORAGE, HaltingAirflow, halting_airflow
from crashes.crash_points import CrashPoint
from crashes.recovery import GRACE_MS, all_segments, assert_readable, assert_settled, run
from crashes.shared_clock import SharedClock
from support.remote_logs import ENABLED, SEGMENT_BYTES, RemoteLogFiles, a_remote_log, partition_of, segments_of
from tiered_storage.remote_log.coverage import finished
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage_airflow.clusters import RUN_TIMEOUT
from tiered_storage_airflow.embedded.api_client import DagRun
from tiered_storage_airflow.embedded.processes import is_running, wait_until

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

DAGS = ("copy_segments", "expire_remote_segments", "enforce_local_retention", "repair_remote_log")
PARTITIONS = {("orders", 0): 2, ("orders", 1): 2}


@dataclass(slots=True)
class CrashingAirflow(HaltingAirflow):
    """An embedded Airflow with copies of the DAGs that are not on a schedule, and the remote log they work on."""

    files: RemoteLogFiles = field(kw_only=True)

    def append_two_segments(self) -> None:
        """Let each partition have two more closed segments."""
        for number in (0, 1):
            self.files.append(4, number=number)

    def halted_worker(self, point: CrashPoint) -> tuple[DagRun, psutil.Process]:
        """Start a copy and wait until one of its workers halts at `point`."""
        return self.halted("copy_segments", None, point)

    def finish(self, run: DagRun) -> DagRun:
        """Wait for the run's end."""
        with self.api() as api:
            return api.wait_for_run(run, 300)

    def run(self) -> None:
        """Start a run, which has to succeed."""
        with self.api() as api:
            ended = api.wait_for_run(api.trigger("copy_segments"), 300)
            assert ended.state == "success", api.failures(ended)

    def tries(self, run: DagRun, task_id: str = "copy") -> int:
        """Return how often a task was tried; of a mapped one the instance that was tried most often."""
        with self.api() as api:
            return max(task.try_number for task in api.task_instances(run) if task.task_id == task_id)

    def limit(self, **limits: int) -> None:
        """Let the topic have other limits, named with _ for the dots, until `settled` takes them away."""
        named = {name.replace("_", "."): value for name, value in limits.items()}
        self.files.properties["topics"] = {"orders": {**ENABLED, **named}}
        assert self.files.config.exists()

    def left_without_result(self) -> set[str]:
        """Return the ids of segments that are whole in the store, unknown to every job's results and every reader."""
        marked = {path.stem.partition("-")[2] for path in self.files.objects(".commit")}
        results = "".join(path.read_text() for path in self.files.root.rglob("result-*.jsonl"))
        with self.files.open() as remote_log:
            return {each for each in marked - finished_ids(remote_log) if each not in results}

    def began_long_ago(self, run: DagRun) -> None:
        """Let the run be older than its dagrun_timeout: the scheduler ends it at its next look."""
        began = datetime.now(UTC) - RUN_TIMEOUT - timedelta(minutes=1)
        with closing(sqlite3.connect(self.running.home / "airflow.db", timeout=60)) as database, database:
            given = (began.strftime("%Y-%m-%d %H:%M:%S.%f"), run.dag_id, run.run_id)
            changed = database.execute("UPDATE dag_run SET start_date = ? WHERE dag_id = ? AND run_id = ?", given)
            assert changed.rowcount == 1


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory, state_directory: Path) -> Iterator[CrashingAirflow]:
    root = tmp_path_factory.mktemp("crashing-airflow")
    files = a_remote_log(root, PARTITIONS, remote_log_storage_manager_class_name=STORAGE)
    files.clock = SharedClock(root / "clock")
    with halting_airflow(partial(CrashingAirflow, files=files), root, files.config, DAGS) as crashing:
        crashing.run()
        yield crashing


@pytest.fixture(autouse=True)
def settled(airflow: CrashingAirflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Before each test there are two segments to copy; after it nothing is left of what died."""
    airflow.append_two_segments()
    yield
    files = airflow.files
    airflow.limit()
    airflow.run()
    with files.open() as remote_log:
        for number in (0, 1):
            closed = files.local_starts(number=number)[:-1]
            partition = partition_of(number=number)
            copied = [segment.start_offset for segment in finished(segments_of(remote_log, partition))]
            # Retention may have deleted the beginning of both tiers, each by its own limit.
            begin = max(closed[0], remote_log.context.segments.log_start_offset(partition) or 0)
            assert [start for start in copied if start >= begin] == [start for start in closed if start >= begin]
        assert_readable(remote_log)
    clock = SharedClock(tmp_path / "clock")
    clock.move_by(GRACE_MS + 1)
    monkeypatch.setattr("tiered_storage.clock.time", clock.time_module())
    files.clock = clock
    run(files, "expire")
    assert_settled(files)


def driver_of(worker: psutil.Process) -> psutil.Process:
    """Return the JVM of spark-submit."""
    return [one for one in worker.parents() if one.name() == "java"][-1]


def task_of(worker: psutil.Process) -> psutil.Process:
    """Return the process that runs the task's code."""
    parent = driver_of(worker).parent()
    assert parent is not None
    return parent


def test_copies_without_a_result_are_lost_with_a_killed_worker(airflow: CrashingAirflow) -> None:
    run, worker = airflow.halted_worker(CrashPoint.AFTER_MARKER)
    looks: list[set[str]] = []

    def is_the_only_one_at_work() -> bool:
        # Other workers write their results within moments of their markers.
        time.sleep(3)
        looks.append(airflow.left_without_result())
        return looks[-1] != set() and looks[-2:-1] == looks[-1:]

    assert wait_until(is_the_only_one_at_work, 120)
    worker.kill()

    # Red where another worker had left results, which are committed; else the copy is tried again.
    assert airflow.finish(run).state in {"success", "failed"}
    with airflow.files.open() as remote_log:
        assert finished_ids(remote_log).isdisjoint(looks[-1])
    airflow.run()
    with airflow.files.open() as remote_log:
        assert finished_ids(remote_log).isdisjoint(looks[-1])


def finished_ids(remote_log: RemoteLogManager) -> set[str]:
    return {segment.segment_id.id for segment in finished(all_segments(remote_log))}


KILLED_TASKS = [
    ("copy_segments", "commit_metadata", CrashPoint.BEFORE_FINISHED),
    ("copy_segments", "commit_metadata", CrashPoint.AFTER_FINISHED),
    ("expire_remote_segments", "mark_deleted", CrashPoint.AFTER_LOG_START),
    ("expire_remote_segments", "mark_deleted", CrashPoint.AFTER_MARKED),
    ("expire_remote_segments", "delete", CrashPoint.AFTER_OBJECT_GONE),
    ("expire_remote_segments", "delete", CrashPoint.BEFORE_DELETED),
    ("enforce_local_retention", "trim", CrashPoint.BEFORE_LOCAL_FILE_GOES),
    ("enforce_local_retention", "trim", CrashPoint.AFTER_LOCAL_FILE_GONE),
    ("repair_remote_log", "commit_metadata", CrashPoint.BEFORE_FINISHED),
    ("repair_remote_log", "finish", CrashPoint.BEFORE_MARKED),
    ("repair_remote_log", "finish", CrashPoint.AFTER_MARKED),
]
"""The tasks that change anything without Spark, each killed where some of its work is done."""

LIMITS = {
    "expire_remote_segments": {"retention_bytes": 3 * SEGMENT_BYTES},
    "enforce_local_retention": {"local_retention_bytes": SEGMENT_BYTES},
}


@pytest.mark.parametrize(("dag_id", "task_id", "point"), KILLED_TASKS)
def test_a_killed_task_that_changes_the_log_is_tried_again_and_ends_what_it_began(
    airflow: CrashingAirflow, dag_id: str, task_id: str, point: CrashPoint
) -> None:
    if dag_id != "copy_segments":
        airflow.run()
    airflow.limit(**LIMITS.get(dag_id, {}))
    before = begins(airflow.files)
    damaged = lose_newest_data(airflow.files) if dag_id == "repair_remote_log" else None

    run, task = airflow.halted(dag_id, task_id, point)
    assert "java" not in {one.name() for one in task.parents()}
    task.kill()

    ended = airflow.finish(run)
    with airflow.api() as api:
        assert ended.state == "success", api.failures(ended)
    assert airflow.tries(run, task_id) == 2
    after = begins(airflow.files)
    assert (after.local > before.local) == (dag_id == "enforce_local_retention")
    assert (after.remote > before.remote) == (dag_id == "expire_remote_segments")
    with airflow.files.open() as remote_log:
        assert_readable(remote_log)
        assert damaged not in finished_ids(remote_log)


@dataclass(frozen=True, slots=True)
class Begins:
    """Where both tiers of orders-0 begin."""

    local: int
    remote: int


def begins(files: RemoteLogFiles) -> Begins:
    with files.open() as remote_log:
        return Begins(files.local_starts()[0], remote_log.context.segments.log_start_offset(partition_of()) or 0)


def lose_newest_data(files: RemoteLogFiles) -> str:
    """Remove the data of the newest remote segment of orders-0, which the local log still has; return its id."""
    with files.open() as remote_log:
        newest = finished(segments_of(remote_log))[-1].segment_id.id
    [data] = [path for path in files.objects(".log") if newest in path.name]
    data.unlink()
    return newest


@pytest.mark.parametrize("point", [CrashPoint.IN_DATA, CrashPoint.AFTER_MARKER])
def test_a_killed_driver_is_followed_by_another_try_and_its_worker_is_a_zombie(
    airflow: CrashingAirflow, point: CrashPoint
) -> None:
    run, worker = airflow.halted_worker(point)
    driver_of(worker).kill()
    ended = airflow.finish(run)
    airflow.let_proceed(worker)
    assert ended.state == "success"
    assert airflow.tries(run) == 2


def test_a_killed_task_is_tried_again_and_its_spark_job_ends_with_it(airflow: CrashingAirflow) -> None:
    run, worker = airflow.halted_worker(CrashPoint.AFTER_DATA)
    driver = driver_of(worker)
    task_of(worker).kill()
    assert wait_until(lambda: not is_running(driver), 30)
    airflow.let_proceed(worker)
    assert airflow.finish(run).state == "success"
    assert airflow.tries(run) == 2


def test_a_run_that_timed_out_ends_with_its_spark_job_and_another_run_copies_its_segments(
    airflow: CrashingAirflow,
) -> None:
    run, worker = airflow.halted_worker(CrashPoint.AFTER_DATA)
    driver = driver_of(worker)
    with airflow.files.open() as remote_log:
        before = finished_ids(remote_log)
    airflow.began_long_ago(run)
    assert airflow.finish(run).state == "failed"
    assert wait_until(lambda: not is_running(driver), 120)
    airflow.let_proceed(worker)
    with airflow.files.open() as remote_log:
        assert finished_ids(remote_log) == before
        held = [lease for lease in remote_log.context.leases.held() if run.run_id in lease.owner]
        assert {lease.topic_id_partition for lease in held} == {partition_of(number=0), partition_of(number=1)}
        # They end by themselves after lease.duration.ms; a person who does not want to wait ends them.
        for lease in held:
            remote_log.context.leases.end(lease.topic_id_partition, "test")


def test_a_killed_scheduler_leaves_a_task_that_continues(airflow: CrashingAirflow) -> None:
    run, worker = airflow.halted_worker(CrashPoint.AFTER_DATA)
    airflow.kill_scheduler()
    airflow.let_proceed(worker)
    airflow.restart_scheduler()
    assert airflow.finish(run).state == "success"


def test_a_killed_scheduler_whose_task_stands_still_is_followed_by_another_try(airflow: CrashingAirflow) -> None:
    run, worker = airflow.halted_worker(CrashPoint.AFTER_DATA)
    airflow.kill_scheduler()
    airflow.restart_scheduler()
    ended = airflow.finish(run)
    airflow.let_proceed(worker)
    assert ended.state == "success"
