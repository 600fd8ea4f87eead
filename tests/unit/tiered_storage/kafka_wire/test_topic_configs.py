"""How a copy cuts a topic's segments, by the topic's own settings."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

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
def test_segments_are_cut_before_the_brokers_delete_what_they_hold(configs: dict[str, str], expected: int) -> None:
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


def test_an_empty_cleanup_policy_of_the_brokers_means_that_nothing_is_deleted() -> None:
    values = {"cleanup.policy": "", "retention.ms": "604800000", "retention.bytes": None}
    entries = [SimpleNamespace(name=name, value=value, config_source=5) for name, value in values.items()]
    answer = SimpleNamespace(results=[SimpleNamespace(resource_name="orders", error_code=0, configs=entries)])

    found = read_topic_configs(answer)["orders"]

    assert isinstance(found, TopicConfigs)
    assert (found.limits["retention.ms"], found.retention_ms, found.is_compacted) == (-1, -1, False)
