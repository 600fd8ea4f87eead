"""The limits of topics that their brokers set: which hold, who set them, and what a run records and reports of lowered
ones.

Runs that delete note what they see, so that a lower limit counts after remote.log.lowered.limit.grace.ms; copies note
only what a topic begins with (metadata/held_limits.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING

from tiered_storage.clock import as_date
from tiered_storage.errors import SourceClusterError, TieredStorageError
from tiered_storage.remote_log.metadata.held_limits import HELD_LIMITS, NOTHING_HELD, HeldLimits, is_held, row_id
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.model import Finding, TopicIdPartition
from tiered_storage.remote_log.source.opening import CLUSTER
from tiered_storage.remote_log.source.partition_log import NamedPartition
from tiered_storage.remote_log.tiering_policy import LIMITS, SEGMENTS, Decisions, TieringPolicy, limits_of_brokers
from tiered_storage.settings.settings import Settings
from tiered_storage.settings.topics import TopicSettings

if TYPE_CHECKING:
    from tiered_storage.kafka_wire.topic_configs import TopicConfigs
    from tiered_storage.remote_log.context import RemoteLogContext


class Origin(StrEnum):
    """Who set a topic's limit."""

    TOPIC = "ours, for the topic"
    TOPIC_BY_FETCH = "ours, for what Fetch copies of the topic"
    ALL_TOPICS = "ours, for all topics"
    BROKERS_TOPIC = "the topic's, at the brokers"
    BROKERS_DEFAULT = "the brokers' default"
    HELD = "the brokers', before they lowered it"
    UNKNOWN = "unknown: the brokers do not show the topic"
    BUILT_IN = "Kafka's default"


def origins(
    topic: Topic, settings: Settings, configs: TopicConfigs | None, held: HeldLimits = NOTHING_HELD
) -> dict[str, Origin]:
    """Return who set each limit of `topic`, by Kafka's names; `configs` and `held` as for `effective`.

    Raises as `effective`.
    """
    given = TopicSettings.parse(topic.name, topic.properties).model_fields_set
    of_brokers = limits_of_brokers(settings, configs, held)
    found = {}
    for field, name in LIMITS.items():
        if field in given:
            found[name] = Origin.TOPIC
        elif f"log_{field}" in settings.model_fields_set:
            found[name] = Origin.ALL_TOPICS
        elif field not in of_brokers:
            found[name] = Origin.BUILT_IN
        elif configs is None:
            found[name] = Origin.UNKNOWN
        else:
            found[name] = Origin.HELD if is_held(name, settings, configs, held) else _of_brokers(name, configs)
    if configs is not None:
        # Closed segments of the leader's files are copied as its broker rolled them.
        ours = Origin.TOPIC_BY_FETCH if settings.broker_log_dirs else Origin.TOPIC
        for field, name in SEGMENTS.items():
            found[name] = ours if field in given else _of_brokers(name, configs)
    return found


def _of_brokers(name: str, configs: TopicConfigs) -> Origin:
    return Origin.BROKERS_TOPIC if {name, f"internal.{name}"} & configs.own else Origin.BROKERS_DEFAULT


def lowered_limits(policy: TieringPolicy, settings: Settings, configs: TopicConfigs | None) -> list[str]:
    """Return the limits that the brokers lowered and whose earlier values still decide deletions, by Kafka's names.

    Limits of a tier in which nothing of the topic may be deleted are left out.
    """
    if configs is None:
        return []
    topic, held = policy.topic, policy.held
    allowed = {"local.": topic.local_deletion_allowed, "": topic.remote_deletion_allowed}
    return [
        name
        for name, origin in origins(topic, settings, configs, held).items()
        if origin is Origin.HELD and allowed["local." if name.startswith("local.") else ""]
    ]


def lowered_findings(policy: TieringPolicy, settings: Settings, configs: TopicConfigs | None) -> Iterator[Finding]:
    """Yield a notice for the user about each of the topic's `lowered_limits`."""
    topic, grace_ms = policy.topic, settings.remote_log_lowered_limit_grace_ms
    for name in lowered_limits(policy, settings, configs):
        value = 0 if configs is None else configs.limits[name]
        known = policy.held.lowered.get(name)
        begins = f"{grace_ms} ms after the next run that deletes"
        if known is not None:
            begins = f"after {as_date(known.since + grace_ms)}"
        yield Finding(
            topic.name,
            f"its brokers lowered {name} from {policy.held.counted[name]} to {value}: deletions follow the lower one "
            f"{begins} (remote.log.lowered.limit.grace.ms). If it is a mistake, restore it at the brokers; if it is "
            f"meant, 'tiered-storage topics set {topic.name} {name}={value}' lets it count now",
        )


def note_limits(context: RemoteLogContext, ensure_clock_agrees: Callable[[], None]) -> None:
    """Note the limits that brokers show of the topics of which something may be deleted.

    `ensure_clock_agrees` raises for a wrong clock, and is called before a grace time begins or ends. Does nothing for
    log directories, and leaves a cluster that does not answer to the next run. Raises OutdatedMetadataError.
    """
    if CLUSTER.is_named(context.settings):
        note_shown(context, _shown_limits(context), ensure_clock_agrees)


def note_shown(
    context: RemoteLogContext,
    shown: Mapping[tuple[str, str], dict[str, int]],
    ensure_clock_agrees: Callable[[], None] = lambda: None,
) -> None:
    """Note the limits that brokers were seen to show of topics, by cluster and topic id; otherwise as note_limits."""
    context.guard.ensure_may_decide()
    rows = {(row.cluster_id, row.topic_id): row for row in context.store.topics.named(HELD_LIMITS)}
    changed = None
    for ids, limits in shown.items():
        cluster_id, topic_id = ids
        known = HeldLimits.of(rows.get((cluster_id, row_id(topic_id))))

        def noted(row: Topic | None, limits: dict[str, int] = limits, ids: tuple[str, str] = ids) -> Topic:
            grace_ms = context.settings.remote_log_lowered_limit_grace_ms
            return HeldLimits.of(row).seen(limits, context.clock(), grace_ms).row(*ids)

        if known.row(*ids) == noted(rows.get((cluster_id, row_id(topic_id)))):
            continue
        if any(known.holds(name, value) for name, value in limits.items()):
            ensure_clock_agrees()
        changed = context.store.topics.change(cluster_id, row_id(topic_id), noted)
    if changed is not None:
        context.guard.publish_pending("limits of topics changed at the brokers")


def note_first_limits(context: RemoteLogContext, partitions: Iterable[TopicIdPartition]) -> None:
    """Note the limits of the topics of `partitions` of which nothing was noted yet. Raises as above."""
    if not CLUSTER.is_named(context.settings):
        return
    noted = {(row.cluster_id, row.topic_id) for row in context.store.topics.named(HELD_LIMITS)}
    begun = set()
    for ids, each in {(each.cluster_id, each.topic_id): each for each in partitions}.items():
        if (each.cluster_id, row_id(each.topic_id)) in noted:
            continue
        topic = context.decided_topic(each)
        if topic.local_deletion_allowed or topic.remote_deletion_allowed:
            begun.add(ids)
    if begun:
        note_shown(context, {ids: limits for ids, limits in _shown_limits(context).items() if ids in begun})


def _shown_limits(context: RemoteLogContext) -> dict[tuple[str, str], dict[str, int]]:
    """Return the limits of topics of which something may be deleted, by cluster and topic id."""
    decisions = Decisions(context.topics.list(), context.settings)
    found: dict[tuple[str, str], dict[str, int]] = {}
    with suppress(SourceClusterError):
        for named in context.source.names():
            if not isinstance(named, NamedPartition) or named.configs is None or named.is_internal:
                continue
            partition = named.topic_id_partition
            ids = partition.cluster_id, partition.topic_id
            # Of a topic that cannot be tiered nothing expires.
            with suppress(TieredStorageError):
                topic = decisions.of(named).topic
                if topic.local_deletion_allowed or topic.remote_deletion_allowed:
                    found.setdefault(ids, dict(named.configs.limits))
    return found
