"""How much of a topic is past its limits now, shown before its deletion is allowed.

An estimate: the age of a local segment comes from its time index, since reading it takes long. A deletion reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from tiered_storage.errors import TieredStorageError
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.metadata.held_limits import held_limits
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.progress import Amount
from tiered_storage.remote_log.retention.expiry import plan_expiry
from tiered_storage.remote_log.retention.local.cluster_plan import RemoteSide, past_cluster_retention
from tiered_storage.remote_log.retention.local.plan import LocalRetentionPlan
from tiered_storage.remote_log.source.opening import open_segment
from tiered_storage.remote_log.source.partition_log import PartitionLog
from tiered_storage.remote_log.source.segment_source import configured_partitions, is_indexed_before
from tiered_storage.remote_log.tiering_policy import effective
from tiered_storage.settings.topics import TopicSettings

PlanLocal: TypeAlias = Callable[[PartitionLog, TopicSettings, int], LocalRetentionPlan]
"""Plans local retention of a log at a time (ms)."""


@dataclass(frozen=True, slots=True)
class PastRetention:
    """What of one incarnation of a topic is past its limits, and whether it may be deleted.

    `local` are closed local segments past local retention, remote or not; `local_waiting` of them stay for now, until
    the grace time of earlier marks is over. `remote` and `never_copied` are past total retention.
    """

    topic: Topic
    local: Amount = field(default_factory=Amount)
    local_waiting: Amount = field(default_factory=Amount)
    remote: Amount = field(default_factory=Amount)
    never_copied: Amount = field(default_factory=Amount)

    @property
    def is_anything(self) -> bool:
        """Whether there is anything."""
        return any(amount.segments for amount in (self.local, self.remote, self.never_copied))


def past_retention(
    partitions: Iterable[TopicIdPartition], context: RemoteLogContext, now: int, planned: PlanLocal
) -> list[PastRetention]:
    """Return what is past retention at `now` (ms) of the topics of `partitions`, as far as readable.

    `planned` returns which local segments wait. Rights, stops and audit results are ignored. Changes nothing.
    """
    found: dict[tuple[str, str], PastRetention] = {}
    wanted = sorted(set(partitions))
    local = {
        log.topic_id_partition: log
        for log in (configured_partitions(context.source) if wanted else ())
        if isinstance(log, PartitionLog)
    }
    for partition in wanted:
        incarnation = (partition.cluster_id, partition.topic_id)
        known = found.setdefault(incarnation, PastRetention(context.decided_topic(partition)))
        try:
            found[incarnation] = _with(known, partition, local.get(partition), context, now, planned)
        except (TieredStorageError, OSError):
            # Plans and audits report what is unreadable.
            continue
    return list(found.values())


def _with(
    known: PastRetention,
    partition: TopicIdPartition,
    log: PartitionLog | None,
    context: RemoteLogContext,
    now: int,
    planned: PlanLocal,
) -> PastRetention:
    configs = None if log is None else log.configs
    held = held_limits(partition.cluster_id, partition.topic_id, context.topics)
    settings = effective(known.topic, context.settings, configs, held)
    if log is not None and log.unsegmented is not None:
        remote = RemoteSide.of(partition, context.segments)
        known = replace(known, local=known.local + past_cluster_retention(log, remote, settings, now))
    elif log is not None:
        local = _past_local_retention(log, settings, now)
        waiting = _waiting(local, planned(log, settings, now)) if local.segments else Amount()
        known = replace(known, local=known.local + local, local_waiting=known.local_waiting + waiting)
    expired = plan_expiry(partition, context.segments, settings, now, log, is_older=is_indexed_before)
    if expired is None:
        return known
    expired_remote = Amount(len(expired.segments) + len(expired.superseded), expired.size)
    never_copied = Amount(expired.never_copied_segments, expired.never_copied_bytes)
    return replace(known, remote=known.remote + expired_remote, never_copied=known.never_copied + never_copied)


def _waiting(past: Amount, plan: LocalRetentionPlan) -> Amount:
    if not plan.waits:
        return Amount()
    return Amount(max(0, past.segments - len(plan.segments)), max(0, past.size - plan.size))


def _past_local_retention(log: PartitionLog, settings: TopicSettings, now: int) -> Amount:
    """Return the oldest closed segments, up to the first one that is past neither limit."""
    excess = sum(segment.size for segment in log.segments) - settings.local_retention_bytes
    found = Amount()
    for segment in log.closed_segments:
        is_over = settings.local_retention_bytes >= 0 and excess >= segment.size
        limit = settings.local_retention_ms
        if not is_over and (limit < 0 or not is_indexed_before(open_segment(segment.location), now - limit)):
            break
        excess -= segment.size
        found += Amount(1, segment.size)
    return found
