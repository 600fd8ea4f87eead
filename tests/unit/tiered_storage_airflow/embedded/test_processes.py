"""Services as processes: found again by id and start, ended with everything they started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tiered_storage_airflow.embedded import stopping
from tiered_storage_airflow.embedded.processes import (
    MARK_VARIABLE,
    ServiceProcess,
    is_running,
    members,
    signal_all,
    start,
    wait_ended,
)
from tiered_storage_airflow.embedded.processes import wait_until as wait_until_at_intervals
from tiered_storage_airflow.embedded.record import RunningAirflow, read_record, write_record
from tiered_storage_airflow.embedded.stopping import stop

MARK = f"test-{os.getpid()}"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    marked = members([], MARK)
    signal_all(marked, signal.SIGKILL)
    assert wait_ended(marked, 10)


def wait_until(condition: Callable[[], bool]) -> bool:
    return wait_until_at_intervals(condition, 10, interval=0.01)


def start_shell(home: Path, script: str, name: str = "scheduler") -> ServiceProcess:
    """Start a service that runs `script` and says so in the file `ready` once it is set up."""
    environment = {**os.environ, MARK_VARIABLE: MARK}
    ready = home / f"{name}.ready"
    command = ["bash", "-c", f"{script.replace('READY', f'touch {ready}')}"]
    service = start(name, command, environment, log=home / "logs" / f"{name}.log", directory=home)
    assert wait_until(ready.exists)
    return service


def record(home: Path, *services: ServiceProcess) -> RunningAirflow:
    running = RunningAirflow(home, "http://127.0.0.1:8080", None, MARK, services)
    write_record(running)
    return running


def test_a_service_runs_in_a_session_of_its_own_and_logs_into_its_file(home: Path) -> None:
    service = start_shell(home, "echo hello; READY; sleep 60")
    assert service.is_running()
    assert os.getsid(service.pid) == service.pid
    assert (home / "logs" / "scheduler.log").read_text() == "hello\n"


def test_the_log_of_the_start_before_is_kept(home: Path) -> None:
    start_shell(home, "echo first; READY")
    start_shell(home, "echo second; READY")
    assert wait_until(lambda: (home / "logs" / "scheduler.log").read_text() == "second\n")
    assert (home / "logs" / "scheduler.log.1").read_text() == "first\n"


def test_an_id_that_was_given_to_another_process_is_not_ours(home: Path) -> None:
    foreign = start_shell(home, "READY; sleep 60")
    recycled = replace(foreign, started="an earlier start")
    assert not recycled.is_running()
    assert members([recycled], "another mark") == []
    stop(replace(record(home, recycled), mark="another mark"), task_grace=0.2)
    assert foreign.is_running()


def test_a_service_of_an_earlier_boot_has_left_nothing(home: Path) -> None:
    service = start_shell(home, "READY")
    assert wait_until(lambda: not service.is_running())
    os.waitpid(service.pid, 0)
    assert service.may_have_left_orphans()
    assert not replace(service, started="another boot:1").may_have_left_orphans()


def test_workers_in_the_session_of_an_ended_service_are_found_by_their_title(home: Path) -> None:
    # Airflow's workers write their title over their arguments, and over the mark in their environment.
    service = start_shell(home, f"env -u {MARK_VARIABLE} bash -c 'exec -a \"airflow worker\" sleep 60' & READY")
    assert wait_until(lambda: not service.is_running())
    os.waitpid(service.pid, 0)
    left = ["airflow worker", "60"]
    assert wait_until(lambda: [p.cmdline() for p in members([service], "another mark")] == [left])
    signal_all(members([service], "another mark"), signal.SIGKILL)


def test_an_ended_service_does_not_run_though_nobody_waited_for_it(home: Path) -> None:
    service = start_shell(home, "READY")
    assert wait_until(lambda: not service.is_running())
    assert members([service], MARK) == []


def test_members_are_all_that_was_started_also_outside_of_the_session(home: Path) -> None:
    service = start_shell(home, "sleep 60 & setsid sleep 60 & READY; wait")
    assert wait_until(lambda: len(members([service], "")) == 3)
    assert sorted(process.name() for process in members([service], "")) == ["bash", "sleep", "sleep"]


def test_processes_that_outlive_their_service_are_found_by_the_mark(home: Path) -> None:
    service = start_shell(home, "sleep 60 & setsid sleep 60 & READY")
    assert wait_until(lambda: not service.is_running())
    os.waitpid(service.pid, 0)
    # setsid becomes sleep a moment later.
    assert wait_until(lambda: [process.name() for process in members([service], MARK)] == ["sleep", "sleep"])
    assert members([service], "another mark") == []


def test_stopping_ends_everything_and_forgets_it(home: Path) -> None:
    services = [
        start_shell(home, "sleep 60 & setsid sleep 60 & READY; wait"),
        start_shell(home, "READY; sleep 60", name="api-server"),
    ]
    running = record(home, *services)
    stop(running)
    assert members(services, MARK) == []
    assert read_record(home) is None


def test_stopping_kills_what_does_not_listen(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "_SERVICE_GRACE", 0.3)
    stubborn = start_shell(home, "trap '' TERM; READY; while true; do sleep 1; done")
    stop(record(home, stubborn))
    assert members([stubborn], MARK) == []


# As Airflow's scheduler does: it goes when its task has, which runs in a process group of its own.
SCHEDULER = """
import pathlib, signal, subprocess, sys

signal.signal(signal.SIGTERM, lambda *_: None)
code = subprocess.Popen([sys.executable, "task.py"], process_group=0).wait()
pathlib.Path("outcome").write_text(f"the task ended with {code}")
"""
TASK = """
import pathlib, signal, sys, time

signal.signal(signal.SIGTERM, ON_SIGTERM)
pathlib.Path("scheduler.ready").touch()
time.sleep(SECONDS)
"""


@pytest.mark.parametrize(
    ("on_sigterm", "seconds", "grace", "outcome"),
    [
        ("signal.SIG_IGN", 0.3, 10, "the task ended with 0"),
        ("lambda *_: sys.exit(7)", 60, 2, "the task ended with 7"),
        ("signal.SIG_IGN", 60, 0.2, "the task ended with -9"),
    ],
    ids=["it may end by itself", "it hears of the end", "it is killed when it continues all the same"],
)
def test_a_task_ends_before_its_scheduler_which_can_still_report(
    home: Path, on_sigterm: str, seconds: float, grace: float, outcome: str
) -> None:
    (home / "scheduler.py").write_text(SCHEDULER)
    (home / "task.py").write_text(TASK.replace("ON_SIGTERM", on_sigterm).replace("SECONDS", str(seconds)))
    service = start_shell(home, f"exec {sys.executable} scheduler.py")
    stop(record(home, service), task_grace=grace)
    assert (home / "outcome").read_text() == outcome
    assert members([service], MARK) == []


def test_a_process_that_ended_before_it_is_signalled_is_no_error() -> None:
    child = subprocess.Popen(["true"])
    process = psutil.Process(child.pid)
    child.wait()
    signal_all([process], signal.SIGTERM)
    assert not is_running(process)
