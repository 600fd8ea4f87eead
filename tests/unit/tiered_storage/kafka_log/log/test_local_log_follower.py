from __future__ import annotations

from pathlib import Path

import pytest

from support.local_logs import NOW, create, records
from support.transactions import ABORT, committed_offsets, data, marker
from tiered_storage.errors import ConfigurationError, CorruptRecordError, UnexpectedAppendOffsetError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.indexes.transaction_index import AbortedTxn
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.producers.transaction_state import Isolation
from tiered_storage.kafka_log.records.record_batch import encode_empty_batch
from unit.tiered_storage.follower_fetches import (
    BEGINS_AGAIN,
    BEGINS_AGAIN_INDEX,
    BEGUN_AGAIN_ABORT,
    BEGUN_AGAIN_ABORTED,
    BEGUN_AGAIN_ABORTED_INDEX,
)


def test_batches_of_a_leader_are_kept_byte_for_byte(tmp_path: Path) -> None:
    batches = (
        data(5, 1, 70, count=2, transactional=True, leader_epoch=3)
        + encode_empty_batch(data(9, leader_epoch=3))
        + data(12, leader_epoch=7)
        + marker(13, 1, ABORT)[:12]
    )
    with create(tmp_path) as log:
        assert log.append_as_follower(batches) == 13

        assert log.read(0, 10_000) == batches[:-12]
        assert log.leader_epochs == (EpochEntry(3, 5), EpochEntry(7, 12))
        assert log.end_offset_for_epoch(5) == (3, 12)
        assert log.last_stable_offset == 5


def test_a_followers_log_has_the_same_transactions_as_its_leaders(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=300)
    with create(tmp_path / "a", config=config) as leader, create(tmp_path / "b", config=config) as follower:
        for sequence in range(3):
            leader.append_encoded_batch(data(0, 1, sequence, transactional=True))
            leader.append_encoded_batch(data(0, 2, sequence))
        leader.append_end_marker(1, 0, ABORT)
        leader.append(records())
        offset = 0
        while batches := leader.fetch(offset, 200).batches:
            offset = follower.append_as_follower(batches)

        assert follower.producers == leader.producers
        assert follower.last_stable_offset == leader.last_stable_offset == 8
        for log in (leader, follower):
            assert log.fetch(0, 1, Isolation.READ_COMMITTED).aborted == (AbortedTxn(1, 0, 6, 7),)


def test_index_entries_of_whole_fetches_hide_no_later_abort(tmp_path: Path) -> None:
    """Our own entries are true; Kafka's name a transaction that begins later than the next one of the same producer."""
    with create(tmp_path) as log:
        log.append_as_follower(BEGINS_AGAIN)
        log.roll()
        log.append_as_follower(BEGUN_AGAIN_ABORTED)
        log.roll()
        first, second, _ = log.segments
    assert second.transaction_index_path.read_bytes() == BEGUN_AGAIN_ABORTED_INDEX
    assert first.transaction_index_path.read_bytes() != BEGINS_AGAIN_INDEX
    first.transaction_index_path.write_bytes(BEGINS_AGAIN_INDEX)

    with LocalLog.open(log.directory, clock=lambda: NOW) as reopened:
        fetched = reopened.fetch(2, 10_000, Isolation.READ_COMMITTED)

        assert BEGUN_AGAIN_ABORT in fetched.aborted
        assert committed_offsets(fetched.batches, fetched.aborted, 2) == [10]
        assert reopened.mended == ()


def test_batches_that_do_not_continue_the_log_are_refused_and_none_is_appended(tmp_path: Path) -> None:
    with create(tmp_path) as log:
        log.append_as_follower(data(0, count=5, leader_epoch=4))

        for batches in (data(4), data(5, leader_epoch=4) + data(5, leader_epoch=4)):
            with pytest.raises(UnexpectedAppendOffsetError, match="orders-3"):
                log.append_as_follower(batches)
        with pytest.raises(ConfigurationError, match=r"epoch 3\b.*epoch 4\b"):
            log.append_as_follower(data(5, leader_epoch=4) + data(6, leader_epoch=3))
        broken = data(5, leader_epoch=4)
        with pytest.raises(CorruptRecordError, match="CRC"):
            log.append_as_follower(data(5, leader_epoch=4) + broken[:-1] + b"\1")

        assert log.log_end_offset == 5


def test_a_follower_appends_batches_of_a_later_leader_only_under_its_epoch(tmp_path: Path) -> None:
    with create(tmp_path) as log:
        assert log.append_as_follower(data(0, leader_epoch=4) + data(1, leader_epoch=5), leader_epoch=4) == 1
        assert log.append_as_follower(data(1, leader_epoch=5), leader_epoch=5) == 2


def test_batches_of_leaders_that_had_no_epochs_yet_are_taken(tmp_path: Path) -> None:
    with create(tmp_path) as log:
        log.append_as_follower(data(0, leader_epoch=-1))

        assert log.leader_epochs == ()
        assert log.end_offset_for_epoch(0) is None


def test_a_leaders_batch_may_be_larger_than_a_producers_but_not_than_a_segment(tmp_path: Path) -> None:
    batch = data(0, count=10)
    config = LogConfig(max_message_bytes=len(batch) - 1, segment_bytes=len(batch))
    with create(tmp_path, config=config) as log:
        assert log.append_as_follower(batch) == 10
        with pytest.raises(ConfigurationError, match="orders-3: a batch of"):
            log.append_as_follower(data(10, count=11))


def test_a_segment_begins_where_a_leaders_next_batch_does(tmp_path: Path) -> None:
    with create(tmp_path, config=LogConfig(segment_bytes=100)) as log:
        log.append_as_follower(data(3))
        log.append_as_follower(data(17))

        assert [segment.base_offset for segment in log.segments] == [0, 17]
        assert [path.name for path in log.directory.glob("*.snapshot")] == ["00000000000000000017.snapshot"]
        assert log.read(4, 1) == data(17)
