from __future__ import annotations

from pathlib import Path

import pytest

from support.local_logs import NOW, create, read_all, records
from support.transactions import ABORT, data
from tiered_storage.errors import ConfigurationError, CorruptRecordError
from tiered_storage.kafka_log.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.local_log import LocalLog
from tiered_storage.kafka_log.log_config import LogConfig
from tiered_storage.kafka_log.log_read import Isolation
from tiered_storage.kafka_log.offset_index import OffsetIndex
from tiered_storage.kafka_log.producer_snapshot_files import list_snapshots
from tiered_storage.kafka_log.transaction_index import AbortedTransaction

SIZE = len(data(0, 1, 0))
CONFIG = LogConfig(segment_bytes=3 * SIZE, index_interval_bytes=0)


def written(directory: Path) -> LocalLog:
    """Nine batches of one producer in three segments and three leader epochs."""
    log = create(directory, config=CONFIG)
    for sequence in range(9):
        log.append_encoded_batch(data(0, 1, sequence), leader_epoch=sequence // 4)
    return log


def visible(log: LocalLog) -> set[str]:
    return {path.name for path in log.directory.iterdir() if not path.name.endswith(".deleted")}


@pytest.mark.parametrize("end", range(10))
def test_a_log_cut_anywhere_is_as_if_nothing_had_come_after(tmp_path: Path, end: int) -> None:
    with written(tmp_path / "cut") as log, create(tmp_path / "short", config=CONFIG) as expected:
        for sequence in range(end):
            expected.append_encoded_batch(data(0, 1, sequence), leader_epoch=sequence // 4)

        log.truncate_to(end)

        assert (log.log_end_offset, log.high_watermark, log.last_stable_offset) == (end, end, end)
        assert log.leader_epochs == expected.leader_epochs
        assert log.producers == expected.producers
        assert read_all(log) == read_all(expected)
        if end:
            assert log.append_encoded_batch(data(0, 1, end - 1)) == end - 1
        for each in (log, expected):
            each.append_encoded_batch(data(0, 1, end), leader_epoch=7)
    if end % 3 or not end:
        # At a border the cut log keeps the empty segment that it had.
        assert visible(log) == visible(expected)
    for path in expected.directory.iterdir():
        assert (log.directory / path.name).read_bytes() == path.read_bytes(), path.name


def test_the_batch_that_the_end_lies_within_goes_too(tmp_path: Path) -> None:
    with create(tmp_path) as log:
        log.append(records(3), leader_epoch=1)
        log.append(records(3), leader_epoch=2)

        log.truncate_to(4)

        assert log.log_end_offset == 3
        assert log.leader_epochs == (EpochEntry(1, 0),)


def test_an_abort_that_is_cut_off_leaves_its_transaction_open(tmp_path: Path) -> None:
    with create(tmp_path) as log:
        log.append_encoded_batch(data(0, 1, 0, transactional=True))
        log.append_end_marker(1, 0, ABORT)
        log.flush()
        assert log.segments[0].has_transaction_index()

        log.truncate_to(1)
        assert (log.last_stable_offset, log.high_watermark) == (0, 1)
        assert not log.segments[0].has_transaction_index()
        log.append(records())
        log.append_end_marker(1, 0, ABORT)
        assert log.fetch(0, 1, Isolation.READ_COMMITTED).aborted == (AbortedTransaction(1, 0, 2, 3),)


def test_cutting_behind_the_end_changes_nothing(tmp_path: Path) -> None:
    with written(tmp_path) as log:
        before = visible(log)
        log.truncate_to(9)
        log.truncate_to(1000)

        assert (log.log_end_offset, visible(log)) == (9, before)
        with pytest.raises(ConfigurationError, match="orders-3 cannot be truncated to offset -1"):
            log.truncate_to(-1)


def test_a_cut_takes_the_high_watermark_and_the_recovery_point_along(tmp_path: Path) -> None:
    with written(tmp_path) as log:
        log.flush()
        log.update_high_watermark(8)
        assert (log.recovery_point, log.high_watermark) == (9, 8)

        log.truncate_to(5)

        assert (log.recovery_point, log.high_watermark) == (5, 5)


@pytest.mark.parametrize("offset", [0, 3, 4, 9, 50])
def test_a_log_that_is_emptied_goes_on_wherever_it_is_told(tmp_path: Path, offset: int) -> None:
    with written(tmp_path) as log:
        log.truncate_fully_and_start_at(offset)

        assert (log.log_start_offset, log.log_end_offset, log.recovery_point) == (offset, offset, offset)
        assert (log.producers, log.leader_epochs, log.read(offset, 100)) == ((), (), b"")
        assert {name for name in visible(log) if name.endswith(".log")} == {f"{offset:020d}.log"}
        assert not list(log.directory.glob("*.snapshot"))
        log.append_encoded_batch(data(0, 5, 8), leader_epoch=9)
        assert log.leader_epochs == (EpochEntry(9, offset),)

    with LocalLog.open(log.directory, CONFIG, clock=lambda: NOW) as reopened:
        assert (reopened.log_start_offset, reopened.log_end_offset) == (offset, offset + 1)
        assert not list(reopened.directory.glob("*.deleted"))


def test_a_cut_below_the_first_segment_empties_the_log(tmp_path: Path) -> None:
    with create(tmp_path, base_offset=100) as log:
        log.append(records(5))
        log.truncate_to(60)

        assert (log.log_start_offset, log.log_end_offset) == (60, 60)


def test_the_index_of_a_cut_segment_is_that_of_what_is_left(tmp_path: Path) -> None:
    with written(tmp_path) as log:
        log.truncate_to(5)
    segment = log.segments[-1]
    assert OffsetIndex.read(segment.offset_index_path, segment.base_offset).offsets.tolist() == [4]


def test_a_snapshot_of_what_was_cut_off_is_not_begun_from(tmp_path: Path) -> None:
    log = written(tmp_path)
    log.close()
    with LocalLog.open(log.directory, CONFIG, clock=lambda: NOW) as reopened:
        reopened.truncate_to(5)
        assert list_snapshots(log.directory) == [3]
        for sequence in range(5):
            reopened.append_encoded_batch(data(0, 2, sequence))
        known = reopened.producers
        reopened.flush()
        reopened.abandon()

    with LocalLog.open(log.directory, CONFIG, clock=lambda: NOW) as reopened:
        assert reopened.log_end_offset == 10
        assert reopened.producers == known


def test_a_damaged_batch_before_the_offset_stops_a_truncation_and_stays(tmp_path: Path) -> None:
    with create(tmp_path) as log:
        for _ in range(10):
            log.append(records(1))
        log.flush()
        path = log.segments[0].log_path
        content = bytearray(path.read_bytes())
        size = len(content) // 10
        content[3 * size + 80] ^= 1
        path.write_bytes(content)

        with pytest.raises(CorruptRecordError, match="nothing is cut off"):
            log.truncate_to(9)

        assert path.read_bytes() == content[: 9 * size]
