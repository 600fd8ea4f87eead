from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.local_logs import NOW, create, read_all, records
from support.records import USUAL_EXAMPLES
from support.transactions import ABORT, COMMIT, data
from tiered_storage.errors import (
    AppendRefusedError,
    ConfigurationError,
    CorruptRecordError,
    InvalidLogDirectoryError,
)
from tiered_storage.kafka_log.files.directory_lock import ensure_unlocked
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.indexes.offset_index import OffsetIndex
from tiered_storage.kafka_log.indexes.transaction_index import AbortedTxn, TransactionIndex
from tiered_storage.kafka_log.log import log_segments
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.recovery.index_rebuild import rebuild_indexes
from tiered_storage.kafka_log.producers.producer_snapshot_files import list_snapshots
from tiered_storage.kafka_log.producers.transaction_state import Isolation

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
def test_a_truncated_log_equals_a_log_that_ended_there(tmp_path: Path, end: int) -> None:
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


def test_the_batch_that_the_end_lies_within_is_deleted_too(tmp_path: Path) -> None:
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
        assert log.fetch(0, 1, Isolation.READ_COMMITTED).aborted == (AbortedTxn(1, 0, 2, 3),)


def test_cutting_after_the_end_changes_nothing(tmp_path: Path) -> None:
    with written(tmp_path) as log:
        before = visible(log)
        log.truncate_to(9)
        log.truncate_to(1000)

        assert (log.log_end_offset, visible(log)) == (9, before)
        with pytest.raises(ConfigurationError, match=r"orders-3.*offset -1"):
            log.truncate_to(-1)


def test_a_cut_takes_the_high_watermark_and_the_recovery_point_along(tmp_path: Path) -> None:
    with written(tmp_path) as log:
        log.flush()
        log.update_high_watermark(8)
        assert (log.recovery_point, log.high_watermark) == (9, 8)

        log.truncate_to(5)

        assert (log.recovery_point, log.high_watermark) == (5, 5)


@pytest.mark.parametrize("offset", [0, 3, 4, 9, 50])
def test_a_log_that_is_emptied_continues_at_any_given_offset(tmp_path: Path, offset: int) -> None:
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


def test_the_index_of_a_truncated_segment_covers_only_the_remaining_batches(tmp_path: Path) -> None:
    with written(tmp_path) as log:
        log.truncate_to(5)
    segment = log.segments[-1]
    assert OffsetIndex.read(segment.offset_index_path, segment.base_offset).offsets.tolist() == [4]


def test_a_snapshot_of_truncated_offsets_is_not_loaded(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("closed", [False, True])
def test_a_damaged_batch_before_the_offset_stays(tmp_path: Path, closed: bool) -> None:
    with create(tmp_path) as log:
        for _ in range(10):
            log.append(records(1))
        log.flush()
        path = log.segments[0].log_path
        content = bytearray(path.read_bytes())
        size = len(content) // 10
        content[3 * size + 80] ^= 1
        path.write_bytes(content)
        if closed:
            log.roll()
            log.append(records(1))

        with pytest.raises(CorruptRecordError, match=f"at byte {3 * size}: .*CRC-32C"):
            log.truncate_to(9)

        assert path.read_bytes() == content
        assert log.append(records(1)) == (11 if closed else 10)


@pytest.mark.parametrize("number", [5, 89])
def test_a_cut_that_needs_the_producers_of_a_segment_checks_all_that_stays(tmp_path: Path, number: int) -> None:
    with create(tmp_path, config=LogConfig(index_interval_bytes=3 * SIZE)) as log:
        for sequence in range(100):
            log.append_encoded_batch(data(0, 1, sequence))
        log.flush()
        path = log.segments[0].log_path
        content = bytearray(path.read_bytes())
        content[(number + 1) * SIZE - 1] ^= 1
        path.write_bytes(content)

        with pytest.raises(CorruptRecordError, match=f"at byte {number * SIZE}: .*CRC-32C"):
            log.truncate_to(90)

        assert path.read_bytes() == content
        assert log.append_encoded_batch(data(0, 1, 100)) == 100


def break_header(log: LocalLog, number: int) -> None:
    """Let a batch of the active segment, written already, claim a length that it cannot have."""
    content = bytearray(log.segments[-1].log_path.read_bytes())
    content[number * SIZE + 8] = 0x7F
    log.segments[-1].log_path.write_bytes(content)


def test_only_the_part_of_a_long_segment_near_the_offset_is_read(tmp_path: Path) -> None:
    with create(tmp_path, config=LogConfig(index_interval_bytes=3 * SIZE)) as log:
        for _ in range(100):
            log.append_encoded_batch(data(0))
        log.flush()
        break_header(log, 5)

        log.truncate_to(90)

        assert (log.log_end_offset, log.recovery_point) == (90, 90)
        assert log.append(records(1)) == 90


def test_an_unreadable_batch_stops_a_truncation_that_must_follow_producers(tmp_path: Path) -> None:
    with create(tmp_path, config=LogConfig(index_interval_bytes=0)) as log:
        for sequence in range(20):
            log.append_encoded_batch(data(0, 1, sequence))
        log.flush()
        break_header(log, 5)
        content = log.segments[0].log_path.read_bytes()

        with pytest.raises(CorruptRecordError, match=f"at byte {5 * SIZE}"):
            log.truncate_to(18)

        assert log.segments[0].log_path.read_bytes() == content
        assert log.log_end_offset == 20
        assert log.append_encoded_batch(data(0, 1, 20)) == 20


steps = st.lists(
    st.tuples(
        st.sampled_from(["plain", "idempotent", "transactional", "abort", "commit", "roll"]),
        st.integers(0, 2),
        st.integers(0, 20),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=2 * USUAL_EXAMPLES, deadline=None)
@given(steps, st.data())
def test_a_cut_log_has_the_state_of_one_that_was_never_longer(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]], draw: st.DataObject
) -> None:
    config = LogConfig(index_interval_bytes=draw.draw(st.sampled_from([0, 200, 4096]), label="interval"))
    root = tmp_path_factory.mktemp("logs")
    with patch.object(os, "fsync"), create(root / "cut", config=config) as log, create(root / "short") as short:
        # Without a high watermark, a leader takes all for replicated and forgets ended transactions.
        log.update_high_watermark(0)
        for i, (kind, producer, late) in enumerate(steps):
            append(log, kind, producer, NOW - 20 + late, i // 7)
        watermark = draw.draw(st.integers(0, log.log_end_offset), label="high watermark")
        log.update_high_watermark(watermark)

        log.truncate_to(draw.draw(st.integers(0, log.log_end_offset), label="end"))

        short.update_high_watermark(0)
        while batches := log.read(short.log_end_offset, 1 << 20):
            short.append_as_follower(batches)
        for each in (log, short):
            each.update_high_watermark(watermark)
        assert known(log) == known(short)
        for each in (log, short):
            append(each, "transactional", 0, NOW, 9)
            append(each, "abort", 0, NOW, 9)
            each.append(records(3), leader_epoch=9)
        assert known(log) == known(short)
        log.close()
        for segment in log.segments:
            rebuilt = rebuild_indexes(segment, index_interval_bytes=config.index_interval_bytes)
            assert segment.offset_index_path.read_bytes() == rebuilt.offset_index
            assert segment.time_index_path.read_bytes() == rebuilt.time_index
            aborts = TransactionIndex.read(segment.transaction_index_path, segment.base_offset).to_bytes()
            assert aborts == rebuilt.transaction_index


def append(log: LocalLog, kind: str, producer: int, timestamp: int, leader_epoch: int) -> None:
    """Append one batch, if the producer may send it now."""
    sequences = {entry.producer_id: entry.last_sequence + 1 for entry in log.producers}
    try:
        if kind == "roll":
            log.roll()
        elif kind == "plain":
            log.append(records(2, timestamp), leader_epoch=leader_epoch)
        elif kind in ("abort", "commit"):
            log.append_end_marker(producer, 0, {"abort": ABORT, "commit": COMMIT}[kind], leader_epoch=leader_epoch)
        else:
            sequence, transactional = sequences.get(producer, 0), kind == "transactional"
            batch = data(0, producer, sequence, transactional=transactional, timestamp=timestamp)
            log.append_encoded_batch(batch, leader_epoch=leader_epoch)
    except AppendRefusedError:
        return


def known(log: LocalLog) -> tuple[object, ...]:
    limits = log.log_start_offset, log.log_end_offset, log.high_watermark, log.last_stable_offset
    # A fetch ends where its segment does.
    fetches = [log.fetch(each.base_offset, 1 << 20, Isolation.READ_COMMITTED) for each in log.segments]
    aborted = {each for fetched in fetches for each in fetched.aborted}
    return limits, log.leader_epochs, log.producers, aborted


def test_a_closed_segment_is_checked_before_anything_after_it_is_deleted(tmp_path: Path) -> None:
    with written(tmp_path) as log:
        log.flush()
        path = log.segments[1].log_path
        content = bytearray(path.read_bytes())
        content[SIZE - 1] ^= 1
        path.write_bytes(content)
        before = {name: (log.directory / name).read_bytes() for name in visible(log)}

        with pytest.raises(CorruptRecordError, match="at byte 0"):
            log.truncate_to(5)

        assert {name: (log.directory / name).read_bytes() for name in visible(log)} == before
        assert log.append_encoded_batch(data(0, 1, 9)) == 9
    with LocalLog.open(log.directory, CONFIG, clock=lambda: NOW) as reopened:
        assert reopened.log_end_offset == 10


@pytest.mark.parametrize("end", [5, 8])
def test_after_a_cut_that_fails_halfway_nothing_is_taken_and_nothing_passes_for_closed(
    tmp_path: Path, end: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = written(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(log_segments, "truncate_log_file", fails)
        with pytest.raises(OSError, match="the disk is gone"):
            log.truncate_to(end)
    before = {path.name: path.read_bytes() for path in log.directory.iterdir()}

    with pytest.raises(InvalidLogDirectoryError, match=r"open.*again"):
        log.append(records(), leader_epoch=8)
    with pytest.raises(InvalidLogDirectoryError, match=r"open.*again"):
        log.truncate_to(2)
    with pytest.raises(InvalidLogDirectoryError, match=r"open.*again"):
        log.truncate_fully_and_start_at(2)
    for _ in range(2):
        with pytest.raises(InvalidLogDirectoryError, match=r"open.*again"):
            log.close()

    assert {path.name: path.read_bytes() for path in log.directory.iterdir()} == before
    ensure_unlocked(tmp_path)


def test_an_error_leaves_the_block_that_it_was_raised_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_segments, "truncate_log_file", fails)

    with pytest.raises(OSError, match="the disk is gone"), written(tmp_path) as log:
        log.truncate_to(8)

    ensure_unlocked(tmp_path)


def fails(*_: object) -> None:
    raise OSError("the disk is gone")
