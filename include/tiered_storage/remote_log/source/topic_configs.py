"""What a cluster's topics are set to, as far as a source by Fetch needs it; asked by confluent-kafka's admin client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

from tiered_storage.errors import ClusterUnreachableError
from tiered_storage.kafka_log.log.log_config import LogConfig

_TOPICS_AT_ONCE: Final = 500
_SECONDS: Final = 30.0
_DEFAULTS: Final = LogConfig()


@dataclass(frozen=True, slots=True)
class TopicConfigs:
    """How a topic's brokers roll its segments (bytes, ms), and whether they compact or tier it.

    They delete records after `retention_ms`; -1: never for their age.
    """

    segment_bytes: int
    segment_ms: int
    segment_index_bytes: int
    index_interval_bytes: int
    retention_ms: int
    is_compacted: bool
    is_tiered_by_kafka: bool

    @classmethod
    def of(cls, configs: Mapping[str, str]) -> Self:
        """Read the topic's properties, by Kafka's names."""
        return cls(
            # Kafka's own tests set the internal name, for segments below the least size of the public one.
            int(configs.get("internal.segment.bytes") or configs.get("segment.bytes") or _DEFAULTS.segment_bytes),
            int(configs.get("segment.ms") or _DEFAULTS.segment_ms),
            int(configs.get("segment.index.bytes") or _DEFAULTS.segment_index_bytes),
            int(configs.get("index.interval.bytes") or _DEFAULTS.index_interval_bytes),
            _retention_ms(configs),
            "compact" in configs.get("cleanup.policy", ""),
            configs.get("remote.storage.enable") == "true",
        )


def _retention_ms(configs: Mapping[str, str]) -> int:
    if "delete" not in configs.get("cleanup.policy", "delete"):
        return -1
    return int(configs.get("retention.ms") or _DEFAULTS.retention_ms)


def describe_topics(properties: Mapping[str, str], topics: Sequence[str]) -> dict[str, TopicConfigs | str]:
    """Return the settings of each of `topics`, or why they are unknown; `properties` are librdkafka's.

    Raises ClusterUnreachableError if the cluster does not answer.
    """
    if not topics:
        return {}
    admin = AdminClient({"log_level": 0, **properties})
    found: dict[str, TopicConfigs | str] = {}
    for first in range(0, len(topics), _TOPICS_AT_ONCE):
        found |= _describe(admin, topics[first : first + _TOPICS_AT_ONCE])
    return found


def _describe(admin: Any, topics: Iterable[str]) -> dict[str, TopicConfigs | str]:
    resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in topics]
    found: dict[str, TopicConfigs | str] = {}
    for resource, future in admin.describe_configs(resources, request_timeout=_SECONDS).items():
        try:
            entries = future.result(2 * _SECONDS)
        except KafkaException as error:
            code = error.args[0].code()
            if code in {KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN}:
                raise ClusterUnreachableError(
                    f"the settings of topics cannot be read: {error.args[0].str()}"
                ) from error
            found[resource.name] = _why_unknown(resource.name, error.args[0])
            continue
        found[resource.name] = TopicConfigs.of({key: str(each.value) for key, each in entries.items() if each.value})
    return found


def _why_unknown(topic: str, error: Any) -> str:
    why = f"its settings cannot be read: {error.str()}"
    if error.code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return why
    return (
        f"{why}: grant the right with kafka-acls.sh --add --allow-principal User:... --operation DescribeConfigs "
        f"--topic {topic}"
    )
