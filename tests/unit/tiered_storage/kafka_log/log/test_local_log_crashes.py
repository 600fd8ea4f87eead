"""A process killed at any step leaves a log that opens in the state before or after that step."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from support.files import files_in
from support.local_logs import NOW, create, read_all
from support.transactions import data
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.producers.producer_snapshot import ProducerSnapshotEntry
from tiered_storage.kafka_log.records.record import Record
from unit.tiered_storage.kafka_log.log.crash_states import Files, crash_states, lay_out
from unit.tiered_storage.kafka_log.log.small_logs import SMALL_SEGMENTS, many_segments

Known = tuple[int, int, list[Record], tuple[EpochEntry, ...], tuple[ProducerSnapshotEntry, ...]]


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a machine would lose is not looked at here, and syncing is nearly all of the time."""
    monkeypatch.setattr(os, "fsync", Mock())


def reopen(directory: Path, log_start_offset: int = 0, recovery_point: int | None = 0) -> LocalLog:
    return LocalLog.open(
        directory,
        SMALL_SEGMENTS,
        clock=lambda: NOW,
        log_start_offset=log_start_offset,
        recovery_point=recovery_point,
    )


def known(log: LocalLog) -> Known:
    return log.log_start_offset, log.log_end_offset, read_all(log), log.leader_epochs, log.producers


def written(directory: Path, base_offset: int, count: int = 9) -> LocalLog:
    """Batches of one producer, three in a segment and four in a leader epoch."""
    log = create(directory, config=SMALL_SEGMENTS, base_offset=base_offset)
    for sequence in range(count):
        log.append_encoded_batch(data(0, 1, sequence), leader_epoch=sequence // 4)
    return log


def beginnings(root: Path, base_offset: int) -> list[Known]:
    """What is known of each log that such a one may begin with."""
    found = []
    for count in range(10):
        with written(root / str(count), base_offset, count) as log:
            found.append(known(log))
    return found


def states_of(log: LocalLog, change: Callable[[], object]) -> list[Files]:
    with crash_states(log.directory) as states:
        change()
    return states


@pytest.mark.parametrize("torn", [0, 1, 2])
def test_a_crash_anywhere_in_a_recovery_leaves_no_hole(tmp_path: Path, torn: int) -> None:
    log = many_segments(tmp_path / "log")
    path = log.segments[torn].log_path
    path.write_bytes(path.read_bytes()[:-30])
    with crash_states(log.directory) as states, reopen(log.directory) as recovered:
        expected = known(recovered)
    assert expected[1] == 3 * torn + 2

    directory = tmp_path / "left" / "orders-3"
    for state in states:
        lay_out(directory, state)
        with reopen(directory) as after:
            assert known(after) == expected


@pytest.mark.parametrize("base_offset", [0, 7])
@pytest.mark.parametrize("offset", [0, 3, 4, 7, 10, 11, 16, 50])
def test_a_crash_while_a_log_is_emptied_leaves_a_beginning_of_it_or_the_empty_one(
    tmp_path: Path, base_offset: int, offset: int
) -> None:
    allowed = [*beginnings(tmp_path / "beginnings", base_offset), (offset, offset, [], (), ())]
    for is_closed in (True, False):
        log = written(tmp_path / str(is_closed), base_offset)
        if is_closed:
            log.close()
            log = reopen(log.directory)
        else:
            log.flush()

        states = states_of(log, partial(log.truncate_fully_and_start_at, offset))
        log.close()

        directory = tmp_path / "left" / "orders-3"
        for state in states:
            lay_out(directory, state)
            with reopen(directory) as after:
                assert known(after) in allowed
        assert known(reopen(log.directory)) == allowed[-1]


@pytest.mark.parametrize("base_offset", [0, 7])
def test_a_crash_while_a_log_that_starts_after_its_end_is_emptied_changes_nothing(
    tmp_path: Path, base_offset: int
) -> None:
    log = written(tmp_path / "log", base_offset)
    log.close()
    with crash_states(log.directory) as states, reopen(log.directory, log_start_offset=50) as emptied:
        assert known(emptied) == (50, 50, [], (), ())

    directory = tmp_path / "left" / "orders-3"
    for state in states:
        lay_out(directory, state)
        with reopen(directory, log_start_offset=50) as after:
            assert known(after) == (50, 50, [], (), ())


@pytest.mark.parametrize("end", range(10))
def test_a_crash_while_a_log_is_cut_leaves_at_least_what_was_to_stay(tmp_path: Path, end: int) -> None:
    allowed = beginnings(tmp_path / "beginnings", 0)[end:]
    log = written(tmp_path / "log", 0)
    log.flush()

    states = states_of(log, lambda: log.truncate_to(end))
    assert known(log) == allowed[0]
    log.abandon()

    directory = tmp_path / "left" / "orders-3"
    for state in [*states, files_in(log.directory)]:
        lay_out(directory, state)
        with reopen(directory) as after:
            assert known(after) in allowed
