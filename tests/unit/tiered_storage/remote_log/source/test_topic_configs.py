"""How a copy cuts a topic's segments, by the topic's own settings."""

from __future__ import annotations

import pytest

from tiered_storage.remote_log.source.topic_configs import TopicConfigs

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
