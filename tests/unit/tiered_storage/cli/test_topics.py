from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from support.command_line import CommandResult, mentions, run_on
from support.remote_logs import (
    ENABLED,
    LOG_CONFIG,
    ORDERS_0,
    RemoteLogFiles,
    a_copied_remote_log,
    a_remote_log,
    append_batches,
    held_by,
    partition_of,
    topic_id,
)
from tiered_storage.cli import topics as cli_topics
from tiered_storage.cli.common.topic_table import Tier
from tiered_storage.kafka_log.files.offset_checkpoint import HIGH_WATERMARK_CHECKPOINT, write_offset_checkpoint
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.source.log_directory_source import CLEANER_CHECKPOINT

OTHER_LIMITS = ("local.retention.ms", "local.retention.bytes", "remote.copy.lag.ms", "remote.copy.lag.bytes")


def topics(files: RemoteLogFiles, *arguments: object) -> CommandResult:
    return run_on(files, "topics", *arguments, "--json")


def row_of(result: CommandResult) -> dict[str, Any]:
    assert result.exit_code == 0, result.err
    [row] = result.rows
    return row


def rights(result: CommandResult) -> tuple[bool, bool]:
    row = row_of(result)
    return row["local_deletion_allowed"], row["remote_deletion_allowed"]


def test_every_topic_is_listed_with_what_holds_for_it(tmp_path: Path) -> None:
    files = a_remote_log(
        tmp_path,
        {("__consumer_offsets", 0): 0, ("clicks", 0): 0, ("orders", 0): 0, ("orders", 1): 0},
        topics={
            "orders": {**ENABLED, "local.retention.ms": 5, "remote.copy.lag.ms": 3},
            "clicks": {"retention.bytes": 7},
        },
        log_retention_ms=1000,
    )

    result = topics(files, "list")

    assert result.rows == [
        {
            "topic": "clicks", "topic_id": topic_id("clicks"), "partitions": 1, "remote.storage.enable": False,
            "paused": False, "local_deletion_allowed": False, "remote_deletion_allowed": False,
            "retention.ms": 1000, "retention.bytes": 7, "local.retention.ms": 1000,
            "local.retention.bytes": 7, "remote.copy.lag.ms": 0, "remote.copy.lag.bytes": 7,
            "segment.bytes": None, "segment.ms": None, "problem": None,
            "origins": {
                "retention.ms": "ours, for all topics", "retention.bytes": "ours, for the topic",
                **dict.fromkeys(OTHER_LIMITS, "Kafka's default"),
            },
        },
        {
            "topic": "orders", "topic_id": topic_id("orders"), "partitions": 2, "remote.storage.enable": True,
            "paused": False, "local_deletion_allowed": True, "remote_deletion_allowed": True,
            "retention.ms": -1, "retention.bytes": -1, "local.retention.ms": 5,
            "local.retention.bytes": -1, "remote.copy.lag.ms": 3, "remote.copy.lag.bytes": -1,
            "segment.bytes": None, "segment.ms": None, "problem": None,
            "origins": {
                "retention.ms": "ours, for the topic", "retention.bytes": "Kafka's default",
                **dict.fromkeys(OTHER_LIMITS, "Kafka's default"), "local.retention.ms": "ours, for the topic",
                "remote.copy.lag.ms": "ours, for the topic",
            },
        },
    ]  # fmt: skip
    shown = run_on(files, "topics", "list")
    assert [word for word in ("clicks", "orders", "yes", "no") if word not in shown.out] == []


def test_topics_that_are_only_remote_are_listed_too(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    files.properties["log.dirs"] = []

    assert row_of(topics(files, "list"))["topic"] == "orders"
    assert rights(topics(files, "forbid-deletion", "orders")) == (False, False)


def test_a_topic_is_switched_on_and_off(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, topics={})

    assert row_of(topics(files, "list"))["remote.storage.enable"] is False
    assert run_on(files, "plan", "--json").rows == []

    assert row_of(topics(files, "enable", "orders"))["remote.storage.enable"] is True
    assert row_of(topics(files, "list"))["remote.storage.enable"] is True
    assert len(run_on(files, "plan", "--json").rows) == 3

    assert row_of(topics(files, "disable", "orders"))["remote.storage.enable"] is False
    assert run_on(files, "plan", "--json").rows == []


def test_deletion_is_allowed_and_forbidden_by_topic(tmp_path: Path) -> None:
    limits = {"remote.storage.enable": True, "local.retention.bytes": 0}
    files = a_copied_remote_log(tmp_path, topics={"orders": limits})

    assert run_on(files, "retain", "--dry-run", "--json").rows == []
    assert rights(topics(files, "allow-deletion", "orders")) == (True, True)
    assert run_on(files, "retain", "--dry-run", "--json").rows[0]["segments"] == 3
    assert rights(topics(files, "forbid-deletion", "orders")) == (False, False)
    assert run_on(files, "retain", "--dry-run", "--json").rows == []


def test_each_tiers_deletion_is_allowed_and_forbidden_by_itself(tmp_path: Path) -> None:
    limits = {"remote.storage.enable": True, "local.retention.bytes": 0, "retention.bytes": 1}
    files = a_copied_remote_log(tmp_path, topics={"orders": limits})

    def due() -> tuple[int, int]:
        retained, expired = (run_on(files, command, "--dry-run", "--json").rows for command in ("retain", "expire"))
        return len(retained), len(expired)

    assert rights(topics(files, "allow-deletion", "orders", "--only", "local")) == (True, False)
    assert due() == (1, 0)
    assert rights(topics(files, "allow-deletion", "orders", "--only", "remote")) == (True, True)
    assert due() == (1, 1)
    assert rights(topics(files, "forbid-deletion", "orders", "--only", "local")) == (False, True)
    assert due() == (0, 1)
    assert rights(topics(files, "forbid-deletion", "orders", "--only", "remote")) == (False, False)
    assert due() == (0, 0)
    assert topics(files, "allow-deletion", "orders", "--only", "both").exit_code == 2


def test_switching_one_thing_keeps_the_others(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, topics={"orders": {"remote.storage.enable": True, "retention.ms": 7}})

    row = row_of(topics(files, "allow-deletion", "orders"))

    assert (row["remote.storage.enable"], row["local_deletion_allowed"], row["retention.ms"]) == (True, True, 7)


def test_properties_are_set_and_taken_back(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, topics={})

    row = row_of(topics(files, "set", "orders", "retention.ms=5000", "local.retention.ms = 100"))
    assert (row["retention.ms"], row["local.retention.ms"]) == (5000, 100)

    row = row_of(topics(files, "set", "orders", "local.retention.ms=", "retention.bytes=9"))
    assert (row["retention.ms"], row["local.retention.ms"], row["retention.bytes"]) == (5000, 5000, 9)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("retention.ms", "name=value"),
        ("retension.ms=5", "retention.ms"),
        ("retention.ms=soon", "soon"),
        ("local.retention.ms=9999999999999", "more than retention.ms"),
        ("cleanup.policy=compact", "topic orders has cleanup.policy=compact"),
        ("remote.deletion.allowed=true", "'tiered-storage topics enable'"),
        ("deletion.allowed=true", "'allow-deletion'"),
        ("remote.log.storage.enable=true", "'tiered-storage topics enable'"),
    ],
)
def test_properties_that_cannot_be_meant_are_refused_and_change_nothing(
    tmp_path: Path, given: str, expected: str
) -> None:
    files = a_remote_log(tmp_path)
    before = row_of(topics(files, "list"))

    result = topics(files, "set", "orders", "retention.ms=6", given)

    assert result.exit_code == 1
    assert expected in result.err
    assert row_of(topics(files, "list")) == before


def test_a_compacted_topic_is_refused_by_name(tmp_path: Path) -> None:
    files = a_remote_log(
        tmp_path, {("clicks", 0): 0, ("orders", 0): 0, ("views", 0): 0},
        topics={"clicks": {"cleanup.policy": "compact,delete"}},
    )  # fmt: skip
    write_offset_checkpoint(files.log_directory / CLEANER_CHECKPOINT, {("views", 0): 3})

    clicks, views = topics(files, "enable", "clicks"), topics(files, "enable", "views")

    assert clicks.exit_code == views.exit_code == 1
    assert clicks.document["error"] == views.document["error"] == "UnsupportedTopicError"
    assert "topic clicks has cleanup.policy=compact,delete" in clicks.err
    assert "brokers compact views-0" in views.err
    assert {row["topic"]: row["remote.storage.enable"] for row in topics(files, "list").rows} == {
        "clicks": False,
        "orders": False,
        "views": False,
    }


def test_a_topic_that_was_enabled_and_is_compacted_now_shows_its_problem_and_can_be_disabled(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, topics={"orders": {**ENABLED, "cleanup.policy": "compact"}})

    row = row_of(topics(files, "list"))
    assert "cleanup.policy=compact" in row["problem"]
    assert row["retention.ms"] is None
    assert row_of(topics(files, "disable", "orders"))["problem"] is None


@pytest.mark.parametrize("command", ["enable", "disable", "allow-deletion", "forbid-deletion", "set"])
def test_a_topic_that_is_nowhere_is_refused_by_name(tmp_path: Path, command: str) -> None:
    files = a_remote_log(tmp_path)

    result = topics(files, command, "clicks", *(["retention.ms=5"] if command == "set" else []))

    assert result.exit_code == 1
    assert mentions(result.err, "topic clicks", "log.dirs", "topics list")


def test_a_topic_whose_high_watermark_is_unknown_is_listed_with_the_reason_and_may_be_enabled(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 2, ("orders", 1): 2}, topics={})
    for path in (HIGH_WATERMARK_CHECKPOINT, "meta.properties", "log-start-offset-checkpoint"):
        (files.log_directory / path).unlink()

    listed = row_of(topics(files, "list"))
    assert (listed["topic"], listed["partitions"]) == ("orders", 2)
    assert mentions(listed["problem"], "2 of 2 partitions", files.partition_directory(), "high watermark")
    assert "log.end.is.stable: true" in listed["problem"]
    assert topics(files, "enable", "orders").exit_code == 0
    planned = run_on(files, "plan")
    assert (planned.exit_code, planned.err.count("unreadable: orders-")) == (1, 2)
    assert "log.end.is.stable: true" in run_on(files, "read", "orders", 0).err

    files.properties["log.end.is.stable"] = True
    assert row_of(topics(files, "list"))["problem"] is None
    assert len(run_on(files, "copy", "--json").rows) == 4


def test_a_topic_whose_id_cannot_be_read_is_refused_with_the_reason(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    (files.partition_directory() / "partition.metadata").write_text("version: 0\ntopic_id: ?\n")

    listed, enabled = topics(files, "list"), topics(files, "enable", "orders")

    assert (listed.exit_code, listed.rows) == (0, [])
    assert f"note: orders-0: left out: {files.partition_directory()}" in listed.err
    assert enabled.exit_code == 1
    assert f"id is unknown: {files.partition_directory()}" in enabled.err


def test_a_pattern_means_whole_names_and_shows_which_matched(tmp_path: Path) -> None:
    names = ("orders", "orders.eu", "orders-eu", "reorders")
    files = a_remote_log(tmp_path, {(name, 0): 1 for name in names}, topics={})

    def enabled() -> set[str]:
        return {row["topic"] for row in topics(files, "list").rows if row["remote.storage.enable"]}

    assert [row["topic"] for row in topics(files, "enable", "orders.eu").rows] == ["orders.eu"]
    assert enabled() == {"orders.eu"}
    assert topics(files, "enable", "orders.xx").exit_code == 1
    assert [row["topic"] for row in topics(files, "enable", "orders.*").rows] == ["orders", "orders-eu", "orders.eu"]
    assert enabled() == {"orders", "orders.eu", "orders-eu"}
    assert [row["topic"] for row in topics(files, "pause", r".*orders\.eu|reorders").rows] == ["orders.eu", "reorders"]
    assert [rights(topics(files, "allow-deletion", "orders[.]eu"))] == [(True, True)]
    for command, named, expected in (
        ("pause", "xyz.*", "no topic in log.dirs or in the remote log matches"),
        ("disable", "xyz.*", "no topic in log.dirs or in the remote log matches"),
        ("enable", "(", "regular expression"),
    ):
        refused = topics(files, command, named)
        assert (refused.exit_code, expected in refused.err) == (1, True), refused


def test_a_pattern_that_nothing_matches_yet_enables_what_comes(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, topics={})

    enabled = topics(files, "enable", "views.*")

    assert (enabled.exit_code, enabled.rows) == (0, [])
    assert mentions(enabled.err, "note: ", "log.dirs", "views.*")
    with LogDirectoryWriter.open(files.log_directory, LOG_CONFIG) as writer:
        append_batches(writer.create_log("views-a", 0, topic_id("views-a"), LOG_CONFIG), 3)
    copied = run_on(files, "copy", "--json")
    assert {row["partition"] for row in copied.rows} == {"views-a-0"}


def test_a_pattern_changes_all_topics_but_the_refused(tmp_path: Path) -> None:
    compacted = {"cleanup.policy": "compact"}
    files = a_remote_log(tmp_path, {("clicks", 0): 1, ("orders", 0): 1, ("views", 0): 1}, topics={"orders": compacted})

    result = topics(files, "enable", ".*")

    assert result.exit_code == 1
    assert [(row["topic"], row["remote.storage.enable"]) for row in result.rows] == [
        ("clicks", True), ("orders", False), ("views", True),
    ]  # fmt: skip
    assert mentions(result.err, "error: topic orders", "cleanup.policy=compact")
    assert "cleanup.policy=compact" in result.document["troubles"][0]["message"]


def test_a_pattern_whose_only_match_is_refused_enables_what_comes(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, topics={"orders": {"cleanup.policy": "compact"}})

    enabled = topics(files, "enable", "orders.*")

    assert enabled.exit_code == 1
    assert mentions(enabled.err, "error: topic orders", "cleanup.policy=compact")
    assert mentions(enabled.err, "note: ", "orders.*", "topics disable")
    with LogDirectoryWriter.open(files.log_directory, LOG_CONFIG) as writer:
        append_batches(writer.create_log("orders-a", 0, topic_id("orders-a"), LOG_CONFIG), 3)
    copied = run_on(files, "copy", "--json")
    assert {row["partition"] for row in copied.rows} == {"orders-a-0"}


def test_every_life_of_a_topic_is_decided_on(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    (files.partition_directory() / "partition.metadata").write_text("version: 0\ntopic_id: BBBBBBBBBBBBBBBBBBBBBA\n")

    result = topics(files, "forbid-deletion", "orders")

    assert {(row["topic_id"], row["remote_deletion_allowed"]) for row in result.rows} == {
        ("BBBBBBBBBBBBBBBBBBBBBA", False),
        (ORDERS_0.topic_id, False),
    }


def test_a_right_that_is_forbidden_meanwhile_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": {**ENABLED, "local.deletion.allowed": False}})
    config = files.config
    forbidding = Thread(target=cli_topics.forbid_deletion, args=("orders", Tier.REMOTE, config, True))

    def forbidden_meanwhile(topic: Topic, **changes: Any) -> Topic:
        if forbidding.ident is None:
            forbidding.start()
            forbidding.join(0.5)
        return replace(topic, **changes)

    monkeypatch.setattr(cli_topics, "replace", forbidden_meanwhile)
    cli_topics.allow_deletion("orders", Tier.LOCAL, config, True)
    forbidding.join()

    assert rights(topics(files, "list")) == (True, False)


def test_a_paused_topic_is_copied_again_once_it_is_resumed(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    assert row_of(topics(files, "pause", "orders"))["paused"] is True
    assert row_of(topics(files, "list"))["remote.storage.enable"] is True
    assert run_on(files, "copy", "--json").rows == []
    assert row_of(topics(files, "resume", "orders"))["paused"] is False
    assert len(run_on(files, "copy", "--json").rows) == 3


def test_disable_deletes_remote_segments_only_if_asked_for_and_allowed(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": {**ENABLED, "remote.deletion.allowed": False}})

    refused = topics(files, "disable", "orders", "--delete-remote")
    assert refused.exit_code == 1
    assert "allow-deletion orders --only remote" in refused.document["message"]
    assert row_of(topics(files, "list"))["remote.storage.enable"] is True

    topics(files, "allow-deletion", "orders", "--only", "remote")
    topics(files, "disable", "orders")
    assert run_on(files, "expire", "--json").document["deleted"] == 0
    topics(files, "disable", "orders", "--delete-remote")
    assert run_on(files, "expire", "--json").document["deleted"] == 3
    assert files.objects() == []


def test_enabling_a_topic_revokes_the_deletion_of_its_remote_data(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    for command in (("disable", "orders", "--delete-remote"), ("enable", "orders"), ("disable", "orders")):
        assert topics(files, *command).exit_code == 0

    assert run_on(files, "expire", "--json").document["deleted"] == 0
    assert len(files.objects(".log")) == 3


def test_a_life_whose_remote_data_were_deleted_is_enabled_no_more(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    topics(files, "disable", "orders")
    assert run_on(files, "delete-topic", "orders").exit_code == 0

    refused = topics(files, "enable", "orders")
    assert refused.exit_code == 1
    assert "takes no more segments" in refused.document["message"]


def test_an_incarnation_is_not_enabled_if_one_of_its_partitions_is_to_be_deleted(tmp_path: Path) -> None:
    disabled = {"orders": {**ENABLED, "remote.storage.enable": False}}
    files = a_copied_remote_log(tmp_path, {("orders", 0): 1, ("orders", 1): 1}, topics=disabled)
    with files.open() as remote_log:
        held_by(remote_log, "a copy", partition_of("orders", 1))
        plan = remote_log.deletions.plan_topic_deletion("orders")
        marked, left = remote_log.deletions.mark_topic_deleted(plan, "delete-topic")
        assert ([str(one) for one in marked], len(left)) == (["orders-0"], 1)

    refused = topics(files, "enable", "orders")

    assert refused.exit_code != 0
    assert "takes no more segments" in refused.document["message"]
