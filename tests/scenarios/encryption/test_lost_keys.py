"""A lost key stops nothing else, and nothing is deleted that only it could read."""

from __future__ import annotations

from dataclasses import replace

from scenarios.encryption.encrypted_logs import keys_of, lose_key, orders_of
from support.command_line import run_on
from support.key_rings import ring_file, rsa_files
from support.remote_logs import (
    NOW,
    RemoteLogFiles,
    assert_clean,
    offsets_read,
    partition_of,
    records,
    rewrite_segment,
    segments_of,
    states_of,
    unsynced,
)
from support.tables import carry_out as carry_out_export
from tiered_storage.kafka_log.records.record_batch import encode_batch
from tiered_storage.remote_log.coverage import finished
from tiered_storage.remote_log.tables.export_job import ExportRequest
from tiered_storage.remote_log.tables.layout import Interval
from tiered_storage.remote_log.tables.query import TableQuery


def test_without_its_key_a_block_is_no_dead_letter_and_not_exported(files: RemoteLogFiles) -> None:
    lose_key(files)
    with unsynced(), files.open() as remote_log:
        request = ExportRequest(
            TableQuery("orders"), Interval(NOW, NOW + 60_000), remote_log.context.settings.export_url
        )
        [failed] = carry_out_export(remote_log, request).failures
    assert failed.failure is not None
    assert failed.failure.error == "EncryptionKeyError"


def test_a_lost_key_is_one_error_a_segment_and_stops_nothing_else(files: RemoteLogFiles) -> None:
    lose_key(files)
    files.append(2, "clicks")
    assert run_on(files, "audit").exit_code == 0
    audited = run_on(files, "audit", "--deep", "--json")
    assert audited.exit_code == 1
    assert [row["kind"] for row in audited.rows] == ["missing key"] * 3
    with files.open() as remote_log:
        ids = {segment.segment_id.id for segment in segments_of(remote_log)}
    assert {row["message"].split(":")[1] for row in audited.rows} == ids
    log_dirs = files.properties.pop("log.dirs", str(files.log_directory))
    files.properties["log.dirs"] = []
    read = run_on(files, "read", "orders", 0, "--offset", 0)
    assert (read.exit_code, "first" in read.err, "Traceback" in read.err) == (1, True, False)
    assert run_on(files, "read", "clicks", 0).exit_code == 0
    files.properties["log.dirs"] = log_dirs
    assert run_on(files, "copy", "--topics", "clicks").exit_code == 0
    repaired = run_on(files, "repair", "--deep")
    assert (repaired.exit_code, "Traceback" in repaired.err) == (1, False)
    lose_key(files, "first")
    assert run_on(files, "audit", "--deep").exit_code == 0
    with files.open() as remote_log:
        assert {segment.segment_id.id for segment in finished(segments_of(remote_log))} == ids


def test_another_key_under_the_same_id_is_reported_and_changes_nothing(files: RemoteLogFiles) -> None:
    before = {path: path.read_bytes() for path in files.objects()}
    rsa_files(files.root / "keys", "first", "another")
    files.properties["rsm.config.encryption.key.pair.id"] = "third"
    files.properties["log.dirs"] = []
    for command, *arguments in (
        ("read", "orders", 0, "--offset", 12),
        ("audit", "--deep"),
        ("rotate-keys",),
        ("repair", "--deep"),
        ("restore", "orders", "--to-directory", files.root / "restored"),
    ):
        result = run_on(files, command, *arguments)
        said = result.out + result.err
        assert (result.exit_code, "Traceback" in said) == (1, False), command
        assert "another key" in said, (command, said)
    assert {path: path.read_bytes() for path in files.objects() if path in before} == before
    rsa_files(files.root / "keys", "first")
    assert run_on(files, "audit", "--deep").exit_code == 0


def lose_the_first_key(files: RemoteLogFiles) -> None:
    """Lose the key that wrapped all data keys of orders; new ones are wrapped by the key `third`."""
    lose_key(files, "third")
    files.properties["rsm.config.encryption.key.pair.id"] = "third"


def test_segments_of_a_lost_key_are_copied_again_while_the_local_log_has_them(files: RemoteLogFiles) -> None:
    lose_the_first_key(files)
    planned = run_on(files, "repair", "--deep", "--dry-run", "--json")
    assert [row["action"] for row in planned.rows] == ["copy again"] * 3 + ["mark for deletion"] * 3
    result = run_on(files, "repair", "--deep")
    assert result.exit_code == 0, (result.out, result.err)
    with files.open() as remote_log:
        assert_clean(remote_log)
    assert keys_of(run_on(files, "rotate-keys", "--dry-run", "--json"))["third"] == 3
    assert run_on(files, "audit", "--deep").exit_code == 0


def test_segments_of_a_lost_key_stay_if_nothing_else_has_their_records(files: RemoteLogFiles) -> None:
    log_dirs = files.properties.pop("log.dirs", str(files.log_directory))
    files.properties["log.dirs"] = []
    lose_the_first_key(files)
    result = run_on(files, "repair", "--deep")
    assert (result.exit_code, "Traceback" in result.err) == (1, False)
    with files.open() as remote_log:
        ids = [segment.segment_id.id for segment in segments_of(remote_log)]
        assert states_of(remote_log) == [(start, "COPY_SEGMENT_FINISHED") for start in (0, 10, 20)]
    assert all(any(one in line and "key first" in line for line in result.err.splitlines()) for one in ids)
    lose_key(files, "first", "third")
    files.properties["log.dirs"] = log_dirs
    assert run_on(files, "audit", "--deep").exit_code == 0


def test_segments_of_a_lost_key_stay_where_a_fork_holds_their_offsets(files: RemoteLogFiles) -> None:
    """The log has other records: checksums of what was sent prove that without the key."""
    lose_the_first_key(files)
    last = files.local_segments()[2].log_path
    forked = [replace(each, value=b"a fork".ljust(60, b".")) for each in records(20, 30)]
    rewrite_segment(last, [encode_batch(forked[:5]), encode_batch(forked[5:])])
    result = run_on(files, "repair", "--deep")
    assert (result.exit_code, "Traceback" in result.err) == (1, False)
    with files.open() as remote_log:
        assert (20, "COPY_SEGMENT_FINISHED") in states_of(remote_log)
        assert last.name.removesuffix(".log") in orders_of(files, ".key")[2].name


def test_a_lost_key_stops_no_copy_of_later_segments(files: RemoteLogFiles) -> None:
    lose_the_first_key(files)
    files.append(2)
    result = run_on(files, "copy")
    assert result.exit_code == 0, result.err
    with files.open() as remote_log:
        assert offsets_read(remote_log, 0) == list(range(45))


def test_a_rotation_leaves_each_segment_of_a_lost_key_and_continues(files: RemoteLogFiles) -> None:
    files.properties["rsm.config.encryption.key.pair.id"] = "third"
    files.append(2)
    assert run_on(files, "copy").exit_code == 0
    lose_the_first_key(files)
    files.properties["rsm.config.encryption.key.pair.id"] = "second"
    keys = {"second": {"private.key.file": "second.pem"}, "third": {"key.file": "third.key"}}
    ring_file(files.root / "keys", keys)
    result = run_on(files, "rotate-keys", "--json")
    assert (result.exit_code, result.document["rotated"], keys_of(result)) == (1, 1, {"first": 3, "second": 1})
    failures = result.document["failures"]
    assert len(failures) == 3
    assert all("key first" in failure for failure in failures)


def test_without_the_key_nothing_local_is_deleted_of_its_topic(files: RemoteLogFiles) -> None:
    for topic in ("orders", "clicks"):
        assert run_on(files, "topics", "set", topic, "local.retention.ms=0").exit_code == 0
    lose_key(files)
    result = run_on(files, "retain")
    assert (result.exit_code, "first" in result.err) == (1, True), result.err
    assert files.local_starts() == [0, 10, 20, 30]
    assert files.local_starts("clicks") == [20]


def test_a_copy_without_a_key_fails_alone(files: RemoteLogFiles) -> None:
    lose_key(files)
    files.append(2)
    files.append(2, "clicks")
    result = run_on(files, "copy")
    assert result.exit_code == 1
    assert "no key first" in result.err
    with files.open() as remote_log:
        assert [each.start_offset for each in finished(segments_of(remote_log))] == [0, 10, 20]
        clicks = [state for _, state in states_of(remote_log, partition_of("clicks"))]
        assert clicks == ["COPY_SEGMENT_FINISHED"] * 3
    assert not [path for path in orders_of(files, ".log") if "000030-" in path.name]
