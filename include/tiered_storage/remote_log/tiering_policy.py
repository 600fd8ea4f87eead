"""What Remote Log may do with a topic: the recorded decision, or the seed in the settings file, or a pattern.

A right to delete that only the file gives holds until the first decision on the topic's name. After that, another
incarnation of the name (with its own topic id) begins without rights: neither a recreated topic nor rebuilt metadata
bring back what was forbidden.

A pattern enables the topics that match it, also those that come later, unless a decision on their name exists. What
cannot be tiered is left alone then, where a topic that was enabled by its name is an error.

A topic's limits are ours if they are set here, for the topic or for all; else those of its brokers. One that brokers
lower counts only after a grace time (metadata/held_limits.py). Settings over log directories take no default of ours
for a topic whose brokers' limits a run beside its cluster has noted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from tiered_storage.errors import UnsupportedTopicError
from tiered_storage.remote_log.metadata.held_limits import HELD_LIMITS, NOTHING_HELD, HeldLimits, held_limits, row_id
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic, Topics
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.selection import Selection
from tiered_storage.remote_log.source.opening import CLUSTER
from tiered_storage.remote_log.source.partition_log import NamedPartition, PartitionLog
from tiered_storage.settings.properties.types import AS_THE_TOTAL, UNLIMITED
from tiered_storage.settings.settings import Settings
from tiered_storage.settings.topics import TopicSettings

if TYPE_CHECKING:
    from tiered_storage.kafka_wire.topic_configs import TopicConfigs

PATTERNS = "*"
"""The name of the recorded patterns, which no topic has; the pattern itself is in place of the topic id."""
NO_TOPICS = frozenset({PATTERNS, HELD_LIMITS})
"""The names of rows that are not decisions on topics, but kept among them."""

LIMITS = {
    "retention_ms": "retention.ms",
    "retention_bytes": "retention.bytes",
    "local_retention_ms": "local.retention.ms",
    "local_retention_bytes": "local.retention.bytes",
    "remote_copy_lag_ms": "remote.copy.lag.ms",
    "remote_copy_lag_bytes": "remote.copy.lag.bytes",
}
"""The limits of a topic that brokers have too: our field, and Kafka's name."""
SEGMENTS = {"segment_bytes": "segment.bytes", "segment_ms": "segment.ms"}
"""How a copy from a running cluster rolls segments, likewise."""


def effective(
    topic: Topic | None, settings: Settings, configs: TopicConfigs | None = None, held: HeldLimits = NOTHING_HELD
) -> TopicSettings:
    """Return the effective settings of `topic`: its properties, then the defaults; -2 is resolved. None: the defaults.

    `configs` are those of its brokers, where they are known, and `held` what the metadata keep of their limits. If the
    brokers of a cluster do not show the topic, or the settings name no cluster and the metadata keep limits of brokers,
    a limit that is not set here is no limit: nothing may be deleted for a limit that is not set. Whether it is tiered
    and what may be deleted comes only from decisions, never from a property. Raises ConfigurationError if its
    properties are invalid, alone or with the defaults.
    """
    if topic is None:
        return settings.topic_defaults().over(settings.topic_defaults(), "without settings of its own")
    given = TopicSettings.parse(topic.name, topic.properties)
    of_brokers = limits_of_brokers(settings, configs, held)
    defaults = settings.topic_defaults().model_copy(update=of_brokers)
    resolved = _fitted(given, defaults, of_brokers.keys()).over(defaults, topic.name)
    decided = {
        "remote_storage_enable": topic.remote_storage_enable,
        "local_deletion_allowed": topic.local_deletion_allowed,
        "remote_deletion_allowed": topic.remote_deletion_allowed,
    }
    return resolved.model_copy(update=decided)


def limits_of_brokers(
    settings: Settings, configs: TopicConfigs | None, held: HeldLimits = NOTHING_HELD
) -> dict[str, int]:
    """Return the limits that are the brokers' unless a topic has its own, by our fields."""
    if configs is not None:
        limits = held.counting(configs.limits) if settings.remote_log_lowered_limit_grace_ms else configs.limits
        found = {field: limits[name] for field, name in LIMITS.items() if name in limits}
    elif CLUSTER.is_named(settings) or held.counted:
        found = {"retention_ms": UNLIMITED, "retention_bytes": UNLIMITED}
    else:
        return {}
    return {field: value for field, value in found.items() if f"log_{field}" not in settings.model_fields_set}


def _fitted(given: TopicSettings, defaults: TopicSettings, of_brokers: Iterable[str]) -> TopicSettings:
    """Return `given` with local limits, and lags, cut to the total where one of the two is the brokers'.

    Brokers do not know our limits: what contradicts them must not end the copies of a topic.
    """
    foreign = set(of_brokers) - given.model_fields_set
    fitted: dict[str, int] = {}

    def value(field: str) -> int:
        held = given if field in given.model_fields_set else defaults
        return fitted.get(field, int(getattr(held, field)))

    for unit in ("ms", "bytes"):
        total, local, lag = f"retention_{unit}", f"local_retention_{unit}", f"remote_copy_lag_{unit}"
        if not foreign & {total, local, lag}:
            continue
        if value(total) >= 0 and not 0 <= value(local) <= value(total):
            fitted[local] = AS_THE_TOTAL
        kept = value(total) if value(local) == AS_THE_TOTAL else value(local)
        if 0 <= kept < value(lag):
            fitted[lag] = UNLIMITED
    if not fitted:
        return given
    return given.model_copy(update=fitted)


def seed(cluster_id: str, topic_id: str, name: str, settings: Settings) -> Topic:
    """Return a topic's initial decision: the file's entry for its name, or everything off."""
    given = settings.topics.get(name)
    if given is None:
        return Topic(cluster_id, topic_id, name)
    return Topic(
        cluster_id,
        topic_id,
        name,
        given.remote_storage_enable,
        given.local_deletion_allowed,
        given.remote_deletion_allowed,
        given.properties(),
    )


def recorded_pattern(cluster_id: str, pattern: str, *, is_enabled: bool) -> Topic:
    """Return the row that records that the cluster's topics that match `pattern` are tiered, or no longer."""
    return Topic(cluster_id, pattern, PATTERNS, is_enabled)


def patterns_in_force(topics: Topics) -> list[str]:
    """Return the patterns that enable topics."""
    return sorted({row.topic_id for row in topics.named(PATTERNS) if row.remote_storage_enable})


def refuse_compacted(topic_name: str, topic_settings: TopicSettings) -> None:
    """Raise UnsupportedTopicError if Kafka compacts the topic (KIP-405: no remote storage for those)."""
    if topic_settings.is_compacted:
        raise UnsupportedTopicError(
            f"topic {topic_name} has cleanup.policy={topic_settings.cleanup_policy}: compaction rewrites closed "
            "segments, so the copies would differ from the topic; only cleanup.policy=delete can be tiered. "
            f"If it is enabled: {_how_to_leave(topic_name)}"
        )


def _how_to_leave(topic_name: str) -> str:
    return (
        f"'tiered-storage topics disable {topic_name}' ends its tiering; 'tiered-storage topics forbid-deletion "
        f"{topic_name}' keeps its remote data, since expire also runs for a disabled topic"
    )


@dataclass(frozen=True, slots=True)
class TieringPolicy:
    """A topic with everything resolved: its row (or seed) and its effective settings.

    `left_alone` says why a topic that matches a pattern is not tiered all the same; `held` has the earlier limits of
    its brokers that still count.
    """

    topic: Topic
    settings: TopicSettings
    left_alone: str | None = None
    held: HeldLimits = NOTHING_HELD

    @property
    def copies(self) -> bool:
        """Whether new segments of it are copied."""
        return self.topic.remote_storage_enable and not self.settings.remote_log_copy_disable

    @property
    def trims(self) -> bool:
        """Whether local segments of it may be deleted once they are remote."""
        return self.topic.remote_storage_enable and self.topic.local_deletion_allowed


def decide(log: PartitionLog, topics: Topics, settings: Settings) -> TieringPolicy:
    """Return the decision on the topic of `log`.

    Raises UnsupportedTopicError if tiering was requested and the topic is compacted, and ConfigurationError if
    its settings contradict each other.
    """
    return decide_partition(log.topic_id_partition, log, topics, settings)


def decide_partition(
    partition: TopicIdPartition, log: PartitionLog | NamedPartition | None, topics: Topics, settings: Settings
) -> TieringPolicy:
    """Return the decision on the topic of `partition`, whose local log is `log` (None: the source does not have it).

    Raises as `decide`; without a local log only what the settings show.
    """
    start = _decided(partition.cluster_id, partition.topic_id, partition.topic, topics, settings)
    configs = None if log is None else log.configs
    held = held_limits(partition.cluster_id, partition.topic_id, topics)
    return _checked(start, effective(start.topic, settings, configs, held), log, held)


@dataclass(frozen=True, slots=True)
class _Start:
    """A topic's row, or how it starts, and whether only a pattern enables it."""

    topic: Topic
    is_by_pattern: bool = False


def _checked(
    start: _Start, resolved: TopicSettings, log: PartitionLog | NamedPartition | None, held: HeldLimits
) -> TieringPolicy:
    topic = start.topic
    decision = TieringPolicy(topic, resolved, held=held)
    if not topic.remote_storage_enable:
        return decision
    try:
        refuse_compacted(topic.name, decision.settings)
        if log is not None:
            refuse_log(log)
    except UnsupportedTopicError as error:
        if not start.is_by_pattern:
            raise
        off = decision.settings.model_copy(update={"remote_storage_enable": False})
        return TieringPolicy(replace(topic, remote_storage_enable=False), off, str(error))
    return decision


def refuse_log(log: PartitionLog | NamedPartition) -> None:
    """Raise UnsupportedTopicError if the local log shows that its topic cannot be tiered.

    A NamedPartition of a log directory shows only whether Kafka compacts the topic.
    """
    partition = log.topic_id_partition
    if log.is_compacted:
        raise UnsupportedTopicError(
            f"topic {partition.topic}: brokers compact {partition} (by cleanup.policy, or by the "
            "cleaner-offset-checkpoint of its log directory): a compacted topic cannot be tiered. If it is enabled: "
            f"{_how_to_leave(partition.topic)}"
        )
    if log.tiered_by_kafka is not None:
        remedy = ""
        if isinstance(log, PartitionLog) and log.segments:
            remedy = f". If Kafka never tiered it, {_how_to_correct(log)}"
        raise UnsupportedTopicError(
            f"topic {partition.topic}: {log.tiered_by_kafka}. Remote Log cannot read Kafka's remote tier, so readers "
            "would lose the records there. Leave the topic to Kafka, or write its records into a topic that Kafka does "
            f"not tier, and enable that one. If it is enabled: {_how_to_leave(partition.topic)}{remedy}"
        )


def _how_to_correct(log: PartitionLog) -> str:
    partition = log.topic_id_partition
    return (
        "correct the checkpoint: start the broker there and stop it cleanly, copy the broker's file into the "
        f"directory, or add the entry '{partition.topic} {partition.partition} {log.segments[0].base_offset}' to it "
        "(lines: a 0, the count of entries, each entry)"
    )


class Decisions:
    """The decisions on all topics at one moment, for a pass over thousands of partitions."""

    def __init__(self, decided: Iterable[Topic], settings: Settings) -> None:
        """Use the recorded decisions `decided`; the settings file decides on all other topics, and patterns."""
        self._settings = settings
        rows = list(decided)
        self._patterns = [row for row in rows if row.name == PATTERNS]
        self._held = {(row.cluster_id, row.topic_id): row for row in rows if row.name == HELD_LIMITS}
        self._decided = {(row.cluster_id, row.topic_id): row for row in rows if row.name not in NO_TOPICS}
        self._named: dict[str, list[Topic]] = {}
        for topic in self._decided.values():
            self._named.setdefault(topic.name, []).append(topic)
        self._resolved: dict[tuple[str, str], tuple[_Start, TopicSettings, HeldLimits]] = {}

    def of(self, log: PartitionLog | NamedPartition) -> TieringPolicy:
        """Return the decision on the topic of `log`; raises as `decide`."""
        partition = log.topic_id_partition
        key = partition.cluster_id, partition.topic_id
        if key not in self._resolved:
            start = self._start(partition)
            held = HeldLimits.of(self._held.get((partition.cluster_id, row_id(partition.topic_id))))
            self._resolved[key] = start, effective(start.topic, self._settings, log.configs, held), held
        start, resolved, held = self._resolved[key]
        return _checked(start, resolved, log, held)

    def topic(self, partition: TopicIdPartition) -> Topic:
        """Return the decision on the partition's topic, or how it starts; see `decided_topic`."""
        return self._start(partition).topic

    def is_wanted(self, topic_name: str) -> bool:
        """Return whether any topic of that name is tiered; see `is_wanted`."""
        return _is_wanted(topic_name, self._named.get(topic_name, []), self._patterns, self._settings)

    def _start(self, partition: TopicIdPartition) -> _Start:
        key = partition.cluster_id, partition.topic_id
        if (topic := self._decided.get(key)) is not None:
            return _Start(topic)
        others = self._named.get(partition.topic, [])
        return _started(*key, partition.topic, others, self._patterns, self._settings)


def is_wanted(topic_name: str, topics: Topics, settings: Settings) -> bool:
    """Return whether any topic of that name is tiered, for a partition of which only the name is known."""
    return _is_wanted(topic_name, topics.named(topic_name), topics.named(PATTERNS), settings)


def _is_wanted(name: str, incarnations: Sequence[Topic], patterns: Sequence[Topic], settings: Settings) -> bool:
    clusters = {row.cluster_id for row in patterns} or {""}
    starts = [_started(cluster, "", name, incarnations, patterns, settings).topic for cluster in clusters]
    return any(each.remote_storage_enable for each in incarnations or starts)


def decided_topic(cluster_id: str, topic_id: str, name: str, topics: Topics, settings: Settings) -> Topic:
    """Return the topic's row, or how it starts: by the seed for its name, or by a pattern.

    It has no rights to delete if another incarnation was decided on.
    """
    return _decided(cluster_id, topic_id, name, topics, settings).topic


def _decided(cluster_id: str, topic_id: str, name: str, topics: Topics, settings: Settings) -> _Start:
    decided = topics.get(cluster_id, topic_id)
    if decided is not None:
        return _Start(decided)
    patterns = topics.named(PATTERNS)
    others = topics.named(name) if patterns or _gives_rights(seed(cluster_id, topic_id, name, settings)) else ()
    return _started(cluster_id, topic_id, name, others, patterns, settings)


def _started(
    cluster_id: str,
    topic_id: str,
    name: str,
    others: Sequence[Topic],
    patterns: Iterable[Topic],
    settings: Settings,
) -> _Start:
    """Return how a topic without a row starts; `others` are the rows of other incarnations of its name."""
    start = seed(cluster_id, topic_id, name, settings)
    if others:
        start = _without_rights(start)
    if start.remote_storage_enable or _is_kept_off(name, others, settings):
        return _Start(start)
    is_meant = any(
        row.remote_storage_enable and row.cluster_id == cluster_id and _compiled(row.topic_id).matches(name)
        for row in patterns
    )
    return _Start(replace(start, remote_storage_enable=True), True) if is_meant else _Start(start)


def _is_kept_off(name: str, others: Sequence[Topic], settings: Settings) -> bool:
    """Return whether a decision on the topic's name excludes it from tiering."""
    if others:
        return not any(each.remote_storage_enable for each in others)
    given = settings.topics.get(name)
    return given is not None and "remote_storage_enable" in given.model_fields_set


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> Selection:
    return Selection(pattern)


def withholds_rights(cluster_id: str, topic_id: str, name: str, topics: Topics, settings: Settings) -> bool:
    """Return whether the settings file gives a right that does not hold, since another incarnation was decided on."""
    start = seed(cluster_id, topic_id, name, settings)
    return topics.get(cluster_id, topic_id) is None and _gives_rights(start) and bool(topics.named(name))


def withhold_seeded_rights(topics: Topics, settings: Settings) -> None:
    """Withhold the rights to delete that the settings file gives by name, also from topics that were never seen.

    This records a placeholder incarnation of each such name; its ids are invalid on purpose.
    """
    for name in settings.topics:
        start = seed("", name, name, settings)
        if _gives_rights(start) and not topics.named(name):
            topics.put(_without_rights(start))


def _gives_rights(topic: Topic) -> bool:
    return topic.local_deletion_allowed or topic.remote_deletion_allowed


def _without_rights(topic: Topic) -> Topic:
    return replace(topic, local_deletion_allowed=False, remote_deletion_allowed=False)
