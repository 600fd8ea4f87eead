"""Ends the embedded Airflow and everything that it started, in an order in which running tasks can still report.

1  SIGTERM to the scheduler, the DAG processor and the triggerer; the scheduler waits for tasks that run
2  SIGTERM to the supervisors of those tasks, which pass it on: an operator's on_kill ends its Spark job
3 SIGKILL to tasks that continue nevertheless: their supervisors report them as failed, so that they are tried again
4  SIGTERM to the API server, which all of that was reported to
5  SIGKILL to whatever is left: with no task running, Airflow's processes have nothing to lose, and now and then the
   scheduler hangs on a worker that has nothing to do, and the triggerer sleeps on after its triggers have ended
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress

import psutil

from tiered_storage_airflow.embedded.processes import (
    EmbeddedAirflowError,
    is_running,
    members,
    signal_all,
    wait_ended,
    wait_until,
)
from tiered_storage_airflow.embedded.record import (
    API_SERVER,
    SERVICE_NAMES,
    RunningAirflow,
    remove_record,
)

TASK_GRACE = 10.0
_SERVICE_GRACE = 4.0
_LAST_CHECKS = 3


def stop(running: RunningAirflow, task_grace: float = TASK_GRACE) -> None:
    """End every process of `running` and forget it. Tasks that run get `task_grace` seconds to end by themselves.

    Raises EmbeddedAirflowError if a process survives even SIGKILL.
    """
    everything = members(running.services, running.mark)
    api_server = _processes(running, API_SERVER)
    workers = _processes(running, *(set(SERVICE_NAMES) - {API_SERVER}))
    signal_all(workers, signal.SIGTERM)
    if not wait_until(lambda: not _tasks(workers), task_grace):
        signal_all(_children(workers), signal.SIGTERM)
    if not wait_until(lambda: not _tasks(workers), task_grace / 2):
        signal_all(_tasks(workers), signal.SIGKILL)
    wait_ended(workers, _SERVICE_GRACE)
    signal_all(api_server, signal.SIGTERM)
    wait_ended(api_server, _SERVICE_GRACE)
    _kill(everything)
    # A process may have started another one just before it was killed.
    for _ in range(_LAST_CHECKS):
        _kill(members(running.services, running.mark))
    remove_record(running)


def _processes(running: RunningAirflow, *names: str) -> list[psutil.Process]:
    return [
        psutil.Process(service.pid) for service in running.services if service.name in names and service.is_running()
    ]


def _children(processes: Iterable[psutil.Process], *, recursive: bool = False) -> list[psutil.Process]:
    children: list[psutil.Process] = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            children += process.children(recursive=recursive)
    return children


def _tasks(workers: Iterable[psutil.Process]) -> list[psutil.Process]:
    """The processes of running tasks: Airflow gives each task a process group of its own in the scheduler's session."""
    tasks = []
    for process in _children(workers, recursive=True):
        with suppress(ProcessLookupError):
            if os.getpgid(process.pid) != os.getsid(process.pid) and is_running(process):
                tasks.append(process)
    return tasks


def _kill(processes: Iterable[psutil.Process]) -> None:
    left = [process for process in set(processes) if is_running(process)]
    signal_all(left, signal.SIGKILL)
    if not wait_ended(left, _SERVICE_GRACE):
        ids = ", ".join(str(process.pid) for process in left if is_running(process))
        raise EmbeddedAirflowError(f"processes {ids} of the embedded Airflow do not end even by SIGKILL")
