"""Which offsets the remote tier already has, along the lineage of leaders.

Two segments may hold the same offset: after an unclean election the loser's bytes are still in the store. An offset
counts as covered only by a segment that holds it at the epoch which the lineage gives it (KIP-405, KIP-101); of a
segment that a later leader contradicts, what lies before that leader's first offset is still true. Where nobody knows
anything, nothing is contradicted.
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
    """Return the segments that readers may see, by start offset, the longest of several first, then the latest.

    Of two copies of the same offsets the later one was made because something was wrong with the earlier.
    """
    seen = [segment for segment in segments if segment.state is SegmentState.COPY_SEGMENT_FINISHED]
    return sorted(
        seen, key=lambda each: (each.start_offset, -each.end_offset, -each.event_timestamp, each.segment_id.id)
    )


@dataclass(frozen=True, slots=True)
class CoveredRange:
    """The offsets `start_offset` to `end_offset` (inclusive) that readers may take from `segment`.

    They end before the segment does where a later leader cut off the rest and wrote its own.
    """

    segment: RemoteLogSegmentMetadata
    end_offset: int

    @property
    def start_offset(self) -> int:
        """The segment's first offset."""
        return self.segment.start_offset

    @property
    def size(self) -> int:
        """The bytes of the segment that count; of one that is cut its share, rounded down."""
        return self.size_from(self.start_offset)

    def size_from(self, offset: int) -> int:
        """Return the share of those bytes that `offset` (inclusive) and what is above it have, rounded down."""
        whole = self.segment.end_offset - self.start_offset + 1
        return self.segment.size * (self.end_offset - offset + 1) // whole


@dataclass(frozen=True, slots=True)
class Coverage:
    """The finished segments on the lineage that together hold most, each reaching past the one before it."""

    ranges: tuple[CoveredRange, ...]

    @classmethod
    def of(cls, segments: Iterable[RemoteLogSegmentMetadata], lineage: Sequence[EpochEntry]) -> Coverage:
        """Leave out what is not finished, not on the lineage, or wholly held by an earlier segment.

        `lineage` is what we know of the partition's leaders (lineage.trusted_lineage); where we kept nothing yet, as of
        what an earlier release copied, the segments themselves complete it.
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
        """Return the ranges that hold any of [`start_offset`, `end_offset`], those without a gap between together."""
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
