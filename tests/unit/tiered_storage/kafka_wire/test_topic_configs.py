"""How a copy rolls a topic's segments, by the topic's own settings."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from support.command_line import mentions
from tiered_storage.kafka_wire.topic_configs import TopicConfigs, read_topic_configs

MIB = 1 << 20


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        ({"segment.bytes": str(64 * MIB)}, 64 * MIB),
        ({"segment.bytes": str(64 * MIB), "retention.bytes": "-1"}, 64 * MIB),
        ({"segment.bytes": str(64 * MIB), "retention.bytes": str(1000 * MIB)}, 64 * MIB),
        ({"segment.bytes": str(64 * MIB), "retention.bytes": str(100 * MIB)}, 50 * MIB),
        ({"segment.bytes": str(64 * MIB), "retention.bytes": "0"}, MIB),
        ({"segment.bytes": "16384", "retention.bytes": "0"}, 16384),
        ({"segment.bytes": str(64 * MIB), "retention.bytes": "1", "cleanup.policy": "compact"}, 64 * MIB),
        ({"segment.bytes": str(64 * MIB), "internal.segment.bytes": "16384"}, 16384),
    ],
)
def test_segments_are_rolled_before_the_brokers_delete_what_they_hold(configs: dict[str, str], expected: int) -> None:
    assert TopicConfigs.of(configs).segment_bytes == expected


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        ({"cleanup.policy": "delete", "retention.ms": "5", "retention.bytes": "6"}, (5, 6)),
        ({"retention.ms": "5", "retention.bytes": "6"}, (5, 6)),
        ({"cleanup.policy": "", "retention.ms": "5", "retention.bytes": "6"}, (-1, -1)),
        ({"cleanup.policy": "compact", "retention.ms": "5", "retention.bytes": "6"}, (-1, -1)),
        ({"cleanup.policy": "delete", "retention.ms": "", "retention.bytes": ""}, (-1, -1)),
        ({"cleanup.policy": "delete", "local.retention.ms": ""}, (-1, -1)),
    ],
)
def test_a_retention_that_the_brokers_do_not_tell_or_apply_is_no_limit(
    configs: dict[str, str], expected: tuple[int, int]
) -> None:
    limits = TopicConfigs.of(configs).limits
    assert (limits["retention.ms"], limits["retention.bytes"]) == expected


NUMBERS = (
    "internal.segment.bytes", "segment.bytes", "segment.ms", "segment.index.bytes", "index.interval.bytes",
    "retention.ms", "retention.bytes", "local.retention.ms", "local.retention.bytes", "remote.copy.lag.ms",
    "remote.copy.lag.bytes",
)  # fmt: skip


def described(**topics: dict[str, str | None]) -> Any:
    """What a broker answers of topics, by their names."""
    return SimpleNamespace(
        results=[
            SimpleNamespace(
                resource_name=topic,
                error_code=0,
                configs=[SimpleNamespace(name=name, value=value, config_source=5) for name, value in values.items()],
            )
            for topic, values in topics.items()
        ]
    )


@pytest.mark.parametrize("value", ["many", "1_000", "1.5", "0x10", "", "9223372036854775808", "9" * 5000])
@pytest.mark.parametrize("name", NUMBERS)
def test_a_value_that_is_no_number_makes_its_topic_alone_unreadable_by_its_name(name: str, value: str) -> None:
    found = read_topic_configs(described(orders={name: value}, clicks={name: "1048576"}))

    assert isinstance(found["clicks"], TopicConfigs)
    if not value:
        assert found["orders"] == TopicConfigs.of({}), "what brokers do not tell"
        return
    why = found["orders"]
    assert isinstance(why, str)
    assert mentions(why, "DescribeConfigs", "topic orders", f"{name}='{value[:100]}'", "not a whole number")
    assert len(why) < 500


@pytest.mark.parametrize("name", ["segment.bytes", "internal.segment.bytes"])
def test_segments_without_a_size_make_their_topic_unreadable(name: str) -> None:
    why = read_topic_configs(described(orders={name: "0"}))["orders"]
    assert isinstance(why, str)
    assert mentions(why, f"{name}='0'", "from 1 to")


def test_the_largest_numbers_of_kafka_are_read() -> None:
    most = str((1 << 63) - 1)
    configs = TopicConfigs.of({"segment.ms": most, "retention.ms": most, "local.retention.ms": "-2"})
    assert (configs.segment_ms, configs.retention_ms, configs.limits["local.retention.ms"]) == (
        int(most),
        int(most),
        -2,
    )


def test_an_empty_cleanup_policy_of_the_brokers_means_that_nothing_is_deleted() -> None:
    values = {"cleanup.policy": "", "retention.ms": "604800000", "retention.bytes": None}

    found = read_topic_configs(described(orders=values))["orders"]

    assert isinstance(found, TopicConfigs)
    assert (found.limits["retention.ms"], found.retention_ms, found.is_compacted) == (-1, -1, False)
