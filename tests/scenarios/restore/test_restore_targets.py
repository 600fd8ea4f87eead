"""A restore takes no folder that holds anything else, and leaves nothing half done there (scenario 37)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scenarios.restore.restored_topics import create_empty_partitions, log_in, partitions_in, records_in, restore
from support.command_line import mentions
from support.local_logs import read_all
from support.remote_logs import (
    CLUSTER_ID,
    NOW,
    RemoteLogFiles,
    append_as_later_leader,
    append_batches,
    flip_bit,
    records,
    topic_id,
)
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.files.log_directory import read_log_directory
from tiered_storage.kafka_log.files.meta_properties import META_PROPERTIES
from tiered_storage.kafka_log.files.offset_checkpoint import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.settings.settings import load_settings


def test_a_directory_that_has_the_partition_is_refused_untouched(files: RemoteLogFiles) -> None:
    before = {path: path.read_bytes() for path in files.log_directory.rglob("*") if path.is_file()}
    result = restore(files, files.log_directory)
    assert result.document["error"] == "InvalidLogDirectoryError"
    assert "orders-0, orders-1 already" in result.document["message"]
    assert {path: path.read_bytes() for path in files.log_directory.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    "name", [META_PROPERTIES, "replication-offset-checkpoint", "log-start-offset-checkpoint", ".remote-log-restore"]
)
def test_a_folder_with_something_else_under_a_name_of_kafkas_is_refused_untouched(
    files: RemoteLogFiles, target: Path, name: str
) -> None:
    target.mkdir()
    for text in ("x", "x=1\n"):
        (target / name).write_text(text)
        result = restore(files, target)
        assert result.document["error"] == "InvalidLogDirectoryError"
        assert f"{target} is not empty" in result.document["message"]
        assert [(path.name, path.read_text()) for path in target.iterdir()] == [(name, text)]


@pytest.mark.parametrize("place", ["rsm_config_url", "work_url", "state_directory"])
def test_no_restore_goes_into_the_store_or_our_own_folders(files: RemoteLogFiles, place: str) -> None:
    """An audit would report the restored files as leftovers."""
    folder = Path(str(getattr(load_settings(files.config), place)).removeprefix("file://"))
    target = folder if place == "state_directory" else folder / "restored"
    state = load_settings(files.config).state_directory
    before = sorted(state.rglob("*"))

    result = restore(files, target)

    assert (result.exit_code, result.document["error"]) == (1, "ConfigurationError")
    assert f"{place.replace('_', '.')} is {folder}" in result.document["message"] or f"{folder}, which is" in result.err
    assert sorted(state.rglob("*")) == before


def test_a_relative_directory_on_the_command_line_begins_in_the_current_folder(
    files: RemoteLogFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    assert restore(files, Path("restored")).exit_code == 0
    assert partitions_in(tmp_path / "here" / "restored") == ["orders-0", "orders-1"]


@pytest.mark.parametrize("name", ["notes.txt", "photos-2026/summer.jpg", "orders-0/photo.jpg", "ssh/id_ed25519"])
def test_a_folder_of_something_else_is_refused_untouched(files: RemoteLogFiles, target: Path, name: str) -> None:
    (target / name).parent.mkdir(parents=True)
    (target / name).write_text("mine")
    result = restore(files, target)
    assert result.document["error"] == "InvalidLogDirectoryError"
    assert f"{target} is not empty" in result.document["message"]
    assert [path for path in target.rglob("*") if path.is_file()] == [target / name]


@pytest.mark.parametrize("name", [
    "lost+found/", ".lock", "orders-0.restoring-delete/", "replication-offset-checkpoint.tmp",
    ".remote-log-restore.tmp",
])  # fmt: skip
def test_a_folder_that_is_as_good_as_empty_is_taken(files: RemoteLogFiles, target: Path, name: str) -> None:
    target.mkdir()
    (target / name).mkdir() if name.endswith("/") else (target / name).touch()
    assert restore(files, target).exit_code == 0


def test_a_directory_of_partitions_without_meta_properties_is_one_of_kafkas(files: RemoteLogFiles) -> None:
    (files.log_directory / META_PROPERTIES).unlink()
    assert restore(files, files.log_directory, "--as-topic", "again", "--as-topic-id", random_uuid()).exit_code == 0


@pytest.mark.parametrize(
    "name", ["orders-0/photo.jpg", "orders-0/00000000000000000000.log.swap", "orders-0/kept/00000000000000000000.log"]
)
def test_a_partitions_folder_with_anything_else_in_it_is_not_taken_over(
    files: RemoteLogFiles, target: Path, name: str
) -> None:
    with LogDirectoryWriter.create(target, CLUSTER_ID):
        pass
    (target / name).parent.mkdir(parents=True)
    (target / name).write_text("mine")
    result = restore(files, target)
    assert mentions(result.document["message"], target, "orders-0 already")
    assert (target / name).read_text() == "mine"


def test_a_partition_that_retention_emptied_is_not_taken_over(files: RemoteLogFiles, target: Path) -> None:
    create_empty_partitions(target)
    log = target / "orders-0" / f"{0:020}.log"
    assert log.stat().st_size == 0
    log.rename(log.with_name(f"{3083:020}.log"))
    before = {path: path.read_bytes() for path in target.rglob("*") if path.is_file()}
    result = restore(files, target)
    assert (result.exit_code, result.document["error"]) == (1, "InvalidLogDirectoryError")
    assert f"{target} has orders-0 already" in result.document["message"]
    assert {path: path.read_bytes() for path in target.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    "checkpoint", [HIGH_WATERMARK_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT, RECOVERY_POINT_CHECKPOINT]
)
def test_an_empty_partition_that_a_checkpoint_knows_longer_is_not_taken_over(
    files: RemoteLogFiles, target: Path, checkpoint: str
) -> None:
    create_empty_partitions(target)
    path = target / checkpoint
    known = read_offset_checkpoint(path) if path.is_file() else {}
    write_offset_checkpoint(path, {**known, ("orders", 1): 7})
    result = restore(files, target)
    assert (result.exit_code, result.document["error"]) == (1, "InvalidLogDirectoryError")
    assert f"{target} has orders-1 already" in result.document["message"]
    write_offset_checkpoint(path, {**known, ("orders", 1): 0})
    assert restore(files, target).exit_code == 0
    assert records_in(target, 1) == records(0, 20)


@pytest.mark.parametrize("name", ["../orders", "..", "a/b"])
def test_an_invalid_topic_name_never_leads_outside_the_directory(
    files: RemoteLogFiles, target: Path, name: str
) -> None:
    before = sorted(files.root.rglob("*"))
    result = restore(files, target / "logs", "--as-topic", name, "--as-topic-id", random_uuid())
    assert result.document["error"] == "ConfigurationError"
    assert mentions(result.document["message"], name, "topic name")
    assert not target.exists()
    assert [path for path in sorted(files.root.rglob("*")) if path.name != "settings.yaml"] == [
        path for path in before if path.name != "settings.yaml"
    ]


def test_a_directory_that_a_broker_has_is_refused(files: RemoteLogFiles, target: Path) -> None:
    with LogDirectoryWriter.create(target, CLUSTER_ID):
        assert restore(files, target).document["error"] == "LogDirectoryLockedError"


def test_an_empty_partition_of_a_topic_that_was_created_again_is_taken_over(
    files: RemoteLogFiles, target: Path
) -> None:
    new_id = random_uuid()
    append_as_later_leader(files)
    with LogDirectoryWriter.create(target, "another-cluster", clock=lambda: NOW) as writer:
        for number in (0, 1):
            writer.create_log("orders", number, new_id)
        append_batches(writer.create_log("others", 0, random_uuid()))
    result = restore(files, target, "--validation", "records")
    assert result.exit_code == 0, result.err
    assert records_in(target, topic="others") == records(0, 5)
    found = read_log_directory(target)
    assert found.cluster_id == "another-cluster"
    assert {each.topic_id for each in found.partitions if each.topic == "orders"} == {new_id}
    with log_in(target) as log:
        assert len(read_all(log)) == 35
        # The new incarnation has no earlier leader and no producer.
        assert log.leader_epochs == (EpochEntry(0, 0),)
        assert log.producers == ()


def test_a_cluster_that_does_not_know_the_topic_is_reported(files: RemoteLogFiles, target: Path) -> None:
    with LogDirectoryWriter.create(target, "another-cluster"):
        pass
    result = restore(files, target)
    assert mentions(result.document["message"], "cluster another-cluster", "orders")
    assert partitions_in(target) == []
    assert restore(files, target, "--as-topic-id", topic_id("orders")).exit_code == 0


def test_a_disk_that_refuses_is_reported(files: RemoteLogFiles, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (target.parent / "file").touch()
    below_a_file = restore(files, target.parent / "file" / "logs")
    assert below_a_file.document["error"] == "InvalidLogDirectoryError"
    with monkeypatch.context() as patched:
        patched.setattr(os, "statvfs", lambda _: os.statvfs_result((512, 512, 9, 3, 3, 0, 0, 0, 0, 255)))
        full = restore(files, target)
    assert "1,536 are free: " in full.document["message"]
    assert partitions_in(target) == []


@pytest.mark.parametrize(
    ("suffix", "damage", "error"),
    [
        (".log", lambda path: flip_bit(path, 100), "RemoteObjectCorruptError"),
        (".log", lambda path: os.truncate(path, 50), "RemoteObjectCorruptError"),
        (".log", Path.unlink, "RemoteObjectNotFoundError"),
        (".indexes", lambda path: flip_bit(path, 300), "RemoteObjectCorruptError"),
        (".indexes", Path.unlink, "RemoteObjectNotFoundError"),
    ],
)
def test_damage_in_the_store_leaves_no_partition(
    files: RemoteLogFiles, target: Path, suffix: str, damage: object, error: str
) -> None:
    damage(files.objects(suffix)[-1])  # type: ignore[operator]
    result = restore(files, target)
    assert (result.exit_code, result.document["error"]) == (1, error)
    assert partitions_in(target) == []
    assert not (target / "meta.properties").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--as-topic-id", "7"), "'7' is not a UUID"),
        (("--node-id", 2**31), f"node id {2**31}: take 0 to {2**31 - 1}"),
        (("--as-topic", "a/b"), "target is 'a/b'"),
        (("--as-topic", "__consumer_offsets"), "target is '__consumer_offsets'"),
    ],
)
def test_wrong_ids_are_refused_by_a_dry_run_too_and_make_no_directory(
    files: RemoteLogFiles, target: Path, options: tuple[object, ...], message: str
) -> None:
    for more in ((), ("--dry-run",)):
        result = restore(files, target, *options, *more)

        assert (result.exit_code, result.document["error"]) == (1, "ConfigurationError")
        assert message in result.document["message"]
    assert not target.exists()
