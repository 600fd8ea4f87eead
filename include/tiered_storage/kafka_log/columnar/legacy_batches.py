"""Messages of magic 0 and 1 as record batches, which compiled code decodes.

The batch of a message, or of a wrapper, is not compressed and has the same offsets, times, keys and values; a time of
magic 0 is -1, of the type create time, as Kafka converts it. The bytes are for decoding only: nobody stores them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tiered_storage.kafka_log.kernels.constants import APPEND_TIME_BIT, MAGIC
from tiered_storage.kafka_log.records.batch_header import (
    MAGIC_END,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
)
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.kafka_log.records.legacy_message import LegacyBatch
from tiered_storage.kafka_log.records.record import Record, encode_records
from tiered_storage.kafka_log.records.record_batch import assembled_batch


def legacy_rows(data: NDArray[np.uint8], table: BatchTable) -> NDArray[np.bool_] | None:
    """Return which rows of `table`, whose batches `data` holds from its first byte on, are of magic 0 or 1.

    None if no row is: batches without leader epoch are rare, and only among those are such messages.
    """
    without_epoch = table.partition_leader_epoch == NO_LEADER_EPOCH
    if not without_epoch.any():
        return None
    places = table.position - table.position[0] + (MAGIC_END - 1)
    inside = without_epoch & (places >= 0) & (places < data.size)
    found: NDArray[np.bool_] = np.zeros(len(table), np.bool_)
    found[inside] = data[places[inside]] < MAGIC
    return found if found.any() else None


def runs_of(rows: NDArray[np.bool_]) -> Iterator[tuple[bool, int, int]]:
    """Yield the runs of equal values in `rows`: the value, the first row and the end (exclusive)."""
    ends = [*(np.flatnonzero(rows[1:] != rows[:-1]) + 1).tolist(), rows.size]
    begin = 0
    for end in ends:
        yield bool(rows[begin]), begin, end
        begin = end


def as_record_batch(legacy: LegacyBatch) -> bytes:
    """Return the messages of `legacy` as one batch of magic 2."""
    header, base_offset = legacy.header, legacy.header.base_offset
    records = [Record(one.offset, one.timestamp, one.key, one.value) for one in legacy.messages]
    # Against a base timestamp of 0, every delta fits.
    fields = (
        header.attributes & APPEND_TIME_BIT, header.last_offset_delta, 0, header.max_timestamp, NO_PRODUCER_ID,
        NO_PRODUCER_EPOCH, NO_SEQUENCE, len(records),
    )  # fmt: skip
    return assembled_batch(base_offset, NO_LEADER_EPOCH, fields, encode_records(records, base_offset, 0))
