"""The commands that forbid or end something, while the brokers of the source or of the metadata topic are away."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from support.bad_clusters import without_patience
from support.command_line import CommandResult, mentions, run_on
from support.remote_logs import ENABLED, ORDERS_0, RemoteLogFiles, a_copied_remote_log, held_by
from tiered_storage.remote_log.metadata.sql.store import SqlMetadataStore
from tiered_storage.remote_log.metadata.sql.topic_segments import MetadataTopicId, write_metadata_topic
from tiered_storage.settings.own_managers import KAFKAS_METADATA_MANAGER

NOBODY = "127.0.0.1:1"
IN_A_TOPIC = {
    "remote.log.metadata.manager.class.name": KAFKAS_METADATA_MANAGER,
    "rlmm.config.remote.log.metadata.common.client.bootstrap.servers": NOBODY,
    "rlmm.config.remote.log.metadata.consume.wait.ms": 1_000,
}
COMMANDS = {
    "forbid": (["topics", "forbid-deletion", "orders"], {"local_deletion_allowed": False}),
    "pause": (["topics", "pause", "orders"], {"paused": True}),
    "disable": (["topics", "disable", "orders"], {"remote.storage.enable": False}),
}


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    return a_copied_remote_log(tmp_path, topics={"orders": ENABLED})


@pytest.fixture
def beside(files: RemoteLogFiles) -> RemoteLogFiles:
    """The same, with its segments in a topic whose brokers are away, and a lease."""
    with files.open() as remote_log:
        held_by(remote_log, "copy_segments/lost")
        store = remote_log.context.store
        assert isinstance(store, SqlMetadataStore)
        with store.database.writing() as connection:
            write_metadata_topic(connection, MetadataTopicId("cluster-1", "metadata", "topic-id-of-metadataAA", 3))
    return replace(files, properties=files.properties | IN_A_TOPIC)


def beside_a_cluster(files: RemoteLogFiles, *arguments: object) -> CommandResult:
    """Run a command with the metadata of `files`, where a cluster that is away has the logs."""
    away = {"log.dirs": [], "bootstrap.servers": NOBODY}
    return run_on(replace(files, properties=files.properties | away), *arguments, "--json")


@pytest.mark.parametrize(("command", "expected"), COMMANDS.values(), ids=COMMANDS)
def test_what_forbids_needs_no_broker_of_the_metadata_topic(
    beside: RemoteLogFiles, command: list[str], expected: dict[str, object]
) -> None:
    result = run_on(beside, *command, "--json")

    assert result.exit_code == 0, result.err
    [row] = result.rows
    assert {name: row[name] for name in expected} == expected


def test_leases_need_no_broker_of_the_metadata_topic(beside: RemoteLogFiles) -> None:
    [listed] = run_on(beside, "leases", "list", "--json").rows
    assert (listed["partition"], listed["owner"]) == ("orders-0", "copy_segments/lost")

    [ended] = run_on(beside, "leases", "end", "orders", "0", "--yes", "--json").rows

    assert ended == listed
    assert [row["topic"] for row in run_on(beside, "topics", "list", "--json").rows] == ["orders"]


@pytest.mark.parametrize(("command", "expected"), COMMANDS.values(), ids=COMMANDS)
def test_what_forbids_works_while_the_cluster_is_away(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch, command: list[str], expected: dict[str, object]
) -> None:
    without_patience(monkeypatch)

    result = beside_a_cluster(files, *command)

    assert result.exit_code == 0, result.err
    [row] = result.rows
    assert {name: row[name] for name in expected} == expected
    assert mentions(result.err, "note:", NOBODY)


def test_a_topic_that_only_the_cluster_knows_is_not_called_unknown(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_patience(monkeypatch)

    result = beside_a_cluster(files, "topics", "forbid-deletion", "clicks")

    assert result.exit_code == 1
    assert mentions(result.err, "clicks", NOBODY)


def test_leases_are_listed_while_the_cluster_is_away(files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    without_patience(monkeypatch)
    with files.open() as remote_log:
        held_by(remote_log, "copy_segments/lost", ORDERS_0)

    [row] = beside_a_cluster(files, "leases", "list").rows

    assert row["partition"] == "orders-0"


def test_what_allows_needs_the_cluster(files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    without_patience(monkeypatch)

    assert beside_a_cluster(files, "topics", "allow-deletion", "orders").exit_code == 1
