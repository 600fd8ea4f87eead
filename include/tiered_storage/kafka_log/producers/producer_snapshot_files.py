"""The producer snapshots of a log as files: which one to start from, when to write one, which to delete.

Source: ProducerStateManager and the log loading of released Kafka.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from tiered_storage.errors import CorruptIndexError
from tiered_storage.kafka_log.files.log_segment import REMOVED, RecoveryEvent, Report, producer_snapshot_path
from tiered_storage.kafka_log.files.small_files import sync_directory
from tiered_storage.kafka_log.producers.producer_snapshot import (
    ProducerSnapshotEntry,
    read_producer_snapshot,
    write_producer_snapshot,
)
from tiered_storage.kafka_log.producers.producer_state import ProducerState

_SNAPSHOT = re.compile(r"(?P<offset>[0-9]{20})\.snapshot")


def list_snapshots(partition_directory: Path) -> list[int]:
    """Return the offsets of the snapshots in `partition_directory`, lowest first."""
    names = (_SNAPSHOT.fullmatch(path.name) for path in partition_directory.iterdir())
    return sorted(int(name["offset"]) for name in names if name is not None)


def latest_state(partition_directory: Path, start_offset: int, end_offset: int) -> ProducerState:
    """Return the state of the latest sound snapshot in [`start_offset`, `end_offset`], else an empty one at
    `start_offset`.

    A corrupt snapshot is skipped. Without one, batches are known only from `start_offset` on.
    """
    found = latest_snapshot(partition_directory, start_offset, end_offset)
    return ProducerState(start_offset, seen_from=start_offset or None) if found is None else ProducerState(*found)


def latest_snapshot(
    partition_directory: Path, start_offset: int, end_offset: int
) -> tuple[int, tuple[ProducerSnapshotEntry, ...]] | None:
    """Return offset and producers of the latest sound snapshot in [`start_offset`, `end_offset`]; None if there is
    none.

    A corrupt snapshot is skipped.
    """
    for offset in reversed(list_snapshots(partition_directory)):
        if start_offset <= offset <= end_offset:
            try:
                return offset, read_producer_snapshot(producer_snapshot_path(partition_directory, offset))
            except CorruptIndexError:
                continue
    return None


def take_snapshot(partition_directory: Path, state: ProducerState) -> None:
    """Write a snapshot of `state` at its end offset, durably and atomically, replacing an existing one."""
    write_producer_snapshot(producer_snapshot_path(partition_directory, state.end_offset), state.snapshot())


def remove_snapshots(partition_directory: Path, start_offset: int, end_offset: int) -> None:
    """Delete the snapshots below `start_offset` and those above `end_offset`, durably: other batches may come there."""
    outside = [offset for offset in list_snapshots(partition_directory) if not start_offset <= offset <= end_offset]
    for offset in outside:
        producer_snapshot_path(partition_directory, offset).unlink()
    if outside:
        sync_directory(partition_directory)


def remove_stray_snapshots(partition_directory: Path, base_offsets: Collection[int]) -> None:
    """Delete the snapshots that are not at one of the segments' `base_offsets`, except the latest of all."""
    for offset in list_snapshots(partition_directory)[:-1]:
        if offset not in base_offsets:
            producer_snapshot_path(partition_directory, offset).unlink()


def remove_broken_snapshots(partition_directory: Path, above: int, report: Report) -> None:
    """Delete unreadable snapshots above offset `above`, as a broker does, and `report` each one."""
    for offset in list_snapshots(partition_directory):
        path = producer_snapshot_path(partition_directory, offset)
        try:
            if offset > above:
                read_producer_snapshot(path)
        except CorruptIndexError as error:
            path.unlink()
            report(RecoveryEvent(path, error.reason, REMOVED))
