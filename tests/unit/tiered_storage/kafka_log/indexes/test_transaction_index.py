from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered_storage.errors import CorruptIndexError
from tiered_storage.kafka_log.indexes.transaction_index import (
    ENTRY_BYTES,
    AbortedBatches,
    AbortedTxn,
    TransactionIndex,
    TxnIndexSearchResult,
    collect_aborted,
)
from tiered_storage.kafka_log.kernels.constants import CONTROL_BIT, TRANSACTIONAL_BIT
from tiered_storage.kafka_log.records.batch_table import BatchTable
from unit.tiered_storage.follower_fetches import (
    BEGINS_AGAIN_INDEX,
    BEGUN_AGAIN_ABORT,
    BEGUN_AGAIN_ABORTED_INDEX,
    OTHER_BEGINS_LATER_INDEX,
)

BY_HAND = bytes.fromhex("0000 00000000000003e8 0000000000000005 0000000000000014 0000000000000007")


@st.composite
def indexes(draw: st.DrawFn) -> TransactionIndex:
    base_offset = last_offset = draw(st.integers(0, 1000))
    transactions = []
    for _ in range(draw(st.integers(0, 6))):
        last_offset += draw(st.integers(1, 20))
        transactions.append(
            AbortedTxn(
                draw(st.integers(0, 2**63 - 1)),
                draw(st.integers(0, last_offset)),
                last_offset,
                draw(st.integers(0, last_offset + 30)),
            )
        )
    return TransactionIndex(base_offset, tuple(transactions))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "00000000000000000010.txnindex"


@given(indexes())
def test_an_index_survives_its_file(tmp_path_factory: pytest.TempPathFactory, index: TransactionIndex) -> None:
    path = tmp_path_factory.mktemp("index") / f"{index.base_offset:020d}.txnindex"

    path.write_bytes(index.to_bytes())

    assert TransactionIndex.read(path, index.base_offset) == index
    assert path.stat().st_size == len(index.transactions) * ENTRY_BYTES


def test_an_entry_has_kafkas_bytes(path: Path) -> None:
    path.write_bytes(BY_HAND)

    index = TransactionIndex.read(path, 10)

    assert index == TransactionIndex(10, (AbortedTxn(1000, 5, 20, 7),))
    assert index.to_bytes() == BY_HAND


def test_an_index_that_a_follower_wrote_for_a_whole_fetch_is_read(path: Path) -> None:
    path.write_bytes(OTHER_BEGINS_LATER_INDEX)

    index = TransactionIndex.read(path, 0)

    assert index == TransactionIndex(0, (AbortedTxn(7, 0, 1, 10),))
    assert index.to_bytes() == OTHER_BEGINS_LATER_INDEX


def test_a_missing_file_has_no_aborts(path: Path) -> None:
    assert TransactionIndex.read(path, 10) == TransactionIndex(10)


@pytest.mark.parametrize(
    ("content", "position", "reason"),
    [
        (BY_HAND + BY_HAND[:-1], 34, "whole number of entries"),
        (b"\0\1" + BY_HAND[2:], 0, "entry version 1 is unknown"),
        (bytes(34), 0, "offset 0 comes before 10"),
        (BY_HAND + BY_HAND, 34, "offset 20 comes before 21"),
        (BY_HAND[:10] + b"\xff" * 8 + BY_HAND[18:], 0, "goes from offset -1 to 20"),
        (BY_HAND[:10] + b"\0" * 7 + b"\x15" + BY_HAND[18:], 0, "goes from offset 21 to 20"),
        (BY_HAND[:26] + b"\xff" * 8, 0, "offset -1 is below 0"),
    ],
)
def test_impossible_entries_are_refused_with_their_position(
    path: Path, content: bytes, position: int, reason: str
) -> None:
    path.write_bytes(content)

    with pytest.raises(CorruptIndexError, match=reason) as raised:
        TransactionIndex.read(path, 10)

    assert (raised.value.path, raised.value.position) == (str(path), position)


@given(st.binary(max_size=150))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("index") / "00000000000000000000.txnindex"
    path.write_bytes(content)

    try:
        index = TransactionIndex.read(path, 0)
    except CorruptIndexError as error:
        assert error.path == str(path)
    else:
        assert index.to_bytes() == content


def test_a_look_up_continues_into_later_segments_until_nothing_before_can_be_aborted_any_more() -> None:
    first = TransactionIndex(0, (AbortedTxn(1, 2, 8, 4), AbortedTxn(2, 4, 9, 5)))
    second = TransactionIndex(10, (AbortedTxn(3, 5, 12, 13),))
    third = TransactionIndex(20, (AbortedTxn(4, 21, 25, 26),))

    assert first.collect_aborted(0, 3) == TxnIndexSearchResult(first.transactions[:1], is_complete=True)
    assert first.collect_aborted(0, 10) == TxnIndexSearchResult(first.transactions, is_complete=False)
    assert first.collect_aborted(9, 10) == TxnIndexSearchResult(first.transactions[1:], is_complete=False)

    asked: list[int] = []

    def all_indexes() -> object:
        for index in (first, second, third):
            asked.append(index.base_offset)
            yield index

    found = collect_aborted(all_indexes(), 0, 10)  # type: ignore[arg-type]
    assert found == TxnIndexSearchResult((*first.transactions, *second.transactions), is_complete=True)
    assert asked == [0, 10]
    assert not collect_aborted([first, second], 0, 30).is_complete


def test_a_look_up_stops_at_no_offset_after_a_marker(tmp_path: Path) -> None:
    """A follower's entry names a later transaction, and passes over the one that its own producer begins before."""
    indexes = []
    for base_offset, content in ((0, BEGINS_AGAIN_INDEX), (11, BEGUN_AGAIN_ABORTED_INDEX)):
        path = tmp_path / f"{base_offset:020d}.txnindex"
        path.write_bytes(content)
        indexes.append(TransactionIndex.read(path, base_offset))

    assert not indexes[0].collect_aborted(2, 10).is_complete
    assert collect_aborted(indexes, 2, 10) == TxnIndexSearchResult((BEGUN_AGAIN_ABORT,), is_complete=True)
    assert indexes[0].collect_aborted(0, 2) == TxnIndexSearchResult(indexes[0].transactions, is_complete=True)


producers = st.integers(0, 2)
attributes = st.sampled_from([0, TRANSACTIONAL_BIT, TRANSACTIONAL_BIT | CONTROL_BIT])


@given(
    st.lists(st.tuples(producers, attributes, st.integers(1, 5)), max_size=20),
    st.lists(st.tuples(producers, st.integers(0, 40), st.integers(0, 20)), max_size=8),
)
def test_a_batch_is_held_if_any_transaction_of_its_producer_spans_it(
    rows: list[tuple[int, int, int]], spans: list[tuple[int, int, int]]
) -> None:
    table, offset = BatchTable.allocate(len(rows)), 0
    for row, (producer_id, bits, count) in enumerate(rows):
        table.base_offset[row], table.producer_id[row], table.attributes[row] = offset, producer_id, bits
        offset += count
    transactions = [AbortedTxn(each, first, first + size, first + size + 1) for each, first, size in spans]

    expected = [
        bits == TRANSACTIONAL_BIT
        and any(
            each.producer_id == producer_id and each.first_offset <= table.base_offset[row] <= each.last_offset
            for each in transactions
        )
        for row, (producer_id, bits, _) in enumerate(rows)
    ]
    assert AbortedBatches(transactions).holds(table).tolist() == expected
