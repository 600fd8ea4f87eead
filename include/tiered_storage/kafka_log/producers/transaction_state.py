"""Which transactions of a partition are open, and so its last stable offset.

The first transactional batch of a producer opens its transaction, its next end marker closes it; see control_record.py.

The stable part is what a read_committed consumer may get: everything below the high watermark and below the first
offset of the earliest transaction that is open there. A marker at or above the high watermark does not count yet.

Source: KIP-98; released Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tiered_storage.kafka_log.files.log_segment import LogSegment, list_segments, producer_snapshot_path
from tiered_storage.kafka_log.kernels.constants import CONTROL_BIT, TRANSACTIONAL_BIT
from tiered_storage.kafka_log.producers.producer_snapshot import ProducerSnapshotEntry, read_producer_snapshot
from tiered_storage.kafka_log.records.batch_header import NO_PRODUCER_ID
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.kafka_log.records.control_record import marker_at, marker_rows
from tiered_storage.kafka_log.records.segment_scan import iterate_segment


class Isolation(Enum):
    """How far a log is read."""

    LOG_END = "log_end"
    """To the log's end, as a follower reads it."""
    READ_UNCOMMITTED = "read_uncommitted"
    """Up to the high watermark."""
    READ_COMMITTED = "read_committed"
    """Up to the last stable offset, with the aborted transactions."""


def last_stable_offset(high_watermark: int, first_open_offset: int | None, log_start_offset: int) -> int:
    """Return the offset (exclusive) up to which no transaction is open; at most `high_watermark`.

    `first_open_offset` is where the earliest open transaction begins, which may be below the log's start.
    """
    if first_open_offset is None or first_open_offset >= high_watermark:
        return high_watermark
    return max(first_open_offset, log_start_offset)


def read_last_stable_offset(
    partition_directory: Path,
    high_watermark: int,
    segments: Sequence[LogSegment] | None = None,
    log_start_offset: int = 0,
) -> int:
    """Return the last stable offset of a log by its files.

    It starts from the producer snapshot at the highest base offset of a segment up to `high_watermark`, and reads the
    log from there; without any snapshot it reads all segments. `segments` are those of the partition, if known.
    Raises CorruptIndexError for a corrupt snapshot, CorruptRecordError for a corrupt batch.
    """
    segments = list_segments(partition_directory) if segments is None else segments
    first, transactions = _latest_snapshot(segments, high_watermark)
    for segment in segments[first:]:
        if segment.base_offset >= high_watermark:
            break
        for window, batches in iterate_segment(segment.log_path, segment.base_offset):
            transactions.feed(segment.log_path, window, batches, high_watermark)
            if batches.last_offset[-1] + 1 >= high_watermark:
                break
    return last_stable_offset(high_watermark, min(transactions.first_offsets.values(), default=None), log_start_offset)


class OpenTransactions:
    """The open transactions of a partition: the first offset of each, by producer id; feed it the batches.

    ProducerState follows them too, as part of all that a leader knows of its producers. It cannot stand in for this: it
    keeps an entry for each producer, and counts a marker at or above the high watermark, where readers must not.
    """

    def __init__(self, first_offsets: Mapping[int, int]) -> None:
        self.first_offsets = dict(first_offsets)

    @classmethod
    def of(cls, producers: Iterable[ProducerSnapshotEntry]) -> Self:
        """Return what is open at the offset of the snapshot that has `producers`."""
        firsts = ((each.producer_id, each.current_transaction_first_offset) for each in producers)
        return cls({producer_id: first for producer_id, first in firsts if first >= 0})

    def feed(self, path: Path | str, window: memoryview, batches: BatchTable, end_offset: int) -> None:
        """Take the next batches of the log `path`, whose bytes are `window`, as far as they begin below `end_offset`.

        Raises CorruptRecordError if an end marker cannot be read.
        """
        known = batches.base_offset < end_offset
        is_opening = (batches.attributes & (TRANSACTIONAL_BIT | CONTROL_BIT)) == TRANSACTIONAL_BIT
        opening = known & is_opening & (batches.producer_id > NO_PRODUCER_ID)
        markers = marker_rows(batches)
        for begin, end in pairwise([-1, *markers[known[markers]].tolist(), len(batches)]):
            if begin >= 0:
                self._end(path, window, batches, begin)
            self._open(batches, begin + 1 + np.flatnonzero(opening[begin + 1 : end]))

    def _open(self, batches: BatchTable, rows: NDArray[np.int64]) -> None:
        producers, first = np.unique(batches.producer_id[rows], return_index=True)
        for producer, offset in zip(producers.tolist(), batches.base_offset[rows[first]].tolist(), strict=True):
            self.first_offsets.setdefault(producer, offset)

    def _end(self, path: Path | str, window: memoryview, batches: BatchTable, row: int) -> None:
        if marker_at(path, window, batches, row) is not None:
            self.first_offsets.pop(int(batches.producer_id[row]), None)


def _latest_snapshot(segments: Sequence[LogSegment], high_watermark: int) -> tuple[int, OpenTransactions]:
    """Return the index in `segments` of the segment to read from, and what is open where it begins."""
    for i in range(len(segments) - 1, -1, -1):
        path = producer_snapshot_path(segments[i].directory, segments[i].base_offset)
        if segments[i].base_offset <= high_watermark and path.is_file():
            return i, OpenTransactions.of(read_producer_snapshot(path))
    return 0, OpenTransactions({})
