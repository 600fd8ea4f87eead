"""The topics that the commands know, and the table that shows them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tiered_storage.cli.common.output import Output, show_duration, show_size
from tiered_storage.errors import ClusterUnreachableError, TieredStorageError
from tiered_storage.kafka_log.files.topic_partition import described_near, near_names, nearly_same
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.enabling.absent_topics import AbsentTopic, ShownTopics
from tiered_storage.remote_log.enabling.broker_limits import origins
from tiered_storage.remote_log.metadata.metadata_store import beside_topic
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.source.opening import CLUSTER, local_place, why_hidden
from tiered_storage.remote_log.source.partition_log import NamedPartition, UnreadablePartition
from tiered_storage.remote_log.tiering_policy import SEGMENTS, decide_partition, withholds_rights

COPY_DISABLE = "remote.log.copy.disable"
_A_NAME = re.compile(r"[A-Za-z0-9._-]+")


class Tier(StrEnum):
    """A tier in which deletion may be allowed."""

    LOCAL = "local"
    REMOTE = "remote"


_COLUMNS = (
    "topic", "topic id", "partitions", "remote.storage.enable", "paused", "local deletion allowed",
    "remote deletion allowed", "retention.ms", "retention.bytes", "local.retention.ms", "local.retention.bytes",
    "remote.copy.lag.ms", "remote.copy.lag.bytes", "segment.bytes", "segment.ms", "origins", "problem",
)  # fmt: skip


_SHORT_COLUMNS = (
    "topic", "partitions", "copied", "deleted from", "kept locally", "kept in all", "topic id", "set by", "problem",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class KnownTopics:
    """Every local or remote partition, except Kafka's internal topics, and those whose topic ids are unknown."""

    partitions: Sequence[TopicIdPartition]
    local: Mapping[TopicIdPartition, NamedPartition]
    problems: Mapping[TopicIdPartition, str]
    """Why a copy leaves partitions out, as far as known without looking into their logs."""
    damaged: Sequence[UnreadablePartition]
    absent: Mapping[tuple[str, str], AbsentTopic]
    """Topics that their running cluster does not show, by cluster and topic id."""

    def incarnations(self, is_meant: Callable[[str], bool]) -> list[TopicIdPartition]:
        """Return the first partition of each incarnation of the matching topics, by name."""
        first = {_incarnation(one): one for one in reversed(self.partitions) if is_meant(one.topic)}
        return sorted(first.values(), key=lambda one: (one.topic, one))

    def of(self, incarnation: TopicIdPartition) -> list[TopicIdPartition]:
        """Return the partitions of one incarnation of a topic."""
        return [one for one in self.partitions if _incarnation(one) == _incarnation(incarnation)]

    def local_of(self, incarnation: TopicIdPartition) -> list[NamedPartition]:
        """Return the partitions of one incarnation of a topic that are local."""
        return [self.local[one] for one in self.of(incarnation) if one in self.local]

    def problem_of(self, incarnation: TopicIdPartition) -> str | None:
        """Return how many of its partitions are left out, and why the first one is."""
        of_incarnation = self.of(incarnation)
        left_out = [one for one in of_incarnation if one in self.problems]
        if not left_out:
            return None
        return f"{len(left_out)} of {len(of_incarnation)} partitions are left out: {self.problems[left_out[0]]}"


def known_topics(context: RemoteLogContext, unreachable: list[str] | None = None) -> KnownTopics:
    """Return what the log directories and the metadata have; reads names only, no log.

    With `unreachable`, a cluster that does not answer is added there, and only topics of the remote log are known: what
    forbids or ends something must work during an outage.
    """
    names, is_seen = [], True
    try:
        names = list(context.source.names())
    except ClusterUnreachableError as error:
        if unreachable is None:
            raise
        unreachable.append(str(error))
        is_seen = False
    shown = ShownTopics(shows_all=not context.source.shows_segments)
    for one in names:
        shown.add(one)
    remote = beside_topic(context.store).list_partitions()
    absent = shown.absent(remote) if is_seen and CLUSTER.is_named(context.settings) else []
    local = {one.topic_id_partition: one for one in names if isinstance(one, NamedPartition) and not one.is_internal}
    return KnownTopics(
        sorted({*local, *remote}),
        local,
        {partition: one.problem for partition, one in local.items() if one.problem is not None},
        [one for one in names if isinstance(one, UnreadablePartition) and not one.is_internal],
        {_incarnation(each.first): each for each in absent},
    )


def is_pattern(named: str) -> bool:
    """Return whether `named` is a regular expression: it has a character that no topic name may have."""
    return _A_NAME.fullmatch(named) is None


def clusters_here(context: RemoteLogContext, found: KnownTopics) -> set[str]:
    """Return the clusters of the local logs, also of a running one that shows no topic yet; empty if none is known."""
    if found.local:
        return {one.cluster_id for one in found.local}
    if not CLUSTER.is_named(context.settings):
        return set()
    from tiered_storage.kafka_wire.cluster import ClusterClient

    with ClusterClient.by_properties(context.source.access) as client:
        cluster_id = client.metadata(()).cluster_id or context.settings.cluster_id
    return set() if cluster_id is None else {cluster_id}


def why_unknown(context: RemoteLogContext, found: KnownTopics, named: str) -> str:
    """Return why no known partition matches `named`, a topic's name or a regular expression."""
    settings, place = context.settings, local_place(context.settings)
    hidden = why_hidden(settings) if is_pattern(named) else why_hidden(settings, named)
    near = near_names(named, (one.topic for one in found.partitions))
    shown = (
        f"{described_near(near)}: give the topic's exact name"
        if near
        else f"{hidden}'tiered-storage topics list' shows the known topics"
    )
    if is_pattern(named):
        return f"no topic in {place} or in the remote log matches the regular expression {named}; {shown}"
    for one in found.damaged:
        if one.topic == named:
            what = "" if CLUSTER.is_named(settings) else ", since its id is unknown"
            return f"topic {named} cannot be changed{what}: {one.reason}"
    return f"topic {named} is neither in {place} nor in the remote log; {shown}"


def notes_on_names(names: Collection[str], found: KnownTopics) -> list[str]:
    """Return a note on each of `names` that is nearly the name of another topic."""
    return [
        f"topic {name}: {described_near([each for each in group if each != name])}: check that the right one is meant"
        for group in nearly_same(one.topic for one in found.partitions)
        for name in group
        if name in names
    ]


def _incarnation(partition: TopicIdPartition) -> tuple[str, str]:
    return partition.cluster_id, partition.topic_id


def topic_row(context: RemoteLogContext, incarnation: TopicIdPartition, found: KnownTopics) -> tuple[object, ...]:
    """Return the row of _COLUMNS that shows an incarnation of a topic; what is wrong with it is the last column."""
    topic, local = context.decided_topic(incarnation), found.local_of(incarnation)
    named = local[0] if local else None
    try:
        policy = decide_partition(incarnation, named, context.topics, context.settings)
    except TieredStorageError as error:
        return (*_state_of(topic, incarnation, found), *[None] * 9, str(error))
    resolved, configs = policy.settings, None if named is None else named.configs
    limits = (
        resolved.retention_ms, resolved.retention_bytes, resolved.local_retention_ms, resolved.local_retention_bytes,
        resolved.remote_copy_lag_ms, resolved.remote_copy_lag_bytes,
    )  # fmt: skip
    rolls = (
        (None, None)
        if configs is None
        else tuple(
            getattr(resolved, field) if getattr(resolved, field) >= 0 else getattr(configs, field) for field in SEGMENTS
        )
    )
    set_by = origins(policy.topic, context.settings, configs, policy.held)
    problem = policy.left_alone or found.problem_of(incarnation)
    if problem is None and (absent := found.absent.get(_incarnation(incarnation))):
        grace_ms = context.settings.remote_log_replaced_topic_grace_ms
        problem = absent.finding(policy.topic, grace_ms).message
    return (*_state_of(policy.topic, incarnation, found), *limits, *rolls, set_by, problem)


def _state_of(topic: Topic, incarnation: TopicIdPartition, found: KnownTopics) -> tuple[object, ...]:
    paused = topic.properties.get(COPY_DISABLE) == "true"
    rights = (topic.local_deletion_allowed, topic.remote_deletion_allowed)
    partitions = len(found.of(incarnation))
    return (incarnation.topic, incarnation.topic_id, partitions, topic.remote_storage_enable, paused, *rights)


def is_withheld(context: RemoteLogContext, incarnation: TopicIdPartition) -> bool:
    """Return whether the settings file allows deletion, but not for this incarnation; see withholds_rights."""
    return withholds_rights(
        incarnation.cluster_id, incarnation.topic_id, incarnation.topic, context.topics, context.settings
    )


def show_topics(title: str, rows: Sequence[tuple[object, ...]], output: Output, **extra: object) -> None:
    """Show rows of _COLUMNS; for people, in fewer columns."""
    if output.as_json:
        output.rows(title, _COLUMNS, rows, **extra)
        return
    output.rows(title, _SHORT_COLUMNS, [_in_short(dict(zip(_COLUMNS, row, strict=True))) for row in rows])


def _in_short(row: Mapping[str, Any]) -> tuple[object, ...]:
    tiers = [tier.value for tier in Tier if row[f"{tier.value} deletion allowed"]]
    copied = ("paused" if row["paused"] else "yes") if row["remote.storage.enable"] else "no"
    kept = (
        _limit(row["local.retention.ms"], row["local.retention.bytes"]),
        _limit(row["retention.ms"], row["retention.bytes"]),
    )
    deleted = "both tiers" if len(tiers) == len(Tier) else "".join(tiers) or "no"
    set_by = None if row["segment.bytes"] is None else _by_origin(row["origins"])
    return row["topic"], row["partitions"], copied, deleted, *kept, row["topic id"], set_by, row["problem"]


def _by_origin(origins: Mapping[str, str]) -> str:
    """Return who set which limits, for people."""
    whose: dict[str, list[str]] = {}
    for name, origin in origins.items():
        whose.setdefault(origin, []).append(name)
    return "; ".join(f"{origin}: {', '.join(names)}" for origin, names in whose.items())


def _limit(ms: int | None, size: int | None) -> str | None:
    """Format the limits of a retention for people; None if unknown."""
    if ms is None or size is None:
        return None
    limits = [show_duration(ms)] if ms >= 0 else []
    return " or ".join([*limits, *([show_size(size)] if size >= 0 else [])]) or "no limit"
