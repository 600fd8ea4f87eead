"""A private copy of a stopped broker's log directory: the only one of the two that the demo ever trims."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from tiered_storage.kafka_log.files.directory_lock import LOCK_FILE, ensure_unlocked
from tiered_storage.kafka_log.files.log_directory import read_log_directory
from tiered_storage.kafka_log.files.offset_checkpoint import HIGH_WATERMARK_CHECKPOINT
from tiered_storage.private_files import make_private_folder
from tiered_storage_airflow.demo.errors import DemoError
from tiered_storage_airflow.demo.expectation import ExpectedPartition, expect_directory


@dataclass(frozen=True, slots=True)
class PrivateCopy:
    """What must be read back of a copy, and what a person should know of it."""

    expected: tuple[ExpectedPartition, ...]
    notices: tuple[str, ...]


def copy_log_directory(original: Path, copy: Path) -> PrivateCopy:
    """Copy what can be tiered of `original` to `copy`.

    Kafka's own topics, the controllers' log and directories on their way in or out are left out; so are the high
    watermarks: they lag behind where the broker was killed, and no replica is going to truncate a copy. Raises
    InvalidLogDirectoryError where `original` is no log directory, LogDirectoryLockedError where a broker has it, and
    DemoError where it has nothing to copy or the disk has no room for it.
    """
    ensure_unlocked(original)
    found = read_log_directory(original)
    for error in found.damaged.values():
        raise error
    chosen = [partition for partition in found.partitions if not partition.is_internal]
    if not chosen:
        raise DemoError(f"{original} holds no partition but Kafka's own: there is nothing to show")
    make_private_folder(copy)
    wanted = sum(path.stat().st_blocks * 512 for partition in chosen for path in partition.path.iterdir())
    free = shutil.disk_usage(copy).free
    # The copy, what of it goes to the store, and some air.
    if free < 2.2 * wanted:
        raise DemoError(f"{copy} needs {2.2 * wanted:,.0f} bytes for a private copy and its store; {free:,} are free")
    for path in sorted(original.iterdir()):
        if path.is_file() and path.name not in {LOCK_FILE, HIGH_WATERMARK_CHECKPOINT}:
            shutil.copy2(path, copy / path.name)
    for partition in chosen:
        shutil.copytree(partition.path, copy / partition.path.name)
    told = [expect_directory(found, partition) for partition in chosen]
    notices = [
        *found.warnings,
        *(f"{name} is left out: {why}" for name, why in found.skipped.items()),
        *(notice for _, notice in told if notice is not None),
    ]
    return PrivateCopy(tuple(expected for expected, _ in told), tuple(notices))
