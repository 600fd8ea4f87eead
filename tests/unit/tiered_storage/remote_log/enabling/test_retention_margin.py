"""How long an outage may last until brokers delete records that are not copied."""

from __future__ import annotations

from typing import Any

import pytest

from tiered_storage.kafka_wire.topic_configs import TopicConfigs
from tiered_storage.remote_log.enabling.retention_margin import margin_by_age, margin_by_size, why_margin_is_short
from tiered_storage.settings.topics import TopicSettings

HOUR = 3_600_000
DAY = 24 * HOUR


def configs(**given: int) -> TopicConfigs:
    names = {name.replace("_", "."): str(value) for name, value in given.items()}
    return TopicConfigs.of({"segment.ms": str(7 * DAY), "segment.bytes": "1000", **names})


def topic(**given: Any) -> TopicSettings:
    return TopicSettings.parse("orders", {name.replace("_", "."): value for name, value in given.items()})


@pytest.mark.parametrize(
    ("brokers", "ours", "expected"),
    [
        ({"retention_ms": -1}, {}, None),
        ({"retention_ms": 7 * DAY}, {}, 7 * DAY // 2),
        ({"retention_ms": 7 * DAY, "segment_ms": HOUR}, {}, 7 * DAY - HOUR),
        ({"retention_ms": 7 * DAY}, {"segment_ms": HOUR}, 7 * DAY - HOUR),
        ({"retention_ms": 7 * DAY}, {"segment_ms": HOUR, "remote_copy_lag_ms": 5 * DAY}, 2 * DAY),
        ({"retention_ms": 7 * DAY}, {"remote_copy_lag_ms": -1, "remote_copy_lag_bytes": 5}, 0),
    ],
)
def test_the_margin_is_the_retention_left_once_a_record_is_due(
    brokers: dict[str, int], ours: dict[str, int], expected: int | None
) -> None:
    assert margin_by_age(configs(**brokers), topic(**ours)) == expected


@pytest.mark.parametrize(
    ("size", "ours", "rate", "expected"),
    [
        (-1, {}, 1.0, None),
        (5000, {}, 0.0, None),
        (5000, {}, 2.0, 2000),
        (500, {}, 2.0, 0),
        (5000, {"segment_bytes": 1 << 20}, 2.0, 0),
        (5000, {"remote_copy_lag_ms": 1000, "remote_copy_lag_bytes": 500}, 2.0, 1750),
        (5000, {"remote_copy_lag_ms": 1000, "remote_copy_lag_bytes": 3000}, 2.0, 1000),
    ],
)
def test_a_limit_in_bytes_lasts_by_the_rate(size: int, ours: dict[str, int], rate: float, expected: int | None) -> None:
    assert margin_by_size(configs(retention_bytes=size), topic(**ours), rate) == expected


@pytest.mark.parametrize("segment_ms", [HOUR, 20 * HOUR, 3 * DAY])
def test_the_retention_that_a_message_asks_for_suffices_and_less_does_not(segment_ms: int) -> None:
    short = configs(retention_ms=HOUR, segment_ms=segment_ms)
    why = why_margin_is_short(short, topic(), DAY, 0.0)
    assert why is not None
    needed = int(why.partition("retention.ms at the brokers to ")[2].split()[0])

    assert why_margin_is_short(configs(retention_ms=needed, segment_ms=segment_ms), topic(), DAY, 0.0) is None
    assert why_margin_is_short(configs(retention_ms=needed - 2, segment_ms=segment_ms), topic(), DAY, 0.0) is not None


def test_a_compacted_topic_has_no_retention_to_compare() -> None:
    compacted = TopicConfigs.of({"cleanup.policy": "compact", "retention.ms": "5", "retention.bytes": "5"})

    assert why_margin_is_short(compacted, topic(), DAY, 1.0) is None
