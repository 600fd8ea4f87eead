from __future__ import annotations

import pytest

from support.transactions import ABORT, COMMIT, TIME, data
from tiered_storage.errors import (
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from tiered_storage.kafka_log.producers.producer_entry import AppendedBatch, ProducerEntry
from tiered_storage.kafka_log.producers.producer_snapshot import ProducerSnapshotEntry
from tiered_storage.kafka_log.records.batch_header import BatchHeader, read_batch_header
from tiered_storage.kafka_log.records.control_record import EndTransactionMarker

LAST_SEQUENCE = 2**31 - 1


def batch(sequence: int, *, epoch: int = 3, count: int = 1, transactional: bool = False) -> BatchHeader:
    return read_batch_header(data(0, 9, sequence, epoch=epoch, count=count, transactional=transactional))


def entry(*sequences: int, epoch: int = 3) -> ProducerEntry:
    """A producer that has sent one record with each of `sequences`, from offset 100 on."""
    found = ProducerEntry(9)
    found.add_batches(epoch, [AppendedBatch(sequence, 100 + i, 0, TIME + i) for i, sequence in enumerate(sequences)])
    return found


def test_the_next_sequence_follows_the_last_one() -> None:
    entry(0, 1, 2).check_batch(batch(3), "orders-0")

    for wrong in (0, 2, 4):
        with pytest.raises(OutOfOrderSequenceError, match=rf"orders-0.*\b9\b.*sequence {wrong}, 3\b"):
            entry(0, 1, 2).check_batch(batch(wrong), "orders-0")


def test_after_the_last_sequence_number_comes_0() -> None:
    entry(LAST_SEQUENCE).check_batch(batch(0), "orders-0")
    wrapped = AppendedBatch(last_sequence=1, last_offset=12, offset_delta=3, timestamp=TIME)

    assert (wrapped.first_sequence, wrapped.first_offset) == (LAST_SEQUENCE - 1, 9)


def test_a_producer_of_which_nothing_is_known_begins_anywhere() -> None:
    ProducerEntry(9).check_batch(batch(77), "orders-0")


def test_a_new_epoch_begins_at_0_and_an_old_one_is_over() -> None:
    entry(5).check_batch(batch(0, epoch=4), "orders-0")

    with pytest.raises(OutOfOrderSequenceError, match=r"sequence 6, 0\b"):
        entry(5).check_batch(batch(6, epoch=4), "orders-0")
    with pytest.raises(InvalidProducerEpochError, match=r"producer 9 .*epoch 3.*epoch 2"):
        entry(5).check_batch(batch(6, epoch=2), "orders-0")


def test_after_the_marker_of_a_new_epoch_sequences_begin_again() -> None:
    producer = entry(5)
    producer.add_marker(EndTransactionMarker(COMMIT, 1, TIME), epoch=4)

    producer.check_batch(batch(0, epoch=4), "orders-0")
    with pytest.raises(OutOfOrderSequenceError):
        producer.check_batch(batch(6, epoch=4), "orders-0")


def test_the_last_five_batches_are_known_again() -> None:
    producer = entry(0, 1, 2, 3, 4, 5)

    assert producer.find_duplicate(batch(0)) is None
    assert [
        duplicate and duplicate.first_offset for duplicate in map(producer.find_duplicate, map(batch, range(7)))
    ] == [
        None,
        101,
        102,
        103,
        104,
        105,
        None,
    ]
    assert producer.find_duplicate(batch(5, count=2)) is None
    assert producer.find_duplicate(batch(5, epoch=4)) is None
    assert ProducerEntry(9).find_duplicate(read_batch_header(data(0, 9, -1, epoch=-1))) is None


def test_in_an_open_transaction_all_is_part_of_it() -> None:
    producer = entry(0)
    producer.transaction_first_offset = 100

    producer.check_batch(batch(1, transactional=True), "orders-0")
    with pytest.raises(InvalidTransactionStateError, match=r"offset 100.*sequence 1"):
        producer.check_batch(batch(1), "orders-0")


def test_a_marker_of_an_epoch_that_is_over_is_refused() -> None:
    marker = EndTransactionMarker(ABORT, 5, TIME)
    producer = entry(0)
    producer.add_marker(marker, epoch=3)

    producer.check_marker(marker, 3, "orders-0")
    with pytest.raises(InvalidProducerEpochError, match=r"epoch 3\b.*epoch 2\b"):
        producer.check_marker(marker, 2, "orders-0")
    with pytest.raises(TransactionCoordinatorFencedError, match=r"epoch 5\b.*\b4\b"):
        producer.check_marker(EndTransactionMarker(ABORT, 4, TIME), 3, "orders-0")


def test_from_the_second_version_of_transactions_on_a_marker_brings_a_new_epoch() -> None:
    marker = EndTransactionMarker(ABORT, 5, TIME)
    producer = entry(0)
    producer.transaction_first_offset = 100

    producer.check_marker(marker, 3, "orders-0", transaction_version=1)
    producer.check_marker(marker, 4, "orders-0", transaction_version=2)
    with pytest.raises(InvalidProducerEpochError, match=r"epoch 3\b.*epoch 3\b"):
        producer.check_marker(marker, 3, "orders-0", transaction_version=2)

    assert producer.add_marker(marker, epoch=4) == 100
    producer.check_marker(marker, 4, "orders-0", transaction_version=2)


def test_a_snapshot_reports_the_last_batch() -> None:
    producer = entry(0, 1, 2)
    producer.transaction_first_offset = 101
    snapshot = ProducerSnapshotEntry(9, 3, 2, 102, 0, TIME + 2, -1, 101)

    assert producer.to_snapshot() == snapshot
    assert ProducerEntry.from_snapshot(snapshot).to_snapshot() == snapshot
    assert list(ProducerEntry.from_snapshot(snapshot).batches) == [AppendedBatch(2, 102, 0, TIME + 2)]


def test_a_snapshot_of_a_producer_without_batches_keeps_its_epochs() -> None:
    producer = entry(0, 1)
    producer.add_marker(EndTransactionMarker(ABORT, 5, TIME + 9), epoch=4)
    snapshot = ProducerSnapshotEntry(9, 4, -1, -1, 0, TIME + 9, 5, -1)

    assert producer.to_snapshot() == snapshot
    assert ProducerEntry.from_snapshot(snapshot) == producer


def test_a_producer_expires_by_silence_unless_a_transaction_is_open() -> None:
    producer = entry(0)

    assert not producer.is_expired(TIME + 99, 100)
    assert producer.is_expired(TIME + 100, 100)
    producer.transaction_first_offset = 100
    assert not producer.is_expired(TIME + 100, 100)
