from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tiered_storage.kafka_log.indexes.aborted_batches import AbortedBatches
from tiered_storage.kafka_log.indexes.transaction_index import AbortedTransaction
from tiered_storage.kafka_log.kernels.constants import CONTROL_BIT, TRANSACTIONAL_BIT
from tiered_storage.kafka_log.records.batch_table import BatchTable

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
    transactions = [AbortedTransaction(each, first, first + size, first + size + 1) for each, first, size in spans]

    expected = [
        bits == TRANSACTIONAL_BIT
        and any(
            each.producer_id == producer_id and each.first_offset <= table.base_offset[row] <= each.last_offset
            for each in transactions
        )
        for row, (producer_id, bits, _) in enumerate(rows)
    ]
    assert AbortedBatches(transactions).holds(table).tolist() == expected
