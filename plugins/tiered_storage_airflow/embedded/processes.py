"""The processes of the embedded Airflow: started each in a session of its own, found again later, and ended whole.

A process is known by its id and by the moment it started, so that an id which the machine gave to somebody else is
never signalled. What a service starts stays in the service's session (Airflow gives its tasks process groups of their
own, Spark's JVM stays in its task's group); what leaves the session carries the mark that each process inherits by
its environment.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tiered_storage_airflow.embedded.waiting import wait_until

MARK_VARIABLE = "REMOTE_LOG_EMBEDDED_AIRFLOW"
_AIRFLOW_TITLE = "airflow "


@dataclass(frozen=True, slots=True)
class ServiceProcess:
    """A service that was started: its name, process id (its session's id too) and when it started, on this boot."""

    name: str
    pid: int
    started: str

    def is_running(self) -> bool:
        """Whether this very process still runs."""
        try:
            return start_of(self.pid) == self.started and is_running(psutil.Process(self.pid))
        except psutil.NoSuchProcess:
            return False


def start_of(pid: int) -> str:
    """Return when process `pid` started, in a form that no other process of that id has; raises psutil.NoSuchProcess.

    On Linux: the boot's id and the clock ticks since then, which a change of the machine's clock leaves alone.
    """
    stat = Path("/proc") / str(pid) / "stat"
    boot = Path("/proc/sys/kernel/random/boot_id")
    if not boot.exists():
        return repr(psutil.Process(pid).create_time())
    try:
        fields_after_name = stat.read_text().rpartition(")")[2].split()
    except OSError as error:
        raise psutil.NoSuchProcess(pid) from error
    return f"{boot.read_text().strip()}:{fields_after_name[19]}"


def start(
    name: str, command: Sequence[str], environment: Mapping[str, str], *, log: Path, directory: Path
) -> ServiceProcess:
    """Start a service in a session of its own and in `directory`; its output goes to `log`, the former one to .1."""
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists():
        log.replace(log.with_name(f"{log.name}.1"))
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=directory,
        )
    service = ServiceProcess(name, process.pid, start_of(process.pid))
    # It outlives this object, and is ended by its id, maybe by another program: nobody is to be warned of that.
    process.returncode = 0
    return service


def members(services: Iterable[ServiceProcess], mark: str) -> list[psutil.Process]:
    """Return every process that `services` are, or have started and left behind, and that still runs.

    Of a service that is gone, only those of its session count that carry `mark` or Airflow's own title: the id of a
    session can have been given away since.
    """
    alive = {service.pid for service in services if service.is_running()}
    gone = {service.pid for service in services} - alive
    found = {process.pid: process for pid in alive for process in _with_descendants(pid)}
    for process in psutil.process_iter():
        if process.pid not in found and _belongs(process, alive, gone, mark):
            found[process.pid] = process
    return [process for process in found.values() if is_running(process)]


def _with_descendants(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _belongs(process: psutil.Process, alive: set[int], gone: set[int], mark: str) -> bool:
    try:
        session = os.getsid(process.pid)
        if session in alive:
            return True
        if process.environ().get(MARK_VARIABLE) == mark:
            return True
        # Airflow's worker processes write their title over their environment.
        title = "".join(process.cmdline()[:1])
        return session in gone and process.pid not in gone and title.startswith(_AIRFLOW_TITLE)
    except (psutil.Error, OSError):
        # Of another user, or ended meanwhile.
        return False


def is_running(process: psutil.Process) -> bool:
    """Whether this very process still runs (one that ended and was not waited for does not)."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def signal_all(processes: Iterable[psutil.Process], signal_number: int) -> None:
    """Send a signal to each process that is still the one it was when it was found."""
    for process in processes:
        try:
            process.send_signal(signal_number)
        except psutil.NoSuchProcess:
            continue


def wait_ended(processes: Sequence[psutil.Process], seconds: float) -> bool:
    """Wait until none of `processes` runs, at most `seconds`; return whether that came."""
    ended = wait_until(lambda: not any(is_running(process) for process in processes), seconds, interval=0.1)
    # Those that this very program started are zombies until they are waited for.
    psutil.wait_procs(processes, timeout=0)
    return ended
