"""What Remote Log may do with a topic: the recorded decision, or the seed in the settings file.

A right to delete that only the file gives holds until the first decision on the topic's name. After that, another
incarnation of the name (with its own topic id) begins without rights: neither a recreated topic nor rebuilt metadata
bring back what was forbidden.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tiered_storage.errors import UnsupportedTopicError
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic, Topics
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.source.segment_source import NamedPartition, PartitionLog
from tiered_storage.settings.settings import Settings
from tiered_storage.settings.topics import TopicSettings


def effective(topic: Topic | None, settings: Settings) -> TopicSettings:
    """Return the effective settings of `topic`: its properties, then the defaults; -2 is resolved. None: the defaults.

    Whether it is tiered and what may be deleted comes only from decisions, never from a property.
    Raises ConfigurationError if its properties are invalid, alone or with the defaults.
    """
    if topic is None:
        return settings.topic_defaults().over(settings.topic_defaults(), "without settings of its own")
    resolved = TopicSettings.parse(topic.name, topic.properties).over(settings.topic_defaults(), topic.name)
    decided = {
        "remote_storage_enable": topic.remote_storage_enable,
        "local_deletion_allowed": topic.local_deletion_allowed,
        "remote_deletion_allowed": topic.remote_deletion_allowed,
    }
    return resolved.model_copy(update=decided)


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
    """A topic with everything resolved: its row (or seed) and its effective settings."""

    topic: Topic
    settings: TopicSettings

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

    Raises UnsupportedTopicError if tiering was asked for and the topic is compacted, and ConfigurationError if
    its settings contradict each other.
    """
    return decide_partition(log.topic_id_partition, log, topics, settings)


def decide_partition(
    partition: TopicIdPartition, log: PartitionLog | None, topics: Topics, settings: Settings
) -> TieringPolicy:
    """Return the decision on the topic of `partition`, whose local log is `log` (None: the source does not have it).

    Raises as `decide`; without a local log only what the settings show.
    """
    topic = decided_topic(partition.cluster_id, partition.topic_id, partition.topic, topics, settings)
    return _checked(TieringPolicy(topic, effective(topic, settings)), log)


def _checked(decision: TieringPolicy, log: PartitionLog | NamedPartition | None) -> TieringPolicy:
    topic = decision.topic
    if not topic.remote_storage_enable:
        return decision
    refuse_compacted(topic.name, decision.settings)
    if log is not None:
        refuse_log(log)
    return decision


def refuse_log(log: PartitionLog | NamedPartition) -> None:
    """Raise UnsupportedTopicError if the local log shows that its topic cannot be tiered.

    A NamedPartition shows only whether Kafka compacts the topic.
    """
    partition = log.topic_id_partition
    if log.is_compacted:
        raise UnsupportedTopicError(
            f"topic {partition.topic}: brokers compact {partition} (by cleanup.policy, or by the "
            "cleaner-offset-checkpoint of its log directory): a compacted topic cannot be tiered. If it is enabled: "
            f"{_how_to_leave(partition.topic)}"
        )
    if isinstance(log, PartitionLog) and log.tiered_by_kafka is not None:
        remedy = f". If Kafka never tiered it, {_how_to_correct(log)}" if log.segments else ""
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
        """Use the recorded decisions `decided`; the settings file decides on all other topics."""
        self._settings = settings
        self._decided = {(topic.cluster_id, topic.topic_id): topic for topic in decided}
        self._names = {topic.name for topic in self._decided.values()}
        self._resolved: dict[tuple[str, str], TieringPolicy] = {}

    def of(self, log: PartitionLog | NamedPartition) -> TieringPolicy:
        """Return the decision on the topic of `log`; raises as `decide`."""
        partition = log.topic_id_partition
        key = partition.cluster_id, partition.topic_id
        if key not in self._resolved:
            topic = self._decided.get(key)
            if topic is None:
                start = seed(*key, partition.topic, self._settings)
                topic = _without_rights(start) if partition.topic in self._names else start
            self._resolved[key] = TieringPolicy(topic, effective(topic, self._settings))
        return _checked(self._resolved[key], log)

    def is_wanted(self, topic_name: str) -> bool:
        """Return whether any topic of that name is tiered; see `is_wanted`."""
        incarnations = [topic for topic in self._decided.values() if topic.name == topic_name]
        return any(each.remote_storage_enable for each in incarnations or [seed("", "", topic_name, self._settings)])


def is_wanted(topic_name: str, topics: Topics, settings: Settings) -> bool:
    """Return whether any topic of that name is tiered, for a partition of which only the name is known."""
    incarnations = [topic for topic in topics.list() if topic.name == topic_name]
    return any(each.remote_storage_enable for each in incarnations or [seed("", "", topic_name, settings)])


def decided_topic(cluster_id: str, topic_id: str, name: str, topics: Topics, settings: Settings) -> Topic:
    """Return the topic's row, or the seed for its name; no rights to delete if another incarnation was decided on."""
    decided = topics.get(cluster_id, topic_id)
    if decided is not None:
        return decided
    start = seed(cluster_id, topic_id, name, settings)
    return _without_rights(start) if _gives_rights(start) and topics.named(name) else start


def withholds_rights(cluster_id: str, topic_id: str, name: str, topics: Topics, settings: Settings) -> bool:
    """Return whether the settings file gives a right that does not hold, since another incarnation was decided on."""
    start = seed(cluster_id, topic_id, name, settings)
    return topics.get(cluster_id, topic_id) is None and _gives_rights(start) and bool(topics.named(name))


def withhold_seeded_rights(topics: Topics, settings: Settings) -> None:
    """Withhold the rights to delete that the settings file gives by name, also from topics nobody has seen yet.

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
