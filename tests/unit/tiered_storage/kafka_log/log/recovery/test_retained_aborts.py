"""Every rebuild keeps the abort entries of transactions that began in deleted segments."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.local_logs import NOW, TOPIC_ID, records
from support.transactions import ABORT, COMMIT, data, marker
from tiered_storage.kafka_log.files.log_segment import LogSegment, list_segments, producer_snapshot_path
from tiered_storage.kafka_log.indexes.transaction_index import (
    AbortedTxn,
    TransactionIndex,
    encode_aborted_transactions,
)
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.recovery import index_rebuild
from tiered_storage.kafka_log.log.recovery.retained_aborts import RetainedAborts
from tiered_storage.kafka_log.producers.producer_state import ProducerState
from tiered_storage.kafka_log.producers.transaction_state import Isolation
from tiered_storage.kafka_log.records.segment_scan import iterate_segment

BEFORE = AbortedTxn(20, 0, 3, 4)
WITHIN = AbortedTxn(21, 4, 5, 6)
INDEXES = {".index", ".timeindex"}


def create(root: Path, base_offset: int = 0) -> LocalLog:
    return LocalLog.create(root, "orders", 0, TOPIC_ID, clock=lambda: NOW, base_offset=base_offset)


def reopen(directory: Path, recovery_point: int | None = None) -> LocalLog:
    return LocalLog.open(directory, clock=lambda: NOW, recovery_point=recovery_point)


def forget_what_was_before(segment: LogSegment) -> None:
    """Local retention took the segments before, and a broker forgot the snapshot at the log's start as it started."""
    for earlier in list_segments(segment.directory):
        if earlier < segment:
            for path in (earlier.log_path, *earlier.index_paths):
                path.unlink(missing_ok=True)
    for path in segment.directory.glob("*.snapshot"):
        if int(path.stem) <= segment.base_offset:
            path.unlink()


def entries(segment: LogSegment) -> tuple[AbortedTxn, ...]:
    return TransactionIndex.read(segment.transaction_index_path, segment.base_offset).transactions


def aborting(root: Path, *, closed: bool) -> LogSegment:
    """The oldest segment that is left: BEFORE and WITHIN are aborted in it."""
    with create(root) as log:
        for sequence in range(3):
            log.append_encoded_batch(data(0, 20, sequence, transactional=True))
        log.roll()
        log.append_end_marker(20, 0, ABORT)
        log.append_encoded_batch(data(0, 21, 0, transactional=True))
        log.append_end_marker(21, 0, ABORT)
        if closed:
            log.roll()
            log.append(records(1))
        segment = log.segments[1]
    assert entries(segment) == (BEFORE, WITHIN)
    forget_what_was_before(segment)
    return segment


@pytest.mark.parametrize("recovery_point", [None, 0])
@pytest.mark.parametrize("closed", [False, True])
def test_opening_a_log_keeps_aborts_that_only_its_index_has(
    tmp_path: Path, closed: bool, recovery_point: int | None
) -> None:
    segment = aborting(tmp_path, closed=closed)
    file = segment.transaction_index_path.stat()

    for _ in range(2):
        with reopen(segment.directory, recovery_point) as log:
            assert log.mended == ()
            assert aborted(log, 3) == (BEFORE, WITHIN)

    assert entries(segment) == (BEFORE, WITHIN)
    assert segment.transaction_index_path.stat().st_ino == file.st_ino


def test_retained_aborts_stay_on_the_disk_while_the_log_is_open(tmp_path: Path) -> None:
    segment = aborting(tmp_path, closed=False)

    log = reopen(segment.directory)
    assert entries(segment) == (BEFORE, WITHIN)
    log.abandon()

    with reopen(segment.directory) as log:
        log.append_encoded_batch(data(0, 22, 0, transactional=True))
        log.append_end_marker(22, 0, ABORT)
    assert entries(segment) == (BEFORE, WITHIN, AbortedTxn(22, 6, 7, 8))


@pytest.mark.parametrize("lost", [{".index"}, {".timeindex"}, INDEXES])
def test_a_transaction_index_stays_as_it_is_where_only_the_others_are_missing(tmp_path: Path, lost: set[str]) -> None:
    segment = aborting(tmp_path, closed=True)
    file = segment.transaction_index_path.stat()
    for suffix in lost:
        segment.log_path.with_suffix(suffix).unlink()

    with reopen(segment.directory) as log:
        assert len(log.mended) == 1

    assert entries(segment) == (BEFORE, WITHIN)
    assert segment.transaction_index_path.stat().st_ino == file.st_ino
    assert segment.has_indexes()


@pytest.mark.parametrize("recovery_point", [None, 0])
@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda content: content + b"torn", id="torn"),
        pytest.param(lambda content: content[:34] + b"\xff" + content[35:], id="another is broken"),
        pytest.param(lambda content: b"\xff" * 34 + content, id="something before it"),
        pytest.param(lambda content: content[:34], id="another is missing"),
    ],
)
def test_the_readable_entries_of_a_broken_index_stay(
    tmp_path: Path, closed: bool, recovery_point: int | None, damage: Callable[[bytes], bytes]
) -> None:
    segment = aborting(tmp_path, closed=closed)
    content = damage(segment.transaction_index_path.read_bytes())
    is_readable = len(content) == 34
    segment.transaction_index_path.write_bytes(content)

    reopen(segment.directory, recovery_point).close()

    if is_readable and closed and recovery_point is None:
        assert entries(segment) == (BEFORE,)
    else:
        assert entries(segment) == (BEFORE, WITHIN)


def test_an_index_that_breaks_while_the_log_is_open_keeps_it_too(tmp_path: Path) -> None:
    segment = aborting(tmp_path, closed=True)
    with reopen(segment.directory) as log:
        with segment.transaction_index_path.open("ab") as file:
            file.write(b"torn")
        assert aborted(log, 3) == (BEFORE, WITHIN)


@pytest.mark.parametrize(
    "false",
    [
        pytest.param(AbortedTxn(22, 0, 3, 4), id="another producer"),
        pytest.param(AbortedTxn(20, 0, 4, 5), id="no marker"),
        pytest.param(AbortedTxn(20, 3, 3, 4), id="begins where all is known"),
    ],
)
def test_entries_that_the_log_contradicts_are_removed(tmp_path: Path, false: AbortedTxn) -> None:
    segment = aborting(tmp_path, closed=False)
    segment.transaction_index_path.write_bytes(encode_aborted_transactions([false, WITHIN]))

    reopen(segment.directory).close()

    assert entries(segment) == (WITHIN,)


def test_the_log_alone_counts_if_it_holds_all_transactions(tmp_path: Path) -> None:
    with create(tmp_path) as log:
        log.append_encoded_batch(data(0, 20, 0, transactional=True))
        log.roll()
        log.append_encoded_batch(data(0, 20, 1, transactional=True))
        log.append_end_marker(20, 0, ABORT)
        segment = log.segments[1]
    true = entries(segment)
    segment.transaction_index_path.write_bytes(encode_aborted_transactions([AbortedTxn(20, 1, 2, 3)]))

    reopen(segment.directory).close()

    assert entries(segment) == true == (AbortedTxn(20, 0, 2, 3),)


def test_an_abort_that_is_cut_off_is_deleted(tmp_path: Path) -> None:
    segment = aborting(tmp_path, closed=False)
    with reopen(segment.directory) as log:
        log.truncate_to(3)
    assert entries(segment) == ()


def test_a_snapshot_from_incomplete_knowledge_is_not_written(tmp_path: Path) -> None:
    """It would be taken as all that is known when the log is opened the next time."""
    with create(tmp_path) as log:
        log.append_encoded_batch(data(0, 20, 0, transactional=True))
        log.roll()
        log.append(records(1))
        log.roll()
        log.append_end_marker(20, 0, ABORT)
        _, oldest, segment = log.segments
    forget_what_was_before(oldest)
    producer_snapshot_path(oldest.directory, segment.base_offset).unlink()

    for recovery_point in (0, None, 0):
        reopen(oldest.directory, recovery_point).close()
        assert entries(segment) == (AbortedTxn(20, 0, 2, 3),)


def test_an_open_transaction_began_where_the_last_snapshot_says(tmp_path: Path) -> None:
    with create(tmp_path) as log:
        log.append_encoded_batch(data(0, 20, 0, transactional=True))
        log.roll()
        log.append_encoded_batch(data(0, 20, 1, transactional=True))
        segment = log.segments[1]
    forget_what_was_before(segment)

    with reopen(segment.directory) as log:
        log.append_end_marker(20, 0, ABORT)

    assert entries(segment) == (AbortedTxn(20, 0, 2, 3),)


PRODUCERS = st.sampled_from([20, 21, 22])


@given(
    st.lists(st.tuples(st.sampled_from(["data", "abort", "commit"]), PRODUCERS), min_size=1, max_size=20),
    st.data(),
)
def test_with_the_whole_old_index_the_new_one_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[str, int]], drawn: st.DataObject
) -> None:
    """Whichever part of the log is deleted; an index that lost entries loses only those."""
    cut = drawn.draw(st.integers(1, len(events)))
    segment = LogSegment(cut, tmp_path_factory.mktemp("log"))
    batches = [
        data(i, producer, 0, transactional=True)
        if kind == "data"
        else marker(i, producer, ABORT if kind == "abort" else COMMIT)
        for i, (kind, producer) in enumerate(events)
    ]
    whole = segment.directory / "whole.log"
    whole.write_bytes(b"".join(batches))
    segment.log_path.write_bytes(b"".join(batches[cut:]))
    true = [entry for entry in fed(whole, ProducerState(0), 0) if entry.last_offset >= cut]
    segment.transaction_index_path.write_bytes(encode_aborted_transactions(true))

    found = rebuilt(segment)

    assert found == tuple(true)
    left = [entry for entry in true if drawn.draw(st.booleans())]
    segment.transaction_index_path.write_bytes(encode_aborted_transactions(left))
    found = rebuilt(segment)
    assert set(left) <= set(found)
    assert [entry.last_offset for entry in found] == sorted({entry.last_offset for entry in found})


def fed(path: Path, producers: ProducerState, base_offset: int) -> list[AbortedTxn]:
    found: list[AbortedTxn] = []
    for window, batches in iterate_segment(path, base_offset):
        found += producers.feed(path, window, batches)
    return found


def rebuilt(segment: LogSegment) -> tuple[AbortedTxn, ...]:
    earlier = RetainedAborts(segment, segment.base_offset)
    for window, batches in iterate_segment(segment.log_path, segment.base_offset):
        earlier.feed(window, batches)
    return earlier.joined_with(fed(segment.log_path, ProducerState(segment.base_offset), segment.base_offset))


def test_a_retained_abort_keeps_an_earlier_transaction_open_in_rebuilt_entries(tmp_path: Path) -> None:
    """Else who reads offset 1 from another tier would look no further than the first abort."""
    with create(tmp_path) as log:
        log.append_encoded_batch(data(0, 20, 0, transactional=True))
        log.roll()
        log.append_encoded_batch(data(0, 21, 0, transactional=True))
        log.append_end_marker(21, 0, ABORT)
        log.append_encoded_batch(data(0, 20, 1, transactional=True))
        log.append_end_marker(20, 0, ABORT)
        segment = log.segments[1]
        true = aborted(log, 1)
    forget_what_was_before(segment)
    segment.transaction_index_path.write_bytes(struct.pack(">hqqqq", 0, 20, 0, 4, 5))

    with reopen(segment.directory) as log:
        assert aborted(log, 1) == true
    assert entries(segment) == true == (AbortedTxn(21, 1, 2, 0), AbortedTxn(20, 0, 4, 5))


def aborted(log: LocalLog, offset: int) -> tuple[AbortedTxn, ...]:
    return log.fetch(offset, 10_000, Isolation.READ_COMMITTED).aborted


def test_indexes_of_many_segments_are_built_in_few_readings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = LogConfig(segment_bytes=300)
    with LocalLog.create(tmp_path, "orders", 0, TOPIC_ID, config, clock=lambda: NOW) as log:
        for _ in range(24):
            log.append(records(1))
        segments = log.segments
    for path in log.directory.iterdir():
        if path.suffix in {*INDEXES, ".snapshot"}:
            path.unlink()
    readings: list[Path] = []

    def counted(path: Path, *arguments: int, verify_crc: bool = True) -> object:
        readings.append(path)
        return iterate_segment(path, *arguments, verify_crc=verify_crc)

    monkeypatch.setattr(index_rebuild, "iterate_segment", counted)

    LocalLog.open(log.directory, config, clock=lambda: NOW).close()

    assert len(segments) > 10
    assert len(readings) <= 2 * len(segments)
