"""What LocalLog writes is what Kafka reads: its tool accepts the files, a broker serves them and goes on in them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pytest

from support.kafka_programs import KafkaPrograms, RealKafkaError
from support.real_kafka import RealKafka
from support.real_kafka_client import CODECS
from support.transactions import committed_offsets, split
from support.varied_records import FIRST_TIMESTAMP, varied_records
from tiered_storage.kafka_log.compression import Compression
from tiered_storage.kafka_log.control_record import ControlRecordType
from tiered_storage.kafka_log.kafka_uuid import random_uuid
from tiered_storage.kafka_log.local_log import LocalLog
from tiered_storage.kafka_log.log_config import LogConfig
from tiered_storage.kafka_log.log_read import Isolation
from tiered_storage.kafka_log.producer_snapshot import read_producer_snapshot
from tiered_storage.kafka_log.record import Record
from tiered_storage.kafka_log.transaction_index import TransactionIndex

TOPIC = "written-by-us"
TRANSACTIONS = "transactions-by-us"
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


def _write_transactions(log_dir: Path, topic_id: str) -> Path:
    """Write a partition whose transactions, some aborted, reach over segments; the last one stays open."""
    with LocalLog.create(log_dir, TRANSACTIONS, 0, topic_id, CONFIG, clock=lambda: FIRST_TIMESTAMP) as log:
        sequences = dict.fromkeys(range(7000, 7003), 0)
        for turn in range(60):
            producer_id = 7000 + turn % 3
            batch = [replace(record, offset=0) for record in varied_records(20, seed=turn)]
            log.append(
                batch,
                Compression(turn % 5),
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=sequences[producer_id],
                is_transactional=producer_id < 7002,
            )
            sequences[producer_id] += len(batch)
            if turn % 10 == 9:
                kind = ControlRecordType.ABORT if turn % 20 == 9 else ControlRecordType.COMMIT
                log.append_end_marker(7000 + turn // 10 % 2, 0, kind, coordinator_epoch=turn)
    return log.directory


def _transactional_records(directory: Path, isolation: Isolation) -> list[Record]:
    """What a client gets of the partition, by our own reading."""
    found: list[Record] = []
    with LocalLog.open(directory, CONFIG) as log:
        offset = 0
        while (fetched := log.fetch(offset, 100_000, isolation)).batches:
            kept = set(committed_offsets(fetched.batches, fetched.aborted, offset))
            for header, records in split(fetched.batches):
                found += [record for record in records if record.offset in kept]
                offset = header.next_offset
    return found


def _append(log: LocalLog, records: list[Record], compression: Compression) -> None:
    for first in range(0, len(records), RECORDS_IN_A_BATCH):
        log.append(records[first : first + RECORDS_IN_A_BATCH], compression)


def _records(number: int) -> list[Record]:
    return list(varied_records(RECORDS, seed=number))


@pytest.fixture(scope="module")
def dumped(kafka_programs: KafkaPrograms, tmp_path_factory: pytest.TempPathFactory) -> dict[Path, str]:
    """What Kafka's DumpLogSegments says of each of our files."""
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
        _write_transactions(written, kafka.client.create_topic(TRANSACTIONS, 1, {"internal.segment.bytes": "16384"}))
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


def test_kafkas_tool_finds_our_aborts_and_producers(kafka_programs: KafkaPrograms, tmp_path: Path) -> None:
    directory = _write_transactions(tmp_path, random_uuid())
    paths = sorted(path for path in directory.iterdir() if path.suffix in (".txnindex", ".snapshot", ".log"))
    dumped = kafka_programs.dump_log_segments(paths)

    for path in paths:
        if path.suffix == ".txnindex":
            aborted = [
                f"version: 0 producerId: {entry.producer_id} firstOffset: {entry.first_offset} "
                f"lastOffset: {entry.last_offset} lastStableOffset: {entry.last_stable_offset}"
                for entry in TransactionIndex.read(path, int(path.stem)).transactions
            ]
            assert dumped[path].splitlines() == aborted
        elif path.suffix == ".snapshot":
            for entry, line in zip(read_producer_snapshot(path), dumped[path].splitlines(), strict=True):
                assert f"producerId: {entry.producer_id} producerEpoch: {entry.producer_epoch} " in line
                first = entry.current_transaction_first_offset
                transaction = "OptionalLong.empty" if first == -1 else f"OptionalLong[{first}]"
                assert f"currentTxnFirstOffset: {transaction} " in line
                assert f"lastSequence: {entry.last_sequence} lastOffset: {entry.last_offset} " in line
    markers = [line for path in paths for line in dumped[path].splitlines() if "endTxnMarker" in line]
    assert [("ABORT" in line, "coordinatorEpoch: 9" in line) for line in markers][:2] == [(True, True), (False, False)]
    assert len(markers) == 6
    assert sum(path.suffix == ".txnindex" for path in paths) > 1


@pytest.mark.parametrize(
    ("isolation", "ours"),
    [("read_uncommitted", Isolation.READ_UNCOMMITTED), ("read_committed", Isolation.READ_COMMITTED)],
)
def test_a_broker_serves_our_transactions(
    served: ServedByBroker, tmp_path: Path, isolation: Literal["read_uncommitted", "read_committed"], ours: Isolation
) -> None:
    copy = shutil.copytree(served.written / f"{TRANSACTIONS}-0", tmp_path / f"{TRANSACTIONS}-0")
    expected = _transactional_records(copy, ours)

    assert served.kafka.client.consume_all(TRANSACTIONS, isolation=isolation) == expected
    assert (len(expected) == 1200) == (ours is Isolation.READ_UNCOMMITTED)
    assert len(expected) > 300


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


@pytest.mark.parametrize("start", [1, 777, RECORDS - 1, RECORDS])
def test_a_broker_finds_offsets_by_our_index(served: ServedByBroker, start: int) -> None:
    assert served.kafka.client.consume_all(TOPIC, 4, start=start) == _records(4)[start:]


@pytest.mark.parametrize("elapsed", [-1000, 1, 4321, 12_000, 20_000])
def test_a_broker_finds_times_by_our_index(served: ServedByBroker, elapsed: int) -> None:
    timestamp = FIRST_TIMESTAMP + elapsed
    first = next((record.offset for record in _records(0) if record.timestamp >= timestamp), -1)
    assert served.kafka.client.offset_for_time(TOPIC, 0, timestamp) == first


def test_a_broker_goes_on_in_our_log_and_leaves_its_files_as_they_are(served: ServedByBroker) -> None:
    more = [replace(record, offset=RECORDS + record.offset) for record in varied_records(400, seed=42)]
    client = served.kafka.client
    assert client.produce(TOPIC, more, partition=2, codec="zstd", batch_num_messages=40) == more
    assert client.consume_all(TOPIC, 2) == _records(2) + more
    with served.kafka.stopped() as log_dir:
        for ours in _closed_files(served.written):
            assert (log_dir / ours.parent.name / ours.name).read_bytes() == ours.read_bytes()
        with LocalLog.open(log_dir / f"{TOPIC}-2", CONFIG) as log:
            assert log.log_end_offset == RECORDS + len(more)
            assert [entry.start_offset for entry in log.leader_epochs] == [0, RECORDS]


def _closed_files(log_dir: Path) -> list[Path]:
    """The files of closed segments, which nobody changes any more."""
    closed = []
    for directory in log_dir.iterdir():
        bases = sorted(path.stem for path in directory.glob("*.log"))
        closed += [path for path in directory.glob("*.*") if path.stem in bases[:-1]]
    return closed
