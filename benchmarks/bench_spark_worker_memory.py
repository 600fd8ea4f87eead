"""How much memory a Spark worker needs to copy segments of 1 GiB, two at once: its peak, VmHWM as Linux counts it.

The job is submitted as Airflow does it, to local[1]: the library travels as a zip, the worker unpacks and imports it,
and its first run on a machine compiles the kernels. That run is measured, and one that finds them compiled. The peer is
a worker that copies segments of 64 MiB: what a worker needs must not grow with its segments. LIMIT_MIB is no ratio: so
much a worker may take at most.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from measuring import STATE, Goal, judge, print_machine
from sample_site import SampleLog, SampleSite

from tiered_storage.remote_log.copy.job import CopyJob
from tiered_storage.remote_log.jobs.library_archive import build_library_archive
from tiered_storage_airflow.embedded.environment import FOREIGN_VARIABLES, LOOPBACK, PROJECT_ROOT
from tiered_storage_airflow.embedded.java import java_home

GOAL = 1.15
LIMIT_MIB = 450
SMALL = SampleLog(partitions=1, segments=2, segment_bytes=64 << 20, batch_records=15)
SEGMENTS = SampleLog(partitions=1, segments=2, segment_bytes=1 << 30, batch_records=15)
"""A worker copies two segments at once."""
WORKER, DRIVER, JVM = "worker (Python)", "driver (Python)", "driver and executor (JVM)"
LOOK_SECONDS = 0.02


@dataclass(slots=True)
class PeakMemory:
    """The largest VmHWM (bytes) that was seen in the processes below `root`, by what they do."""

    root: psutil.Process
    peaks: dict[str, int] = field(default_factory=lambda: dict.fromkeys((WORKER, DRIVER, JVM), 0))

    def look(self) -> None:
        """Take the peaks of all processes that run now; a peak never falls, so the last look before an end counts."""
        with suppress(psutil.Error):
            for process in (self.root, *self.root.children(recursive=True)):
                with suppress(psutil.Error, OSError):
                    role = _role(process)
                    if role is not None:
                        self.peaks[role] = max(self.peaks[role], _peak_resident(process.pid))


def submit(site: SampleSite, directory: Path) -> dict[str, int]:
    """Let Spark copy what is due at `site`, with its temporary files in `directory`; return the peaks by role."""
    archive = build_library_archive(directory)
    with site.open() as remote_log:
        job = site.begin_copy(remote_log)
        access = remote_log.context.access(job.files)
        environment = _environment(directory) | access.environment
        command = [
            "spark-submit", "--master", "local[1]", "--conf", "spark.task.maxFailures=1", "--py-files",
            f"{archive},{PROJECT_ROOT / 'spark_jobs' / 'job_stub.py'}",
            str(PROJECT_ROOT / "spark_jobs" / "copy_segments.py"),
            *access.arguments,
        ]  # fmt: skip
        with (
            (directory / "spark-submit.log").open("w") as log,
            subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT) as program,
        ):
            memory = PeakMemory(psutil.Process(program.pid))
            while program.poll() is None:
                memory.look()
                with suppress(subprocess.TimeoutExpired):
                    program.wait(LOOK_SECONDS)
        if program.returncode:
            raise SystemExit(
                f"spark-submit failed, nothing was measured:\n{(directory / 'spark-submit.log').read_text()}"
            )
        _check_outcomes(job)
    site.forget_copies()
    return memory.peaks


def _environment(directory: Path) -> dict[str, str]:
    """Return what Airflow gives its tasks, with the worker's unpacked library in `directory`."""
    inherited = {name: value for name, value in os.environ.items() if name not in FOREIGN_VARIABLES}
    return inherited | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '/usr/bin:/bin')}",
        "JAVA_HOME": str(java_home(STATE.parent, os.environ)),
        "SPARK_LOCAL_IP": LOOPBACK,
        "TMPDIR": str(directory),
    }


def _check_outcomes(job: CopyJob) -> None:
    outcomes = list(job.outcomes())
    if len(outcomes) != SEGMENTS.segments or any(outcome.finished is None for outcome in outcomes):
        raise SystemExit(f"the copy went wrong, nothing was measured: {outcomes}")


def _role(process: psutil.Process) -> str | None:
    command = process.cmdline()
    if not command:
        return None
    if Path(command[0]).name == "java":
        return JVM
    if "pyspark.daemon" in command:
        return WORKER
    return DRIVER if any(argument.endswith("copy_segments.py") for argument in command) else None


def _peak_resident(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")), 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=STATE, help="where source and copy go (6 GB; %(default)s)")
    directory = parser.parse_args().directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    print("Peak resident memory (VmHWM, MiB) of a Spark worker that copies two segments of 1 GiB at once, local store")
    print_machine(directory)
    peaks: list[dict[str, int]] = []
    with tempfile.TemporaryDirectory(dir=directory, prefix="spark-") as root:
        temporary = Path(root) / "tmp"
        temporary.mkdir()
        for name, log, runs in (("large", SEGMENTS, 2), ("small", SMALL, 1)):
            site = SampleSite(Path(root) / name)
            site.root.mkdir()
            site.write(log)
            peaks.extend(submit(site, temporary) for _ in range(runs))
    print(f"  {'':28} first run, compiles   later run   small segments")
    for role in (WORKER, DRIVER, JVM):
        first, later, small = (run[role] / (1 << 20) for run in peaks)
        print(f"  {role:28} {first:19.0f} {later:11.0f} {small:16.0f}")
    *large, small = (run[WORKER] / (1 << 20) for run in peaks)
    worker = max(large)
    if not worker or not small:
        raise SystemExit("nothing was measured: no worker was seen")
    what, ours = "Spark worker's memory, two copies of 1 GiB", f"{worker:.0f} MiB"
    return judge(
        [
            Goal(what, ours, f"{small:.0f} MiB, two of 64 MiB", worker / small, GOAL, is_most=True),
            Goal(f"{what}, limit", ours, f"{LIMIT_MIB} MiB allowed", worker / LIMIT_MIB, 1, is_most=True),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
