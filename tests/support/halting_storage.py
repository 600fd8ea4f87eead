"""A user's own RemoteStorageManager, for tests: a Spark worker, or a task of Airflow's, stands still, once."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Self

from support.crash_points import Crash, CrashPoint, install
from tiered_storage.remote_log.storage.object_client import ObjectStoreOptions
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager

HALT = "TEST_HALTING_STORAGE"
"""The variable with a folder. `at` in it names the point; `worker` gets the id of the process that will stand still.

It goes on when `go-on` is there and somebody sends it SIGCONT. Without `at` nobody stands still. Where there is `task`,
with the id of a task, the process that carries that task out stands still, and no worker.
"""

IGNORE_HANGUP = "ignore-hangup"
"""The file in that folder with which the worker outlives its Spark: that lets its workers die by SIGHUP at its end."""


class HaltingStorage(ObjectRemoteStorageManager):
    """Stores as its base class does."""

    @classmethod
    def open(cls, url: str, options: ObjectStoreOptions) -> Self:
        """Open the store; in the first process of the kind that does so, let it stand still at the point."""
        folder = Path(os.environ[HALT])
        if (folder / "at").exists() and _is_of_the_kind(folder / "task") and _is_first(folder / "worker"):
            point = CrashPoint((folder / "at").read_text())
            if (folder / IGNORE_HANGUP).exists():
                signal.signal(signal.SIGHUP, signal.SIG_IGN)
            install(Crash(point, signal=signal.SIGSTOP, go_on=str(folder / "go-on")))
        return super().open(url, options)


def _is_of_the_kind(task: Path) -> bool:
    if not task.exists():
        return "pyspark.worker" in sys.modules
    # What a task starts, as Spark, has the same variable; so a task that starts nothing is to be named.
    return os.environ.get("AIRFLOW_CTX_TASK_ID") == task.read_text()


def _is_first(path: Path) -> bool:
    try:
        with path.open("x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return False
    return True
