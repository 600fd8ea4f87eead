"""Log starts move while brokers are under load: ours takes remote segments with it, the brokers' takes none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from support.live_cluster import SMALL_SEGMENTS, CopyLoop, LiveSite, producer, wait_for
from support.remote_servers import RemoteServers
from tiered_storage.remote_log.model import RemoteLogSegmentId, SegmentState
from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader
from tiered_storage_airflow.demo_cluster.brokers import REQUEST_SECONDS
from tiered_storage_airflow.demo_cluster.ledger import Ledger

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

PARTITIONS = range(3)


def part_of(ledger: Ledger, path: Path, chosen: Callable[[int, int], bool]) -> Ledger:
    """Return a ledger, at `path`, of the records whose partition and offset are `chosen`."""
    part = Ledger(path)
    for key, place in ledger.acknowledged().items():
        if chosen(place.partition, place.offset):
            part.acknowledge(key, place)
    return part


def delete_remote_records(site: LiveSite, topic: str, before: Mapping[int, int]) -> None:
    """Move our log starts, as soon as no run has the partition."""
    for partition, offset in before.items():
        command = ("delete-records", topic, partition, "--before", offset)
        wait_for(partial(_succeeds, site, *command), partial(str, command))


def _succeeds(site: LiveSite, *command: object) -> bool:
    return site.run(*command).exit_code == 0


def segments(site: LiveSite) -> dict[RemoteLogSegmentId, tuple[int, int, int]]:
    """Return the partition, the start and the end offset (inclusive) of each finished remote segment."""
    with site.open() as remote_log:
        return {
            one.segment_id: (each.partition, one.start_offset, one.end_offset)
            for each in remote_log.segments.list_partitions()
            for one in remote_log.segments.list_remote_log_segments(each)
            if one.state is SegmentState.COPY_SEGMENT_FINISHED
        }


def remote_starts(site: LiveSite) -> dict[int, int]:
    """Return the log starts that readers see."""
    with site.open() as remote_log, BlockingLogReader(remote_log.open_log_reader()) as reader:
        return {each.partition: reader.view(each).log_start_offset for each in remote_log.segments.list_partitions()}


def test_our_log_start_takes_remote_segments_with_it_and_the_brokers_takes_none(
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
        assert remote_starts(site) == ours
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
        assert remote_starts(site) == ours

    assert {result.exit_code for result in (*runs.results, *runs.others["expire"])} == {0}
    site.catch_up()

    site.ensure_exactly_once(part_of(ledger, tmp_path / "kept.csv", lambda number, at: at >= ours[number]), topic)
