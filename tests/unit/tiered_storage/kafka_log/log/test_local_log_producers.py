"""What a log takes from producers and coordinators, and what its readers get of transactions."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.local_logs import NOW, create, records
from support.transactions import ABORT, COMMIT, committed_offsets, data, marker, split
from tiered_storage.errors import (
    ConfigurationError,
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from tiered_storage.kafka_log.indexes.transaction_index import AbortedTxn, TransactionIndex
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.producers.producer_snapshot import ProducerSnapshotEntry, read_producer_snapshot
from tiered_storage.kafka_log.producers.transaction_state import Isolation
from tiered_storage.kafka_log.records.batch_header import TimestampType, read_batch_header
from tiered_storage.kafka_log.records.control_record import ControlRecordType
from tiered_storage.kafka_log.records.record_batch import read_records

SIZE = len(data(0, 1, 0))
THREE_IN_A_SEGMENT = LogConfig(segment_bytes=3 * SIZE)


def transactional(log: LocalLog, producer_id: int, sequence: int, epoch: int = 0) -> int:
    return log.append_encoded_batch(data(0, producer_id, sequence, epoch=epoch, transactional=True))


def test_each_of_the_last_five_batches_is_known_again_and_not_appended_twice(tmp_path: Path) -> None:
    with create(tmp_path) as log:
        log.append(records(10))
        batches = [data(0, 7, 2 * i, count=2) for i in range(6)]
        offsets = [log.append_encoded_batch(batch) for batch in batches]

        assert offsets == [10, 12, 14, 16, 18, 20]
        assert [log.append_encoded_batch(batch) for batch in batches[1:]] == offsets[1:]
        with pytest.raises(OutOfOrderSequenceError, match=r"sequence 0, 12\b"):
            log.append_encoded_batch(batches[0])
        assert log.log_end_offset == 22


def test_each_kind_of_wrong_turn_of_a_producer_has_its_error_and_appends_nothing(tmp_path: Path) -> None:
    with create(tmp_path) as log:
        log.append_encoded_batch(data(0, 7, 0, epoch=2))
        transactional(log, 8, 0)

        with pytest.raises(OutOfOrderSequenceError):
            log.append_encoded_batch(data(0, 7, 5, epoch=2))
        with pytest.raises(InvalidProducerEpochError):
            log.append_encoded_batch(data(0, 7, 1, epoch=1))
        with pytest.raises(InvalidTransactionStateError):
            log.append_encoded_batch(data(0, 8, 1))
        with pytest.raises(InvalidProducerEpochError):
            log.append_end_marker(7, 1, COMMIT)
        assert log.log_end_offset == 2


def test_records_are_appended_for_a_producer(tmp_path: Path) -> None:
    with create(tmp_path) as log:
        for sequence in (0, 2):
            log.append(records(2), producer_id=7, producer_epoch=1, base_sequence=sequence, is_transactional=True)

        header = read_batch_header(log.read(2, 1))
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, 2)
        assert header.is_transactional
        assert log.last_stable_offset == 0
        with pytest.raises(ConfigurationError, match="sequence"):
            log.append(records(), producer_id=7)


def test_a_producer_id_below_0_is_refused(tmp_path: Path) -> None:
    with create(tmp_path) as log:
        for producer_id in (-2, -(2**63)):
            with pytest.raises(ConfigurationError, match=f"producer id {producer_id}"):
                log.append(records(), producer_id=producer_id, producer_epoch=0, base_sequence=0)
        for producer_id, epoch in ((-1, 0), (-2, 0), (7, -1), (2**63, 0), (7, 2**15)):
            with pytest.raises(ConfigurationError, match=f"producer id {producer_id}, epoch {epoch}"):
                log.append_end_marker(producer_id, epoch, ABORT)
        with pytest.raises(ConfigurationError, match="ABORT or COMMIT"):
            log.append_end_marker(7, 0, ControlRecordType.LEADER_CHANGE)

        assert (log.log_end_offset, log.producers) == (0, ())


@pytest.mark.parametrize("setting", ["max_message_bytes", "segment_bytes"])
def test_an_end_marker_that_is_too_large_is_refused_and_nothing_is_appended(tmp_path: Path, setting: str) -> None:
    size = len(marker(0, 7))
    with create(tmp_path / "small", config=LogConfig(**{setting: size - 1})) as log:
        with pytest.raises(ConfigurationError, match=f"orders-3.*{size} bytes.*{size - 1}"):
            log.append_end_marker(7, 0, COMMIT)
        assert (log.log_end_offset, log.producers) == (0, ())
    with create(tmp_path / "large", config=LogConfig(**{setting: size})) as log:
        assert log.append_end_marker(7, 0, COMMIT) == 0


def test_a_coordinator_that_was_replaced_is_refused(tmp_path: Path) -> None:
    with create(tmp_path) as log:
        transactional(log, 7, 0)
        assert log.append_end_marker(7, 0, COMMIT, coordinator_epoch=5) == 1

        with pytest.raises(TransactionCoordinatorFencedError):
            log.append_end_marker(7, 0, COMMIT, coordinator_epoch=4)
        [entry] = log.producers
        assert (entry.coordinator_epoch, entry.last_timestamp) == (5, NOW)


def test_the_marker_of_a_newer_coordinator_has_to_bring_a_new_producer_epoch(tmp_path: Path) -> None:
    with create(tmp_path) as log:
        transactional(log, 7, 0)

        with pytest.raises(InvalidProducerEpochError):
            log.append_end_marker(7, 0, COMMIT, transaction_version=2)
        log.append_end_marker(7, 1, COMMIT, transaction_version=2)
        log.append_end_marker(7, 1, COMMIT, transaction_version=2)
        assert log.last_stable_offset == log.log_end_offset == 3


def test_the_clock_of_the_log_stamps_an_encoded_batch_whose_deltas_stay(tmp_path: Path) -> None:
    with create(tmp_path, clock=lambda: NOW + 99) as log:
        batch = data(0, 7, 0, count=3)
        log.append_encoded_batch(batch, timestamp_type=TimestampType.LOG_APPEND_TIME)

        stamped = log.read(0, 1)
        header = read_batch_header(stamped)
        assert (header.timestamp_type, header.max_timestamp) == (TimestampType.LOG_APPEND_TIME, NOW + 99)
        assert header.base_timestamp == read_batch_header(batch).base_timestamp
        assert stamped[61:] == batch[61:]
        assert {record.timestamp for record in read_records(stamped)} == {NOW + 99}


def test_a_reader_finds_an_abort_whose_marker_is_in_a_later_segment(tmp_path: Path) -> None:
    with create(tmp_path, config=THREE_IN_A_SEGMENT) as log:
        transactional(log, 1, 0)
        for _ in range(4):
            log.append_encoded_batch(data())
        transactional(log, 2, 0)
        assert log.append_end_marker(1, 0, ABORT) == 6
        assert log.append_end_marker(2, 0, COMMIT) == 7

        assert [segment.base_offset for segment in log.segments] == [0, 3, 6]
        assert [segment.has_transaction_index() for segment in log.segments] == [False, False, False]
        aborted = AbortedTxn(1, 0, 6, 5)
        for offset in (0, 1, 3):
            fetched = log.fetch(offset, 10_000, Isolation.READ_COMMITTED)
            assert fetched.aborted == (() if offset == 3 and fetched.batches == b"" else (aborted,))
            expected = [o for o in range(offset, 3 if offset < 3 else 6) if o != 0]
            assert committed_offsets(fetched.batches, fetched.aborted, offset) == expected
        assert log.fetch(7, 10_000, Isolation.READ_COMMITTED).aborted == ()
        assert log.fetch(0, 10_000).aborted == ()

    assert [segment.has_transaction_index() for segment in log.segments] == [False, False, True]
    last = log.segments[-1]
    assert TransactionIndex.read(last.transaction_index_path, last.base_offset).transactions == (aborted,)


def test_readers_see_as_much_as_their_isolation_lets_them(tmp_path: Path) -> None:
    with create(tmp_path) as log:
        log.append_encoded_batch(data())
        transactional(log, 1, 0)
        log.append_encoded_batch(data())
        log.update_high_watermark(2)

        def seen(isolation: Isolation) -> list[int]:
            return [header.base_offset for header, _ in split(log.fetch(0, 10_000, isolation).batches)]

        assert seen(Isolation.LOG_END) == [0, 1, 2]
        assert seen(Isolation.READ_UNCOMMITTED) == [0, 1]
        assert seen(Isolation.READ_COMMITTED) == [0]
        assert log.fetch(2, 100, Isolation.READ_UNCOMMITTED).batches == b""
        assert log.fetch(3, 100, Isolation.READ_COMMITTED).batches == b""

        log.append_end_marker(1, 0, COMMIT)
        log.update_high_watermark(3)
        assert log.last_stable_offset == 1
        log.update_high_watermark(4)
        fetched = log.fetch(0, 10_000, Isolation.READ_COMMITTED)
        assert (fetched.log_start_offset, fetched.last_stable_offset, fetched.high_watermark) == (0, 4, 4)
        log.update_high_watermark(100)
        assert log.high_watermark == 4


def test_producers_and_open_transactions_survive_a_close_and_a_crash(tmp_path: Path) -> None:
    log = create(tmp_path, config=THREE_IN_A_SEGMENT)
    transactional(log, 1, 0)
    for sequence in range(6):
        log.append_encoded_batch(data(0, 2, sequence))
    known = log.producers
    log.close()

    with LocalLog.open(log.directory, THREE_IN_A_SEGMENT, clock=lambda: NOW) as reopened:
        assert reopened.producers == known
        assert reopened.last_stable_offset == 0
        assert reopened.append_encoded_batch(data(0, 2, 5)) == 6
        assert transactional(reopened, 1, 1) == 7
        reopened.append_end_marker(1, 0, ABORT)
        reopened.flush()
        known = reopened.producers
        reopened.abandon()

    with LocalLog.open(log.directory, THREE_IN_A_SEGMENT, clock=lambda: NOW) as reopened:
        assert reopened.producers == known
        assert reopened.fetch(0, 1, Isolation.READ_COMMITTED).aborted == (AbortedTxn(1, 0, 8, 9),)


def test_a_snapshot_is_written_at_each_roll_and_at_the_end(tmp_path: Path) -> None:
    log = create(tmp_path, config=THREE_IN_A_SEGMENT)
    for sequence in range(4):
        log.append_encoded_batch(data(0, 2, sequence))
    log.close()

    snapshots = {path.name: read_producer_snapshot(path) for path in log.directory.glob("*.snapshot")}
    assert snapshots == {
        f"{offset:020d}.snapshot": (ProducerSnapshotEntry(2, 0, offset - 1, offset - 1, 0, NOW, -1, -1),)
        for offset in (3, 4)
    }


def test_a_broken_snapshot_is_passed_over_and_replaced(tmp_path: Path) -> None:
    log = create(tmp_path, config=THREE_IN_A_SEGMENT)
    for sequence in range(8):
        log.append_encoded_batch(data(0, 2, sequence))
    log.close()
    snapshots = sorted(log.directory.glob("*.snapshot"))
    assert [path.stem[-1] for path in snapshots] == ["3", "6", "8"]
    before = [path.read_bytes() for path in snapshots]
    for path in snapshots:
        path.write_bytes(b"\0\1broken")

    LocalLog.open(log.directory, THREE_IN_A_SEGMENT, clock=lambda: NOW).close()

    assert not snapshots[0].exists()
    assert [path.read_bytes() for path in snapshots[1:]] == before[1:]


def test_silent_producers_are_forgotten_when_asked_and_when_opened(tmp_path: Path) -> None:
    now = [NOW]
    config = LogConfig(producer_id_expiration_ms=1000)
    with create(tmp_path, clock=lambda: now[0], config=config) as log:
        log.append_encoded_batch(data(0, 1, 0))
        transactional(log, 2, 0)
        now[0] = NOW + 999
        log.expire_producers()
        assert [entry.producer_id for entry in log.producers] == [1, 2]
        now[0] = NOW + 1000
        log.expire_producers()
        assert [entry.producer_id for entry in log.producers] == [2]

    with LocalLog.open(log.directory, config, clock=lambda: NOW + 1000) as reopened:
        assert [entry.producer_id for entry in reopened.producers] == [2]
        assert reopened.append_encoded_batch(data(0, 1, 44)) == 2


@pytest.mark.parametrize("kind", [ABORT, COMMIT])
def test_a_log_that_is_opened_with_a_lower_high_watermark_is_as_stable_as_it_was(
    tmp_path: Path, kind: ControlRecordType
) -> None:
    with create(tmp_path) as log:
        log.append(records(1))
        log.update_high_watermark(1)
        transactional(log, 8, 0)
        log.append(records(3))
        log.append_end_marker(8, 0, kind)
        log.update_high_watermark(4)
        assert log.last_stable_offset == 1

    with LocalLog.open(log.directory, clock=lambda: NOW) as reopened:
        assert reopened.last_stable_offset == 6
        reopened.update_high_watermark(4)
        assert reopened.last_stable_offset == 1
        reopened.update_high_watermark(6)
        assert reopened.last_stable_offset == 6
