"""What a real broker writes is what our readers read: batches, records, indexes and the small files around them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from servers.kafka_programs import RealKafkaError
from servers.real_kafka import RealKafka
from support.kafka_clients import CODECS, RealKafkaClient, send
from support.records import varied_records
from support.transactions import committed_offsets, split
from tiered_storage.errors import LogDirectoryLockedError
from tiered_storage.kafka_log.files.directory_lock import DirectoryLock, ensure_unlocked
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import (
    LEADER_EPOCH_CHECKPOINT,
    EpochEntry,
    read_leader_epochs,
)
from tiered_storage.kafka_log.files.log_directory import LogDirectory, read_log_directory
from tiered_storage.kafka_log.files.log_segment import list_segments, producer_snapshot_path
from tiered_storage.kafka_log.files.meta_properties import META_PROPERTIES, MetaProperties
from tiered_storage.kafka_log.files.offset_checkpoint import RECOVERY_POINT_CHECKPOINT, read_offset_checkpoint
from tiered_storage.kafka_log.indexes.transaction_index import TransactionIndex
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.log.recovery.index_rebuild import rebuild_indexes
from tiered_storage.kafka_log.producers.producer_snapshot import ProducerSnapshotEntry, read_producer_snapshot
from tiered_storage.kafka_log.producers.transaction_state import Isolation, read_last_stable_offset
from tiered_storage.kafka_log.records.batch_header import TimestampType
from tiered_storage.kafka_log.records.compression import Compression
from tiered_storage.kafka_log.records.record_batch import BatchHeader, Record, read_batch_header, read_records
from tiered_storage.kafka_log.records.segment_scan import iterate_segment

SMALL_SEGMENTS = {"internal.segment.bytes": "16384"}
SMALL_LOG = LogConfig(segment_bytes=16_384)
PARTITIONS = [
    *(("compressed-by-client", number) for number in range(len(CODECS))),
    *((f"compressed-by-broker-{codec}", 0) for codec in CODECS),
    *((topic, 0) for topic in ("large-segments", "append-time", "idempotent-producer", "transactions", "borders")),
]


@dataclass(frozen=True, slots=True)
class WrittenByBroker:
    """A log directory that a broker wrote and left by a clean stop, and what its clients know of it."""

    log_dir: Path
    cluster_id: str
    topic_ids: dict[str, str]
    consumed: dict[tuple[str, int], list[Record]]
    transactions: Transactions
    committed: dict[str, list[Record]]
    """What a read_committed consumer got of the topics with transactions."""

    def directory(self) -> LogDirectory:
        return read_log_directory(self.log_dir)

    def partition(self, topic: str, partition: int = 0) -> Path:
        return self.log_dir / f"{topic}-{partition}"


@dataclass(frozen=True, slots=True)
class Transactions:
    """What became of three transactions; each list has the records with the offsets that they got."""

    committed: list[Record]
    aborted: list[Record]
    open: list[Record]


@pytest.fixture(scope="module")
def written(real_kafka: RealKafka, tmp_path_factory: pytest.TempPathFactory) -> WrittenByBroker:
    client = real_kafka.client
    _produce_with_each_codec(client)
    _produce_other_settings(client)
    transactions = _produce_transactions(client)
    _produce_transactions_over_borders(client)
    consumed = {(topic, number): client.consume_all(topic, number) for topic, number in PARTITIONS}
    committed = {topic: client.consume_all(topic, isolation="read_committed") for topic in ("transactions", "borders")}
    client.delete_records("large-segments", 0, before=1234)
    log_dir = tmp_path_factory.mktemp("written") / "log-dir"
    with real_kafka.stopped() as stopped:
        shutil.copytree(stopped, log_dir)
    return WrittenByBroker(
        log_dir=log_dir,
        cluster_id=client.cluster_id(),
        topic_ids={topic: client.topic_id(topic) for topic, _ in PARTITIONS},
        consumed=consumed,
        transactions=transactions,
        committed=committed,
    )


def _produce_with_each_codec(client: RealKafkaClient) -> None:
    """librdkafka compresses for the topic `compressed-by-client`, Java for the others: their frames are not alike."""
    client.create_topic("compressed-by-client", len(CODECS), SMALL_SEGMENTS)
    for number, codec in enumerate(CODECS):
        client.produce(
            "compressed-by-client",
            varied_records(1000, seed=number),
            partition=number,
            codec=codec,
            batch_num_messages=40,
        )
    for codec in CODECS:
        topic = f"compressed-by-broker-{codec}"
        client.create_topic(
            topic, 1, SMALL_SEGMENTS | {"compression.type": "uncompressed" if codec == "none" else codec}
        )
        client.produce(topic, varied_records(1000, seed=99), codec="lz4", batch_num_messages=40)


def _produce_other_settings(client: RealKafkaClient) -> None:
    client.create_topic("large-segments", 1, {"segment.bytes": str(1 << 20)})
    client.produce("large-segments", varied_records(12_000, seed=7))
    client.create_topic("append-time", 1, SMALL_SEGMENTS | {"message.timestamp.type": "LogAppendTime"})
    client.produce("append-time", varied_records(500, seed=8), batch_num_messages=10)
    client.create_topic("idempotent-producer", 1, SMALL_SEGMENTS)
    idempotent = client.producer(max_in_flight=5, enable_idempotence="true", batch_num_messages=20)
    send(idempotent, "idempotent-producer", 0, varied_records(500, seed=9))


def _produce_transactions(client: RealKafkaClient) -> Transactions:
    client.create_topic("transactions", 1, SMALL_SEGMENTS)
    ended = client.producer(transactional_id="ended", enable_idempotence="true", batch_num_messages=20)
    ended.init_transactions()
    ended.begin_transaction()
    committed = send(ended, "transactions", 0, varied_records(300, seed=10))
    ended.commit_transaction()
    ended.begin_transaction()
    aborted = send(ended, "transactions", 0, varied_records(300, seed=11))
    ended.abort_transaction()
    unfinished = client.producer(
        transactional_id="unfinished", enable_idempotence="true", transaction_timeout_ms=600_000
    )
    unfinished.init_transactions()
    unfinished.begin_transaction()
    return Transactions(committed, aborted, send(unfinished, "transactions", 0, varied_records(50, seed=12)))


def _produce_transactions_over_borders(client: RealKafkaClient) -> None:
    """Five producers at once: their transactions begin and end in different segments, some are aborted."""
    client.create_topic("borders", 1, SMALL_SEGMENTS)
    producers = [
        client.producer(
            transactional_id=f"borders-{number}",
            enable_idempotence="true",
            batch_num_messages=10,
            transaction_timeout_ms=600_000,
        )
        for number in range(5)
    ]
    for producer in producers:
        producer.init_transactions()
    for turn in range(20):
        producer = producers[turn % 5]
        if turn >= 5:
            # Its transaction has been open for as long as the four others have written.
            if turn % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
        producer.begin_transaction()
        send(producer, "borders", 0, varied_records(60, seed=100 + turn))
    for number in (3, 0, 2):
        producers[number].abort_transaction()
        # A coordinator writes its marker later, but before it lets the producer begin again.
        producers[number].begin_transaction()
        send(producers[number], "borders", 0, varied_records(1, seed=number))


def _batches(partition: Path) -> Iterator[tuple[BatchHeader, list[Record]]]:
    """Yield every batch of every segment, header and records; the scan checks each CRC."""
    for segment in list_segments(partition):
        source = str(segment.log_path)
        for window, table in iterate_segment(segment.log_path, segment.base_offset):
            start = int(table.position[0])
            for position, size in zip(table.position.tolist(), table.size.tolist(), strict=True):
                batch = window[position - start : position - start + size]
                header = read_batch_header(batch, source=source, source_position=position)
                yield header, read_records(batch, source=source, source_position=position)


def _data_records(partition: Path) -> list[Record]:
    return [record for header, records in _batches(partition) if not header.is_control for record in records]


def test_every_record_is_read_as_a_consumer_saw_it(written: WrittenByBroker) -> None:
    for (topic, number), consumed in written.consumed.items():
        partition = written.partition(topic, number)
        assert consumed
        assert _data_records(partition) == consumed, partition.name


@pytest.mark.parametrize("number", range(len(CODECS)))
def test_the_codec_of_a_client_is_the_one_that_is_read(written: WrittenByBroker, number: int) -> None:
    codecs = {header.compression for header, _ in _batches(written.partition("compressed-by-client", number))}
    assert codecs == {Compression(number)}
    assert len(list_segments(written.partition("compressed-by-client", number))) > 1


@pytest.mark.parametrize("number", range(len(CODECS)))
def test_the_codec_of_a_broker_is_the_one_that_is_read(written: WrittenByBroker, number: int) -> None:
    partition = written.partition(f"compressed-by-broker-{CODECS[number]}")
    assert {header.compression for header, _ in _batches(partition)} == {Compression(number)}


def test_a_broker_that_stamps_records_gives_a_batch_one_time(written: WrittenByBroker) -> None:
    for header, records in _batches(written.partition("append-time")):
        assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
        assert {record.timestamp for record in records} == {header.max_timestamp}


def test_markers_and_records_of_all_transactions_are_read(written: WrittenByBroker) -> None:
    transactions = written.transactions
    batches = list(_batches(written.partition("transactions")))
    assert _data_records(written.partition("transactions")) == [
        *transactions.committed,
        *transactions.aborted,
        *transactions.open,
    ]
    assert all(header.is_transactional for header, _ in batches)
    markers = [records for header, records in batches if header.is_control]
    assert [[record.offset for record in records] for records in markers] == [[300], [601]]


def test_a_transaction_index_is_where_a_transaction_was_aborted(written: WrittenByBroker) -> None:
    segments = list_segments(written.partition("transactions"))
    assert any(segment.has_transaction_index() for segment in segments)


def test_an_abort_is_in_the_segment_of_its_marker(written: WrittenByBroker) -> None:
    aborted = [
        (segment.base_offset, transaction.first_offset)
        for segment in list_segments(written.partition("borders"))
        for transaction in TransactionIndex.read(segment.transaction_index_path, segment.base_offset).transactions
    ]
    assert len(aborted) > 8
    assert any(first < base for base, first in aborted)


@pytest.mark.parametrize("from_snapshots", [True, False])
def test_rebuilt_indexes_and_snapshots_are_the_brokers_own(written: WrittenByBroker, from_snapshots: bool) -> None:
    entries = 0
    for partition in written.directory().partitions:
        segments = list_segments(partition.path)
        if segments[0].base_offset and not from_snapshots:
            # Another test of this broker deleted records: what their producers did only its snapshots know.
            continue
        for segment in segments:
            rebuilt = rebuild_indexes(segment, from_snapshots=from_snapshots)
            assert rebuilt.offset_index == segment.offset_index_path.read_bytes(), segment
            assert rebuilt.time_index == segment.time_index_path.read_bytes(), segment
            index = segment.transaction_index_path
            assert rebuilt.transaction_index == (index.read_bytes() if index.exists() else b""), segment
            snapshot = producer_snapshot_path(partition.path, rebuilt.end_offset)
            # An empty log has none.
            assert not rebuilt.end_offset or rebuilt.producer_snapshot == snapshot.read_bytes(), segment
            entries += len(rebuilt.offset_index) // 8
    assert entries > 150


def test_the_directory_is_read_as_the_broker_knows_it(written: WrittenByBroker) -> None:
    directory = written.directory()
    found = {(partition.topic, partition.partition): partition for partition in directory.partitions}
    for topic, number in PARTITIONS:
        assert found[topic, number].topic_id == written.topic_ids[topic]
        assert not found[topic, number].is_internal
    assert (directory.cluster_id, directory.node_id) == (written.cluster_id, 1)
    assert MetaProperties.read(written.log_dir / META_PROPERTIES).directory_id is not None
    assert not directory.damaged
    assert not directory.warnings
    assert set(directory.skipped) == {"__cluster_metadata-0"}


def test_checkpoints_say_what_clients_see(written: WrittenByBroker) -> None:
    directory = written.directory()
    recovery_points = read_offset_checkpoint(written.log_dir / RECOVERY_POINT_CHECKPOINT)
    assert directory.high_watermarks is not None
    for (topic, number), consumed in written.consumed.items():
        *_, (last, _) = _batches(written.partition(topic, number))
        assert last.is_control or last.next_offset == consumed[-1].offset + 1
        assert directory.high_watermarks[topic, number] == last.next_offset
        assert recovery_points[topic, number] == last.next_offset
        epochs = read_leader_epochs(written.partition(topic, number) / LEADER_EPOCH_CHECKPOINT)
        assert epochs == (EpochEntry(epoch=0, start_offset=epochs[0].start_offset),)
    assert directory.log_start_offsets is not None
    assert directory.log_start_offsets["large-segments", 0] == 1234


def test_producer_snapshots_say_what_the_batches_say(written: WrittenByBroker) -> None:
    for partition in written.directory().partitions:
        for segment in list_segments(partition.path)[1:]:
            read_producer_snapshot(producer_snapshot_path(partition.path, segment.base_offset))
    (idempotent,) = _last_snapshot(written, "idempotent-producer")
    assert (idempotent.last_sequence, idempotent.last_offset) == (499, 499)
    assert idempotent.current_transaction_first_offset == -1
    ended, unfinished = sorted(_last_snapshot(written, "transactions"), key=lambda entry: entry.last_offset)
    assert ended.current_transaction_first_offset == -1
    assert unfinished.current_transaction_first_offset == written.transactions.open[0].offset


def _last_snapshot(written: WrittenByBroker, topic: str) -> tuple[ProducerSnapshotEntry, ...]:
    end = written.consumed[topic, 0][-1].offset + 1
    return read_producer_snapshot(producer_snapshot_path(written.partition(topic), end))


def test_the_stable_offset_is_where_a_committed_reader_stops(written: WrittenByBroker) -> None:
    high_watermark = written.consumed["transactions", 0][-1].offset + 1
    stable = read_last_stable_offset(written.partition("transactions"), high_watermark)
    assert stable == written.transactions.open[0].offset
    assert written.committed["transactions"] == written.transactions.committed


@pytest.mark.parametrize("topic", ["transactions", "borders"])
def test_a_committed_reader_gets_the_same_of_us(written: WrittenByBroker, tmp_path: Path, topic: str) -> None:
    directory = shutil.copytree(written.partition(topic), tmp_path / f"{topic}-0")
    found: list[int] = []
    with LocalLog.open(directory) as log:
        offset = 0
        while (fetched := log.fetch(offset, 5000, Isolation.READ_COMMITTED)).batches:
            found += committed_offsets(fetched.batches, fetched.aborted, offset)
            offset = split(fetched.batches)[-1][0].next_offset
        assert offset == log.last_stable_offset
    assert found == [record.offset for record in written.committed[topic]]


def test_a_log_is_opened_where_its_broker_left_it(written: WrittenByBroker, tmp_path: Path) -> None:
    topics = "append-time", "large-segments", "idempotent-producer", "transactions", "borders"
    for topic in ("compressed-by-client-4", *(f"{topic}-0" for topic in topics)):
        directory = shutil.copytree(written.log_dir / topic, tmp_path / topic)
        before = {path.name: path.read_bytes() for path in directory.iterdir()}
        with LocalLog.open(directory) as log:
            assert log.truncated_bytes == 0
            assert (log.topic, log.topic_id) == (topic[:-2], written.topic_ids[topic[:-2]])
            assert log.log_end_offset > written.consumed[log.topic, log.partition][-1].offset
        assert {path.name: path.read_bytes() for path in directory.iterdir()} == before


def test_a_log_is_recovered_as_its_broker_recovers_it(start_kafka: Callable[[Path], RealKafka], tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    kafka = start_kafka(killed)
    _produce_transactions_over_borders(kafka.client)
    kafka.kill()
    ours = shutil.copytree(killed, tmp_path / "ours")
    LogDirectoryWriter.open(ours, SMALL_LOG).close()
    with RealKafka(kafka.programs, tmp_path / "again", log_dir=killed):
        pass

    files = sorted(path.name for path in (ours / "borders-0").iterdir())
    assert sum(name.endswith(".txnindex") for name in files) > 2
    assert files == sorted(path.name for path in (killed / "borders-0").iterdir())
    for name in files:
        # The broker has begun a leader epoch of its own.
        if name != LEADER_EPOCH_CHECKPOINT:
            assert (ours / "borders-0" / name).read_bytes() == (killed / "borders-0" / name).read_bytes(), name


def test_a_directory_that_a_broker_holds_is_refused(real_kafka: RealKafka) -> None:
    with pytest.raises(LogDirectoryLockedError, match="broker"):
        ensure_unlocked(real_kafka.log_dir)
    with pytest.raises(LogDirectoryLockedError, match="broker"):
        DirectoryLock.acquire(real_kafka.log_dir)
    with pytest.raises(LogDirectoryLockedError, match="broker"):
        DirectoryLock.acquire(real_kafka.log_dir, exclusive=False)


def test_a_directory_that_a_broker_left_can_be_locked(written: WrittenByBroker) -> None:
    with DirectoryLock.acquire(written.log_dir), pytest.raises(LogDirectoryLockedError):
        ensure_unlocked(written.log_dir)
    ensure_unlocked(written.log_dir)


def test_a_broker_stays_away_from_a_directory_that_we_hold(
    written: WrittenByBroker, start_kafka: Callable[[Path], RealKafka], tmp_path: Path
) -> None:
    log_dir = shutil.copytree(written.log_dir, tmp_path / "log-dir")
    with DirectoryLock.acquire(log_dir), pytest.raises(RealKafkaError, match="lock"):
        start_kafka(log_dir)
