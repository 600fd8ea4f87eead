"""The processes of the embedded Airflow: each started in its own session, found again later, and ended completely.

A process is identified by its id and its start time, so that an id reused by the machine is never signalled. What a
service starts stays in the service's session (Airflow gives its tasks their own process groups, Spark's JVM stays in
its task's group); a process that leaves the session carries the mark that each process inherits in its environment.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tiered_storage.errors import TieredStorageError
from tiered_storage.private_files import make_private_folder, open_private


def wait_until(
    condition: Callable[[], bool],
    seconds: float,
    *,
    interval: float = 0.25,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Check `condition` every `interval` seconds until it holds or `seconds` have passed; return whether it held."""
    end = monotonic() + seconds
    while not condition():
        if monotonic() >= end:
            return False
        sleep(interval)
    return True


class EmbeddedAirflowError(TieredStorageError):
    """A service of the embedded Airflow did not start, answer or end as it should."""


MARK_VARIABLE = "REMOTE_LOG_EMBEDDED_AIRFLOW"
_AIRFLOW_TITLE = "airflow "
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class ServiceProcess:
    """A started service: its name, its process id (its session's id too) and its start time."""

    name: str
    pid: int
    started: str

    def holds_its_id(self) -> bool:
        """Return whether the id is still this process's, which may be a zombie by now."""
        try:
            return start_of(self.pid) == self.started
        except psutil.NoSuchProcess:
            return False

    def is_running(self) -> bool:
        """Return whether this very process still runs."""
        try:
            return self.holds_its_id() and is_running(psutil.Process(self.pid))
        except psutil.NoSuchProcess:
            return False

    def may_have_left_orphans(self) -> bool:
        """Return whether processes of its session may still run after it has ended: its id is free, without a
        reboot."""
        return self.started.startswith(_boot()) and not psutil.pid_exists(self.pid)


def start_of(pid: int) -> str:
    """Return when process `pid` started, in a form that no other process of that id has; raises psutil.NoSuchProcess.

    On Linux: the boot's id and the clock ticks since then, which a change of the machine's clock leaves alone.
    """
    if not _BOOT_ID.exists():
        return f"{_boot()}:{psutil.Process(pid).create_time()}"
    try:
        stat = (Path("/proc") / str(pid) / "stat").read_text()
    except OSError as error:
        raise psutil.NoSuchProcess(pid) from error
    fields_after_name = stat.rpartition(")")[2].split()
    return f"{_boot()}:{fields_after_name[19]}"


def _boot() -> str:
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else str(psutil.boot_time())


def start(
    name: str, command: Sequence[str], environment: Mapping[str, str], *, log: Path, directory: Path
) -> ServiceProcess:
    """Start a service in a session of its own and in `directory`; its output goes to `log`, the former one to .1."""
    make_private_folder(log.parent)
    if log.exists():
        log.replace(log.with_name(f"{log.name}.1"))
    with open_private(log) as output:
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
    # The process outlives this object, and another program may end it by its id: suppress Python's warning.
    process.returncode = 0
    return service


def members(services: Iterable[ServiceProcess], mark: str) -> list[psutil.Process]:
    """Return every process that `services` are, or have started and left behind, and that still runs."""
    services = tuple(services)
    sessions = {service.pid for service in services if service.holds_its_id()}
    orphaned = {service.pid for service in services if service.may_have_left_orphans()}
    found = {process.pid: process for pid in sessions for process in _with_descendants(pid)}
    for process in psutil.process_iter():
        if process.pid not in found and _belongs(process, sessions, orphaned, mark):
            found[process.pid] = process
    return [process for process in found.values() if is_running(process)]


def _with_descendants(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _belongs(process: psutil.Process, sessions: set[int], orphaned: set[int], mark: str) -> bool:
    try:
        session = os.getsid(process.pid)
        if session in sessions or process.environ().get(MARK_VARIABLE) == mark:
            return True
        # The machine may have reused the id of an orphaned session. The mark cannot decide it: Airflow's worker
        # processes write their title over their environment.
        return session in orphaned and "".join(process.cmdline()[:1]).startswith(_AIRFLOW_TITLE)
    except (psutil.Error, OSError):
        # The process is another user's, or has ended.
        return False


def is_running(process: psutil.Process) -> bool:
    """Return whether this very process still runs (one that ended and was not waited for does not)."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def signal_all(processes: Iterable[psutil.Process], signal_number: int) -> None:
    """Send a signal to each process that is still the one it was when it was found."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal_number)


def wait_ended(processes: Sequence[psutil.Process], seconds: float) -> bool:
    """Wait until none of `processes` runs, at most `seconds`; return whether all have ended."""
    ended = wait_until(lambda: not any(is_running(process) for process in processes), seconds, interval=0.1)
    # Children of this very process stay zombies until they are waited for.
    psutil.wait_procs(processes, timeout=0)
    return ended
