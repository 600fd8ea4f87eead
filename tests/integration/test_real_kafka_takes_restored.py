"""A real broker starts on its restored logs, serves all records, and appends to the logs (scenario 37).

In the cluster that wrote it, whose disk was lost, and in a fresh one, where the topic is created again.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from servers.kafka_programs import KafkaPrograms
from servers.real_kafka import RealKafka
from support.command_line import run_on
from support.kafka_clients import CODECS, Isolation, RealKafkaClient, send
from support.records import FIRST_TIMESTAMP, varied_records
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
MANY, TRANSACTIONS = 0, 1
PARTITIONS = 2
ROUNDS = 2
SMALL_SEGMENTS = {"internal.segment.bytes": "16384"}
ISOLATIONS: tuple[Isolation, ...] = ("read_uncommitted", "read_committed")
SENTINEL = Record(0, FIRST_TIMESTAMP, b"sentinel", b"written before the loss", (("header", b"\x00\xff"),))


@dataclass(frozen=True, slots=True)
class Lost:
    """A remote log of a broker's topic, and what the broker served of it, up to the end of what was copied."""

    files: RemoteLogFiles
    kafka: RealKafka
    served: dict[tuple[int, Isolation], list[Record]]

    def restore(self, log_dir: Path, *options: object) -> None:
        result = run_on(self.files, "restore", TOPIC, "--to-directory", log_dir, "--validation", "records", *options)
        assert result.exit_code == 0, result.err


def _write(client: RealKafkaClient, round_: int) -> None:
    """Write to both partitions; the second gets transactions, every other one aborted."""
    client.produce(TOPIC, varied_records(400, seed=round_), codec=CODECS[round_ % len(CODECS)], batch_num_messages=40)
    producer = client.producer(transactional_id="lost", max_in_flight=5)
    producer.init_transactions(30)
    for number in range(6):
        producer.begin_transaction()
        send(producer, TOPIC, TRANSACTIONS, varied_records(60, seed=10 * round_ + number))
        if number % 2:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)


def _served(client: RealKafkaClient, ends: dict[int, int]) -> dict[tuple[int, Isolation], list[Record]]:
    return {
        (number, isolation): [
            each for each in client.consume_all(TOPIC, number, isolation=isolation) if each.offset < ends[number]
        ]
        for number in range(PARTITIONS)
        for isolation in ISOLATIONS
    }


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
            _write(kafka.client, round_)
        kafka.client.produce(TOPIC, [SENTINEL])
        # The active segment is not copied: what is to come back must be in closed ones.
        for number in range(PARTITIONS):
            kafka.client.produce(TOPIC, varied_records(400, seed=99), partition=number, batch_num_messages=40)
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
        yield Lost(files, kafka, _served(kafka.client, ends))


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
    _is_served(lost, kafka)
    _goes_on(lost, kafka)


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
    _is_served(lost, fresh)
    _goes_on(lost, fresh)
    found = fresh.client.consume_all(TOPIC, MANY)
    assert replace(SENTINEL, offset=400 * ROUNDS) in found
    for timestamp in (found[3].timestamp, found[333].timestamp):
        first = next(each.offset for each in found if each.timestamp >= timestamp)
        assert fresh.client.offset_for_time(TOPIC, MANY, timestamp) == first


def test_a_broker_serves_what_a_later_leader_left(fresh: RealKafka) -> None:
    assert fresh.client.consume_all("orders") == records_after_later_leader()


def _is_served(lost: Lost, kafka: RealKafka) -> None:
    for (number, isolation), records in lost.served.items():
        assert kafka.client.consume_all(TOPIC, number, isolation=isolation) == records, (number, isolation)


def _goes_on(lost: Lost, kafka: RealKafka) -> None:
    """New records and transactions follow what was restored, also of producers whose ids the old log has."""
    before = lost.served[TRANSACTIONS, "read_committed"]
    _write(kafka.client, 7)
    found = kafka.client.consume_all(TOPIC, TRANSACTIONS, isolation="read_committed")
    assert found[: len(before)] == before
    assert len(found) == len(before) + 3 * 60
    many = kafka.client.consume_all(TOPIC, MANY)
    assert len(many) == len(lost.served[MANY, "read_uncommitted"]) + 400
