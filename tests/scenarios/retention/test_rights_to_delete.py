"""Deletion is off until a person allows it for a topic; no loss or rebuild brings a right back."""

from __future__ import annotations

from pathlib import Path

from support.command_line import run_on
from support.metadata_files import remove_metadata
from support.remote_logs import ENABLED, ORDERS_0, RemoteLogFiles, a_copied_remote_log, a_remote_log, topic_id
from tiered_storage.kafka_log.files.kafka_uuid import encode_uuid

DELETABLE = {**ENABLED, "retention.ms": 1, "local.retention.ms": 0}


def created_again(files: RemoteLogFiles, topic: str) -> str:
    """Give the topic of the log directory another id, as if it was created again; return the id."""
    other = encode_uuid(bytes(range(16)))
    path = files.partition_directory(topic) / "partition.metadata"
    path.write_text(path.read_text().replace(topic_id(topic), other))
    assert other in path.read_text()
    return other


def expire_and_retain(files: RemoteLogFiles) -> None:
    for command in ("expire", "retain"):
        assert run_on(files, command).exit_code == 0


def test_a_rebuild_leaves_no_right_to_a_topic_that_was_never_copied(tmp_path: Path) -> None:
    files = a_remote_log(
        tmp_path, {("orders", 0): 2, ("payments", 0): 3}, topics={"orders": DELETABLE, "payments": DELETABLE}
    )
    assert run_on(files, "copy", "--topics", "orders").exit_code == 0
    remove_metadata(files)
    assert run_on(files, "rebuild-metadata", "--yes").exit_code == 0

    expire_and_retain(files)

    assert files.local_starts("payments") == [0, 10, 20, 30]
    rows = {row["topic"]: row for row in run_on(files, "topics", "list", "--json").rows}
    for topic in ("orders", "payments"):
        assert not rows[topic]["local_deletion_allowed"]
        assert not rows[topic]["remote_deletion_allowed"]
        assert rows[topic]["remote.storage.enable"]

    assert run_on(files, "topics", "allow-deletion", "payments").exit_code == 0
    expire_and_retain(files)
    assert files.local_starts("payments") == [30]


def test_a_forbidden_deletion_stays_forbidden_for_a_topic_created_again(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": DELETABLE})
    assert run_on(files, "topics", "forbid-deletion", "orders").exit_code == 0
    other = created_again(files, "orders")

    expire_and_retain(files)

    assert files.local_starts() == [0, 10, 20, 30]
    listed = run_on(files, "topics", "list", "--json")
    assert [row["local_deletion_allowed"] for row in listed.rows] == [False, False]
    assert f"orders ({other})" in listed.err
    assert "topics allow-deletion orders" in listed.err


def test_a_decision_on_another_incarnation_ends_the_settings_files_rights(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": DELETABLE})
    assert run_on(files, "topics", "pause", "orders").exit_code == 0
    created_again(files, "orders")
    assert run_on(files, "topics", "resume", "orders").exit_code == 0

    with files.open() as remote_log:
        rights = {one.topic_id: one.remote_deletion_allowed for one in remote_log.context.topics.list()}

    assert rights.pop(ORDERS_0.topic_id)
    assert list(rights.values()) == [False]


def test_two_undecided_incarnations_have_the_same_rights(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": DELETABLE})
    created_again(files, "orders")

    assert run_on(files, "topics", "pause", "orders").exit_code == 0

    with files.open() as remote_log:
        assert [one.remote_deletion_allowed for one in remote_log.context.topics.list()] == [True, True]
