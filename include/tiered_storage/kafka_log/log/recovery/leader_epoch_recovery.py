"""Find where a log's leader epochs begin if its `leader-epoch-checkpoint` does not show it.

Epochs never fall. So a segment has only one if its first batch has the same epoch as the first batch after it, and need
not be read. Other segments are read batch by batch, headers only. If a batch of those is corrupt, and the epoch before
it is not the epoch after the segment, the start of the later epoch is unknown: the log is refused. A broker continues
without the earlier epochs, and may keep records that another leader has overwritten.

Source: KIP-101; LogLoader of released Kafka, which finds epochs only in the segments that it recovers.
"""

from __future__ import annotations

from collections.abc import Sequence

from tiered_storage.errors import CorruptRecordError, UnsupportedMagicError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry, LeaderEpochCache
from tiered_storage.kafka_log.files.log_segment import REBUILT, LogSegment, RecoveryEvent, Report
from tiered_storage.kafka_log.kernels.constants import BATCH_OVERHEAD
from tiered_storage.kafka_log.log.recovery.log_loader import LoadedLog
from tiered_storage.kafka_log.log.recovery.segment_recovery import begun_epochs
from tiered_storage.kafka_log.records.batch_header import NO_LEADER_EPOCH, BatchHeader, read_batch_header
from tiered_storage.kafka_log.records.segment_scan import iterate_segment
from tiered_storage.regular_files import open_unbuffered


def recover_epochs(epochs: LeaderEpochCache, log: LoadedLog, report: Report) -> None:
    """Update `epochs` to `log` as recovered: drop those after its end, add later ones from its batches.

    If none are known, they are taken from the headers of all batches, without epochs whose leaders appended nothing or
    whose batches are gone. Raises CorruptRecordError if a corrupt batch hides one.
    """
    if not epochs.entries and (found := _epochs_of(log.segments)):
        epochs.add_later(found)
        report(RecoveryEvent(epochs.path, "it has no epochs", REBUILT))
    epochs.truncate_from_end(log.active.next_offset)
    epochs.add_later(log.epochs)


def _epochs_of(segments: Sequence[LogSegment]) -> list[EpochEntry]:
    """Return where the epochs begin; a batch of an unknown magic hides the rest of its segment."""
    found: list[EpochEntry] = []
    for segment, (first, following) in zip(segments, _first_batches(segments), strict=True):
        latest = found[-1].epoch if found else NO_LEADER_EPOCH
        if first is None or following is None or first.partition_leader_epoch != following.partition_leader_epoch:
            found += _epochs_within(segment, latest, following)
        elif first.partition_leader_epoch > latest:
            found.append(EpochEntry(first.partition_leader_epoch, first.base_offset))
    return found


def _first_batches(segments: Sequence[LogSegment]) -> list[tuple[BatchHeader | None, BatchHeader | None]]:
    """Return for each segment its own first batch, and the first one after it, as far as readable."""
    found: list[tuple[BatchHeader | None, BatchHeader | None]] = []
    following = None
    for segment in reversed(segments):
        first = _first_batch(segment)
        found.append((first, following))
        following = first or following
    return found[::-1]


def _first_batch(segment: LogSegment) -> BatchHeader | None:
    with open_unbuffered(segment.log_path) as file:
        header = file.read(BATCH_OVERHEAD)
    try:
        return read_batch_header(header)
    except CorruptRecordError:
        return None


def _epochs_within(segment: LogSegment, latest: int, following: BatchHeader | None) -> list[EpochEntry]:
    """Return the epochs above `latest` that begin in `segment`; `following` is the first batch after it, if known."""
    found: list[EpochEntry] = []
    try:
        for _, batches in iterate_segment(segment.log_path, segment.base_offset, verify_crc=False):
            found += begun_epochs(batches, found[-1].epoch if found else latest)
    except UnsupportedMagicError:
        return found
    except CorruptRecordError as error:
        before = found[-1].epoch if found else latest
        if following is not None and following.partition_leader_epoch == before:
            return found
        reason = (
            f"{error.reason}; and as leader-epoch-checkpoint has no epochs, only what is broken here shows which begin "
            "in it: put the file back, or take the partition from another replica"
        )
        raise CorruptRecordError(error.path, error.position, reason) from error
    return found
