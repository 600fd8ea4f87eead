"""Restore partitions into a log directory for a broker; target_directory.py puts them in place."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tiered_storage.errors import ConfigurationError, InvalidLogDirectoryError
from tiered_storage.kafka_log.files.directory_lock import DirectoryLock
from tiered_storage.kafka_log.files.kafka_uuid import decode_uuid, random_uuid
from tiered_storage.kafka_log.files.meta_properties import META_PROPERTIES, MetaProperties
from tiered_storage.kafka_log.files.small_files import replace_file
from tiered_storage.kafka_log.files.topic_partition import partition_directory_name
from tiered_storage.kafka_log.kernels.constants import INT32_MAX
from tiered_storage.kafka_log.log.recovery.clean_shutdown import CLEAN_SHUTDOWN, UNKNOWN_BROKER_EPOCH
from tiered_storage.remote_log.jobs.throttle import NO_LIMIT, LimitedReads, RateLimit
from tiered_storage.remote_log.progress import OnMoved, unreported
from tiered_storage.remote_log.restore.committed import StoredTransactions, all_decided, ended_before
from tiered_storage.remote_log.restore.partition_files import PartitionWriter
from tiered_storage.remote_log.restore.request import RestoredPartition, RestorePlan
from tiered_storage.remote_log.restore.target_directory import (
    UNFINISHED,
    RestoredLog,
    TargetDirectory,
    UnfinishedRestore,
)
from tiered_storage.remote_log.restore.validation import Validation, check_store, check_written
from tiered_storage.remote_log.storage.remote_storage_manager import RemoteStorageManager


@dataclass(frozen=True, slots=True)
class DirectoryTarget:
    """The target: the log directory `root`, of a stopped broker.

    `topic` is the new name, else that of the store. `topic_id` is the topic's id in the cluster of `root`; by default
    that of the topic's partitions in `root`, else that of the store. `node_id` goes into the meta.properties of a
    directory that no broker has used yet. Raises ConfigurationError for an id that Kafka would refuse.
    """

    root: Path
    topic: str | None = None
    topic_id: str | None = None
    node_id: int = 1

    def __post_init__(self) -> None:
        """Refuse invalid ids early."""
        if not 0 <= self.node_id <= INT32_MAX:
            raise ConfigurationError(f"node id {self.node_id}: take 0 to {INT32_MAX}")
        if self.topic_id is None:
            return
        try:
            decode_uuid(self.topic_id)
        except ConfigurationError as error:
            raise ConfigurationError(f"the topic's id at the target: {error}") from error


@dataclass(frozen=True, slots=True)
class RestoredDirectory:
    """One partition in place: its offsets (the end is exclusive), and how many records were decoded.

    `was_there`: an earlier run put it in place before it ended.
    """

    partition: str
    log_start_offset: int
    log_end_offset: int
    segments: int
    size: int
    records: int | None
    was_there: bool = False


def restore_to_directory(
    plan: RestorePlan,
    storage: RemoteStorageManager,
    target: DirectoryTarget,
    *,
    validation: Validation = Validation.SIZES,
    allow_gaps: bool = False,
    workers: int = 2,
    on_moved: OnMoved = unreported,
    limit: RateLimit = NO_LIMIT,
) -> list[RestoredDirectory]:
    """Put all of `plan` in place, or nothing: an error before everything is complete leaves no partition.

    If the topic keeps its id, the store's bytes are kept unchanged; see partition_files.py for a new id, with which the
    log ends before the first undecided transaction. After a crash a second call resumes. Segments are read within
    `limit`.

    Raises LogDirectoryLockedError while a broker runs in the directory, InvalidLogDirectoryError if it has such a
    partition already or is a folder of something else, ConfigurationError if there is nothing to restore, no room for
    it, contradictory topic ids, or a transaction that may have been aborted in a gap; as RestorePlan.ensure_possible;
    and what reading the store and checking the result raise.
    """
    plan.ensure_possible(allow_gaps=allow_gaps)
    if not plan.partitions:
        raise ConfigurationError(f"{plan.request.topic}: the store has nothing that matches the request")
    topic = plan.request.named_as(target.topic)
    reads = LimitedReads(storage, limit)
    named = {_log(topic, partition): partition for partition in plan.partitions}
    directory = TargetDirectory(target.root)
    with _written(target.root):
        directory.ensure_log_directory()
        target.root.mkdir(parents=True, exist_ok=True)
    with DirectoryLock.acquire(target.root), _written(target.root):
        is_new = directory.is_new()
        if is_new:
            _check_cluster_id(plan)
        unfinished = _unfinished(directory, topic, named)
        topic_id = _topic_id(plan, target, topic, directory, unfinished)
        _check_transactions(plan, reads)
        there = _in_place(directory, unfinished, named) if unfinished else {}
        named = dict(
            _ended(log, each, there, reads if topic_id != plan.topic_id else None) for log, each in named.items()
        )
        todo = {log: each for log, each in named.items() if log.directory not in there}
        _check_free(directory, todo, unfinished)
        directory.discard_staged(log.directory for log in named)
        directory.ensure_room(sum(each.size for each in todo.values()))
        check_store((segment for each in todo.values() for segment in each.segments), storage, validation)
        writer = PartitionWriter(reads, topic_id, topic_id != plan.topic_id, on_moved)

        def write(log: RestoredLog) -> int | None:
            staging = directory.staging(log.directory)
            writer.write(todo[log], staging)
            return check_written(todo[log], staging, reads, validation)

        try:
            with ThreadPoolExecutor(max_workers=workers) as pool:
                records = dict(zip(todo, pool.map(write, todo), strict=True))
        except BaseException:
            directory.discard_staged(log.directory for log in todo)
            raise
        _put_in_place(directory, UnfinishedRestore(topic, topic_id, tuple(named)), todo)
        if is_new:
            _found_directory(target, plan)
        directory.finish()
    return [_report(log, each, records.get(log), was_there=log not in todo) for log, each in named.items()]


@contextmanager
def _written(root: Path) -> Iterator[None]:
    """Turn errors of the disk into ours."""
    try:
        yield
    except OSError as error:
        raise InvalidLogDirectoryError(f"{root}: nothing can be restored there: {error}") from error


def _put_in_place(
    directory: TargetDirectory, restore: UnfinishedRestore, logs: Mapping[RestoredLog, RestoredPartition]
) -> None:
    """Rename the complete partitions, so that a second run recognises them."""
    directory.begin(restore)
    numbers = {each.topic_id_partition.partition: each for each in logs.values()}
    directory.write_checkpoints(
        restore.topic,
        {number: each.log_start_offset for number, each in numbers.items()},
        {number: each.log_end_offset for number, each in numbers.items()},
    )
    for log in logs:
        directory.put_in_place(log.directory)


def _log(topic: str, partition: RestoredPartition) -> RestoredLog:
    name = partition_directory_name(topic, partition.topic_id_partition.partition)
    return RestoredLog(name, partition.first_offset, partition.log_end_offset)


def _in_place(
    directory: TargetDirectory, unfinished: UnfinishedRestore, logs: Iterable[RestoredLog]
) -> dict[str, RestoredLog]:
    """Return what the earlier run put in place, if `logs` still cover it; it may begin and end earlier."""
    asked = {log.directory: log for log in logs}
    return {
        log.directory: log
        for log in unfinished.logs
        if log.first_offset <= asked[log.directory].first_offset
        and log.end_offset <= asked[log.directory].end_offset
        and directory.is_in_place(log)
    }


def _ended(
    log: RestoredLog,
    partition: RestoredPartition,
    there: Mapping[str, RestoredLog],
    storage: RemoteStorageManager | None,
) -> tuple[RestoredLog, RestoredPartition]:
    """Return what is restored of `partition`, and its name.

    If an earlier run put it in place, its end then still holds: more may have been copied since. Another incarnation of
    the topic (its `storage` is given) has no producers: open transactions would pass for committed.
    """
    if log.directory in there:
        return there[log.directory], ended_before(partition, there[log.directory].end_offset)
    if storage is None:
        return log, partition
    ended = all_decided(partition, storage)
    return RestoredLog(log.directory, ended.first_offset, ended.log_end_offset), ended


def _check_transactions(plan: RestorePlan, storage: RemoteStorageManager) -> None:
    """Refuse transactions that readers would take for committed, since the abort may be in a gap."""
    for each in plan.partitions:
        for lost in StoredTransactions(each.segments, storage).lost_in_gaps():
            raise ConfigurationError(
                f"{each.topic_id_partition}: the transaction from offset {lost.first_offset} on may have been aborted "
                f"in what is missing before offset {lost.last_offset + 1}, and would pass for committed: restore into "
                f"a running cluster, or only from offset {lost.last_offset + 1} on"
            )


def _unfinished(directory: TargetDirectory, topic: str, logs: Iterable[RestoredLog]) -> UnfinishedRestore | None:
    """Return the earlier run that this one finishes. Raises InvalidLogDirectoryError if it was another restore."""
    unfinished = directory.unfinished()
    if unfinished is None:
        return None
    left_out = {log.directory for log in unfinished.logs} - {log.directory for log in logs}
    if unfinished.topic != topic or left_out:
        raise InvalidLogDirectoryError(
            f"{directory.root}: another restore did not finish here; {UNFINISHED} in it names what it was "
            "restoring: finish it first, with the same command"
        )
    return unfinished


def _topic_id(
    plan: RestorePlan,
    target: DirectoryTarget,
    topic: str,
    directory: TargetDirectory,
    unfinished: UnfinishedRestore | None,
) -> str:
    """Return the topic's id in the cluster of the directory."""
    known = set(directory.topic_ids(topic)) | ({unfinished.topic_id} if unfinished else set())
    if target.topic_id is not None:
        known.add(target.topic_id)
    if len(known) > 1:
        raise ConfigurationError(
            f"{directory.root}: {topic} would have several ids there: {', '.join(sorted(known))}; give the one that "
            "its cluster uses, and remove partitions with others"
        )
    if known:
        return known.pop()
    if topic != plan.request.topic:
        raise ConfigurationError(
            f"{directory.root}: {plan.request.topic} is restored as {topic}, which is another topic: give the id "
            "that its cluster uses by --as-topic-id, or create it there first"
        )
    meta = directory.root / META_PROPERTIES
    cluster_id = MetaProperties.read(meta).cluster_id if meta.is_file() else None
    if cluster_id not in {None, plan.partitions[0].topic_id_partition.cluster_id}:
        raise ConfigurationError(
            f"{directory.root} is of cluster {cluster_id}, which does not know {topic} by its old id: create "
            "it there first, or give its id by --as-topic-id"
        )
    return plan.topic_id


def _check_free(directory: TargetDirectory, logs: Iterable[RestoredLog], unfinished: UnfinishedRestore | None) -> None:
    taken = [log.directory for log in logs if not directory.is_free(log.directory, unfinished)]
    if taken:
        raise InvalidLogDirectoryError(
            f"{directory.root} has {', '.join(taken)} already, with records or other files, or they held records "
            "before: restore into another directory, or remove them first; nothing was changed"
        )


def _check_cluster_id(plan: RestorePlan) -> None:
    cluster_id = plan.partitions[0].topic_id_partition.cluster_id
    if not (cluster_id.isascii() and cluster_id.isprintable()):
        raise ConfigurationError(
            f"cluster id {cluster_id!r} cannot be written into meta.properties: format the directory with Kafka's own "
            "tool first"
        )


def _found_directory(target: DirectoryTarget, plan: RestorePlan) -> None:
    """Turn a new directory into one of the store's cluster, as after a clean shutdown."""
    mark = {"version": 0, "brokerEpoch": UNKNOWN_BROKER_EPOCH}
    replace_file(target.root / CLEAN_SHUTDOWN, json.dumps(mark, separators=(",", ":")).encode())
    # Last: with this file the directory is no longer new to a second run.
    cluster_id = plan.partitions[0].topic_id_partition.cluster_id
    MetaProperties(1, cluster_id, target.node_id, random_uuid()).write(target.root / META_PROPERTIES)


def _report(
    log: RestoredLog, partition: RestoredPartition, records: int | None, *, was_there: bool
) -> RestoredDirectory:
    return RestoredDirectory(
        log.directory,
        partition.log_start_offset,
        partition.log_end_offset,
        len(partition.segments),
        partition.size,
        records,
        was_there,
    )
