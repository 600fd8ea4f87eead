"""The settings of a cluster's topics that a copy needs, read by confluent-kafka's admin client."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource  # type: ignore[attr-defined]

from tiered_storage.errors import ClusterUnreachableError
from tiered_storage.kafka_log.log.log_config import LogConfig

_TOPICS_AT_ONCE: Final = 500
_SECONDS: Final = 30.0
_KEPT_SECONDS: Final = 5.0
"""For connections that were kept: the broker that they led to may be gone, and new ones find another."""
_DEFAULTS: Final = LogConfig()
_UNLIMITED: Final = -1
_RETENTIONS: Final = ("retention.ms", "retention.bytes")
_LIMITS: Final = (
    "local.retention.ms",
    "local.retention.bytes",
    "remote.copy.lag.ms",
    "remote.copy.lag.bytes",
)
_LEAST_SEGMENT: Final = 1 << 20
"""No retention.bytes makes a copy cut smaller segments (bytes) than this."""
_UNREACHED: Final = frozenset({KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN})


@dataclass(frozen=True, slots=True)
class TopicConfigs:
    """How a copy cuts a topic's segments (bytes, ms), as its brokers roll, and whether those compact or tier it.

    They delete records after `retention_ms`, and the oldest beyond `retention_bytes` of a partition; -1: never for
    that. Where the latter deletes them before a segment is full, `segment_bytes` is half of it: what was cut is then
    copied before so much more is written. `limits` has the limits that a topic of ours has too, by Kafka's names; `own`
    the names of all that is set for the topic itself, where the rest are defaults of the brokers.
    """

    segment_bytes: int
    segment_ms: int
    segment_index_bytes: int
    index_interval_bytes: int
    retention_ms: int
    is_compacted: bool
    is_tiered_by_kafka: bool
    retention_bytes: int = _UNLIMITED
    limits: Mapping[str, int] = field(default_factory=dict)
    own: frozenset[str] = frozenset()

    @classmethod
    def of(cls, configs: Mapping[str, str], own: Collection[str] = ()) -> Self:
        """Read the topic's properties, by Kafka's names; those of `own` are set for the topic itself."""
        return cls(
            # Kafka's own tests set the internal name, for segments below the least size of the public one.
            min(
                int(configs.get("internal.segment.bytes") or configs.get("segment.bytes") or _DEFAULTS.segment_bytes),
                _cut_before_deletion(configs),
            ),
            int(configs.get("segment.ms") or _DEFAULTS.segment_ms),
            int(configs.get("segment.index.bytes") or _DEFAULTS.segment_index_bytes),
            int(configs.get("index.interval.bytes") or _DEFAULTS.index_interval_bytes),
            _retention(configs, "retention.ms", _DEFAULTS.retention_ms),
            "compact" in configs.get("cleanup.policy", ""),
            configs.get("remote.storage.enable") == "true",
            _retention(configs, "retention.bytes", _UNLIMITED),
            _limits(configs),
            frozenset(own),
        )


def _limits(configs: Mapping[str, str]) -> dict[str, int]:
    """Return the topic's limits; a retention that brokers do not tell, or do not apply, is -1: it deletes nothing."""
    found = {name: int(configs[name]) for name in _LIMITS if configs.get(name)}
    return found | {name: _retention(configs, name, _UNLIMITED) for name in _RETENTIONS}


def _retention(configs: Mapping[str, str], name: str, default: int) -> int:
    return int(configs.get(name) or default) if _deletes(configs) else _UNLIMITED


def _cut_before_deletion(configs: Mapping[str, str]) -> int:
    """Return how large (bytes) a segment may become before the brokers may delete some of it for the log's size."""
    most = _retention(configs, "retention.bytes", _UNLIMITED)
    return sys.maxsize if most < 0 else max(_LEAST_SEGMENT, most // 2)


def _deletes(configs: Mapping[str, str]) -> bool:
    return "delete" in configs.get("cleanup.policy", "delete")


class TopicDescriber:
    """Describes the topics of one cluster, over connections that it keeps. For one thread at a time."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        """Open nothing yet; `properties` are librdkafka's."""
        self._properties = properties
        self._admin: AdminClient | None = None

    def describe(self, topics: Sequence[str]) -> dict[str, TopicConfigs | str]:
        """Return the settings of each of `topics`, or why they are unknown.

        Raises ClusterUnreachableError if the cluster does not answer, over new connections either.
        """
        found: dict[str, TopicConfigs | str] = {}
        for first in range(0, len(topics), _TOPICS_AT_ONCE):
            found |= self._answers_on(topics[first : first + _TOPICS_AT_ONCE])
        return found

    def _answers_on(self, topics: Sequence[str]) -> dict[str, TopicConfigs | str]:
        if self._admin is not None:
            try:
                return _describe(self._admin, topics, _KEPT_SECONDS)
            except ClusterUnreachableError:
                self.close()
        admin = AdminClient({"log_level": 0, **self._properties})
        found = _describe(admin, topics, _SECONDS)
        self._admin = admin
        return found

    def close(self) -> None:
        """Close the connections; repeated calls are harmless."""
        self._admin = None


def _describe(admin: Any, topics: Iterable[str], seconds: float) -> dict[str, TopicConfigs | str]:
    resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in topics]
    found: dict[str, TopicConfigs | str] = {}
    for resource, future in admin.describe_configs(resources, request_timeout=seconds).items():
        try:
            entries = future.result(2 * seconds)
        except KafkaException as error:
            code = error.args[0].code()
            if code in _UNREACHED:
                raise ClusterUnreachableError(
                    f"the settings of topics cannot be read: {error.args[0].str()}"
                ) from error
            found[resource.name] = _why_unknown(resource.name, error.args[0])
            continue
        own = {key for key, each in entries.items() if each.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value}
        # An empty cleanup.policy is a value: the brokers then delete nothing (Kafka 4).
        values = {key: str(each.value) for key, each in entries.items() if each.value is not None}
        found[resource.name] = TopicConfigs.of(values, own)
    return found


def _why_unknown(topic: str, error: Any) -> str:
    why = f"its settings cannot be read: {error.str()}"
    if error.code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return why
    return (
        f"{why}: grant the right with kafka-acls.sh --add --allow-principal User:... --operation DescribeConfigs "
        f"--topic {topic}"
    )
