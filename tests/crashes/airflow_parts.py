"""An embedded Airflow whose processes are halted and killed: its DAGs, its storage, and another scheduler."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from crashes.crash_points import CrashPoint
from crashes.storages import HALT
from tiered_storage_airflow.demo_cluster.brokers import free_ports
from tiered_storage_airflow.embedded import services
from tiered_storage_airflow.embedded.api_client import AirflowApi, DagRun
from tiered_storage_airflow.embedded.credentials import read
from tiered_storage_airflow.embedded.environment import (
    DATABASE_VARIABLE,
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
    wait_until,
)
from tiered_storage_airflow.embedded.record import SCHEDULER, RunningAirflow, write_record

PROJECT = Path(__file__).parents[2]
STORAGE = "crashes.storages.HaltingStorage"
SOON_DEAD = {
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_SEC": "2",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
}
"""Settings by which a task without a heartbeat counts as dead after seconds, not minutes."""


def hasty_dags(folder: Path, dag_ids: Sequence[str], schedules: Mapping[str, str] | None = None) -> Path:
    """Write the DAGs, with retries that come at once; those without one of the `schedules` have none.

    Return their folder.
    """
    folder.mkdir()
    for dag_id in dag_ids:
        code = (PROJECT / "dags" / f"{dag_id}.py").read_text()
        for found, put in (
            (r"^    schedule=(?:.*,|.*\($(?:\n     .*$)*\n    \),)$", f"    schedule={(schedules or {}).get(dag_id)},"),
            (r"\*\*DEFAULT_ARGS,", '**DEFAULT_ARGS, "retry_delay": timedelta(seconds=1),'),
        ):
            code, count = re.subn(found, put, code, flags=re.MULTILINE)
            assert count == 1, (dag_id, found)
        (folder / f"{dag_id}.py").write_text(code)
    return folder


@dataclass(slots=True)
class HaltingAirflow:
    """An embedded Airflow that halts a worker or a task in the middle of its work, at most one at a time.

    Its remote log has the storage STORAGE.
    """

    embedded: EmbeddedAirflow
    environ: Mapping[str, str]
    running: RunningAirflow
    halt: Path
    killed: list[ServiceProcess] = field(default_factory=list)
    """Killed schedulers, whose child processes wait for work forever."""

    def api(self) -> AirflowApi:
        """Log in."""
        return services.connect(self.running)

    def halt_next(self, task_id: str | None, point: CrashPoint) -> None:
        """Halt the next process of a task at `point`; without a task, the next worker of Spark."""
        self.halt.mkdir(exist_ok=True)
        for name in ("worker", "proceed", "task"):
            (self.halt / name).unlink(missing_ok=True)
        if task_id is not None:
            (self.halt / "task").write_text(task_id)
        (self.halt / "at").write_text(point)

    def wait_for_halted(self) -> psutil.Process:
        """Wait until the process halts, and return it."""
        pid_file = self.halt / "worker"
        assert wait_until(lambda: pid_file.exists() and pid_file.read_text() != "", 600)
        worker = psutil.Process(int(pid_file.read_text()))
        assert wait_until(lambda: worker.status() == psutil.STATUS_STOPPED, 60)
        (self.halt / "at").unlink()
        return worker

    def halted(self, dag_id: str, task_id: str | None, point: CrashPoint) -> tuple[DagRun, psutil.Process]:
        """Start a run and wait until its task's process, or the first worker there, halts at `point`."""
        self.halt_next(task_id, point)
        with self.api() as api:
            run = api.trigger(dag_id, {"dry_run": False})
        return run, self.wait_for_halted()

    def let_proceed(self, worker: psutil.Process) -> None:
        """Let it continue if it was not killed; a task that was given up continues as a zombie."""
        (self.halt / "proceed").touch()
        while is_running(worker) and worker.status() == psutil.STATUS_STOPPED:
            worker.send_signal(signal.SIGCONT)

    def kill_scheduler(self) -> None:
        """Kill it; its tasks continue."""
        [scheduler] = [one for one in self.running.services if one.name == SCHEDULER]
        self.killed.append(scheduler)
        psutil.Process(scheduler.pid).kill()

    def restart_scheduler(self) -> None:
        """Start a scheduler in place of one that was killed, with the rest of Airflow, and its tasks, as they are."""
        self.running = with_another_scheduler(self.running, self.embedded, self.environ)


Kind = TypeVar("Kind", bound=HaltingAirflow)


@contextmanager
def halting_airflow(
    kind: Callable[[EmbeddedAirflow, Mapping[str, str], RunningAirflow, Path], Kind],
    root: Path,
    config: Path,
    dag_ids: Sequence[str],
    schedules: Mapping[str, str] | None = None,
) -> Iterator[Kind]:
    """Run an Airflow on the remote log of `config`, with its files below `root`; see hasty_dags."""
    embedded = EmbeddedAirflow(
        root / "airflow-state",
        config=config,
        port=free_ports(1)[0],
        dags_folder=hasty_dags(root / "dags", dag_ids, schedules),
        plugins_folder=_plugins(root / "plugins"),
    )
    own = {HALT: str(root / "halt"), "SPARK_CONF_DIR": str(_spark(root / "spark-conf"))}
    environ = {**os.environ, DATABASE_VARIABLE: "", **own, **SOON_DEAD}
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(HALT, own[HALT])
        airflow = kind(embedded, environ, services.up(embedded, report=lambda _: None, environ=environ), root / "halt")
        try:
            with airflow.api() as api:
                for dag_id in dag_ids:
                    api.unpause(dag_id)
            yield airflow
        finally:
            services.down(embedded.state, report=lambda _: None)
            signal_all(members(airflow.killed, airflow.running.mark), signal.SIGKILL)


def _plugins(folder: Path) -> Path:
    """Make what is in a plugins folder importable: the storage of these tests."""
    folder.mkdir()
    (folder / "crashes").symlink_to(PROJECT / "tests" / "crashes")
    (folder / ".airflowignore").write_text("crashes\n")
    return folder


def _spark(folder: Path) -> Path:
    folder.mkdir()
    (folder / "spark-defaults.conf").write_text(f"spark.executorEnv.PYTHONPATH {PROJECT / 'tests'}\n")
    return folder


def with_another_scheduler(
    running: RunningAirflow, embedded: EmbeddedAirflow, environ: Mapping[str, str]
) -> RunningAirflow:
    """Start a scheduler in place of one that was killed, with the rest of Airflow, and its tasks, as they are."""
    environment = airflow_environment(embedded, read(embedded.home), java_home(embedded.state, environ), environ)
    command = [str(virtual_environment_bin() / "airflow"), "scheduler", "--skip-serve-logs"]
    log = running.service_logs / f"{SCHEDULER}.log"
    marked = {**environment, MARK_VARIABLE: running.mark}
    scheduler = start(SCHEDULER, command, marked, log=log, directory=running.home)
    others = [one for one in running.services if one.name != SCHEDULER]
    restarted = replace(running, services=(*others, scheduler))
    write_record(restarted)
    return restarted
