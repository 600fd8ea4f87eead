"""Closed segments of a partition, as the files of its running leader, and the rest by Fetch.

Closed segments below the wanted end are handed out as the leader's own files. The rest is rolled from Fetch
(fetched_log.py): from where the remote log ends inside a segment up to that segment's end, and the active segment's
records once they are old enough. If the broker compacted away a segment's last batches, everything from that segment to
the wanted end is rolled, since no remote segment may end with such a gap.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tiered_storage.errors import CorruptIndexError, CorruptRecordError
from tiered_storage.kafka_log.files.log_segment import producer_snapshot_path
from tiered_storage.kafka_log.producers.producer_snapshot import ProducerSnapshotEntry, read_producer_snapshot
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.fetch import FetchBuffer
from tiered_storage.remote_log.source.fetched_log import FetchedLog, RolledPartition, RollRange
from tiered_storage.remote_log.source.leader_files import find_directory, list_leader_segments
from tiered_storage.remote_log.source.log_directory_segment import LogDirectorySegment
from tiered_storage.remote_log.source.partition_log import LeaderFiles, LocalSegment


class LeaderLog:
    """The log of one partition beside its leader. For one thread at a time."""

    def __init__(
        self,
        place: RolledPartition,
        files: LeaderFiles,
        wanted: RollRange,
        producers: Callable[[], Sequence[ProducerSnapshotEntry] | None],
    ) -> None:
        """Open nothing yet; what is fetched goes into folders below that of `place`.

        `producers` returns those known at the start of `wanted`, None: they are unknown. Only a fetch needs them.
        """
        self._place = place
        self._leader = _LeaderSegments(files)
        self._wanted = wanted
        self._producers = producers
        self._next_offset = wanted.start_offset
        self._fetching: tuple[FetchedLog, RollRange] | None = None
        self._fetched: list[FetchedLog] = []
        self._fetched_by: dict[int, FetchedLog] = {}
        """The log that each segment was fetched into, by base offset."""

    def next_segment(
        self, cluster: ClusterClient, buffer: FetchBuffer, fetched: Callable[[int], None] = lambda _: None
    ) -> LocalSegment | None:
        """Return the next closed segment; None if what is wanted holds no further one.

        Raises as FetchedLog.next_segment, and as find_directory, before it reads, if this host does not see the files.
        """
        while self._next_offset < self._wanted.end_offset:
            if self._fetching is None:
                directory = self._leader.directory_of(self._place)
                found = self._closed_at_next(directory)
                if found is not None and found.base_offset == self._next_offset:
                    self._leader.hand_out(found)
                    self._next_offset = _after(found)
                    return found
                self._fetching = self._begin_fetching(directory, found)
            log, part = self._fetching
            segment = log.next_segment(cluster, buffer, fetched)
            if segment is not None:
                self._fetched_by[segment.base_offset] = log
                self._next_offset = _after(segment)
                return segment
            if self._next_offset < part.end_offset:
                return None
            self._fetching = None
        return None

    def release(self, segment: LocalSegment, *, is_reused: bool = True) -> None:
        """Remove the files of a segment that was fetched, see FetchedLog.release; never a broker's."""
        self._leader.release(segment)
        if log := self._fetched_by.pop(segment.base_offset, None):
            log.release(segment, is_reused=is_reused)

    def drop_spare(self) -> None:
        """As FetchedLog."""
        for log in tuple(self._fetched):
            log.drop_spare()

    def why_changed(self, segment: LocalSegment) -> str | None:
        """Return what the broker has done to the file of a `segment` since it was handed out; None if nothing."""
        return self._leader.why_changed(segment)

    def close(self) -> None:
        """Close what was fetched; its files stay for the owner of the folder to remove."""
        for log in self._fetched:
            log.close()

    def _closed_at_next(self, directory: Path) -> LocalSegment | None:
        """Return the leader's closed segment with the next offset, if all of it is below the end of what is wanted.

        None too if its last batches were compacted away.
        """
        for segment in list_leader_segments(directory):
            end = segment.end_offset
            if end is not None and segment.base_offset <= self._next_offset <= end:
                return segment if end < self._wanted.end_offset and _reaches(segment, end) else None
        return None

    def _begin_fetching(self, directory: Path, inside: LocalSegment | None) -> tuple[FetchedLog, RollRange]:
        """Begin with the rest of the segment that the next offset is `inside`; None: with all that is wanted."""
        start = self._next_offset
        part = (
            RollRange(start, self._wanted.end_offset)
            if inside is None
            else RollRange(start, _after(inside), closes_rest=True)
        )
        place = replace(self._place, folder=self._place.folder / str(start))
        place.folder.mkdir()
        log = FetchedLog(place, part, self._known_producers(directory, start))
        self._fetched.append(log)
        return log, part

    def _known_producers(self, directory: Path, offset: int) -> Sequence[ProducerSnapshotEntry] | None:
        if offset == self._wanted.start_offset and (known := self._producers()) is not None:
            return known
        with suppress(OSError, CorruptIndexError):
            return read_producer_snapshot(producer_snapshot_path(directory, offset))
        return None


class _LeaderSegments:
    """The leader's own segments that were handed out, and the state of their files then."""

    def __init__(self, files: LeaderFiles) -> None:
        self._files = files
        self._states: dict[int, Hashable] = {}
        """By base offset."""

    def directory_of(self, place: RolledPartition) -> Path:
        """Return the partition's directory. Raises as find_directory."""
        return find_directory(self._files, place.partition, has_topic_id=place.rules.has_topic_id)

    def hand_out(self, segment: LocalSegment) -> None:
        """Remember the state of a segment's file."""
        with suppress(OSError):
            # If it is gone by now, its reader reports it.
            self._states[segment.base_offset] = LogDirectorySegment.at(segment.location).state()
        self._states.setdefault(segment.base_offset, "gone")

    def release(self, segment: LocalSegment) -> None:
        """Forget a segment; of others there is nothing to forget."""
        self._states.pop(segment.base_offset, None)

    def why_changed(self, segment: LocalSegment) -> str | None:
        """As LeaderLog."""
        before = self._states.get(segment.base_offset)
        if before is None:
            return None
        try:
            now = LogDirectorySegment.at(segment.location).state()
        except OSError:
            return (
                f"{segment.location} was deleted or moved by broker {self._files.broker} while it was copied: the next "
                "run looks again"
            )
        if now == before:
            return None
        return (
            f"{segment.location} was changed by broker {self._files.broker} while it was copied, which truncates it "
            "once another broker leads: the next run looks again"
        )


def _reaches(segment: LocalSegment, end: int) -> bool:
    """Return whether a batch reaches the offset `end`; also if the file is broken or gone, which its reader reports."""
    with suppress(CorruptRecordError, OSError):
        return LogDirectorySegment.at(segment.location).read(end) is not None
    return True


def _after(segment: LocalSegment) -> int:
    return (segment.base_offset if segment.end_offset is None else segment.end_offset) + 1
