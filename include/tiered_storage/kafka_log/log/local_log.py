"""One partition's log on the local disk, in a Kafka broker's files, open for writing.

    {topic}-{partition}/
        {base offset}.log, .index, .timeindex, .txnindex   see log_segment.py
        {base offset}.snapshot                             at each roll and at the end, see producer_state.py
        leader-epoch-checkpoint                            see files/leader_epoch_checkpoint.py
        partition.metadata                                 see partition_metadata.py

    log start <= last stable offset <= high watermark <= log end

A log is its only replica unless `update_high_watermark` is called: the high watermark is its end. This module opens a
log and appends to it; batch_validation.py, log_append.py and producer_entry.py define what may be appended,
unified_log.py what else a log does, recovery/log_leftovers.py and recovery/log_loader.py what opening repairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from tiered_storage.clock import Clock, wall_clock
from tiered_storage.errors import InvalidLogDirectoryError
from tiered_storage.kafka_log.files.directory_lock import DirectoryLock, ensure_not_linked
from tiered_storage.kafka_log.files.kafka_uuid import decode_uuid
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import (
    LEADER_EPOCH_CHECKPOINT,
    EpochEntry,
    write_leader_epochs,
)
from tiered_storage.kafka_log.files.log_segment import LogSegment
from tiered_storage.kafka_log.files.partition_metadata import PARTITION_METADATA, write_topic_id
from tiered_storage.kafka_log.files.small_files import sync_directory
from tiered_storage.kafka_log.files.topic_partition import partition_directory_name
from tiered_storage.kafka_log.log.batch_validation import (
    RecordTimes,
    check_marker,
    check_produced_header,
    check_timestamps,
    read_produced_batch,
    read_record_times,
)
from tiered_storage.kafka_log.log.log_append import (
    PlacedBatch,
    check_followed_epochs,
    check_leader_epoch,
    check_size,
    place_batch,
    place_records,
    read_markers,
    split_batches,
)
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.recovery.clean_shutdown import locked_for_writing
from tiered_storage.kafka_log.log.unified_log import UnifiedLog
from tiered_storage.kafka_log.producers.producer_history import KnownProducers
from tiered_storage.kafka_log.producers.producer_snapshot_files import take_snapshot
from tiered_storage.kafka_log.producers.producer_state import ProducerState
from tiered_storage.kafka_log.records.batch_header import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchHeader,
    TimestampType,
)
from tiered_storage.kafka_log.records.compression import Compression
from tiered_storage.kafka_log.records.control_record import ControlRecordType, EndTransactionMarker, encode_end_marker
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import encode_batch, restamp_batch


class LocalLog(UnifiedLog):
    """The log of one partition, open for writing. For one thread of one process."""

    @classmethod
    def create(
        cls,
        log_directory: Path,
        topic: str,
        partition: int,
        topic_id: str,
        config: LogConfig | None = None,
        *,
        clock: Clock = wall_clock,
        base_offset: int = 0,
        lock: DirectoryLock | None = None,
    ) -> Self:
        """Create the partition's directory in `log_directory` and an empty log in it that begins at `base_offset`.

        `lock` as for `open`. Raises ConfigurationError for a topic, partition or topic id that Kafka refuses,
        InvalidLogDirectoryError if the directory exists, LogDirectoryLockedError if `log_directory` is in use.
        """
        directory = log_directory / partition_directory_name(topic, partition)
        decode_uuid(topic_id)  # before anything is created
        log_directory.mkdir(parents=True, exist_ok=True)
        with locked_for_writing(log_directory, lock) as own:
            try:
                directory.mkdir()
            except FileExistsError as error:
                raise InvalidLogDirectoryError(
                    f"{directory} exists: open its log, or name another directory"
                ) from error
            write_topic_id(directory / PARTITION_METADATA, topic_id)
            write_leader_epochs(directory / LEADER_EPOCH_CHECKPOINT, [])
            LogSegment(base_offset, directory).log_path.touch()
            sync_directory(directory)
            sync_directory(log_directory)
            return cls(directory, config or LogConfig(), clock, lock=own)

    @classmethod
    def open(
        cls,
        directory: Path,
        config: LogConfig | None = None,
        *,
        clock: Clock = wall_clock,
        log_start_offset: int = 0,
        recovery_point: int | None = None,
        closed_at: int | None = None,
        lock: DirectoryLock | None = None,
    ) -> Self:
        """Open the log in the partition's `directory`.

        What a crash left after the last whole batch is truncated (`truncated_bytes`), indexes and producer state are
        rebuilt, and leader epochs that begin past the end are dropped. `log_start_offset` and `recovery_point` come
        from the log directory's checkpoints; without a recovery point only the last segment counts as unfinished. After
        a clean shutdown, `closed_at` is the recovery point, where the log ended, and `recovery_point` is None. A
        damaged batch below either of them is not truncated, since it was on disk. Unless the caller passes its `lock`
        on the log directory, this takes one until `close`.

        Raises InvalidLogDirectoryError if `directory` holds no log or is a symbolic link, LogDirectoryLockedError
        if it is in use, CorruptIndexError for a broken checkpoint, UnsupportedMagicError for batches of an unknown
        magic that must be read, CorruptRecordError for a closed segment that is broken if it must be read, and for
        a damaged batch that was on the disk.
        """
        if not directory.is_dir():
            raise InvalidLogDirectoryError(f"{directory} is not a directory topic-partition with .log files in it")
        ensure_not_linked(directory)
        with locked_for_writing(directory.parent, lock) as own:
            return cls(
                directory,
                config or LogConfig(),
                clock,
                lock=own,
                log_start_offset=log_start_offset,
                recovery_point=recovery_point,
                closed_at=closed_at,
            )

    def append(
        self,
        records: Sequence[Record],
        compression: Compression = Compression.NONE,
        *,
        leader_epoch: int | None = None,
        timestamp_type: TimestampType = TimestampType.CREATE_TIME,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        is_transactional: bool = False,
    ) -> int:
        """Append `records` as one batch and return its base offset; the records' own offsets are ignored.

        `leader_epoch` is the latest one (0 at first) unless given. With LOG_APPEND_TIME the log stamps the batch; the
        records keep their own times, though no reader shows them. With a producer id, everything is as for
        `append_encoded_batch`.

        Raises ConfigurationError if the batch is empty, larger than `max_message_bytes` or a segment, or of an outdated
        leader epoch; InvalidTimestampError for a record too far from the clock, unless the log stamps the batch; and as
        `append_encoded_batch` for one out of its producer's order.
        """
        batch = encode_batch(
            place_records(records, self.log_end_offset),
            compression,
            partition_leader_epoch=self._epoch_to_write(leader_epoch),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            is_transactional=is_transactional,
        )
        now = self._clock()
        if timestamp_type is TimestampType.LOG_APPEND_TIME:
            stamped = bytearray(batch)
            restamp_batch(stamped, now)
            return self._append_as_leader(PlacedBatch.of(stamped))
        times = RecordTimes.of([np.array([record.timestamp for record in records], np.int64)])
        check_timestamps(times, now, self._config, self.directory.name)
        return self._append_as_leader(PlacedBatch.of(batch))

    def append_encoded_batch(
        self,
        batch: bytes,
        *,
        leader_epoch: int | None = None,
        timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    ) -> int:
        """Append one encoded `batch`, as a producer sends it, and return the base offset that it gets here.

        It is checked and decoded to its last byte: see batch_validation.py. Its base offset and leader epoch are set,
        which its checksum does not cover; with LOG_APPEND_TIME it is stamped as well; otherwise it stays as it is,
        except that a wrong largest timestamp is corrected. A repetition of one of its producer's last five batches is
        not appended: the offset of the first one is returned.

        Raises ConfigurationError for one that a producer may not send, that is larger than `max_message_bytes` or a
        segment, or of an outdated leader epoch; CorruptRecordError for one that is incomplete or cannot be decoded;
        InvalidTimestampError for a record too far from the clock, unless the log stamps the batch;
        OutOfOrderSequenceError, InvalidProducerEpochError or InvalidTransactionStateError for one out of its producer's
        order.
        """
        epoch = self._epoch_to_write(leader_epoch)
        header = read_produced_batch(batch)
        self._check_size(header)
        times = read_record_times(batch, header)
        now = latest = self._clock()
        if timestamp_type is TimestampType.CREATE_TIME:
            check_timestamps(times, now, self._config, self.directory.name)
            latest = times.latest
        return self._append_as_leader(place_batch(batch, self.log_end_offset, epoch, latest, timestamp_type))

    def append_end_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        kind: ControlRecordType,
        *,
        coordinator_epoch: int = 0,
        leader_epoch: int | None = None,
        transaction_version: int = 0,
    ) -> int:
        """Append the marker that ends a producer's transaction, `kind` ABORT or COMMIT, and return its offset.

        Raises InvalidProducerEpochError for an outdated producer epoch (from `transaction_version` 2 on: one that is
        not new), TransactionCoordinatorFencedError for an outdated coordinator epoch, ConfigurationError for another
        `kind`, no producer, or a marker larger than `max_message_bytes` or a segment.
        """
        check_marker(kind, producer_id, producer_epoch)
        marker = EndTransactionMarker(kind, coordinator_epoch, self._clock())
        self._producers.check_marker(
            marker, producer_id, producer_epoch, self.directory.name, transaction_version=transaction_version
        )
        batch = PlacedBatch.of(
            encode_end_marker(
                marker,
                self.log_end_offset,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                partition_leader_epoch=self._epoch_to_write(leader_epoch),
            )
        )
        self._check_size(batch.header)
        self._append(batch, marker)
        return batch.header.base_offset

    def append_as_follower(self, batches: bytes, *, leader_epoch: int | None = None) -> int:
        """Append `batches` from a leader, with the offsets and epochs that they have; return the log's new end.

        An incomplete last batch is left out, and so is everything from the first batch of an epoch above `leader_epoch`
        on. Producers are not checked: the leader did that. Offsets may have gaps, as compaction leaves them.

        Raises UnexpectedAppendOffsetError if they begin below the log's end, CorruptRecordError if one is broken,
        ConfigurationError if one is larger than a segment or its leader epoch falls; nothing is appended then.
        """
        name = self.directory.name
        placed = split_batches(batches, self.log_end_offset, leader_epoch, name)
        check_followed_epochs(placed, self._epochs.latest, name)
        for batch in placed:
            check_size(batch.header, self._config.segment_bytes, name)
        for batch, marker in zip(placed, read_markers(placed), strict=True):
            self._append(batch, marker)
        return self.log_end_offset

    def restart_after_remote(
        self, known: KnownProducers, leader_epochs: Sequence[EpochEntry], log_start_offset: int
    ) -> None:
        """Empty the log and restart it at the end of `known`, since the remote tier has everything before that.

        `known` are the producers there, `leader_epochs` those of the records before it, and `log_start_offset` is the
        log start over both tiers. After a crash the log is empty, or as before: call this again if it is empty.
        """
        offset = known.end_offset
        self.truncate_fully_and_start_at(offset)
        self._start_offset = min(log_start_offset, offset)
        self._epochs.add_later(leader_epochs)
        self._producers = ProducerState(offset, known.producers, seen_from=known.seen_from)
        if offset and known.seen_from is None:
            take_snapshot(self.directory, self._producers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close, unless the log was abandoned; if `error` made a clean close impossible, raise that one."""
        if self._is_let_go:
            return
        with suppress(InvalidLogDirectoryError) if error is not None else nullcontext():
            self.close()

    def _append_as_leader(self, batch: PlacedBatch) -> int:
        header = batch.header
        check_produced_header(header)
        self._check_size(header)
        if header.has_producer:
            if duplicate := self._producers.find_duplicate(header):
                return duplicate.first_offset
            self._producers.check_batch(header, self.directory.name)
        self._append(batch, None)
        return header.base_offset

    def _check_size(self, header: BatchHeader) -> None:
        check_size(header, min(self._config.max_message_bytes, self._config.segment_bytes), self.directory.name)

    def _epoch_to_write(self, leader_epoch: int | None) -> int:
        if leader_epoch is None:
            return self._epochs.latest or 0
        check_leader_epoch(leader_epoch, self._epochs.latest, self.directory.name)
        return leader_epoch
