"""Restore: a topic is restored from the store alone, whole or not at all (scenario 37).

tests/integration/restore/test_real_kafka_takes_restored.py starts a broker on a restored log. No test here ends with
an audit, because a restore does not change the remote log; see tests/crashes/test_restore_crashes.py.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from scenarios.restore.restored_topics import log_in, lose_local_logs, partitions_in, records_in, restore
from support.command_line import mentions, run_on
from support.counted_limits import counted_limits
from support.metadata_stores import a_step
from support.remote_logs import (
    BATCH_RECORDS,
    CLUSTER_ID,
    LOG_CONFIG,
    NOW,
    ORDERS_0,
    RemoteLogFiles,
    append_as_later_leader,
    append_batches,
    copy,
    held_by,
    record,
    records,
    records_after_later_leader,
    segments_of,
    topic_id,
)
from tiered_storage.errors import RemoteObjectNotFoundError
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import (
    LEADER_EPOCH_CHECKPOINT,
    EpochEntry,
    read_leader_epochs,
)
from tiered_storage.kafka_log.files.log_directory import read_log_directory
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.records.control_record import ControlRecordType
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, SegmentState
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager

SENTINEL = Record(0, NOW, b"sentinel", b"written before the loss")

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


# --------------------------------------------------------------------------------------------- transactions and gaps


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
