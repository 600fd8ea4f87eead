"""Retention: each pair of limits, just past and just inside; a long outage of the store; log starts; failed deletions.

Scenarios 6 (disable), 17, 18 (without its broker half), 19 and 21. Each ends with a clean audit and the plain reader.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from support.command_line import run_on
from support.plain_reader import PlainReader
from support.remote_logs import (
    BATCH_BYTES,
    BATCH_RECORDS,
    ENABLED,
    NOW,
    ORDERS_0,
    SEGMENT_BYTES,
    RemoteLogFiles,
    a_copied_remote_log,
    a_remote_log,
    assert_clean,
    begin,
    carry_out,
    copy,
    offsets_read,
    record,
    segments_of,
)
from tiered_storage.errors import RemoteStorageError
from tiered_storage.kafka_log.files.offset_checkpoint import (
    LOG_START_OFFSET_CHECKPOINT,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.retention.object_deletion import DeletionReport
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory

SEGMENTS = 3
TOTAL = SEGMENTS * SEGMENT_BYTES + BATCH_BYTES
LAST_OF = [record(10 * number + 9).timestamp for number in range(SEGMENTS)]
"""The largest timestamp of each closed segment."""

LIMIT_MS = 60_000


def a_limited_log(root: Path, **limits: int) -> RemoteLogFiles:
    """Make a copied log whose topic has these limits, with files of the earliest possible time."""
    topic = {**ENABLED, **{name.replace("_", "."): value for name, value in limits.items()}}
    files = a_copied_remote_log(root, topics={"orders": topic})
    for path in [*files.log_directory.rglob("*"), *files.store.rglob("*")]:
        os.utime(path, (1, 1))
    return files


def retain(remote_log: RemoteLogManager, now: int) -> None:
    plans, left = remote_log.deletions.plan_local_retention(EVERYTHING, now)
    assert left == []
    assert remote_log.deletions.enforce_local_retention(plans).failures == ()


def expire(remote_log: RemoteLogManager, now: int) -> DeletionReport:
    plans, left = remote_log.deletions.plan_expiry(EVERYTHING, now)
    assert left == []
    assert remote_log.deletions.mark_expired(plans, "expire")[1] == ()
    report = remote_log.deletions.delete_marked("expire")
    assert report.failures == ()
    return report


def now_when_old(segments: int, *, past: bool) -> int:
    """Return a time at which so many segments are just past, or the last of them just inside, LIMIT_MS."""
    return LAST_OF[segments - 1] + LIMIT_MS + (1 if past else 0)


# ----------------------------------------------------------- 17: by size and by time, local and total, in all pairs


@pytest.mark.parametrize("total_past", [True, False], ids=["total just past", "total just inside"])
@pytest.mark.parametrize("local_past", [True, False], ids=["local just past", "local just inside"])
@pytest.mark.parametrize("total_by", ["size", "time", "neither"])
@pytest.mark.parametrize("local_by", ["size", "time", "as the total"])
def test_every_pair_of_a_local_and_a_total_limit(
    tmp_path: Path, local_by: str, total_by: str, local_past: bool, total_past: bool
) -> None:
    """The first segment is at its total limit, the second at its local one; one run looks at both."""
    now = now_when_old(1, past=total_past) if total_by == "time" else LAST_OF[2] + LIMIT_MS
    limits = {"retention_ms": -1, "retention_bytes": -1, "local_retention_ms": -2, "local_retention_bytes": -2}
    if total_by == "size":
        limits["retention_bytes"] = TOTAL - SEGMENT_BYTES + (0 if total_past else 1)
    if total_by == "time":
        limits["retention_ms"] = LIMIT_MS
    if local_by == "size":
        limits["local_retention_bytes"] = TOTAL - 2 * SEGMENT_BYTES + (0 if local_past else 1)
    if local_by == "time":
        limits["local_retention_ms"] = now - LAST_OF[1] - (1 if local_past else 0)
    ended = 1 if total_past and total_by != "neither" else 0
    trimmed = ended if local_by == "as the total" else 2 if local_past else 1

    files = a_limited_log(tmp_path, **limits)
    with files.open() as remote_log:
        deleted = expire(remote_log, now).deleted
        retain(remote_log, now)

        assert [segment.start_offset for segment in deleted] == [10 * number for number in range(ended)]
        assert files.local_starts() == [10 * number for number in range(trimmed, SEGMENTS + 1)]
        assert offsets_read(remote_log, 10 * ended) == list(range(10 * ended, 35))
        assert_clean(remote_log)


@pytest.mark.parametrize("moment", [1, NOW * 2], ids=["old files", "files of the future"])
def test_the_times_of_files_never_count(tmp_path: Path, moment: int) -> None:
    topic = {**ENABLED, "retention.ms": LIMIT_MS, "local.retention.ms": LIMIT_MS}
    for number, laid_out in enumerate((a_copied_remote_log, a_remote_log)):
        files = laid_out(tmp_path / str(number), topics={"orders": topic})
        for path in [*files.log_directory.rglob("*"), *files.store.rglob("*")]:
            os.utime(path, (moment / 1000, moment / 1000))
        with files.open() as remote_log:
            expire(remote_log, now_when_old(2, past=False))
            retain(remote_log, now_when_old(2, past=False))
            assert remote_log.context.segments.log_start_offset(ORDERS_0) == 10
            assert files.local_starts() == [10, 20, 30]
            assert_clean(remote_log)


def test_unfinished_copies_never_count_towards_size(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": {**ENABLED, "retention.bytes": TOTAL + 4 * BATCH_BYTES}})
    files.append(4)
    with files.open() as remote_log:
        carry_out(remote_log, begin(remote_log, "a run that dies"))
        files.clock.now += remote_log.context.settings.lease_duration_ms + 1
        assert expire(remote_log, files.clock.now).deleted == ()
        assert len(segments_of(remote_log)) == 5

        files.clock.now += remote_log.context.settings.remote_log_orphan_grace_ms
        assert len(expire(remote_log, files.clock.now).deleted) == 2
        assert_clean(remote_log)


# ------------------------------------------------------------------------------------- 18: total retention before copy


def test_a_store_that_was_away_for_longer_than_total_retention(tmp_path: Path) -> None:
    topic = {**ENABLED, "retention.ms": LIMIT_MS, "local.retention.ms": 0}
    files = a_remote_log(tmp_path, topics={"orders": topic})
    now = now_when_old(2, past=True)
    with files.open() as remote_log:
        expire(remote_log, now)
        retain(remote_log, now)
        assert files.local_starts() == [20, 30], "what is past total retention, and only that"

        [committed] = copy(remote_log).committed
        assert committed.start_offset == 20
        retain(remote_log, now)
        assert files.local_starts() == [30]
        assert offsets_read(remote_log, 20) == list(range(20, 35))
        assert_clean(remote_log)


@pytest.mark.parametrize("right", ["local.deletion.allowed", "remote.deletion.allowed"])
def test_expiring_segments_that_were_never_copied_needs_both_rights(tmp_path: Path, right: str) -> None:
    topic = {**ENABLED, "retention.ms": LIMIT_MS, "local.retention.ms": 0, right: False}
    files = a_remote_log(tmp_path, topics={"orders": topic})
    with files.open() as remote_log:
        expire(remote_log, NOW * 2)
        retain(remote_log, NOW * 2)
        assert_clean(remote_log)
    assert files.local_starts() == [0, 10, 20, 30]


# ---------------------------------------------------------------------------------------------------- 19: log starts


def test_the_global_log_start_is_moved_by_a_person(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    assert run_on(files, "delete-records", "orders", 0, "--before", 15).exit_code == 0

    with files.open() as remote_log:
        assert PlainReader(remote_log).log_start_offset(ORDERS_0) == 15, "at once, before anything is deleted"
        assert len(files.objects(".log")) == 3
    assert run_on(files, "expire", "--json").document["deleted"] == 1
    assert run_on(files, "retain").exit_code == 0
    with files.open() as remote_log:
        assert files.local_starts() == [10, 20, 30]
        assert offsets_read(remote_log, 15) == list(range(15, 35))
        assert_clean(remote_log)
    checkpoint = files.log_directory / LOG_START_OFFSET_CHECKPOINT
    assert read_offset_checkpoint(checkpoint) == {("orders", 0): 10}, "a broker's own readers lose what went, no more"


def test_the_brokers_log_start_deletes_nothing_remote(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    write_offset_checkpoint(files.log_directory / LOG_START_OFFSET_CHECKPOINT, {("orders", 0): 20})
    for segment in files.local_segments()[:2]:
        for path in (segment.log_path, *segment.index_paths):
            path.unlink(missing_ok=True)

    with files.open() as remote_log:
        assert expire(remote_log, NOW).deleted == ()
        assert offsets_read(remote_log, 0) == list(range(35))
        assert_clean(remote_log)


# ----------------------------------------------------------------------------------------------- 21: failed deletions


def test_a_deletion_that_fails_is_listed_counted_and_tried_again(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": {**ENABLED, "retention.bytes": TOTAL - SEGMENT_BYTES}})
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, files.clock.now)
        assert remote_log.deletions.mark_expired(plans, "expire")[1] == ()
    marker = files.objects(".commit")[0]
    delete_many = LocalDirectory.delete_many

    def refused(client: LocalDirectory, names: Sequence[str]) -> Mapping[str, RemoteStorageError]:
        held = {name: RemoteStorageError(f"{name}: is held") for name in names if name.endswith(marker.name)}
        return {**delete_many(client, [name for name in names if name not in held]), **held}

    for attempts in (1, 2):
        with mock.patch.object(LocalDirectory, "delete_many", refused):
            assert run_on(files, "expire", "--json").document["deleted"] == 0
        [row] = run_on(files, "failed-deletions", "--json").rows
        assert (row["partition"], row["attempts"]) == ("orders-0", attempts)
        states = [each["state"] for each in run_on(files, "segments", "--json").rows]
        assert states.count("DELETE_SEGMENT_STARTED") == 1

    assert run_on(files, "expire", "--json").document["deleted"] == 1
    assert run_on(files, "failed-deletions", "--json").rows == []
    with files.open() as remote_log:
        assert offsets_read(remote_log, 10) == list(range(10, 35))
        assert_clean(remote_log)


# --------------------------------------------------------------------------------------------------------- 6: disable


@pytest.mark.parametrize("how", [("pause",), ("disable",), ("disable", "--delete-remote")], ids=" ".join)
def test_a_topic_that_is_copied_no_more(tmp_path: Path, how: tuple[str, ...]) -> None:
    files = a_copied_remote_log(
        tmp_path, topics={"orders": {**ENABLED, "local.retention.bytes": TOTAL - SEGMENT_BYTES}}
    )
    assert run_on(files, "retain").exit_code == 0
    assert files.local_starts() == [10, 20, 30]
    assert run_on(files, "topics", how[0], "orders", *how[1:]).exit_code == 0
    files.append(2 * SEGMENT_BYTES // BATCH_BYTES)

    assert run_on(files, "copy", "--json").rows == []
    assert run_on(files, "expire").exit_code == 0
    deletes = "--delete-remote" in how
    log_start = 10 if deletes else 0
    end = 35 + 4 * BATCH_RECORDS
    with files.open() as remote_log:
        assert PlainReader(remote_log).log_start_offset(ORDERS_0) == log_start
        assert offsets_read(remote_log, log_start) == list(range(log_start, end))
        assert len(files.objects(".log")) == (0 if deletes else 3)
        assert_clean(remote_log)


def test_reads_return_what_was_written_after_every_kind_of_deletion(tmp_path: Path) -> None:
    """Copy, trim, delete records, expire and copy again, in one test."""
    topic: dict[str, Any] = {**ENABLED, "local.retention.bytes": TOTAL - 2 * SEGMENT_BYTES}
    files = a_copied_remote_log(tmp_path, topics={"orders": topic})
    with files.open() as remote_log:
        retain(remote_log, NOW)
        plan = remote_log.deletions.plan_record_deletion(ORDERS_0, 7)
        assert plan is not None
        remote_log.deletions.mark_expired([plan], "delete-records")
    files.append(4)
    files.properties["topics"] = {"orders": {**topic, "retention.bytes": 2 * SEGMENT_BYTES, "local.retention.bytes": 0}}
    with files.open() as remote_log:
        copy(remote_log)
        expire(remote_log, NOW)
        retain(remote_log, NOW)
        assert (files.local_starts(), PlainReader(remote_log).log_start_offset(ORDERS_0)) == ([50], 30)
        assert_clean(remote_log)
