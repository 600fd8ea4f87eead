"""The part that all our Spark jobs share: the driver distributes the groups, the workers import the library from a zip.

    spark-submit --py-files tiered_storage-{hash}.zip,job_stub.py JOB.py --work-url URL --job PATH --store JSON

Spark's workers use the library from the zip that came with the job, whatever else is installed on their machine. They
read their tasks from the work area, write results there, and never touch the metadata store. An argument names the
store. A variable of the driver's environment has the job's secrets, which log in to the store and sign tasks and
results. Workers get all of these with each group.
"""

from __future__ import annotations

import argparse
import os
import stat
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from tiered_storage.remote_log.jobs.worker import JobAccess


def use_library(archives: list[str]) -> None:
    """Unpack the library once on this machine, into a folder named as its archive, and import it from there.

    Raises PermissionError if there is not a folder that only this user can write to.
    """
    [archive] = [
        Path(path) for path in archives if Path(path).name.startswith("tiered_storage-") and path.endswith(".zip")
    ]
    cache = _cache(archive)
    folder = cache / archive.stem
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=cache) as unpacked:
            zipfile.ZipFile(archive).extractall(unpacked)
            try:
                Path(unpacked).rename(folder)
            except OSError:
                if not folder.is_dir():  # otherwise another worker was first
                    raise
            Path(unpacked).mkdir(exist_ok=True)
    _mend(folder, archive)
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _cache(archive: Path) -> Path:
    """Return a folder that only this user can write to: anybody else with access could run code in this process.

    If another user created the machine's folder first, the library is unpacked beside the archive, and removed with it.
    """
    shared = Path(tempfile.gettempdir()) / f"remote-log-{os.getuid()}"
    for cache in (shared, archive.parent / "remote-log"):
        with suppress(FileExistsError):
            cache.mkdir(mode=0o700)
        status = cache.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022:
            return cache
    raise PermissionError(f"{shared} is a link, open to all, or belongs to somebody else; remove it, or set TMPDIR")


def _mend(folder: Path, archive: Path) -> None:
    """Restore what a cleaner of temporary files deleted: it deletes single files, not the folder."""
    with zipfile.ZipFile(archive) as packed:
        for entry in packed.infolist():
            path = folder / entry.filename
            if not path.is_file() or path.stat().st_size != entry.file_size:
                packed.extract(entry, folder)


def run_groups(about: str, run_some: Callable[[JobAccess, Sequence[int]], int]) -> tuple[int, int]:
    """Run every group of the job that this process's arguments name; return the number of pieces done and of groups.

    `about` is the text of --help. `run_some` takes the access to the job and the numbers of the groups of one worker,
    and returns how many pieces it did. It must not import the library before it is called.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--work-url", required=True)
    parser.add_argument("--job", required=True)
    parser.add_argument("--store", required=True)
    arguments = parser.parse_args()
    work_url, job, store = arguments.work_url, arguments.job, arguments.store
    use_library(sys.path)
    from tiered_storage.remote_log.jobs.worker import JOB_SECRETS, JobAccess, described_job

    secrets = os.environ.get(JOB_SECRETS, "")

    def run(groups: Iterable[int]) -> Iterable[int]:
        use_library(sys.path)
        # Not unpickled: that would import the library before it is unpacked.
        from tiered_storage.remote_log.jobs.worker import JobAccess

        yield run_some(JobAccess.parse(work_url, job, store, secrets), list(groups))

    described = described_job(JobAccess.parse(work_url, job, store, secrets))
    with SparkSession.builder.getOrCreate() as spark:
        context = spark.sparkContext
        workers = described.workers(context.defaultParallelism)
        return context.parallelize(range(described.groups), workers).mapPartitions(run).sum(), described.groups
