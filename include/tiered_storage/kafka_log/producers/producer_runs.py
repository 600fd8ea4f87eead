"""The data batches of a window by producer: the batches of one producer between two end markers are one run.

All runs of a window are found at once, column by column: many producers, or many short transactions, cost no more than
their batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tiered_storage.kafka_log.kernels.constants import INT32_MAX, TRANSACTIONAL_BIT
from tiered_storage.kafka_log.producers.producer_entry import BATCHES_KEPT, NO_OFFSET, AppendedBatch
from tiered_storage.kafka_log.records.batch_header import NO_SEQUENCE
from tiered_storage.kafka_log.records.batch_table import BatchTable


@dataclass(frozen=True, slots=True)
class ProducerRun:
    """What a producer appended from row `first_row` of a window on, up to the next end marker of any producer.

    `batches` are the last ones (at most five) of the run's last `epoch`; `earlier_epoch` is the epoch before that, or
    None. `transaction_first_offset` is that of the first transactional batch; -1: none.
    """

    first_row: int
    producer_id: int
    epoch: int
    earlier_epoch: int | None
    batches: tuple[AppendedBatch, ...]
    transaction_first_offset: int


def producer_runs(
    batches: BatchTable, rows: NDArray[np.int64], marker_rows: NDArray[np.int64]
) -> Iterator[ProducerRun]:
    """Yield the runs of `rows`, data batches with a producer by rising row, in the order in which they begin.

    `marker_rows`, rising as well, are the end markers between them.
    """
    if not rows.size:
        return
    piece = np.searchsorted(marker_rows, rows)
    order = np.lexsort((batches.producer_id[rows], piece))
    rows, piece = rows[order], piece[order]
    producer_ids, epochs = batches.producer_id[rows], batches.producer_epoch[rows]
    begins = (producer_ids[1:] != producer_ids[:-1]) | (piece[1:] != piece[:-1])
    starts = np.concatenate(([0], np.flatnonzero(begins) + 1))
    ends = np.append(starts[1:], rows.size)
    places = np.arange(rows.size)
    other_epoch = epochs != np.repeat(epochs[ends - 1], ends - starts)
    last_other = np.maximum.reduceat(np.where(other_epoch, places, -1), starts)
    kept_from = np.maximum.reduce([starts, last_other + 1, ends - BATCHES_KEPT])
    kept = _appended(batches, rows[places >= np.repeat(kept_from, ends - starts)])
    kept_ends = np.cumsum(ends - kept_from)
    kept_starts = kept_ends - (ends - kept_from)
    earlier_epochs = np.where(last_other >= 0, epochs[last_other], epochs[ends - 1])
    transactional = (batches.attributes[rows] & TRANSACTIONAL_BIT) != 0
    first = np.minimum.reduceat(np.where(transactional, places, rows.size), starts)
    first_offsets = np.append(batches.base_offset[rows], NO_OFFSET)[first]
    by_row = np.argsort(rows[starts])
    columns = (
        rows[starts], producer_ids[starts], epochs[ends - 1], earlier_epochs, kept_starts, kept_ends, first_offsets,
    )  # fmt: skip
    for row, producer_id, epoch, earlier, kept_start, kept_end, first_offset in zip(
        *(column[by_row].tolist() for column in columns), strict=True
    ):
        yield ProducerRun(
            row,
            producer_id,
            epoch,
            earlier if earlier != epoch else None,
            tuple(kept[kept_start:kept_end]),
            first_offset,
        )


def _appended(batches: BatchTable, rows: NDArray[np.int64]) -> list[AppendedBatch]:
    last_offsets, base_sequences = batches.last_offset[rows], batches.base_sequence[rows].astype(np.int64)
    deltas = last_offsets - batches.base_offset[rows]
    last_sequences = np.where(base_sequences == NO_SEQUENCE, NO_SEQUENCE, (base_sequences + deltas) & INT32_MAX)
    columns = (last_sequences, last_offsets, deltas, batches.max_timestamp[rows])
    return list(map(AppendedBatch, *(column.tolist() for column in columns)))
