"""Plan the copy of a log whose segments only its brokers see: the range to roll segments of (source/fetched_log.py).

Beside the brokers' disks, the leader's closed segments are due (source/leader_log.py). Otherwise the number of segments
is an estimate: by size, from the bytes per offset in the last remote segment or in a sample; and by time, from look-ups
of where the broker rolled (segment.ms). If it is one too low, the next run copies the rest; if one too high, the last
task ends unused. If it is zero, later samples decide, because records may have become larger. A burst of large records
that no sample hits shows in the log's size on its leader's disk, as far as that exceeds the remote log plus one
segment: of the first local segment, only the last offset may count. Less than a whole segment is due once its first
record is old (RollRules.tail_ms); otherwise an idle partition would never be copied.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace

from tiered_storage.errors import TieredStorageError
from tiered_storage.remote_log.coverage import Coverage
from tiered_storage.remote_log.model import PartitionState
from tiered_storage.remote_log.source.partition_log import PartitionLog, UnsegmentedLog
from tiered_storage.settings.topics import TopicSettings

_ROLLS_LOOKED_UP = 10
"""How many segments of a partition are looked up by time; each takes two requests, one after the other, and there are
thousands of partitions. The rest is estimated by those."""


@dataclass(frozen=True, slots=True)
class RollTimes:
    """The moment (ms) of a plan, and the end of a backfill's window; None: not a backfill.

    Without a moment nothing waits for a lag, and nothing is due because it is old.
    """

    now: int | None
    window_end: int | None = None


@dataclass(frozen=True, slots=True)
class PlannedRolls:
    """The offsets to roll segments from, both inclusive, and the estimated size of each segment in bytes."""

    start_offset: int
    end_offset: int
    sizes: tuple[int, ...]


_AVOID = "lengthen the topic's retention, or copy more often"


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets, both inclusive, that the brokers deleted before they were copied."""

    start_offset: int
    end_offset: int

    def __str__(self) -> str:
        return f"the brokers deleted offsets {self.start_offset} to {self.end_offset} before they were copied"

    @property
    def remedy(self) -> str:
        """The user's choice, for a message."""
        return f"set copy.over.gaps=true of the topic to copy on from the brokers' log start; {_AVOID}"

    @property
    def loss(self) -> str:
        """The consequence of copying over the gap, for a message."""
        return (
            f"they are lost, and copies continue from offset {self.end_offset + 1} (copy.over.gaps): audits name the "
            f"gap from then on; {_AVOID}"
        )


def find_gap(log: PartitionLog, coverage: Coverage, state: PartitionState) -> Gap | None:
    """Return the offsets that `log` should hold for the next copy and no longer does."""
    wanted = _next_offset(log, coverage, state)
    return Gap(wanted, log.log_start_offset - 1) if wanted < log.log_start_offset else None


def plan_rolls(
    log: PartitionLog,
    unsegmented: UnsegmentedLog,
    coverage: Coverage,
    state: PartitionState,
    topic: TopicSettings,
    times: RollTimes,
    max_segments: int | None,
) -> PlannedRolls | None:
    """Return what is due of `log`, after any gap; None if nothing is. Raises SourceClusterError."""
    start = max(_next_offset(log, coverage, state), log.log_start_offset)
    end = log.last_stable_offset - 1
    if times.window_end is not None and start <= end:
        end = min(end, unsegmented.offset_at(times.window_end + 1) - 1)
    if start > end:
        return None
    density = _density(coverage) or unsegmented.bytes_an_offset(start)
    end = _without_lag(unsegmented, end, density, topic, times.now)
    if start > end:
        return None
    if unsegmented.closed_sizes is not None:
        sizes = tuple(unsegmented.closed_sizes(start, end))
        if not sizes and times.now is not None and _is_old(unsegmented, start, times.now):
            sizes = (max(1, int((end - start + 1) * density)),)
        return PlannedRolls(start, end, sizes[:max_segments]) if sizes else None
    whole, bounds = unsegmented.rules.segment_bytes, _size_bounds(log, unsegmented, coverage)
    if (end - start + 1) * density < whole <= bounds.most:
        density = max(density, _later_density(unsegmented, start, end))
    size = int((end - start + 1) * density)
    if end == log.last_stable_offset - 1:
        size = max(size, bounds.least)
    sizes = (whole,) * min(size // whole, max_segments or size)
    # Records that are young enough have not rolled by time.
    if size > 0 and (times.now is None or _is_old(unsegmented, start, times.now)):
        sizes = max(sizes, _rolled_sizes(unsegmented, start, end, density, times.now, max_segments), key=len)
    return PlannedRolls(start, end, sizes) if sizes else None


def as_the_topic_rolls(unsegmented: UnsegmentedLog, topic: TopicSettings) -> UnsegmentedLog:
    """Return `unsegmented` with the topic's own segment.bytes and segment.ms, if it has any, not the brokers'."""
    if topic.segment_bytes < 0 and topic.segment_ms < 0:
        return unsegmented
    rules = unsegmented.rules
    segment_bytes = topic.segment_bytes if topic.segment_bytes >= 0 else rules.segment_bytes
    segment_ms = topic.segment_ms if topic.segment_ms >= 0 else rules.segment_ms
    return replace(unsegmented, rules=replace(rules, segment_bytes=segment_bytes, segment_ms=segment_ms))


def _rolled_sizes(
    unsegmented: UnsegmentedLog, start: int, end: int, density: float, now: int | None, max_segments: int | None
) -> tuple[int, ...]:
    """Return the estimated sizes of the segments in [`start`, `end`] that FetchedLog rolls, by time or size.

    The last one counts once it is old. Where an earlier record has a later timestamp, no look-up finds the next roll:
    one more segment counts, and the next run plans from its end on.
    """
    rules, sizes, at = unsegmented.rules, list[int](), start
    for _ in range(_ROLLS_LOOKED_UP):
        try:
            began = unsegmented.timestamp_at(at)
            after = end + 1 if began < 0 else min(end + 1, unsegmented.offset_at(began + rules.segment_ms + 1))
        except TieredStorageError:
            if at == start:
                raise
            # The records before can be copied. A later plan begins here, and names the fault.
            break
        size = max(1, int((after - at) * density))
        is_old = now is not None and (at == start or 0 <= began <= now - rules.tail_ms)
        if whole := size // rules.segment_bytes:
            sizes += [rules.segment_bytes] * whole
            at = min(after, at + math.ceil(whole * rules.segment_bytes / density))
        elif after <= end or is_old:
            sizes.append(size)
            at = after if after > at else end + 1
        else:
            break
        if at > end or len(sizes) >= (max_segments or sys.maxsize):
            break
    else:
        looked_up = at - start
        more = len(sizes) * (end + 1 - at) // looked_up
        sizes += [max(1, int(looked_up * density / len(sizes)))] * min(more, max_segments or more)
    return tuple(sizes[:max_segments])


def _is_old(unsegmented: UnsegmentedLog, start: int, now: int) -> bool:
    """Return whether the record at `start` is old enough for less than a whole segment."""
    return unsegmented.offset_at(now - unsegmented.rules.tail_ms + 1) > start


def _next_offset(log: PartitionLog, coverage: Coverage, state: PartitionState) -> int:
    known = state.log_start_offset
    if coverage.end_offset is not None:
        return max(coverage.end_offset + 1, known or 0)
    return log.log_start_offset if known is None else known


def _density(coverage: Coverage) -> float | None:
    """Return the bytes an offset took in the last remote segment."""
    if not coverage.ranges:
        return None
    last = coverage.ranges[-1]
    return last.size / (last.end_offset - last.start_offset + 1)


def _later_density(unsegmented: UnsegmentedLog, start: int, end: int) -> float:
    """Return the bytes an offset takes in the middle or at the end, the smaller: one large record makes no segment."""
    return min(unsegmented.bytes_an_offset((start + end) // 2), unsegmented.bytes_an_offset(end))


@dataclass(frozen=True, slots=True)
class _SizeBounds:
    """How many bytes a log has that are not remote, at least and at most."""

    least: int
    most: int


def _size_bounds(log: PartitionLog, unsegmented: UnsegmentedLog, coverage: Coverage) -> _SizeBounds:
    """Return the bounds by the size of the log on its leader's disk; the widest if it is unknown."""
    held = unsegmented.size_on_disk
    if held is None:
        return _SizeBounds(0, sys.maxsize)
    remote = list(coverage.ranges_from(log.log_start_offset))
    most = held - sum(each.segment.size for each in remote if each.start_offset >= log.log_start_offset)
    # The log start may be the last offset of the first local segment, and what is not stable yet is on disk too.
    least = held - sum(each.segment.size for each in remote) - unsegmented.rules.segment_bytes
    is_stable = log.high_watermark in {None, log.last_stable_offset}
    return _SizeBounds(max(0, least) if is_stable else 0, most)


def _without_lag(unsegmented: UnsegmentedLog, end: int, density: float, topic: TopicSettings, now: int | None) -> int:
    """Return the last offset up to `end` that one of the topic's two lags (KIP-1241) lets through; -1 if none does."""
    lag_ms, lag_bytes = topic.remote_copy_lag_ms, topic.remote_copy_lag_bytes
    if lag_ms == 0 or now is None:
        return end
    ends = [-1]
    if lag_ms > 0:
        ends.append(min(end, unsegmented.offset_at(now - lag_ms + 1) - 1))
    if lag_bytes >= 0 and density > 0:
        ends.append(end - int(lag_bytes / density))
    return max(ends)
