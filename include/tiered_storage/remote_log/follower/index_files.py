"""The remote log index of a partition as files on a follower's disk.

    {topic}-{partition}/
        {base offset}.remoteLogIndex       the entries of some remote segments, one after the other
        {base offset}.remoteOffsetIndex    look-ups by offset into it
        {base offset}.remoteTimeIndex      look-ups by time into it

Formats: remote_log_index.py and remote_index_lookup.py in the room `indexes`. The base offset is the first one of the
first segment. A further segment goes into the last trio, or begins another one: when the `.remoteLogIndex` has
`rotation_bytes` or more, or when the segment's copy finished `rotation_interval_ms` or more after that of the trio's
first one. So all replicas rotate alike, whenever they look, except that a trio whose first segment has expired before
this process looked is rotated by size alone.

The entries come out of the store. Where segments overlap, or a later leader truncated one, an entry is narrowed to the
offsets that readers take from its segment; its chunk may hold others. The `.remoteLogIndex` alone counts: what a crash
left torn at its end is written again, and so are the other two.

Source: KIP-405, drafts 27 to 85, section Remote Log Indexes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

from tiered_storage.errors import CorruptIndexError
from tiered_storage.kafka_log.files.small_files import holds, replace_file, sync_directory
from tiered_storage.remote_log.coverage import CoveredRange
from tiered_storage.remote_log.indexes.remote_index_builder import EncodedRemoteIndexes
from tiered_storage.remote_log.indexes.remote_index_lookup import RemoteIndexes
from tiered_storage.remote_log.indexes.remote_log_index import RemoteLogIndexEntry, iterate_entries
from tiered_storage.remote_log.storage.documents.object_names import segment_object_names
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind, RemoteStorageManager

LOG_INDEX, OFFSET_INDEX, TIME_INDEX = "remoteLogIndex", "remoteOffsetIndex", "remoteTimeIndex"
_SUFFIXES = (LOG_INDEX, OFFSET_INDEX, TIME_INDEX)
_NAME = re.compile(rf"(?P<base>[0-9]{{20}})\.(?:{'|'.join(_SUFFIXES)})(?:\.tmp)?")


@dataclass(frozen=True, slots=True)
class IndexRotation:
    """When a trio is closed: at so many bytes of its `.remoteLogIndex`, or so long (ms) after its first segment."""

    bytes: int
    interval_ms: int


@dataclass(frozen=True, slots=True)
class IndexedSegment:
    """The entries of one remote segment in a trio: from which offset to which (inclusive), and of which object."""

    start_offset: int
    end_offset: int
    object_name: str


@dataclass(frozen=True, slots=True)
class IndexChanges:
    """What a call changed: segments whose entries were added or removed, and trios that were deleted as expired.

    `left` segments wait for another call.
    """

    added: int = 0
    removed: int = 0
    expired: int = 0
    left: int = 0


@dataclass(slots=True)
class _Trio:
    """One trio: its entries are on the disk; this has what they cover."""

    base_offset: int
    segments: list[IndexedSegment]
    size: int
    begun_at: int
    """When the copy of its first segment finished (ms)."""


class RemoteIndexFiles:
    """The trios in one partition's `directory`, oldest first. For one thread of one process."""

    def __init__(self, directory: Path, rotation: IndexRotation) -> None:
        """Read what is there; files that are torn or corrupt count only up to there, and are mended by `sync`."""
        self._directory = directory
        self._rotation = rotation
        self._trios: list[_Trio] = []
        self._gathered: list[RemoteLogIndexEntry] = []
        """All entries of the last trio while some of them are not written yet."""
        for base in self._bases():
            entries = self._sound_entries(base)
            follows = not self._trios or base > self._trios[-1].segments[-1].end_offset
            if not entries or not follows or entries[0].first_offset != base:
                self._delete(base)
                continue
            self._trios.append(_Trio(base, _segments_of(entries), _size_of(entries), -1))
            self._write(base, entries)

    @property
    def segments(self) -> tuple[IndexedSegment, ...]:
        """What all trios together cover, by rising offsets."""
        return tuple(segment for trio in self._trios for segment in trio.segments)

    @property
    def base_offsets(self) -> tuple[int, ...]:
        """The base offset of each trio."""
        return tuple(trio.base_offset for trio in self._trios)

    def sync(
        self,
        ranges: Sequence[CoveredRange],
        storage: RemoteStorageManager,
        log_start_offset: int,
        goes_on: Callable[[], bool] = lambda: True,
    ) -> IndexChanges:
        """Make the files those of `ranges`: what readers take from the remote tier, in order.

        Entries from the first difference on are written again, with the entries that the store has. Trios that end
        below `log_start_offset` are deleted, and ranges below it get no entries. Once `goes_on` returns False, the next
        call adds the rest. Raises RemoteStorageError and its subclasses, and CorruptIndexError for a segment whose
        index in the store is corrupt; segments before it are in the files then.
        """
        expired = self._expire(log_start_offset)
        wanted = [each for each in _without_overlaps(ranges) if each[1] >= log_start_offset]
        finished_at = {start: covered.segment.event_timestamp for start, _, covered in wanted}
        for trio in self._trios:
            trio.begun_at = finished_at.get(trio.base_offset, trio.begun_at)
        # A trio is deleted as a whole: until then its first segments may be below the log start.
        passed = sum(1 for each in self.segments if each.end_offset < log_start_offset)
        same = self._agreeing(passed, wanted)
        removed = len(self.segments) - passed - same
        self._keep(passed + same)
        added = 0
        try:
            for start, end, covered in takewhile(lambda _: goes_on(), wanted[same:]):
                self._gather(covered, _entries(covered, start, end, storage))
                added += 1
        finally:
            self._write_gathered()
        return IndexChanges(added, removed, expired, len(wanted) - same - added)

    def chunk_for_offset(self, offset: int) -> RemoteLogIndexEntry | None:
        """Return the chunk that holds `offset`, or else the first one after it; None past the last."""
        for trio in self._trios:
            if trio.segments[-1].end_offset >= offset and (found := self._look_up(trio).chunk_for_offset(offset)):
                return found
        return None

    def chunk_for_timestamp(self, timestamp: int) -> RemoteLogIndexEntry | None:
        """Return the first chunk that may have a record at or after `timestamp` (ms); None if no chunk has one."""
        found = (self._look_up(trio).chunk_for_timestamp(timestamp) for trio in self._trios)
        return next(filter(None, found), None)

    def _look_up(self, trio: _Trio) -> RemoteIndexes:
        contents = (self._path(trio.base_offset, suffix).read_bytes() for suffix in _SUFFIXES)
        return RemoteIndexes.parse(str(self._path(trio.base_offset, LOG_INDEX)), trio.base_offset, *contents)

    def _expire(self, log_start_offset: int) -> int:
        over = [trio for trio in self._trios if trio.segments[-1].end_offset < log_start_offset]
        for trio in over:
            self._delete(trio.base_offset)
        self._trios = self._trios[len(over) :]
        return len(over)

    def _agreeing(self, passed: int, wanted: Sequence[tuple[int, int, CoveredRange]]) -> int:
        """Return how many segments in the files, after the first `passed` ones, are those of `wanted`."""
        same = 0
        for found, (start, end, covered) in zip(self.segments[passed:], wanted, strict=False):
            if found != IndexedSegment(start, end, _object_name(covered)):
                break
            same += 1
        return same

    def _keep(self, count: int) -> None:
        """Remove the entries of all but the first `count` segments."""
        while self._trios and count <= sum(len(trio.segments) for trio in self._trios[:-1]):
            self._delete(self._trios.pop().base_offset)
        if not self._trios:
            return
        last = self._trios[-1]
        kept = count - sum(len(trio.segments) for trio in self._trios[:-1])
        if kept < len(last.segments):
            end = last.segments[kept - 1].end_offset
            entries = [each for each in self._sound_entries(last.base_offset) if each.last_offset <= end]
            last.segments, last.size = _segments_of(entries), _size_of(entries)
            self._write(last.base_offset, entries)

    def _gather(self, covered: CoveredRange, entries: list[RemoteLogIndexEntry]) -> None:
        """Add a segment's entries to the last trio, or begin another one; `_write_gathered` writes them."""
        if not entries:
            return
        last = self._trios[-1] if self._trios else None
        finished_at = covered.segment.event_timestamp
        if last is None or self._is_full(last, finished_at):
            self._write_gathered()
            self._trios.append(_Trio(entries[0].first_offset, _segments_of(entries), _size_of(entries), finished_at))
            self._gathered = entries
            return
        self._gathered = self._gathered or self._sound_entries(last.base_offset)
        self._gathered += entries
        last.segments += _segments_of(entries)
        last.size += _size_of(entries)

    def _write_gathered(self) -> None:
        if self._gathered:
            self._write(self._trios[-1].base_offset, self._gathered)
        self._gathered = []

    def _is_full(self, trio: _Trio, finished_at: int) -> bool:
        is_old = trio.begun_at >= 0 and finished_at - trio.begun_at >= self._rotation.interval_ms
        return is_old or trio.size >= self._rotation.bytes

    def _bases(self) -> list[int]:
        names = (_NAME.fullmatch(path.name) for path in self._directory.iterdir())
        return sorted({int(name["base"]) for name in names if name is not None})

    def _sound_entries(self, base: int) -> list[RemoteLogIndexEntry]:
        path = self._path(base, LOG_INDEX)
        found: list[RemoteLogIndexEntry] = []
        # Those before a corrupt one are sound.
        with suppress(CorruptIndexError, FileNotFoundError):
            found.extend(iterate_entries(path.read_bytes(), str(path)))
        return found

    def _write(self, base: int, entries: Sequence[RemoteLogIndexEntry]) -> None:
        """Write a trio, the `.remoteLogIndex` first; what is right already is not written again."""
        encoded = EncodedRemoteIndexes.of(entries, base)
        for suffix, content in zip(
            _SUFFIXES, (encoded.log_index, encoded.offset_index, encoded.time_index), strict=True
        ):
            if not holds(self._path(base, suffix), content):
                replace_file(self._path(base, suffix), content)

    def _delete(self, base: int) -> None:
        for suffix in _SUFFIXES:
            for path in (self._path(base, suffix), self._path(base, f"{suffix}.tmp")):
                path.unlink(missing_ok=True)
        sync_directory(self._directory)

    def _path(self, base: int, suffix: str) -> Path:
        return self._directory / f"{base:020d}.{suffix}"


def _without_overlaps(ranges: Sequence[CoveredRange]) -> Iterator[tuple[int, int, CoveredRange]]:
    """Yield the first and the last offset that readers take from each of `ranges`."""
    reached = 0
    for covered in ranges:
        start = max(covered.start_offset, reached)
        reached = covered.end_offset + 1
        if start <= covered.end_offset:
            yield start, covered.end_offset, covered


def _entries(covered: CoveredRange, start: int, end: int, storage: RemoteStorageManager) -> list[RemoteLogIndexEntry]:
    """Return the entries of a segment in the store, narrowed to [`start`, `end`], which they cover whole.

    The first and the last one reach the range's ends, where batches without records may be missing.
    """
    segment = covered.segment
    raw = storage.fetch_index(segment, IndexKind.REMOTE_LOG_INDEX)
    every = iterate_entries(raw, f"{segment.segment_id}: {LOG_INDEX}")
    inside = [each for each in every if each.last_offset >= start and each.first_offset <= end]
    if not inside:
        return []
    inside[0] = replace(inside[0], first_offset=start)
    inside[-1] = replace(inside[-1], last_offset=end)
    return inside


def _segments_of(entries: Sequence[RemoteLogIndexEntry]) -> list[IndexedSegment]:
    found: list[IndexedSegment] = []
    for entry in entries:
        if found and found[-1].object_name == entry.object_name:
            found[-1] = replace(found[-1], end_offset=entry.last_offset)
        else:
            found.append(IndexedSegment(entry.first_offset, entry.last_offset, entry.object_name))
    return found


def _size_of(entries: Sequence[RemoteLogIndexEntry]) -> int:
    return sum(len(entry.to_bytes()) for entry in entries)


def _object_name(covered: CoveredRange) -> str:
    return segment_object_names(covered.segment.segment_id, covered.segment.start_offset).data
