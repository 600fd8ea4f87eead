"""Which limits of a running cluster's topic count for our deletions while its brokers have lower ones.

A person may shorten a topic's retention at the brokers by mistake, and records that expire by it are gone for good. So
a lower limit counts only after a grace time, from the first run on that sees it; a higher one counts at once.

A topic's row is kept beside the decisions on topics, under a name that no topic has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from tiered_storage.errors import MetadataCorruptError
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic, Topics
from tiered_storage.settings.settings import Settings

if TYPE_CHECKING:
    from tiered_storage.kafka_wire.topic_configs import TopicConfigs

HELD_LIMITS: Final = "*limits"
"""The name of the rows, which no topic has; the topic id is followed by this."""
WATCHED: Final = ("retention.ms", "retention.bytes", "local.retention.ms", "local.retention.bytes")
_TO: Final = ".lowered.to"
_SINCE: Final = ".lowered.since.ms"


@dataclass(frozen=True, slots=True)
class Lowered:
    """A limit that the brokers lowered: its value, and when (ms) a run that deletes first saw it."""

    value: int
    since: int


@dataclass(frozen=True, slots=True)
class HeldLimits:
    """Of one topic, by Kafka's names: the limits that count, and those of them that the brokers lowered since."""

    counted: Mapping[str, int] = field(default_factory=dict)
    lowered: Mapping[str, Lowered] = field(default_factory=dict)

    def counting(self, limits: Mapping[str, int]) -> dict[str, int]:
        """Return the brokers' `limits`, with the earlier one in place of each that is lower now."""
        return {name: self.counted[name] if self.holds(name, value) else value for name, value in limits.items()}

    def holds(self, name: str, value: int) -> bool:
        """Return whether an earlier limit counts in place of the brokers' present `value`."""
        return name in self.counted and _height(value) < _height(self.counted[name])

    def seen(self, limits: Mapping[str, int], now: int, grace_ms: int) -> Self:
        """Return what counts after a look, at `now` (ms), that found the brokers' `limits`."""
        counted, lowered = dict(self.counted), dict(self.lowered)
        for name in limits.keys() & set(WATCHED):
            value = limits[name]
            if self.holds(name, value):
                known = self.lowered.get(name)
                # The highest of the values since then was never exceeded; a still lower one waits again.
                since = now if known is None or _height(value) < _height(known.value) else known.since
                if now - since < grace_ms:
                    lowered[name] = Lowered(value, since)
                    continue
            counted[name] = value
            lowered.pop(name, None)
        return type(self)(counted, lowered)

    @classmethod
    def of(cls, row: Topic | None) -> Self:
        """Return what a `row` has; nothing is held without one. Raises MetadataCorruptError."""
        if row is None:
            return cls()
        given = row.properties
        try:
            counted = {name: int(given[name]) for name in WATCHED if name in given}
            lowered = {
                name: Lowered(int(given[name + _TO]), int(given[name + _SINCE]))
                for name in counted
                if name + _TO in given
            }
        except (KeyError, ValueError) as error:
            raise MetadataCorruptError(
                f"the limits that the metadata keep of topic {row.topic_id} are damaged ({error}): restore the "
                "metadata store from its backup"
            ) from error
        return cls(counted, lowered)

    def row(self, cluster_id: str, topic_id: str) -> Topic:
        """Return the row that keeps this of a topic."""
        properties = {name: str(value) for name, value in self.counted.items()}
        for name, each in self.lowered.items():
            properties |= {name + _TO: str(each.value), name + _SINCE: str(each.since)}
        return Topic(cluster_id, row_id(topic_id), HELD_LIMITS, properties=properties)


NOTHING_HELD = HeldLimits()


def row_id(topic_id: str) -> str:
    """Return what a topic's row has in place of a topic id."""
    return topic_id + HELD_LIMITS


def held_limits(cluster_id: str, topic_id: str, topics: Topics) -> HeldLimits:
    """Return what counts of a topic's limits. Raises as Topics.get, and MetadataCorruptError."""
    return HeldLimits.of(topics.get(cluster_id, row_id(topic_id)))


def is_held(name: str, settings: Settings, configs: TopicConfigs, held: HeldLimits) -> bool:
    """Return whether an earlier limit of the brokers still counts in place of their present one."""
    value = configs.limits.get(name)
    return settings.remote_log_lowered_limit_grace_ms > 0 and value is not None and held.holds(name, value)


def _height(limit: int) -> float:
    """Return a limit for comparisons: without limit (-1), or as the total (-2), which is judged by itself."""
    return limit if limit >= 0 else float("inf")
