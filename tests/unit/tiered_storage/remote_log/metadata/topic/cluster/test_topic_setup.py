"""What an existing topic needs to hold metadata."""

from __future__ import annotations

import pytest

from support.topic_brokers import Answers
from tiered_storage.errors import ConfigurationError
from tiered_storage.kafka_wire.topic_configs import TopicConfigs
from tiered_storage.remote_log.metadata.topic.store import TopicMetadataStore


def test_a_topic_whose_oldest_records_are_deleted_by_size_is_refused(
    answers: Answers, topic_metadata: TopicMetadataStore
) -> None:
    answers.configs = TopicConfigs.of({"retention.ms": "-1", "retention.bytes": str(1 << 30)})

    with pytest.raises(ConfigurationError, match=rf"retention\.bytes {1 << 30}.*-1"):
        topic_metadata.state.begin_arrival()
