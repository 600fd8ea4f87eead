"""Where the segments' metadata are, in SQL or in a topic of Kafka: show it, verify it, and move between both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiered_storage.clock import Clock
from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.context import open_metadata
from tiered_storage.remote_log.metadata.metadata_store import MetadataStore
from tiered_storage.remote_log.metadata.topic.cache import SkippedRecord
from tiered_storage.remote_log.metadata.topic.moving import (
    MovedSegments,
    move_into_database,
    move_into_topic,
    verify_topic,
)
from tiered_storage.remote_log.metadata.topic.store import topic_store
from tiered_storage.settings.own_managers import TOPIC_METADATA_MANAGER
from tiered_storage.settings.settings import Settings

MOST_SKIPPED_SHOWN = 100
NO_TOPIC = "a metadata topic that the first use of segments creates"


@dataclass(frozen=True, slots=True)
class MetadataPartition:
    """A partition of the metadata topic: its first offset, its end, how far this host consumed it (both exclusive), and
    how many of its records changed nothing.
    """

    partition: int
    start: int
    end: int
    consumed: int
    skipped: int


@dataclass(frozen=True, slots=True)
class MetadataStatus:
    """The place of the segments, and of a metadata topic its partitions and the first skipped records."""

    where: str
    partitions: Sequence[MetadataPartition] = ()
    skipped: Sequence[SkippedRecord] = ()


@dataclass(frozen=True, slots=True)
class VerifiedMetadata:
    """The place of the segments, how many there are, deleted ones too, and how many records changed nothing."""

    where: str
    segments: int
    skipped: int


def metadata_status(store: MetadataStore) -> MetadataStatus:
    """Return where the segments of `store` are. Reads the ends of a metadata topic, and none of its records.

    Creates no topic, nor does `verified`.
    """
    beside_topic = topic_store(store)
    if beside_topic is None:
        return MetadataStatus(store.generation.where)
    if beside_topic.lacks_its_topic:
        return MetadataStatus(NO_TOPIC)
    state = beside_topic.state
    topic, cache = state.topic, state.cache
    starts, ends = (ask(topic, range(topic.partitions)) for ask in (state.log.starts, state.log.ends))
    consumed, skipped = cache.consumed(), cache.skipped_counts()
    found = [
        MetadataPartition(
            number,
            starts[number],
            end,
            consumed.get(number, 0),
            skipped.get(number, 0),
        )
        for number, end in sorted(ends.items())
    ]
    return MetadataStatus(f"metadata topic {topic}", found, cache.skipped(MOST_SKIPPED_SHOWN))


def verified(store: MetadataStore) -> VerifiedMetadata:
    """Read a metadata topic once more and compare; see verify_topic. Otherwise only count the segments."""
    if (beside_topic := topic_store(store)) is not None:
        if beside_topic.lacks_its_topic:
            return VerifiedMetadata(NO_TOPIC, 0, 0)
        found = verify_topic(beside_topic)
        return VerifiedMetadata(f"metadata topic {found.topic}", found.segments, found.skipped)
    count = sum(each.count for each in store.segments.segment_totals())
    return VerifiedMetadata(store.generation.where, count, 0)


def move_segments(settings: Settings, clock: Clock, *, into_topic: bool) -> MovedSegments:
    """Move the segments into the metadata topic of the settings, or back into the database; see topic/moving.py.

    Raises ConfigurationError unless the settings name a metadata topic.
    """
    if not settings.has_metadata_topic:
        raise ConfigurationError(
            f"set remote.log.metadata.manager.class.name to {TOPIC_METADATA_MANAGER} and the options of the topic "
            "first (docs/metadata.md); take them out again after the segments are back in the database"
        )
    with open_metadata(settings, clock) as store:
        beside_topic = topic_store(store)
        if beside_topic is None:
            raise ConfigurationError("the metadata have no topic: correct remote.log.metadata.manager.class.name")
        return move_into_topic(beside_topic, clock) if into_topic else move_into_database(beside_topic, clock)
