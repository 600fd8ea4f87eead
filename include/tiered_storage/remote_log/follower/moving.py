"""Move a partition from one log directory to another, with all files in its directory.

That includes the remote log index files (KIP-405, section JBOD related changes). Nobody may run in either directory:
both are locked. The partition is copied aside, as `{topic}-{partition}.restoring-delete`, and renamed when it is whole
and on disk; only then is it removed where it was. A second call finishes what a killed one began.
"""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tiered_storage.errors import ConfigurationError, InvalidLogDirectoryError
from tiered_storage.kafka_log.files.directory_lock import DirectoryLock
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.kafka_log.files.log_segment import DELETED_SUFFIX, has_segment, segment_sizes
from tiered_storage.kafka_log.files.meta_properties import META_PROPERTIES, MetaProperties
from tiered_storage.kafka_log.files.offset_checkpoint import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from tiered_storage.kafka_log.files.partition_metadata import PARTITION_METADATA, read_topic_id
from tiered_storage.kafka_log.files.small_files import sync_directory
from tiered_storage.kafka_log.files.topic_partition import partition_directory_name
from tiered_storage.kafka_log.log.recovery.clean_shutdown import CLEAN_SHUTDOWN, remove_clean_shutdown
from tiered_storage.remote_log.restore.target_directory import TargetDirectory

_CHECKPOINTS = (RECOVERY_POINT_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT)


@dataclass(frozen=True, slots=True)
class MovedPartition:
    """A partition in its new directory: its files, and their bytes. `was_there`: an earlier call copied it."""

    partition: str
    files: int
    size: int
    was_there: bool


def move_partition(topic: str, partition: int, source: Path, target: Path) -> MovedPartition:
    """Move a partition from the log directory `source` to `target`, which is made if it is new.

    Raises LogDirectoryLockedError while a broker or a follower runs in one of the two; ConfigurationError if they are
    one, or of two clusters; InvalidLogDirectoryError if `source` does not have the partition, or `target` has another
    log of that name or is a folder of something else.
    """
    name = partition_directory_name(topic, partition)
    if source.resolve() == target.resolve():
        raise ConfigurationError(f"{name}: it is in {target} already: name two log directories")
    if not _has_log(source / name) and not _is_to_be_finished(source, target, name):
        raise InvalidLogDirectoryError(f"{source} has no partition {name}: name the log directory that has it")
    to = TargetDirectory(target)
    try:
        to.ensure_log_directory()
        target.mkdir(parents=True, exist_ok=True)
        with ExitStack() as locks:
            locks.enter_context(DirectoryLock.acquire(source))
            locks.enter_context(DirectoryLock.acquire(target))
            _own(source, to)
            return _move(topic, partition, source, to)
    except OSError as error:
        raise InvalidLogDirectoryError(f"{name} cannot be moved from {source} to {target}: {error}") from error


def _own(source: Path, target: TargetDirectory) -> None:
    """Let a new directory be one of the same broker; refuse one of another cluster."""
    path = source / META_PROPERTIES
    if not path.is_file():
        raise InvalidLogDirectoryError(f"{source} has no {META_PROPERTIES}: its cluster is unknown; put that file back")
    meta = MetaProperties.read(path)
    if target.unfinished() is not None:
        raise InvalidLogDirectoryError(f"{target.root}: a restore did not finish here: finish it first")
    if target.is_new():
        MetaProperties(1, meta.cluster_id, meta.node_id, random_uuid()).write(target.root / META_PROPERTIES)
        if (source / CLEAN_SHUTDOWN).is_file():
            shutil.copyfile(source / CLEAN_SHUTDOWN, target.root / CLEAN_SHUTDOWN)
        return
    found = MetaProperties.read(target.root / META_PROPERTIES)
    if (found.cluster_id, found.node_id) != (meta.cluster_id, meta.node_id):
        raise ConfigurationError(
            f"{target.root} is of broker {found.node_id} of cluster {found.cluster_id}, and {source} of broker "
            f"{meta.node_id} of cluster {meta.cluster_id}: only directories of one broker can be chosen"
        )


def _move(topic: str, partition: int, source: Path, target: TargetDirectory) -> MovedPartition:
    name = partition_directory_name(topic, partition)
    if not _has_log(source / name):
        moved = _moved(target.root / name, was_there=True)
        _remove_left(source, (topic, partition))
        return moved
    was_there = _is_the_same(source / name, target.root / name)
    if not was_there:
        if not target.is_free(name, None):
            raise InvalidLogDirectoryError(
                f"{target.root} has a {name} of its own, or had one: remove one of the two logs first; nothing was "
                "changed"
            )
        target.discard_staged([name])
        target.ensure_room(sum(path.stat().st_size for path in _files(source / name)))
        _copy(source / name, target.staging(name))
        if not (source / CLEAN_SHUTDOWN).is_file():
            remove_clean_shutdown(target.root)
        _take_checkpoints(source, target.root, (topic, partition))
        target.put_in_place(name)
    moved = _moved(target.root / name, was_there=was_there)
    _remove(source, (topic, partition))
    return moved


def _moved(directory: Path, *, was_there: bool) -> MovedPartition:
    files = _files(directory)
    return MovedPartition(directory.name, len(files), sum(path.stat().st_size for path in files), was_there)


def _has_log(directory: Path) -> bool:
    return directory.is_dir() and has_segment(directory)


def _is_to_be_finished(source: Path, target: Path, name: str) -> bool:
    """Return whether an earlier call was killed after the partition was whole in `target`, while it was removed."""
    return TargetDirectory(source).staging(name).is_dir() and not (source / name).exists() and _has_log(target / name)


def _files(directory: Path) -> list[Path]:
    """Return the files to take along: all but those that a broker is about to delete."""
    return sorted(path for path in directory.iterdir() if path.is_file() and path.suffix != DELETED_SUFFIX)


def _is_the_same(source: Path, target: Path) -> bool:
    """Return whether `target` is what an earlier call copied: the same topic, and the same segments."""
    if not _has_log(target):
        return False
    if read_topic_id(source / PARTITION_METADATA) != read_topic_id(target / PARTITION_METADATA):
        return False
    here, there = segment_sizes(source), segment_sizes(target)
    return [(each.base_offset, size) for each, size in here] == [(each.base_offset, size) for each, size in there]


def _copy(source: Path, staging: Path) -> None:
    """Copy all files of `source` to the new folder `staging`, durably."""
    staging.mkdir()
    for path in _files(source):
        with path.open("rb") as read, (staging / path.name).open("xb") as written:
            shutil.copyfileobj(read, written, 1 << 20)
            written.flush()
            os.fsync(written.fileno())
    sync_directory(staging)


def _take_checkpoints(source: Path, target: Path, key: tuple[str, int]) -> None:
    """Add the partition's entries in the checkpoints of `source` to those of `target`."""
    for name in _CHECKPOINTS:
        known = read_offset_checkpoint(source / name) if (source / name).is_file() else {}
        if key in known:
            others = read_offset_checkpoint(target / name) if (target / name).is_file() else {}
            write_offset_checkpoint(target / name, {**others, key: known[key]})


def _remove(source: Path, key: tuple[str, int]) -> None:
    """Remove the partition from `source`: under a name that a broker deletes, if this is killed halfway."""
    name = partition_directory_name(*key)
    leaving = TargetDirectory(source).staging(name)
    shutil.rmtree(leaving, ignore_errors=True)
    (source / name).rename(leaving)
    sync_directory(source)
    _remove_left(source, key)


def _remove_left(source: Path, key: tuple[str, int]) -> None:
    """Remove from `source` what is left of a partition that was renamed."""
    for checkpoint in _CHECKPOINTS:
        path = source / checkpoint
        known = read_offset_checkpoint(path) if path.is_file() else {}
        if key in known:
            write_offset_checkpoint(path, {each: offset for each, offset in known.items() if each != key})
    shutil.rmtree(TargetDirectory(source).staging(partition_directory_name(*key)))
