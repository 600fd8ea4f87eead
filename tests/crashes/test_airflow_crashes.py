"""Scenario 10 through Airflow and Spark: the Spark worker, its driver, the task and the scheduler are killed.

An embedded Airflow is really started; a worker stands still in the middle of a copy while its killer looks for them.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pytest

from support.aftermath import GRACE_MS, assert_readable, assert_settled, finished_ranges, run
from support.crash_points import CrashPoint
from support.halting_storage import HALT
from support.remote_logs import RemoteLogFiles, a_remote_log
from support.shared_clock import SharedClock
from tiered_storage_airflow.embedded import services
from tiered_storage_airflow.embedded.api_client import AirflowApi, DagRun
from tiered_storage_airflow.embedded.credentials import read
from tiered_storage_airflow.embedded.environment import (
    EmbeddedAirflow,
    airflow_environment,
    virtual_environment_bin,
)
from tiered_storage_airflow.embedded.java import java_home
from tiered_storage_airflow.embedded.processes import (
    MARK_VARIABLE,
    ServiceProcess,
    is_running,
    members,
    signal_all,
    start,
)
from tiered_storage_airflow.embedded.record import SCHEDULER, RunningAirflow, write_record
from tiered_storage_airflow.embedded.waiting import wait_until

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

PROJECT = Path(__file__).parents[2]
STORAGE = "support.halting_storage.HaltingStorage"
PARTITIONS = {("orders", 0): 2, ("orders", 1): 2}


@dataclass(slots=True)
class CrashingAirflow:
    """An embedded Airflow with a copy of the DAG that is not on a schedule, and the remote log it copies to."""

    files: RemoteLogFiles
    embedded: EmbeddedAirflow
    environ: Mapping[str, str]
    running: RunningAirflow
    halt: Path
    killed: list[ServiceProcess] = field(default_factory=list)
    """Schedulers that were killed: what they left waits for work for ever."""

    def api(self) -> AirflowApi:
        return services.connect(self.running)

    def append_two_segments(self) -> None:
        """Let each partition have two more closed segments."""
        for number in (0, 1):
            self.files.append(4, number=number)

    def halted_worker(self, point: CrashPoint) -> tuple[DagRun, psutil.Process]:
        """Start a run and wait until one of its workers stands still at `point`."""
        self.halt.mkdir(exist_ok=True)
        for name in ("worker", "go-on"):
            (self.halt / name).unlink(missing_ok=True)
        (self.halt / "at").write_text(point)
        with self.api() as api:
            run = api.trigger("copy_segments")
        told = self.halt / "worker"
        assert wait_until(lambda: told.exists() and told.read_text() != "", 120)
        worker = psutil.Process(int(told.read_text()))
        assert wait_until(lambda: worker.status() == psutil.STATUS_STOPPED, 60)
        (self.halt / "at").unlink()
        return run, worker

    def let_go_on(self, worker: psutil.Process) -> None:
        """Let it go on, if it was not killed; as a zombie where it was left alone."""
        (self.halt / "go-on").touch()
        while is_running(worker) and worker.status() == psutil.STATUS_STOPPED:
            worker.send_signal(signal.SIGCONT)

    def finish(self, run: DagRun) -> DagRun:
        """Wait for the run's end."""
        with self.api() as api:
            return api.wait_for_run(run, 300)

    def run(self) -> None:
        """Start a run, which has to succeed."""
        with self.api() as api:
            ended = api.wait_for_run(api.trigger("copy_segments"), 300)
            assert ended.state == "success", api.failures(ended)

    def tries(self, run: DagRun) -> int:
        """Return how often the copy was tried."""
        with self.api() as api:
            return next(task.try_number for task in api.task_instances(run) if task.task_id == "copy")

    def restart_scheduler(self) -> None:
        """Start a scheduler in place of one that was killed, with the rest of Airflow, and its tasks, as they are."""
        environment = airflow_environment(
            self.embedded,
            read(self.embedded.home),
            java_home(self.embedded.state, self.environ),
            self.environ,
        )
        command = [str(virtual_environment_bin() / "airflow"), "scheduler", "--skip-serve-logs"]
        log = self.running.service_logs / f"{SCHEDULER}.log"
        marked = {**environment, MARK_VARIABLE: self.running.mark}
        scheduler = start(SCHEDULER, command, marked, log=log, directory=self.running.home)
        others = [one for one in self.running.services if one.name != SCHEDULER]
        self.killed += [one for one in self.running.services if one.name == SCHEDULER]
        self.running = replace(self.running, services=(*others, scheduler))
        write_record(self.running)


def _dags(folder: Path) -> Path:
    """Write the DAG with no schedule, and with retries that come at once."""
    folder.mkdir()
    code = (PROJECT / "dags" / "copy_segments.py").read_text()
    for found, put in (
        ('schedule=CronDataIntervalTimetable("*/5 * * * *", timezone="UTC")', "schedule=None"),
        ("{**RETRIED,", '{**RETRIED, "retry_delay": timedelta(seconds=1),'),
    ):
        assert found in code
        code = code.replace(found, put)
    (folder / "copy_segments.py").write_text(code)
    return folder


def _plugins(folder: Path) -> Path:
    """Make what is in a plugins folder importable: the storage of these tests."""
    folder.mkdir()
    (folder / "support").symlink_to(PROJECT / "tests" / "support")
    (folder / ".airflowignore").write_text("support\n")
    return folder


def _spark(folder: Path) -> Path:
    folder.mkdir()
    (folder / "spark-defaults.conf").write_text(f"spark.executorEnv.PYTHONPATH {PROJECT / 'tests'}\n")
    return folder


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory, state_directory: Path) -> Iterator[CrashingAirflow]:
    root = tmp_path_factory.mktemp("crashing-airflow")
    files = a_remote_log(root, PARTITIONS, remote_log_storage_manager_class_name=STORAGE)
    files.clock = SharedClock(root / "clock")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    embedded = EmbeddedAirflow(
        root / "airflow-state",
        config=files.config,
        port=port,
        dags_folder=_dags(root / "dags"),
        plugins_folder=_plugins(root / "plugins"),
    )
    environ = {
        **os.environ,
        HALT: str(root / "halt"),
        "SPARK_CONF_DIR": str(_spark(root / "spark-conf")),
        # A task that nobody hears of any more is dead after seconds and not after minutes.
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_SEC": "2",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
        "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
    }
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(HALT, str(root / "halt"))
        running = services.up(embedded, say=lambda _: None, environ=environ)
        crashing = CrashingAirflow(files, embedded, environ, running, root / "halt")
        try:
            with crashing.api() as api:
                api.unpause("copy_segments")
            crashing.run()
            yield crashing
        finally:
            services.down(root / "airflow-state", say=lambda _: None)
            signal_all(members(crashing.killed, running.mark), signal.SIGKILL)


@pytest.fixture(autouse=True)
def settled(airflow: CrashingAirflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Before each test there are two segments to copy; after it nothing is left of what died."""
    airflow.append_two_segments()
    yield
    files = airflow.files
    airflow.run()
    with files.open() as remote_log:
        closed = [segment.base_offset for segment in files.local_segments()[:-1]]
        for name in ("orders-0", "orders-1"):
            assert [start for partition, start, _ in finished_ranges(remote_log) if partition == name] == closed
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


def test_a_killed_worker_takes_with_it_what_it_left_no_result_of(airflow: CrashingAirflow) -> None:
    run, worker = airflow.halted_worker(CrashPoint.AFTER_MARKER)
    worker.kill()
    assert airflow.finish(run).state in {"success", "failed"}


@pytest.mark.parametrize("point", [CrashPoint.IN_DATA, CrashPoint.AFTER_MARKER])
def test_a_killed_driver_is_followed_by_another_try_and_its_worker_is_a_zombie(
    airflow: CrashingAirflow, point: CrashPoint
) -> None:
    run, worker = airflow.halted_worker(point)
    driver_of(worker).kill()
    ended = airflow.finish(run)
    airflow.let_go_on(worker)
    assert ended.state == "success"
    assert airflow.tries(run) == 2


def test_a_killed_task_is_tried_again_and_its_spark_job_is_a_zombie(airflow: CrashingAirflow) -> None:
    run, worker = airflow.halted_worker(CrashPoint.AFTER_DATA)
    task_of(worker).kill()
    airflow.let_go_on(worker)
    assert airflow.finish(run).state == "success"
    assert airflow.tries(run) == 2


def test_a_killed_scheduler_leaves_a_task_that_goes_on(airflow: CrashingAirflow) -> None:
    run, worker = airflow.halted_worker(CrashPoint.AFTER_DATA)
    [scheduler] = [one for one in airflow.running.services if one.name == SCHEDULER]
    psutil.Process(scheduler.pid).kill()
    airflow.let_go_on(worker)
    airflow.restart_scheduler()
    assert airflow.finish(run).state == "success"


def test_a_killed_scheduler_whose_task_stands_still_is_followed_by_another_try(airflow: CrashingAirflow) -> None:
    run, worker = airflow.halted_worker(CrashPoint.AFTER_DATA)
    [scheduler] = [one for one in airflow.running.services if one.name == SCHEDULER]
    psutil.Process(scheduler.pid).kill()
    airflow.restart_scheduler()
    ended = airflow.finish(run)
    airflow.let_go_on(worker)
    assert ended.state == "success"
