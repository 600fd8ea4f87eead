"""One partition's log on the local disk, in the files that a Kafka broker keeps: append, roll, flush, reopen, read.

    {topic}-{partition}/
        {base offset}.log, .index, .timeindex     see log_segment.py
        {base offset}.snapshot                    at each roll, for the new base offset: no producers
        leader-epoch-checkpoint                   see leader_epoch_checkpoint.py
        partition.metadata                        see partition_metadata.py

The log keeps no state of producers: batches are appended without producer ids, so its snapshots, which say that there
are none, are true.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Self

from tiered_storage.clock import Clock, wall_clock
from tiered_storage.errors import (
    ConfigurationError,
    CorruptRecordError,
    InvalidLogDirectoryError,
    OffsetOutOfRangeError,
)
from tiered_storage.kafka_log.active_segment import ActiveSegment
from tiered_storage.kafka_log.batch_header import (
    INT32_MAX,
    NO_PRODUCER_ID,
    RecordBatch,
    TimestampType,
    check_crc,
    read_batch_header,
)
from tiered_storage.kafka_log.batch_read import read_batches
from tiered_storage.kafka_log.compression import Compression
from tiered_storage.kafka_log.leader_epoch_checkpoint import (
    LEADER_EPOCH_CHECKPOINT,
    EpochEntry,
    read_leader_epochs,
    write_leader_epochs,
)
from tiered_storage.kafka_log.log_config import LogConfig
from tiered_storage.kafka_log.log_segment import LogSegment, list_segments, producer_snapshot_path
from tiered_storage.kafka_log.offset_index import OffsetIndex
from tiered_storage.kafka_log.partition_metadata import PARTITION_METADATA, read_topic_id, write_topic_id
from tiered_storage.kafka_log.producer_snapshot import write_producer_snapshot
from tiered_storage.kafka_log.record import Record
from tiered_storage.kafka_log.record_batch import encode_batch
from tiered_storage.kafka_log.segment_recovery import recover_segment
from tiered_storage.kafka_log.small_files import sync_directory
from tiered_storage.kafka_log.topic_partition import parse_partition_directory, partition_directory_name

_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")
_LEADER_EPOCH_POSITION = 12


class LocalLog:
    """The log of one partition, open for appending. Not for two threads or two processes at once."""

    def __init__(self, directory: Path, topic_id: str | None, config: LogConfig, clock: Clock) -> None:
        """Use `create` or `open`."""
        name = parse_partition_directory(directory.name)
        segments = list_segments(directory) if name and directory.is_dir() else []
        if name is None or not segments:
            raise InvalidLogDirectoryError(f"{directory} is no directory topic-partition with .log files in it")
        self.directory = directory
        self.topic, self.partition = name
        self.topic_id = topic_id
        self._config = config
        self._clock = clock
        self._segments = segments
        self._epochs = list(_read_epochs(directory))
        recovered = recover_segment(segments[-1], config.index_interval_bytes)
        self.truncated_bytes = recovered.truncated_bytes
        """How many bytes behind the last whole batch were cut off when the log was opened."""
        self._active = ActiveSegment(segments[-1], recovered, config, clock())
        self._reconcile_epochs(recovered.epochs)

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
    ) -> Self:
        """Create the partition's directory in `log_directory` and an empty log in it that begins at `base_offset`.

        Raises ConfigurationError for a topic, partition or topic id that Kafka does not take, and
        InvalidLogDirectoryError where the directory exists.
        """
        directory = log_directory / partition_directory_name(topic, partition)
        try:
            directory.mkdir(parents=True)
        except FileExistsError as error:
            raise InvalidLogDirectoryError(f"{directory} exists: open its log, or name another directory") from error
        write_topic_id(directory / PARTITION_METADATA, topic_id)
        write_leader_epochs(directory / LEADER_EPOCH_CHECKPOINT, [])
        LogSegment(base_offset, directory).log_path.touch()
        sync_directory(directory)
        sync_directory(log_directory)
        return cls(directory, topic_id, config or LogConfig(), clock)

    @classmethod
    def open(cls, directory: Path, config: LogConfig | None = None, *, clock: Clock = wall_clock) -> Self:
        """Open the log in the partition's `directory`.

        What a crash left behind the last whole batch is cut off (`truncated_bytes`), the active segment's indexes are
        built anew, and leader epochs that begin past the end are dropped.

        Raises InvalidLogDirectoryError where `directory` holds no log, CorruptIndexError for a broken checkpoint,
        UnsupportedMagicError for batches of an older format in the active segment.
        """
        return cls(directory, read_topic_id(directory / PARTITION_METADATA), config or LogConfig(), clock)

    @property
    def log_start_offset(self) -> int:
        """The first offset of the log (inclusive)."""
        return self._segments[0].base_offset

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record gets."""
        return self._active.next_offset

    @property
    def segments(self) -> tuple[LogSegment, ...]:
        """The segments by rising base offset; the last one is the active one."""
        return tuple(self._segments)

    @property
    def leader_epochs(self) -> tuple[EpochEntry, ...]:
        """At which offsets the leader epochs began, earliest first."""
        return tuple(self._epochs)

    def append(
        self,
        records: Sequence[Record],
        compression: Compression = Compression.NONE,
        *,
        leader_epoch: int | None = None,
        timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    ) -> int:
        """Append `records` as one batch and return its base offset; the records' own offsets are ignored.

        `leader_epoch` is the latest one (0 at first) unless given. With LOG_APPEND_TIME the clock stamps the records.

        Raises ConfigurationError where the batch is empty, larger than `max_message_bytes` or a segment, or of a
        leader epoch that is over.
        """
        base_offset = self.log_end_offset
        now = self._clock() if timestamp_type is TimestampType.LOG_APPEND_TIME else None
        placed = [
            Record(offset, record.timestamp if now is None else now, record.key, record.value, record.headers)
            for offset, record in enumerate(records, base_offset)
        ]
        epoch = self._epoch_to_write(leader_epoch)
        batch = encode_batch(placed, compression, partition_leader_epoch=epoch, timestamp_type=timestamp_type)
        self._append(batch, read_batch_header(batch))
        return base_offset

    def append_encoded_batch(self, batch: bytes, *, leader_epoch: int | None = None) -> int:
        """Append one encoded `batch`, as a producer sends it, and return the base offset that it gets here.

        Its base offset and leader epoch are set, which its checksum does not cover; else it is kept as it is. Raises
        as `append`, CorruptRecordError for a batch that is not whole, and ConfigurationError for one with a producer
        id or of fewer records than offsets.
        """
        header = read_batch_header(batch)
        if header.size != len(batch):
            raise CorruptRecordError("<batch>", 0, f"the batch has {header.size} bytes, but {len(batch)} are given")
        check_crc(batch, source="<batch>")
        if header.producer_id != NO_PRODUCER_ID:
            raise ConfigurationError(f"{self.directory.name} takes no batch of a producer id: it keeps no such state")
        if header.record_count != header.last_offset_delta + 1:
            raise ConfigurationError(f"the batch has {header.record_count} records: its offsets have gaps")
        placed = bytearray(batch)
        base_offset = self.log_end_offset
        _BASE_OFFSET.pack_into(placed, 0, base_offset)
        _LEADER_EPOCH.pack_into(placed, _LEADER_EPOCH_POSITION, self._epoch_to_write(leader_epoch))
        self._append(placed, read_batch_header(placed))
        return base_offset

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Return whole batches, up to `max_bytes` but at least one, beginning with the one that `offset` is in.

        They end with their segment at the latest; nothing is returned at the log's end. Records below `offset` may
        come first. Raises OffsetOutOfRangeError outside the log.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRangeError(self.directory.name, offset, self.log_start_offset, self.log_end_offset)
        self._active.write_out()
        first = bisect_right(self._segments, offset, key=attrgetter("base_offset")) - 1
        for segment in self._segments[first:]:
            position = self._offset_index(segment).lookup(offset).position
            if batches := read_batches(segment.log_path, position, offset, max_bytes):
                return batches
        return b""

    def flush(self) -> None:
        """Bring everything appended so far to the disk."""
        self._active.flush()

    def close(self) -> None:
        """Bring everything to the disk, the active segment's indexes as those of a closed one, and let go of it.

        Doing it twice is harmless.
        """
        if self._active.is_closed:
            return
        try:
            self._active.finish()
        finally:
            self._active.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _append(self, batch: bytes | bytearray, header: RecordBatch) -> None:
        most = min(self._config.max_message_bytes, self._config.segment_bytes)
        if header.size > most:
            raise ConfigurationError(
                f"{self.directory.name}: a batch of {header.size} bytes is larger than the {most} bytes that "
                "max_message_bytes and segment_bytes allow: append fewer records at once"
            )
        if not self._active.has_room_for(header, self._clock()):
            self._roll()
        self._begin_epoch(header)
        self._active.append(batch, header)

    def _roll(self) -> None:
        """Close the active segment and begin another one at the log's end; each file is whole before the next one."""
        segment = LogSegment(self.log_end_offset, self.directory)
        self._active.finish()
        write_producer_snapshot(producer_snapshot_path(self.directory, segment.base_offset))
        segment.log_path.touch()
        recovered = recover_segment(segment, self._config.index_interval_bytes)
        active = ActiveSegment(segment, recovered, self._config, self._clock())
        sync_directory(self.directory)
        self._active.close()
        self._active = active
        self._segments.append(segment)

    def _epoch_to_write(self, leader_epoch: int | None) -> int:
        latest = self._epochs[-1].epoch if self._epochs else 0
        if leader_epoch is None:
            return latest
        if not latest <= leader_epoch <= INT32_MAX:
            raise ConfigurationError(f"{self.directory.name}: leader epoch {leader_epoch} cannot follow epoch {latest}")
        return leader_epoch

    def _begin_epoch(self, header: RecordBatch) -> None:
        """Take the batch's leader epoch into the checkpoint where it is a new one."""
        epoch = header.partition_leader_epoch
        if not self._epochs or epoch > self._epochs[-1].epoch:
            self._write_epochs([*self._epochs, EpochEntry(epoch, header.base_offset)])

    def _reconcile_epochs(self, recovered: Sequence[EpochEntry]) -> None:
        """Drop the epochs that begin past the log's end, and add those that the active segment shows."""
        epochs = [entry for entry in self._epochs if entry.start_offset < self.log_end_offset]
        epochs += [entry for entry in recovered if not epochs or entry.epoch > epochs[-1].epoch]
        if epochs != self._epochs:
            self._write_epochs(epochs)

    def _write_epochs(self, epochs: list[EpochEntry]) -> None:
        write_leader_epochs(self.directory / LEADER_EPOCH_CHECKPOINT, epochs)
        self._epochs = epochs

    def _offset_index(self, segment: LogSegment) -> OffsetIndex:
        if segment == self._active.segment:
            return self._active.offset_index()
        return OffsetIndex.read(segment.offset_index_path, segment.base_offset)


def _read_epochs(directory: Path) -> tuple[EpochEntry, ...]:
    path = directory / LEADER_EPOCH_CHECKPOINT
    if not path.is_file():
        raise InvalidLogDirectoryError(f"{path} is missing: which leader epochs the log had is unknown without it")
    return read_leader_epochs(path)
