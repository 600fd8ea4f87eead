"""A user's own RemoteStorageManager, for tests: a Spark worker of it stands still at a point of its copies, once."""

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

It goes on when `go-on` is there and somebody sends it SIGCONT. Without `at` nobody stands still.
"""

IGNORE_HANGUP = "ignore-hangup"
"""The file in that folder with which the worker outlives its Spark: that lets its workers die by SIGHUP at its end."""


class HaltingStorage(ObjectRemoteStorageManager):
    """Stores as its base class does."""

    @classmethod
    def open(cls, url: str, options: ObjectStoreOptions) -> Self:
        """Open the store; in the first Spark worker that does so, let it stand still at the point."""
        folder = Path(os.environ[HALT])
        is_spark_worker = "pyspark.worker" in sys.modules
        if is_spark_worker and (folder / "at").exists() and _is_first(folder / "worker"):
            point = CrashPoint((folder / "at").read_text())
            if (folder / IGNORE_HANGUP).exists():
                signal.signal(signal.SIGHUP, signal.SIG_IGN)
            install(Crash(point, signal=signal.SIGSTOP, go_on=str(folder / "go-on")))
        return super().open(url, options)


def _is_first(path: Path) -> bool:
    try:
        with path.open("x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return False
    return True
