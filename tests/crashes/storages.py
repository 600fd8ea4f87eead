"""Classes of remote storage whose copies hang, die or halt."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Self

from crashes.crash_points import Crash, CrashPoint, install
from tiered_storage.remote_log.copy.job import COPIES_AT_ONCE
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions
from tiered_storage.remote_log.storage.remote_storage_manager import LogSegmentData
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager
from tiered_storage_airflow.embedded.processes import wait_until

HANGING_VICTIM = "TEST_HANGING_STORAGE_VICTIM"
"""The variable with the partition and first offset of the segment, as orders-0@10; the other names the file."""
WHILE_THERE = "TEST_HANGING_STORAGE_WHILE_THERE"


class HangingStorage(ObjectRemoteStorageManager):
    """Stores as its base class does, but hangs after the first chunk of one segment."""

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes:
        """Copy, or hang."""
        marker = Path(os.environ[WHILE_THERE])
        if f"{metadata.topic_id_partition}@{metadata.start_offset}" == os.environ[HANGING_VICTIM] and marker.exists():
            next(data.chunks)
            while marker.exists():
                time.sleep(0.05)
        return super().copy_log_segment_data(metadata, data)


DYING_VICTIM = "TEST_DYING_STORAGE_VICTIM"
"""The variable with the partition whose first copy is never finished; the next one has the file that records a kill."""
ALREADY_DEAD = "TEST_DYING_STORAGE_ALREADY_DEAD"


def _results_below(folder: Path) -> int:
    # The last line of each is its signature.
    return sum(len(path.read_bytes().splitlines()) - 1 for path in folder.rglob("result-*.jsonl"))


class DyingStorage(ObjectRemoteStorageManager):
    """Stores as its base class does, once it has died."""

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes:
        """Copy, or read one chunk of the segment and be killed.

        Another copy is under way at the same time: it may end, and its result may be written, before that.
        """
        mark = Path(os.environ[ALREADY_DEAD])
        if str(metadata.topic_id_partition) == os.environ[DYING_VICTIM] and not mark.exists():
            next(data.chunks)
            wait_until(lambda: _results_below(mark.parent) >= COPIES_AT_ONCE, seconds=30)
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().copy_log_segment_data(metadata, data)


HALT = "TEST_HALTING_STORAGE"
"""The variable with a folder. `at` in it names the point; `worker` gets the id of the process that will stand still.

It continues when `proceed` is there and somebody sends it SIGCONT. Without `at` nobody stands still. Where there is
`task`, with the id of a task, the process that carries that task out stands still, and no worker.
"""

IGNORE_HANGUP = "ignore-hangup"
"""The file in that folder with which the worker outlives its Spark: that lets its workers die by SIGHUP at its end."""


class HaltingStorage(ObjectRemoteStorageManager):
    """Stores as its base class does."""

    @classmethod
    def open(cls, url: str, options: ObjectStoreOptions) -> Self:
        """Open the store; the first process of the kind that does so stops at the point."""
        folder = Path(os.environ[HALT])
        if (folder / "at").exists() and _is_of_the_kind(folder / "task") and _is_first(folder / "worker"):
            point = CrashPoint((folder / "at").read_text())
            if (folder / IGNORE_HANGUP).exists():
                signal.signal(signal.SIGHUP, signal.SIG_IGN)
            install(Crash(point, signal=signal.SIGSTOP, proceed=str(folder / "proceed")))
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
