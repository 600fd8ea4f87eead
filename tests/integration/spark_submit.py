"""spark-submit of our jobs where the library is installed nowhere: it can only come from the zip."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from tiered_storage.remote_log.copy.job import CopyJob
from tiered_storage.remote_log.copy.tasks import CopyOutcome
from tiered_storage.remote_log.jobs.library_archive import build_library_archive
from tiered_storage.remote_log.jobs.worker import JobAccess
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage_airflow.embedded.java import java_home

PROJECT = Path(__file__).resolve().parents[2]
COUNTED_JOB = Path(__file__).with_name("counted_job.py")
# Without `site` no .pth file is read, so that what is installed can be imported, but for what is installed as editable.
ISOLATED_PYTHON = """\
#!/bin/sh
PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{packages}" exec {python} -S "$@"
"""


class Site(Protocol):
    """A remote log of a test."""

    def open(self) -> RemoteLogManager: ...


@dataclass(frozen=True, slots=True)
class SparkSubmit:
    """Submits our jobs; everything that they leave on the machine lies in `directory`."""

    directory: Path
    environment: dict[str, str]

    def __call__(self, site: Site, folder: str, counting: Path | None = None) -> tuple[list[CopyOutcome], int]:
        """Copy all that is due at `site` and commit it; return the outcomes and the peak resident bytes of a worker.

        `counting` as for `run`.
        """
        with site.open() as remote_log:
            begun = remote_log.begin_copy(remote_log.plan_copy(), "test")
            job = remote_log.write_copy_job(folder, begun)
            said, peak = self.run("copy_segments.py", remote_log.context.access(job.files), counting)
            outcomes = list(CopyJob.read(remote_log.context.work, folder)[0].outcomes())
            assert f"copied {len(outcomes)} segments in {job.groups} groups" in said
            assert remote_log.commit_copy(outcomes).is_whole
        return outcomes, peak

    def run(self, program: str, access: JobAccess, counting: Path | None = None) -> tuple[str, int]:
        """Submit the job `program` with two workers; return what it printed and the peak resident bytes of a worker.

        With `counting` the workers count into that file instead of waiting for their limits: see counted_job.py.
        """
        archive = build_library_archive(self.directory)
        jobs = PROJECT / "spark_jobs"
        command = ["spark-submit", "--master", "local[2]", "--py-files", f"{archive},{jobs / 'job_stub.py'}"]
        job = [str(jobs / program)] if counting is None else [str(COUNTED_JOB), str(counting), str(jobs / program)]
        with subprocess.Popen(
            [*command, *job, *access.arguments],
            env={**self.environment, **access.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as submitted:
            watched = _WorkerMemory(submitted.pid)
            said, _ = submitted.communicate()
        assert submitted.returncode == 0, said
        return said, watched.stop()


class _WorkerMemory:
    """Looks at the Python workers below a process until it is stopped."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._stopped = threading.Event()
        self._peak = 0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """Return the most bytes that a worker had resident."""
        self._stopped.set()
        self._thread.join()
        return self._peak

    def _watch(self) -> None:
        while not self._stopped.wait(0.1):
            with suppress(psutil.NoSuchProcess):
                for process in self._process.children(recursive=True):
                    self._peak = max(self._peak, _resident(process))


def _resident(process: psutil.Process) -> int:
    """Return the resident bytes of a Python worker; 0 for other processes and for one that has ended."""
    try:
        return int(process.memory_info().rss) if "pyspark.daemon" in process.cmdline() else 0
    except psutil.Error:
        return 0


def isolated_spark(state_directory: Path, tmp_path: Path) -> SparkSubmit:
    """Return what submits to a Spark on this machine whose Python has the library only from the zip of a job."""
    python = tmp_path / "isolated-python"
    python.write_text(ISOLATED_PYTHON.format(packages=sysconfig.get_path("purelib"), python=sys.executable))
    python.chmod(0o755)
    assert subprocess.run([python, "-c", "import llvmlite, pyspark"], check=False).returncode == 0
    alone = subprocess.run([python, "-c", "import tiered_storage"], capture_output=True, text=True, check=False)
    assert "No module named 'tiered_storage'" in alone.stderr
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return SparkSubmit(
        tmp_path,
        {
            **inherited,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "JAVA_HOME": str(java_home(state_directory, os.environ)),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": str(python),
            "PYSPARK_DRIVER_PYTHON": str(python),
            "TMPDIR": str(temporary),
        },
    )
