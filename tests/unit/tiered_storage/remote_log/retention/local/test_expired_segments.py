"""What is deleted locally below the global log start, where deleted remote segments end elsewhere than local ones.

The leader's segments, which are copied, have ten offsets; those of the replica, which is trimmed, fifteen.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from support.command_line import mentions, run_on
from support.plain_reader import PlainReader
from support.remote_logs import (
    BATCH_BYTES,
    CLUSTER_ID,
    ENABLED,
    NOW,
    ORDERS_0,
    RemoteLogFiles,
    append_batches,
    copy,
    offsets_read,
    record,
    topic_id,
    unsynced,
)
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage.kafka_log.indexes.time_index import TimeIndex
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.remote_log.context import store_options
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.rebuild.metadata_rebuild import rebuild_metadata
from tiered_storage.remote_log.retention.local import enforcement
from tiered_storage.remote_log.retention.local.enforcement import LocalRetentionReport
from tiered_storage.remote_log.retention.local.plan import LocalRetentionPlan
from tiered_storage.remote_log.selection import EVERYTHING

KEEPING: dict[str, Any] = {"local.retention.bytes": 10**9}
BATCHES_OF_A_SEGMENT = {"leader": 2, "replica": 3, "long": 6}


def at(log: str, root: Path, batches: int, number: int = 0, **limits: Any) -> RemoteLogFiles:
    """Let a log of partition `number` have so many batches; return the remote log over it, whose topic has `limits`."""
    directory = root / log
    config = LogConfig(segment_bytes=BATCHES_OF_A_SEGMENT[log] * BATCH_BYTES, index_interval_bytes=100)
    with unsynced():
        if directory.exists():
            writer = LogDirectoryWriter.open(directory, config, clock=lambda: NOW)
        else:
            writer = LogDirectoryWriter.create(directory, CLUSTER_ID, clock=lambda: NOW)
        with writer:
            is_new = not (directory / f"orders-{number}").exists()
            begun = ("orders", number, topic_id("orders"), config)
            written = writer.create_log(*begun) if is_new else writer.log("orders", number)
            append_batches(written, batches - written.log_end_offset // 5)
    topic = {**ENABLED, **{name.replace("_", "."): value for name, value in limits.items()}}
    return RemoteLogFiles(root, properties={"topics": {"orders": topic}, "log.dirs": [str(directory)]})


def starts(root: Path, log: str = "replica") -> list[int]:
    return [segment.base_offset for segment in list_segments(root / log / "orders-0")]


def expire(files: RemoteLogFiles, now: int) -> int:
    """Copy, and delete what is past total retention; return the global log start."""
    files.clock.now = max(files.clock.now, now)
    with files.open() as remote_log:
        copy(remote_log)
        plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, now)
        assert remote_log.deletions.mark_expired(plans, "expire")[1] == ()
        assert remote_log.deletions.delete_marked("expire").failures == ()
        return PlainReader(remote_log).log_start_offset(ORDERS_0)


def delete_records(files: RemoteLogFiles, before: int) -> None:
    with files.open() as remote_log:
        copy(remote_log)
        plan = remote_log.deletions.plan_record_deletion(ORDERS_0, before)
        assert plan is not None
        assert remote_log.deletions.mark_expired([plan], "ada")[1] == ()
        assert remote_log.deletions.delete_marked("expire").failures == ()


def trim(
    remote_log: RemoteLogManager, now: int, max_segments: int | None = None
) -> tuple[LocalRetentionPlan, LocalRetentionReport]:
    [plan], left = remote_log.deletions.plan_local_retention(EVERYTHING, now, max_segments=max_segments)
    assert left == []
    return plan, remote_log.deletions.enforce_local_retention([plan])


def retain(files: RemoteLogFiles, now: int, max_segments: int | None = None) -> str | None:
    """Trim, nothing of which may fail; return what was held back."""
    files.clock.now = max(files.clock.now, now)
    with files.open() as remote_log:
        plan, report = trim(remote_log, now, max_segments)
        assert report.failures == ()
        return plan.held_back


# ------------------------------------------------------------------------------------ what total retention ends itself


def test_a_partly_deleted_segment_that_spans_the_global_log_start_expires_by_time(
    tmp_path: Path,
) -> None:
    limits = {"retention_ms": 60_000, "local_retention_ms": 55_000}
    leader = at("leader", tmp_path, 21, **limits)
    for now, log_start, left in ((record(19).timestamp + 55_001, 10, 15), (record(29).timestamp + 55_001, 20, 30)):
        assert expire(leader, now) == log_start
        assert retain(at("replica", tmp_path, 21, **limits), now) is None
        assert starts(tmp_path)[0] == left


def test_a_partly_deleted_segment_that_spans_the_global_log_start_expires_by_size(
    tmp_path: Path,
) -> None:
    limits = {"retention_bytes": 10 * BATCH_BYTES, "local_retention_bytes": 8 * BATCH_BYTES}
    for batches, log_start, left in ((11, 0, 15), (14, 20, 30)):
        assert expire(at("leader", tmp_path, batches, **limits), NOW) == log_start
        assert retain(at("replica", tmp_path, batches, **limits), NOW) is None
        assert starts(tmp_path)[0] == left


def test_remote_records_of_an_active_segment_count_once_towards_total_retention(tmp_path: Path) -> None:
    limits = {"retention_bytes": 10 * BATCH_BYTES}
    with at("leader", tmp_path, 11, **limits).open() as remote_log:
        copy(remote_log)
    # Of offsets 45 to 54 the replica has none in a closed segment; 45 to 49 are remote.
    assert expire(at("replica", tmp_path, 11, **limits), NOW) == 0
    assert expire(at("replica", tmp_path, 12, **limits), NOW) == 10


@pytest.mark.parametrize("limits", [{"retention_ms": 60_000}, {"retention_bytes": 6 * BATCH_BYTES}])
def test_segments_that_were_never_copied_are_trimmed_after_total_retention(
    tmp_path: Path, limits: dict[str, int]
) -> None:
    files = at("replica", tmp_path, 13)
    with files.open() as remote_log:
        plan = remote_log.deletions.plan_record_deletion(ORDERS_0, 30)
        assert plan is not None
        assert remote_log.deletions.mark_expired([plan], "ada")[1] == ()
    held_back = retain(files, NOW)

    assert mentions(str(held_back), "offsets 0 to 14", "global log start", "nothing proves")
    assert "kafka-delete-records" in str(held_back)
    assert run_on(files, "retain").exit_code == 1
    assert starts(tmp_path) == [0, 15, 30, 45, 60]
    assert retain(at("replica", tmp_path, 13, **limits), record(90).timestamp) is None
    assert starts(tmp_path) == [30, 45, 60]


def test_a_time_index_that_is_too_old_ends_nothing(tmp_path: Path) -> None:
    files = at("replica", tmp_path, 13, retention_ms=60_000)
    with files.open() as remote_log:
        plan = remote_log.deletions.plan_record_deletion(ORDERS_0, 30)
        assert plan is not None
        assert remote_log.deletions.mark_expired([plan], "ada")[1] == ()
        first = list_segments(tmp_path / "replica" / "orders-0")[0]
        index = TimeIndex.read(first.time_index_path, 0)
        first.time_index_path.write_bytes(replace(index, timestamps=index.timestamps - 10**6).to_bytes())

        planned, report = trim(remote_log, record(14).timestamp + 60_000)

    assert [one.base_offset for one in planned.segments] == [0]
    assert mentions(report.failures[0].message, "offsets 0 to 14", "global log start", "nothing proves")
    assert starts(tmp_path) == [0, 15, 30, 45, 60]


# -------------------------------------------------------------------------------------------- what a person has deleted


def test_local_segments_that_share_a_deleted_remote_segment_are_removed_together(tmp_path: Path) -> None:
    delete_records(at("leader", tmp_path, 13), 20)
    # Of offsets 10 to 19 the replica has a part in its first segment, and a part in the second.
    files = at("replica", tmp_path, 13, **KEEPING)
    assert mentions(str(retain(files, NOW)), "offsets 0 to 14", "removed together")
    retained = run_on(files, "retain")
    assert (retained.exit_code, retained.err.startswith("note: orders-0: offsets 0 to 14 share")) == (0, True)
    assert starts(tmp_path) == [0, 15, 30, 45, 60]

    files = at("replica", tmp_path, 13, local_retention_bytes=7 * BATCH_BYTES)
    with mock.patch.object(enforcement, "STEP_BYTES", 1):
        settings = ("local.retention.max.segments.per.run", "--max-segments")
        assert mentions(str(retain(files, NOW, max_segments=1)), "offsets 0 to 14", "no more than 1", *settings)
        retained = run_on(files, "retain", "--max-segments", 1)
        assert retained.exit_code == 1
        assert mentions(retained.err, "no more than 1", *settings)
        assert starts(tmp_path)[0] == 0
        assert retain(files, NOW) is None
    assert starts(tmp_path) == [30, 45, 60]
    with files.open() as remote_log:
        assert offsets_read(remote_log, 20) == list(range(20, 65))


def test_segments_to_remove_together_wait_if_their_share_of_the_run_is_too_small(tmp_path: Path) -> None:
    limits = {"local_retention_bytes": 7 * BATCH_BYTES}
    delete_records(at("leader", tmp_path, 13), 20)
    at("replica", tmp_path, 13, **limits)
    files = at("replica", tmp_path, 13, number=1, **limits)

    with files.open() as remote_log:
        copy(remote_log)
        plans, left = remote_log.deletions.plan_local_retention(EVERYTHING, NOW, max_segments=2)

    assert left == []
    # Two of orders-0 go together. One is its share, which orders-1 gets instead.
    assert [(len(plan.segments), plan.waits) for plan in plans] == [(0, True), (2, False)]
    assert "no more than 1 were allowed here" in str(plans[0].held_back)
    assert run_on(files, "retain", "--max-segments", 2).exit_code == 0


def test_many_local_segments_that_share_a_deleted_remote_segment_are_removed_together(tmp_path: Path) -> None:
    delete_records(at("long", tmp_path, 20), 65)
    assert retain(at("replica", tmp_path, 20, **KEEPING), NOW) is None

    assert starts(tmp_path)[0] == 60


def test_a_segment_trimmed_in_part_before_its_deletion_is_held_back(tmp_path: Path) -> None:
    """Of offsets 10 to 19 the first are gone locally: the checksum of all of them proves nothing any more."""
    leader = at("leader", tmp_path, 13)
    with leader.open() as remote_log:
        copy(remote_log)
    files = at("replica", tmp_path, 13, local_retention_bytes=10 * BATCH_BYTES)
    assert retain(files, NOW) is None
    assert starts(tmp_path)[0] == 15
    delete_records(leader, 20)
    files = at("replica", tmp_path, 13, local_retention_bytes=0)
    held_back = retain(files, NOW)

    assert mentions(str(held_back), "offsets 15 to 19", "global log start", "nothing proves")
    assert starts(tmp_path)[0] == 15
    files = at("replica", tmp_path, 13, local_retention_bytes=0, retention_ms=60_000)
    assert retain(files, record(19).timestamp + 60_001) is None
    assert starts(tmp_path) == [60]


def test_rebuilt_metadata_prove_nothing_of_what_was_deleted(tmp_path: Path) -> None:
    files = at("leader", tmp_path, 13)
    delete_records(files, 20)
    for database in (tmp_path / "state").glob("remote_log_metadata.db*"):
        database.unlink()
    settings = files.settings()
    rebuild_metadata(settings, store_options(settings, {}), files.clock)
    files = at("leader", tmp_path, 13, **KEEPING)
    with files.open() as remote_log:
        forbidden = remote_log.context.decided_topic(ORDERS_0)
        remote_log.context.topics.put(replace(forbidden, local_deletion_allowed=True, remote_deletion_allowed=True))

    held_back = retain(files, NOW)

    assert mentions(str(held_back), "offsets 0 to 9", "global log start", "nothing proves")
    assert starts(tmp_path, "leader")[0] == 0


def test_a_segment_of_another_storage_manager_proves_nothing(tmp_path: Path) -> None:
    files = at("leader", tmp_path, 13)
    delete_records(files, 20)
    with mock.patch("tiered_storage.remote_log.retention.local.expired_segments.known_crc32c", return_value=None):
        held_back = retain(at("leader", tmp_path, 13, **KEEPING), NOW)

    assert "nothing proves" in str(held_back)
    assert starts(tmp_path, "leader")[0] == 0


# ------------------------------------------------------------------------------------ what changes after it was planned


def replace_log(root: Path, of_what: Callable[[Record], Record]) -> None:
    """Put another log of the same sizes in the leader's place."""
    shutil.move(root / "leader", root / "kept")
    with mock.patch("support.remote_logs.record", lambda offset: of_what(record(offset))):
        at("leader", root, 13)


def test_another_log_that_took_the_place_of_the_one_that_was_planned_stays(tmp_path: Path) -> None:
    files = at("leader", tmp_path, 13, **KEEPING)
    delete_records(files, 20)
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
        assert [one.base_offset for one in plans[0].segments] == [0, 10]
        replace_log(tmp_path, lambda each: replace(each, value=(each.value or b"").swapcase()))

        [failure] = remote_log.deletions.enforce_local_retention(plans).failures

    assert mentions(failure.message, "is a fork", "offsets 0 to 9", "global log start")
    assert starts(tmp_path, "leader")[0] == 0


def test_a_younger_log_that_took_the_place_of_the_one_that_was_planned_stays(tmp_path: Path) -> None:
    limits = {**KEEPING, "retention_ms": 60_000}
    now = record(19).timestamp + 60_001
    files = at("leader", tmp_path, 13, **limits)
    assert expire(files, now) == 20
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, now)
        replace_log(tmp_path, lambda each: replace(each, timestamp=each.timestamp + 10**6))

        [failure] = remote_log.deletions.enforce_local_retention(plans).failures

    assert "is a fork" in failure.message
    assert starts(tmp_path, "leader")[0] == 0


def test_total_retention_that_keeps_more_when_the_directory_is_locked_is_obeyed(tmp_path: Path) -> None:
    limits = {**KEEPING, "retention_ms": 60_000}
    now = record(19).timestamp + 60_001
    files = at("leader", tmp_path, 13, **limits)
    assert expire(files, now) == 20
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, now)
        topic = remote_log.context.decided_topic(ORDERS_0)
        remote_log.context.topics.put(replace(topic, properties={**topic.properties, "retention.ms": "-1"}))

        report = remote_log.deletions.enforce_local_retention(plans)
        assert (report.trimmed, report.failures) == ((), ())
        # By the checksums of what was deleted it goes all the same.
        assert trim(remote_log, now)[1].failures == ()
    assert starts(tmp_path, "leader")[0] == 20
