"""Recovery without invention: metadata from the store alone, damaged objects from the local log.

Scenarios 33 and 34 of the remote log.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.clocks import ManualClock
from support.command_line import CommandResult, mentions, run_on
from support.metadata_stores import DELETING, a_step
from support.remote_logs import (
    ORDERS_0,
    RemoteLogFiles,
    a_copied_remote_log,
    assert_clean,
    flip_bit,
    held_by,
    offsets_read,
    segments_of,
)
from tiered_storage.errors import LeaseLostError, StoreMismatchError, TieredStorageError
from tiered_storage.kafka_log.files.offset_checkpoint import LOG_START_OFFSET_CHECKPOINT, write_offset_checkpoint
from tiered_storage.remote_log.coverage import finished
from tiered_storage.remote_log.storage.documents.object_names import partition_folder

DAYS = 10**10

PARTITIONS = {("clicks", 0): 2, ("orders", 0): 3, ("orders", 1): 1}


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    """Copied segments of three partitions; their objects are old by the library's clock."""
    files = a_copied_remote_log(tmp_path, PARTITIONS)
    files.clock = ManualClock(time.time_ns() // 1_000_000 + DAYS)
    return files


def metadata_files(files: RemoteLogFiles) -> list[Path]:
    return sorted(files.root.glob("state/remote_log_metadata.db*"))


def everything_that_is_asked(files: RemoteLogFiles) -> list[object]:
    """Return the output of the read-only commands, and every record of every partition."""
    said: list[object] = [run_on(files, "segments", "--json").rows, run_on(files, "plan", "--json").document]
    for topic, number in PARTITIONS:
        said.append(run_on(files, "read", topic, number, "--max-records", 1000, "--json").out)
    return said


# ------------------------------------------------------------------------------ 33: the metadata are lost


def test_lost_metadata_are_rebuilt_from_the_store_with_the_same_answers(files: RemoteLogFiles) -> None:
    before = everything_that_is_asked(files)
    with files.open() as remote_log:
        zombie = held_by(remote_log, "a run of before")
    kept = files.root / "old.db"
    shutil.copy(files.root / "state" / "remote_log_metadata.db", kept)
    for path in metadata_files(files):
        path.unlink()

    rebuilt = run_on(files, "rebuild-metadata", "--yes", "--json")
    assert (rebuilt.exit_code, rebuilt.rows[0]["segments"]) == (0, 6)

    assert everything_that_is_asked(files) == before
    with files.open() as remote_log:
        assert_clean(remote_log)
        with pytest.raises(LeaseLostError):
            remote_log.context.segments.advance_log_start_offset(ORDERS_0, 10, zombie)
    assert run_on(files, "expire", "--json").exit_code == 0
    assert len(files.objects(".log")) == 6

    files.properties["rlmm.config.url"] = f"sqlite:///{kept}"
    with files.open(outdated=True) as remote_log, pytest.raises(StoreMismatchError):
        remote_log.context.bind_store()


def test_copying_continues_after_metadata_were_rebuilt(files: RemoteLogFiles) -> None:
    files.append(4)
    for path in metadata_files(files):
        path.unlink()
    assert run_on(files, "rebuild-metadata", "--yes").exit_code == 0

    assert [row["start_offset"] for row in run_on(files, "copy", "--json").rows] == [30, 40]
    with files.open() as remote_log:
        assert_clean(remote_log)


@pytest.mark.parametrize("lost", [0, 1])
def test_offsets_that_the_store_lost_with_the_metadata_are_named(files: RemoteLogFiles, lost: int) -> None:
    of_orders = [path for path in files.objects(".log") if f"{partition_folder(ORDERS_0)}/" in str(path)]
    for path in of_orders[lost].parent.glob(f"{of_orders[lost].stem}.*"):
        path.unlink()
    for path in metadata_files(files):
        path.unlink()

    rebuilt = run_on(files, "rebuild-metadata", "--yes", "--json")

    assert rebuilt.exit_code == 0
    [notice] = rebuilt.document["notices"]
    assert notice["partition"] == "orders-0"
    assert mentions(notice["message"], f"offsets {10 * lost} to {10 * lost + 9} ", "no segment")


def test_a_store_without_any_segment_is_named(files: RemoteLogFiles) -> None:
    for path in files.store.glob("test-cluster/*"):
        shutil.rmtree(path)
    for path in metadata_files(files):
        path.unlink()

    rebuilt = run_on(files, "rebuild-metadata", "--yes")

    assert rebuilt.exit_code == 0
    assert "no segment" in " ".join(rebuilt.err.split())


# ------------------------------------------------------------------------------ 34: six kinds of anomaly, local or gone


def of_second_segment(files: RemoteLogFiles, suffix: str) -> Path:
    return next(path for path in files.objects(suffix) if "/orders-" in str(path) and f"{10:020}-" in path.name)


def missing(files: RemoteLogFiles) -> None:
    of_second_segment(files, ".log").unlink()


def wrong_size(files: RemoteLogFiles) -> None:
    os.truncate(of_second_segment(files, ".log"), 100)


def wrong_checksum(files: RemoteLogFiles) -> None:
    flip_bit(of_second_segment(files, ".log"), 100)


def unreferenced(files: RemoteLogFiles) -> None:
    path = of_second_segment(files, ".log")
    path.with_name(path.name + ".0123456789abcdef.tmp").write_bytes(b"half")


def document_of(files: RemoteLogFiles) -> Path:
    return next(files.store.glob("*/orders-*/0/state/*.json"))


def missing_document(files: RemoteLogFiles) -> None:
    shutil.rmtree(document_of(files).parent)


def broken_document(files: RemoteLogFiles) -> None:
    flip_bit(document_of(files), 0)


def trim_locally(files: RemoteLogFiles, segments: int) -> None:
    """Remove the oldest local segments of orders-0, as local retention does."""
    for base in range(0, 10 * segments, 10):
        for path in files.partition_directory().glob(f"{base:020}.*"):
            path.unlink()
    write_offset_checkpoint(files.log_directory / LOG_START_OFFSET_CHECKPOINT, {("orders", 0): 10 * segments})


def kinds(result: CommandResult) -> list[str]:
    return [row["kind"] for row in result.rows]


DAMAGES = pytest.mark.parametrize(
    ("damage", "kind"),
    [(missing, "missing object"), (wrong_size, "wrong size"), (wrong_checksum, "wrong checksum")],
)


@pytest.mark.parametrize(
    ("damage", "kind"), [(missing_document, "missing object"), (broken_document, "wrong checksum")]
)
def test_a_lost_partition_manifest_is_reported_and_written_again_and_deletions_outlive_the_metadata(
    files: RemoteLogFiles, damage: Callable[[RemoteLogFiles], None], kind: str
) -> None:
    assert run_on(files, "delete-records", "orders", 0, "--before", 15).exit_code == 0
    damage(files)

    audited = run_on(files, "audit", "--json")
    assert (audited.exit_code, kinds(audited)) == (1, [kind])
    planned = run_on(files, "repair", "--dry-run", "--json")
    assert [(row["action"], row["partition"]) for row in planned.rows] == [("write again", "orders-0")]
    assert run_on(files, "repair").exit_code == 0
    assert run_on(files, "audit", "--deep").exit_code == 0

    for path in metadata_files(files):
        path.unlink()
    assert run_on(files, "rebuild-metadata", "--yes").exit_code == 0
    with files.open() as remote_log:
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == 15


def test_a_rebuild_reports_what_a_broken_manifest_lost_and_keeps_every_segment(files: RemoteLogFiles) -> None:
    broken_document(files)
    for path in metadata_files(files):
        path.unlink()

    rebuilt = run_on(files, "rebuild-metadata", "--yes", "--json")
    assert (rebuilt.exit_code, rebuilt.rows[0]["segments"]) == (1, 6)
    [trouble] = rebuilt.document["troubles"]
    assert trouble["partition"] == "orders-0"
    assert mentions(trouble["message"], "log start", "lineage")
    with files.open() as remote_log:
        assert offsets_read(remote_log, 0) == list(range(35))


@DAMAGES
def test_a_damaged_object_is_reported_and_replaced_from_the_local_log(
    files: RemoteLogFiles, damage: Callable[[RemoteLogFiles], None], kind: str
) -> None:
    damage(files)

    assert kind in kinds(run_on(files, "audit", "--deep", "--json"))
    assert run_on(files, "repair", "--deep").exit_code == 0
    assert run_on(files, "audit", "--deep").exit_code == 0
    trim_locally(files, 3)
    with files.open() as remote_log:
        assert offsets_read(remote_log, 0) == list(range(35))
        assert_clean(remote_log)


@DAMAGES
def test_a_damaged_object_without_a_local_segment_is_reported_and_left(
    files: RemoteLogFiles, damage: Callable[[RemoteLogFiles], None], kind: str
) -> None:
    trim_locally(files, 2)
    damage(files)
    before = {path: path.read_bytes() for path in files.objects()}

    assert kind in kinds(run_on(files, "audit", "--deep", "--json"))
    left = run_on(files, "repair", "--deep", "--json")
    assert (left.exit_code, left.rows) == (1, [])
    assert mentions(left.document["troubles"][0]["message"], "offsets 10 to 19 ", "damaged")
    assert {path: path.read_bytes() for path in files.objects()} == before
    with files.open() as remote_log:
        assert offsets_read(remote_log, 20) == list(range(20, 35))
        with pytest.raises(TieredStorageError, match="00000000000000000010-"):
            offsets_read(remote_log, 10)

    # The audit is clean again only after a person gives up the lost records.
    run_on(files, "topics", "allow-deletion", "orders")
    assert run_on(files, "delete-records", "orders", 0, "--before", 20, "--give-up").exit_code == 0
    assert run_on(files, "expire").exit_code == 0
    with files.open() as remote_log:
        assert_clean(remote_log)


def test_a_gap_is_filled_from_the_local_log_if_it_has_the_records(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        segment = segments_of(remote_log)[1]
    _forget(files, segment.segment_id.id)
    assert "gap" in kinds(run_on(files, "audit", "--json"))
    assert run_on(files, "repair").exit_code == 0
    with files.open() as remote_log:
        assert_clean(remote_log)
        segment = finished(segments_of(remote_log))[1]
    _forget(files, segment.segment_id.id)
    trim_locally(files, 2)

    left = run_on(files, "repair", "--json")
    assert (left.exit_code, left.rows) == (1, [])
    assert mentions(left.document["troubles"][0]["message"], "offsets 10 to 19 ", "no segment")


def test_leftovers_are_deleted_and_foreign_objects_stay(files: RemoteLogFiles) -> None:
    unreferenced(files)
    unknown = of_second_segment(files, ".log").with_name(f"{99:020}-{'A' * 22}.log")
    unknown.write_bytes(b"?")
    files.properties["remote.log.orphan.grace.ms"] = 1000
    files.properties["lease.duration.ms"] = 1000
    time.sleep(1.2)

    assert kinds(run_on(files, "audit", "--json")) == ["unreferenced object"] * 2
    done = run_on(files, "repair", "--json")
    assert [row["action"] for row in done.rows] == ["removed"]
    assert (done.exit_code, done.document["anomalies"], unknown.exists()) == (1, 1, True)
    unknown.unlink()
    with files.open() as remote_log:
        assert_clean(remote_log)


def _forget(files: RemoteLogFiles, segment_id: str) -> None:
    """Mark a segment for deletion in the metadata alone."""
    with files.open() as remote_log:
        [segment] = [each for each in segments_of(remote_log) if each.segment_id.id == segment_id]
        lease = held_by(remote_log, "somebody")
        remote_log.context.segments.update_remote_log_segment_metadata(a_step(segment, DELETING), lease)
        remote_log.context.leases.release(lease)
