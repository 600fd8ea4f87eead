"""Check whether this host sees the log directories of running brokers, and may read them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from tiered_storage.doctor.check import Check, note, ok, wrong
from tiered_storage.errors import TieredStorageError
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage.kafka_log.files.topic_partition import parse_partition_directory
from tiered_storage.remote_log.source.leader_files import SETTING, BrokerDirectories, why_not_of, why_unseen
from tiered_storage.settings.settings import Settings


def check_broker_directories(settings: Settings, cluster_id: str, brokers: Collection[int]) -> Iterator[Check]:
    """Yield the findings of each directory of broker.log.dirs; `brokers` are the ids of the cluster's live brokers."""
    if not settings.broker_log_dirs:
        return
    directories = BrokerDirectories(settings.broker_log_dirs)
    seen = [each for each in settings.broker_log_dirs if why_unseen(directories.files_of(each), cluster_id) is None]
    for broker, folders in settings.broker_log_dirs.items():
        if broker in seen:
            for folder in folders:
                yield from _check_directory(folder, broker, cluster_id)
        elif reason := why_unseen(directories.files_of(broker), cluster_id):
            # A worker on that broker's own host copies what it leads.
            yield note(SETTING, reason) if seen else wrong(SETTING, reason)
    for broker in sorted(set(brokers).difference(settings.broker_log_dirs)):
        advice = f"add {broker}=FOLDER to {SETTING}"
        yield wrong(SETTING, f"it does not name broker {broker}: nothing that it leads is copied", advice)
    for broker in sorted(set(settings.broker_log_dirs).difference(brokers)):
        yield note(SETTING, f"it names broker {broker}, which is none of the cluster's live brokers")


def _check_directory(directory: Path, broker: int, cluster_id: str) -> Iterator[Check]:
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
