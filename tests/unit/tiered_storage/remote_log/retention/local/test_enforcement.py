"""A plan of local retention is carried out only as far as it still holds when the directory is locked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.command_line import mentions
from support.metadata_files import database_of, remove_metadata
from support.metadata_stores import a_step
from support.remote_logs import (
    ENABLED,
    NOW,
    ORDERS_0,
    SEGMENT_BYTES,
    a_copied_remote_log,
    copy,
    end_below,
    held_by,
    offsets_read,
    segments_of,
)
from tiered_storage.errors import DeletionRefusedError, OutdatedMetadataError, StoreMismatchError
from tiered_storage.kafka_log.files.directory_lock import DirectoryLock
from tiered_storage.kafka_log.files.offset_checkpoint import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from tiered_storage.remote_log.model import SegmentState
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage.remote_log.source.log_directory_trim import LogDirectoryTrim
from unit.tiered_storage.remote_log.retention.local.local_plans import TOTAL, bases, keeping, retain


def test_trimmed_records_are_read_from_the_remote_tier(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(SEGMENT_BYTES))

    with files.open() as remote_log:
        assert retain(remote_log) == []
        assert files.local_starts() == [20, 30]
        checkpoint = read_offset_checkpoint(files.log_directory / LOG_START_OFFSET_CHECKPOINT)
        assert checkpoint == {("orders", 0): 20}
        assert offsets_read(remote_log, 0) == list(range(35))
        assert retain(remote_log) == []
        assert files.local_starts() == [20, 30]


def test_nothing_is_deleted_while_a_broker_has_the_directory(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(0))

    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
        with DirectoryLock.acquire(files.log_directory):
            report = remote_log.deletions.enforce_local_retention(plans)

    assert report.trimmed == ()
    assert "is in use" in report.failures[0].message
    assert files.local_starts() == [0, 10, 20, 30]


def test_nothing_is_deleted_while_deletions_are_stopped(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(0))

    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
        files.clock.now = NOW + 10_000_000
        remote_log.context.safety.stop("a wrong mount", "ada")
        with pytest.raises(DeletionRefusedError, match=r"ada .*2023-11-15 01:00:00 UTC \(a wrong mount\)"):
            remote_log.deletions.enforce_local_retention(plans)
        assert files.local_starts() == [0, 10, 20, 30]

        remote_log.context.safety.lift("ada")
        assert len(remote_log.deletions.enforce_local_retention(plans).trimmed) == 1


def test_a_stop_holds_from_the_next_partition_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = a_copied_remote_log(tmp_path, {("orders", 0): 1, ("orders", 1): 1}, topics=keeping(0))

    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
        trim = LogDirectoryTrim.trim

        def stopped_behind(self: LogDirectoryTrim, *given: Any) -> int:
            start = trim(self, *given)
            remote_log.context.safety.stop("", "ada")
            return start

        monkeypatch.setattr(LogDirectoryTrim, "trim", stopped_behind)
        report = remote_log.deletions.enforce_local_retention(plans)

        assert report.stopped is not None
        assert "no reason given" in report.stopped
        assert len(report.trimmed) == 1
        with pytest.raises(DeletionRefusedError, match="no reason given"):
            remote_log.deletions.enforce_local_retention(plans)

    assert sorted([files.local_starts(number=0), files.local_starts(number=1)]) == [[0, 10], [10]]


@pytest.mark.parametrize(
    "lost", [{"remote_storage_enable": False}, {"local_deletion_allowed": False}], ids=["disabled", "forbidden"]
)
def test_a_right_that_was_taken_away_since_the_plan_is_asked_for_again(tmp_path: Path, lost: dict[str, Any]) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(0))

    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
        decided = remote_log.context.decided_topic(ORDERS_0)
        remote_log.context.topics.put(replace(decided, **lost))
        report = remote_log.deletions.enforce_local_retention(plans)

    assert report.trimmed == ()
    [failure] = report.failures
    assert "local deletion" in failure.message
    assert files.local_starts() == [0, 10, 20, 30]


def test_without_the_remote_right_only_wholly_covered_segments_are_trimmed(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(0))

    with files.open() as remote_log:
        whole, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
        end_below(remote_log, 10)
        partial, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
        remote_log.context.topics.put(
            replace(remote_log.context.decided_topic(ORDERS_0), remote_deletion_allowed=False)
        )

        [failure] = remote_log.deletions.enforce_local_retention(partial).failures
        assert "the last copy" in failure.message
        assert files.local_starts() == [0, 10, 20, 30]
        assert len(remote_log.deletions.enforce_local_retention(whole).trimmed) == 1


def test_nothing_is_deleted_where_store_and_metadata_do_not_belong_together(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(0))
    (files.store / "store.json").unlink()

    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
        assert bases(plans[0]) == [0, 10, 20]
        with pytest.raises(StoreMismatchError):
            remote_log.deletions.enforce_local_retention(plans)

    assert files.local_starts() == [0, 10, 20, 30]


def test_a_log_that_changed_since_the_plan_is_left_alone(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(0))

    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
        changed = [replace(plan, new_local_start=20, segments=plan.segments[1:2]) for plan in plans]
        report = remote_log.deletions.enforce_local_retention(changed)

    assert report.trimmed == ()
    assert files.local_starts() == [0, 10, 20, 30]


def test_covered_segments_are_trimmed_though_the_high_watermark_lags(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(0))
    write_offset_checkpoint(files.log_directory / HIGH_WATERMARK_CHECKPOINT, {("orders", 0): 31})

    with files.open() as remote_log:
        assert retain(remote_log) == []

    assert files.local_starts() == [30]


def just_before_the_second_look(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """Let something happen between the look at the store and the moment when the directory is locked."""
    acquire = DirectoryLock.acquire

    def acquired(*given: Any, **named: Any) -> DirectoryLock:
        happens()
        return acquire(*given, **named)

    monkeypatch.setattr(DirectoryLock, "acquire", acquired)


def test_a_setting_that_keeps_more_by_now_is_obeyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(0))
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
        kept = {
            **remote_log.context.decided_topic(ORDERS_0).properties,
            "local.retention.bytes": str(TOTAL - SEGMENT_BYTES),
        }
        topic = replace(remote_log.context.decided_topic(ORDERS_0), properties=kept)
        just_before_the_second_look(monkeypatch, lambda: remote_log.context.topics.put(topic))

        [trimmed] = remote_log.deletions.enforce_local_retention(plans).trimmed
        assert (bases(trimmed), trimmed.new_local_start) == ([0], 10)
        assert files.local_starts() == [10, 20, 30]


def test_a_right_revoked_between_both_checks_prevents_the_trim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(0))
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
        topic = replace(remote_log.context.decided_topic(ORDERS_0), local_deletion_allowed=False)
        just_before_the_second_look(monkeypatch, lambda: remote_log.context.topics.put(topic))

        [failure] = remote_log.deletions.enforce_local_retention(plans).failures
        assert "local deletion" in failure.message
        assert files.local_starts() == [0, 10, 20, 30]


def test_a_stop_between_both_looks_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(0))
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
        just_before_the_second_look(monkeypatch, lambda: remote_log.context.safety.stop("now", "ada"))

        [failure] = remote_log.deletions.enforce_local_retention(plans).failures
        assert "ada stopped all deletions" in failure.message
        assert files.local_starts() == [0, 10, 20, 30]


def test_a_segment_that_lost_its_remote_copy_before_the_lock_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(0))
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
        second = segments_of(remote_log)[1]

        def marked() -> None:
            marking = a_step(second, SegmentState.DELETE_SEGMENT_STARTED)
            remote_log.context.segments.update_remote_log_segment_metadata(marking, held_by(remote_log, "test"))

        just_before_the_second_look(monkeypatch, marked)
        [trimmed] = remote_log.deletions.enforce_local_retention(plans).trimmed
        assert bases(trimmed) == [0]
        assert files.local_starts() == [10, 20, 30]


def test_a_long_copy_that_holds_the_lease_does_not_hold_up_the_trim(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(0))
    with files.open() as remote_log:
        held_by(remote_log, "a copy of hours")
        assert retain(remote_log) == []
    assert files.local_starts() == [30]


def test_nothing_local_is_deleted_under_metadata_that_are_older_than_the_store(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(0))
    database = database_of(files)
    last_week = database.read_bytes()
    files.append(4)
    with files.open() as remote_log:
        assert len(copy(remote_log).committed) == 2
    remove_metadata(files)
    database.write_bytes(last_week)

    with files.open(outdated=True) as remote_log, pytest.raises(OutdatedMetadataError):
        retain(remote_log)
    assert files.local_starts() == [0, 10, 20, 30, 40, 50]


def test_nothing_is_trimmed_where_all_that_is_remote_is_to_be_deleted(tmp_path: Path) -> None:
    disabled = {"orders": {**ENABLED, "remote.storage.enable": False}}
    files = a_copied_remote_log(tmp_path, topics=disabled)
    with files.open() as remote_log:
        remote_log.deletions.mark_topic_deleted(remote_log.deletions.plan_topic_deletion("orders"), "delete-topic")
    files.properties["topics"] = keeping(0)

    with files.open() as remote_log:
        [plan], _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
        assert bases(plan) == []
        assert mentions(str(plan.held_back), "everything remote", "deleted")
        remote_log.deletions.delete_marked("expire")
        assert retain(remote_log) == []
        assert offsets_read(remote_log, 0) == list(range(35))


def test_a_topic_that_is_marked_after_the_plan_is_not_trimmed(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=keeping(0))
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
        assert bases(plans[0]) == [0, 10, 20]
        topic = remote_log.context.decided_topic(ORDERS_0)
        remote_log.context.topics.put(replace(topic, remote_storage_enable=False))
        remote_log.deletions.mark_topic_deleted(remote_log.deletions.plan_topic_deletion("orders"), "delete-topic")
        remote_log.context.topics.put(topic)

        assert remote_log.deletions.enforce_local_retention(plans).trimmed == ()
    assert files.local_starts() == [0, 10, 20, 30]


def test_a_plan_made_by_a_fast_clock_trims_only_what_our_clock_says_is_due(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": {**ENABLED, "local.retention.ms": 10**10}})
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW * 2)
        assert bases(plans[0]) == [0, 10, 20]

        assert remote_log.deletions.enforce_local_retention(plans).trimmed == ()
    assert files.local_starts() == [0, 10, 20, 30]
