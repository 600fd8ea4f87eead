"""Encrypted and compressed segments pass every operation that plain segments pass."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from scenarios.encryption.encrypted_logs import DAYS, PARTITIONS, codecs, lose_key, orders_of
from support.command_line import CommandResult, mentions, run_on
from support.key_rings import ring_of_three
from support.local_logs import read_all
from support.metadata_files import remove_metadata
from support.remote_logs import (
    ENABLED,
    LOG_CONFIG,
    NOW,
    RemoteLogFiles,
    a_remote_log,
    assert_clean,
    begin,
    carry_out,
    copy,
    flip_bit,
    offsets_read,
    records,
    segments_of,
    unsynced,
)
from support.tables import export_orders
from tiered_storage.errors import REPAIR_ADVICE
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.records.compression import Compression
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.storage.transforms.encoding import COMPRESSED, FrameHead


def read_from_the_store(files: RemoteLogFiles) -> CommandResult:
    """Read a partition of orders without its local log."""
    return run_on(replace(files, properties={**files.properties, "log.dirs": []}), "read", "orders", "0")


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


def without(path: Path) -> None:
    path.unlink()


def a_flipped_bit(path: Path) -> None:
    flip_bit(path, path.stat().st_size // 2)


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 7)


# ------------------------------------------------------------------------------------------- damage and repair


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
