"""The metrics of one partition, and of a topic, at one moment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from tiered_storage.remote_log.model import TopicIdPartition

MOST_NAMED = 10
"""The most partitions of a topic that are named as faulty."""


class OffsetRule(StrEnum):
    """A rule that the offsets of a partition's tiers keep (KIP-405): Lz >= Ly >= Lx, and Ly >= Ry >= Rx."""

    LOCAL_END = "Lz >= Ly"
    """The local log does not end before its stable end."""
    STABLE_END = "Ly >= Lx"
    """The stable end is not below the local log's start."""
    REMOTE_END = "Ly >= Ry"
    """Only stable records are remote."""
    REMOTE_START = "Ry >= Rx"
    """The remote log does not end before its start."""


@dataclass(frozen=True, slots=True)
class TierOffsets:
    """Where the tiers of a partition begin and end; ends are exclusive. None: there is no such tier, or it is unseen.

    `local_end` is the high watermark, the last end that brokers show. `log_start` is the global log start.
    """

    local_start: int | None = None
    stable_end: int | None = None
    local_end: int | None = None
    remote_start: int | None = None
    remote_end: int | None = None
    log_start: int | None = None

    @property
    def violated(self) -> tuple[OffsetRule, ...]:
        """The rules that these offsets violate."""
        pairs = {
            OffsetRule.LOCAL_END: (self.local_end, self.stable_end),
            OffsetRule.STABLE_END: (self.stable_end, self.local_start),
            OffsetRule.REMOTE_END: (self.stable_end, self.remote_end),
            OffsetRule.REMOTE_START: (self.remote_end, self.remote_start),
        }
        return tuple(
            rule for rule, (upper, lower) in pairs.items() if upper is not None and lower is not None and upper < lower
        )

    @property
    def next_copied(self) -> int | None:
        """The offset that the next copy begins with; None if the local log is unseen."""
        if self.local_start is None:
            return None
        if self.remote_end is not None:
            return max(self.remote_end, self.log_start or 0)
        return self.local_start if self.log_start is None else self.log_start

    @property
    def missing(self) -> int:
        """How many offsets the local log lost before they were copied."""
        wanted = self.next_copied
        return 0 if wanted is None or self.local_start is None else max(0, self.local_start - wanted)

    @property
    def tail(self) -> int:
        """How many stable offsets are not remote yet."""
        if self.next_copied is None or self.stable_end is None or self.local_start is None:
            return 0
        return max(0, self.stable_end - max(self.next_copied, self.local_start))


@dataclass(frozen=True, slots=True)
class CopyLag:
    """The closed, stable segments that are not remote yet: how many, their size in bytes, and the age of the first.

    `ms` is how long ago the first record among them was written, None if that is not known.
    """

    segments: int = 0
    size: int = 0
    ms: int | None = 0

    def __add__(self, other: CopyLag) -> CopyLag:
        """Return both together, with the greater age; it is not known if no segment's is."""
        ages = [each.ms for each in (self, other) if each.segments]
        known = [age for age in ages if age is not None]
        age = max(known, default=None) if ages else 0
        return CopyLag(self.segments + other.segments, self.size + other.size, age)


@dataclass(frozen=True, slots=True)
class SegmentMetrics:
    """What the metadata have of a partition's segments, sizes in bytes.

    `copied` ones were finished at any time, `deleted` ones too. `ended` copies did not finish and are being cleaned up.
    `deleting` ones wait for the deletion of their objects, which failed for `failed_deletions` of them, in
    `deletion_attempts` attempts.
    """

    remote: int = 0
    remote_size: int = 0
    copied: int = 0
    copied_size: int = 0
    ended: int = 0
    unfinished: int = 0
    stuck: int = 0
    deleting: int = 0
    deleting_size: int = 0
    deleted: int = 0
    failed_deletions: int = 0
    deletion_attempts: int = 0

    def __add__(self, other: SegmentMetrics) -> SegmentMetrics:
        """Return the sums."""
        return SegmentMetrics(
            self.remote + other.remote,
            self.remote_size + other.remote_size,
            self.copied + other.copied,
            self.copied_size + other.copied_size,
            self.ended + other.ended,
            self.unfinished + other.unfinished,
            self.stuck + other.stuck,
            self.deleting + other.deleting,
            self.deleting_size + other.deleting_size,
            self.deleted + other.deleted,
            self.failed_deletions + other.failed_deletions,
            self.deletion_attempts + other.deletion_attempts,
        )


@dataclass(frozen=True, slots=True)
class BrokerRetention:
    """What the brokers of a running cluster may delete of a partition.

    `margin_ms` is how long an outage of copies may last until they delete what was not copied; None: they have no
    limit, or it is not known. `lowered` are the limits that they lowered, and whose earlier values still decide
    deletions.
    """

    margin_ms: int | None = None
    is_short: bool = False
    lowered: tuple[str, ...] = ()

    @property
    def troubles(self) -> Iterator[str]:
        """What needs attention, in words."""
        if self.is_short and self.margin_ms is not None:
            margin = f"if copies stop for longer than {self.margin_ms / 3_600_000:.1f} h"
            yield f"its brokers delete records that are not copied yet, {margin} (enable.min.retention.margin.ms)"
        for name in self.lowered:
            yield f"its brokers lowered {name} (remote.log.lowered.limit.grace.ms)"


@dataclass(frozen=True, slots=True)
class PartitionMetrics:
    """One partition. `lag` is None if nothing of it is to be copied, its local log could not be read (`problem`), or
    the snapshot read none of its records (`is_lag_unknown`).

    `tail_size` is the size in bytes of the stable records that are not remote yet; an estimate where only brokers see
    the segments, as that of the lag then is; None: not known. `retention` is None of what is not copied from a running
    cluster. `used_percent` and `local_used_percent` are the shares of retention.bytes and local.retention.bytes that
    both tiers, or the local log, take: 0 without a limit, None if it is not known.
    """

    partition: TopicIdPartition
    offsets: TierOffsets
    segments: SegmentMetrics
    lag: CopyLag | None = None
    tail_size: int | None = 0
    violated: tuple[OffsetRule, ...] = ()
    problem: str | None = None
    retention: BrokerRetention | None = None
    used_percent: int | None = None
    local_used_percent: int | None = None
    is_lag_unknown: bool = False

    @property
    def is_copied(self) -> bool:
        """Whether copies take what is not remote of it, and its local log could be read."""
        return self.lag is not None or self.is_lag_unknown

    @property
    def troubles(self) -> Iterator[str]:
        """What needs attention, in words."""
        for rule in self.violated:
            yield f"offsets violate {rule}"
        if self.is_copied and self.offsets.missing:
            yield f"{self.offsets.missing:,} offsets were deleted locally and never copied"
        if self.segments.stuck:
            yield f"{self.segments.stuck:,} stuck copies"
        if self.segments.failed_deletions:
            yield f"{self.segments.failed_deletions:,} failed deletions"
        if self.retention is not None:
            yield from self.retention.troubles
        if self.problem is not None:
            yield self.problem


@dataclass(frozen=True, slots=True)
class TopicMetrics:
    """A topic: the sums over its partitions, of every incarnation.

    Partitions whose lag or tail is unknown do not count. `lag` is None if no partition has one, or all that is known
    is that some do not lag; likewise `tail_size`.
    """

    topic: str
    partitions: int
    segments: SegmentMetrics
    lag: CopyLag | None
    tail: int
    tail_size: int | None
    missing: int
    unreadable: int
    violating: dict[OffsetRule, int]
    """How many partitions violate each rule, 0 for a rule that all keep."""
    troubles: tuple[str, ...]
    """What is wrong, with the partition's name; of at most MOST_NAMED partitions."""
    margin_ms: int | None = None
    """The least margin of its partitions; see BrokerRetention."""
    short_margins: int = 0
    """How many partitions have a margin below enable.min.retention.margin.ms."""
    lowered: int = 0
    """How many limits of it the brokers lowered."""
    is_copied: bool = False
    """Whether one of its partitions is; see PartitionMetrics."""

    @classmethod
    def of(cls, topic: str, partitions: Iterable[PartitionMetrics]) -> TopicMetrics:
        """Add up `partitions`, all of `topic`."""
        found = list(partitions)
        lags = [each.lag for each in found if each.lag is not None]
        lag = sum(lags, CopyLag()) if lags else None
        tail_size = sum(each.tail_size or 0 for each in found)
        troubled = [(each, list(each.troubles)) for each in found]
        named = [(each, troubles) for each, troubles in troubled if troubles][:MOST_NAMED]
        retentions = [each.retention for each in found if each.retention is not None]
        return cls(
            topic,
            len(found),
            sum((each.segments for each in found), SegmentMetrics()),
            None if lag == CopyLag() and any(each.is_lag_unknown for each in found) else lag,
            sum(each.offsets.tail for each in found if each.is_copied),
            tail_size or (None if any(each.tail_size is None for each in found) else 0),
            sum(each.offsets.missing for each in found if each.is_copied),
            sum(each.problem is not None for each in found),
            {rule: sum(rule in each.violated for each in found) for rule in OffsetRule},
            tuple(f"{each.partition}: {'; '.join(troubles)}" for each, troubles in named),
            min((each.margin_ms for each in retentions if each.margin_ms is not None), default=None),
            sum(each.is_short for each in retentions),
            max((len(each.lowered) for each in retentions), default=0),
            any(each.is_copied for each in found),
        )


@dataclass(frozen=True, slots=True)
class RemoteLogMetrics:
    """All partitions that are tiered or have anything remote, as a snapshot at `taken_at` (ms) has them in `took_ms`.

    `problem` is why the local logs could not be looked at at all. It took `sized_ms` to add up the remote segments.
    """

    taken_at: int
    took_ms: int
    partitions: tuple[PartitionMetrics, ...]
    problem: str | None = None
    sized_ms: int = 0

    @property
    def topics(self) -> list[TopicMetrics]:
        """The topics, by name."""
        by_topic: dict[str, list[PartitionMetrics]] = {}
        for each in self.partitions:
            by_topic.setdefault(each.partition.topic, []).append(each)
        return [TopicMetrics.of(topic, by_topic[topic]) for topic in sorted(by_topic)]
