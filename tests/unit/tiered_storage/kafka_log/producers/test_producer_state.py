from __future__ import annotations

import pickle
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.records import Batch, batch_table
from support.transactions import ABORT, COMMIT, TIME, data, marker
from tiered_storage.errors import CorruptRecordError, OutOfOrderSequenceError
from tiered_storage.kafka_log.indexes.transaction_index import AbortedTxn
from tiered_storage.kafka_log.producers.producer_snapshot import ProducerSnapshotEntry
from tiered_storage.kafka_log.producers.producer_state import ProducerState
from tiered_storage.kafka_log.records.batch_header import read_batch_header
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.kafka_log.records.control_record import read_end_marker
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import encode_batch, encode_empty_batch
from tiered_storage.kafka_log.records.segment_scan import SegmentScanner
from unit.tiered_storage.drawn_records import windows
from unit.tiered_storage.kafka_log.counted_calls import python_calls

PATH = Path("00000000000000000000.log")


def fed(batches: Sequence[bytes], state: ProducerState | None = None) -> tuple[ProducerState, list[AbortedTxn]]:
    """The state after `batches`, taken as one window, and the transactions that they abort."""
    state = state or ProducerState(0)
    window = memoryview(b"".join(batches))
    table, _ = SegmentScanner("test", 0).feed(window)
    return state, state.feed(PATH, window, table)


def added(batches: Sequence[bytes]) -> tuple[ProducerState, list[AbortedTxn]]:
    """The same, taken one by one."""
    state = ProducerState(0)
    aborted = []
    for batch in batches:
        header = read_batch_header(batch)
        transaction = state.add_batch(header, read_end_marker(batch) if header.is_control else None)
        if transaction:
            aborted.append(transaction)
    return state, aborted


def test_batches_without_a_producer_leave_no_trace_but_the_end() -> None:
    state, aborted = fed([data(0, count=3), data(3)])

    assert (state.end_offset, state.snapshot(), aborted) == (4, (), [])


@pytest.mark.parametrize("producer_id", [-2, -(2**63)])
def test_an_id_below_0_is_no_producer(producer_id: int) -> None:
    begun = encode_batch(
        [Record(0, TIME, None, b"x")], producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    for state, aborted in (fed([begun, marker(1, producer_id, ABORT)]), added([begun, marker(1, producer_id, ABORT)])):
        assert (state.snapshot(), state.first_unstable_offset, aborted) == ((), None, [])


def test_a_transaction_is_unstable_until_its_marker_and_the_high_watermark() -> None:
    state, _ = fed([data(0), data(1, 1, 0, transactional=True), data(2, 2, 0, transactional=True)])
    assert (state.first_unstable_offset, state.first_undecided_offset) == (1, 1)

    fed([marker(3, 1)], state)
    assert (state.first_unstable_offset, state.first_undecided_offset) == (1, 2)
    state.on_high_watermark(3)
    assert state.first_unstable_offset == 1
    state.on_high_watermark(4)
    assert state.first_unstable_offset == 2

    fed([marker(4, 2)], state)
    state.on_high_watermark(5)
    assert state.first_unstable_offset is None


def test_an_abort_has_the_last_stable_offset_after_it() -> None:
    _, aborted = fed(
        [
            data(0, 1, 0, transactional=True),
            data(1, 2, 0, transactional=True),
            marker(2, 2, ABORT),
            marker(3, 1, ABORT),
            marker(4, 1, ABORT),
        ]
    )

    assert aborted == [AbortedTxn(2, 1, 2, 0), AbortedTxn(1, 0, 3, 4)]


def test_an_abort_of_a_transaction_from_before_is_known_by_its_snapshot() -> None:
    state = ProducerState(50, [ProducerSnapshotEntry(1, 0, 4, 45, 0, TIME, -1, 41)])
    assert state.first_unstable_offset == 41

    _, aborted = fed([marker(50, 1, ABORT)], state)

    assert aborted == [AbortedTxn(1, 41, 50, 51)]


def test_control_batches_that_say_nothing_of_transactions_change_nothing() -> None:
    begun = data(0, 1, 0, transactional=True)
    leader_change = encode_batch([Record(1, TIME, b"\0\0\0\2", b"")], is_control=True)
    unknown = encode_batch([Record(2, TIME, b"\0\0\0\x63", b"")], producer_id=1, producer_epoch=0, is_control=True)
    emptied = encode_empty_batch(marker(3, 1))

    for state, aborted in (
        fed([begun, leader_change, unknown, emptied]),
        added([begun, leader_change, unknown, emptied]),
    ):
        assert (state.first_unstable_offset, state.end_offset, aborted) == (0, 4, [])


def test_an_empty_batch_that_compaction_left_keeps_its_producers_sequence() -> None:
    state, _ = fed([encode_empty_batch(data(0, 1, 7, count=3))])

    assert state.snapshot() == (ProducerSnapshotEntry(1, 0, 9, 2, 2, TIME + 0, -1, -1),)


def test_batches_below_the_end_offset_change_nothing() -> None:
    batches = [data(0, 1, 0), data(1, 1, 1), data(2, 1, 2)]
    state, _ = fed(batches[:2])
    before = list(state.producers[1].batches)

    fed(batches, state)

    assert [batch.last_offset for batch in before] == [0, 1]
    assert [batch.last_offset for batch in state.producers[1].batches] == [0, 1, 2]


def test_a_window_without_batches_changes_nothing() -> None:
    state, aborted = fed([])

    assert (state.end_offset, aborted) == (0, [])


def test_the_last_five_batches_are_kept_and_sequences_wrap_around() -> None:
    batches = [data(offset, 1, (2**31 - 4 + offset) & 0x7FFFFFFF, count=1) for offset in range(9)]

    for state, _ in (fed(batches), added(batches)):
        assert [(batch.last_offset, batch.last_sequence) for batch in state.producers[1].batches] == [
            (4, 0), (5, 1), (6, 2), (7, 3), (8, 4),
        ]  # fmt: skip


def test_a_state_for_snapshots_keeps_only_the_last_batch() -> None:
    batches = [data(offset, 1, offset) for offset in range(3)]
    state = ProducerState(0, batches_kept=1)

    for part in (batches[:2], batches[2:]):
        fed(part, state)

    assert [batch.last_offset for batch in state.producers[1].batches] == [2]
    assert state.snapshot() == fed(batches)[0].snapshot()


def test_a_returning_producer_epoch_starts_a_new_batch_list() -> None:
    first = [data(0, 1, 0, epoch=1)]
    later = [data(1, 1, 0, epoch=0), data(2, 1, 1, epoch=1)]

    state, _ = fed(first)
    fed(later, state)

    assert state.producers == added([*first, *later])[0].producers
    assert [batch.last_offset for batch in state.producers[1].batches] == [2]


def test_producers_come_in_the_order_of_their_first_batches() -> None:
    state, _ = fed([data(0, 9, 0), data(1, 3, 0), marker(2, 3), data(3, 5, 0), data(4, 9, 1), data(5, 1, 0)])

    assert list(state.producers) == [9, 3, 5, 1]


def test_a_window_of_many_producers_takes_as_many_steps_as_many_windows_of_some() -> None:
    many = table_of_producers(20_000)
    some = windows(many, range(200, 20_000, 200))

    def fed_in(tables: Sequence[BatchTable]) -> tuple[ProducerState, int]:
        state = ProducerState(0)
        return state, python_calls(lambda: [state.feed(PATH, memoryview(b""), table) for table in tables])

    (at_once, steps), (in_turns, steps_in_turns) = fed_in([many]), fed_in(some)
    assert len(at_once.producers) == 20_000
    assert at_once.producers == in_turns.producers
    assert steps <= steps_in_turns


def table_of_producers(producers: int) -> BatchTable:
    """The table of one batch of each of so many producers."""
    table = batch_table(0, [Batch(records=1, size=61, max_timestamp=0)] * producers)
    table.producer_id[:] = np.arange(producers)
    return table


def test_producers_of_a_snapshot_that_are_known_better_are_not_taken() -> None:
    state, _ = fed([data(0, 1, 0)])

    state.adopt([ProducerSnapshotEntry(1, 9, 9, 9, 0, TIME, -1, -1), ProducerSnapshotEntry(2, 0, 3, 4, 0, TIME, -1, 2)])

    assert [entry.producer_epoch for entry in state.snapshot()] == [0, 0]
    assert state.first_unstable_offset == 2


def test_a_refused_batch_leaves_no_trace() -> None:
    state, _ = fed([data(0, 1, 0)])
    before = state.snapshot()

    with pytest.raises(OutOfOrderSequenceError):
        state.check_batch(read_batch_header(data(1, 1, 5)), "orders-0")
    state.check_batch(read_batch_header(data(1, 2, 5)), "orders-0")

    assert state.snapshot() == before


def test_silent_producers_expire() -> None:
    state, _ = fed([data(0, 1, 0), data(1, 2, 0, timestamp=TIME + 50), data(2, 3, 0, transactional=True)])

    state.expire(TIME + 100, 100)

    assert [entry.producer_id for entry in state.snapshot()] == [2, 3]


def test_ended_transactions_take_no_memory() -> None:
    state = ProducerState(0)
    open_ones = [data(offset, 10 + offset, 0, transactional=True) for offset in range(3)]
    fed(open_ones, state)
    for offset in range(3, 2003, 2):
        state.add_batch(read_batch_header(data(offset, 1, offset, transactional=True)))
        end = marker(offset + 1, 1, COMMIT)
        state.add_batch(read_batch_header(end), read_end_marker(end))
        state.on_high_watermark(state.end_offset)

    assert memory_of(state) < memory_of(fed(open_ones)[0]) + 500
    assert state.first_undecided_offset == 0
    assert state.open_transactions == {10: 0, 11: 1, 12: 2}


def memory_of(state: ProducerState) -> int:
    """The bytes that are allocated for a copy of `state`."""
    return len(pickle.dumps(state))


def test_the_latest_silent_producers_and_every_open_transaction_are_kept() -> None:
    batches = [data(0, 99, 0, transactional=True, timestamp=TIME - 1)]
    batches += [data(offset, offset, 0, timestamp=TIME + offset % 7) for offset in range(1, 21)]
    state, _ = fed(batches)

    state.forget_silent(10)
    assert len(state.producers) == 21
    state.forget_silent(9)

    assert list(state.producers) == [99, 4, 5, 6, 11, 12, 13, 18, 19, 20]
    assert state.open_transactions == {99: 0}


def test_a_marker_that_cannot_be_read_is_named_with_its_place() -> None:
    first = data(0, 1, 0)
    broken = encode_batch([Record(1, TIME, b"\0", b"")], producer_id=1, producer_epoch=0, is_control=True)

    with pytest.raises(CorruptRecordError, match="control record") as raised:
        fed([first, broken])

    assert (raised.value.path, raised.value.position) == (str(PATH), len(first))


steps = st.tuples(
    st.sampled_from(["plain", "idempotent", "transactional", "transactional", "commit", "abort"]),
    st.integers(0, 2),
    st.integers(0, 1),
    st.integers(1, 3),
)


@given(st.lists(steps, max_size=60), st.sets(st.integers(0, 60), max_size=3))
def test_windows_and_single_batches_lead_to_the_same_state(
    course: list[tuple[str, int, int, int]], borders: set[int]
) -> None:
    batches: list[bytes] = []
    offset = 0
    for kind, producer_id, epoch, count in course:
        if kind in ("commit", "abort"):
            batches.append(marker(offset, producer_id, COMMIT if kind == "commit" else ABORT, epoch=epoch))
            offset += 1
            continue
        producer = -1 if kind == "plain" else producer_id
        batches.append(
            data(
                offset,
                producer,
                offset if producer >= 0 else -1,
                count=count,
                epoch=epoch,
                transactional=kind == "transactional",
                timestamp=TIME + offset,
            )
        )
        offset += count

    expected, expected_aborts = added(batches)
    state = ProducerState(0)
    aborts = []
    cuts = [0, *sorted(border for border in borders if border < len(batches)), len(batches)]
    for begin, end in pairwise(cuts):
        aborts += fed(batches[begin:end], state)[1]

    assert (state.end_offset, aborts) == (expected.end_offset, expected_aborts)
    assert state.producers == expected.producers
    assert state.snapshot() == expected.snapshot()
    assert state.first_unstable_offset == expected.first_unstable_offset
