"""What an existing topic needs to hold metadata."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]

from support.metadata_stores import topic_options
from support.topic_brokers import SERVERS, Answers
from tiered_storage.errors import ConfigurationError
from tiered_storage.kafka_wire.topic_configs import TopicConfigs
from tiered_storage.remote_log.metadata.topic.cluster import topic_setup
from tiered_storage.remote_log.metadata.topic.cluster.metadata_log import MetadataLog
from tiered_storage.remote_log.metadata.topic.cluster.options import TopicOptions
from tiered_storage.remote_log.metadata.topic.store import TopicMetadataStore


class BrokersInTurn:
    """An admin client of brokers that are restarted one after another: only those of `tiering` tier by themselves."""

    def __init__(self, tiering: set[str]) -> None:
        self.tiering = tiering

    def describe_configs(self, resources: Sequence[Any], **_: object) -> dict[Any, Future[dict[str, Any]]]:
        found: dict[Any, Future[dict[str, Any]]] = {}
        for each in resources:
            assert each.restype == ConfigResource.Type.BROKER
            found[each] = Future()
            value = "true" if each.name in self.tiering else "false"
            found[each].set_result({"remote.log.storage.system.enable": SimpleNamespace(value=value)})
        return found


@pytest.mark.parametrize("tiering", ["1", "2"])
def test_kafkas_own_topic_is_refused_if_any_broker_tiers_by_itself(
    answers: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiering: str
) -> None:
    answers.topic, answers.brokers = replace(answers.topic, name="__remote_log_metadata"), (1, 2)
    monkeypatch.setattr(topic_setup, "_admin", lambda _: BrokersInTurn({tiering}))
    options = TopicOptions.of(topic_options(SERVERS, tmp_path, topic_name="__remote_log_metadata"))

    with pytest.raises(ConfigurationError, match="tier by themselves"):
        topic_setup.find_topic(options, MetadataLog(options))


def test_a_topic_whose_oldest_records_are_deleted_by_size_is_refused(
    answers: Answers, topic_metadata: TopicMetadataStore
) -> None:
    answers.configs = TopicConfigs.of({"retention.ms": "-1", "retention.bytes": str(1 << 30)})

    with pytest.raises(ConfigurationError, match=rf"retention\.bytes {1 << 30}.*-1"):
        topic_metadata.state.begin_arrival()
