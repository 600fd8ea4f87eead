"""Write a whole log directory that a broker accepts as its own: partitions, checkpoints, identity, lock.

    .lock                                held from the beginning to the end
    meta.properties                      version 1, see meta_properties.py
    {topic}-{partition}/                 see local_log.py
    replication-offset-checkpoint        at the end, and on request: each log's high watermark
    recovery-point-offset-checkpoint     likewise: up to where each log is durable, at the end all of it
    log-start-offset-checkpoint          likewise: each log's start
                                         (all three keep their entries for partitions that are here but not open, such
                                         as one without any segment)
    .kafka_cleanshutdown                 at the very end: {"version":0,"brokerEpoch":-1}; a broker that finds it skips
                                         recovery and removes it; we do so when all logs are open

Source: released Kafka (the content of the last file: KIP-966).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tiered_storage.clock import Clock, wall_clock
from tiered_storage.errors import InvalidLogDirectoryError
from tiered_storage.kafka_log.files.directory_lock import DirectoryLock
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.kafka_log.files.log_directory import LogDirectory, read_log_directory
from tiered_storage.kafka_log.files.log_segment import RecoveryEvent, awaits_swap
from tiered_storage.kafka_log.files.meta_properties import META_PROPERTIES, MetaProperties
from tiered_storage.kafka_log.files.offset_checkpoint import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from tiered_storage.kafka_log.files.small_files import remove_temporary_files, replace_file
from tiered_storage.kafka_log.files.topic_partition import (
    CLUSTER_METADATA_TOPIC,
    parse_partition_directory,
    partition_directory_name,
)
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.recovery.clean_shutdown import (
    CLEAN_SHUTDOWN,
    UNKNOWN_BROKER_EPOCH,
    remove_clean_shutdown,
)
from tiered_storage.kafka_log.log.recovery.log_leftovers import clear_leftovers

_CHECKPOINTS = (RECOVERY_POINT_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT)


class LogDirectoryWriter:
    """A log directory, locked until it is closed; closing it closes its logs."""

    def __init__(self, root: Path, lock: DirectoryLock, clock: Clock) -> None:
        """Use `create` or `open`."""
        self.root = root
        self._clock = clock
        self._logs: dict[tuple[str, int], LocalLog] = {}
        self._found_high_watermarks: dict[tuple[str, int], tuple[int, int]] = {}
        """The checkpoint's offset when each log was opened, and the log's end then."""
        self._passed_over: dict[str, dict[tuple[str, int], int]] = {}
        """The entries of each checkpoint for partitions that are here but not open."""
        self._only_local: set[tuple[str, int]] = set()
        """Logs that no broker tiers: created here, or without a log start in the checkpoint, which a tiered one has."""
        self._lock = lock
        self._closed = False
        self._open_files = ExitStack()
        self._open_files.enter_context(lock)

    @classmethod
    def create(
        cls,
        root: Path,
        cluster_id: str,
        *,
        node_id: int = 1,
        directory_id: str | None = None,
        clock: Clock = wall_clock,
    ) -> Self:
        """Create `root` as the log directory of a broker of that cluster; `directory_id` is random unless given.

        Raises InvalidLogDirectoryError if `root` is one already, LogDirectoryLockedError if it is in use.
        """
        root.mkdir(parents=True, exist_ok=True)
        lock = DirectoryLock.acquire(root)
        meta = root / META_PROPERTIES
        if meta.exists():
            lock.release()
            raise InvalidLogDirectoryError(f"{root} is a log directory already: open it, or name an empty directory")
        try:
            MetaProperties(1, cluster_id, node_id, directory_id or random_uuid()).write(meta)
        except BaseException:
            lock.release()
            raise
        return cls(root, lock, clock)

    @classmethod
    def open(cls, root: Path, config: LogConfig | None = None, *, clock: Clock = wall_clock) -> Self:
        """Open the log directory `root` and all its logs.

        Raises InvalidLogDirectoryError if it is not one, LogDirectoryLockedError if it is in use, and as LocalLog.open
        does.
        """
        writer = cls(root, DirectoryLock.acquire(root), clock)
        try:
            writer._open_logs(config)
        except BaseException:
            writer._open_files.close()
            raise
        return writer

    def create_log(self, topic: str, partition: int, topic_id: str, config: LogConfig | None = None) -> LocalLog:
        """Create an empty log of a partition here.

        Raises InvalidLogDirectoryError once the directory is closed, and as LocalLog.create.
        """
        if self._closed:
            name = partition_directory_name(topic, partition)
            raise InvalidLogDirectoryError(f"{self.root} is closed: open it again to create {name} in it")
        self._only_local.add((topic, partition))
        return self._add(
            LocalLog.create(self.root, topic, partition, topic_id, config, clock=self._clock, lock=self._lock)
        )

    def log(self, topic: str, partition: int) -> LocalLog:
        """Return the log of a partition. Raises InvalidLogDirectoryError if it is not here."""
        if (topic, partition) not in self._logs:
            raise InvalidLogDirectoryError(f"{self.root} has no {partition_directory_name(topic, partition)}")
        return self._logs[topic, partition]

    @property
    def mended(self) -> tuple[RecoveryEvent, ...]:
        """What was found missing, broken or half done in all logs, and what became of it: see LocalLog.mended."""
        return tuple(event for log in self._logs.values() for event in log.mended)

    def write_checkpoints(self) -> None:
        """Write each log's recovery point, high watermark and start to the checkpoints, as a broker does now and then.

        After a crash, only data after the recovery points are read again, and `delete_records` is remembered.
        """
        recovery_points = {partition: log.recovery_point for partition, log in self._logs.items()}
        high_watermarks = {partition: self._high_watermark(partition) for partition in self._logs}
        starts = {
            partition: log.log_start_offset if partition in self._only_local else log.start_offset_to_keep
            for partition, log in self._logs.items()
        }
        for name, offsets in (
            (RECOVERY_POINT_CHECKPOINT, recovery_points),
            (HIGH_WATERMARK_CHECKPOINT, high_watermarks),
            (LOG_START_OFFSET_CHECKPOINT, starts),
        ):
            write_offset_checkpoint(self.root / name, self._passed_over.get(name, {}) | offsets)

    def close(self) -> None:
        """Write all logs to disk, then the checkpoints and, last, the clean-shutdown mark.

        Repeated calls are harmless. If a log cannot be closed cleanly, this raises, and writes neither checkpoints nor
        mark: the next one to open the directory recovers it.
        """
        if self._closed:
            return
        self._closed = True
        with self._open_files:
            for log in self._logs.values():
                log.close()
            self.write_checkpoints()
            mark = {"version": 0, "brokerEpoch": UNKNOWN_BROKER_EPOCH}
            replace_file(self.root / CLEAN_SHUTDOWN, json.dumps(mark, separators=(",", ":")).encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close; after an error write neither checkpoints nor mark: the next one to open it recovers it."""
        if error is None:
            self.close()
        elif not self._closed:
            self._closed = True
            self._open_files.__exit__(kind, error, traceback)

    def _open_logs(self, config: LogConfig | None) -> None:
        """Open the logs; without a clean-shutdown mark, read each again from its recovery point on."""
        was_clean = (self.root / CLEAN_SHUTDOWN).is_file()
        remove_temporary_files(self.root, (META_PROPERTIES, CLEAN_SHUTDOWN, *_CHECKPOINTS))
        for directory in self.root.iterdir():
            name = parse_partition_directory(directory.name)
            if name and name[0] != CLUSTER_METADATA_TOPIC and directory.is_dir() and awaits_swap(directory):
                clear_leftovers(directory)
        found = read_log_directory(self.root)
        for error in found.damaged.values():
            raise error
        recovery_points = self._read_checkpoint(RECOVERY_POINT_CHECKPOINT, found)
        high_watermarks = self._read_checkpoint(HIGH_WATERMARK_CHECKPOINT, found)
        starts = self._read_checkpoint(LOG_START_OFFSET_CHECKPOINT, found)
        for partition in found.partitions:
            name = partition.topic, partition.partition
            if found.log_start_offsets is not None and name not in starts:
                self._only_local.add(name)
            log = LocalLog.open(
                partition.path,
                config,
                clock=self._clock,
                log_start_offset=starts.get(name, 0),
                recovery_point=None if was_clean else recovery_points.get(name, 0),
                closed_at=recovery_points.get(name) if was_clean else None,
                lock=self._lock,
            )
            self._add(log)
            if name in high_watermarks:
                known = min(max(high_watermarks[name], log.log_start_offset), log.log_end_offset)
                self._found_high_watermarks[name] = known, log.log_end_offset
        remove_clean_shutdown(self.root)

    def _read_checkpoint(self, name: str, found: LogDirectory) -> Mapping[tuple[str, int], int]:
        path = self.root / name
        offsets = read_offset_checkpoint(path) if path.is_file() else {}
        passed_over = {parse_partition_directory(directory) for directory in found.skipped}
        self._passed_over[name] = {partition: offsets[partition] for partition in offsets if partition in passed_over}
        return offsets

    def _high_watermark(self, partition: tuple[str, int]) -> int:
        """Return the checkpoint's value until something is appended: other replicas may have less of the log."""
        log = self._logs[partition]
        found, log_end = self._found_high_watermarks.get(partition, (0, -1))
        is_untouched = log_end == log.log_end_offset == log.high_watermark
        return found if is_untouched else log.high_watermark

    def _add(self, log: LocalLog) -> LocalLog:
        self._open_files.enter_context(log)
        self._logs[log.topic, log.partition] = log
        return log
