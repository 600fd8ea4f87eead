"""What the copier makes of transaction indexes that are missing, broken or false."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from support.command_line import mentions
from support.local_logs import TOPIC_ID
from support.remote_logs import flip_bit, unsynced
from support.transactions import ABORT, data, marker
from tiered_storage.kafka_log.files.log_segment import LogSegment, list_segments
from tiered_storage.kafka_log.indexes.transaction_index import (
    ENTRY_BYTES,
    AbortedTxn,
    TransactionIndex,
    encode_aborted_transactions,
)
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.producers.producer_history import ProducerHistory
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager
from unit.tiered_storage.follower_fetches import (
    BEGINS_AGAIN,
    BEGINS_AGAIN_INDEX,
    BEGUN_AGAIN_ABORT,
    BEGUN_AGAIN_ABORTED,
    BEGUN_AGAIN_ABORTED_INDEX,
)
from unit.tiered_storage.remote_log.copy.copied_producers import (
    CONFIG,
    copied,
    empty,
    false_at,
    fetched,
    forget_what_was_before,
    missing,
    nonsense,
    one_more,
    refused,
    snapshot_before,
    torn,
)

DAMAGES = [
    *(pytest.param(damage, id=damage.__name__) for damage in (missing, empty, nonsense, torn, one_more)),
    *(pytest.param(false_at(end), id=f"false to byte {end}") for end in (9, 17, 25)),
]
"""The last bytes of an entry's producer id, first offset and last offset."""


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("before", ["snapshot", "segments"])
def test_an_index_that_is_not_true_is_reported_and_a_rebuilt_one_travels(
    aborting: LogSegment, storage: ObjectRemoteStorageManager, damage: Callable[[Path], None], before: str
) -> None:
    path = aborting.transaction_index_path
    true = path.read_bytes()
    damage(path)
    if before == "segments":
        for snapshot in aborting.directory.glob("*.snapshot"):
            if int(snapshot.stem) <= aborting.base_offset:
                snapshot.unlink()

    outcome = copied(aborting, storage)

    assert fetched(outcome, storage, IndexKind.TRANSACTION) == true
    [message] = outcome.damages
    assert str(path) in message
    assert mentions(message, "rebuilt", "broker is stopped", aborting.offset_index_path)


@pytest.mark.parametrize(("difference", "travels"), [(-3, -3), (1, 0), (100, 0)])
@pytest.mark.parametrize("before", ["known", "unknown"])
def test_another_last_stable_offset_is_no_damage_and_the_lower_one_travels(
    aborting: LogSegment, storage: ObjectRemoteStorageManager, difference: int, travels: int, before: str
) -> None:
    path = aborting.transaction_index_path
    [true] = TransactionIndex.read(path, aborting.base_offset).transactions
    false = replace(true, last_stable_offset=true.last_stable_offset + difference)
    path.write_bytes(encode_aborted_transactions([false]))
    if before == "unknown":
        forget_what_was_before(aborting)
        travels = min(difference, true.last_offset + 1 - true.last_stable_offset)

    with mock.patch.object(ProducerHistory, "by_the_log", side_effect=ProducerHistory.by_the_log, autospec=True) as by:
        outcome = copied(aborting, storage)

    expected = replace(true, last_stable_offset=true.last_stable_offset + travels)
    assert fetched(outcome, storage, IndexKind.TRANSACTION) == encode_aborted_transactions([expected])
    assert outcome.damages == outcome.notices == ()
    assert by.call_count == (before == "unknown")


@pytest.mark.parametrize("oldest", [False, True])
def test_a_brokers_index_of_whole_fetches_is_sound_and_ends_no_read_early(
    tmp_path: Path, storage: ObjectRemoteStorageManager, oldest: bool
) -> None:
    """Also as the oldest segments of a log that begins later, after others in the store."""
    with unsynced(), LocalLog.create(tmp_path, "orders", 0, TOPIC_ID) as log:
        for fetch in (BEGINS_AGAIN, BEGUN_AGAIN_ABORTED):
            log.append_as_follower(fetch)
            log.roll()
        first, second, _ = log.segments
    first.transaction_index_path.write_bytes(BEGINS_AGAIN_INDEX)
    assert second.transaction_index_path.read_bytes() == BEGUN_AGAIN_ABORTED_INDEX
    if oldest:
        first.log_path.unlink()
        snapshot_before(second).unlink()

    sent = []
    for segment in (first, second)[oldest:]:
        outcome = copied(segment, storage)
        assert outcome.damages == outcome.notices == ()
        path = tmp_path / f"sent.{segment.base_offset}"
        path.write_bytes(fetched(outcome, storage, IndexKind.TRANSACTION))
        sent.append(TransactionIndex.read(path, segment.base_offset))

    assert sent[-1].transactions == (BEGUN_AGAIN_ABORT,)
    if not oldest:
        assert [entry.last_stable_offset for entry in sent[0].transactions] == [2]


def test_an_index_of_a_segment_without_aborts_is_false(directory: Path, storage: ObjectRemoteStorageManager) -> None:
    first, *_, aborting = (
        segment for segment in list_segments(directory) if segment.base_offset == 0 or segment.has_transaction_index()
    )
    entry = replace(
        TransactionIndex.read(aborting.transaction_index_path, 0).transactions[0],
        first_offset=0,
        last_offset=1,
        last_stable_offset=2,
    )
    first.transaction_index_path.write_bytes(encode_aborted_transactions([entry]))

    outcome = copied(first, storage)

    assert fetched(outcome, storage, IndexKind.TRANSACTION) == b""
    [message] = outcome.damages
    assert mentions(message, f"{first.transaction_index_path}: at byte 0: ")


@pytest.mark.parametrize(
    "damage", [missing, nonsense, torn, one_more, false_at(9), false_at(25)], ids=lambda damage: damage.__name__
)
def test_nothing_is_copied_if_the_aborts_are_unknown(
    aborting: LogSegment, storage: ObjectRemoteStorageManager, damage: Callable[[Path], None]
) -> None:
    damage(aborting.transaction_index_path)
    snapshot = snapshot_before(aborting)
    forget_what_was_before(aborting)

    message = refused(copied(aborting, storage), storage)

    assert str(aborting.transaction_index_path) in message
    assert mentions(message, snapshot, "another replica")
    assert f"before offset {aborting.base_offset}" in message


@pytest.mark.parametrize("gap", ["broken", "gone", "of an older format"])
def test_a_gap_in_the_log_before_leaves_nothing_known(
    aborting: LogSegment, storage: ObjectRemoteStorageManager, gap: str
) -> None:
    *_, before_that, before = [each for each in list_segments(aborting.directory) if each < aborting]
    if gap == "broken":
        flip_bit(before.log_path, 100)
    elif gap == "gone":
        before.log_path.unlink()
    else:
        before.log_path.write_bytes(before.log_path.read_bytes()[:16] + b"\1" + before.log_path.read_bytes()[17:])
    for segment in (before_that, before, aborting):
        snapshot_before(segment).unlink(missing_ok=True)
    aborting.transaction_index_path.unlink()

    assert f"before offset {aborting.base_offset}" in refused(copied(aborting, storage), storage)


def test_an_index_that_nothing_contradicts_is_believed(
    aborting: LogSegment, storage: ObjectRemoteStorageManager
) -> None:
    """Only the index has the aborts of offsets before the log's start."""
    true = aborting.transaction_index_path.read_bytes()
    forget_what_was_before(aborting)

    outcome = copied(aborting, storage)

    assert fetched(outcome, storage, IndexKind.TRANSACTION) == true
    assert outcome.damages == outcome.notices == ()


def test_a_segment_without_transactions_needs_no_earlier_state(
    directory: Path, storage: ObjectRemoteStorageManager
) -> None:
    segment = next(each for each in list_segments(directory)[1:] if not each.has_transaction_index())
    forget_what_was_before(segment)
    nonsense(segment.transaction_index_path)

    outcome = copied(segment, storage)

    assert fetched(outcome, storage, IndexKind.TRANSACTION) == b""
    [message] = outcome.damages
    assert str(segment.transaction_index_path) in message


@pytest.fixture
def fenced(tmp_path: Path) -> LogSegment:
    """The oldest segment that a broker left: an idle producer was fenced, and the snapshot is gone by a restart."""
    with unsynced(), LocalLog.create(tmp_path, "orders", 0, TOPIC_ID, CONFIG, base_offset=20) as log:
        log.append_as_follower(data(20, count=2) + marker(22, 7, ABORT) + data(23, count=2))
        log.roll()
        log.append_as_follower(data(25))
    segment = LogSegment(20, log.directory)
    assert not segment.has_transaction_index()
    return segment


@pytest.mark.parametrize("readable_from", [20, 22])
def test_the_abort_of_an_empty_transaction_needs_no_index(
    fenced: LogSegment, storage: ObjectRemoteStorageManager, readable_from: int
) -> None:
    outcome = copied(fenced, storage, readable_from=readable_from)

    assert fetched(outcome, storage, IndexKind.TRANSACTION) == b""
    assert outcome.damages == ()
    [message] = outcome.notices
    assert mentions(message, f"{fenced.transaction_index_path} is missing", "abort markers")
    assert "records from offset 20 on" in message


def test_a_missing_transaction_index_is_not_taken_for_empty_if_the_store_has_earlier_records(
    fenced: LogSegment, storage: ObjectRemoteStorageManager
) -> None:
    message = refused(copied(fenced, storage, readable_from=19), storage)

    assert mentions(message, "from 19 on", "aborted records")
    assert "empty file" in message
    fenced.transaction_index_path.touch()
    outcome = copied(fenced, storage, readable_from=19)
    assert outcome.failure is None
    assert outcome.damages == outcome.notices == ()


@pytest.mark.parametrize(
    "damage", [missing, empty, nonsense, torn, one_more, false_at(9)], ids=lambda damage: damage.__name__
)
def test_the_log_suffices_if_the_store_has_nothing_before_it(
    tmp_path: Path, storage: ObjectRemoteStorageManager, damage: Callable[[Path], None]
) -> None:
    """Of the transaction that began before, readers are given what is in this segment, and skip that."""
    with unsynced(), LocalLog.create(tmp_path, "orders", 0, TOPIC_ID, CONFIG) as log:
        log.append_as_follower(data(0, 7, 0, transactional=True))
        log.roll()
        log.append_as_follower(data(1) + data(2, 7, 1, transactional=True) + marker(3, 7, ABORT))
        log.roll()
        _, segment, _ = log.segments
    damage(segment.transaction_index_path)
    forget_what_was_before(segment)

    outcome = copied(segment, storage, readable_from=1)

    expected = encode_aborted_transactions([AbortedTxn(7, 2, 3, 4)])
    assert fetched(outcome, storage, IndexKind.TRANSACTION) == expected
    [message] = outcome.damages
    assert str(segment.transaction_index_path) in message
    assert "rebuilt from the log" in message


def test_an_empty_index_says_that_nothing_was_aborted(
    followed: LogSegment, storage: ObjectRemoteStorageManager
) -> None:
    assert "empty file" in refused(copied(followed, storage), storage)
    followed.transaction_index_path.touch()

    outcome = copied(followed, storage)

    assert fetched(outcome, storage, IndexKind.TRANSACTION) == b""
    assert outcome.damages == outcome.notices == ()


def test_an_index_must_have_the_aborts_of_the_log(tmp_path: Path, storage: ObjectRemoteStorageManager) -> None:
    with unsynced(), LocalLog.create(tmp_path, "orders", 0, TOPIC_ID, CONFIG, base_offset=100) as log:
        log.append_as_follower(data(100, 8, 0, transactional=True) + marker(101, 8, ABORT))
        log.roll()
    segment = LogSegment(100, log.directory)
    content = segment.transaction_index_path.read_bytes()
    assert fetched(copied(segment, storage), storage, IndexKind.TRANSACTION) == content
    empty(segment.transaction_index_path)

    outcome = copied(segment, ObjectRemoteStorageManager(LocalDirectory(tmp_path / "other")))

    assert outcome.failure is not None
    assert mentions(outcome.failure.message, segment.transaction_index_path, "abort", "transaction index")


@pytest.fixture
def two_aborts(tmp_path: Path) -> LogSegment:
    """The oldest segment that is left; the first of its aborts, at offset 3, is of a transaction from before."""
    with unsynced(), LocalLog.create(tmp_path, "orders", 0, TOPIC_ID, CONFIG) as log:
        log.append_as_follower(data(0, 20, 0, count=3, transactional=True))
        log.roll()
        log.append_as_follower(
            marker(3, 20, ABORT) + data(4, 21, 0, transactional=True) + marker(5, 21, ABORT) + marker(6, 21, ABORT)
        )
        log.roll()
        _, segment, _ = log.segments
    forget_what_was_before(segment)
    return segment


def test_an_abort_that_its_index_lacks_is_reported_where_it_may_matter(
    two_aborts: LogSegment, storage: ObjectRemoteStorageManager
) -> None:
    assert copied(two_aborts, storage).notices == ()
    path = two_aborts.transaction_index_path
    path.write_bytes(path.read_bytes()[ENTRY_BYTES:])

    outcome = copied(two_aborts, storage)

    assert fetched(outcome, storage, IndexKind.TRANSACTION) == path.read_bytes()
    assert outcome.damages == ()
    [message] = outcome.notices
    assert mentions(message, path, "1 abort markers", "offset 3")
    assert "began before offset 3" in message
    assert copied(two_aborts, storage, readable_from=3).notices == ()


def test_an_abort_whose_producer_ended_one_before_needs_no_entry(
    tmp_path: Path, storage: ObjectRemoteStorageManager
) -> None:
    with unsynced(), LocalLog.create(tmp_path, "orders", 0, TOPIC_ID, CONFIG, base_offset=10) as log:
        log.append_as_follower(marker(10, 20))
        log.roll()
        log.append_as_follower(marker(11, 20, ABORT) + data(12, 21, 0, transactional=True) + marker(13, 21, ABORT))
        log.roll()
        first, segment, _ = log.segments
    for each in (first, segment):
        snapshot_before(each).unlink(missing_ok=True)

    outcome = copied(segment, storage)

    assert outcome.failure is None
    assert outcome.damages == outcome.notices == ()
