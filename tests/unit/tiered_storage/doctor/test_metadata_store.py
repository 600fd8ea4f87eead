from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from golden.earlier_versions import copy_generation
from support.command_line import mentions
from support.examinations import examined
from support.metadata_files import database_of, remove_metadata
from support.remote_logs import (
    ENABLED,
    NOW,
    ORDERS_0,
    RemoteLogFiles,
    a_copied_remote_log,
    a_remote_log,
    held_by,
    segments_of,
)
from tiered_storage.clock import wall_clock
from tiered_storage.kafka_log.files.offset_checkpoint import write_offset_checkpoint
from tiered_storage.remote_log.metadata.safety import AuditResult
from tiered_storage.remote_log.metadata.sql.database.schema import SCHEMA_VERSION, VERSION_TABLE
from tiered_storage.remote_log.storage.documents.object_names import STORE_IDENTITY
from unit.tiered_storage.doctor.folders import everything_in


def execute(files: RemoteLogFiles, statement: str) -> None:
    with closing(sqlite3.connect(database_of(files))) as connection, connection:
        connection.execute(statement)


def test_sound_metadata_are_as_they_must_be(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        remote_log.checks.audit()
        remote_log.context.store.generation.record_backup(files.clock.now)
    (files.root / "state" / "work").mkdir()
    before = everything_in(files.root)

    found = examined(files)

    assert (found.wrong(), found.notes()) == ([], [])
    assert len(found.ok("pair")) == 1
    copied, deleted = found.ok("topics")
    assert mentions(copied, "copied", "orders")
    assert mentions(deleted, "locally: orders", "remotely: orders")
    assert found.ok("deletions") == ["they are not stopped | "]
    assert "found nothing" in found.ok("audit")[0]
    assert everything_in(files.root) == before


def test_a_lease_of_a_clock_that_was_ahead_is_found(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    for ahead, seen in ((0, 0), (5 * 365 * 86_400_000, 1)):
        files.clock.now = wall_clock() + ahead
        with files.open() as remote_log:
            held_by(remote_log, "a run")
        assert len(examined(files).wrong("leases")) == seen
    [found] = examined(files).wrong("leases")
    assert mentions(found, "orders-0", "a run", "leases end")
    assert "tiered-storage leases end" in found


def test_metadata_with_a_second_name_are_wrong(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    other = tmp_path / "other.db"
    other.hardlink_to(database_of(files))

    [message] = examined(files).wrong("metadata")

    assert mentions(message, database_of(files), 2, "hard links")
    other.unlink()
    assert not examined(files).wrong("metadata")


def test_metadata_that_are_not_there_are_not_made(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    database_of(files).unlink()

    found = examined(files)

    assert found.wrong() == []
    assert f"{database_of(files)} does not exist yet" in " ".join(found.notes("metadata"))
    assert len(found.notes("pair")) == 1
    assert "copied are: orders" in found.ok("topics")[0]
    assert not database_of(files).exists()


def test_a_store_whose_metadata_are_gone_is_wrong(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    database_of(files).unlink()

    [message] = examined(files).wrong()

    assert mentions(message, files.store, "metadata restore", "rebuild-metadata")
    assert "| set rlmm.config.url to them" in message


def test_a_store_of_other_metadata_is_wrong(tmp_path: Path) -> None:
    files, others = a_copied_remote_log(tmp_path / "one"), a_copied_remote_log(tmp_path / "other")
    execute(others, "UPDATE store_identity SET metadata_uuid = 'AAAAAAAAAAAAAAAAAAAAAA'")
    shutil.copy(database_of(others), database_of(files))

    [message] = examined(files).wrong()

    assert mentions(message, files.store, "AAAAAAAAAAAAAAAAAAAAAA")


def test_metadata_that_are_older_than_the_store_are_wrong(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    backup = database_of(files).read_bytes()
    with files.open() as remote_log:
        remote_log.context.guard.renew("a copy run")
    for left in database_of(files).parent.glob("*.db*"):
        left.unlink()
    database_of(files).write_bytes(backup)
    before = everything_in(files.root)

    [message] = examined(files).wrong()

    assert mentions(message, "(a copy run)", database_of(files))
    assert "older than the store" in message
    assert everything_in(files.root) == before


def test_a_store_that_was_emptied_is_wrong(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    shutil.rmtree(files.store)
    files.store.mkdir()

    [message] = examined(files).wrong()

    assert mentions(message, files.store, STORE_IDENTITY)


def test_a_damaged_database_is_wrong(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    content = bytearray(database_of(files).read_bytes())
    content[4096:-4096] = bytes(len(content) - 8192)
    database_of(files).write_bytes(content)

    [message] = examined(files).wrong()

    assert mentions(message, database_of(files), "backup")


@pytest.mark.parametrize("content", [b"", b"text\n" * 2_000], ids=["empty", "text"])
def test_a_file_that_is_no_database_is_wrong_and_stays(tmp_path: Path, content: bytes) -> None:
    files = a_remote_log(tmp_path)
    database_of(files).write_bytes(content)

    [message] = examined(files).wrong()

    assert str(database_of(files)) in message
    assert database_of(files).read_bytes() == content


def test_another_programs_database_is_wrong(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    database_of(files).unlink()
    execute(files, "CREATE TABLE cars (name TEXT)")

    [message] = examined(files).wrong()

    assert mentions(message, database_of(files), "rlmm.config.url")


def test_metadata_that_went_missing_beside_their_log_are_wrong(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    database_of(files).rename(tmp_path / "state" / "remote_log_metadata.db-wal")

    [message] = examined(files).wrong()

    assert mentions(message, "missing", "remote_log_metadata.db-wal")


def test_metadata_of_a_later_version_are_wrong(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    execute(files, f"UPDATE {VERSION_TABLE} SET version_num = '9999'")  # noqa: S608

    [message] = examined(files).wrong()

    assert "has schema version 9999" in message
    assert "upgrade its installation" in message


def test_metadata_of_an_earlier_version_are_not_migrated(tmp_path: Path) -> None:
    root = copy_generation(1, tmp_path / "site")
    before = (root / "state" / "remote_log_metadata.db").read_bytes()

    found = examined(root / "settings.yaml")

    assert f"migrates it to {SCHEMA_VERSION}" in found.notes("metadata")[0]
    assert (root / "state" / "remote_log_metadata.db").read_bytes() == before


def test_metadata_that_are_locked_are_wrong(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, metadata_busy_timeout_ms=10)
    with closing(sqlite3.connect(database_of(files), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        found = examined(files)
        other.execute("ROLLBACK")

    assert mentions(found.wrong("metadata")[0], "lock", 10)
    assert len(found.ok("pair")) == 1


def test_settings_of_topics_that_contradict_each_other_are_wrong(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    properties = '{"retention.ms": "1000", "local.retention.ms": "2000"}'
    execute(
        files,
        "INSERT INTO topics (cluster_id, topic_id, name, remote_storage_enable, local_deletion_allowed, "  # noqa: S608
        f"remote_deletion_allowed, properties) VALUES ('c', 't', 'orders', 1, 0, 0, '{properties}')",
    )

    [message] = examined(files).wrong("topics")
    assert "not those of generation" in examined(files).wrong("pair")[0]

    assert "local.retention.ms" in message


def test_a_compacted_topic_that_is_to_be_copied_is_wrong(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": {**ENABLED, "cleanup.policy": "compact"}})

    [message] = examined(files).wrong()

    assert mentions(message, "topic orders", "cleanup.policy=compact", "cleanup.policy=delete")


@pytest.mark.parametrize("has_metadata", [True, False])
def test_a_topic_that_the_log_cleaner_compacts_is_wrong_while_it_is_enabled(
    tmp_path: Path, *, has_metadata: bool
) -> None:
    for enabled, seen in ((True, 1), (False, 0)):
        topics = {"orders": {**ENABLED, "remote.storage.enable": enabled}}
        files = a_remote_log(tmp_path / str(enabled), {("orders", 0): 1, ("orders", 1): 1}, topics=topics)
        if not has_metadata:
            database_of(files).unlink()
        write_offset_checkpoint(files.log_directory / "cleaner-offset-checkpoint", {("orders", 0): 2, ("orders", 1): 2})

        messages = examined(files).wrong("topics")

        assert len(messages) == seen
        assert all("brokers compact orders-0" in each for each in messages)


def test_the_switch_that_stops_deletions_is_worth_a_note(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        remote_log.context.safety.stop("a wrong mount", "somebody")

    [message] = examined(files).notes("deletions")

    assert mentions(message, "somebody", "2023-11-15 01:00:00 UTC", "a wrong mount", "stop-deletions --lift")


def test_failed_deletions_are_worth_a_note(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, {("orders", 0): 7})
    with files.open() as remote_log:
        ids = [segment.segment_id for segment in segments_of(remote_log)]
        remote_log.context.safety.note_failures(dict.fromkeys(ids, "refused"), NOW)

    *named, more = examined(files).notes("deletions")

    assert len(named) == 5
    assert mentions(named[0], 1, "2023-11-14 22:13:20 UTC", "refused")
    assert "2 more segments" in more


def test_doctor_reports_what_the_last_audit_found(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    assert "nothing was ever audited" in examined(files).notes("audit")[0]
    with files.open() as remote_log:
        remote_log.context.safety.put_audit_result(
            AuditResult(ORDERS_0.cluster_id, ORDERS_0.topic_id, True, NOW, 3, "2 missing objects")
        )

    [message] = examined(files).wrong()

    assert mentions(message, "orders", "2023-11-14 22:13:20 UTC", "3 anomalies", "2 missing objects")


def test_a_store_that_lost_what_was_copied_is_wrong(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    for path in files.objects():
        path.unlink()

    [message] = examined(files).wrong()

    assert mentions(message, "orders-0", files.store, "tiered-storage audit")
    assert "tiered-storage audit names all" in message


def test_metadata_that_lack_a_decision_are_wrong(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        remote_log.context.bind_store()
        backup = database_of(files).read_bytes()
        remote_log.context.safety.stop("legal hold", "ada")
    remove_metadata(files)
    database_of(files).write_bytes(backup)

    [message] = examined(files).wrong()

    assert mentions(message, "deletions are stopped", database_of(files))
