"""Two forked logs: a log directory that was copied with cp, then written in both places.

Both continue at the same leader epoch, so that only their batches differ.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from support.command_line import CommandResult
from support.plain_reader import PlainReader
from support.remote_logs import CLUSTER_ID, ENABLED, NOW, ORDERS_0, RemoteLogFiles, topic_id, unsynced
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import read_records
from tiered_storage.kafka_log.records.segment_scan import iterate_segment
from tiered_storage.remote_log.copy import copier, forked_log, start
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import SegmentState
from tiered_storage.remote_log.selection import EVERYTHING

FINISHED = SegmentState.COPY_SEGMENT_FINISHED
SIZES = st.lists(st.integers(1, 5), max_size=12)
"""How many records each batch has."""
SEGMENT_BYTES = st.sampled_from([200, 300, 500, 900])
VERIFIES = st.booleans()


def write(root: Path, sizes: Iterable[int], word: str, segment_bytes: int = 300) -> Path:
    """Append batches of so many records, whose values begin with `word`, to the log of orders-0 in `root`."""
    config = LogConfig(segment_bytes=segment_bytes, index_interval_bytes=100)
    is_new = not root.exists()
    with unsynced(), _writer(root, config, is_new=is_new) as writer:
        log = writer.create_log("orders", 0, topic_id("orders"), config) if is_new else writer.log("orders", 0)
        for size in sizes:
            end = log.log_end_offset
            log.append([Record(at, NOW + at, None, f"{word} {at}".encode()) for at in range(end, end + size)])
    return root


def _writer(root: Path, config: LogConfig, *, is_new: bool) -> LogDirectoryWriter:
    if is_new:
        return LogDirectoryWriter.create(root, CLUSTER_ID, clock=lambda: NOW)
    return LogDirectoryWriter.open(root, config, clock=lambda: NOW)


def forked(root: Path, shared: Iterable[int], ours: Iterable[int], theirs: Iterable[int]) -> tuple[Path, Path]:
    """Write `shared` batches, copy the directory, and append in both places."""
    here = write(root / "here", shared, "shared")
    there = shutil.copytree(here, root / "there")
    return write(here, ours, "here", 500), write(there, theirs, "there")


def over(root: Path, log_directory: Path, **properties: Any) -> RemoteLogFiles:
    """Return the remote log whose store and metadata are below `root`, over `log_directory`; it trims all it can."""
    topics = {"orders": {**ENABLED, "local.retention.bytes": 0}}
    return RemoteLogFiles(root, properties={"topics": topics, "log.dirs": [str(log_directory)], **properties})


def local_values(root: Path) -> set[bytes | None]:
    return {
        record.value
        for segment in list_segments(root / "orders-0")
        for window, table in iterate_segment(segment.log_path, segment.base_offset)
        for at, size in zip((table.position - table.position[0]).tolist(), table.size.tolist(), strict=True)
        for record in read_records(window[at : at + size])
    }


def remote_values(remote_log: RemoteLogManager) -> set[bytes | None]:
    """Return the values of all that a reader without a local log gets."""
    reader = PlainReader(remote_log).open(ORDERS_0)
    reader.local = None
    return {record.value for record in reader.records(reader.log_start_offset)} if reader.coverage.ranges else set()


def retain(remote_log: RemoteLogManager) -> list[str]:
    """Enforce local retention; return what failed."""
    plans, unreadable = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
    report = remote_log.deletions.enforce_local_retention(plans)
    return [finding.message for finding in (*unreadable, *report.failures)]


def copy_forks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let forks be copied, as by releases that did not detect them."""
    monkeypatch.setattr(start, "ensure_continued", lambda *_: None)
    monkeypatch.setattr(forked_log, "forked_copies", lambda *_: {})
    monkeypatch.setattr(copier, "ensure_same_segment", lambda *_: True)


def stored_values(files: RemoteLogFiles) -> set[bytes]:
    """Return the records in the store that only the first log has."""
    return {found for path in files.objects(".log") for found in re.findall(rb"here [0-9]+", path.read_bytes())}


def everything_said(ended: Iterable[CommandResult]) -> str:
    return " ".join(" ".join(each.out + each.err for each in ended).split())
