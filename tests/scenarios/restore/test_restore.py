"""Restore: a topic is restored from the store alone, whole or not at all (scenario 37).

tests/integration/restore/test_real_kafka_takes_restored.py starts a broker on a restored log. No test here ends with
an audit, because a restore does not change the remote log; see tests/crashes/test_restore_crashes.py.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from support.command_line import CommandResult, mentions, run_on
from support.counted_limits import counted_limits
from support.local_logs import read_all
from support.metadata_stores import a_step
from support.remote_logs import (
    BATCH_RECORDS,
    CLUSTER_ID,
    LOG_CONFIG,
    NOW,
    ORDERS_0,
    RemoteLogFiles,
    a_copied_remote_log,
    append_as_later_leader,
    append_batches,
    copy,
    flip_bit,
    held_by,
    record,
    records,
    records_after_later_leader,
    segments_of,
    topic_id,
    unsynced,
)
from tiered_storage.errors import InvalidLogDirectoryError, RemoteObjectNotFoundError
from tiered_storage.kafka_log.files import meta_properties, small_files
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import (
    LEADER_EPOCH_CHECKPOINT,
    EpochEntry,
    read_leader_epochs,
)
from tiered_storage.kafka_log.files.log_directory import read_log_directory
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage.kafka_log.files.meta_properties import META_PROPERTIES
from tiered_storage.kafka_log.files.offset_checkpoint import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.log.recovery.clean_shutdown import CLEAN_SHUTDOWN
from tiered_storage.kafka_log.records.control_record import ControlRecordType
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, SegmentState
from tiered_storage.remote_log.restore import directory as restoring
from tiered_storage.remote_log.restore.target_directory import TargetDirectory
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager
from tiered_storage.settings.settings import load_settings

SENTINEL = Record(0, NOW, b"sentinel", b"written before the loss")


@pytest.fixture(autouse=True)
def _unsynced() -> object:
    with unsynced():
        yield


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    return a_copied_remote_log(tmp_path, {("orders", 0): 3, ("orders", 1): 2})


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "restored"


def lose_local_logs(files: RemoteLogFiles) -> None:
    shutil.rmtree(files.log_directory)
    files.properties["log.dirs"] = []


def restore(files: RemoteLogFiles, target: Path, *options: object) -> CommandResult:
    return run_on(files, "restore", "orders", "--to-directory", target, "--json", *options)


def log_in(target: Path, number: int = 0, topic: str = "orders") -> LocalLog:
    return LocalLog.open(target / f"{topic}-{number}", LOG_CONFIG, clock=lambda: NOW)


def records_in(target: Path, number: int = 0, topic: str = "orders") -> list[Record]:
    with log_in(target, number, topic) as log:
        return read_all(log)


def partitions_in(target: Path) -> list[str]:
    return sorted(path.name for path in target.iterdir() if path.is_dir()) if target.exists() else []


# ---------------------------------------------------------------------------------------------------- a whole topic


@pytest.mark.parametrize("validation", ["manifest", "sizes", "records"])
def test_a_lost_topic_is_restored_byte_for_byte(files: RemoteLogFiles, target: Path, validation: str) -> None:
    before = {path.name: path.read_bytes() for path in files.partition_directory().iterdir()}
    lose_local_logs(files)
    result = restore(files, target, "--validation", validation)
    assert result.exit_code == 0, result.err
    decoded = {"records": 30} if validation == "records" else {"records": None}
    assert result.rows[0] == {
        "partition": "orders-0", "start_offset": 0, "end_offset": 29, "segments": 3, **decoded, "was_there": False,
        "bytes": sum(len(content) for name, content in before.items() if name.endswith(".log")) * 6 // 7,
    }  # fmt: skip
    assert records_in(target) == records(0, 30)
    assert records_in(target, 1) == records(0, 20)
    for segment in list_segments(target / "orders-0")[:-1]:
        for path in (segment.log_path, segment.offset_index_path, segment.time_index_path):
            assert path.read_bytes() == before[path.name], path.name
    found = read_log_directory(target)
    assert found.cluster_id == CLUSTER_ID
    assert not found.warnings and not found.skipped and not found.damaged
    assert [each.topic_id for each in found.partitions] == [topic_id("orders")] * 2
    assert found.high_watermarks == {("orders", 0): 30, ("orders", 1): 20}


@pytest.mark.parametrize("is_new_topic", [False, True])
def test_all_of_a_restore_keeps_the_limit_of_remote_reads(
    files: RemoteLogFiles, target: Path, monkeypatch: pytest.MonkeyPatch, is_new_topic: bool
) -> None:
    passed = counted_limits(monkeypatch)
    files.properties["remote.log.manager.fetch.max.bytes.per.second"] = 8 << 20
    as_other = ("--as-topic", "other", "--as-topic-id", random_uuid()) if is_new_topic else ()

    result = restore(files, target, *as_other)

    assert result.exit_code == 0, result.err
    assert [limit.bytes_per_second for limit in passed] == [8 << 20]
    assert passed.total() == sum(row["bytes"] for row in result.rows) > 0


def test_a_dry_run_is_the_plan_and_changes_nothing(files: RemoteLogFiles, target: Path) -> None:
    planned = restore(files, target, "--dry-run")
    assert planned.exit_code == 0
    assert not target.exists()
    done = restore(files, target)
    columns = ("partition", "start_offset", "end_offset", "segments", "bytes")
    assert [[row[each] for each in columns] for row in planned.rows] == [
        [row[each] for each in columns] for row in done.rows
    ]


def test_the_log_continues_where_it_ended(files: RemoteLogFiles, target: Path) -> None:
    assert restore(files, target).exit_code == 0
    with LogDirectoryWriter.open(target, LOG_CONFIG, clock=lambda: NOW) as writer:
        append_batches(writer.log("orders", 0))
    assert records_in(target) == records(0, 30 + BATCH_RECORDS)


def test_a_sentinel_written_before_the_loss_is_there_after_it(files: RemoteLogFiles, target: Path) -> None:
    with LogDirectoryWriter.open(files.log_directory, LOG_CONFIG, clock=lambda: NOW) as writer:
        offset = writer.log("orders", 0).append([SENTINEL])
        writer.log("orders", 0).roll()
    with files.open() as remote_log:
        copy(remote_log)
    lose_local_logs(files)
    assert restore(files, target).exit_code == 0
    [found] = [each for each in records_in(target) if each.key == b"sentinel"]
    assert (found.offset, found.value, found.timestamp) == (offset, SENTINEL.value, SENTINEL.timestamp)


def test_only_the_chosen_partitions_are_restored(files: RemoteLogFiles, target: Path) -> None:
    assert restore(files, target, "--partitions", "1").exit_code == 0
    assert partitions_in(target) == ["orders-1"]
    missing = restore(files, target, "--partitions", "0,7")
    [notice] = missing.document["notices"]
    assert notice["partition"] == "orders-7"
    assert mentions(notice["message"], "store", "metadata")


def test_a_topic_can_be_restored_under_another_name(files: RemoteLogFiles, target: Path) -> None:
    unknown = restore(files, target, "--as-topic", "found")
    assert "by --as-topic-id" in unknown.document["message"]
    result = restore(files, target, "--as-topic", "found", "--as-topic-id", random_uuid())
    assert result.exit_code == 0, result.err
    assert records_in(target, 0, "found") == records(0, 30)
    assert restore(files, target, "--as-topic", "no/name").document["error"] == "ConfigurationError"


# ------------------------------------------------------------------------------------------- log starts and leaders


def test_the_global_log_start_is_restored(files: RemoteLogFiles, target: Path) -> None:
    with files.open() as remote_log:
        lease = held_by(remote_log, "test")
        remote_log.context.segments.advance_log_start_offset(ORDERS_0, 13, lease)
    assert restore(files, target).rows[0]["start_offset"] == 13
    assert [segment.base_offset for segment in list_segments(target / "orders-0")] == [10, 20, 30]
    with LogDirectoryWriter.open(target, LOG_CONFIG, clock=lambda: NOW) as writer:
        assert writer.log("orders", 0).log_start_offset == 13


def test_a_fully_expired_partition_continues_at_its_end(files: RemoteLogFiles, target: Path) -> None:
    with files.open() as remote_log:
        lease = held_by(remote_log, "test")
        remote_log.context.segments.advance_log_start_offset(ORDERS_0, 30, lease)
    assert restore(files, target).exit_code == 0
    with log_in(target) as log:
        assert (log.log_start_offset, log.log_end_offset) == (30, 30)


def test_offsets_that_a_later_leader_truncated_are_left_out(files: RemoteLogFiles, target: Path) -> None:
    append_as_later_leader(files)
    lose_local_logs(files)
    result = restore(files, target, "--validation", "records")
    assert result.exit_code == 0, result.err
    assert [segment.base_offset for segment in list_segments(target / "orders-0")] == [0, 10, 20, 25, 35]
    assert records_in(target) == records_after_later_leader()
    assert read_leader_epochs(target / "orders-0" / LEADER_EPOCH_CHECKPOINT) == (EpochEntry(0, 0), EpochEntry(4, 25))


def test_segments_of_several_replicas_make_one_log(files: RemoteLogFiles, target: Path) -> None:
    """Another replica rolled at other offsets, so its next segment begins inside a copied one."""
    shutil.rmtree(files.log_directory)
    with LogDirectoryWriter.create(files.log_directory, CLUSTER_ID, clock=lambda: NOW) as writer:
        for number in (0, 1):
            log = writer.create_log("orders", number, topic_id("orders"), LOG_CONFIG)
            append_batches(log)
            log.roll()
            append_batches(log, 7)
    with files.open() as remote_log:
        assert copy(remote_log).is_whole
    assert restore(files, target, "--validation", "records").exit_code == 0
    assert records_in(target) == records(0, 35)
    assert [segment.base_offset for segment in list_segments(target / "orders-0")] == [0, 10, 20, 30, 35]


# --------------------------------------------------------------------------------------------- whole or not at all


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


def create_empty_partitions(target: Path) -> None:
    with LogDirectoryWriter.create(target, CLUSTER_ID, clock=lambda: NOW) as writer:
        for number in (0, 1):
            writer.create_log("orders", number, topic_id("orders"))


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


def orders_with_transactions(files: RemoteLogFiles) -> None:
    """Copy, from offset 35 on: a record of producer 8, one of 7, the abort of 8, a record. Later: the abort of 7."""
    with LogDirectoryWriter.open(files.log_directory, LOG_CONFIG, clock=lambda: NOW) as writer:
        log = writer.log("orders", 0)
        for producer_id in (8, 7):
            each = record(log.log_end_offset)
            log.append([each], producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True)
        log.append_end_marker(8, 0, ControlRecordType.ABORT)
        log.append([record(log.log_end_offset)])
        log.roll()
        log.append_end_marker(7, 0, ControlRecordType.ABORT)
    with files.open() as remote_log:
        assert copy(remote_log).is_whole


def test_a_new_incarnation_ends_before_an_undecided_transaction(files: RemoteLogFiles, target: Path) -> None:
    """The record of producer 8 is left out too, because its marker comes later."""
    orders_with_transactions(files)
    result = restore(files, target, "--as-topic-id", random_uuid(), "--validation", "records")
    assert result.exit_code == 0, result.err
    [notice] = result.document["notices"]
    assert mentions(notice["message"], "transaction", "offset 36")
    assert result.rows[0]["end_offset"] == 34
    assert records_in(target) == records(0, 35)
    assert (read_log_directory(target).high_watermarks or {})["orders", 0] == 35


def test_the_same_incarnation_keeps_an_undecided_transaction_open(files: RemoteLogFiles, target: Path) -> None:
    orders_with_transactions(files)
    result = restore(files, target)
    assert [each["partition"] for each in result.document["notices"]] == [str(ORDERS_0)]
    with log_in(target) as log:
        assert (log.log_end_offset, log.last_stable_offset) == (39, 36)


def test_a_snapshot_that_was_never_copied_is_made_from_the_log(files: RemoteLogFiles, target: Path) -> None:
    """After a clean stop, a broker without a snapshot assumes no open transaction."""
    orders_with_transactions(files)
    assert restore(files, target).exit_code == 0
    expected = (target / "orders-0" / "00000000000000000039.snapshot").read_bytes()
    shutil.rmtree(target)
    found = ObjectRemoteStorageManager.fetch_index

    def without_snapshots(
        self: ObjectRemoteStorageManager, segment: RemoteLogSegmentMetadata, kind: IndexKind
    ) -> bytes:
        if kind is IndexKind.PRODUCER_SNAPSHOT:
            raise RemoteObjectNotFoundError("no snapshot")
        return found(self, segment, kind)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ObjectRemoteStorageManager, "fetch_index", without_snapshots)
        assert restore(files, target).exit_code == 0
    assert (target / "orders-0" / "00000000000000000039.snapshot").read_bytes() == expected


def test_records_that_may_be_aborted_in_a_gap_are_not_restored(files: RemoteLogFiles, target: Path) -> None:
    orders_with_transactions(files)
    with LogDirectoryWriter.open(files.log_directory, LOG_CONFIG, clock=lambda: NOW) as writer:
        writer.log("orders", 0).roll()
        append_batches(writer.log("orders", 0))
        writer.log("orders", 0).roll()
    with files.open() as remote_log:
        copy(remote_log)
        [segment] = [each for each in segments_of(remote_log) if each.start_offset == 39]
        step = a_step(segment, SegmentState.DELETE_SEGMENT_STARTED)
        remote_log.context.segments.update_remote_log_segment_metadata(step, held_by(remote_log, "test"))
    result = restore(files, target, "--allow-gaps")
    assert mentions(result.document["message"], "offset 36 ", "aborted")
    assert "missing before offset 40" in result.document["message"]
    assert partitions_in(target) == []
    assert restore(files, target, "--from-offset", 40).exit_code == 0


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


def test_a_gap_is_refused_unless_it_is_allowed(files: RemoteLogFiles, target: Path) -> None:
    with files.open() as remote_log:
        segment = list(remote_log.context.segments.list_remote_log_segments(ORDERS_0))[1]
        step = a_step(segment, SegmentState.DELETE_SEGMENT_STARTED)
        remote_log.context.segments.update_remote_log_segment_metadata(step, held_by(remote_log, "test"))
    planned = restore(files, target, "--dry-run")
    assert planned.exit_code == 1
    assert planned.document["gaps"] == [{"partition": "orders-0", "message": "offsets 10 to 19 are missing"}]
    assert restore(files, target).document["error"] == "RemoteObjectNotFoundError"
    assert not target.exists()
    assert restore(files, target, "--allow-gaps").exit_code == 0
    assert records_in(target) == [*records(0, 10), *records(20, 30)]


def test_a_topic_missing_in_the_store_is_reported(files: RemoteLogFiles, target: Path) -> None:
    result = run_on(files, "restore", "oders", "--to-directory", target, "--json")
    assert result.document["error"] == "ConfigurationError"
    assert "'tiered-storage topics list'" in result.document["message"]
    assert "orders" not in result.document["message"]
    nowhere = run_on(files, "restore", "orders", "--json")
    assert "--to-directory" in nowhere.document["message"]


# ------------------------------------------------------------------------------------------------------- crashes


class Died(BaseException):
    """Stands for SIGKILL: none of our code runs after it."""


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_second_run_finishes_what_a_crash_left(
    files: RemoteLogFiles, target: Path, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run dies after it put so many partitions in place."""
    put = TargetDirectory.put_in_place
    names: list[str] = []

    def put_or_die(self: TargetDirectory, name: str) -> None:
        if len(names) == after:
            raise Died
        names.append(name)
        put(self, name)

    monkeypatch.setattr(TargetDirectory, "put_in_place", put_or_die)
    if after == 2:
        monkeypatch.setattr(TargetDirectory, "finish", lambda self: put_or_die(self, ""))
    with pytest.raises(Died):
        restore(files, target)
    monkeypatch.undo()
    # A broker started now would remove the partitions that are not in place.
    left = [name for name in partitions_in(target) if name not in names]
    assert all(name.endswith("-delete") for name in left)
    result = restore(files, target)
    assert result.exit_code == 0, result.err
    assert [row["was_there"] for row in result.rows] == [name in names for name in ("orders-0", "orders-1")]
    assert partitions_in(target) == ["orders-0", "orders-1"]
    assert records_in(target) == records(0, 30)
    assert [path.name for path in target.iterdir() if path.name.startswith(".remote-log")] == []


@pytest.mark.parametrize("after", [0, 1])
def test_a_second_run_takes_over_the_empty_partitions_that_the_first_one_did_not(
    files: RemoteLogFiles, target: Path, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run wrote the checkpoints and died after it emptied so many folders."""
    create_empty_partitions(target)
    unlink = Path.unlink
    emptied: set[Path] = set()

    def unlink_or_die(self: Path, missing_ok: bool = False) -> None:
        if self.parent.parent == target and len(emptied | {self.parent}) > after:
            raise Died
        emptied.update({self.parent} if self.parent.parent == target else ())
        unlink(self, missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", unlink_or_die)
        with pytest.raises(Died):
            restore(files, target)
    assert read_offset_checkpoint(target / HIGH_WATERMARK_CHECKPOINT)["orders", 1] == 20
    assert restore(files, target).exit_code == 0
    assert records_in(target) == records(0, 30)
    assert records_in(target, 1) == records(0, 20)


@pytest.mark.parametrize("file", [META_PROPERTIES, CLEAN_SHUTDOWN])
def test_a_crash_at_its_very_end_leaves_a_new_directory_that_the_next_run_makes_whole(
    files: RemoteLogFiles, target: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """Without the mark of a clean stop, a broker would recover and read the whole log."""
    replace = small_files.replace_file

    def write_and_die(path: Path, content: bytes) -> None:
        replace(path, content)
        if path.name == file:
            raise Died

    with monkeypatch.context() as patched:
        for module in (restoring, meta_properties):
            patched.setattr(module, "replace_file", write_and_die)
        with pytest.raises(Died):
            restore(files, target)
    assert restore(files, target).exit_code == 0
    assert (target / CLEAN_SHUTDOWN).is_file()
    assert (target / META_PROPERTIES).is_file()
    assert records_in(target) == records(0, 30)


def test_restored_partitions_stay_though_more_was_copied_since(
    files: RemoteLogFiles, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = TargetDirectory.put_in_place

    def put_the_first(self: TargetDirectory, name: str) -> None:
        if name != "orders-0":
            raise Died
        put(self, name)

    monkeypatch.setattr(TargetDirectory, "put_in_place", put_the_first)
    with pytest.raises(Died):
        restore(files, target)
    monkeypatch.undo()
    files.append(2)
    with files.open() as remote_log:
        assert copy(remote_log).is_whole
    result = restore(files, target)
    assert result.exit_code == 0, result.err
    assert [(row["end_offset"], row["was_there"]) for row in result.rows] == [(29, True), (19, False)]
    assert records_in(target) == records(0, 30)
    assert records_in(target, 1) == records(0, 20)


def test_a_crash_during_a_write_leaves_nothing_that_looks_complete(
    files: RemoteLogFiles, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise Died

    monkeypatch.setattr(restoring, "check_written", die)
    monkeypatch.setattr(TargetDirectory, "discard_staged", lambda *_: None)
    with pytest.raises(Died):
        restore(files, target)
    monkeypatch.undo()
    # The first run may have died before it began the second partition.
    assert set(partitions_in(target)) <= {"orders-0.restoring-delete", "orders-1.restoring-delete"}
    assert partitions_in(target)
    assert not read_log_directory_or_none(target)
    assert restore(files, target).exit_code == 0
    assert records_in(target) == records(0, 30)


def read_log_directory_or_none(root: Path) -> object:
    try:
        return read_log_directory(root)
    except InvalidLogDirectoryError:
        return None


def test_an_unfinished_restore_of_something_else_is_reported(
    files: RemoteLogFiles, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise Died

    monkeypatch.setattr(TargetDirectory, "finish", die)
    with pytest.raises(Died):
        restore(files, target)
    monkeypatch.undo()
    result = restore(files, target, "--partitions", "1")
    assert mentions(result.document["message"], target, "another restore")
    assert "orders-" not in result.document["message"]


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
