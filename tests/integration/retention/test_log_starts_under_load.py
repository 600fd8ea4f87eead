"""Log starts move while brokers are under load: ours and the brokers' (scenario 19), and past a store's outage (18)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType  # type: ignore[attr-defined]

from integration.remote_servers import RemoteServers
from support.command_line import mentions
from support.live_cluster import SMALL_SEGMENTS, CopyLoop, LiveCluster, part_of, producer, rows_of
from support.waiting import wait_for
from tiered_storage.remote_log.model import RemoteLogSegmentId
from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader
from tiered_storage_airflow.demo_cluster.brokers import REQUEST_SECONDS, BrokerCluster
from tiered_storage_airflow.demo_cluster.ledger import Ledger, Place, Tier, judge, read_local

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

PARTITIONS = range(3)
NAMED = "before they were copied"
RETENTION_MS = 5_000
"""The brokers' own, shorter than an outage."""


def delete_remote_records(site: LiveCluster, topic: str, before: Mapping[int, int]) -> None:
    """Move global log starts, as soon as no run has the partition."""
    for partition, offset in before.items():
        command = ("delete-records", topic, partition, "--before", offset)
        wait_for(partial(_succeeds, site, *command), partial(str, command))


def _succeeds(site: LiveCluster, *command: object) -> bool:
    return site.run(*command).exit_code == 0


def segments(site: LiveCluster) -> dict[RemoteLogSegmentId, tuple[int, int, int]]:
    """Return the partition, the start and the end offset (inclusive) of each finished remote segment."""
    return {
        one.segment_id: (one.topic_id_partition.partition, one.start_offset, one.end_offset) for one in site.finished()
    }


def set_retention(brokers: BrokerCluster, topic: str, retention_ms: int) -> None:
    """Let the brokers delete records of a topic by themselves once they are older; -1: never."""
    entry = ConfigEntry("retention.ms", str(retention_ms), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = brokers.admin()
    for each in admin.incremental_alter_configs([resource]).values():
        each.result(REQUEST_SECONDS)


def test_the_global_log_start_takes_remote_segments_with_it_and_the_brokers_takes_none(
    remote_servers: RemoteServers, tmp_path: Path
) -> None:
    topic, ledger, brokers = "log-starts", Ledger(tmp_path / "ledger.csv"), remote_servers.brokers
    brokers.create_topic(topic, 3, SMALL_SEGMENTS)
    allowed = {topic: {"remote.storage.enable": True, "remote.deletion.allowed": True}}
    site = remote_servers.site(tmp_path, topic, {"topics": allowed})
    with CopyLoop(site, "expire") as runs, producer(site, topic, ledger):
        runs.wait_for_segments(12)
        ours = {partition: end // 2 for partition, end in site.remote_ends().items()}
        below = {found for found, (partition, _, end) in segments(site).items() if end < ours[partition]}
        assert below
        delete_remote_records(site, topic, ours)
        assert site.remote_starts() == ours
        wait_for(lambda: below.isdisjoint(segments(site)), lambda: str(runs.others["expire"][-2:]))
        assert site.log_starts(topic) == dict.fromkeys(PARTITIONS, 0)

        kept, theirs = segments(site), {partition: end - 1 for partition, end in site.remote_ends().items()}
        asked = [TopicPartition(topic, partition, offset) for partition, offset in theirs.items()]
        admin = brokers.admin()
        for each in admin.delete_records(asked).values():
            each.result(REQUEST_SECONDS)
        assert site.log_starts(topic) == theirs
        later = len(runs.others["expire"]) + 1
        runs.wait_for_segments(3)
        wait_for(lambda: len(runs.others["expire"]) > later, lambda: str(runs.others["expire"][-2:]))
        assert kept.keys() <= segments(site).keys()
        assert site.remote_starts() == ours

    assert {result.exit_code for result in (*runs.results, *runs.others["expire"])} == {0}
    site.catch_up()

    site.ensure_exactly_once(part_of(ledger, tmp_path / "kept.csv", lambda number, at: at >= ours[number]), topic)


def test_only_what_brokers_expired_in_an_outage_of_the_store_is_lost_and_named(
    remote_servers: RemoteServers, tmp_path: Path
) -> None:
    topic, ledger, brokers = "expired-in-an-outage", Ledger(tmp_path / "ledger.csv"), remote_servers.brokers
    brokers.create_topic(topic, 3, SMALL_SEGMENTS)
    trimmed = {topic: {"remote.storage.enable": True, "local.deletion.allowed": True, "local.retention.ms": 1}}
    site = remote_servers.site(tmp_path, topic, {"topics": trimmed, "enable.min.retention.margin.ms": 0})
    with CopyLoop(site, "retain") as runs, producer(site, topic, ledger):
        runs.wait_for_trims(3)
        remote_servers.s3.kill()
        written = {place.partition: place.offset + 1 for place in ledger.acknowledged().values()}
        # The brokers delete what is past their retention, and was never copied.
        set_retention(brokers, topic, RETENTION_MS)
        wait_for(lambda: _all_above(site.log_starts(topic), written), lambda: str(site.log_starts(topic)), 300)
        remote_servers.s3.start()
        wait_for(lambda: NAMED in runs.results[-1].err, lambda: str(runs.results[-2:]))
        named = next(result.err for result in runs.results if NAMED in result.err)
        ends = site.remote_ends()
        for number, end in ends.items():
            assert mentions(named, f"{topic}-{number}: ", f" deleted offsets {end} to "), named
        trims = [row for result in runs.others["retain"] for row in rows_of(result) if row["segments"]]
        assert all(row["new_local_start"] <= ends[int(row["partition"].rpartition("-")[2])] for row in trims)

        # A person decides, and lengthens the retention.
        set_retention(brokers, topic, -1)
        site = replace(site, settings={**site.settings, "copy.over.gaps": True}).write()
        runs.wait_for_trims(3)
    site.catch_up()

    found = segments(site).values()
    starts = {
        number: min(start for of, start, _ in found if of == number and start >= end) for number, end in ends.items()
    }
    remote = read_around_gaps(site, ends, starts)
    local = read_local({"bootstrap.servers": brokers.bootstrap_servers}, [topic])
    in_gaps = part_of(ledger, tmp_path / "gaps.csv", lambda number, at: ends[number] <= at < starts[number])
    counts = judge(ledger.acknowledged(), remote, local)[topic]
    assert counts.lost == len(in_gaps) > 0
    assert counts.twice == 0
    audit = site.run("audit", "--deep", "--json")
    gaps = {f"offsets {end} to {starts[number] - 1} are in no segment" for number, end in ends.items()}
    assert {row["message"] for row in audit.rows} == gaps, audit.out

    # Nobody waits for them any more.
    assert site.run("topics", "allow-deletion", topic, "--only", "remote").exit_code == 0
    delete_remote_records(site, topic, starts)
    site.ensure_exactly_once(part_of(ledger, tmp_path / "kept.csv", lambda number, at: at >= starts[number]), topic)


def read_around_gaps(site: LiveCluster, ends: Mapping[int, int], starts: Mapping[int, int]) -> Tier:
    """Read the remote tier up to where the gap of each partition begins (`ends`), and from where it ends (`starts`)."""
    found: dict[Place, list[bytes]] = {}
    with site.open() as remote_log, BlockingLogReader(remote_log.open_log_reader()) as reader:
        for each in remote_log.context.segments.list_partitions():
            snapshot, number = reader.snapshot(each), each.partition
            for start, end in ((snapshot.log_start_offset, ends[number]), (starts[number], snapshot.remote_end)):
                for record in reader.records(each, start, end_offset=end):
                    found.setdefault(Place(each.topic, number, record.offset), []).append(record.key or b"")
    return found


def _all_above(starts: Mapping[int, int], bounds: Mapping[int, int]) -> bool:
    return len(starts) == len(PARTITIONS) and all(start > bounds[number] for number, start in starts.items())
