"""The log directory of followers: its lock, its logs, and what is written beside them for the next one to open it.

A broker, a copy from log.dirs, or another run of the follower may take it over once it is closed. A killed process
leaves a directory like that of a killed broker: the next one to open it recovers the logs from their recovery points.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from tiered_storage.clock import Clock
from tiered_storage.errors import ConfigurationError, InvalidLogDirectoryError
from tiered_storage.kafka_log.files.directory_lock import DirectoryLock
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import LEADER_EPOCH_CHECKPOINT
from tiered_storage.kafka_log.files.log_segment import has_segment
from tiered_storage.kafka_log.files.meta_properties import META_PROPERTIES, MetaProperties
from tiered_storage.kafka_log.files.offset_checkpoint import (
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    read_offset_checkpoint,
)
from tiered_storage.kafka_log.files.partition_metadata import PARTITION_METADATA, read_topic_id
from tiered_storage.kafka_log.files.small_files import TEMPORARY_SUFFIX, replace_file
from tiered_storage.kafka_log.files.topic_partition import partition_directory_name
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.recovery.clean_shutdown import (
    CLEAN_SHUTDOWN,
    UNKNOWN_BROKER_EPOCH,
    remove_clean_shutdown,
)
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.restore.target_directory import UNFINISHED, TargetDirectory

_BEFORE_THE_LOG = frozenset(
    name + suffix for name in (PARTITION_METADATA, LEADER_EPOCH_CHECKPOINT) for suffix in ("", TEMPORARY_SUFFIX)
)
"""The files that a partition's directory gets before its first segment."""


class FollowedDirectory:
    """The log directory `root`, locked until it is closed. Each of its logs is for one thread."""

    def __init__(self, root: Path, lock: DirectoryLock, clock: Clock, *, was_clean: bool) -> None:
        """Use `open`."""
        self.root = root
        self._lock = lock
        self._clock = clock
        self._was_clean = was_clean
        self._logs: dict[TopicIdPartition, LocalLog] = {}
        self._changes = threading.Lock()
        """Held while the checkpoint files, which all logs share, are changed."""
        self._written: dict[TopicIdPartition, tuple[int, int, int]] = {}
        self._torn: set[TopicIdPartition] = set()
        """Abandoned here: not closed in order, whatever the clean-shutdown mark was."""

    @classmethod
    def open(cls, root: Path, cluster_id: str, clock: Clock, node_id: int) -> Self:
        """Lock `root`, a log directory of the cluster, or a folder that is new or empty and becomes one.

        `node_id` goes into the meta.properties of a new one. Raises LogDirectoryLockedError while a broker runs there;
        InvalidLogDirectoryError for a folder of something else, of an unfinished restore, or that cannot be written;
        ConfigurationError for a directory of another cluster.
        """
        target = TargetDirectory(root)
        try:
            target.ensure_log_directory()
            root.mkdir(parents=True, exist_ok=True)
            lock = DirectoryLock.acquire(root)
            try:
                was_clean = _own(target, cluster_id, node_id)
            except BaseException:
                lock.release()
                raise
        except OSError as error:
            raise InvalidLogDirectoryError(f"{root}: no follower can write there: {error}") from error
        return cls(root, lock, clock, was_clean=was_clean)

    def log(self, partition: TopicIdPartition, config: LogConfig, log_start_offset: int) -> LocalLog:
        """Open the partition's log, or create an empty one; `log_start_offset` is that over both tiers.

        Raises InvalidLogDirectoryError if it belongs to another incarnation of the topic, and as LocalLog.open.
        """
        directory = self.root / partition_directory_name(partition.topic, partition.partition)
        _remove_unbegun(directory)
        if not directory.exists():
            remove_clean_shutdown(self.root)
            log = LocalLog.create(
                self.root,
                partition.topic,
                partition.partition,
                partition.topic_id,
                config,
                clock=self._clock,
                lock=self._lock,
            )
        else:
            _ensure_incarnation(directory, partition)
            was_clean = self._was_clean and partition not in self._torn
            recovery_point = self._checkpoint(RECOVERY_POINT_CHECKPOINT, partition)
            log = LocalLog.open(
                directory,
                config,
                clock=self._clock,
                log_start_offset=log_start_offset,
                recovery_point=None if was_clean else recovery_point or 0,
                closed_at=recovery_point if was_clean else None,
                lock=self._lock,
            )
            # Before anything else may fail: it is closed then.
            self._logs[partition] = log
            self._torn.discard(partition)
            self._keep_log_start(log, partition)
            # Not earlier: a log that is refused because of damage does not pass for one torn by a crash next time.
            remove_clean_shutdown(self.root)
        self._logs[partition] = log
        return log

    def write_checkpoints(self, partition: TopicIdPartition) -> None:
        """Write the partition's log to disk, and how far it is then. Raises OSError."""
        log = self._logs[partition]
        if log.recovery_point < log.log_end_offset:
            log.flush()
        self._write_checkpoints(partition, log)

    def close_log(self, partition: TopicIdPartition) -> None:
        """Write the partition's log and its checkpoints to disk, and close it. Raises as LocalLog.close."""
        log = self._logs[partition]
        try:
            log.close()
            self._write_checkpoints(partition, log)
        except BaseException:
            self.abandon_log(partition)
            raise
        del self._logs[partition]

    def abandon_log(self, partition: TopicIdPartition) -> None:
        """Close the partition's log, if it is open, without writing anything: opened again, it is recovered."""
        if (log := self._logs.pop(partition, None)) is not None:
            self._torn.add(partition)
            log.abandon()

    def close(self) -> None:
        """Write all logs to disk, the checkpoints, and, if the directory was clean, the clean-shutdown mark."""
        try:
            for log in self._logs.values():
                log.close()
            for partition, log in self._logs.items():
                self._write_checkpoints(partition, log)
            if self._was_clean and not self._torn:
                mark = {"version": 0, "brokerEpoch": UNKNOWN_BROKER_EPOCH}
                replace_file(self.root / CLEAN_SHUTDOWN, json.dumps(mark, separators=(",", ":")).encode())
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close without writing anything, as after an error: the next one to open the directory recovers it."""
        for log in self._logs.values():
            log.abandon()
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close; after an error as far as that is possible."""
        if kind is None:
            self.close()
            return
        if issubclass(kind, (Exception, KeyboardInterrupt, SystemExit)):
            with suppress(InvalidLogDirectoryError, OSError):
                self.close()
        self.abandon()

    def _write_checkpoints(self, partition: TopicIdPartition, log: LocalLog) -> None:
        # The start of the local log: with a lower one, the directory would look like that of Kafka's own tiering.
        offsets = log.log_start_offset, log.recovery_point, log.high_watermark
        with self._changes:
            if self._written.get(partition) == offsets:
                return
            start, end, high_watermark = ({partition.partition: offset} for offset in offsets)
            TargetDirectory(self.root).write_checkpoints(partition.topic, start, end, high_watermark)
            self._written[partition] = offsets

    def _keep_log_start(self, log: LocalLog, partition: TopicIdPartition) -> None:
        """Keep the log start of a broker that deleted records within the first segment."""
        start = self._checkpoint(LOG_START_OFFSET_CHECKPOINT, partition)
        if start is not None and log.segments[0].base_offset < start <= log.log_end_offset:
            log.delete_records(start)

    def _checkpoint(self, name: str, partition: TopicIdPartition) -> int | None:
        path = self.root / name
        known: Mapping[tuple[str, int], int] = read_offset_checkpoint(path) if path.is_file() else {}
        return known.get((partition.topic, partition.partition))


def _own(target: TargetDirectory, cluster_id: str, node_id: int) -> bool:
    """Make a new directory one of the cluster's; return whether the logs in it were closed in order."""
    if target.unfinished() is not None:
        raise InvalidLogDirectoryError(f"{target.root}: a restore did not finish here ({UNFINISHED}): finish it first")
    path = target.root / META_PROPERTIES
    if target.is_new():
        MetaProperties(1, cluster_id, node_id, random_uuid()).write(path)
        return True
    if not path.is_file():
        raise InvalidLogDirectoryError(
            f"{target.root} has partitions and no {META_PROPERTIES}: put that file back, or name another directory"
        )
    found = MetaProperties.read(path).cluster_id
    if found != cluster_id:
        raise ConfigurationError(
            f"{target.root} is of cluster {found} by its {META_PROPERTIES}, and the leader is of cluster {cluster_id}: "
            "name a directory of that cluster, or a new one"
        )
    return (target.root / CLEAN_SHUTDOWN).is_file()


def _ensure_incarnation(directory: Path, partition: TopicIdPartition) -> None:
    found = read_topic_id(directory / PARTITION_METADATA)
    if found is None:
        raise InvalidLogDirectoryError(
            f"{directory} has no {PARTITION_METADATA}, so it may be of an earlier topic {partition.topic}. If it is of "
            f"this one, put the file back (two lines: 'version: 0' and 'topic_id: {partition.topic_id}'); else remove "
            "the directory"
        )
    if found != partition.topic_id:
        raise InvalidLogDirectoryError(
            f"{directory} is of the topic id {found}, and the leader's topic {partition.topic} has the id "
            f"{partition.topic_id}: it was created again; remove that directory, or name another one"
        )


def _remove_unbegun(directory: Path) -> None:
    """Remove what a process left that was killed before the log had its first segment."""
    if not directory.is_dir() or directory.is_symlink() or has_segment(directory):
        return
    if {path.name for path in directory.iterdir()} <= _BEFORE_THE_LOG:
        shutil.rmtree(directory)
