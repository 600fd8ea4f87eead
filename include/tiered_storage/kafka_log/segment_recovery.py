"""Finds out from a segment's batches alone all that a log needs to go on appending to it."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from tiered_storage.errors import CorruptRecordError
from tiered_storage.kafka_log.batch_table import BatchTable
from tiered_storage.kafka_log.earlier_aborts import EarlierAborts
from tiered_storage.kafka_log.index_builder import IndexBuilder
from tiered_storage.kafka_log.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.log_segment import LogSegment
from tiered_storage.kafka_log.producer_state import ProducerState
from tiered_storage.kafka_log.segment_scan import iterate_segment, recover_valid_length
from tiered_storage.kafka_log.transaction_index import AbortedTransaction


@dataclass(frozen=True, slots=True)
class RecoveredSegment:
    """A segment whose every batch is whole.

    `size` is that of its `.log` file, `truncated_bytes` how much was cut off its end. `first_timestamp` (ms) is the
    largest of the first batch, None where there is no batch. `epochs` are the leader epochs that begin in it, `aborted`
    the transactions whose abort markers stand in it.
    """

    size: int
    truncated_bytes: int
    next_offset: int
    first_timestamp: int | None
    indexes: IndexBuilder
    epochs: tuple[EpochEntry, ...]
    aborted: tuple[AbortedTransaction, ...]


def recover_segment(
    segment: LogSegment, index_interval_bytes: int, producers: ProducerState, *, segment_end: int | None = None
) -> RecoveredSegment:
    """Cut `segment` behind its last whole batch, as a broker does after a crash, and build its indexes in memory.

    `producers` is the state at its base offset and then at its end. Raises UnsupportedMagicError where the segment
    holds batches of magic 0 or 1, CorruptRecordError where an end marker with a right checksum cannot be read, or a
    batch with one reaches beyond `segment_end` (exclusive), where the next segment begins.
    """
    length = recover_valid_length(segment.log_path, segment.base_offset)
    truncated_bytes = segment.size() - length
    if truncated_bytes:
        truncate_log_file(segment, length)
    indexes = IndexBuilder(segment.base_offset, index_interval_bytes)
    next_offset = segment.base_offset
    first_timestamp: int | None = None
    epochs: list[EpochEntry] = []
    aborted: list[AbortedTransaction] = []
    earlier = EarlierAborts(segment, producers.seen_from)
    # The checksums have just been verified, up to this length.
    for window, batches in iterate_segment(segment.log_path, segment.base_offset, verify_crc=False):
        if segment_end is not None:
            _check_end(segment, batches, segment_end)
        indexes.append(batches)
        next_offset = int(batches.last_offset[-1]) + 1
        if first_timestamp is None:
            first_timestamp = int(batches.max_timestamp[0])
        epochs += begun_epochs(batches, epochs[-1].epoch if epochs else -1)
        aborted += producers.feed(segment.log_path, window, batches)
        earlier.feed(window, batches)
    return RecoveredSegment(
        length, truncated_bytes, next_offset, first_timestamp, indexes, tuple(epochs), earlier.joined_with(aborted)
    )


def truncate_log_file(segment: LogSegment, length: int) -> None:
    """Cut the `.log` file of `segment` to `length` bytes, durably."""
    with segment.log_path.open("r+b") as file:
        file.truncate(length)
        os.fsync(file.fileno())


def _check_end(segment: LogSegment, batches: BatchTable, segment_end: int) -> None:
    beyond = int(np.searchsorted(batches.last_offset, segment_end))
    if beyond < len(batches):
        reason = f"the batch reaches offset {batches.last_offset[beyond]}, the next segment begins at {segment_end}"
        raise CorruptRecordError(segment.log_path, int(batches.position[beyond]), reason)


def begun_epochs(batches: BatchTable, latest: int) -> list[EpochEntry]:
    """Return the leader epochs above `latest` (-1: none yet) that begin in `batches`."""
    epochs = batches.partition_leader_epoch
    before = np.maximum.accumulate(np.concatenate(([latest], epochs[:-1])))
    begun = np.flatnonzero(epochs > before)
    return [
        EpochEntry(*entry) for entry in zip(epochs[begun].tolist(), batches.base_offset[begun].tolist(), strict=True)
    ]
