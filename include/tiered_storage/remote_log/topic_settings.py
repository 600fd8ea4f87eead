"""What holds for one topic: its own settings over the defaults, as a person decided or as the file seeds it.

What was decided lives in the metadata store (`Topic`); the settings file says only where a topic starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiered_storage.errors import UnsupportedTopicError
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.settings.topic_properties import TopicSettings

if TYPE_CHECKING:
    from tiered_storage.settings.settings import Settings

__all__ = ["TopicSettings", "effective", "refuse_compacted", "seed"]


def effective(topic: Topic | None, settings: Settings) -> TopicSettings:
    """Return what holds for `topic`: its properties, then the defaults; -2 is resolved. None: the defaults alone.

    Whether it is tiered and what may be deleted of it is only ever what was decided for it, never a property.
    Raises ConfigurationError where its properties cannot be meant, alone or with the defaults.
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
    """Return the decision that a topic starts with: what the file says of its name, or everything off."""
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
    """Raise UnsupportedTopicError where Kafka compacts the topic (KIP-405: no remote storage for those)."""
    if topic_settings.is_compacted:
        raise UnsupportedTopicError(
            f"topic {topic_name} has cleanup.policy={topic_settings.cleanup_policy}: compaction rewrites closed "
            "segments, so what was copied would not be what the topic holds; only cleanup.policy=delete can be tiered"
        )
