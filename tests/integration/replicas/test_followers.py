"""A follower of real brokers whose older records are remote (scenario 28); a broker takes its directory over."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from servers.kafka_programs import KafkaPrograms
from servers.real_kafka import RealKafka
from support.live_sites import LONG, SMALL_SEGMENTS, LiveSite, finished, log_content, log_start
from support.records import varied_records
from support.waiting import wait_for
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import read_leader_epochs
from tiered_storage.kafka_log.files.log_segment import producer_snapshot_path
from tiered_storage.kafka_log.producers.producer_snapshot import read_producer_snapshot
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata

SECONDS = 60


def _follow(site: LiveSite, directory: Path, *options: object) -> dict[str, int]:
    result = site.run("follow", site.topics[0], 0, "--directory", directory, "--json", *options)
    assert result.exit_code == 0, result.err
    [row] = result.rows
    return row


def _copied_and_trimmed(site: LiveSite) -> int:
    """Copy what is closed, and let the broker delete all of it but the last segment; return where its log begins."""
    copied = site.copied()
    while more := site.copied():
        copied += more
    trimmed = copied[-1][0]
    site.kafka.client.delete_records(site.topics[0], 0, before=trimmed)
    assert log_start(site.kafka, site.topics[0]) == trimmed
    return trimmed


@dataclass(frozen=True, slots=True)
class _LocalSite(LiveSite):
    """The same remote log over a log directory, which `settings` name."""

    def written(self, usual: Mapping[str, Any]) -> Path:
        path = self.root / "local.yaml"
        topics = {topic: {"remote.storage.enable": True} for topic in self.topics}
        path.write_text(
            yaml.safe_dump({"state.directory": str(self.root / "state"), "topics": topics, **usual, **self.settings})
        )
        return path


def _over(site: LiveSite, directory: Path) -> LiveSite:
    return _LocalSite(site.kafka, site.root, site.topics, {"log.dirs": [str(directory)]})


def test_a_follower_holds_local_records_reads_remote_ones_and_copies(site: LiveSite, tmp_path: Path) -> None:
    [topic], client = site.topics, site.kafka.client
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    sent = client.produce(topic, varied_records(500, seed=1), batch_num_messages=20, enable_idempotence="true")
    trimmed = _copied_and_trimmed(site)
    directory = tmp_path / "follower"

    row = _follow(site, directory)

    assert (row["log_start"], row["local_start"], row["end_offset"]) == (0, trimmed, len(sent))
    assert log_content(directory, topic, trimmed) == log_content(site.kafka.log_dir, topic, trimmed)
    snapshot = producer_snapshot_path(directory / f"{topic}-0", trimmed)
    theirs = producer_snapshot_path(site.kafka.log_dir / f"{topic}-0", trimmed)
    assert read_producer_snapshot(snapshot) == read_producer_snapshot(theirs) != ()
    assert read_leader_epochs(directory / f"{topic}-0" / "leader-epoch-checkpoint")[0].start_offset == 0

    sent += client.produce(topic, varied_records(500, seed=2), batch_num_messages=20)
    assert _follow(site, directory)["local_start"] == trimmed
    over = _over(site, directory)
    read = over.run("read", topic, 0, "--offset", 0, "--end-offset", len(sent), "--json")
    assert len(read.out.splitlines()) == len(sent), read.err
    before = [(each.start_offset, each.end_offset) for each in _remote(site)]
    copied = over.copied()
    assert copied[0][0] == before[-1][1] + 1
    every = [*before, *copied]
    assert [start for start, _ in every] == [0, *(end + 1 for _, end in every[:-1])]
    over.audited()


def _remote(site: LiveSite) -> list[RemoteLogSegmentMetadata]:
    with site.open() as remote_log:
        return list(finished(remote_log))


def test_what_was_lost_comes_back_from_the_last_remote_offset(site: LiveSite, tmp_path: Path) -> None:
    [topic], client = site.topics, site.kafka.client
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    client.produce(topic, varied_records(500, seed=3), batch_num_messages=20)
    while site.copied():
        pass
    last = LiveSite(site.kafka, site.root, site.topics, {"follower.fetch.last.tiered.offset.enable": True})

    row = _follow(last, tmp_path / "follower")

    assert row["local_start"] == _remote(site)[-1].end_offset + 1
    assert row["fetched_bytes"] == len(log_content(site.kafka.log_dir, topic, row["local_start"]))


@pytest.mark.nightly
def test_a_broker_that_lost_its_disk_takes_the_directory_over_and_leads(
    kafka_programs: KafkaPrograms, tmp_path: Path
) -> None:
    topic = "orders"
    with RealKafka(kafka_programs, tmp_path / "leader") as leader:
        lost = leader.another(2, tmp_path / "lost")
        site = LiveSite(leader, tmp_path, (topic,))
        with lost:
            leader.client.create_topic(topic, 1, SMALL_SEGMENTS | LONG, replicas=[[2, 1]])
            leader.client.produce(topic, varied_records(500, seed=1), batch_num_messages=20)
        trimmed = _copied_and_trimmed(site)
        shutil.rmtree(lost.log_dir / f"{topic}-0")
        row = _follow(site, lost.log_dir)
        assert row["local_start"] == trimmed
        with lost:
            leader.client.elect_preferred(topic)
            lost.client.produce(topic, varied_records(500, seed=2), batch_num_messages=20)
            assert site.copied()
            wait_for(
                lambda: log_content(lost.log_dir, topic, trimmed) == log_content(leader.log_dir, topic, trimmed),
                seconds=SECONDS,
            )
            remote = [(each.start_offset, each.end_offset) for each in _remote(site)]
            assert [start for start, _ in remote] == [0, *(end + 1 for _, end in remote[:-1])]
            end = remote[-1][1] + 1
            assert trimmed < row["end_offset"] < end
            read = site.run("read", topic, 0, "--offset", 0, "--end-offset", end, "--json")
            assert len(read.out.splitlines()) == end
            site.audited()
