"""What LocalLog writes is what Kafka reads: its tool accepts the files, a broker serves them and appends to them.

Producers and their transactions are in test_real_kafka_takes_local_transactions.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from integration.java_consumer import consume_with_java, java_lines
from integration.kafka_log.closed_files import closed_files
from servers.kafka_programs import KafkaPrograms, RealKafkaError
from servers.real_kafka import RealKafka
from support.kafka_clients import CODECS
from support.records import FIRST_TIMESTAMP, varied_records
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.records.compression import Compression
from tiered_storage.kafka_log.records.record import Record

TOPIC = "written-by-us"
RECORDS = 1500
RECORDS_IN_A_BATCH = 40
BATCHES = -(-RECORDS // RECORDS_IN_A_BATCH)
CONFIG = LogConfig(segment_bytes=16_384)


@dataclass(frozen=True, slots=True)
class ServedByBroker:
    """A running broker on the logs that we wrote, and the logs as they were before it had them."""

    kafka: RealKafka
    written: Path


def _write_logs(log_dir: Path, topic_id: str) -> None:
    """Write one partition for each codec; the second half of each under a later opening of the log."""
    for number in range(len(CODECS)):
        records = _records(number)
        half = BATCHES // 2 * RECORDS_IN_A_BATCH
        with LocalLog.create(log_dir, TOPIC, number, topic_id, CONFIG) as log:
            _append(log, records[:half], Compression(number))
        with LocalLog.open(log.directory, CONFIG) as log:
            _append(log, records[half:], Compression(number))


def _append(log: LocalLog, records: list[Record], compression: Compression) -> None:
    for first in range(0, len(records), RECORDS_IN_A_BATCH):
        log.append(records[first : first + RECORDS_IN_A_BATCH], compression)


def _records(number: int) -> list[Record]:
    return list(varied_records(RECORDS, seed=number))


@pytest.fixture(scope="module")
def dumped(kafka_programs: KafkaPrograms, tmp_path_factory: pytest.TempPathFactory) -> dict[Path, str]:
    """The output of Kafka's DumpLogSegments for each of our files."""
    log_dir = tmp_path_factory.mktemp("dumped")
    _write_logs(log_dir, random_uuid())
    suffixes = {".log", ".index", ".timeindex", ".snapshot"}
    return kafka_programs.dump_log_segments(sorted(path for path in log_dir.glob("*/*") if path.suffix in suffixes))


@pytest.fixture(scope="module")
def served(kafka_programs: KafkaPrograms, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedByBroker]:
    written = tmp_path_factory.mktemp("written-by-us")
    with RealKafka(kafka_programs, tmp_path_factory.mktemp("serving")) as kafka:
        topic_id = kafka.client.create_topic(TOPIC, len(CODECS), {"internal.segment.bytes": "16384"})
        _write_logs(written, topic_id)
        with kafka.stopped() as log_dir:
            for directory in written.glob("*-*"):
                shutil.rmtree(log_dir / directory.name)
                shutil.copytree(directory, log_dir / directory.name)
        yield ServedByBroker(kafka, written)


def test_kafkas_tool_finds_every_batch_valid(dumped: dict[Path, str]) -> None:
    logs = [text for path, text in dumped.items() if path.suffix == ".log"]
    assert len(logs) > 2 * len(CODECS)
    batches = [line for text in logs for line in text.splitlines() if line.startswith("baseOffset: ")]
    assert len(batches) == BATCHES * len(CODECS)
    assert all(line.endswith("isvalid: true") for line in batches)
    assert sum(text.count("| offset: ") for text in logs) == RECORDS * len(CODECS)


def test_kafkas_tool_finds_indexes_true_to_their_logs(dumped: dict[Path, str]) -> None:
    logs = [path for path in dumped if path.suffix == ".log"]
    assert sum(dumped[log.with_suffix(".index")].count("offset: ") for log in logs) > len(logs)
    assert all(dumped[log.with_suffix(".timeindex")].count("timestamp: ") > 0 for log in logs)


def test_kafkas_tool_finds_no_producers_in_our_snapshots(dumped: dict[Path, str]) -> None:
    snapshots = [path for path in dumped if path.suffix == ".snapshot"]
    assert len(snapshots) > len(CODECS)
    assert {dumped[path] for path in snapshots} == {""}


def test_kafkas_tool_finds_a_wrong_entry_in_an_index(kafka_programs: KafkaPrograms, tmp_path: Path) -> None:
    with LocalLog.create(tmp_path, TOPIC, 0, random_uuid()) as log:
        _append(log, _records(0), Compression.NONE)
    index = log.segments[0].offset_index_path
    content = index.read_bytes()
    index.write_bytes((int.from_bytes(content[:4], "big") - 1).to_bytes(4, "big") + content[4:])
    with pytest.raises(RealKafkaError, match="Mismatches in"):
        kafka_programs.dump_log_segments([index])


def test_a_broker_serves_every_record(served: ServedByBroker) -> None:
    for number in range(len(CODECS)):
        assert served.kafka.client.consume_all(TOPIC, number) == _records(number), CODECS[number]


def test_java_gets_every_record_of_every_codec(served: ServedByBroker) -> None:
    found = consume_with_java(served.kafka, TOPIC, most=RECORDS * len(CODECS))
    for number in range(len(CODECS)):
        lines = [line for line in found if f"\tPartition:{number}\t" in line]
        assert lines == java_lines(_records(number), number), CODECS[number]


@pytest.mark.parametrize("start", [1, 777, RECORDS - 1, RECORDS])
def test_a_broker_finds_offsets_by_our_index(served: ServedByBroker, start: int) -> None:
    assert served.kafka.client.consume_all(TOPIC, 4, start=start) == _records(4)[start:]


@pytest.mark.parametrize("elapsed", [-1000, 1, 4321, 12_000, 20_000])
def test_a_broker_finds_times_by_our_index(served: ServedByBroker, elapsed: int) -> None:
    timestamp = FIRST_TIMESTAMP + elapsed
    first = next((record.offset for record in _records(0) if record.timestamp >= timestamp), -1)
    assert served.kafka.client.offset_for_time(TOPIC, 0, timestamp) == first


def test_a_broker_continues_in_our_log_and_leaves_its_files_as_they_are(served: ServedByBroker) -> None:
    more = [replace(record, offset=RECORDS + record.offset) for record in varied_records(400, seed=42)]
    client = served.kafka.client
    assert client.produce(TOPIC, more, partition=2, codec="zstd", batch_num_messages=40) == more
    assert client.consume_all(TOPIC, 2) == _records(2) + more
    with served.kafka.stopped() as log_dir:
        for ours in closed_files(served.written):
            assert (log_dir / ours.parent.name / ours.name).read_bytes() == ours.read_bytes()
        with LocalLog.open(log_dir / f"{TOPIC}-2", CONFIG) as log:
            assert log.log_end_offset == RECORDS + len(more)
            assert [entry.start_offset for entry in log.leader_epochs] == [0, RECORDS]
