"""Named points at which a test kills a process: wrappers over the borders of the library, in that process alone.

A border is what outlives a process: the metadata store, the object store, the leases, the files of a log directory, and
brokers. Each call there has a point before and after it, so that a test can reach every state that a killed process can
leave.
"""

from __future__ import annotations

import functools
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.remote_log.metadata.sql.database.engine import Database
from tiered_storage.remote_log.metadata.sql.leases import SqlLeases
from tiered_storage.remote_log.metadata.sql.safety import SqlSafety
from tiered_storage.remote_log.metadata.sql.segments import SqlRemoteLogMetadataManager
from tiered_storage.remote_log.metadata.sql.topics import SqlTopics
from tiered_storage.remote_log.model import PartitionDeleteState, SegmentState
from tiered_storage.remote_log.restore.offset_map import OffsetMapWriter
from tiered_storage.remote_log.restore.target_directory import TargetDirectory
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager

_STORE_FILE = re.compile(r"\d{20}-[A-Za-z0-9_-]{22}\.(log|indexes|commit)")
_LEFT_BEHIND = re.compile(_STORE_FILE.pattern + r"\..+\.tmp")
_DOCUMENT = re.compile(r"/state/\d+\.json$")
_LOCAL_FILE = re.compile(r"\d{20}\.(log|index|timeindex|txnindex|snapshot)")


class CrashPoint(StrEnum):
    """Where a process can die."""

    BEFORE_ACQUIRE = "before acquire"
    AFTER_ACQUIRE = "after acquire"
    BEFORE_HEARTBEAT = "before heartbeat"
    AFTER_HEARTBEAT = "after heartbeat"
    BEFORE_RELEASE = "before release"
    AFTER_RELEASE = "after release"
    BEFORE_STARTED = "before COPY_SEGMENT_STARTED"
    AFTER_STARTED = "after COPY_SEGMENT_STARTED"
    AFTER_LINEAGE = "after the lineage"
    AFTER_JOB = "after the job is laid out"
    IN_DATA = "in the data object"
    AFTER_DATA = "after the data object"
    AFTER_INDEXES = "after the bundle"
    AFTER_MARKER = "after the commit marker"
    AFTER_RESULT = "after the results"
    AFTER_DOCUMENT = "after the partition manifest"
    AFTER_LOG_START = "after the log start"
    BEFORE_FINISHED = "before COPY_SEGMENT_FINISHED"
    AFTER_FINISHED = "after COPY_SEGMENT_FINISHED"
    BEFORE_MARKED = "before DELETE_SEGMENT_STARTED"
    AFTER_MARKED = "after DELETE_SEGMENT_STARTED"
    AFTER_OBJECT_GONE = "after an object of a deletion is gone"
    BEFORE_DELETED = "before DELETE_SEGMENT_FINISHED"
    AFTER_DELETED = "after DELETE_SEGMENT_FINISHED"
    AFTER_TOPIC_MARKED = "after a partition is marked for deletion"
    AFTER_TOPIC_STARTED = "after a partition's deletion has begun"
    BEFORE_TOPIC_FINISHED = "before a partition's deletion is finished"
    AFTER_TOPIC_FINISHED = "after a partition's deletion is finished"
    BEFORE_DOCUMENT_GOES = "before a partition manifest is deleted"
    AFTER_DOCUMENT_GONE = "after a partition manifest is deleted"
    BEFORE_SWITCH = "before the switch of all deletions is put"
    AFTER_SWITCH = "after the switch of all deletions is put"
    AFTER_LEFTOVER_GONE = "after what a killed writer left is gone"
    AFTER_TOPIC_DECIDED = "after what holds for a topic is kept"
    AFTER_LEASES_BEGUN = "after leases begin above those of before"
    BEFORE_BOUND_ANEW = "before the store is bound to other metadata"
    AFTER_BOUND_ANEW = "after the store is bound to other metadata"
    AFTER_FILE_SYNCED = "after a file, or a directory's names, are on the disk"
    BEFORE_PARTITION_PLACED = "before a restored partition gets its name"
    AFTER_PARTITION_PLACED = "after a restored partition got its name"
    BEFORE_LOCAL_FILE_GOES = "before a local file goes"
    AFTER_LOCAL_FILE_GONE = "after a local file is gone"
    BEFORE_DELETE_RECORDS = "before DeleteRecords"
    AFTER_DELETE_RECORDS = "after DeleteRecords"
    AFTER_RECORD_MAPPED = "after a record that was produced is mapped"
    BEFORE_MAP_WRITTEN = "before the map of offsets is written"
    AFTER_MAP_WRITTEN = "after the map of offsets is written"
    AFTER_ANY_STEP = "after any step"
    """Every lasting step: each commit, each file that gets its name, each deleted file."""


@dataclass(frozen=True, slots=True)
class Crash:
    """Where a process dies: at `point`, when it gets there for the `nth` time.

    With SIGSTOP it stands still there until the file `proceed` is there and somebody lets it continue: a shell, or
    whoever measures something on this machine, may send SIGCONT as well.
    """

    point: CrashPoint
    nth: int = 1
    signal: int = signal.SIGKILL
    proceed: str = ""

    def __str__(self) -> str:
        return f"{self.point}, {self.nth}" if self.nth > 1 else str(self.point)


class _Trap:
    """Counts how often the process gets to the point; the thread that reaches the number sends the signal."""

    def __init__(self, crash: Crash) -> None:
        self._crash = crash
        self._reached = 0
        self._lock = threading.Lock()

    def reached(self, point: CrashPoint | None) -> None:
        if point is not self._crash.point:
            return
        with self._lock:
            self._reached += 1
            # All threads end or stop with the one that holds the lock.
            if self._reached != self._crash.nth:
                return
            while not Path(self._crash.proceed).is_file():
                os.kill(os.getpid(), self._crash.signal)


Points = tuple[CrashPoint | None, CrashPoint | None]
"""The points before and after a call; None: no point."""
NOWHERE: Points = (None, None)


def install(crash: Crash) -> None:
    """Kill this process at `crash`. This cannot be undone, so call it in a process made for it."""
    trap = _Trap(crash)
    for border, method, points in _BORDERS:
        _wrap(border, method, points, trap)
    _wrap_writing(trap)
    _wrap_commits(trap)
    for rename in ("replace", "rename", "link", "unlink"):
        _wrap(os, rename, (None, CrashPoint.AFTER_ANY_STEP), trap)


_OF_SEGMENT: dict[SegmentState, Points] = {
    SegmentState.COPY_SEGMENT_FINISHED: (CrashPoint.BEFORE_FINISHED, CrashPoint.AFTER_FINISHED),
    SegmentState.DELETE_SEGMENT_STARTED: (CrashPoint.BEFORE_MARKED, CrashPoint.AFTER_MARKED),
    SegmentState.DELETE_SEGMENT_FINISHED: (CrashPoint.BEFORE_DELETED, CrashPoint.AFTER_DELETED),
}
_OF_PARTITION: dict[PartitionDeleteState, Points] = {
    PartitionDeleteState.MARKED: (None, CrashPoint.AFTER_TOPIC_MARKED),
    PartitionDeleteState.STARTED: (None, CrashPoint.AFTER_TOPIC_STARTED),
    PartitionDeleteState.FINISHED: (CrashPoint.BEFORE_TOPIC_FINISHED, CrashPoint.AFTER_TOPIC_FINISHED),
}
_OF_OBJECT = {".log": CrashPoint.AFTER_DATA, ".indexes": CrashPoint.AFTER_INDEXES, ".commit": CrashPoint.AFTER_MARKER}


def _updated(_self: object, steps: Sequence[Any]) -> Points:
    return _OF_SEGMENT.get(steps[0][0].state, NOWHERE) if steps else NOWHERE


def _deleted(_self: object, step: Any, *_: Any, **__: Any) -> Points:
    return _OF_PARTITION.get(step.state, NOWHERE)


def _written(_self: object, name: str, *_: Any, **__: Any) -> Points:
    if "/state/" in name:
        return None, CrashPoint.AFTER_DOCUMENT
    if name.endswith("job.json"):
        return None, CrashPoint.AFTER_JOB
    if "/result-" in name:
        return None, CrashPoint.AFTER_RESULT
    return None, _OF_OBJECT.get(Path(name).suffix)


def _unlinked(path: Any, *, dir_fd: int | None = None) -> Points:
    # The path of a file may be given within an open folder.
    whole = str(path) if dir_fd is None else f"{Path(f'/proc/self/fd/{dir_fd}').readlink()}/{path}"
    name = Path(path).name
    if _DOCUMENT.search(whole):
        return CrashPoint.BEFORE_DOCUMENT_GOES, CrashPoint.AFTER_DOCUMENT_GONE
    if _LOCAL_FILE.fullmatch(name):
        return CrashPoint.BEFORE_LOCAL_FILE_GOES, CrashPoint.AFTER_LOCAL_FILE_GONE
    if _STORE_FILE.fullmatch(name):
        return None, CrashPoint.AFTER_OBJECT_GONE
    return None, CrashPoint.AFTER_LEFTOVER_GONE if _LEFT_BEHIND.fullmatch(name) else None


_BORDERS: tuple[tuple[Any, str, Points | Callable[..., Points]], ...] = (
    (SqlLeases, "acquire_many", (CrashPoint.BEFORE_ACQUIRE, CrashPoint.AFTER_ACQUIRE)),
    (SqlLeases, "heartbeat_many", (CrashPoint.BEFORE_HEARTBEAT, CrashPoint.AFTER_HEARTBEAT)),
    (SqlLeases, "release_many", (CrashPoint.BEFORE_RELEASE, CrashPoint.AFTER_RELEASE)),
    (SqlLeases, "begin_above", (None, CrashPoint.AFTER_LEASES_BEGUN)),
    (SqlRemoteLogMetadataManager, "add_remote_log_segments", (CrashPoint.BEFORE_STARTED, CrashPoint.AFTER_STARTED)),
    (SqlRemoteLogMetadataManager, "update_remote_log_segments", _updated),
    (SqlRemoteLogMetadataManager, "advance_log_start_offsets", (None, CrashPoint.AFTER_LOG_START)),
    (SqlRemoteLogMetadataManager, "put_remote_partition_delete_metadata", _deleted),
    (SqlRemoteLogMetadataManager, "put_lineages", (None, CrashPoint.AFTER_LINEAGE)),
    (SqlSafety, "stop", (CrashPoint.BEFORE_SWITCH, CrashPoint.AFTER_SWITCH)),
    (SqlSafety, "lift", (CrashPoint.BEFORE_SWITCH, CrashPoint.AFTER_SWITCH)),
    (SqlTopics, "put", (None, CrashPoint.AFTER_TOPIC_DECIDED)),
    (ObjectRemoteStorageManager, "rebind", (CrashPoint.BEFORE_BOUND_ANEW, CrashPoint.AFTER_BOUND_ANEW)),
    (TargetDirectory, "put_in_place", (CrashPoint.BEFORE_PARTITION_PLACED, CrashPoint.AFTER_PARTITION_PLACED)),
    (ClusterClient, "delete_records", (CrashPoint.BEFORE_DELETE_RECORDS, CrashPoint.AFTER_DELETE_RECORDS)),
    (OffsetMapWriter, "add", (None, CrashPoint.AFTER_RECORD_MAPPED)),
    (OffsetMapWriter, "flush", (CrashPoint.BEFORE_MAP_WRITTEN, CrashPoint.AFTER_MAP_WRITTEN)),
    (LocalDirectory, "put", _written),
    (LocalDirectory, "create", _written),
    (os, "unlink", _unlinked),
    (os, "fsync", (None, CrashPoint.AFTER_FILE_SYNCED)),
)


def _wrap(border: Any, method: str, points: Points | Callable[..., Points], trap: _Trap) -> None:
    original = getattr(border, method)

    @functools.wraps(original)
    def call(*arguments: Any, **options: Any) -> Any:
        before, after = points(*arguments, **options) if callable(points) else points
        trap.reached(before)
        answer = original(*arguments, **options)
        trap.reached(after)
        return answer

    setattr(border, method, call)


def _wrap_writing(trap: _Trap) -> None:
    """Let a segment's bytes pass a point when the first of them are on their way."""
    original = LocalDirectory.put

    def put(self: LocalDirectory, name: str, size: int, chunks: Iterator[memoryview], **options: Any) -> Any:
        return original(self, name, size, _passing(chunks, name, trap), **options)

    LocalDirectory.put = put  # type: ignore[method-assign]


def _passing(chunks: Iterator[memoryview], name: str, trap: _Trap) -> Iterator[memoryview]:
    for chunk in chunks:
        yield chunk
        # Asked for the next one: this one is in the file.
        if name.endswith(".log"):
            trap.reached(CrashPoint.IN_DATA)


def _wrap_commits(trap: _Trap) -> None:
    original = Database.writing

    @contextmanager
    def writing(self: Database) -> Iterator[Connection]:
        with original(self) as connection:
            yield connection
        trap.reached(CrashPoint.AFTER_ANY_STEP)

    Database.writing = writing  # type: ignore[method-assign]
