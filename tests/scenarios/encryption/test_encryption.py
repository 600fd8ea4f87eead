"""Encrypted and compressed segments go through everything that plain ones go through, and keys come and go."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from support.clocks import ManualClock
from support.command_line import CommandResult, mentions, run_on
from support.key_rings import RING, ring_file, ring_of_three, rsa_files
from support.local_logs import read_all
from support.metadata_files import remove_metadata
from support.remote_logs import (
    ENABLED,
    LOG_CONFIG,
    NOW,
    ORDERS_0,
    RemoteLogFiles,
    a_remote_log,
    assert_clean,
    begin,
    carry_out,
    copy,
    flip_bit,
    held_by,
    offsets_read,
    partition_of,
    records,
    rewrite_segment,
    segments_of,
    states_of,
    unsynced,
)
from support.tables import carry_out as carry_out_export
from support.tables import export_orders
from tiered_storage.errors import REPAIR_ADVICE, EncryptionKeyError
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.records.compression import Compression
from tiered_storage.kafka_log.records.record_batch import encode_batch
from tiered_storage.remote_log.coverage import finished
from tiered_storage.remote_log.jobs.groups import JobFolder
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions
from tiered_storage.remote_log.storage.documents.manifest import Manifest
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager
from tiered_storage.remote_log.storage.transforms.encoding import COMPRESSED, FrameHead
from tiered_storage.remote_log.tables.export_job import ExportRequest
from tiered_storage.remote_log.tables.layout import Interval
from tiered_storage.remote_log.tables.query import TableQuery

DAYS = 10**10
BOTH = {"remote.encryption.enabled": True, "remote.compression.enabled": True}
TOPICS = {"orders": {**ENABLED, **BOTH}, "clicks": dict(ENABLED)}
PARTITIONS = {("orders", 0): 3, ("clicks", 0): 2}


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    """Orders are compressed and encrypted by the key `first`, clicks are not; all are copied."""
    files = a_remote_log(
        tmp_path,
        PARTITIONS,
        topics=TOPICS,
        rsm_config_encryption_key_ring_file=str(ring_of_three(tmp_path / "keys")),
        rsm_config_encryption_key_pair_id="first",
    )
    files.clock = ManualClock(time.time_ns() // 1_000_000 + DAYS)
    with unsynced(), files.open() as remote_log:
        assert copy(remote_log).is_whole
    return files


def lose_key(files: RemoteLogFiles, *left: str) -> None:
    """Leave only these keys in the key ring."""
    keys = {"first": {"private.key.file": "first.pem"}, "third": {"key.file": "third.key"}}
    ring_file(files.root / "keys", {name: keys[name] for name in left})


def manifests(files: RemoteLogFiles) -> list[Manifest]:
    with files.open() as remote_log:
        segments = [
            segment
            for partition in remote_log.context.segments.list_partitions()
            for segment in finished(segments_of(remote_log, partition))
        ]
        read = remote_log.context.storage.fetch_index
        return [Manifest.parse(read(segment, IndexKind.MANIFEST), "manifest") for segment in segments]


def codecs(files: RemoteLogFiles) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for manifest in manifests(files):
        found.setdefault(manifest.segment_id.topic_id_partition.topic, set()).add(manifest.encoding.codec)
    return found


def orders_of(remote_log_files: RemoteLogFiles, suffix: str) -> list[Path]:
    return [path for path in remote_log_files.objects(suffix) if "orders" in str(path)]


def read_from_the_store(files: RemoteLogFiles) -> CommandResult:
    """Read a partition of orders without its local log."""
    return run_on(replace(files, properties={**files.properties, "log.dirs": []}), "read", "orders", "0")


def keys_of(result: CommandResult) -> dict[str, int]:
    return {row["key"]: row["segments"] for row in result.rows}


def test_each_topic_is_encoded_as_its_settings_say(files: RemoteLogFiles) -> None:
    assert codecs(files) == {"orders": {"zstd+aes-256-gcm"}, "clicks": {"none"}}
    assert len(files.objects(".key")) == 3
    assert not any(b"value 1" in path.read_bytes() for path in orders_of(files, ""))
    with files.open() as remote_log:
        assert_clean(remote_log)
        assert offsets_read(remote_log, 0) == list(range(35))


def test_the_settings_of_all_topics_hold_where_a_topic_says_nothing(tmp_path: Path) -> None:
    files = a_remote_log(
        tmp_path,
        PARTITIONS,
        topics={"orders": {**ENABLED, "remote.encryption.enabled": False}, "clicks": dict(ENABLED)},
        rsm_config_encryption_enabled=True,
        rsm_config_compression_enabled=True,
        rsm_config_encryption_key_ring_file=str(ring_of_three(tmp_path / "keys")),
        rsm_config_encryption_key_pair_id="third",
    )
    with unsynced(), files.open() as remote_log:
        assert copy(remote_log).is_whole
    assert codecs(files) == {"orders": {"zstd"}, "clicks": {"zstd+aes-256-gcm"}}


@pytest.mark.parametrize(("heuristic", "expected"), [(True, {0}), (False, {COMPRESSED})])
def test_batches_that_a_producer_compressed_are_compressed_again_only_if_the_settings_say_so(
    tmp_path: Path, *, heuristic: bool, expected: set[int]
) -> None:
    topics = {"orders": {**ENABLED, "remote.compression.enabled": True}}
    log = {("orders", 0): 0}
    files = a_remote_log(tmp_path, log, topics=topics, rsm_config_compression_heuristic_enabled=heuristic)
    files.append(31, compression=Compression.SNAPPY)
    with unsynced(), files.open() as remote_log:
        assert copy(remote_log).is_whole
        assert_clean(remote_log)
    # The first segment begins with a batch that is not compressed. zstd makes all of them smaller.
    _, *stored = files.objects(".log")
    assert {FrameHead.parse(path.read_bytes(), path.name, 0).flags for path in stored} == expected


def test_a_topic_changes_its_encoding_for_new_segments_only(files: RemoteLogFiles) -> None:
    assert run_on(files, "topics", "set", "orders", "remote.encryption.enabled=false").exit_code == 0
    files.append(4)
    assert run_on(files, "copy").exit_code == 0
    assert codecs(files)["orders"] == {"zstd", "zstd+aes-256-gcm"}
    with files.open() as remote_log:
        assert_clean(remote_log)


def test_local_segments_go_when_the_encrypted_ones_were_read_back(files: RemoteLogFiles) -> None:
    assert run_on(files, "topics", "set", "orders", "local.retention.ms=0").exit_code == 0
    result = run_on(files, "retain")
    assert result.exit_code == 0, result.err
    assert files.local_starts() == [30]
    with files.open() as remote_log:
        assert_clean(remote_log)


# ------------------------------------------------------------------------------------------- damage and repair


def without(path: Path) -> None:
    path.unlink()


def a_flipped_bit(path: Path) -> None:
    flip_bit(path, path.stat().st_size // 2)


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 7)


@pytest.mark.parametrize("suffix", [".log", ".key", ".indexes", ".commit"])
@pytest.mark.parametrize("damage", [without, a_flipped_bit, cut_short])
def test_an_audit_finds_damage_to_encrypted_segments_and_a_repair_mends_it(
    files: RemoteLogFiles, suffix: str, damage: Callable[[Path], None]
) -> None:
    damage(orders_of(files, suffix)[1])
    assert run_on(files, "audit", "--deep").exit_code == 1
    result = run_on(files, "repair", "--deep")
    assert result.exit_code == 0, (result.out, result.err)
    assert codecs(files)["orders"] == {"zstd+aes-256-gcm"}
    with files.open() as remote_log:
        assert_clean(remote_log)


def test_lost_indexes_come_again_without_a_local_log(files: RemoteLogFiles) -> None:
    orders_of(files, ".indexes")[1].unlink()
    shutil.rmtree(files.log_directory)
    files.properties["log.dirs"] = []
    result = run_on(files, "repair", "--deep")
    assert result.exit_code == 0, (result.out, result.err)
    assert codecs(files)["orders"] == {"zstd+aes-256-gcm"}
    assert run_on(files, "audit", "--deep").exit_code == 0


def test_a_truncated_tag_is_named_with_its_remedy(files: RemoteLogFiles) -> None:
    first, *_ = orders_of(files, ".log")
    first.write_bytes(first.read_bytes()[:-1])
    result = read_from_the_store(files)
    assert result.exit_code == 1
    assert mentions(result.err, first.name, "ends at byte", REPAIR_ADVICE), result.err


def test_an_exchange_of_objects_is_found(files: RemoteLogFiles) -> None:
    first, second, _ = orders_of(files, ".log")
    shutil.copy(second, first)
    result = read_from_the_store(files)
    assert result.exit_code == 1
    assert mentions(result.err, first.name, "at byte 0", "another position or segment", REPAIR_ADVICE), result.err
    result = run_on(files, "audit", "--deep", "--json")
    assert result.exit_code == 1
    assert any(first.name.split("-", 1)[1].removesuffix(".log") in row["what"] for row in result.rows)
    assert run_on(files, "repair", "--deep").exit_code == 0
    with files.open() as remote_log:
        assert_clean(remote_log)


def test_a_copy_that_nobody_committed_is_finished(files: RemoteLogFiles) -> None:
    files.append(2)
    with unsynced(), files.open() as remote_log:
        begun = begin(remote_log)
        carry_out(remote_log, begun)
        remote_log.context.leases.release_many(begun.leases)
    orders_of(files, ".commit")[-1].unlink(missing_ok=True)
    shutil.rmtree(files.log_directory)
    files.properties["log.dirs"] = []
    files.clock.now += DAYS
    result = run_on(files, "repair")
    assert result.exit_code == 0, (result.out, result.err)
    assert codecs(files)["orders"] == {"zstd+aes-256-gcm"}
    assert run_on(files, "audit", "--deep").exit_code == 0


def test_data_alone_stay(files: RemoteLogFiles) -> None:
    """Metadata made again do not know a segment of which only the data are left: the store has its only copy."""
    for suffix in (".indexes", ".commit"):
        orders_of(files, suffix)[2].unlink()
    shutil.rmtree(files.log_directory)
    files.properties["log.dirs"] = []
    remove_metadata(files)
    assert run_on(files, "rebuild-metadata", "--yes").exit_code == 0
    assert run_on(files, "topics", "allow-deletion", "orders").exit_code == 0
    files.clock.now += DAYS
    run_on(files, "repair")
    run_on(files, "expire")
    assert len(orders_of(files, ".log")) == 3


# ------------------------------------------------------------------------------------------- from the store alone


def test_metadata_are_rebuilt_without_any_key(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        expected = segments_of(remote_log)
    remove_metadata(files)
    lose_key(files)
    result = run_on(files, "rebuild-metadata", "--yes")
    assert result.exit_code == 0, result.err
    lose_key(files, "first")
    with files.open() as remote_log:
        assert [_offsets_and_size(each) for each in segments_of(remote_log)] == [
            _offsets_and_size(each) for each in expected
        ]
        assert_clean(remote_log)


def _offsets_and_size(segment: RemoteLogSegmentMetadata) -> tuple[object, ...]:
    return segment.segment_id, segment.start_offset, segment.end_offset, segment.size, segment.custom_metadata


def test_a_topic_is_restored(files: RemoteLogFiles, tmp_path: Path) -> None:
    target = tmp_path / "restored"
    result = run_on(files, "restore", "orders", "--to-directory", target)
    assert result.exit_code == 0, result.err
    with LocalLog.open(target / "orders-0", LOG_CONFIG, clock=lambda: NOW) as log:
        assert read_all(log) == records(0, 30)


def test_an_export_reads_them(files: RemoteLogFiles, tmp_path: Path) -> None:
    plain = a_remote_log(tmp_path / "plain", {("orders", 0): 3})
    plain.clock.now = files.clock.now
    with unsynced(), plain.open() as remote_log:
        assert copy(remote_log).is_whole
    mine, theirs = (sorted(export_orders(each).rglob("*.parquet")) for each in (files, plain))
    assert len(mine) == 2
    assert [path.read_bytes() for path in mine] == [path.read_bytes() for path in theirs]


def test_a_damaged_chunk_is_a_dead_letter_and_all_around_it_is_exported(files: RemoteLogFiles) -> None:
    data = orders_of(files, ".log")[1]
    flip_bit(data, 50)
    exports = export_orders(files)
    letters = [
        json.loads(line)
        for path in exports.rglob("_dead_letters.jsonl")
        for line in path.read_text().split("\n")
        if line
    ]
    assert {letter["object"] for letter in letters} == {str(data.relative_to(files.store))}
    assert {offset for each in letters for offset in range(each["first_offset"], each["last_offset"] + 1)} == {
        *range(10, 20)
    }
    assert all("CRC-32C" in letter["reason"] and "chunk 0" in letter["reason"] for letter in letters)
    rows = pq.read_table([*exports.rglob("*.parquet")], columns=["offset"])
    assert sorted(rows["offset"].to_pylist()) == [*range(10), *range(20, 30)]


def test_without_its_key_a_block_is_no_dead_letter_and_not_exported(files: RemoteLogFiles) -> None:
    lose_key(files)
    with unsynced(), files.open() as remote_log:
        request = ExportRequest(
            TableQuery("orders"), Interval(NOW, NOW + 60_000), remote_log.context.settings.export_url
        )
        [failed] = carry_out_export(remote_log, request).failures
    assert failed.failure is not None
    assert failed.failure.error == "EncryptionKeyError"


# ------------------------------------------------------------------------------------------- keys


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


def test_keys_rotate_and_the_old_one_can_go(files: RemoteLogFiles) -> None:
    before = {path: path.read_bytes() for path in files.objects()}
    files.properties["rsm.config.encryption.key.pair.id"] = "third"
    planned = run_on(files, "rotate-keys", "--dry-run", "--json")
    assert (planned.exit_code, planned.document["due"], keys_of(planned)) == (0, 3, {"first": 3})
    assert {path: path.read_bytes() for path in files.objects()} == before
    done = run_on(files, "rotate-keys", "--json")
    assert (done.exit_code, done.document["rotated"], keys_of(done)) == (0, 3, {"third": 3})
    after = {path: path.read_bytes() for path in files.objects()}
    assert {path for path in after if after[path] != before[path]} == set(files.objects(".key"))
    again = run_on(files, "rotate-keys", "--json")
    assert (again.exit_code, again.document["rotated"], keys_of(again)) == (0, 0, {"third": 3})
    lose_key(files, "third")
    with files.open() as remote_log:
        assert_clean(remote_log)


def test_a_process_that_runs_all_along_reads_what_a_rotation_wraps_by_a_key_that_is_new(files: RemoteLogFiles) -> None:
    """As the read service does: its key ring is of the time when it began."""
    lose_key(files, "first")
    files.properties["log.dirs"] = []
    with files.open() as remote_log:
        lose_key(files, "first", "third")
        files.properties["rsm.config.encryption.key.pair.id"] = "third"
        assert run_on(files, "rotate-keys").exit_code == 0
        lose_key(files, "third")
        assert offsets_read(remote_log, 0) == list(range(30))


def test_a_rotation_that_was_interrupted_continues(files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    files.properties["rsm.config.encryption.key.pair.id"] = "third"
    with files.open() as remote_log:
        remote_log.context.storage.rewrap_key(segments_of(remote_log)[1])  # type: ignore[attr-defined]
    result = run_on(files, "rotate-keys", "--json")
    assert (result.document["due"], result.document["rotated"], keys_of(result)) == (2, 2, {"third": 3})


def test_a_rotation_leaves_what_another_run_holds_and_what_it_cannot_unwrap(files: RemoteLogFiles) -> None:
    files.properties["rsm.config.encryption.key.pair.id"] = "third"
    with files.open() as remote_log:
        lease = held_by(remote_log, "copy")
        result = run_on(files, "rotate-keys", "--json")
        assert (result.exit_code, keys_of(result)) == (1, {"first": 3})
        assert "orders-0" in result.document["left"][0]
        remote_log.context.leases.release(lease)
    orders_of(files, ".key")[0].unlink()
    a_flipped_bit_in_json(orders_of(files, ".key")[0])
    result = run_on(files, "rotate-keys", "--json")
    assert (result.exit_code, len(result.document["failures"]), result.document["rotated"]) == (1, 2, 1)
    assert ".key" in result.document["failures"][0]
    files.properties["rsm.config.encryption.key.pair.id"] = "fourth"
    result = run_on(files, "rotate-keys")
    assert (result.exit_code, "no key fourth" in result.err) == (1, True)


def test_a_rotation_that_lost_its_lease_replaces_no_further_key(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rotation that stood still must not wrap by a key that was removed since."""
    files.properties["rsm.config.encryption.key.pair.id"] = "third"
    with files.open() as remote_log:
        rewrap = ObjectRemoteStorageManager.rewrap_key

        def taken_over(storage: ObjectRemoteStorageManager, metadata: RemoteLogSegmentMetadata) -> None:
            rewrap(storage, metadata)
            files.clock.now += remote_log.context.settings.lease_duration_ms + 1
            held_by(remote_log, "another rotation")

        monkeypatch.setattr(ObjectRemoteStorageManager, "rewrap_key", taken_over)
        result = run_on(files, "rotate-keys", "--json")
    assert (result.exit_code, result.document["rotated"], keys_of(result)) == (1, 1, {"first": 2, "third": 1})
    assert "another rotation" in result.document["left"][0]


def a_flipped_bit_in_json(path: Path) -> None:
    document = json.loads(path.read_bytes())
    path.write_bytes(json.dumps({**document, "wrapped": "AAAA" + document["wrapped"][4:]}).encode().ljust(4096))


def test_no_key_is_in_a_file_of_a_job_or_in_an_argument(files: RemoteLogFiles) -> None:
    files.append(2)
    secrets = [(files.root / "keys" / "third.key").read_bytes()]
    pem = (files.root / "keys" / "first.pem").read_text()
    secrets += [line.encode() for line in pem.splitlines()[1:-1]]
    with unsynced(), files.open() as remote_log:
        carry_out(remote_log, begin(remote_log))
        access = remote_log.context.access(JobFolder.of(remote_log.context.work, "runs/test/1"))
        shown = " ".join(access.arguments) + repr(access) + repr(remote_log.context.options) + str(access.options)
    written = [path.read_bytes() for path in (files.root / "state").rglob("*") if path.is_file()]
    for secret in secrets:
        assert not any(secret in content for content in written)
        assert secret.decode("latin-1") not in shown
    ring = files.root / "keys" / RING
    # A worker that gets no keys, as a reader in Spark, reads the file that the settings name.
    with files.open() as remote_log, closing(access.store.open(ObjectStoreOptions())) as storage:
        assert b"".join(storage.fetch_log_segment(segments_of(remote_log)[0]))
    ring.unlink()
    with files.open() as remote_log:
        with pytest.raises(EncryptionKeyError):
            list(remote_log.context.storage.fetch_log_segment(segments_of(remote_log)[0]))
        storage = access.store.open(access.secrets.options)
        assert b"".join(storage.fetch_log_segment(segments_of(remote_log, ORDERS_0)[0]))
        storage.close()
