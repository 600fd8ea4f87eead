"""Which offsets the remote tier covers, along the lineage of leaders.

Two segments may hold the same offset: after an unclean election the loser's bytes are still in the store. A segment
covers an offset only at the epoch that the lineage gives it (KIP-405, KIP-101). If a later leader contradicts a
segment, the segment still covers the offsets before that leader's first one. Without a known lineage, nothing is
contradicted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.lineage import valid_end, whole_lineage
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, SegmentState


def finished(segments: Iterable[RemoteLogSegmentMetadata]) -> list[RemoteLogSegmentMetadata]:
    """Return the visible segments by start offset; of several, the longest first, then the latest.

    The later of two copies of the same offsets was made because something was wrong with the earlier.
    """
    seen = [segment for segment in segments if segment.state is SegmentState.COPY_SEGMENT_FINISHED]
    return sorted(
        seen, key=lambda each: (each.start_offset, -each.end_offset, -each.event_timestamp, each.segment_id.id)
    )


@dataclass(frozen=True, slots=True)
class CoveredRange:
    """The offsets `start_offset` to `end_offset` (inclusive) that readers may take from `segment`.

    They end before the segment does if a later leader truncated the rest and wrote its own.
    """

    segment: RemoteLogSegmentMetadata
    end_offset: int

    @property
    def start_offset(self) -> int:
        """The segment's first offset."""
        return self.segment.start_offset

    @property
    def size(self) -> int:
        """The segment's size in bytes; of a truncated segment its share, rounded down."""
        return self.size_from(self.start_offset)

    def size_from(self, offset: int) -> int:
        """Return the share of those bytes from `offset` (inclusive) on, rounded down."""
        whole = self.segment.end_offset - self.start_offset + 1
        return self.segment.size * (self.end_offset - offset + 1) // whole


@dataclass(frozen=True, slots=True)
class Coverage:
    """The finished segments on the lineage that together cover most, each reaching past the one before it."""

    ranges: tuple[CoveredRange, ...]

    @classmethod
    def of(cls, segments: Iterable[RemoteLogSegmentMetadata], lineage: Sequence[EpochEntry]) -> Coverage:
        """Leave out segments that are unfinished, off the lineage, or wholly held by an earlier segment.

        `lineage` is that of the partition (lineage.trusted_lineage); if none was kept, as for copies of an earlier
        release, the segments themselves complete it.
        """
        known = finished(segments)
        whole = whole_lineage(known, lineage)
        valid = [CoveredRange(segment, valid_end(segment, whole)) for segment in known]
        chosen: list[CoveredRange] = []
        reached = -1
        for covered in sorted(valid, key=lambda covered: (covered.start_offset, -covered.end_offset)):
            if covered.end_offset >= max(reached, covered.start_offset):
                chosen.append(covered)
                reached = covered.end_offset + 1
        return cls(tuple(chosen))

    def holding(self, start_offset: int, end_offset: int) -> list[CoveredRange] | None:
        """Return ranges that together hold [`start_offset`, `end_offset`], or None if an offset is missing."""
        wanted = []
        reached = start_offset
        for covered in self.ranges[self._first_ending_at_or_after(start_offset) :]:
            if reached > end_offset or covered.start_offset > reached:
                break
            wanted.append(covered)
            reached = covered.end_offset + 1
        return wanted if reached > end_offset else None

    def ranges_from(self, offset: int) -> Iterator[CoveredRange]:
        """Yield the ranges that end at `offset` or after it, in order."""
        return islice(self.ranges, self._first_ending_at_or_after(offset), None)

    def runs(self, start_offset: int, end_offset: int) -> list[list[CoveredRange]]:
        """Return the ranges that hold any of [`start_offset`, `end_offset`], grouped by gaps between them."""
        runs: list[list[CoveredRange]] = []
        for covered in self.ranges_from(start_offset):
            if covered.start_offset > end_offset:
                break
            if runs and covered.start_offset <= runs[-1][-1].end_offset + 1:
                runs[-1].append(covered)
            else:
                runs.append([covered])
        return runs

    def last_before(self, offset: int) -> RemoteLogSegmentMetadata | None:
        """Return the segment of the last range that begins below `offset`."""
        at = bisect_left(self.ranges, offset, key=lambda covered: covered.start_offset)
        return self.ranges[at - 1].segment if at else None

    def truncated_at(self, offset: int) -> tuple[RemoteLogSegmentMetadata, ...]:
        """Return the segment that a later leader truncated at `offset`, after the whole one that it follows.

        Nothing if no segment is truncated there, or if the one before it is missing or truncated too.
        """
        at = bisect_left(self.ranges, offset, key=lambda covered: covered.start_offset) - 1
        if at < 0 or self.ranges[at].end_offset + 1 != offset or self.ranges[at].segment.end_offset < offset:
            return ()
        truncated = self.ranges[at].segment
        if truncated.start_offset == 0:
            return (truncated,)
        before = self.ranges[at - 1].segment if at else None
        if before is None or before.end_offset + 1 != truncated.start_offset:
            return ()
        return before, truncated

    def lacks(self, start_offset: int, end_offset: int, log_start_offset: int) -> bool:
        """Return whether an offset of [`start_offset`, `end_offset`] at or above `log_start_offset` is missing."""
        if end_offset < log_start_offset:
            return False
        return self.holding(max(start_offset, log_start_offset), end_offset) is None

    def missing(self, start_offset: int, end_offset: int) -> list[tuple[int, int]]:
        """Return the ranges of offsets (inclusive) of [`start_offset`, `end_offset`] that no range holds."""
        missing = []
        reached = start_offset
        for covered in self.ranges[self._first_ending_at_or_after(start_offset) :]:
            if covered.start_offset > end_offset:
                break
            if covered.start_offset > reached:
                missing.append((reached, covered.start_offset - 1))
            reached = covered.end_offset + 1
        if reached <= end_offset:
            missing.append((reached, end_offset))
        return missing

    def gaps(self) -> list[tuple[int, int]]:
        """Return the ranges of offsets (inclusive) that are missing between the ranges."""
        pairs = zip(self.ranges, self.ranges[1:], strict=False)
        return [(a.end_offset + 1, b.start_offset - 1) for a, b in pairs if b.start_offset > a.end_offset + 1]

    @property
    def end_offset(self) -> int | None:
        """The last offset held (inclusive)."""
        return self.ranges[-1].end_offset if self.ranges else None

    def _first_ending_at_or_after(self, offset: int) -> int:
        low, high = 0, len(self.ranges)
        while low < high:
            middle = (low + high) // 2
            if self.ranges[middle].end_offset < offset:
                low = middle + 1
            else:
                high = middle
        return low
