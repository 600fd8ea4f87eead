"""`offset-map.jsonl`: the new offset of each record in the cluster that a topic was restored into.

The first line identifies the restore, each other one a run of records with consecutive offsets:

    {"format_version": 1, "source": {…}, "target": {…}, "starts": {"0": 0}}
    {"partition": 0, "old": 120, "new": 0, "count": 57}

`old` and `new` are the first offsets; `starts` are the ends of the target's partitions before the restore. Runs are
written once their records are acknowledged, so a crash may lose the last ones, and leave the last line torn. A run that
resumes compares what the target has beyond the map.
"""

from __future__ import annotations

import fcntl
import json
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self, TypeVar

from pydantic import ValidationError

from tiered_storage.errors import ConfigurationError
from tiered_storage.private_files import make_private_folder, mode_in
from tiered_storage.regular_files import open_regular, regular_descriptor
from tiered_storage.remote_log.storage.documents.json_document import adapter_of

FORMAT_VERSION = 1
MOST_BYTES_IN_A_LINE = 1 << 20


@dataclass(frozen=True, slots=True)
class MapHead:
    """The identity of a restore. Two restores are the same if `source` and `target` are."""

    source: dict[str, Any]
    target: dict[str, Any]
    starts: dict[int, int]
    format_version: int = FORMAT_VERSION


@dataclass(frozen=True, slots=True)
class MappedRun:
    """`count` records of a partition, with offsets from `old` on in the store, and from `new` on in the target."""

    partition: int
    old: int
    new: int
    count: int


Parsed = TypeVar("Parsed")


@dataclass(slots=True)
class MapProgress:
    """The progress of a partition: the last mapped old offset (None: none), and the next new one.

    `unwritten` is how many of the last records are not in the file yet; they are one run.
    """

    last_old: int | None
    next_new: int
    unwritten: int = 0

    def run(self, partition: int) -> MappedRun | None:
        """Return the run that is not in the file yet."""
        if self.last_old is None or not self.unwritten:
            return None
        return MappedRun(partition, self.last_old - self.unwritten + 1, self.next_new - self.unwritten, self.unwritten)


class OffsetMapWriter:
    """The map of a restore under way, held by one process at a time; use it in a `with`."""

    def __init__(self, path: Path, file: BinaryIO, starts: Mapping[int, int], *, is_resumed: bool) -> None:
        """Use `open`."""
        self.path = path
        self.starts = dict(starts)
        self.is_resumed = is_resumed
        self.progress = {number: MapProgress(None, start) for number, start in starts.items()}
        self._file = file

    @classmethod
    def open(cls, path: Path, head: MapHead, ensure_new: Callable[[], None] = lambda: None) -> Self:
        """Begin a map, or continue the one at `path` if it is of the same restore; then its `starts` hold.

        `ensure_new` is called before a map begins, and may raise: then nothing is created or changed. An existing file
        is used only if it is empty or begins with this head; its other bytes are never changed or removed.

        Raises ConfigurationError if the file is not a map, of another restore, corrupt, or a link, or if another
        process writes it.
        """
        file = _opened(path, ensure_new)
        try:
            _lock(file, path)
            reading = _Reading(path, file)
            found = reading.head()
            if found is None:
                _begin(file, path, head, ensure_new)
                return cls(path, file, head.starts, is_resumed=False)
            _check_same(path, found, head)
            writer = cls(path, file, found.starts, is_resumed=True)
            for run in reading.runs():
                writer.progress[run.partition] = MapProgress(run.old + run.count - 1, run.new + run.count)
            # The last line, torn by a crash: the head proves that it is of this restore.
            file.truncate(reading.whole)
        except BaseException:
            file.close()
            raise
        return writer

    def add(self, partition: int, old: int) -> None:
        """Map one more record of a partition, to its next new offset; old offsets rise."""
        progress = self.progress[partition]
        if progress.last_old is None or progress.last_old + 1 != old:
            self._write(partition)
        progress.last_old = old
        progress.next_new += 1
        progress.unwritten += 1

    def flush(self) -> None:
        """Write everything added to disk, durably."""
        for partition in self.progress:
            self._write(partition)
        _sync(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Write what was acknowledged, even after an error."""
        try:
            self.flush()
        finally:
            self._file.close()

    def _write(self, partition: int) -> None:
        progress = self.progress[partition]
        if run := progress.run(partition):
            self._file.write(json.dumps(asdict(run)).encode() + b"\n")
            progress.unwritten = 0


@dataclass(frozen=True, slots=True)
class OffsetMap:
    """A map for look-ups, by partition: the runs by rising old offset."""

    runs: Mapping[int, tuple[MappedRun, ...]]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read `path`. Raises ConfigurationError if it is not a map, or corrupt."""
        with open_regular(path) as file:
            reading = _Reading(path, file)
            head = reading.head()
            if head is None:
                raise ConfigurationError(f"{path} is not an offset map: it has no first line")
            runs: dict[int, list[MappedRun]] = {number: [] for number in head.starts}
            for run in reading.runs():
                runs[run.partition].append(run)
        return cls({number: tuple(of_it) for number, of_it in runs.items()})

    def new_offset(self, partition: int, old: int) -> int | None:
        """Return the new offset of the record at `old`, or of the next one after it; None past the last.

        A consumer that would have continued at `old` continues there.
        """
        runs = self.runs.get(partition, ())
        at = bisect_right(runs, old, key=lambda run: run.old) - 1
        if at >= 0 and old < runs[at].old + runs[at].count:
            return runs[at].new + old - runs[at].old
        return runs[at + 1].new if at + 1 < len(runs) else None


class _Reading:
    """Reads the complete lines of a map; a torn last line is left out."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        """Read `file` from its beginning; errors name `path`."""
        self.whole = 0
        """The size in bytes of the lines read so far."""
        self._path = path
        self._number = 0
        self._lines = self._whole_lines(file)
        self._last: dict[int, tuple[int, int]] = {}
        """The lowest possible next old and new offset of each partition."""

    def head(self) -> MapHead | None:
        """Read the first line; None if there is not even that. Raises ConfigurationError."""
        for line in self._lines:
            head = _parsed(MapHead, line)
            if head is None or any(start < 0 for start in head.starts.values()):
                raise self._broken("this is not an offset map; nothing was changed: name another file")
            if head.format_version != FORMAT_VERSION:
                raise self._broken(f"version {head.format_version} of an offset map is not known here: upgrade")
            self.whole += len(line)
            self._last = {number: (0, start) for number, start in head.starts.items()}
            return head
        return None

    def runs(self) -> Iterator[MappedRun]:
        """Yield the other lines. Raises ConfigurationError for one that does not continue those before it."""
        for line in self._lines:
            run = _parsed(MappedRun, line)
            if run is None:
                raise self._broken("this is not a line of an offset map")
            old, new = self._last.get(run.partition, (0, -1))
            if run.count < 1 or run.old < old or run.new != new:
                raise self._broken("this run of offsets does not follow the lines before it")
            self._last[run.partition] = run.old + run.count, run.new + run.count
            self.whole += len(line)
            yield run

    def _whole_lines(self, file: BinaryIO) -> Iterator[bytes]:
        file.seek(0)
        while line := file.readline(MOST_BYTES_IN_A_LINE):
            self._number += 1
            if not line.endswith(b"\n"):
                if len(line) == MOST_BYTES_IN_A_LINE:
                    raise self._broken("a line of more than 1 MiB is not part of an offset map; nothing was changed")
                return
            yield line

    def _broken(self, reason: str) -> ConfigurationError:
        return ConfigurationError(f"{self._path}: line {self._number}, at byte {self.whole}: {reason}")


def _parsed(kind: type[Parsed], line: bytes) -> Parsed | None:
    """Return the parsed line, None if it is invalid: the exception would show its content."""
    try:
        return adapter_of(kind).validate_json(line)
    except ValidationError:
        return None


def _opened(path: Path, ensure_new: Callable[[], None]) -> BinaryIO:
    """Open `path` for reading and appending, or create it; never follow a link, nor open a FIFO or a device."""
    flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW
    try:
        if not os.path.lexists(path):
            ensure_new()
            make_private_folder(path.parent)
            flags |= os.O_CREAT | os.O_EXCL
        descriptor = regular_descriptor(path, flags, mode_in(path.parent) & 0o666)
    except OSError as error:
        reason = "it is a link: name the file itself" if path.is_symlink() else error.strerror
        raise ConfigurationError(f"{path}: cannot write an offset map there: {reason}") from error
    return os.fdopen(descriptor, "a+b")


def _begin(file: BinaryIO, path: Path, head: MapHead, ensure_new: Callable[[], None]) -> None:
    """Write the first line, or the rest of it if a crash tore it: the file holds nothing else."""
    line = adapter_of(MapHead).dump_json(head) + b"\n"
    file.seek(0)
    there = file.read(len(line))
    if not line.startswith(there):
        raise ConfigurationError(
            f"{path}: line 1 is not that of an offset map; nothing was changed: name another file, or one that does "
            "not exist"
        )
    ensure_new()
    file.write(line[len(there) :])
    _sync(file)


def _check_same(path: Path, found: MapHead, head: MapHead) -> None:
    names = {**head.source, **head.target}
    others = {**found.source, **found.target}
    if (found.source, found.target) != (head.source, head.target):
        differing = [name for name in names if names[name] != others.get(name)] or ["what else it names"]
        raise ConfigurationError(
            f"{path} is the map of another restore than this one ({_described(head)}): line 1 differs in "
            f"{', '.join(differing)}; name another file"
        )


def _described(head: MapHead) -> str:
    return ", ".join(f"{name} {value}" for part in (head.source, head.target) for name, value in part.items() if value)


def _lock(file: BinaryIO, path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigurationError(f"{path}: another restore is writing this map: wait for it") from error


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
