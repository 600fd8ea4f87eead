from __future__ import annotations

import pytest

from tiered_storage.errors import ConfigurationError
from tiered_storage.kafka_log.log.log_config import LogConfig


def test_the_defaults_are_kafkas() -> None:
    assert LogConfig() == LogConfig(
        segment_bytes=1073741824,
        segment_ms=604800000,
        segment_index_bytes=10485760,
        index_interval_bytes=4096,
        max_message_bytes=1048588,
        message_timestamp_before_max_ms=2**63 - 1,
        message_timestamp_after_max_ms=3600000,
        flush_messages=2**63 - 1,
        flush_ms=2**63 - 1,
        retention_ms=604800000,
        retention_bytes=-1,
        file_delete_delay_ms=60000,
        producer_id_expiration_ms=86400000,
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("segment_bytes", 60),
        ("segment_bytes", 2**31),
        ("segment_ms", 0),
        ("segment_index_bytes", 23),
        ("index_interval_bytes", -1),
        ("max_message_bytes", 60),
        ("message_timestamp_before_max_ms", -1),
        ("message_timestamp_after_max_ms", -1),
        ("flush_messages", 0),
        ("flush_ms", -1),
        ("retention_ms", -2),
        ("retention_bytes", -2),
        ("file_delete_delay_ms", -1),
        ("producer_id_expiration_ms", 0),
    ],
)
def test_a_value_that_no_segment_can_satisfy_is_refused_by_name(name: str, value: int) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} is {value}"):
        LogConfig(**{name: value})
