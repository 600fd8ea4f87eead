"""The log directory of followers: its lock, its logs, and what is written beside them for the next one to open it.

A broker, a copy from log.dirs, or another run of the follower may take it over once it is closed. A killed process
leaves a directory like that of a killed broker: the next one to open it recovers the logs from their recovery points.
"""

from __future__ import annotations

import json
import shutil
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
from tiered_storage.kafka_log.files.offset_checkpoint import RECOVERY_POINT_CHECKPOINT, read_offset_checkpoint
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
    """The log directory `root`, locked until it is closed. For one thread."""

    def __init__(self, root: Path, lock: DirectoryLock, clock: Clock, *, was_clean: bool) -> None:
        """Use `open`."""
        self.root = root
        self._lock = lock
        self._clock = clock
        self._was_clean = was_clean
        self._logs: dict[TopicIdPartition, LocalLog] = {}

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
            recovery_point = self._recovery_point(partition)
            log = LocalLog.open(
                directory,
                config,
                clock=self._clock,
                log_start_offset=log_start_offset,
                recovery_point=None if self._was_clean else recovery_point or 0,
                closed_at=recovery_point if self._was_clean else None,
                lock=self._lock,
            )
            # Not earlier: a log that is refused because of damage does not pass for one torn by a crash next time.
            remove_clean_shutdown(self.root)
        self._logs[partition] = log
        return log

    def write_checkpoints(self) -> None:
        """Write everything to disk, and how far each log is then. Raises OSError."""
        for partition, log in self._logs.items():
            log.flush()
            self._write_checkpoints(partition, log)

    def close(self) -> None:
        """Write all logs to disk, the checkpoints, and, if the directory was clean, the clean-shutdown mark."""
        try:
            for log in self._logs.values():
                log.close()
            for partition, log in self._logs.items():
                self._write_checkpoints(partition, log)
            if self._was_clean:
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
        number = partition.partition
        # The start of the local log: with a lower one, the directory would look like that of Kafka's own tiering.
        TargetDirectory(self.root).write_checkpoints(
            partition.topic,
            {number: log.log_start_offset},
            {number: log.recovery_point},
            {number: log.high_watermark},
        )

    def _recovery_point(self, partition: TopicIdPartition) -> int | None:
        path = self.root / RECOVERY_POINT_CHECKPOINT
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
