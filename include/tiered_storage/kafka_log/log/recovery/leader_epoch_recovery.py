"""Finds out where a log's leader epochs begin, for a log whose `leader-epoch-checkpoint` does not tell.

Epochs do not fall. So a segment has but one if its first batch has the same as the first batch behind it, and it need
not be read. Others are read batch by batch, headers only. Where one of those is broken, and the epoch before the broken
batch is not the one behind the segment, nobody can tell where the later one began: the log is refused. A broker goes on
without the earlier epochs, and may keep what another leader has contradicted.

Source: KIP-101; LogLoader of released Kafka, which finds epochs only in the segments that it recovers.
"""

from __future__ import annotations

from collections.abc import Sequence

from tiered_storage.errors import CorruptRecordError, UnsupportedMagicError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry, LeaderEpochCache
from tiered_storage.kafka_log.files.log_segment import LogSegment
from tiered_storage.kafka_log.files.recovery_event import BUILT_ANEW, RecoveryEvent, Report
from tiered_storage.kafka_log.kernels.batch_layout import BATCH_OVERHEAD
from tiered_storage.kafka_log.log.recovery.log_loader import LoadedLog
from tiered_storage.kafka_log.log.recovery.segment_recovery import begun_epochs
from tiered_storage.kafka_log.records.batch_header import NO_LEADER_EPOCH, RecordBatch, read_batch_header
from tiered_storage.kafka_log.records.segment_scan import iterate_segment
from tiered_storage.regular_files import open_unbuffered


def recover_epochs(epochs: LeaderEpochCache, log: LoadedLog, report: Report) -> None:
    """Bring `epochs` in line with `log` as it was recovered: those behind its end go, later ones in its batches come.

    Where none are known, they are taken from the headers of all batches: epochs whose leaders appended nothing, or
    whose batches are gone, are not among them then. Raises CorruptRecordError if a broken batch hides one.
    """
    if not epochs.entries and (found := _epochs_of(log.segments)):
        epochs.add_later(found)
        report(RecoveryEvent(epochs.path, "it has no epochs", BUILT_ANEW))
    epochs.truncate_from_end(log.active.next_offset)
    epochs.add_later(log.epochs)


def _epochs_of(segments: Sequence[LogSegment]) -> list[EpochEntry]:
    """Return where the epochs begin; a batch of magic 0 or 1, which knows none, hides the rest of its segment."""
    found: list[EpochEntry] = []
    for segment, (first, following) in zip(segments, _first_batches(segments), strict=True):
        latest = found[-1].epoch if found else NO_LEADER_EPOCH
        if first is None or following is None or first.partition_leader_epoch != following.partition_leader_epoch:
            found += _epochs_within(segment, latest, following)
        elif first.partition_leader_epoch > latest:
            found.append(EpochEntry(first.partition_leader_epoch, first.base_offset))
    return found


def _first_batches(segments: Sequence[LogSegment]) -> list[tuple[RecordBatch | None, RecordBatch | None]]:
    """Return of each segment its own first batch, and the first one behind it, as far as they can be read."""
    found: list[tuple[RecordBatch | None, RecordBatch | None]] = []
    following = None
    for segment in reversed(segments):
        first = _first_batch(segment)
        found.append((first, following))
        following = first or following
    return found[::-1]


def _first_batch(segment: LogSegment) -> RecordBatch | None:
    with open_unbuffered(segment.log_path) as file:
        header = file.read(BATCH_OVERHEAD)
    try:
        return read_batch_header(header)
    except CorruptRecordError:
        return None


def _epochs_within(segment: LogSegment, latest: int, following: RecordBatch | None) -> list[EpochEntry]:
    """Return the epochs above `latest` that begin in `segment`; `following` is the first batch behind it, if known."""
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
            f"{error.reason}; and as leader-epoch-checkpoint has no epochs, only what is broken here tells which begin "
            "in it: put the file back, or take the partition from another replica"
        )
        raise CorruptRecordError(error.path, error.position, reason) from error
    return found
