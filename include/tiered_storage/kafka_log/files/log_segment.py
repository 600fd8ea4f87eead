"""The files of one segment, named by its base offset in 20 digits.

    {base offset}.log          the record batches
    {base offset}.index        offset index
    {base offset}.timeindex    time index
    {base offset}.txnindex     transaction index, only where transactions were aborted
    {offset}.snapshot          producers up to `offset`: the one after a segment is named by its successor's base offset

A further suffix marks what is not part of the log: `.deleted`, `.cleaned`, `.swap`; see log_leftovers.py.

Source: released Kafka.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tiered_storage.kafka_log.files.small_files import sync_directory

SWAP_SUFFIX = ".swap"

_LOG_FILE = re.compile(r"[0-9]{20}\.log")
_SWAPPED_LOG_FILE = re.compile(_LOG_FILE.pattern + re.escape(SWAP_SUFFIX))
_MAX_OFFSET = (1 << 63) - 1


@dataclass(frozen=True, slots=True, order=True)
class LogSegment:
    """One segment of a partition: its `directory`, and its base offset, which is in its file names."""

    base_offset: int
    directory: Path

    @property
    def log_location(self) -> str:
        """The `.log` file as text: a plan names a hundred thousand, and a Path takes four times as long."""
        return f"{self.directory}/{self.base_offset:020d}.log"

    @property
    def log_path(self) -> Path:
        return self._path("log")

    @property
    def offset_index_path(self) -> Path:
        return self._path("index")

    @property
    def time_index_path(self) -> Path:
        return self._path("timeindex")

    @property
    def transaction_index_path(self) -> Path:
        return self._path("txnindex")

    @property
    def index_paths(self) -> tuple[Path, ...]:
        """The paths of the offset, time and transaction index, whether they exist or not."""
        return self.offset_index_path, self.time_index_path, self.transaction_index_path

    def size(self) -> int:
        """Return the size of the `.log` file in bytes."""
        return self.log_path.stat().st_size

    def has_indexes(self) -> bool:
        """Return whether both the offset index and the time index exist."""
        return self.offset_index_path.is_file() and self.time_index_path.is_file()

    def has_transaction_index(self) -> bool:
        """Return whether there is a transaction index, which means that a transaction was aborted in this segment."""
        return self.transaction_index_path.is_file()

    def _path(self, suffix: str) -> Path:
        return self.directory / f"{self.base_offset:020d}.{suffix}"


def segment_at(log_location: str) -> LogSegment | None:
    """Return the segment whose `.log` file `log_location` is, see LogSegment; None where it is named otherwise."""
    directory, slash, name = log_location.rpartition("/")
    return LogSegment(int(name[:20]), _directory(directory or slash)) if _LOG_FILE.fullmatch(name) else None


@lru_cache(maxsize=1)
def _directory(location: str) -> Path:
    """Return the Path of a log, which a plan names once for each of its segments."""
    return Path(location)


def producer_snapshot_path(partition_directory: Path, offset: int) -> Path:
    """Return the path of the producer snapshot up to `offset` (exclusive)."""
    return partition_directory / f"{offset:020d}.snapshot"


def list_segments(partition_directory: Path) -> list[LogSegment]:
    """Return the segments in `partition_directory`, by rising base offset; the last one is the active one.

    Files with other names, such as `.deleted` ones, are not part of the log and are ignored.
    """
    offsets = sorted(int(name.removesuffix(".log")) for name in _files(partition_directory, _LOG_FILE))
    return [LogSegment(offset, partition_directory) for offset in offsets if offset <= _MAX_OFFSET]


def segment_sizes(partition_directory: Path) -> list[tuple[LogSegment, int]]:
    """Return what `list_segments` does, each with the size of its `.log` file in bytes.

    Raises FileNotFoundError if one is deleted meanwhile.
    """
    with os.scandir(partition_directory) as entries:
        logs = (entry for entry in entries if _LOG_FILE.fullmatch(entry.name) is not None and entry.is_file())
        sizes = {int(entry.name[:20]): entry.stat().st_size for entry in logs}
    return [(LogSegment(at, partition_directory), size) for at, size in sorted(sizes.items()) if at <= _MAX_OFFSET]


def has_segment(partition_directory: Path) -> bool:
    """Return whether there is any segment at all."""
    with os.scandir(partition_directory) as entries:
        return any(_is_file(entry, _LOG_FILE) and int(entry.name[:20]) <= _MAX_OFFSET for entry in entries)


def awaits_swap(partition_directory: Path) -> bool:
    """Return whether any segment is about to be swapped in there."""
    return bool(_files(partition_directory, _SWAPPED_LOG_FILE))


def _files(directory: Path, name: re.Pattern[str]) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries if _is_file(entry, name)]


def _is_file(entry: os.DirEntry[str], name: re.Pattern[str]) -> bool:
    return name.fullmatch(entry.name) is not None and entry.is_file()


DELETED_SUFFIX = ".deleted"


class SegmentDeletion:
    """Renames the files of segments of one log, and deletes them `delay_ms` later. Not thread-safe."""

    def __init__(self, directory: Path, delay_ms: int) -> None:
        self._directory = directory
        self._delay_ms = delay_ms
        self._waiting: list[tuple[int, Path]] = []

    def delete(self, segments: Sequence[LogSegment], now: int) -> None:
        """Remove `segments` from the log, with the producer snapshots named by their base offsets.

        They are removed in this order, each durably before the next one, so that a crash leaves no gap; and each with
        its `.log` file first.
        """
        for segment in segments:
            snapshot = producer_snapshot_path(segment.directory, segment.base_offset)
            paths = [segment.log_path, *segment.index_paths, snapshot]
            self._waiting += [(now, _mark(path)) for path in paths if path.exists()]
            sync_directory(self._directory)

    def remove(self, now: int) -> None:
        """Delete the files whose delay has passed at `now` (ms)."""
        over = [path for since, path in self._waiting if now - since >= self._delay_ms]
        for path in over:
            path.unlink(missing_ok=True)
        self._waiting = [(since, path) for since, path in self._waiting if now - since < self._delay_ms]


def _mark(path: Path) -> Path:
    return path.replace(path.with_name(path.name + DELETED_SUFFIX))


MISSING = "it is missing"
REBUILT = "rebuilt from the log"
CUT_OFF = "cut off"
REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class RecoveryEvent:
    """The file `path` was missing, corrupt or incomplete: `fault` says how, `remedy` what was done."""

    path: Path
    fault: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path}: {self.fault}: {self.remedy}"


Report = Callable[[RecoveryEvent], None]
