"""A real broker starts from logs that LocalLog wrote, with transactions, and serves all of them to its clients.

librdkafka and Java's console consumer read them, read_committed and not; and when the broker has to recover the logs,
what it builds is what LocalLog had written.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from support.local_logs import read_all
from support.real_kafka import RealKafka
from support.real_kafka_client import Isolation, send
from support.varied_records import FIRST_TIMESTAMP, varied_records
from tiered_storage.kafka_log.batch_header import TimestampType
from tiered_storage.kafka_log.compression import Compression
from tiered_storage.kafka_log.control_record import ControlRecordType
from tiered_storage.kafka_log.leader_epoch_checkpoint import LEADER_EPOCH_CHECKPOINT
from tiered_storage.kafka_log.local_log import LocalLog
from tiered_storage.kafka_log.log_config import LogConfig
from tiered_storage.kafka_log.offset_checkpoint import RECOVERY_POINT_CHECKPOINT
from tiered_storage.kafka_log.record import Record
from tiered_storage.kafka_log.record_batch import encode_batch

TOPIC = "our-transactions"
ENDED, UNFINISHED, APPEND_TIME = 0, 1, 2
PARTITIONS = 3
SEGMENT_BYTES = 16_384
RECORDS_IN_A_BATCH = 20
ROUNDS = 12
FIRST, SECOND = 5001, 5002

COMMIT, ABORT = ControlRecordType.COMMIT, ControlRecordType.ABORT


class Writer:
    """Appends to a log in transactions and keeps in mind what readers have to get."""

    def __init__(self, log: LocalLog, seed: int) -> None:
        self.log = log
        self.records: list[Record] = []
        self.aborted: set[int] = set()
        self._seed = seed
        self._sequences: dict[int, int] = {}
        self._open: dict[int, list[int]] = {}

    def send(self, producer_id: int | None = None, compression: Compression = Compression.NONE) -> None:
        """Append a batch, in the producer's transaction or, without a producer, outside of any."""
        self._seed += 1
        now = time.time_ns() // 1_000_000
        batch = [
            replace(record, timestamp=record.timestamp - FIRST_TIMESTAMP + now)
            for record in varied_records(RECORDS_IN_A_BATCH, self._seed)
        ]
        if producer_id is None:
            base = self.log.append(batch, compression)
        else:
            sequence = self._sequences.setdefault(producer_id, 0)
            self._sequences[producer_id] += len(batch)
            base = self.log.append(
                batch,
                compression,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=sequence,
                is_transactional=True,
            )
            self._open.setdefault(producer_id, []).extend(range(base, base + len(batch)))
        self.records += [replace(record, offset=base + record.offset) for record in batch]

    def end(self, producer_id: int, kind: ControlRecordType) -> None:
        self.log.append_end_marker(producer_id, 0, kind)
        offsets = self._open.pop(producer_id)
        if kind is ABORT:
            self.aborted.update(offsets)

    def committed(self) -> list[Record]:
        """What a read_committed consumer gets: nothing from the first open transaction on."""
        stable = min((offsets[0] for offsets in self._open.values()), default=self.log.log_end_offset)
        return [record for record in self.records if record.offset < stable and record.offset not in self.aborted]


@dataclass(frozen=True, slots=True)
class Expected:
    """What a consumer gets of a partition, by its isolation."""

    read_uncommitted: list[Record]
    read_committed: list[Record]

    def of(self, isolation: Isolation) -> list[Record]:
        return self.read_committed if isolation == "read_committed" else self.read_uncommitted


@dataclass(frozen=True, slots=True)
class Served:
    """A broker on the logs that we wrote, the logs as they were before it had them, and what it has to serve."""

    kafka: RealKafka
    written: Path
    expected: list[Expected]


def _write_ended(log: LocalLog) -> Expected:
    """Transactions of two producers, one within the other, over segment borders; one in three is aborted."""
    writer = Writer(log, seed=100)
    for number in range(ROUNDS):
        writer.send(FIRST)
        writer.send(SECOND, Compression(number % 5))
        writer.send()
        writer.send(SECOND)
        writer.end(SECOND, ABORT if number % 3 == 0 else COMMIT)
        writer.send()
        writer.send(FIRST, Compression.SNAPPY)
        writer.end(FIRST, ABORT if number % 3 == 1 else COMMIT)
    return Expected(writer.records, writer.committed())


def _write_unfinished(log: LocalLog) -> Expected:
    writer = Writer(log, seed=200)
    writer.send(FIRST)
    writer.end(FIRST, ABORT)
    writer.send()
    for _ in range(ROUNDS):
        writer.send(FIRST)
        writer.send(SECOND)
        writer.end(SECOND, COMMIT)
    return Expected(writer.records, writer.committed())


def _write_append_time(log: LocalLog) -> Expected:
    """Batches of an idempotent producer in three leader epochs, stamped with our time."""
    for number in range(ROUNDS):
        batch = encode_batch(
            list(varied_records(2 * RECORDS_IN_A_BATCH, seed=number)),
            Compression(number % 5),
            producer_id=FIRST,
            producer_epoch=0,
            base_sequence=number * 2 * RECORDS_IN_A_BATCH,
        )
        log.append_encoded_batch(batch, leader_epoch=number // 4, timestamp_type=TimestampType.LOG_APPEND_TIME)
    found = read_all(log)
    return Expected(found, found)


@pytest.fixture(scope="module")
def served(real_kafka: RealKafka, tmp_path_factory: pytest.TempPathFactory) -> Served:
    written = tmp_path_factory.mktemp("written-by-us")
    topic_config = {"internal.segment.bytes": str(SEGMENT_BYTES)}
    topic_id = real_kafka.client.create_topic(TOPIC, PARTITIONS, topic_config)
    expected = []
    for number, write in enumerate((_write_ended, _write_unfinished, _write_append_time)):
        with LocalLog.create(written, TOPIC, number, topic_id, LogConfig(segment_bytes=SEGMENT_BYTES)) as log:
            expected.append(write(log))
            assert len(log.segments) > 1
    with real_kafka.stopped() as log_dir:
        for number in range(PARTITIONS):
            shutil.rmtree(log_dir / f"{TOPIC}-{number}")
            shutil.copytree(written / f"{TOPIC}-{number}", log_dir / f"{TOPIC}-{number}")
    return Served(real_kafka, written, expected)


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("partition", range(PARTITIONS))
def test_librdkafka_gets_all_that_it_may_see(served: Served, partition: int, isolation: Isolation) -> None:
    expected = served.expected[partition]
    assert served.kafka.client.consume_all(TOPIC, partition, isolation=isolation) == expected.of(isolation)


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_java_gets_all_that_it_may_see(served: Served, isolation: Isolation) -> None:
    expected = [_console_line(record) for record in served.expected[ENDED].of(isolation)]
    assert _console(served.kafka, ENDED, isolation, len(expected), timeout_ms=30_000) == expected


def test_java_gets_nothing_behind_an_open_transaction(served: Served) -> None:
    expected = [_console_line(record) for record in served.expected[UNFINISHED].read_committed]
    assert _console(served.kafka, UNFINISHED, "read_committed", len(expected) + 1, timeout_ms=4000) == expected


def test_readers_of_committed_records_get_less(served: Served) -> None:
    ended, unfinished, append_time = served.expected
    assert 0 < len(ended.read_committed) < len(ended.read_uncommitted)
    assert len(unfinished.read_committed) == RECORDS_IN_A_BATCH
    assert append_time.read_committed == append_time.read_uncommitted


def test_a_broker_that_recovers_builds_the_files_that_we_wrote(served: Served, tmp_path: Path) -> None:
    ours = {path.relative_to(served.written): path.read_bytes() for path in served.written.glob("*/*.*")}
    assert len([path for path in ours if path.suffix == ".txnindex"]) > 3
    with served.kafka.stopped() as log_dir:
        for number in range(PARTITIONS):
            directory = log_dir / f"{TOPIC}-{number}"
            shutil.rmtree(directory)
            shutil.copytree(served.written / directory.name, directory)
            for path in directory.iterdir():
                if path.suffix in (".index", ".timeindex", ".txnindex", ".snapshot"):
                    path.unlink()
        for name in (RECOVERY_POINT_CHECKPOINT, ".kafka_cleanshutdown"):
            (log_dir / name).unlink()
    with served.kafka.stopped() as log_dir:
        found = {path.relative_to(log_dir): path.read_bytes() for path in log_dir.glob(f"{TOPIC}-*/*.*")}
        epochs = (log_dir / f"{TOPIC}-{APPEND_TIME}" / LEADER_EPOCH_CHECKPOINT).read_text()
    assert found.keys() == ours.keys()
    assert [str(path) for path in ours if found[path] != ours[path]] == []
    assert "0 0\n1 160\n2 320\n" in epochs


def test_a_broker_goes_on_with_transactions_in_our_log(served: Served) -> None:
    client = served.kafka.client
    producer = client.producer(transactional_id="goes-on", enable_idempotence="true", batch_num_messages=20)
    producer.init_transactions()
    producer.begin_transaction()
    send(producer, TOPIC, ENDED, varied_records(50, seed=1))
    producer.abort_transaction()
    producer.begin_transaction()
    more = send(producer, TOPIC, ENDED, varied_records(50, seed=2))
    producer.commit_transaction()
    expected = [*served.expected[ENDED].read_committed, *more]
    end = time.monotonic() + 30
    while (found := client.consume_all(TOPIC, ENDED, isolation="read_committed")) != expected:
        # The commit is answered before its marker is in the log.
        assert len(found) < len(expected)
        assert time.monotonic() < end
        time.sleep(0.1)


def _console(kafka: RealKafka, partition: int, isolation: Isolation, most: int, *, timeout_ms: int) -> list[str]:
    """Return what Java's console consumer shows, until it has `most` records or gets none for so long."""
    out = kafka.tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", kafka.bootstrap_servers, "--topic", TOPIC, "--partition", str(partition)),
        *("--offset", "earliest", "--isolation-level", isolation, "--timeout-ms", str(timeout_ms)),
        *("--max-messages", str(most)),
        *("--formatter-property", "print.offset=true", "--formatter-property", "print.key=true"),
        *("--formatter-property", "print.timestamp=true"),
    )
    return out.splitlines()


def _console_line(record: Record) -> str:
    key = "null" if record.key is None else record.key.decode()
    value = "null" if record.value is None else record.value.decode()
    return f"CreateTime:{record.timestamp}\tOffset:{record.offset}\t{key}\t{value}"
