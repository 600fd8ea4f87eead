"""The settings of a cluster's topics that a source by Fetch needs: DescribeConfigs, which any broker answers.

Source: KIP-133, KIP-226; released Kafka's DescribeConfigsResponse.json.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from tiered_storage.errors import MalformedAnswerError
from tiered_storage.kafka_log.log.log_config import INT64_MAX, LogConfig
from tiered_storage.kafka_wire.connections.apis import DESCRIBE_CONFIGS
from tiered_storage.kafka_wire.connections.error_codes import (
    FOR_EVERY_STEP,
    NONE,
    TOPIC_AUTHORIZATION_FAILED,
    error_name,
    grant,
)
from tiered_storage.kafka_wire.connections.frames import elements, entity, request, request_module

TOPICS_AT_ONCE: Final = 500
_TOPIC: Final = 2
"""DescribeConfigs' number for the settings of a topic."""
_SET_FOR_THE_TOPIC: Final = 1
"""DescribeConfigs' number for a value that was set for the topic, and is not a default of the brokers."""
_DEFAULTS: Final = LogConfig()
_UNLIMITED: Final = -1
_RETENTIONS: Final = ("retention.ms", "retention.bytes")
_LIMITS: Final = (
    "local.retention.ms",
    "local.retention.bytes",
    "remote.copy.lag.ms",
    "remote.copy.lag.bytes",
)
_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_MOST_SHOWN: Final = 100
"""Characters of a value that a message shows."""
_LEAST_SEGMENT: Final = 1 << 20
"""A copy never rolls smaller segments (bytes) because of retention.bytes."""
_READ: Final = (
    "cleanup.policy",
    "index.interval.bytes",
    "internal.segment.bytes",
    "remote.storage.enable",
    "segment.bytes",
    "segment.index.bytes",
    "segment.ms",
    *_RETENTIONS,
    *_LIMITS,
)


@dataclass(frozen=True, slots=True)
class TopicConfigs:
    """How a copy rolls a topic's segments (bytes, ms), as its brokers roll, and whether those compact or tier it.

    The brokers delete records after `retention_ms`, and the oldest of a partition beyond `retention_bytes`; -1: no
    limit. If `retention_bytes` would delete records before a segment is full, `segment_bytes` is half of it, so that a
    segment is copied before as much again is written. `limits` has the limits that our topics have too, by Kafka's
    names; `own` has the names of those set for the topic itself. The others are the brokers' defaults.
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
        """Read the topic's properties, by Kafka's names; those of `own` are set for the topic itself.

        Raises MalformedAnswerError if a numeric property is not a number, naming the property.
        """
        return cls(
            _segment_bytes(configs),
            _number(configs, "segment.ms", _DEFAULTS.segment_ms),
            _number(configs, "segment.index.bytes", _DEFAULTS.segment_index_bytes),
            _number(configs, "index.interval.bytes", _DEFAULTS.index_interval_bytes),
            _retention(configs, "retention.ms", _DEFAULTS.retention_ms),
            "compact" in configs.get("cleanup.policy", ""),
            configs.get("remote.storage.enable") == "true",
            _retention(configs, "retention.bytes", _UNLIMITED),
            _limits(configs),
            frozenset(own),
        )


def _number(configs: Mapping[str, str], name: str, default: int, least: int = -INT64_MAX) -> int:
    """Return a property's value, `default` if brokers do not report it.

    Raises MalformedAnswerError if it is not a whole number, or below `least`.
    """
    text = configs.get(name)
    if not text:
        return default
    if _WHOLE_NUMBER.fullmatch(text) is None or not least <= int(text) <= INT64_MAX:
        raise MalformedAnswerError(f"{name}={text[:_MOST_SHOWN]!r} is not a whole number from {least} to {INT64_MAX}")
    return int(text)


def _segment_bytes(configs: Mapping[str, str]) -> int:
    public = _number(configs, "segment.bytes", _DEFAULTS.segment_bytes, least=1)
    # Kafka's own tests set the internal name, for segments below the least size of the public one.
    whole = _number(configs, "internal.segment.bytes", public, least=1)
    return min(whole, _cut_before_deletion(configs))


def _limits(configs: Mapping[str, str]) -> dict[str, int]:
    """Return the topic's limits; a retention that brokers do not report or apply is -1: it deletes nothing."""
    found = {name: _number(configs, name, _UNLIMITED) for name in _LIMITS if configs.get(name)}
    return found | {name: _retention(configs, name, _UNLIMITED) for name in _RETENTIONS}


def _retention(configs: Mapping[str, str], name: str, default: int) -> int:
    return _number(configs, name, default) if _deletes(configs) else _UNLIMITED


def _cut_before_deletion(configs: Mapping[str, str]) -> int:
    """Return how large (bytes) a segment may become before the brokers may delete some of it for the log's size."""
    most = _retention(configs, "retention.bytes", _UNLIMITED)
    return sys.maxsize if most < 0 else max(_LEAST_SEGMENT, most // 2)


def _deletes(configs: Mapping[str, str]) -> bool:
    return "delete" in configs.get("cleanup.policy", "delete")


def describe_configs_request(version: int, topics: Collection[str]) -> Any:
    """Return kio's request for the settings of `topics`; a broker leaves out settings that it does not know."""
    kind = request_module(DESCRIBE_CONFIGS, version).DescribeConfigsResource
    resources = tuple(
        entity(kind, resource_type=_TOPIC, resource_name=topic, configuration_keys=_READ) for topic in topics
    )
    return request(DESCRIBE_CONFIGS, version, resources=resources, include_synonyms=False)


def read_topic_configs(answer: Any) -> dict[str, TopicConfigs | str]:
    """Return the settings in kio's `answer` by topic, or why they are unknown."""
    found: dict[str, TopicConfigs | str] = {}
    for topic in elements(answer.results):
        name, code = str(topic.resource_name), int(topic.error_code)
        if code != NONE:
            found[name] = _why_unknown(name, code)
            continue
        # An empty cleanup.policy is a value: the brokers then delete nothing (Kafka 4).
        entries = [each for each in elements(topic.configs) if each.value is not None]
        own = [str(each.name) for each in entries if each.config_source == _SET_FOR_THE_TOPIC]
        try:
            found[name] = TopicConfigs.of({str(each.name): str(each.value) for each in entries}, own)
        except MalformedAnswerError as error:
            found[name] = (
                f"its settings cannot be used: {DESCRIBE_CONFIGS} says of topic {name} that {error}: correct it with "
                f"kafka-configs.sh --alter, and look at it with kafka-configs.sh --describe --all --topic {name}"
            )
    return found


def _why_unknown(topic: str, code: int) -> str:
    why = f"its settings cannot be read: {DESCRIBE_CONFIGS} failed with {error_name(code)} ({code})"
    if code != TOPIC_AUTHORIZATION_FAILED:
        return why
    return f"{why}: {grant('DescribeConfigs', f'--topic {topic}', FOR_EVERY_STEP)}"
