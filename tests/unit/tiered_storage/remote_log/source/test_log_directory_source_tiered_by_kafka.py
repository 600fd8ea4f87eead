"""Topics that a broker with tiered storage of its own keeps: they are refused by name, never copied in part."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from support.command_line import CommandResult, mentions, run, run_on
from support.remote_logs import ENABLED, RemoteLogFiles, a_copied_remote_log, a_remote_log, copy, local_log
from tiered_storage.kafka_log.files.directory_lock import DirectoryLock
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import (
    LEADER_EPOCH_CHECKPOINT,
    EpochEntry,
    write_leader_epochs,
)
from tiered_storage.kafka_log.files.log_segment import LogSegment
from tiered_storage.kafka_log.files.offset_checkpoint import (
    LOG_START_OFFSET_CHECKPOINT,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from tiered_storage.remote_log.selection import EVERYTHING

FREEING = {"orders": {**ENABLED, "local.retention.bytes": 0}}


def let_kafka_tier(files: RemoteLogFiles, *, with_checkpoint: bool = True) -> None:
    """Do what a broker does: remove the first local segment, keep log start 0; or take its checkpoint away."""
    for path in files.partition_directory().glob(f"{0:020}.*"):
        path.unlink()
    checkpoint = files.log_directory / LOG_START_OFFSET_CHECKPOINT
    write_offset_checkpoint(checkpoint, {("orders", 0): 0})
    if not with_checkpoint:
        checkpoint.unlink()


def begin_at_10(files: RemoteLogFiles) -> None:
    """Do what a broker's retention does to a topic that it does not tier."""
    LogSegment(0, files.partition_directory()).log_path.unlink()
    write_leader_epochs(files.partition_directory() / LEADER_EPOCH_CHECKPOINT, [EpochEntry(0, 10)])


def said(ended: CommandResult) -> str:
    return " ".join((ended.out + ended.err).split())


def test_plan_and_copy_refuse_the_topic_by_name(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    let_kafka_tier(files)

    for command in ("plan", "copy"):
        ended = run_on(files, command)

        assert ended.exit_code == 1
        assert mentions(said(ended), "Kafka itself tiers orders-0", "offset is 10")
        assert mentions(said(ended), LOG_START_OFFSET_CHECKPOINT, "offset 0 ")
        assert "topics disable" in said(ended)
    assert files.objects() == []


def test_a_topic_that_is_not_enabled_stops_nothing(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 1, ("clicks", 0): 1}, topics={"clicks": ENABLED})
    let_kafka_tier(files)

    assert run_on(files, "copy").exit_code == 0
    assert len(files.objects(".log")) == 1


def test_trims_and_audits_report_a_copied_topic_that_kafka_now_tiers(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=FREEING)
    let_kafka_tier(files)
    with files.open() as remote_log:
        plans, [unreadable] = remote_log.deletions.plan_local_retention(EVERYTHING, 0)
        assert plans == []
        assert "Kafka itself tiers orders-0" in unreadable.message

        [notice] = remote_log.checks.audit().unseen
        assert mentions(notice, "orders-0 is refused", "Kafka itself tiers orders-0", "offset is 10")


def test_a_restore_of_what_was_copied_before_is_refused_until_gaps_are_allowed(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    target = tmp_path / "restored"
    assert run_on(files, "restore", "orders", "--dry-run").exit_code == 0
    let_kafka_tier(files)

    for given in ("--dry-run",), ("--to-directory", target):
        ended = run_on(files, "restore", "orders", *given)
        assert ended.exit_code == 1
        assert mentions(said(ended), "Kafka itself tiers orders-0", "offset is 10")
    assert not target.exists()
    with DirectoryLock.acquire(files.log_directory):
        assert run_on(files, "restore", "orders", "--dry-run").exit_code == 0
    assert run_on(files, "restore", "orders", "--to-directory", target, "--allow-gaps").exit_code == 0


def test_enabling_it_is_refused(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, topics={})
    let_kafka_tier(files)

    ended = run_on(files, "topics", "enable", "orders")

    assert ended.exit_code == 1
    assert "Kafka itself tiers orders-0" in said(ended)


def test_doctor_names_it(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, topics={})
    let_kafka_tier(files)

    assert "Kafka itself tiers orders-0" in said(run("doctor", "--config", files.config))


def test_a_log_that_begins_above_0_is_refused_where_no_checkpoint_says_that_kafka_does_not_tier_it(
    tmp_path: Path,
) -> None:
    """As a copy of the folder of a partition alone."""
    files = a_remote_log(tmp_path)
    let_kafka_tier(files, with_checkpoint=False)

    for command in ("plan", "copy", "topics enable orders"):
        ended = run_on(files, *command.split())
        assert ended.exit_code == 1
        assert mentions(said(ended), "may tier orders-0", "offset is 10")
        assert f"{LOG_START_OFFSET_CHECKPOINT} is missing" in said(ended)
    assert "may tier orders-0" in said(run("doctor", "--config", files.config))
    assert files.objects() == []

    # A person's word, as the message names it.
    assert "'orders 0 10'" in said(run_on(files, "copy"))
    (files.log_directory / LOG_START_OFFSET_CHECKPOINT).write_text("0\n1\norders 0 10\n")
    assert run_on(files, "copy").exit_code == 0
    assert len(files.objects(".log")) == 2


@pytest.mark.parametrize("others", [{}, {("other", 0): 5}])
@pytest.mark.parametrize("sign", ["leader-epoch-checkpoint", "remote-log-index-cache", "__remote_log_metadata-0"])
def test_a_log_above_0_that_the_checkpoint_does_not_name_is_refused_at_any_sign_of_tiering(
    tmp_path: Path, sign: str, others: Mapping[tuple[str, int], int]
) -> None:
    """As where a broker was killed before it wrote the entry."""
    files = a_remote_log(tmp_path)
    let_kafka_tier(files)
    write_offset_checkpoint(files.log_directory / LOG_START_OFFSET_CHECKPOINT, others)
    if sign != LEADER_EPOCH_CHECKPOINT:
        (files.partition_directory() / LEADER_EPOCH_CHECKPOINT).unlink()
        (files.log_directory / sign).mkdir()

    for command in ("plan", "copy", "topics enable orders"):
        ended = run_on(files, *command.split())
        assert ended.exit_code == 1
        assert mentions(
            said(ended), "may tier orders-0", "offset is 10", LOG_START_OFFSET_CHECKPOINT, sign, "'orders 0 10'"
        )
    assert files.objects() == []


def test_a_log_that_begins_at_0_needs_no_checkpoint(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    (files.log_directory / LOG_START_OFFSET_CHECKPOINT).unlink()

    assert run_on(files, "copy").exit_code == 0
    assert len(files.objects(".log")) == 3


def test_other_topics_of_a_broker_that_tiers_are_copied(tmp_path: Path) -> None:
    """Of a topic that a broker does not tier its checkpoint has no entry, or one within the local log.

    Its leader epochs begin with the local log.
    """
    files = a_remote_log(tmp_path)
    (files.log_directory / "remote-log-index-cache").mkdir()
    begin_at_10(files)
    for starts in ({}, {("orders", 0): 10}, {("orders", 0): 13}):
        write_offset_checkpoint(files.log_directory / LOG_START_OFFSET_CHECKPOINT, starts)
        with files.open() as remote_log:
            plan = remote_log.plan_copy()
            assert (plan.refused, plan.unreadable) == ((), ())
            assert [segment.base_offset for segment in plan.segments] == [10, 20]


def test_our_own_trims_are_not_taken_for_kafkas_tiering(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=FREEING)
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, 0)
        assert remote_log.deletions.enforce_local_retention(plans).failures == ()
        assert local_log(remote_log).tiered_by_kafka is None
    files.append(6)
    with files.open() as remote_log:
        assert read_offset_checkpoint(files.log_directory / LOG_START_OFFSET_CHECKPOINT) == {("orders", 0): 30}
        assert copy(remote_log).is_whole


def test_a_log_that_no_broker_tiers_gets_a_log_start_within_it(tmp_path: Path) -> None:
    """A broker names only such logs in its checkpoint that begin within a segment, or that it tiers."""
    files = a_remote_log(tmp_path)
    begin_at_10(files)
    checkpoint = files.log_directory / LOG_START_OFFSET_CHECKPOINT
    write_offset_checkpoint(checkpoint, {})

    files.append()

    assert read_offset_checkpoint(checkpoint) == {("orders", 0): 10}
    with files.open() as remote_log:
        assert local_log(remote_log).tiered_by_kafka is None
