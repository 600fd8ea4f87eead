"""The log directory that partitions are restored into: its content, and how partitions are put in place.

A partition is written aside, as `{topic}-{partition}.restoring-delete`, and renamed when it is complete and on disk. A
broker that is started after a crash takes the remainder for a partition under deletion, and deletes it. Once all
partitions of a restore are complete, and before the first is renamed, a file lists them:

    .remote-log-restore    a JSON object with the topic, its id, and of each partition its first and its end offset

From it a second run knows which are in place already; the last step of a restore deletes it. Checkpoints are written
before a partition is renamed, so that a broker never sees it without its log start.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from tiered_storage.errors import ConfigurationError, CorruptIndexError, InvalidLogDirectoryError
from tiered_storage.kafka_log.dump.file_kind import FileKind, recognize
from tiered_storage.kafka_log.files.directory_lock import LOCK_FILE
from tiered_storage.kafka_log.files.log_segment import LogSegment, list_segments
from tiered_storage.kafka_log.files.meta_properties import META_PROPERTIES, MetaProperties
from tiered_storage.kafka_log.files.offset_checkpoint import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from tiered_storage.kafka_log.files.partition_metadata import PARTITION_METADATA, read_topic_id
from tiered_storage.kafka_log.files.small_files import (
    TEMPORARY_SUFFIX,
    read_small_file,
    replace_file,
    sync_directory,
)
from tiered_storage.kafka_log.files.topic_partition import parse_partition_directory
from tiered_storage.remote_log.storage.documents.json_document import adapter_of

UNFINISHED = ".remote-log-restore"
STAGING_SUFFIX = ".restoring-delete"
MOST_BYTES_IN_A_NAME = 255
_CHECKPOINTS = frozenset({HIGH_WATERMARK_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT, RECOVERY_POINT_CHECKPOINT})
_LEFT_BY_A_KILL = frozenset(name + TEMPORARY_SUFFIX for name in (*_CHECKPOINTS, UNFINISHED))
_IN_ANY_FOLDER = frozenset({LOCK_FILE, "lost+found", *_LEFT_BY_A_KILL})
MAX_UNFINISHED_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class RestoredLog:
    """One partition of an unfinished restore, by the name of its directory; `end_offset` is exclusive."""

    directory: str
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class UnfinishedRestore:
    """What a restore puts in place, once all of it is complete."""

    topic: str
    topic_id: str
    logs: tuple[RestoredLog, ...]


def _is_of_a_new_log(path: Path) -> bool:
    """Return whether `path` is a file of a log that never held a record."""
    kafkas = recognize(path)
    if kafkas is None or kafkas.offset or path.is_symlink() or not path.is_file():
        return False
    return kafkas.kind is not FileKind.LOG or path.stat().st_size == 0


def _is_new_log(directory: Path) -> bool:
    if directory.is_symlink() or not directory.is_dir():
        return False
    return all(map(_is_of_a_new_log, directory.iterdir()))


@dataclass(frozen=True, slots=True)
class TargetDirectory:
    """The log directory `root`, whose lock the caller holds."""

    root: Path

    def ensure_log_directory(self) -> None:
        """Raise InvalidLogDirectoryError for a folder that is not empty and not a Kafka log directory."""
        found = sorted(entry.name for entry in self.root.iterdir()) if self.root.is_dir() else []
        strange = [name for name in found if name not in _IN_ANY_FOLDER and not name.endswith(STAGING_SUFFIX)]
        if strange and not any(map(self._is_kafkas, strange)):
            raise InvalidLogDirectoryError(
                f"{self.root} is not empty and not a Kafka log directory: it holds {len(strange)} other files or "
                "folders; name a log directory, or a folder that is new or empty; nothing was changed"
            )

    def _is_kafkas(self, name: str) -> bool:
        path = self.root / name
        if path.is_file():
            return self._is_kafkas_file(name)
        return parse_partition_directory(name) is not None and path.is_dir() and bool(list_segments(path))

    def _is_kafkas_file(self, name: str) -> bool:
        """Return whether a file is Kafka's or ours by its content: anything may have the name."""
        path = self.root / name
        try:
            if name == META_PROPERTIES:
                return MetaProperties.read(path).names_owner
            if name in _CHECKPOINTS:
                read_offset_checkpoint(path)
                return True
            return name == UNFINISHED and self.unfinished() is not None
        except (CorruptIndexError, InvalidLogDirectoryError):
            return False

    def is_new(self) -> bool:
        """Return whether no broker has used it: it has no cluster id, and only unfinished partitions."""
        directories = {entry.name for entry in self.root.iterdir() if entry.is_dir()}
        unfinished = self.unfinished()
        ours = {log.directory for log in unfinished.logs} if unfinished else set()
        strange = {name for name in directories - ours if not name.endswith(STAGING_SUFFIX)}
        return not strange and not (self.root / META_PROPERTIES).is_file()

    def unfinished(self) -> UnfinishedRestore | None:
        """Return what an earlier run was about to put in place when it died. Raises InvalidLogDirectoryError."""
        path = self.root / UNFINISHED
        if not path.is_file():
            return None
        try:
            return adapter_of(UnfinishedRestore).validate_json(read_small_file(path, MAX_UNFINISHED_BYTES))
        except ValidationError:
            raise InvalidLogDirectoryError(
                f"{path} is invalid: remove it, and the partitions that were being restored"
            ) from None

    def begin(self, restore: UnfinishedRestore) -> None:
        """Record what is put in place now."""
        replace_file(self.root / UNFINISHED, adapter_of(UnfinishedRestore).dump_json(restore))

    def finish(self) -> None:
        """Record that everything is in place."""
        (self.root / UNFINISHED).unlink()
        sync_directory(self.root)

    def is_in_place(self, log: RestoredLog) -> bool:
        """Return whether an earlier run has put `log` in place."""
        directory = self.root / log.directory
        if not directory.is_dir() or not (segments := list_segments(directory)):
            return False
        return segments[0].base_offset == log.first_offset and LogSegment(log.end_offset, directory) in segments

    def is_free(self, name: str, unfinished: UnfinishedRestore | None) -> bool:
        """Return whether a partition of that `name` can be put in place: there is none, or one that never held a
        record.

        A broker creates such an empty one with the topic. A log that begins after offset 0, now or by a checkpoint,
        held records before. So may a folder with any other file in it. The checkpoints of a partition that `unfinished`
        lists were written by that restore. Raises CorruptIndexError.
        """
        directory = self.root / name
        if not directory.exists():
            return not directory.is_symlink()
        if not _is_new_log(directory):
            return False
        if unfinished and any(log.directory == name for log in unfinished.logs):
            return True
        key = parse_partition_directory(name)
        paths = [self.root / checkpoint for checkpoint in _CHECKPOINTS]
        return key is not None and not any(read_offset_checkpoint(path).get(key) for path in paths if path.is_file())

    def topic_ids(self, topic: str) -> frozenset[str]:
        """Return the ids that the partitions of `topic` have here: one, unless something is wrong."""
        found = set()
        for directory in self.root.iterdir():
            name = parse_partition_directory(directory.name)
            if name is None or name[0] != topic or not directory.is_dir():
                continue
            if topic_id := read_topic_id(directory / PARTITION_METADATA):
                found.add(topic_id)
        return frozenset(found)

    def staging(self, name: str) -> Path:
        """Return where the partition of that `name` is written until it is whole."""
        return self.root / (name[: MOST_BYTES_IN_A_NAME - len(STAGING_SUFFIX)] + STAGING_SUFFIX)

    def discard_staged(self, names: Iterable[str]) -> None:
        """Delete what was written aside, also by an earlier run."""
        for name in names:
            shutil.rmtree(self.staging(name), ignore_errors=True)

    def write_checkpoints(
        self,
        topic: str,
        starts: Mapping[int, int],
        ends: Mapping[int, int],
        high_watermarks: Mapping[int, int] | None = None,
    ) -> None:
        """Add log starts and ends of partitions of `topic` to the directory's checkpoints, in place of earlier ones.

        Without `high_watermarks` they are the ends.
        """
        for name, offsets in (
            (RECOVERY_POINT_CHECKPOINT, ends),
            (HIGH_WATERMARK_CHECKPOINT, ends if high_watermarks is None else high_watermarks),
            (LOG_START_OFFSET_CHECKPOINT, starts),
        ):
            path = self.root / name
            known = read_offset_checkpoint(path) if path.is_file() else {}
            write_offset_checkpoint(path, {**known, **{(topic, number): offset for number, offset in offsets.items()}})

    def put_in_place(self, name: str) -> None:
        """Rename the partition that was written aside, replacing an empty one."""
        directory = self.root / name
        if directory.is_dir():
            if not _is_new_log(directory):
                raise InvalidLogDirectoryError(f"{directory} was empty, but is no longer: nothing is put there")
            # Its id is deleted last: it shows a second run which topic this is.
            for path in sorted(directory.iterdir(), key=lambda path: path.name == PARTITION_METADATA):
                path.unlink()
        self.staging(name).rename(directory)
        sync_directory(self.root)

    def ensure_room(self, size: int) -> None:
        """Raise ConfigurationError if the file system has less than `size` bytes left."""
        found = os.statvfs(self.root)
        free = found.f_bavail * found.f_frsize
        if free < size:
            raise ConfigurationError(
                f"{self.root}: {size:,} bytes are to be restored, but {free:,} are free: free some space, or restore "
                "fewer partitions or a shorter range at once"
            )
