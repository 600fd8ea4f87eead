"""Classes of remote storage for tests: copies that hang, die or halt, and reads that wait and fail on command."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from support.crash_points import Crash, CrashPoint, install
from tiered_storage.errors import RemoteObjectNotFoundError, TieredStorageError
from tiered_storage.remote_log.copy.job import COPIES_AT_ONCE
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.storage.object_client import ObjectStoreOptions
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind, LogSegmentData, RemoteStorageManager
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager
from tiered_storage_airflow.embedded.processes import wait_until

HANGING_VICTIM = "TEST_HANGING_STORAGE_VICTIM"
"""The variable with the partition and first offset of the segment, as orders-0@10; the other names the file."""
WHILE_THERE = "TEST_HANGING_STORAGE_WHILE_THERE"


class HangingStorage(ObjectRemoteStorageManager):
    """Stores as its base class does, but for one segment, of which it takes a chunk and then waits."""

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes:
        """Copy, or hang."""
        marker = Path(os.environ[WHILE_THERE])
        if f"{metadata.topic_id_partition}@{metadata.start_offset}" == os.environ[HANGING_VICTIM] and marker.exists():
            next(data.chunks)
            while marker.exists():
                time.sleep(0.05)
        return super().copy_log_segment_data(metadata, data)


DYING_VICTIM = "TEST_DYING_STORAGE_VICTIM"
"""The variable with the partition whose first copy is never finished; so is the one naming a file that tells."""
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
        told = Path(os.environ[ALREADY_DEAD])
        if str(metadata.topic_id_partition) == os.environ[DYING_VICTIM] and not told.exists():
            next(data.chunks)
            wait_until(lambda: _results_below(told.parent) >= COPIES_AT_ONCE, seconds=30)
            told.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().copy_log_segment_data(metadata, data)


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


class StagedStorage:
    """The RemoteStorageManager `inner`, between two acts.

    After `stand_still` nothing comes back until `go_on`; `fail_with`, where it is set, is raised in place of an answer;
    `before` is called before each fetch of data.
    """

    def __init__(self, inner: RemoteStorageManager) -> None:
        self.inner = inner
        self.fetched: Counter[tuple[str, int]] = Counter()
        """How often each range, by segment id and position, was asked for."""
        self.fail_with: TieredStorageError | None = None
        self.fails_for: str | None = None
        """The id of the only segment for which it fails."""
        self.break_next = False
        """Whether a bit of the next answer turns over on its way."""
        self.lacks: IndexKind | None = None
        """An index that no segment has."""
        self.before: Callable[[RemoteLogSegmentMetadata, int], None] = lambda *_: None
        self._open = threading.Event()
        self._open.set()

    def stand_still(self) -> None:
        """Let every fetch from now on wait."""
        self._open.clear()

    def recover(self) -> None:
        """Fail no more."""
        self.fail_with = None

    def go_on(self) -> None:
        """Let everything go on."""
        self._open.set()

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes:
        """As the inner one."""
        return self.inner.copy_log_segment_data(metadata, data)

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int = 0, end_position: int | None = None
    ) -> Iterator[bytes]:
        """As the inner one, in its time."""
        self.fetched[metadata.segment_id.id, start_position] += 1
        self.before(metadata, start_position)
        self._pass(metadata)
        pieces = self.inner.fetch_log_segment(metadata, start_position, end_position)
        if self.break_next:
            self.break_next = False
            return (bytes([*piece[:-1], piece[-1] ^ 1]) for piece in pieces)
        return pieces

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, kind: IndexKind) -> bytes:
        """As the inner one, in its time."""
        self._pass(metadata)
        if kind is self.lacks:
            raise RemoteObjectNotFoundError(f"{metadata.segment_id} has no {kind.name}")
        return self.inner.fetch_index(metadata, kind)

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """As the inner one."""
        self.inner.delete_log_segment_data(metadata)

    def close(self) -> None:
        """Let everything go on; the inner one stays open."""
        self.go_on()

    def _pass(self, metadata: RemoteLogSegmentMetadata) -> None:
        if not self._open.wait(30):
            raise AssertionError("the store stood still until the end of the test")
        if self.fail_with is not None and self.fails_for in {None, metadata.segment_id.id}:
            raise self.fail_with


class FakeTime:
    """Seconds that only pass in `sleep`, which keeps how long each sleep was."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.slept: list[float] = []
        self.on_sleep: Callable[[], Any] = lambda: None

    def now(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.seconds += seconds
        self.on_sleep()
