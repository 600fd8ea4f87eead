"""A topic that is remote already is never copied again under other ids, because a file that names it was lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from support.command_line import CommandResult, mentions, run_on
from support.remote_logs import (
    CLUSTER_ID,
    ENABLED,
    SEGMENT_BYTES,
    RemoteLogFiles,
    a_copied_remote_log,
    a_remote_log,
    partition_of,
    topic_id,
)
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.files.meta_properties import META_PROPERTIES
from tiered_storage.kafka_log.files.partition_metadata import PARTITION_METADATA, write_topic_id
from tiered_storage.remote_log.metadata.lost_identity import LostIdentities
from tiered_storage.remote_log.source.partition_log import PartitionLog, RollRules, UnsegmentedLog

TRIMMED = {**ENABLED, "local.retention.bytes": 0}
COMMANDS = ("plan", "copy", "retain", "doctor")


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    return a_copied_remote_log(tmp_path, topics={"orders": TRIMMED})


def said(result: CommandResult) -> str:
    return " ".join((result.out + result.err).split())


def lose_meta_properties(files: RemoteLogFiles) -> None:
    (files.log_directory / META_PROPERTIES).unlink()


def name_another_cluster(files: RemoteLogFiles) -> None:
    path = files.log_directory / META_PROPERTIES
    path.write_text(path.read_text().replace(CLUSTER_ID, "another-cluster"))


def set_another_cluster_id(files: RemoteLogFiles) -> None:
    lose_meta_properties(files)
    files.properties["cluster.id"] = "another-cluster"


LOSSES: dict[str, Callable[[RemoteLogFiles], None]] = {
    each.__name__: each for each in (lose_meta_properties, name_another_cluster, set_another_cluster_id)
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_topic_that_is_remote_is_not_copied_again_under_another_cluster_id(
    files: RemoteLogFiles, loss: str, command: str
) -> None:
    stored, local = files.objects(), files.local_starts()
    kept = (files.log_directory / META_PROPERTIES).read_bytes()
    LOSSES[loss](files)

    ended = run_on(files, command)

    assert ended.exit_code == 1
    assert mentions(
        said(ended), f"topic orders ({topic_id('orders')})", f"set cluster.id to {CLUSTER_ID}", "of its own"
    )
    assert (files.objects(), files.local_starts()) == (stored, local)

    files.properties.pop("cluster.id", None)
    (files.log_directory / META_PROPERTIES).write_bytes(kept)
    ended = run_on(files, command)
    assert ended.exit_code == 0 or command == "doctor"
    assert "under the cluster id" not in said(ended)


def test_the_setting_stands_in_for_the_lost_file(files: RemoteLogFiles) -> None:
    lose_meta_properties(files)
    files.properties["cluster.id"] = CLUSTER_ID
    files.append(2)

    assert run_on(files, "copy").exit_code == 0
    assert len(files.objects(".log")) == 4


@pytest.mark.parametrize("command", ["plan", "copy", "retain"])
def test_an_enabled_topic_under_a_changed_cluster_id_is_refused(tmp_path: Path, command: str) -> None:
    files = a_copied_remote_log(tmp_path, topics={})
    for decision in ("enable", "allow-deletion"):
        assert run_on(files, "topics", decision, "orders").exit_code == 0
    files.append(2)
    lose_meta_properties(files)

    ended = run_on(files, command)

    assert ended.exit_code == 1
    assert f"under the cluster id {CLUSTER_ID}" in said(ended)


def test_a_disabled_topic_under_a_changed_cluster_id_is_ignored(files: RemoteLogFiles) -> None:
    assert run_on(files, "topics", "disable", "orders").exit_code == 0
    lose_meta_properties(files)
    for command in ("plan", "copy", "retain"):
        assert run_on(files, command).exit_code == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_retention_and_doctor_name_a_lost_topic_id_too(files: RemoteLogFiles, command: str) -> None:
    (files.partition_directory() / PARTITION_METADATA).unlink()

    ended = run_on(files, command)

    assert ended.exit_code == 1
    assert f"{files.partition_directory() / PARTITION_METADATA} is missing" in said(ended)


@pytest.mark.parametrize("enabled_by", ["the settings", "a person"])
def test_an_audit_does_not_pass_over_a_log_that_it_cannot_find(tmp_path: Path, enabled_by: str) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": TRIMMED} if enabled_by == "the settings" else {})
    assert run_on(files, "topics", "enable", "orders").exit_code == 0
    assert run_on(files, "audit").exit_code == 0
    lose_meta_properties(files)

    ended = run_on(files, "audit")

    assert ended.exit_code == 1
    assert f"under the cluster id {CLUSTER_ID}" in said(ended)


@pytest.mark.parametrize("command", COMMANDS)
def test_without_topic_ids_the_name_identifies_a_topic(tmp_path: Path, command: str) -> None:
    files = a_remote_log(tmp_path, topics={"orders": TRIMMED})
    (files.partition_directory() / PARTITION_METADATA).unlink()
    assert run_on(files, "copy").exit_code == 0
    lose_meta_properties(files)

    ended = run_on(files, command)

    assert ended.exit_code == 1
    assert f"under the cluster id {CLUSTER_ID}" in said(ended)


def test_another_cluster_has_topics_of_the_same_names(files: RemoteLogFiles, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(files.log_directory, other)
    write_topic_id(other / "orders-0" / PARTITION_METADATA, topic_id("orders of another cluster"))
    path = other / META_PROPERTIES
    path.write_text(path.read_text().replace(CLUSTER_ID, "another-cluster"))
    files.properties["log.dirs"] = [str(files.log_directory), str(other)]

    for command in ("plan", "copy", "retain"):
        assert run_on(files, command).exit_code == 0
    assert len(files.objects(".log")) == 6


@pytest.mark.parametrize("command", COMMANDS)
def test_a_copy_already_made_under_a_second_cluster_id_continues(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(LostIdentities, "why_lost", lambda *_: None)
        lose_meta_properties(files)
        assert run_on(files, "copy").exit_code == 0
    assert len(files.objects(".log")) == 6

    assert "under the cluster id" not in said(run_on(files, command))


def test_no_segment_is_counted_where_every_topic_has_its_own_id(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    with files.open() as remote_log:
        identities = LostIdentities(remote_log.context.segments.list_partitions(), remote_log.context.segments)
        logs = list(remote_log.context.source.partitions())
        monkeypatch.setattr(type(remote_log.context.segments), "count_remote_log_segments", None)

        assert list(identities.recognised(logs, unless_remote=True)) == logs


@pytest.mark.parametrize("is_named", [False, True])
def test_no_topic_of_a_cluster_is_begun_if_another_one_was_copied_so_far(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch, is_named: bool
) -> None:
    """Not even one that the first cluster never had copied: it would make the second one known, for all topics."""
    files.properties["topics"]["clicks"] = ENABLED
    if is_named:
        set_another_cluster_id(files)
    clicks = replace(partition_of("clicks"), cluster_id="another-cluster")
    untiered = replace(partition_of("untiered"), cluster_id="another-cluster")
    rules = RollRules(SEGMENT_BYTES, 100_000, 1 << 20, 4096, 1 << 20)
    unsegmented = UnsegmentedLog(rules, lambda _: 0, lambda _: SEGMENT_BYTES / 10, lambda _: -1, lambda _: {})
    with files.open() as remote_log:
        lineage = (EpochEntry(0, 0),)
        shown = [
            PartitionLog(each, "a broker", (), 0, 35, lineage, unsegmented=unsegmented) for each in (clicks, untiered)
        ]
        monkeypatch.setattr(type(remote_log.context.source), "partitions", lambda _: iter(shown))
        plan = remote_log.plan_copy()

    if is_named:
        assert (plan.partitions, plan.troubles) == ([clicks], ())
        return
    [refused] = plan.troubles
    assert (plan.is_empty, refused.partition) == (True, "clicks")
    assert mentions(refused.message, "topic orders", CLUSTER_ID)
    assert "set cluster.id to another-cluster" in refused.message
