"""A broker that tiers by itself, with LocalTieredStorage: read, looked up, tabled, restored and audited in place."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

import confluent_kafka
import pyarrow.parquet as pq
import pytest

from integration.native.native_site import (
    LOG_START,
    PLAIN,
    TOPICS,
    TRANSACTIONS,
    TRIMMED,
    WAIT_SECONDS,
    NativeSite,
    is_tiered,
    plain,
)
from servers.tiering_kafka import TIERED
from support.command_line import CommandResult, run_on
from support.kafka_clients import Isolation as ClientIsolation
from support.records import varied_records
from support.remote_logs import RemoteLogFiles, flip_bit
from support.small_disks import ensure_may_mount
from support.tables import carry_out
from support.waiting import wait_for
from tiered_storage.remote_log.indexes.remote_log_index import RemoteLogIndexEntry, iterate_entries
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.native.derived_indexes import indexes_by_kafkas, scanned_indexes
from tiered_storage.remote_log.native.local_tiered_storage import LocalTieredFiles
from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader
from tiered_storage.remote_log.read.read_values import Isolation, OffsetSpec
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind
from tiered_storage.remote_log.tables.export_job import ExportRequest
from tiered_storage.remote_log.tables.layout import Interval
from tiered_storage.remote_log.tables.query import TableQuery

FAR_FUTURE = 4_000_000_000_000


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("isolation", list(Isolation))
def test_every_record_of_a_consumer_is_read(site: NativeSite, topic: str, isolation: Isolation) -> None:
    level: ClientIsolation = "read_committed" if isolation is Isolation.READ_COMMITTED else "read_uncommitted"
    consumed = site.consumed(topic, level)
    with site.files.open() as remote_log, BlockingLogReader(remote_log.open_log_reader()) as reader:
        partition = remote_log.find_partition(topic, 0)
        tiered = reader.offsets(partition, OffsetSpec.LATEST_TIERED)
        assert tiered is not None
        expected = [each for each in consumed if each.offset <= tiered.offset]
        assert len(expected) > 1_000
        for start in (expected[0].offset, expected[1].offset, expected[len(expected) // 2].offset, expected[-1].offset):
            read = [plain(each) for each in reader.records(partition, start, isolation=isolation)]
            assert read == [plain(each) for each in expected if each.offset >= start]


@pytest.mark.parametrize("topic", TOPICS)
def test_offsets_are_found_by_time_as_a_broker_finds_them(site: NativeSite, topic: str) -> None:
    consumed = site.consumed(topic)
    with site.files.open() as remote_log, BlockingLogReader(remote_log.open_log_reader()) as reader:
        partition = remote_log.find_partition(topic, 0)
        tiered = reader.offsets(partition, OffsetSpec.LATEST_TIERED)
        latest = reader.offsets(partition, OffsetSpec.MAX_TIMESTAMP)
        assert tiered is not None and latest is not None
        within = [each for each in consumed if each.offset <= tiered.offset]
        # Markers of transactions have the broker's time, and no consumer shows them.
        assert topic == TRANSACTIONS or latest.timestamp == max(each.timestamp for each in within)
        for asked in {each.timestamp for each in within[:: max(1, len(within) // 40)]}:
            found = reader.offsets(partition, asked)
            assert found is not None
            assert found.offset == _offset_of_the_broker(site, topic, asked)


def _offset_of_the_broker(site: NativeSite, topic: str, asked: int) -> int:
    """Return the broker's offset for a time that a record has: a busy one once answered that there is none."""
    offsets: list[int] = []

    def is_found() -> bool:
        offsets[:] = [site.kafka.client.offset_for_time(topic, 0, asked)]
        return offsets != [-1]

    wait_for(is_found, lambda: f"{topic}: the broker finds no offset for {asked}", WAIT_SECONDS)
    return offsets[0]


@pytest.mark.parametrize(("topic", "start"), [(PLAIN, 0), (TRIMMED, LOG_START)])
def test_the_log_start_is_the_brokers(site: NativeSite, topic: str, start: int) -> None:
    listed = site.run("offsets", topic, 0, "--json")
    below = site.run("read", topic, 0, "--offset", max(0, start - 1))

    assert listed.exit_code == 0, listed.err
    named = {row["of"]: row["offset"] for row in listed.rows}
    assert named["earliest"] == start
    assert named["latest"] == named["latest-tiered"] + 1
    assert below.exit_code == (1 if start else 0)


def test_kafkas_indexes_give_the_chunks_that_a_scan_gives(site: NativeSite) -> None:
    files = LocalTieredFiles(LocalDirectory(site.remote))
    with site.files.open() as remote_log:
        segments = [
            segment
            for partition in remote_log.context.segments.list_partitions()
            for segment in remote_log.context.segments.list_remote_log_segments(partition)
        ]
    assert len(segments) > 20
    for segment in segments:
        batches = _entries(scanned_indexes(segment, files, 1))
        for chunk in _entries(indexes_by_kafkas(segment, files, 5_000)):
            inside = [each for each in batches if chunk.position <= each.position < chunk.position + chunk.length]
            assert (inside[0].position, inside[0].first_offset) == (chunk.position, chunk.first_offset)
            assert (inside[-1].last_offset, max(each.last_timestamp for each in inside)) == (
                chunk.last_offset,
                chunk.last_timestamp,
            )


def test_both_tiers_are_read_from_a_stopped_broker(site: NativeSite, tmp_path: Path) -> None:
    consumed = [plain(each) for each in site.kafka.client.consume_all(PLAIN)]
    copied = tmp_path / "log-dir"
    with site.kafka.stopped() as log_dir:
        shutil.copytree(log_dir, copied)
    (copied / ".lock").unlink(missing_ok=True)
    files = RemoteLogFiles(
        tmp_path,
        properties={**site.files.properties, "log.dirs": [str(copied)], "rlmm.config.url": copied.as_uri()},
    )
    with files.open() as remote_log, BlockingLogReader(remote_log.open_log_reader()) as reader:
        partition = remote_log.find_partition(PLAIN, 0)
        assert [plain(each) for each in reader.records(partition, 0)] == consumed


def test_an_audit_finds_a_removed_and_a_damaged_object(site: NativeSite, tmp_path: Path) -> None:
    assert site.run("audit", "--deep").exit_code == 0
    damaged = tmp_path / "remote"
    shutil.copytree(site.remote, damaged)
    files = RemoteLogFiles(tmp_path, properties={**site.files.properties, "rsm.config.url": damaged.as_uri()})
    logs = sorted(damaged.rglob("*.log"))
    logs[0].unlink()
    flip_bit(logs[1], logs[1].stat().st_size // 2)
    (damaged / "stray").write_bytes(b"nobody's")
    lost = next(iter(sorted(damaged.rglob("*.txnindex"))))
    lost.unlink()

    quick, deep = run_on(files, "audit", "--json"), run_on(files, "audit", "--deep", "--json")

    assert (quick.exit_code, deep.exit_code) == (1, 1)
    assert _found(quick) == {("missing object", logs[0].name)}
    assert _found(deep) == {
        ("missing object", logs[0].name),
        ("wrong checksum", logs[1].name[21:43]),
        ("missing object", lost.stem[21:]),
    }


def test_a_topic_is_a_table(site: NativeSite, tmp_path: Path) -> None:
    consumed = site.kafka.client.consume_all(PLAIN)
    with site.files.open() as remote_log:
        plan = remote_log.tables.plan(TableQuery(PLAIN))
        ends = [each.end_offset for each in plan.ranges()]
        request = ExportRequest(TableQuery(PLAIN), Interval(0, FAR_FUTURE), (tmp_path / "table").as_uri())
        exported = carry_out(remote_log, request)
    table = pq.ParquetDataset([*(tmp_path / "table").rglob("*.parquet")]).read(["offset", "value"]).sort_by("offset")
    assert exported.rows == max(ends) + 1
    assert table.to_pydict() == {
        "offset": [each.offset for each in consumed[: max(ends) + 1]],
        "value": [each.value for each in consumed[: max(ends) + 1]],
    }


def test_a_topic_is_restored_into_a_directory(site: NativeSite, tmp_path: Path) -> None:
    planned = site.run("restore", PLAIN, "--dry-run", "--json")
    restored = site.run("restore", PLAIN, "--to-directory", tmp_path / "restored", "--json", "--validation", "records")

    assert (planned.exit_code, restored.exit_code) == (0, 0), planned.err + restored.err
    with site.files.open() as remote_log:
        [row] = restored.rows
        assert row["records"] == _tiered_records(site, remote_log)


def test_nothing_was_written(site: NativeSite) -> None:
    before = site.state()
    refused = mock.Mock(side_effect=AssertionError("a producer was opened"))
    with mock.patch.object(confluent_kafka, "Producer", refused):
        for looks, code in (("segments", 0), (f"read {PLAIN} 0", 0), ("audit", 0), ("plan", 1), ("copy", 1)):
            assert site.run(*looks.split()).exit_code == code
        for writes in (f"topics enable {PLAIN}", f"delete-topic {PLAIN}", "repair"):
            assert site.run(*writes.split()).exit_code == 1
    assert site.state() == before


def test_an_open_reader_sees_what_brokers_tier_later(site: NativeSite) -> None:
    client, topic = site.kafka.client, "growing"
    client.create_topic(topic, 1, TIERED)
    with site.files.open() as remote_log:
        segments = remote_log.context.segments
        assert topic not in {each.topic for each in segments.list_partitions()}
        client.produce(topic, varied_records(500, seed=3), batch_num_messages=50)
        wait_for(lambda: is_tiered(site.kafka, topic), lambda: "the broker did not tier", WAIT_SECONDS)
        [partition] = [each for each in segments.list_partitions() if each.topic == topic]
        assert segments.partition_state(partition).log_start_offset == 0
        assert segments.remote_log_segment_metadata(partition, 0) is not None


@pytest.mark.parametrize("command", [f"read {PLAIN} 0", "audit --deep", f"restore {PLAIN} --dry-run"])
def test_a_read_only_store_suffices(site: NativeSite, command: str) -> None:
    main = [sys.executable, "-c", "from tiered_storage.cli.main import main; main()"]
    mounted = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
    alone = ["unshare", "--mount", "sh", "-c", mounted, str(site.remote)]
    ensure_may_mount(subprocess.run([*alone, "true"], capture_output=True, text=True, check=False))
    write = subprocess.run([*alone, "touch", site.remote / "written"], capture_output=True, text=True, check=False)
    assert write.returncode != 0

    ended = subprocess.run(
        [*alone, *main, *command.split(), "--config", site.files.config], capture_output=True, text=True, check=False
    )

    assert ended.returncode == 0, ended.stderr


def _entries(trio: Mapping[IndexKind, bytes]) -> list[RemoteLogIndexEntry]:
    return list(iterate_entries(trio[IndexKind.REMOTE_LOG_INDEX], "a trio"))


def _found(audited: CommandResult) -> set[tuple[str, str]]:
    rows = json.loads(audited.out)["rows"]
    return {(row["kind"], row["what"].rpartition("/")[2].rpartition(":")[2]) for row in rows}


def _tiered_records(site: NativeSite, remote_log: RemoteLogManager) -> int:
    partition = remote_log.find_partition(PLAIN, 0)
    ends = [each.end_offset for each in remote_log.context.segments.list_remote_log_segments(partition)]
    return max(ends) + 1
