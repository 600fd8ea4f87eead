"""What tiering a topic would copy, keep on the brokers, save there, and cost a month, from what the local logs show.

Sizes are those of a month in which the topic is written as in the last day (a running cluster) or over the whole log
(log directories), under the topic's present limits. ASSUMPTIONS says the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tiered_storage.errors import TieredStorageError
from tiered_storage.remote_log.enabling.retention_margin import why_margin_is_short, write_rate
from tiered_storage.remote_log.source.opening import open_segment
from tiered_storage.remote_log.source.partition_log import PartitionLog, UnreadablePartition, UnsegmentedLog
from tiered_storage.remote_log.source.segment_source import first_timestamp
from tiered_storage.remote_log.tiering_policy import effective, refuse_compacted, refuse_log
from tiered_storage.settings.settings import Settings
from tiered_storage.settings.topics import TopicSettings

if TYPE_CHECKING:
    from tiered_storage.remote_log.context import RemoteLogContext

DAY: Final = 86_400_000
MONTH: Final = 30 * DAY
GB: Final = 10**9
OBJECTS_A_SEGMENT: Final = 3
TRANSFERS: Final = 2
"""How often what is written crosses the network: copied, and read back before it is deleted at the brokers."""
_THOUSAND: Final = 1000
_ESTIMATED: Final = (
    "brokers report the sizes of logs only to a login with Describe on the cluster, and are not asked if "
    "broker.log.dirs is set"
)

ASSUMPTIONS: Final = (
    "a month has 30 days, and a GB 10^9 bytes; nothing was copied yet",
    "topics will be written as in the last day (a running cluster), or as over their whole log (log directories)",
    "stored is what total retention keeps; without a limit, what is there now and a month more",
    "kept locally is what local retention keeps, and a segment that is not finished, on every replica",
    "saved is all that is stored, less what is kept locally, on every replica; it is saved once local logs are trimmed",
    "each segment takes three requests that write, and is not compressed in the store",
    "each segment is read back once, by one request, before its records are deleted at the brokers",
    "what a month writes is transferred twice: copied, and read back; other reads, lists and deletions are not counted",
)


@dataclass(frozen=True, slots=True)
class TopicAdvice:
    """Of a topic, or of several: bytes now, and in a month; `problem` says why it cannot be tiered.

    `due` is what the first run copies, `stored` what the store then holds; `kept` and `saved` count every replica.
    `segments` are written in a month.
    """

    topic: str
    partitions: int = 0
    local: int = 0
    daily: int = 0
    due: int = 0
    stored: int = 0
    kept: int = 0
    saved: int = 0
    segments: int = 0
    problem: str | None = None

    def __add__(self, other: TopicAdvice) -> TopicAdvice:
        """Return the sum of both, under this one's name and with the first problem."""
        return TopicAdvice(
            self.topic,
            self.partitions + other.partitions,
            self.local + other.local,
            self.daily + other.daily,
            self.due + other.due,
            self.stored + other.stored,
            self.kept + other.kept,
            self.saved + other.saved,
            self.segments + other.segments,
            self.problem or other.problem,
        )


@dataclass(frozen=True, slots=True)
class MonthlyCosts:
    """What a month costs, and saves on the brokers' disks; None for what has no price in the settings."""

    store: float | None
    writes: float | None
    reads: float | None
    transfer: float | None
    disks_saved: float | None

    @classmethod
    def of(cls, advice: TopicAdvice, settings: Settings) -> MonthlyCosts:
        """Return the costs of `advice` by the prices in the settings."""
        return cls(
            _priced(advice.stored / GB, settings.cost_store_gb_month),
            _priced(advice.segments * OBJECTS_A_SEGMENT / _THOUSAND, settings.cost_store_write_thousand),
            _priced(advice.segments / _THOUSAND, settings.cost_store_read_thousand),
            _priced(TRANSFERS * advice.daily * MONTH / DAY / GB, settings.cost_transfer_gb),
            _priced(advice.saved / GB, settings.cost_disk_gb_month),
        )


def unpriced(settings: Settings) -> list[str]:
    """Return the names of the prices that are not set."""
    prices = {
        "cost.store.gb.month": settings.cost_store_gb_month,
        "cost.store.write.thousand": settings.cost_store_write_thousand,
        "cost.store.read.thousand": settings.cost_store_read_thousand,
        "cost.transfer.gb": settings.cost_transfer_gb,
        "cost.disk.gb.month": settings.cost_disk_gb_month,
    }
    return [name for name, price in prices.items() if price is None]


def advise(context: RemoteLogContext, is_meant: Callable[[str], bool]) -> tuple[list[TopicAdvice], str | None]:
    """Return the advice on each local topic by name, and why sizes are estimates; None: they are not.

    Looks at every partition of the source. Raises what the source raises as a whole; partitions that cannot be looked
    at count for nothing, and are their topic's problem.
    """
    found: dict[str, TopicAdvice] = {}
    estimated: str | None = None
    for log in context.source.partitions():
        name = log.topic if isinstance(log, UnreadablePartition) else log.topic_id_partition.topic
        if not log.is_internal and is_meant(name):
            found[name] = found.get(name, TopicAdvice(name)) + _advice_on(log, context)
            if isinstance(log, PartitionLog) and log.unsegmented is not None and log.unsegmented.size_on_disk is None:
                estimated = _ESTIMATED
    return [found[name] for name in sorted(found)], estimated


def total(advice: Iterable[TopicAdvice]) -> TopicAdvice:
    """Return the sum of the topics that can be tiered."""
    summed = TopicAdvice("sum")
    for each in advice:
        if each.problem is None:
            summed += each
    return summed


def _advice_on(log: PartitionLog | UnreadablePartition, context: RemoteLogContext) -> TopicAdvice:
    if isinstance(log, UnreadablePartition):
        return TopicAdvice(log.topic, 1, problem=log.reason)
    partition = log.topic_id_partition
    try:
        topic = effective(context.decided_topic(partition), context.settings, log.configs)
        refuse_compacted(partition.topic, topic)
        refuse_log(log)
        shown = _shown(log, log.unsegmented, topic, context.clock())
        least = context.settings.enable_min_retention_margin_ms
        problem = None
        if log.configs is not None:
            problem = why_margin_is_short(log.configs, topic, least, shown.bytes_a_ms)
    except (TieredStorageError, OSError) as error:
        return TopicAdvice(partition.topic, 1, problem=str(error))
    replicas = 1 if log.unsegmented is None else log.unsegmented.replicas
    return replace(_in_a_month(partition.topic, shown, topic, replicas), problem=problem)


@dataclass(frozen=True, slots=True)
class _Shown:
    """What a local log shows: bytes in all and in whole segments, the rate, and how it rolls (-1: not by age)."""

    size: int
    whole: int
    bytes_a_ms: float
    segment_bytes: int
    segment_ms: int


def _shown(log: PartitionLog, unsegmented: UnsegmentedLog | None, topic: TopicSettings, now: int) -> _Shown:
    """Look at a log. Raises SourceClusterError and OSError."""
    if unsegmented is None:
        sizes = [segment.size for segment in log.closed_segments]
        typical = max(sizes, default=0) or sum(segment.size for segment in log.segments)
        return _Shown(sum(segment.size for segment in log.segments), sum(sizes), _rate_of_files(log), typical, -1)
    size = unsegmented.size_on_disk
    if size is None:
        offsets = log.readable_end - log.log_start_offset
        size = int(offsets * unsegmented.bytes_an_offset(log.log_start_offset)) if offsets else 0
    segment_bytes = topic.segment_bytes if topic.segment_bytes >= 0 else unsegmented.rules.segment_bytes
    segment_ms = topic.segment_ms if topic.segment_ms >= 0 else unsegmented.rules.tail_ms
    rate = write_rate(log, unsegmented, now, windows=(DAY,))
    return _Shown(size, size - size % segment_bytes, rate, segment_bytes, segment_ms)


def _rate_of_files(log: PartitionLog) -> float:
    """Return the bytes a ms of the closed segments, between the first records of the first and the last segment."""
    if len(log.segments) < 2:
        return 0.0
    first, last = (first_timestamp(open_segment(log.segments[at].location)) for at in (0, -1))
    if first is None or last is None or last <= first:
        return 0.0
    return sum(segment.size for segment in log.closed_segments) / (last - first)


def _in_a_month(name: str, shown: _Shown, topic: TopicSettings, replicas: int) -> TopicAdvice:
    rate = shown.bytes_a_ms
    # A tail without further writes is copied from a running cluster, but not from files.
    present = shown.size if shown.segment_ms > 0 else shown.whole
    all_kept = list(_limits(rate, topic.retention_ms, topic.retention_bytes, present))
    stored = int(min(all_kept, default=present + rate * MONTH))
    local = min(_limits(rate, topic.local_retention_ms, topic.local_retention_bytes, present), default=stored)
    kept = min(stored, int(local) + shown.segment_bytes)
    return TopicAdvice(
        name,
        1,
        shown.size,
        int(rate * DAY),
        shown.whole,
        stored,
        kept * replicas,
        (stored - kept) * replicas,
        int(_segments_a_month(shown)),
    )


def _limits(rate: float, ms: int, size: int, present: int) -> Iterator[float]:
    """Yield how many bytes each limit keeps; without writers, the limit by age keeps what is there now."""
    if ms >= 0:
        yield rate * ms if rate > 0 else present
    if size >= 0:
        yield size


def _segments_a_month(shown: _Shown) -> float:
    if shown.bytes_a_ms <= 0 or shown.segment_bytes <= 0:
        return 0
    by_size = shown.bytes_a_ms * MONTH / shown.segment_bytes
    by_age = MONTH / shown.segment_ms if shown.segment_ms > 0 else 0
    return max(1, by_size, by_age)


def _priced(amount: float, price: float | None) -> float | None:
    return None if price is None else amount * price
