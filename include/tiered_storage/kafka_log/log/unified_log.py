"""A log on the local disk, without appends: read, truncate, retain.

It keeps segments, the leader epoch checkpoint and producer state consistent. LocalLog checks what may be appended.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path

from tiered_storage.clock import Clock
from tiered_storage.errors import ConfigurationError, InvalidLogDirectoryError, OffsetOutOfRangeError
from tiered_storage.kafka_log.files.directory_lock import DirectoryLock
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import LEADER_EPOCH_CHECKPOINT, EpochEntry, LeaderEpochCache
from tiered_storage.kafka_log.files.log_segment import (
    REMOVED,
    LogSegment,
    RecoveryEvent,
    SegmentDeletion,
    list_segments,
)
from tiered_storage.kafka_log.files.partition_metadata import PARTITION_METADATA, read_topic_id
from tiered_storage.kafka_log.files.topic_partition import parse_partition_directory
from tiered_storage.kafka_log.indexes.transaction_index import AbortedTxn
from tiered_storage.kafka_log.kernels.constants import HIGHEST_OFFSET
from tiered_storage.kafka_log.log.log_append import PlacedBatch
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.log_retention import LogLimits, segments_to_delete
from tiered_storage.kafka_log.log.log_segments import LogSegments
from tiered_storage.kafka_log.log.recovery.clean_shutdown import remove_clean_shutdown
from tiered_storage.kafka_log.log.recovery.leader_epoch_recovery import recover_epochs
from tiered_storage.kafka_log.log.recovery.log_leftovers import clear_leftovers
from tiered_storage.kafka_log.log.recovery.log_loader import LoadedLog, load_log, recover_producers
from tiered_storage.kafka_log.log.recovery.segment_recovery import OnDisk
from tiered_storage.kafka_log.producers.producer_snapshot import ProducerSnapshotEntry
from tiered_storage.kafka_log.producers.producer_snapshot_files import list_snapshots, remove_snapshots, take_snapshot
from tiered_storage.kafka_log.producers.producer_state import ProducerState
from tiered_storage.kafka_log.producers.transaction_state import Isolation, last_stable_offset
from tiered_storage.kafka_log.records.batch_header import NO_LEADER_EPOCH
from tiered_storage.kafka_log.records.control_record import EndTransactionMarker

EVENTS_KEPT = 1000
_ALL_OF_IT = OnDisk(HIGHEST_OFFSET, certain=True)


@dataclass(frozen=True, slots=True)
class LogReadInfo:
    """Whole batches of a log, unchanged, and the log's offsets at that moment.

    `aborted` are the aborted transactions with records in `batches`: a read_committed consumer skips the records of
    that producer between the first offset and the abort marker. Offsets are exclusive ends, except `log_start_offset`.
    """

    batches: bytes
    aborted: tuple[AbortedTxn, ...]
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int


class UnifiedLog:
    """The log of one partition without its appends: see LocalLog. For one thread of one process."""

    def __init__(
        self,
        directory: Path,
        config: LogConfig,
        clock: Clock,
        *,
        lock: DirectoryLock | None,
        log_start_offset: int = 0,
        recovery_point: int | None = None,
        closed_at: int | None = None,
    ) -> None:
        """Use `create` or `open`. `close` releases `lock`; with it, this log removes the clean-shutdown mark."""
        name = parse_partition_directory(directory.name)
        left_over = clear_leftovers(directory) if name is not None and directory.is_dir() else ()
        if name is None or not directory.is_dir() or not list_segments(directory):
            raise InvalidLogDirectoryError(f"{directory} is not a directory topic-partition with .log files in it")
        self.directory = directory
        self.topic, self.partition = name
        self.topic_id = read_topic_id(directory / PARTITION_METADATA)
        self._config = config
        self._clock = clock
        self._lock = lock
        self._mended = deque((RecoveryEvent(directory / each, "left over", REMOVED) for each in left_over), EVENTS_KEPT)
        self._epochs = LeaderEpochCache.read(directory / LEADER_EPOCH_CHECKPOINT)
        self._start_offset = log_start_offset
        self._high_watermark: int | None = None
        self._is_closed_in_order = self._is_let_go = False
        self._deletion = SegmentDeletion(directory, config.file_delete_delay_ms)
        on_disk = OnDisk(recovery_point or 0) if closed_at is None else OnDisk(closed_at, certain=True)
        recovered = self._recover(recovery_point, on_disk)
        self.truncated_bytes = recovered.truncated_bytes
        """The number of bytes after the last whole batch that opening the log truncated."""
        flushed = self.segments[-1].base_offset if recovery_point is None else recovery_point
        self._recovery_point = min(flushed, self.log_end_offset)
        self._flushed_at = clock()
        try:
            self._follow(recovered)
            if log_start_offset > self.log_end_offset:
                self.truncate_fully_and_start_at(log_start_offset)
            elif log_start_offset > self.segments[0].base_offset:
                self._epochs.truncate_from_start(log_start_offset)
            if lock is not None:
                remove_clean_shutdown(directory.parent)
        except BaseException:
            self._segments.close()
            raise

    @property
    def log_start_offset(self) -> int:
        """The first offset of the log (inclusive)."""
        return max(self._start_offset, self.segments[0].base_offset)

    @property
    def start_offset_to_keep(self) -> int:
        """The log start offset for the checkpoint. With tiered storage it may be below the first segment.

        A broker expires what is below it in the remote tier.
        """
        return self._start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record gets."""
        return self._segments.next_offset

    @property
    def high_watermark(self) -> int:
        """The offset (exclusive) up to which all replicas in sync have the log."""
        return self.log_end_offset if self._high_watermark is None else self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The offset (exclusive) up to which no transaction is open; at most the high watermark."""
        producers = self._producers
        # Without a high watermark of its own, all markers count; those above a later one are still known then.
        unstable = producers.first_undecided_offset if self._high_watermark is None else producers.first_unstable_offset
        return last_stable_offset(self.high_watermark, unstable, self.log_start_offset)

    @property
    def recovery_point(self) -> int:
        """The offset (exclusive) up to which the log is durable."""
        return self._recovery_point

    @property
    def segments(self) -> tuple[LogSegment, ...]:
        """The segments by rising base offset; the last one is the active one."""
        return self._segments.all

    @property
    def leader_epochs(self) -> tuple[EpochEntry, ...]:
        """The leader epochs with their start offsets, earliest first."""
        return self._epochs.entries

    @property
    def producers(self) -> tuple[ProducerSnapshotEntry, ...]:
        """The known producers, as in a snapshot at the log's end."""
        return self._producers.snapshot()

    @property
    def mended(self) -> tuple[RecoveryEvent, ...]:
        """The files that were missing, corrupt or incomplete, and what was done: the last thousand, latest last."""
        return tuple(self._mended)

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Return whole batches, up to `max_bytes` but at least one, beginning with the one that contains `offset`.

        They end with their segment at the latest; at the log's end the result is empty. Records below `offset` may come
        first. Raises OffsetOutOfRangeError outside the log.
        """
        return self.fetch(offset, max_bytes).batches

    def fetch(self, offset: int, max_bytes: int, isolation: Isolation = Isolation.LOG_END) -> LogReadInfo:
        """Read as `read` does, as far as `isolation` allows; with READ_COMMITTED also return the aborted transactions.

        Raises OffsetOutOfRangeError outside the log; between the visible end and the log's end the result is empty.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRangeError(self.directory.name, offset, self.log_start_offset, self.log_end_offset)
        end = {
            Isolation.LOG_END: self.log_end_offset,
            Isolation.READ_UNCOMMITTED: self.high_watermark,
            Isolation.READ_COMMITTED: self.last_stable_offset,
        }[isolation]
        found = self._segments.read(offset, max_bytes, end)
        offsets = (self.log_start_offset, self.last_stable_offset, self.high_watermark)
        if found is None:
            return LogReadInfo(b"", (), *offsets)
        is_committed = isolation is Isolation.READ_COMMITTED
        aborted = self._segments.aborted(offset, found.next_offset) if is_committed else ()
        return LogReadInfo(found.content, aborted, *offsets)

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int] | None:
        """Return the latest leader epoch up to `leader_epoch`, and the offset (exclusive) where it ends, if known."""
        return self._epochs.end_offset_for(leader_epoch, self.log_end_offset)

    def update_high_watermark(self, high_watermark: int) -> None:
        """Set the high watermark, within the log; from then on only this call moves it, and truncation lowers it.

        Transactions that ended below it no longer hold back the last stable offset, even if it falls again later. As in
        Kafka, a reopened log counts all ended transactions as pending again. Before the first call it is the log's end.
        """
        self._high_watermark = min(max(high_watermark, self.log_start_offset), self.log_end_offset)
        self._producers.on_high_watermark(self._high_watermark)

    def expire_producers(self) -> None:
        """Forget producers without an open transaction that were silent for `producer_id_expiration_ms`."""
        self._producers.expire(self._clock(), self._config.producer_id_expiration_ms)

    def delete_records(self, before: int) -> None:
        """Move the log start up to offset `before`; the next `delete_old_segments` deletes the segments below it.

        Raises OffsetOutOfRangeError above the high watermark.
        """
        if before > self.high_watermark:
            raise OffsetOutOfRangeError(self.directory.name, before, self.log_start_offset, self.high_watermark + 1)
        if before > self.log_start_offset:
            self._start_offset = before
            self._epochs.truncate_from_start(before)

    def delete_old_segments(self, config: LogConfig | None = None, below: int | None = None) -> tuple[LogSegment, ...]:
        """Remove expired segments, and those below the log start, from the log, and return them.

        `config` limits the log in place of its own; only segments that end at or before offset `below` are removed.
        Their files stay as `.deleted` until a call `file_delete_delay_ms` later, or until the log is opened again.
        """
        over = self._old_segments(config, below)
        if over and over[-1] == self.segments[-1]:
            self.roll()
        self._segments.delete(over)
        if over:
            # A segment deleted only locally may be in a remote tier, which is read by epoch.
            self._epochs.truncate_from_start(self._start_offset)
        self._deletion.remove(self._clock())
        return tuple(over)

    def end_of_old_segments(self, config: LogConfig | None = None, below: int | None = None) -> int:
        """Return up to which offset (exclusive) `delete_old_segments` would delete now; the first offset if nothing."""
        over = self._old_segments(config, below)
        later = self.segments[len(over) :]
        return later[0].base_offset if later else self.log_end_offset

    def _old_segments(self, config: LogConfig | None, below: int | None) -> list[LogSegment]:
        reached = self.high_watermark if below is None else min(below, self.high_watermark)
        limits = LogLimits(self.log_start_offset, reached, self.log_end_offset)
        return segments_to_delete(self._segments, limits, config or self._config, self._clock(), self._report)

    def truncate_to(self, end_offset: int) -> None:
        """Remove the batches from `end_offset` on, including the one that contains it, with all their traces.

        Raises ConfigurationError for a negative offset, CorruptRecordError if a remaining batch that must be read is
        damaged (near the offset, or anywhere in a closed segment); then nothing is truncated. After an OSError halfway
        the log refuses all changes and must be opened again.
        """
        self._segments.ensure_open()
        if end_offset < 0:
            raise ConfigurationError(f"{self.directory.name} cannot be truncated to offset {end_offset}")
        if end_offset < self.segments[0].base_offset:
            self.truncate_fully_and_start_at(end_offset)
            return
        if end_offset < self.log_end_offset:
            before = self._producers
            if end_offset >= self.segments[-1].base_offset:
                self._truncate_active(end_offset)
            else:
                self._segments.truncate(end_offset)
                self._start_offset = min(self._start_offset, end_offset)
                self._follow(self._recover(None, _ALL_OF_IT))
            self._producers.remember_closed(before)
            self._after_truncation()
            if self.log_end_offset < self._start_offset:
                # The log started within the removed batch.
                self.truncate_fully_and_start_at(self._start_offset)
        self._epochs.truncate_from_end(self.log_end_offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Empty the log and restart it at `offset`, which is then its start and its end.

        A crash leaves a prefix of the old log that ends with a segment, its first segment emptied, or the new log.
        """
        self._segments.ensure_open()
        remove_clean_shutdown(self.directory.parent)
        self._segments.empty()
        # Reset these before a segment exists at an offset for which they would be wrong.
        remove_snapshots(self.directory, 1, 0)
        self._epochs.clear()
        self._segments.restart_at(offset)
        self._producers = ProducerState(offset)
        self._snapshot_offset = self._start_offset = self._recovery_point = offset
        self._after_truncation()

    def roll(self) -> None:
        """Close the active segment and begin a new one at the log's end, unless it is empty."""
        if self.log_end_offset > self.segments[-1].base_offset:
            self._roll(self.log_end_offset)

    def flush(self) -> None:
        """Write everything appended so far to disk, durably."""
        self._segments.flush()
        self._recovery_point = self.log_end_offset
        self._flushed_at = self._clock()

    def close(self) -> None:
        """Write everything to disk, the active segment's indexes as those of a closed one, and close the log.

        Repeated calls are harmless. Raises InvalidLogDirectoryError if the log failed halfway or was abandoned; then
        only the lock is released.
        """
        if self._is_closed_in_order:
            return
        try:
            self._segments.ensure_open()
            self._segments.finish()
            self._recovery_point = self.log_end_offset
            self._take_snapshot()
            self._is_closed_in_order = True
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the log without writing anything to disk, as after an error."""
        self._is_let_go = True
        self._segments.close()
        if self._lock is not None:
            self._lock.release()

    def _truncate_active(self, end_offset: int) -> None:
        """Truncate within the active segment; read only batches near the offset unless producers must be followed."""
        left = self._segments.active.before(end_offset)
        start_offset = min(self._start_offset, end_offset)
        if self._segments.active.has_producers_from(left.size):
            self._producers = recover_producers(
                self.segments, left.size, log_start_offset=start_offset, report=self._report
            )
            self.expire_producers()
        self._segments.truncate_active(left)
        self._start_offset = start_offset
        remove_snapshots(self.directory, 0, left.next_offset)
        self._snapshot_offset = max(list_snapshots(self.directory), default=self.segments[0].base_offset)
        self._producers.end_offset = left.next_offset
        self._producers.on_high_watermark(self.high_watermark)

    def _append(self, batch: PlacedBatch, marker: EndTransactionMarker | None) -> None:
        self._segments.ensure_open()
        if not self._segments.has_room_for(batch.header):
            self._roll(batch.header.base_offset)
        if batch.header.partition_leader_epoch != NO_LEADER_EPOCH:
            self._epochs.assign(batch.header.partition_leader_epoch, batch.header.base_offset)
        self._segments.append(batch.content, batch.header, self._producers.add_batch(batch.header, marker))
        if self._high_watermark is None:
            self._producers.on_high_watermark(self.log_end_offset)
        unflushed = self.log_end_offset - self._recovery_point
        if unflushed >= self._config.flush_messages or self._clock() - self._flushed_at >= self._config.flush_ms:
            self.flush()

    def _roll(self, base_offset: int) -> None:
        """Close the active segment and begin a new one at `base_offset`; each file is complete before the next."""
        self._segments.finish()
        self._producers.end_offset = base_offset
        self._take_snapshot()
        self._segments.roll(base_offset)
        self._recovery_point = base_offset

    def _take_snapshot(self) -> None:
        if self._producers.end_offset > self._snapshot_offset and not self._producers.begins_after_damage:
            take_snapshot(self.directory, self._producers)
            self._snapshot_offset = self._producers.end_offset

    def _recover(self, recovery_point: int | None, on_disk: OnDisk) -> LoadedLog:
        """Recover the log, and open it for appending."""
        log = load_log(
            self.directory,
            self._config.index_interval_bytes,
            log_start_offset=self._start_offset,
            recovery_point=recovery_point,
            on_disk=on_disk,
            report=self._report,
        )
        self._segments = LogSegments(log.segments, log.active, self._deletion, self._config, self._clock, self._report)
        self._producers = log.producers
        self.expire_producers()
        self._snapshot_offset = max(list_snapshots(self.directory), default=self.segments[0].base_offset)
        return log

    def _follow(self, log: LoadedLog) -> None:
        recover_epochs(self._epochs, log, self._report)
        if self._high_watermark is not None:
            self._producers.on_high_watermark(self._high_watermark)

    def _report(self, event: RecoveryEvent) -> None:
        if event not in self._mended:
            self._mended.append(event)

    def _after_truncation(self) -> None:
        self._recovery_point = min(self._recovery_point, self.log_end_offset)
        if self._high_watermark is not None:
            self.update_high_watermark(self._high_watermark)
