"""A real broker starts from logs that LocalLog wrote, with transactions, and serves all of them to its clients.

librdkafka and Java's console consumer read them, read_committed and not, and so does LocalLog; Kafka's tool finds our
aborts and producers in them; and when the broker has to recover the logs, what it builds is what LocalLog had written.
"""

from __future__ import annotations

import re
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from integration.java_consumer import consume_with_java, java_lines
from integration.kafka_log.closed_files import closed_files
from servers.kafka_programs import KafkaPrograms
from servers.real_kafka import RealKafka
from support.kafka_clients import Isolation, send
from support.local_logs import read_all
from support.records import FIRST_TIMESTAMP, varied_records
from support.transactions import committed_offsets, split
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import LEADER_EPOCH_CHECKPOINT
from tiered_storage.kafka_log.files.offset_checkpoint import RECOVERY_POINT_CHECKPOINT
from tiered_storage.kafka_log.indexes.transaction_index import TransactionIndex
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.producers import transaction_state
from tiered_storage.kafka_log.producers.producer_snapshot import read_producer_snapshot
from tiered_storage.kafka_log.records.batch_header import TimestampType
from tiered_storage.kafka_log.records.compression import Compression
from tiered_storage.kafka_log.records.control_record import ControlRecordType
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import encode_batch

TOPIC = "our-transactions"
ENDED, UNFINISHED, APPEND_TIME = 0, 1, 2
PARTITIONS = 3
SEGMENT_BYTES = 16_384
RECORDS_IN_A_BATCH = 20
ROUNDS = 12
FIRST, SECOND, IDEMPOTENT = 5001, 5002, 5003

COMMIT, ABORT = ControlRecordType.COMMIT, ControlRecordType.ABORT


class Writer:
    """Appends to a log in transactions and keeps in mind what readers have to get."""

    def __init__(self, log: LocalLog, seed: int) -> None:
        self.log = log
        self.records: list[Record] = []
        self.aborted: set[int] = set()
        self.markers: list[tuple[ControlRecordType, int]] = []
        """Kind and coordinator epoch of each end marker."""
        self._seed = seed
        self._sequences: dict[int, int] = {}
        self._open: dict[int, list[int]] = {}

    def send(self, producer_id: int | None = None, compression: Compression = Compression.NONE) -> None:
        """Append a batch, in the producer's transaction or, of IDEMPOTENT and without a producer, outside of any."""
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
                is_transactional=producer_id != IDEMPOTENT,
            )
            if producer_id != IDEMPOTENT:
                self._open.setdefault(producer_id, []).extend(range(base, base + len(batch)))
        self.records += [replace(record, offset=base + record.offset) for record in batch]

    def end(self, producer_id: int, kind: ControlRecordType) -> None:
        coordinator_epoch = len(self.markers) // 4
        self.log.append_end_marker(producer_id, 0, kind, coordinator_epoch=coordinator_epoch)
        self.markers.append((kind, coordinator_epoch))
        offsets = self._open.pop(producer_id)
        if kind is ABORT:
            self.aborted.update(offsets)

    def committed(self) -> list[Record]:
        """What a read_committed consumer gets: nothing from the first open transaction on."""
        stable = min((offsets[0] for offsets in self._open.values()), default=self.log.log_end_offset)
        return [record for record in self.records if record.offset < stable and record.offset not in self.aborted]


@dataclass(frozen=True, slots=True)
class Expected:
    """What a consumer gets of a partition, by its isolation, and the end markers in it."""

    read_uncommitted: list[Record]
    read_committed: list[Record]
    markers: list[tuple[ControlRecordType, int]]

    def of(self, isolation: Isolation) -> list[Record]:
        return self.read_committed if isolation == "read_committed" else self.read_uncommitted


@dataclass(frozen=True, slots=True)
class Served:
    """A broker on the logs that we wrote, the logs as they were before it had them, and what it has to serve."""

    kafka: RealKafka
    written: Path
    expected: list[Expected]


def _write_ended(log: LocalLog) -> Expected:
    """Transactions of two producers, one within the other, over segment borders; one in three is aborted.

    Between them come batches of a third producer and of none.
    """
    writer = Writer(log, seed=100)
    for number in range(ROUNDS):
        writer.send(FIRST)
        writer.send(SECOND, Compression(number % 5))
        writer.send(IDEMPOTENT)
        writer.send(SECOND)
        writer.end(SECOND, ABORT if number % 3 == 0 else COMMIT)
        writer.send()
        writer.send(FIRST, Compression.SNAPPY)
        writer.end(FIRST, ABORT if number % 3 == 1 else COMMIT)
    return Expected(writer.records, writer.committed(), writer.markers)


def _write_unfinished(log: LocalLog) -> Expected:
    writer = Writer(log, seed=200)
    writer.send(FIRST)
    writer.end(FIRST, ABORT)
    writer.send()
    for _ in range(ROUNDS):
        writer.send(FIRST)
        writer.send(SECOND)
        writer.end(SECOND, COMMIT)
    return Expected(writer.records, writer.committed(), writer.markers)


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
    return Expected(found, found, [])


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
@pytest.mark.parametrize("partition", range(PARTITIONS))
def test_our_own_readers_get_the_same(served: Served, tmp_path: Path, partition: int, isolation: Isolation) -> None:
    copy = shutil.copytree(served.written / f"{TOPIC}-{partition}", tmp_path / f"{TOPIC}-{partition}")
    with LocalLog.open(copy, LogConfig(segment_bytes=SEGMENT_BYTES)) as log:
        found = _read(log, transaction_state.Isolation[isolation.upper()])
    assert found == served.expected[partition].of(isolation)


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("partition", range(PARTITIONS))
def test_java_gets_all_that_it_may_see(served: Served, partition: int, isolation: Isolation) -> None:
    stamped = TimestampType.LOG_APPEND_TIME if partition == APPEND_TIME else TimestampType.CREATE_TIME
    expected = java_lines(served.expected[partition].of(isolation), partition, stamped)
    assert consume_with_java(served.kafka, TOPIC, partition, isolation, most=len(expected)) == expected


def test_java_gets_nothing_after_an_open_transaction(served: Served) -> None:
    expected = java_lines(served.expected[UNFINISHED].read_committed, UNFINISHED)
    found = consume_with_java(
        served.kafka, TOPIC, UNFINISHED, "read_committed", most=len(expected) + 1, timeout_ms=4000
    )
    assert found == expected


def test_readers_of_committed_records_get_less(served: Served) -> None:
    ended, unfinished, append_time = served.expected
    assert 0 < len(ended.read_committed) < len(ended.read_uncommitted)
    assert len(unfinished.read_committed) == RECORDS_IN_A_BATCH
    assert append_time.read_committed == append_time.read_uncommitted


def test_kafkas_tool_finds_our_aborts_producers_and_markers(served: Served, kafka_programs: KafkaPrograms) -> None:
    paths = sorted(path for path in served.written.glob("*/*.*") if path.suffix in (".txnindex", ".snapshot", ".log"))
    dumped = kafka_programs.dump_log_segments(paths)

    aborts = [path for path in paths if path.suffix == ".txnindex"]
    assert len(aborts) > 3
    for path in aborts:
        assert dumped[path].splitlines() == [
            f"version: 0 producerId: {entry.producer_id} firstOffset: {entry.first_offset} "
            f"lastOffset: {entry.last_offset} lastStableOffset: {entry.last_stable_offset}"
            for entry in TransactionIndex.read(path, int(path.stem)).transactions
        ]
    for path in (path for path in paths if path.suffix == ".snapshot"):
        for entry, line in zip(read_producer_snapshot(path), dumped[path].splitlines(), strict=True):
            assert f"producerId: {entry.producer_id} producerEpoch: {entry.producer_epoch} " in line
            first = entry.current_transaction_first_offset
            transaction = "OptionalLong.empty" if first == -1 else f"OptionalLong[{first}]"
            assert f"currentTxnFirstOffset: {transaction} " in line
            assert f"lastSequence: {entry.last_sequence} lastOffset: {entry.last_offset} " in line
    for number, expected in enumerate(served.expected):
        logs = [path for path in paths if path.suffix == ".log" and path.parent.name == f"{TOPIC}-{number}"]
        found = re.findall(r"endTxnMarker: (\w+) coordinatorEpoch: (\d+)", "".join(dumped[path] for path in logs))
        assert found == [(kind.name, str(epoch)) for kind, epoch in expected.markers]


def test_a_broker_that_recovers_builds_the_files_that_we_wrote(served: Served, tmp_path: Path) -> None:
    ours = {path.relative_to(served.written): path.read_bytes() for path in served.written.glob("*/*.*")}
    assert len([path for path in ours if path.suffix == ".txnindex"]) > 3
    with served.kafka.stopped() as log_dir:
        for path in closed_files(served.written):
            assert (log_dir / path.relative_to(served.written)).read_bytes() == path.read_bytes()
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


def test_a_broker_builds_all_indexes_of_a_segment_whose_offset_index_is_gone(served: Served) -> None:
    """Our copier advises this where a transaction index is missing or false."""
    *_, ours = (path for path in closed_files(served.written) if path.suffix == ".txnindex")
    names = [path.relative_to(served.written) for path in ours.parent.glob(f"{ours.stem}.*index")]
    with served.kafka.stopped() as log_dir:
        (log_dir / ours.relative_to(served.written)).unlink()
        (log_dir / ours.relative_to(served.written)).with_suffix(".index").unlink()
    with served.kafka.stopped() as log_dir:
        found = {name: (log_dir / name).read_bytes() for name in names}
    assert found == {name: (served.written / name).read_bytes() for name in names}
    assert len(found) == 3


def test_a_broker_continues_with_transactions_in_our_log(served: Served) -> None:
    client = served.kafka.client
    producer = client.producer(transactional_id="continues", enable_idempotence="true", batch_num_messages=20)
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


def _read(log: LocalLog, isolation: transaction_state.Isolation) -> list[Record]:
    """Return what a client makes of fetches from our log."""
    found: list[Record] = []
    offset = log.log_start_offset
    while (fetched := log.fetch(offset, 10_000, isolation)).batches:
        kept = set(committed_offsets(fetched.batches, fetched.aborted, offset))
        for header, records in split(fetched.batches):
            found += [record for record in records if record.offset in kept]
            offset = header.next_offset
    return found
