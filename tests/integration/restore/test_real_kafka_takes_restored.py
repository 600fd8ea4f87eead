"""A real broker starts on its restored logs, serves all records, and appends to the logs (scenario 37).

In the cluster that wrote it, whose disk was lost, and in a fresh one, where the topic is created again.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from integration.lost_topics import MANY, PARTITIONS, ROUNDS, ServedTopic, write_rest, write_round
from servers.kafka_programs import KafkaPrograms
from servers.real_kafka import RealKafka
from support.command_line import run_on
from support.records import FIRST_TIMESTAMP
from support.remote_logs import (
    RemoteLogFiles,
    a_copied_remote_log,
    append_as_later_leader,
    copy,
    records_after_later_leader,
)
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import LEADER_EPOCH_CHECKPOINT, read_leader_epochs
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage.kafka_log.records.record import Record

TOPIC = "lost"
SMALL_SEGMENTS = {"internal.segment.bytes": "16384"}
SENTINEL = Record(0, FIRST_TIMESTAMP, b"sentinel", b"written before the loss", (("header", b"\x00\xff"),))


@dataclass(frozen=True, slots=True)
class Lost:
    """A remote log of a broker's topic, and what the broker served of it."""

    files: RemoteLogFiles
    kafka: RealKafka
    topic: ServedTopic

    def restore(self, log_dir: Path, *options: object) -> None:
        result = run_on(self.files, "restore", TOPIC, "--to-directory", log_dir, "--validation", "records", *options)
        assert result.exit_code == 0, result.err


@pytest.fixture(scope="module")
def lost(kafka_programs: KafkaPrograms, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lost]:
    """A broker whose topic was written under several leader epochs and copied."""
    root = tmp_path_factory.mktemp("lost")
    with RealKafka(kafka_programs, root / "broker") as kafka:
        kafka.client.create_topic(TOPIC, PARTITIONS, SMALL_SEGMENTS)
        for round_ in range(ROUNDS):
            if round_:
                with kafka.stopped():
                    pass  # another leader epoch
            write_round(kafka.client, TOPIC, round_)
        kafka.client.produce(TOPIC, [SENTINEL])
        write_rest(kafka.client, TOPIC)
        files = RemoteLogFiles(root, properties={
            "log.dirs": [str(kafka.log_dir)], "topics": {TOPIC: {"remote.storage.enable": True}},
        })  # fmt: skip
        with kafka.stopped(), files.open() as remote_log:
            report = copy(remote_log)
            assert report.is_whole
        ends = dict.fromkeys(range(PARTITIONS), 0)
        for segment in report.committed:
            number = segment.topic_id_partition.partition
            ends[number] = max(ends[number], segment.end_offset + 1)
        yield Lost(files, kafka, ServedTopic.by(kafka.client, TOPIC, ends))


def test_the_cluster_that_lost_it_gets_it_back(lost: Lost) -> None:
    kafka = lost.kafka
    with kafka.stopped() as log_dir:
        epochs = read_leader_epochs(log_dir / f"{TOPIC}-0" / LEADER_EPOCH_CHECKPOINT)
        restarts = [
            epoch.start_offset for epoch in read_leader_epochs(log_dir / f"{TOPIC}-1" / LEADER_EPOCH_CHECKPOINT)[1:]
        ]
        files_before = {path.name: path.read_bytes() for path in (log_dir / f"{TOPIC}-1").glob("*.*")}
        for number in range(PARTITIONS):
            shutil.rmtree(log_dir / f"{TOPIC}-{number}")
        lost.restore(log_dir)
        restored = list_segments(log_dir / f"{TOPIC}-1")[:-1]
        assert len(restored) > 3
        for segment, end in zip(restored, [*(each.base_offset for each in restored[1:]), None], strict=True):
            paths = [segment.log_path, segment.offset_index_path, segment.time_index_path]
            # A broker that starts again counts the bytes up to its next index entry from 0; we build ours in one go.
            if any(segment.base_offset < restart and (end is None or restart < end) for restart in restarts):
                paths = [segment.log_path]
            for path in paths:
                assert path.read_bytes() == files_before[path.name], path.name
        assert any(segment.has_transaction_index() for segment in restored)
        found = read_leader_epochs(log_dir / f"{TOPIC}-0" / LEADER_EPOCH_CHECKPOINT)
        assert len(found) >= ROUNDS and epochs[: len(found)] == found
    lost.topic.ensure_served(kafka.client)
    lost.topic.ensure_continues(kafka.client)


@pytest.fixture(scope="module")
def fresh(lost: Lost, kafka_programs: KafkaPrograms, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    """Another cluster, with both topics created again and then restored."""
    root = tmp_path_factory.mktemp("fresh")
    orders = a_copied_remote_log(root / "remote-log")
    append_as_later_leader(orders)
    with RealKafka(kafka_programs, root / "broker") as kafka:
        kafka.client.create_topic(TOPIC, PARTITIONS, SMALL_SEGMENTS)
        kafka.client.create_topic("orders")
        with kafka.stopped() as log_dir:
            lost.restore(log_dir)
            assert run_on(orders, "restore", "orders", "--to-directory", log_dir).exit_code == 0
            # What a restore leaves that dies: the broker takes it for a partition to be removed.
            left_over = log_dir / "orders-0.restoring-delete"
            left_over.mkdir()
            (left_over / f"{0:020d}.log").write_bytes(b"half a batch")
        yield kafka


def test_a_fresh_cluster_gets_it_under_a_topic_of_its_own(lost: Lost, fresh: RealKafka) -> None:
    lost.topic.ensure_served(fresh.client)
    lost.topic.ensure_continues(fresh.client)
    found = fresh.client.consume_all(TOPIC, MANY)
    assert replace(SENTINEL, offset=400 * ROUNDS) in found
    for timestamp in (found[3].timestamp, found[333].timestamp):
        first = next(each.offset for each in found if each.timestamp >= timestamp)
        assert fresh.client.offset_for_time(TOPIC, MANY, timestamp) == first


def test_a_broker_serves_what_a_later_leader_left(fresh: RealKafka) -> None:
    assert fresh.client.consume_all("orders") == records_after_later_leader()
