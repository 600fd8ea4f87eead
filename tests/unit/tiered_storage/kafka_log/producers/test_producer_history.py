from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from support.local_logs import TOPIC_ID
from support.remote_logs import flip_bit, unsynced
from support.transactions import TIME, data
from tiered_storage.kafka_log.files.log_segment import LogSegment, list_segments, producer_snapshot_path
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.producers import producer_history
from tiered_storage.kafka_log.producers.producer_history import DIRECTORIES_REMEMBERED, KnownProducers, ProducerHistory
from tiered_storage.kafka_log.producers.producer_snapshot import read_producer_snapshot, write_producer_snapshot


def log_from(tmp_path: Path, base_offset: int) -> Path:
    """A log of five segments, each with one batch of a producer of its own."""
    with unsynced(), LocalLog.create(tmp_path, "orders", 0, TOPIC_ID, base_offset=base_offset) as log:
        for producer_id in range(5):
            log.append_encoded_batch(data(0, producer_id, 0, transactional=True))
            log.roll()
    return log.directory


def known_at(directory: Path, offset: int, history: ProducerHistory | None = None) -> KnownProducers:
    return (history or ProducerHistory()).before(LogSegment(offset, directory))


def expected(directory: Path, offset: int) -> KnownProducers:
    return KnownProducers(offset, read_producer_snapshot(producer_snapshot_path(directory, offset)))


def test_at_offset_0_nothing_was_before(tmp_path: Path) -> None:
    assert known_at(log_from(tmp_path, 0), 0) == KnownProducers(0)


def test_a_snapshot_has_all_producers(tmp_path: Path) -> None:
    directory = log_from(tmp_path, 0)
    for segment in list_segments(directory)[:3]:
        segment.log_path.unlink()

    known = known_at(directory, 3)

    assert known == expected(directory, 3)
    assert known.open_transactions == {0: 0, 1: 1, 2: 2}


@pytest.mark.parametrize("nearest", [None, 1, 2])
@pytest.mark.parametrize("own", ["missing", "broken"])
def test_without_it_the_log_is_read_from_the_nearest_one_on(tmp_path: Path, nearest: int | None, own: str) -> None:
    directory = log_from(tmp_path, 0)
    known = expected(directory, 3)
    for offset in range(1, 4):
        if offset != nearest:
            producer_snapshot_path(directory, offset).unlink()
    if own == "broken":
        producer_snapshot_path(directory, 3).write_bytes(b"broken")
    if nearest:
        LogSegment(nearest - 1, directory).log_path.write_bytes(b"nobody reads this")

    assert known_at(directory, 3) == known


def test_producers_can_be_read_from_the_log_despite_a_wrong_snapshot(tmp_path: Path) -> None:
    directory = log_from(tmp_path, 0)
    known = expected(directory, 3)
    write_producer_snapshot(producer_snapshot_path(directory, 3))

    assert known_at(directory, 3).open_transactions == {}
    assert ProducerHistory().by_the_log(LogSegment(3, directory)) == known


def test_a_log_that_begins_later_knows_only_the_rest(tmp_path: Path) -> None:
    directory = log_from(tmp_path, 100)
    known = expected(directory, 102)
    for offset in (101, 102):
        producer_snapshot_path(directory, offset).unlink()

    assert known_at(directory, 100) == KnownProducers(100, (), 100)
    assert known_at(directory, 102) == KnownProducers(102, known.producers, 100)


@pytest.mark.parametrize("damage", ["broken", "missing"])
def test_after_a_gap_only_the_rest_is_known(tmp_path: Path, damage: str) -> None:
    directory = log_from(tmp_path, 0)
    for offset in range(1, 5):
        producer_snapshot_path(directory, offset).unlink()
    path = LogSegment(2, directory).log_path
    if damage == "broken":
        flip_bit(path, 70)
    else:
        path.unlink()

    known = known_at(directory, 4)

    assert known.seen_from == 3
    assert known.open_transactions == {3: 3}


def test_the_history_returns_remembered_producers_without_reading(tmp_path: Path) -> None:
    directory = log_from(tmp_path, 0)
    known = expected(directory, 3)
    for offset in range(1, 5):
        producer_snapshot_path(directory, offset).unlink()
    history = ProducerHistory()

    history.remember(directory, known)
    history.remember(directory, KnownProducers(1))

    for offset in range(3):
        LogSegment(offset, directory).log_path.write_bytes(b"nobody reads this")
    assert known_at(directory, 3, history) == known
    assert known_at(directory, 4, history).open_transactions == {0: 0, 1: 1, 2: 2, 3: 3}


def test_the_logs_that_are_remembered_are_few(tmp_path: Path) -> None:
    history = ProducerHistory()
    directories = [log_from(tmp_path / str(number), 0) for number in range(DIRECTORIES_REMEMBERED + 1)]
    marked = KnownProducers(3, (), 2)
    for directory in directories:
        history.remember(directory, marked)

    assert [known_at(directory, 3, history) == marked for directory in directories] == [False, True, True, True, True]


def test_the_latest_of_many_silent_producers_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_history, "PRODUCERS_KEPT", 4)
    numbers = count()
    with unsynced(), LocalLog.create(tmp_path, "orders", 0, TOPIC_ID) as log:
        log.append_encoded_batch(data(0, next(numbers), 0, transactional=True))
        for _ in range(10):
            for _ in range(5):
                number = next(numbers)
                log.append_encoded_batch(data(0, number, 0, timestamp=TIME + number))
            log.roll()
    for path in log.directory.glob("*.snapshot"):
        path.unlink()

    known = known_at(log.directory, 51)

    assert known.open_transactions == {0: 0}
    silent = sorted(entry.producer_id for entry in known.producers if entry.producer_id)
    assert silent == list(range(51 - len(silent), 51))
    assert 4 <= len(silent) <= 8
