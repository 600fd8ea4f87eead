"""Which topics and segments a plan leaves out, and how it names them: not enabled, unreadable, without an id."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from support.command_line import mentions, run_on
from support.remote_logs import (
    BATCH_BYTES,
    a_copied_remote_log,
    a_remote_log,
    copy,
    flip_bit,
    partition_of,
    ranges,
    segments_of,
    topic_id,
)
from tiered_storage.errors import ConfigurationError, LogDirectoryLockedError
from tiered_storage.kafka_log.files.directory_lock import DirectoryLock
from tiered_storage.kafka_log.files.offset_checkpoint import write_offset_checkpoint
from tiered_storage.kafka_log.files.partition_metadata import PARTITION_METADATA, write_topic_id
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.model import Finding, TransientFinding
from tiered_storage.remote_log.selection import Selection
from tiered_storage.remote_log.source.log_directory_source import CLEANER_CHECKPOINT
from unit.tiered_storage.remote_log.copy.copy_plans import ENABLED, due

TOO_LONG = "t" * 233
"""With its id one byte more than a file system takes."""


def test_topics_that_are_not_enabled_or_paused_or_not_asked_for_stay_out(tmp_path: Path) -> None:
    partitions = {("clicks", 0): 1, ("orders", 0): 1, ("paused", 0): 1, ("views", 0): 1}
    topics = {
        "clicks": {},
        "orders": ENABLED,
        "paused": {**ENABLED, "remote.log.copy.disable": True},
        "views": ENABLED,
    }
    files = a_remote_log(tmp_path, partitions, topics=topics)

    with files.open() as remote_log:
        assert due(remote_log.plan_copy()) == [("orders-0", 0, 9), ("views-0", 0, 9)]
        assert due(remote_log.plan_copy(Selection("v.*"))) == [("views-0", 0, 9)]
        assert due(remote_log.plan_copy(Selection("order"))) == []


def test_enabled_internal_topics_are_not_copied(tmp_path: Path) -> None:
    partitions = {("__consumer_offsets", 0): 1, ("__transaction_state", 0): 1}
    files = a_remote_log(tmp_path, partitions, topics={"__consumer_offsets": ENABLED, "__transaction_state": ENABLED})
    flip_bit(files.local_segments("__transaction_state")[-1].log_path, BATCH_BYTES - 1)

    with files.open() as remote_log:
        plan = remote_log.plan_copy()

    assert plan.segments == ()
    assert plan.refused == plan.unreadable == ()


def test_a_compacted_topic_is_refused_by_name_and_once(tmp_path: Path) -> None:
    partitions = {("clicks", 0): 1, ("clicks", 1): 1, ("orders", 0): 1, ("views", 0): 1, ("views", 1): 1}
    topics = {"clicks": {**ENABLED, "cleanup.policy": "compact"}, "orders": ENABLED, "views": ENABLED}
    files = a_remote_log(tmp_path, partitions, topics=topics)
    write_offset_checkpoint(files.log_directory / CLEANER_CHECKPOINT, {("views", 1): 3})

    with files.open() as remote_log:
        plan = remote_log.plan_copy()

    assert due(plan) == [("orders-0", 0, 9)]
    assert [finding.partition for finding in plan.refused] == ["clicks", "views"]
    assert "topic clicks has cleanup.policy=compact" in plan.refused[0].message
    assert "brokers compact views-0" in plan.refused[1].message


def test_an_unreadable_partition_stops_no_other_and_is_reported_with_the_reason(tmp_path: Path) -> None:
    partitions = {("clicks", 0): 1, ("orders", 0): 1, ("orders", 1): 1, ("views", 0): 1}
    files = a_remote_log(tmp_path, partitions, topics={"orders": ENABLED, "clicks": ENABLED})
    for topic, number in [("clicks", 0), ("orders", 1), ("views", 0)]:
        (files.partition_directory(topic, number) / "leader-epoch-checkpoint").write_text("1\n0\n")

    with files.open() as remote_log:
        plan = remote_log.plan_copy()
        orders = remote_log.plan_copy(Selection("orders"))

    assert due(plan) == [("orders-0", 0, 9)]
    assert [finding.partition for finding in plan.unreadable] == ["clicks-0", "orders-1"]
    assert "leader-epoch-checkpoint" in plan.unreadable[0].message
    assert [finding.partition for finding in plan.notices] == ["views-0"], "nobody asked to copy it"
    assert [finding.partition for finding in orders.unreadable] == ["orders-1"]


def test_settings_that_contradict_each_other_concern_only_their_topic(tmp_path: Path) -> None:
    partitions = {("clicks", 0): 1, ("orders", 0): 1}
    files = a_remote_log(tmp_path, partitions)

    with files.open() as remote_log:
        clicks = partition_of("clicks")
        remote_log.context.topics.put(
            Topic(
                clicks.cluster_id,
                clicks.topic_id,
                "clicks",
                remote_storage_enable=True,
                properties={"retention.ms": "5", "local.retention.ms": "6"},
            )
        )
        plan = remote_log.plan_copy()

    assert due(plan) == [("orders-0", 0, 9)]
    [finding] = plan.unreadable
    assert finding.partition == "clicks-0"
    assert "local.retention.ms is 6" in finding.message


def test_switched_off_as_a_whole_nothing_is_due_and_that_is_said(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, remote_log_storage_system_enable=False)

    with files.open() as remote_log:
        plan = remote_log.plan_copy()
        assert copy(remote_log).committed == ()

    assert plan.segments == ()
    assert "remote.log.storage.system.enable is false" in plan.notices[0].message


def test_a_directory_in_use_is_not_planned(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    with (
        files.open() as remote_log,
        DirectoryLock.acquire(files.log_directory),
        pytest.raises(LogDirectoryLockedError),
    ):
        remote_log.plan_copy()


def test_a_selection_that_is_no_regular_expression_is_refused(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    with files.open() as remote_log, pytest.raises(ConfigurationError, match=r"'orders\('"):
        remote_log.plan_copy(Selection("orders("))


def test_a_topic_whose_name_the_store_can_never_hold_is_refused_and_the_others_continue(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {(TOO_LONG, 0): 1, (TOO_LONG, 1): 1, (TOO_LONG[1:], 0): 1, ("orders", 0): 1})
    with files.open() as remote_log:
        plan = remote_log.plan_copy()
        assert due(plan) == [("orders-0", 0, 9), (f"{TOO_LONG[1:]}-0", 0, 9)]
        [refused] = plan.refused
        assert refused.partition == TOO_LONG
        assert "a name of 256 bytes" in refused.message
        assert "S3" in refused.message
        assert copy(remote_log).is_whole


def test_a_cluster_id_that_makes_no_name_is_refused(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    (files.log_directory / "meta.properties").write_text("version=1\ncluster.id=a/b\nnode.id=1\n")
    with files.open() as remote_log:
        plan = remote_log.plan_copy()
        assert plan.is_empty
        [refused] = plan.refused
        assert "cluster id 'a/b'" in refused.message


def test_a_finding_names_its_partition_once() -> None:
    said = [
        str(finding)
        for finding in (
            Finding("orders-0", "it is locked"),
            TransientFinding("orders-0", "orders-0: it is locked"),
            Finding("", "it is locked"),
        )
    ]
    assert said == ["orders-0: it is locked", "orders-0: it is locked", "it is locked"]


def test_a_closed_log_that_may_not_be_read_is_named_by_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 4})
    shut, really_open = files.local_segments()[1].log_path, os.open

    def opened(path: Any, *args: Any, **named: Any) -> Any:
        if str(path) == str(shut):
            raise PermissionError(13, "Permission denied", str(path))
        return really_open(path, *args, **named)

    monkeypatch.setattr(os, "open", opened)
    for command in ("plan", "copy"):
        ended = run_on(files, command)

        said = " ".join((ended.out + ended.err).split())
        assert ended.exit_code == 1
        assert mentions(said, shut, "[Errno 13]", "2 closed segments after")
    with files.open() as remote_log:
        assert ranges(segments_of(remote_log)) == [(0, 9)]


def test_a_topic_that_is_remote_is_not_copied_again_without_its_id(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    path = files.partition_directory() / PARTITION_METADATA
    kept, stored = path.read_bytes(), files.objects()
    path.unlink()

    for command in ("plan", "copy"):
        ended = run_on(files, command)

        said = " ".join((ended.out + ended.err).split())
        assert ended.exit_code == 1
        assert mentions(said, f"{path} is missing", topic_id("orders"), "derived id")
        assert f"'topic_id: {topic_id('orders')}'" in said
    assert files.objects() == stored

    path.write_bytes(kept)
    assert run_on(files, "copy").exit_code == 0


def test_another_topic_of_the_name_is_copied_under_an_id_of_its_own(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    write_topic_id(files.partition_directory() / PARTITION_METADATA, topic_id("created again"))

    assert run_on(files, "copy").exit_code == 0
    assert len(files.objects(".log")) == 6


def test_a_topic_that_never_had_an_id_is_copied_on(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    (files.partition_directory() / PARTITION_METADATA).unlink()
    assert run_on(files, "copy").exit_code == 0

    files.append(2)
    assert run_on(files, "copy").exit_code == 0
    assert len(files.objects(".log")) == 4
