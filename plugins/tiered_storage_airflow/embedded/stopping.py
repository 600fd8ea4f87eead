"""Ends the embedded Airflow and everything that it started, in an order in which running tasks can still report.

1  SIGTERM to the scheduler, the DAG processor and the triggerer; the scheduler waits for tasks that run
2  SIGTERM to the supervisors of those tasks, which pass it on: an operator's on_kill ends its Spark job
3  SIGKILL to tasks that go on all the same: their supervisors report them as failed, so that they are tried again
4  SIGTERM to the API server, which all of that was reported to
5  SIGKILL to whatever is left
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

import psutil

from tiered_storage_airflow.embedded.errors import EmbeddedAirflowError
from tiered_storage_airflow.embedded.processes import ServiceProcess, is_running, members, signal_all, wait_ended
from tiered_storage_airflow.embedded.record import API_SERVER, RunningAirflow, remove_record

GRACE = 10.0
# It keeps nothing that could be lost, and its interpreter takes seconds to go.
API_SERVER_GRACE = 3.0


def stop(running: RunningAirflow, grace: float = GRACE) -> None:
    """End every process of `running` and forget it. Tasks that run get `grace` seconds to end by themselves.

    Raises EmbeddedAirflowError where a process survives even SIGKILL.
    """
    everything = members(running.services, running.mark)
    workers = _processes(service for service in running.services if service.name != API_SERVER)
    signal_all(workers, signal.SIGTERM)
    if not wait_ended(workers, grace):
        signal_all([child for worker in workers for child in _children(worker)], signal.SIGTERM)
    if not wait_ended(workers, grace / 2):
        signal_all(filter(_is_in_task, members(running.services, running.mark)), signal.SIGKILL)
    wait_ended(workers, grace / 2)
    api_servers = _processes(service for service in running.services if service.name == API_SERVER)
    signal_all(api_servers, signal.SIGTERM)
    wait_ended(api_servers, API_SERVER_GRACE)
    _kill([*everything, *members(running.services, running.mark)], grace)
    remove_record(running)


def _processes(services: Iterable[ServiceProcess]) -> list[psutil.Process]:
    return [psutil.Process(service.pid) for service in services if service.is_running()]


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        children: list[psutil.Process] = process.children()
    except psutil.NoSuchProcess:
        return []
    return children


def _is_in_task(process: psutil.Process) -> bool:
    """Airflow gives each task a process group of its own, within the session of the scheduler."""
    try:
        return os.getpgid(process.pid) != os.getsid(process.pid)
    except ProcessLookupError:
        return False


def _kill(processes: Iterable[psutil.Process], seconds: float) -> None:
    left = [process for process in set(processes) if is_running(process)]
    signal_all(left, signal.SIGKILL)
    if not wait_ended(left, seconds):
        ids = ", ".join(str(process.pid) for process in left if is_running(process))
        raise EmbeddedAirflowError(f"processes {ids} of the embedded Airflow do not end even by SIGKILL")
