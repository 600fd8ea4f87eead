"""Checks of every set of golden logs: the committed set, and sets that tests make."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle, pairwise
from pathlib import Path

from golden.framings import XERIAL_MAGIC
from golden.logs import KNOWN_TO_THE_TOOL, GoldenLogs
from golden.restarted_indexes import RestartedIndexes
from golden.tool_rows import rows_of_ours, rows_of_the_tool
from golden.topics import (
    APPEND_TIME_TOPICS,
    BROKER_CODECS,
    FIRST_TIMESTAMP,
    FRAMING_TOPICS,
    FRAMINGS_BY_PARTITION,
    INDEX_INTERVAL_BYTES,
    LOG_STARTS,
    PARTITIONS,
    framed_records,
    golden_records,
)
from support.files import files_in
from support.kafka_clients import CODECS
from support.records import Row, expected_rows, rows_of
from tiered_storage.kafka_log.columnar.decoder import iterate_columns
from tiered_storage.kafka_log.dump.dump_event import DumpProblem
from tiered_storage.kafka_log.dump.file_dump import dump_file
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import LEADER_EPOCH_CHECKPOINT, read_leader_epochs
from tiered_storage.kafka_log.files.log_segment import LogSegment, list_segments, producer_snapshot_path
from tiered_storage.kafka_log.files.partition_metadata import PARTITION_METADATA, read_topic_id
from tiered_storage.kafka_log.indexes.transaction_index import TransactionIndex
from tiered_storage.kafka_log.kernels.constants import APPEND_TIME_BIT, BATCH_OVERHEAD, CRC_END
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.recovery.index_rebuild import rebuild_indexes
from tiered_storage.kafka_log.producers.transaction_state import Isolation
from tiered_storage.kafka_log.records.batch_header import TimestampType
from tiered_storage.kafka_log.records.compression import Compression
from tiered_storage.kafka_log.records.record_batch import BatchHeader, Record, read_batch_header, read_records
from tiered_storage.kafka_log.records.segment_scan import iterate_segment

COMPACTED = "compacted"
RESTARTED = "epochs"
CONFIG = LogConfig(segment_bytes=1500, index_interval_bytes=INDEX_INTERVAL_BYTES)
NAMES = [f"{topic}-{number}" for topic, number in PARTITIONS]


def batches(segment: LogSegment) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield every batch of `segment`, header and bytes; each checksum is verified."""
    for window, table in iterate_segment(segment.log_path, segment.base_offset):
        start = int(table.position[0])
        for position, size in zip(table.position.tolist(), table.size.tolist(), strict=True):
            batch = window[position - start : position - start + size]
            yield read_batch_header(batch), batch


def all_batches(partition: Path) -> Iterator[tuple[BatchHeader, memoryview]]:
    for segment in list_segments(partition):
        yield from batches(segment)


def check_records(logs: GoldenLogs) -> None:
    """Every record is read as a consumer got it."""
    consumed = logs.consumed()
    assert list(consumed) == NAMES
    for topic, number in PARTITIONS:
        found = [
            record
            for header, batch in all_batches(logs.partition(topic, number))
            if not header.is_control
            for record in read_records(batch)
            if record.offset >= LOG_STARTS.get(topic, 0)
        ]
        assert found
        assert found == consumed[f"{topic}-{number}"].records, topic


def check_columns(logs: GoldenLogs) -> None:
    """Columns have what the plain decoder reads, and what a consumer got of a broker."""
    for name, consumed in logs.consumed().items():
        rows = []
        for segment in list_segments(logs.log_dir / name):
            found = rows_of(iterate_columns(segment.log_path, segment.base_offset))
            assert found == list(expected_rows(bytes(batch) for _, batch in batches(segment)))
            rows += [row for row in found if not row["control"]]
        start = LOG_STARTS.get(name.rpartition("-")[0], 0)
        assert [record_of(row) for row in rows if row["offset"] >= start] == consumed.records, name


def record_of(row: Row) -> Record:
    """Return the record that a row of columns has."""
    headers = tuple((header["key"], header["value"]) for header in row["headers"])
    return Record(row["offset"], row["timestamp"], row["key"], row["value"], headers)


def check_codecs(logs: GoldenLogs) -> None:
    """Each codec is there, in librdkafka's framing and in Java's."""
    for number in range(len(CODECS)):
        headers = [header for header, _ in all_batches(logs.partition("compressed-by-client", number))]
        assert {header.compression for header in headers} == {Compression(number)}
        assert len(headers) > 1
    for codec in BROKER_CODECS:
        headers = [header for header, _ in all_batches(logs.partition(f"compressed-by-broker-{codec}"))]
        assert {header.compression.name.lower() for header in headers} == {codec}
    of_client = [bytes(batch[BATCH_OVERHEAD:]) for _, batch in all_batches(logs.partition("compressed-by-client", 2))]
    of_broker = [
        bytes(batch[BATCH_OVERHEAD:]) for _, batch in all_batches(logs.partition("compressed-by-broker-snappy"))
    ]
    assert not any(body.startswith(XERIAL_MAGIC) for body in of_client)
    assert all(body.startswith(XERIAL_MAGIC) for body in of_broker)


def check_framings(logs: GoldenLogs) -> None:
    """A broker keeps each framing as it was sent, stamped or not, with the records that were sent."""
    for topic, timestamp_type in FRAMING_TOPICS.items():
        for partition, framings in enumerate(FRAMINGS_BY_PARTITION):
            found = list(all_batches(logs.partition(topic, partition)))
            assert len(found) >= len(framings)
            for number, ((header, batch), framing) in enumerate(zip(found, cycle(framings), strict=False)):
                assert header.compression is framing.codec
                assert framing.is_shown_by(bytes(batch[BATCH_OVERHEAD:])), (topic, number)
                assert header.timestamp_type is timestamp_type
                sent = [
                    replace(record, offset=header.base_offset + i) for i, record in enumerate(framed_records(number))
                ]
                assert _as_produced(batch) == sent, (topic, number)


def _as_produced(batch: memoryview) -> list[Record]:
    """Read the records with the producer's times, which a stamp leaves in their deltas."""
    without_stamp = bytearray(batch)
    without_stamp[CRC_END + 1] &= ~APPEND_TIME_BIT
    return read_records(without_stamp, verify_crc=False)


def check_append_times(logs: GoldenLogs) -> None:
    """A batch stamped LogAppendTime gives its records one time, and still has the producer's times in its deltas."""
    for topic in APPEND_TIME_TOPICS:
        stamped: list[Record] = []
        produced: list[Record] = []
        for header, batch in all_batches(logs.partition(topic)):
            assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
            records = read_records(batch)
            assert {record.timestamp for record in records} == {header.max_timestamp}
            stamped += records
            produced += _as_produced(batch)
        sent = list(golden_records(len(produced), seed=20))
        assert produced == sent, topic
        assert min(record.timestamp for record in stamped) > max(record.timestamp for record in sent)


def check_transactions(logs: GoldenLogs) -> None:
    """A transaction is aborted in a later segment than it began in; readers of committed records skip it."""
    directory = logs.partition("transactions")
    with_aborts = [segment for segment in list_segments(directory) if segment.has_transaction_index()]
    aborted = [entry for segment in with_aborts for entry in _aborted(segment)]
    assert any(first < segment.base_offset for segment, first, _ in aborted)
    assert any(first >= segment.base_offset for segment, first, _ in aborted)
    assert any(stable < segment.base_offset or stable < first for segment, first, stable in aborted)


def _aborted(segment: LogSegment) -> Iterator[tuple[LogSegment, int, int]]:
    for entry in TransactionIndex.read(segment.transaction_index_path, segment.base_offset).transactions:
        yield segment, entry.first_offset, entry.last_stable_offset


def check_committed_reads(logs: GoldenLogs, work: Path) -> None:
    """LocalLog gives readers of committed records what a read_committed consumer got of a broker."""
    for name, consumed in logs.consumed().items():
        directory = shutil.copytree(logs.log_dir / name, work / name)
        start = consumed.records[0].offset
        with LocalLog.open(directory, CONFIG, log_start_offset=start) as log:
            assert list(_committed(log)) == consumed.committed, name


def _committed(log: LocalLog) -> Iterator[int]:
    """Yield the offsets below the last stable one of what was not aborted, as a consumer chooses them."""
    offset = log.log_start_offset
    while (fetched := log.fetch(offset, 1000, Isolation.READ_COMMITTED)).batches:
        rest = memoryview(fetched.batches)
        while rest:
            header = read_batch_header(rest)
            if not header.is_control:
                for record in read_records(rest[: header.size]):
                    was_aborted = header.is_transactional and any(
                        aborted.producer_id == header.producer_id
                        and aborted.first_offset <= record.offset <= aborted.last_offset
                        for aborted in fetched.aborted
                    )
                    if record.offset >= log.log_start_offset and not was_aborted:
                        yield record.offset
            offset = header.next_offset
            rest = rest[header.size :]


def check_leftovers_of_compaction(logs: GoldenLogs) -> None:
    """Batches without records, with gaps in their offsets, with a delete horizon; a marker without its transaction."""
    headers = [header for header, _ in all_batches(logs.partition(COMPACTED))]
    assert any(header.record_count == 0 for header in headers)
    assert any(0 < header.record_count <= header.last_offset_delta for header in headers)
    assert any(header.has_delete_horizon for header in headers)
    assert any(before.next_offset < header.base_offset for before, header in pairwise(headers))
    markers = {header.producer_id for header in headers if header.is_control}
    left = {header.producer_id for header in headers if not header.is_control and header.record_count}
    assert markers
    assert not markers & left


def check_epochs(logs: GoldenLogs) -> None:
    """The batches have three leader epochs, and the checkpoint has their first offsets."""
    first_offsets: dict[int, int] = {}
    for header, _ in all_batches(logs.partition("epochs")):
        first_offsets.setdefault(header.partition_leader_epoch, header.base_offset)
    assert len(first_offsets) == 3
    entries = read_leader_epochs(logs.partition("epochs") / LEADER_EPOCH_CHECKPOINT)
    # A broker that begins to lead adds its epoch, even if it appends nothing then.
    assert {entry.epoch: entry.start_offset for entry in entries}.items() >= first_offsets.items()


def check_rebuild(logs: GoldenLogs) -> None:
    """Every rebuilt index equals the broker's, byte by byte, and so does the snapshot after each segment.

    Compacted segments have other indexes, and so has a segment in which the broker restarted, as it counts the bytes
    up to the next entry again. The dump compares those indexes with their logs.
    """
    entries = snapshots = aborts = 0
    for topic, number in PARTITIONS:
        for segment in list_segments(logs.partition(topic, number)) if topic != COMPACTED else ():
            built = rebuild_indexes(segment, index_interval_bytes=INDEX_INTERVAL_BYTES)
            assert built == rebuild_indexes(segment, index_interval_bytes=INDEX_INTERVAL_BYTES, from_snapshots=False)
            if len({header.partition_leader_epoch for header, _ in batches(segment)}) == 1:
                assert built.offset_index == segment.offset_index_path.read_bytes(), segment
                assert built.time_index == segment.time_index_path.read_bytes(), segment
                entries += len(built.offset_index)
            path = segment.transaction_index_path
            assert built.transaction_index == (path.read_bytes() if path.exists() else b""), segment
            snapshot = producer_snapshot_path(segment.directory, built.end_offset)
            assert built.producer_snapshot == snapshot.read_bytes(), segment
            snapshots += len(built.producer_snapshot) > 10
            aborts += len(built.transaction_index)
    assert min(entries, snapshots, aborts) > 0


def check_opening(logs: GoldenLogs, work: Path) -> None:
    """LocalLog opens what a broker left, cuts nothing off and changes no file but one.

    As a broker does, it drops a leader epoch that begins at the log's end.
    """
    for name in NAMES:
        directory = shutil.copytree(logs.log_dir / name, work / name)
        before = files_in(directory, LEADER_EPOCH_CHECKPOINT)
        with LocalLog.open(directory, CONFIG, clock=lambda: FIRST_TIMESTAMP) as log:
            assert log.truncated_bytes == 0
            log.delete_old_segments()
            assert log.mended == (), name
        assert files_in(directory, LEADER_EPOCH_CHECKPOINT) == before, name


def check_appends(logs: GoldenLogs, work: Path) -> None:
    """LocalLog, fed with a broker's batches one by one, writes the broker's files, byte by byte.

    Except where compaction rewrote older segments, and where a restart of the broker left its traces, which are
    compared with what they have to be.
    """
    segments = aborts = 0
    for topic, number in PARTITIONS:
        if topic == COMPACTED:
            continue
        theirs = logs.partition(topic, number)
        log = _appended(theirs, work, topic, number)
        _check_epochs_of(log, theirs, topic)
        expected = _without_restarts(theirs) if topic == RESTARTED else files_in(theirs, LEADER_EPOCH_CHECKPOINT)
        found = files_in(log.directory, LEADER_EPOCH_CHECKPOINT)
        assert set(found) == set(expected), theirs
        assert not [name for name in expected if found[name] != expected[name]], theirs
        segments += len(log.segments)
        aborts += sum(segment.has_transaction_index() for segment in log.segments)
    assert segments > len(PARTITIONS)
    assert aborts > 0


def _appended(theirs: Path, work: Path, topic: str, number: int) -> LocalLog:
    """Write the batches in the partition `theirs` to a log of the same name in `work`, and close it."""
    topic_id = read_topic_id(theirs / PARTITION_METADATA)
    assert topic_id is not None
    with LocalLog.create(work, topic, number, topic_id, CONFIG, clock=lambda: FIRST_TIMESTAMP) as log:
        for header, batch in all_batches(theirs):
            assert log.append_as_follower(bytes(batch)) == header.next_offset
        log.delete_records(LOG_STARTS.get(topic, 0))
    return log


def _check_epochs_of(log: LocalLog, theirs: Path, topic: str) -> None:
    """The leader epochs are the broker's, but for one at the end.

    A broker that begins to lead adds its epoch, even if it appends nothing then; nobody who gets batches knows of it.
    """
    entries = read_leader_epochs(theirs / LEADER_EPOCH_CHECKPOINT)
    without_batches = [] if topic == RESTARTED else [log.log_end_offset]
    assert [entry.start_offset for entry in entries[len(log.leader_epochs) :]] == without_batches, theirs
    ours = log.directory / LEADER_EPOCH_CHECKPOINT
    assert read_leader_epochs(ours) == entries[: len(log.leader_epochs)], theirs
    if not without_batches:
        assert ours.read_bytes() == (theirs / LEADER_EPOCH_CHECKPOINT).read_bytes(), theirs


def _without_restarts(theirs: Path) -> dict[str, bytes]:
    """Return the files of the partition `theirs` as they were had its broker not been stopped within a segment.

    Its indexes there have to be those of a broker that was.
    """
    expected = files_in(theirs, LEADER_EPOCH_CHECKPOINT)
    for segment in list_segments(theirs):
        headers = [header for header, _ in batches(segment)]
        restarted = RestartedIndexes(segment.base_offset, INDEX_INTERVAL_BYTES, headers)
        assert restarted.offset_index == segment.offset_index_path.read_bytes(), segment
        assert restarted.time_index == segment.time_index_path.read_bytes(), segment
        if len({header.partition_leader_epoch for header in headers}) > 1:
            built = rebuild_indexes(segment, index_interval_bytes=INDEX_INTERVAL_BYTES)
            expected[segment.offset_index_path.name] = built.offset_index
            expected[segment.time_index_path.name] = built.time_index
    return expected


def check_dump_against_the_tool(logs: GoldenLogs) -> None:
    """Our dump of each file equals that of Kafka's tool, row by row and field by field."""
    dumped = logs.dumped()
    files = [file for file in logs.files() if file.kind in KNOWN_TO_THE_TOOL]
    assert {file.path for file in files} == set(dumped)
    rows = 0
    for file in files:
        ours = rows_of_ours(file.kind, dump_file(file, with_records=True))
        assert ours == rows_of_the_tool(file.kind, dumped[file.path]), file.path
        rows += len(ours)
    assert rows > 300


def check_dump_finds_all_sound(logs: GoldenLogs) -> None:
    """No file of a broker's is called broken, nor at odds with its log."""
    for file in logs.files():
        events = list(dump_file(file, with_records=True))
        assert not [event for event in events if isinstance(event, DumpProblem)], file.path


CHECKS = (
    check_records,
    check_columns,
    check_codecs,
    check_framings,
    check_append_times,
    check_transactions,
    check_leftovers_of_compaction,
    check_epochs,
    check_rebuild,
    check_dump_against_the_tool,
    check_dump_finds_all_sound,
)
CHECKS_OF_COPIES = (check_committed_reads, check_opening, check_appends)
"""They take a folder to copy the logs to, or to write them again, and change files there."""
