"""Compute from a segment's batches alone what a log needs to append to it. Only truncate_log_file changes the file."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from tiered_storage.errors import CorruptRecordError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.files.log_segment import LogSegment
from tiered_storage.kafka_log.indexes.index_builder import IndexBuilder
from tiered_storage.kafka_log.indexes.transaction_index import AbortedTxn
from tiered_storage.kafka_log.kernels.constants import LOG_OVERHEAD
from tiered_storage.kafka_log.log.recovery.retained_aborts import RetainedAborts
from tiered_storage.kafka_log.producers.producer_state import ProducerState
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.kafka_log.records.segment_scan import iterate_segment
from tiered_storage.kafka_log.records.sound_part import is_whole_batch, sound_part
from tiered_storage.regular_files import open_regular


@dataclass(frozen=True, slots=True)
class RecoveredSegment:
    """A segment up to the end of its last whole batch.

    That is `size` bytes; the `torn_bytes` after them must be cut off. `first_timestamp` (ms) is the largest of the
    first batch, None if there is no batch. `epochs` are the leader epochs that begin in the segment, `aborted` the
    transactions whose abort markers it holds.
    """

    size: int
    torn_bytes: int
    next_offset: int
    first_timestamp: int | None
    indexes: IndexBuilder
    epochs: tuple[EpochEntry, ...]
    aborted: tuple[AbortedTxn, ...]


@dataclass(frozen=True, slots=True)
class OnDisk:
    """What was on the disk before: all batches below `until` (an offset, exclusive).

    Unless that is `certain`, the log may have been truncated and written again since: a torn end may lie below it.
    """

    until: int = 0
    certain: bool = False


def recover_segment(
    segment: LogSegment,
    index_interval_bytes: int,
    producers: ProducerState,
    *,
    segment_end: int | None = None,
    on_disk: OnDisk = OnDisk(),
) -> RecoveredSegment:
    """Find out where the last whole batch of `segment` ends, and build its indexes in memory up to there.

    The caller cuts off the bytes after it, as a broker does after a crash. `producers` is the state at the segment's
    base offset, and afterwards at its end. `segment_end` (exclusive) is where the next segment begins.

    Raises UnsupportedMagicError if the segment holds batches of an unknown magic. Raises CorruptRecordError if a batch
    below `on_disk.until` is broken, which no crash explains; unless that is certain, only if a whole batch follows.
    Raises it too if an end marker with a right checksum cannot be read, or if a batch with a right checksum reaches
    beyond `segment_end`.
    """
    length, sound_end = sound_part(segment.log_path, segment.base_offset)
    torn_bytes = segment.size() - length
    if torn_bytes:
        _check_tail(segment, length, sound_end, on_disk)
    indexes = IndexBuilder(segment.base_offset, index_interval_bytes)
    next_offset = segment.base_offset
    first_timestamp: int | None = None
    epochs: list[EpochEntry] = []
    aborted: list[AbortedTxn] = []
    earlier = RetainedAborts(segment, producers.seen_from)
    # The checksums have just been verified, up to this length.
    sound = iterate_segment(segment.log_path, segment.base_offset, end_position=length, verify_crc=False)
    for window, batches in sound:
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
        length, torn_bytes, next_offset, first_timestamp, indexes, tuple(epochs), earlier.joined_with(aborted)
    )


def truncate_log_file(segment: LogSegment, length: int) -> None:
    """Cut the `.log` file of `segment` to `length` bytes, durably."""
    with segment.log_path.open("r+b") as file:
        file.truncate(length)
        os.fsync(file.fileno())


def _check_tail(segment: LogSegment, position: int, offset: int, on_disk: OnDisk) -> None:
    """Raise CorruptRecordError unless what begins at `position` may be the torn end of what was written last."""
    if offset >= on_disk.until or not (on_disk.certain or _is_followed(segment, position)):
        return
    reason = (
        f"the batch here is damaged, and all below offset {on_disk.until} was on the disk before: nothing is cut off. "
        f"Take the partition from another replica; or, to lose what follows offset {offset}, lower the partition's "
        f"recovery point to {offset} and remove the log directory's mark of a clean shutdown"
    )
    raise CorruptRecordError(segment.log_path, position, reason)


def _is_followed(segment: LogSegment, position: int) -> bool:
    """Return whether a whole batch follows the broken one at `position`, if that one is as long as it says."""
    with open_regular(segment.log_path) as file:
        file.seek(position)
        head = file.read(LOG_OVERHEAD)
    following = position + LOG_OVERHEAD + max(int.from_bytes(head[8:], "big", signed=True), 0)
    return len(head) == LOG_OVERHEAD and is_whole_batch(segment.log_path, following)


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
