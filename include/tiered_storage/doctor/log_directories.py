"""Check whether the log directories can be read, copied and trimmed, and those of running brokers seen and read."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path

from tiered_storage.doctor.check import Check, alone, note, ok, wrong
from tiered_storage.doctor.object_stores import check_room
from tiered_storage.errors import LogDirectoryLockedError, TieredStorageError
from tiered_storage.kafka_log.files.directory_lock import ensure_unlocked
from tiered_storage.kafka_log.files.log_directory import LogDirectory, read_log_directory
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage.kafka_log.files.offset_checkpoint import HIGH_WATERMARK_CHECKPOINT
from tiered_storage.kafka_log.files.topic_partition import parse_partition_directory, partition_directory_name
from tiered_storage.kafka_log.log.recovery.clean_shutdown import CLEAN_SHUTDOWN
from tiered_storage.remote_log.context import misplaced
from tiered_storage.remote_log.metadata.lost_identity import LostIdentities
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.source.leader_files import SETTING, BrokerDirectories, why_not_of, why_unseen
from tiered_storage.remote_log.source.log_directory_source import LogDirectorySource, repeated_partitions, several
from tiered_storage.remote_log.source.opening import CLUSTER
from tiered_storage.remote_log.source.partition_log import NamedPartition, PartitionLog, UnreadablePartition
from tiered_storage.remote_log.tiering_policy import Decisions
from tiered_storage.settings.settings import Settings

MOST_PARTITIONS_NAMED = 20
"""Per directory: thousands of findings mostly have one cause."""

_NAME = "log.dirs"


def check_log_directories(settings: Settings, why_no_name: Callable[[TopicIdPartition], str | None]) -> Iterator[Check]:
    """Yield the findings of each directory, and the partitions that are in two of them.

    `why_no_name` returns why the store can never hold a partition, or None.
    """
    if not settings.log_dirs and not CLUSTER.is_named(settings):
        advice = "set log.dirs to the broker's log.dirs, or bootstrap.servers"
        yield note(_NAME, "no directory is named: nothing can be copied or trimmed", advice)
    for why in misplaced(settings):
        yield wrong(_NAME, why)
    read: list[LogDirectory] = []
    for root in settings.log_dirs:
        yield from alone(_NAME, lambda root=root: _check_directory(root, settings, read, why_no_name))  # type: ignore[misc]
    for same in {tuple(places) for places in repeated_partitions(read, settings.cluster_id).values()}:
        yield wrong(_NAME, several(same), "remove the older one from log.dirs, or from its directory")


def check_identities(settings: Settings, segments: RemoteLogMetadataManager) -> Iterator[Check]:
    """Yield the topics of log.dirs that `segments` have under other ids, each once."""
    identities = LostIdentities(segments.list_partitions(), segments)
    found: dict[str, str] = {}
    for named in _named_partitions(settings):
        why = identities.why_lost(named)
        found |= {} if why is None else {named.topic_id_partition.topic: why}
    yield from (wrong(_NAME, why) for why in islice(found.values(), MOST_PARTITIONS_NAMED))
    if len(found) > MOST_PARTITIONS_NAMED:
        yield wrong(_NAME, f"{len(found) - MOST_PARTITIONS_NAMED} more topics are remote under other ids")


def check_decisions(decisions: Decisions, settings: Settings, reported: Collection[str]) -> Iterator[Check]:
    """Yield why enabled topics of log.dirs are refused, such as compacted ones; those in `reported` are left out."""
    found: dict[str, str] = {}
    for named in _named_partitions(settings):
        try:
            decisions.of(named)
        except TieredStorageError as error:
            found.setdefault(named.topic_id_partition.topic, str(error))
    yield from (wrong("topics", why) for why in found.values() if why not in reported)


def _named_partitions(settings: Settings) -> Iterator[NamedPartition]:
    for root in settings.log_dirs:
        # The check of the directory reports why it cannot be read.
        with suppress(TieredStorageError, OSError):
            for named in LogDirectorySource((root,), settings.cluster_id, settings.log_end_is_stable).names():
                if isinstance(named, NamedPartition) and not named.is_internal:
                    yield named


def _check_directory(
    root: Path,
    settings: Settings,
    read: list[LogDirectory],
    why_no_name: Callable[[TopicIdPartition], str | None],
) -> Iterator[Check]:
    if root.is_dir() and not os.access(root, os.R_OK | os.X_OK, effective_ids=True):
        yield wrong(_NAME, f"{root}: user {os.geteuid()} may not read it", "give that user the right to")
        return
    try:
        ensure_unlocked(root)
    except LogDirectoryLockedError as error:
        yield wrong(_NAME, str(error))
        return
    directory = read_log_directory(root)
    read.append(directory)
    yield from _check_files(directory, settings)
    source = LogDirectorySource((root,), settings.cluster_id, settings.log_end_is_stable)
    logs = list(source.partitions())
    readable = [log for log in logs if isinstance(log, PartitionLog)]
    found = chain(
        (_unreadable(log, root) for log in logs if isinstance(log, UnreadablePartition)),
        chain.from_iterable(_check_partition(root, log, why_no_name) for log in readable),
    )
    named = list(islice(found, MOST_PARTITIONS_NAMED))
    yield from named
    if more := sum(1 for _ in found):
        yield wrong(_NAME, f"{root}: {more} more findings of partitions are left out")
    topics = {log.topic_id_partition.topic for log in readable}
    yield ok(_NAME, f"{root}: {len(readable)} partitions of {len(topics)} topics can be read; no process locks it")


def _check_files(directory: LogDirectory, settings: Settings) -> Iterator[Check]:
    root = directory.root
    for warning in directory.warnings:
        if HIGH_WATERMARK_CHECKPOINT in warning and not settings.log_end_is_stable:
            advice = "if the broker was stopped cleanly, set log.end.is.stable: true"
            yield wrong(_NAME, f"{warning}, so nothing of it can be copied", advice)
        else:
            yield note(_NAME, warning)
    if not (root / CLEAN_SHUTDOWN).is_file():
        why = f"{root} has no {CLEAN_SHUTDOWN}: its broker crashed, or still ran when it was copied"
        advice = "start a broker there and stop it cleanly, or copy a stopped broker's directory with hidden files"
        yield note(_NAME, f"{why}. Checkpoints may be stale and the ends of logs torn", advice)
    reasons: dict[str, list[str]] = {}
    for name, reason in directory.skipped.items():
        reasons.setdefault(reason, []).append(name)
    for reason, names in reasons.items():
        yield note(_NAME, f"{root}: left out: {_listed(names)}: {reason}")
    yield from check_room(_NAME, root)
    if not os.access(root, os.W_OK, effective_ids=True):
        advice = "only trimming needs that right"
        yield note(_NAME, f"{root}: user {os.geteuid()} may not write it, so it cannot be trimmed", advice)


def _unreadable(log: UnreadablePartition, root: Path) -> Check:
    check = note if log.is_internal else wrong
    return check(_NAME, f"{root / log.partition} is left out: {log.reason}")


def _check_partition(
    root: Path, log: PartitionLog, why_no_name: Callable[[TopicIdPartition], str | None]
) -> Iterator[Check]:
    partition = log.topic_id_partition
    directory = root / partition_directory_name(partition.topic, partition.partition)
    paths = (segment.log_path for segment in list_segments(directory))
    unreadable = next((path for path in paths if not os.access(path, os.R_OK, effective_ids=True)), None)
    if unreadable is not None:
        yield wrong(_NAME, f"{unreadable}: user {os.geteuid()} may not read it", "give that user the right to")
    if log.tiered_by_kafka is not None:
        advice = "leave the topic to Kafka, write its records into one that it does not tier, or correct the checkpoint"
        yield note(_NAME, f"{log.place} cannot be copied: {log.tiered_by_kafka}", advice)
    if not log.is_internal and (reason := why_no_name(partition)):
        yield wrong(_NAME, f"{log.place} cannot be stored: {reason}")


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


def check_broker_directories(settings: Settings, cluster_id: str, brokers: Collection[int]) -> Iterator[Check]:
    """Yield the findings of each directory of broker.log.dirs; `brokers` are the ids of the cluster's live brokers."""
    if not settings.broker_log_dirs:
        return
    directories = BrokerDirectories(settings.broker_log_dirs)
    seen = [each for each in settings.broker_log_dirs if why_unseen(directories.files_of(each), cluster_id) is None]
    for broker, folders in settings.broker_log_dirs.items():
        if broker in seen:
            for folder in folders:
                yield from _check_broker_directory(folder, broker, cluster_id)
        elif reason := why_unseen(directories.files_of(broker), cluster_id):
            # A worker on that broker's own host copies what it leads.
            yield note(SETTING, reason) if seen else wrong(SETTING, reason)
    for broker in sorted(set(brokers).difference(settings.broker_log_dirs)):
        advice = f"add {broker}=FOLDER to {SETTING}"
        yield wrong(SETTING, f"it does not name broker {broker}: no partition that this broker leads is copied", advice)
    for broker in sorted(set(settings.broker_log_dirs).difference(brokers)):
        yield note(SETTING, f"it names broker {broker}, which is not a live broker of the cluster")


def _check_broker_directory(directory: Path, broker: int, cluster_id: str) -> Iterator[Check]:
    if reason := why_not_of(directory, broker, cluster_id):
        yield wrong(SETTING, reason, f"correct {SETTING}, or look at the disk")
        return
    if unreadable := _first_unreadable(directory):
        yield wrong(SETTING, f"{unreadable}: user {os.geteuid()} may not read it", "give that user the right to")
        return
    yield ok(SETTING, f"{directory} is of broker {broker}, and can be read")


def _first_unreadable(directory: Path) -> Path | None:
    """Return the first partition's directory, or segment of one, that this user may not read; None if there is none."""
    try:
        partitions = sorted(each for each in directory.iterdir() if parse_partition_directory(each.name))
    except PermissionError:
        return directory
    for partition in partitions:
        try:
            if not os.access(partition, os.R_OK | os.X_OK, effective_ids=True):
                return partition
            segments = list_segments(partition)
        except (FileNotFoundError, TieredStorageError):
            # The broker has moved or deleted it meanwhile.
            continue
        # A broker creates all of its files with the same rights.
        for path in (each.log_path for each in segments[:1]):
            if path.exists() and not os.access(path, os.R_OK, effective_ids=True):
                return path
    return None
